"""The one loop and what turns with it: the only writer of a state file.

Begin with ``loop.py``, whose docstring draws it.
"""
