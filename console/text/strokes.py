"""The arms of a line's cell, as bits: how the pure layouts say what to draw without naming a character."""

from __future__ import annotations

UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8
ACROSS = LEFT | RIGHT
