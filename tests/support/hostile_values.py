"""JSON values that nobody sends by mistake, and answers or commands altered by seeded dice."""

from __future__ import annotations

import random
from typing import Any

DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**63, -(2**70), 1.5, float("inf"), float("nan")),
    *("", "x", "x" * 50_000, "\ud800", "\x1b[2J\x07", "2026-01-01", [], {}, [[]], [None] * 3000, {"": {}}, DEEP),
)


def altered(value: Any, dice: random.Random) -> Any:
    """A value with one node of it replaced, removed or doubled."""
    if not value or not isinstance(value, list | dict) or dice.random() < 0.15:
        return dice.choice(VALUES)
    if isinstance(value, list):
        place, copied = dice.randrange(len(value)), list(value)
        copied[place : place + 1] = dice.choice(([altered(value[place], dice)],) * 6 + ([], [value[place]] * 2))
        return copied
    name = dice.choice(list(value))
    rest = {key: each for key, each in value.items() if key != name}
    return dice.choice(({**value, name: altered(value[name], dice)},) * 6 + (rest, {**rest, f"{name}x": value[name]}))
