"""Counted nouns in sentences.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""


def counted(count: int, noun: str) -> str:
    """Return a number and a regular noun: ``1 task``, ``1,248 tasks``."""
    return "{:,} {}{}".format(count, noun, "" if count == 1 else "s")
