"""Garbage collection that closes what earlier tests have left open."""

from __future__ import annotations

import gc


def collect_all() -> None:
    """Collect everything, also what an app or a command in this process has left out of collections.

    A connection of sqlite3 is in a circle: its file is open until a collection finds it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
