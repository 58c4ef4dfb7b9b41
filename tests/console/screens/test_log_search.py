"""The search of a log in memory: its order, its slices, and patterns that would never end."""

from __future__ import annotations

import asyncio
import re

import pytest
from redrive.console.screens.log_reader import SLICE_CHARACTERS, first_match, places_after
from redrive.engine.errors import RedriveError


def test_places_follow_each_other_round_and_round() -> None:
    assert list(places_after(4, -1, 1, wraps=True)) == [0, 1, 2, 3]
    assert list(places_after(4, 1, 1, wraps=True)) == [2, 3, 0, 1]
    assert list(places_after(4, 1, -1, wraps=True)) == [0, 3, 2, 1]
    assert list(places_after(4, 1, 1, wraps=False)) == [2, 3]
    assert list(places_after(4, 1, -1, wraps=False)) == [0]
    assert list(places_after(0, -1, 1, wraps=True)) == []


async def test_other_work_is_done_between_two_slices() -> None:
    lines = ["x" * 1024] * (5 * SLICE_CHARACTERS // 1024)
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


async def test_a_pattern_that_takes_for_ever_is_given_up() -> None:
    lines = ["ok", "a" * 60 + "!"]
    endless = re.compile("(a+)+$")
    with pytest.raises(RedriveError, match="simplify it"):
        await first_match(range(2), lines.__getitem__, lambda line: endless.search(line) is not None)
