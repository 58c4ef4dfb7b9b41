"""Reads and changes the state file with the standard library alone. Runs on Python 3.6."""
