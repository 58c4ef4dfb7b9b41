"""Builds many objects at once without the garbage collector, which would traverse all of them many times."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Start no collections in the block. For objects that all stay: a third of the time to load 100,000 tasks."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collector_slowed() -> Iterator[None]:
    """Start few collections in the block. For the import of a flow file: a sixth of the time for 100,000 tasks."""
    before, slowed = gc.get_threshold(), (10_000, 50, 100)
    gc.set_threshold(*slowed)
    try:
        yield
    finally:
        if gc.get_threshold() == slowed:  # else the file has set its own
            gc.set_threshold(*before)
