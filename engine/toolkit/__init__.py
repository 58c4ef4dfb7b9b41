"""Helpers for code inside tasks: the retry decorator, retry layers, the send buffer, credentials. The executor imports none of them."""
