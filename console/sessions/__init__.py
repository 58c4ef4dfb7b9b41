"""Where a run is seen from (the one just started, a local file, a host behind ssh), and what is read through that."""
