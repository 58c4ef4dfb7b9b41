"""The four arms of a box-drawing cell as bits: layouts use them without naming a character."""

from __future__ import annotations

UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8
ACROSS = LEFT | RIGHT
