"""Sets of the core as lists in SQL, so that no statement writes the states of a rule a second time.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Iterable


def in_list(words: Iterable[str]) -> str:
    """``('FAILED', 'READY')``: what follows IN. Sorted, so that a statement has the same text in every process."""
    return "({})".format(", ".join("'{}'".format(word) for word in sorted(map(str, words))))
