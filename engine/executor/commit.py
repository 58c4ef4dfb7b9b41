"""A step of the loop as a value: the write, and the callback after its commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..statefile.changes.transitions import Transaction


def _ignore(result: object) -> None:
    """Default callback: the events of the commit are enough."""


@dataclass(frozen=True, slots=True)
class Commit:
    """``item`` runs in the writer's transaction; ``on_committed(result of item)`` in the loop, after the COMMIT.

    ``durable``: the callback waits until the commit is on the disk.
    """

    item: Callable[[Transaction], object]
    on_committed: Callable[[Any], None] = _ignore
    durable: bool = False
