"""The executor: the event loop of a run, and the only writer of its state file. Read ``loop.py`` first."""
