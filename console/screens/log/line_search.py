"""Searches the lines of a log in memory, a slice at a time: the console handles keys between two slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ....engine.statefile.changes.log_search import time_limit

SLICE_CHARACTERS = 32 * 1024
SLICE_SECONDS = 0.04  # of processor time; a pattern that takes longer has no bound


class LogTarget(NamedTuple):
    """What to search a log for: a regular expression for the store, which may find too much, and a test of lines.

    ``nothing``: the message if no line matches.
    """

    pattern: str
    matches: Callable[[str], bool]
    nothing: str = ""


def places_after(count: int, after: int, step: int, wraps: bool) -> Iterator[int]:
    """The places of a list after ``after``, with a ``step`` of -1 backwards. ``wraps``: go on at the other end."""
    for distance in range(1, count + 1):
        place = after + step * distance
        if not wraps and not 0 <= place < count:
            return
        yield place % count


async def first_match(
    places: Iterable[int], text_at: Callable[[int], str], matches: Callable[[str], bool]
) -> int | None:
    """The first place whose line matches. Raises SlowPatternError."""
    for part in _slices(places, text_at):
        with time_limit(SLICE_SECONDS):
            found = next((place for place, text in part if matches(text)), None)
        if found is not None:
            return found
        await asyncio.sleep(0)
    return None


def _slices(places: Iterable[int], text_at: Callable[[int], str]) -> Iterator[list[tuple[int, str]]]:
    part: list[tuple[int, str]] = []
    size = 0
    for place in places:
        part.append((place, text_at(place)))
        size += len(part[-1][1])
        if size >= SLICE_CHARACTERS:
            yield part
            part, size = [], 0
    yield part
