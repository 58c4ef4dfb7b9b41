"""The sources of runs (one just started, a local file, a host behind ssh), and the reads through them."""
