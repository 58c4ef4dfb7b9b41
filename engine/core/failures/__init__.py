"""Facts of a failure: its fingerprints, its class, and why an attempt hung."""
