"""A long life in little time: one process runs hundreds of runs after another, as ``redrive serve`` does, under watch.

``python -m tests.long_life`` has 200,000 attempts, 1,000 attaches and 10,000 acts; it plots what the process holds.
"""
