"""Commands that compute with policies and recorded runs: they change nothing."""
