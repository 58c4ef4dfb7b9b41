"""Changes the state file: transitions, propagation and operator acts. Runs on Python 3.6."""
