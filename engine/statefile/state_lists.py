"""Renders sets of states and rules as SQL lists, so that no statement repeats them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Iterable


def in_list(words: Iterable[str]) -> str:
    """The operand of IN: ``('FAILED', 'READY')``. Sorted, so that a statement has the same text in every process."""
    return "({})".format(", ".join("'{}'".format(word) for word in sorted(map(str, words))))
