"""Changes the state file: transitions, propagation, and the acts of operators. Runs on Python 3.6."""
