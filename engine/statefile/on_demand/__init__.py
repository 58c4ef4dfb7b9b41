"""Queries that few sessions need; ssh carries them with the first request. Runs on Python 3.6."""
