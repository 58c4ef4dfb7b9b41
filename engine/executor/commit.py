"""A step of the loop, as a value: what shall be written next, and what follows once it is in the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..statefile.changes.transitions import Journal


def _nothing(result: Any) -> None:
    """Its events say it all."""


@dataclass(frozen=True, slots=True)
class Commit:
    """``item`` runs in the writer's transaction; ``then(its result)`` in the loop, after the COMMIT.

    ``durable``: on the disk before that, whatever the durability of the run.
    """

    item: Callable[[Journal], Any]
    then: Callable[[Any], None] = _nothing
    durable: bool = False
