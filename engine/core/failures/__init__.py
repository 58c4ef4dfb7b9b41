"""Which failure is this, and what is it worth: fingerprints, classes, and why an attempt hung."""
