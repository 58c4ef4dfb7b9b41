"""Starts the runs of a schedule, one at a time, and fills the gaps of the past."""
