"""Helpers for code inside tasks: retry decorator, retry layers, send buffer, credentials. The executor uses none."""
