"""Starts the runs of a schedule, one at a time, and backfills missed ones."""
