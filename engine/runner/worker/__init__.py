"""Warm workers (``isolation="worker"``): processes that run attempts one after another."""
