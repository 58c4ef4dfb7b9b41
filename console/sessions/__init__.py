"""Where a run is seen from: the one just started, a local file, a host behind ssh. One interface, three doors."""
