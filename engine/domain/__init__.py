"""States and their legal moves, trigger rules, operator acts, events and overrides. Runs on Python 3.6."""
