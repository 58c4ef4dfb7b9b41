"""The search of a log in memory: its order and its slices."""

from __future__ import annotations

import asyncio

from redrive.console.model.lists import places_after
from redrive.console.screens.log import SLICE_LINES, first_match


def test_places_follow_each_other_round_and_round() -> None:
    assert list(places_after(4, -1, 1, wraps=True)) == [0, 1, 2, 3]
    assert list(places_after(4, 1, 1, wraps=True)) == [2, 3, 0, 1]
    assert list(places_after(4, 1, -1, wraps=True)) == [0, 3, 2, 1]
    assert list(places_after(4, 1, 1, wraps=False)) == [2, 3]
    assert list(places_after(4, 1, -1, wraps=False)) == [0]
    assert list(places_after(0, -1, 1, wraps=True)) == []


async def test_other_work_is_done_between_two_slices() -> None:
    lines = ["x"] * (5 * SLICE_LINES)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await first_match(range(len(lines)), lines.__getitem__, lambda line: "y" in line) is None
    counting.cancel()
    assert turns >= 5
