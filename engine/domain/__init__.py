"""The words that every part shares: states and their legal moves, trigger rules, events, overrides. Runs on Python 3.6."""
