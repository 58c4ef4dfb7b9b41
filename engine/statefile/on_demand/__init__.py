"""Queries that few readers need; ssh carries them when the first reader asks. Runs on Python 3.6."""
