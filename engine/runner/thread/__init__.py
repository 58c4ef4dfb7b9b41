"""Attempts in threads (``isolation="thread"``): for many tasks that mostly wait."""
