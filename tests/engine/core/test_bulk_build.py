"""Many objects are built without collections in between."""

from __future__ import annotations

import gc

import pytest
from redrive.engine.core.spec import collector_paused


def collections() -> list[int]:
    """How many there have been, by generation."""
    return [one["collections"] for one in gc.get_stats()]


def test_no_collection_starts_in_the_block() -> None:
    with collector_paused():
        before = collections()
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert kept and collections() == before
    assert gc.isenabled()


def test_the_collector_stays_as_it_was() -> None:
    with pytest.raises(ValueError), collector_paused():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
