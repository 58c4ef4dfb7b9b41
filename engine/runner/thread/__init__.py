"""Attempts in threads: for tasks that wait a lot, many at once."""
