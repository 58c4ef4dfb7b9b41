"""Writes and reads the state file through SQLite, for the executor and the commands."""
