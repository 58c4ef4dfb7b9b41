"""Reads and changes the state file with the standard library only. Runs on Python 3.6."""
