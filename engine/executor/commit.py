"""A step of the loop as a value: the write, and the callback after its commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..statefile.changes.transitions import Transaction
from ..store.claims import Claim


def ignore_result(result: object) -> None:
    """Default callback for a write without a result: do nothing."""


@dataclass(frozen=True, slots=True)
class Commit:
    """``item`` runs in the writer's transaction; ``on_committed(result of item)`` in the loop, after the COMMIT.

    ``durable``: the callback waits until the commit is on the disk.
    """

    item: Callable[[Transaction], object]
    on_committed: Callable[[Any], None] = ignore_result
    durable: bool = False


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The claims of the slot that an ending attempt frees: they share the transaction of its settlement.

    A commit of their own costs a chain of short tasks a third of the executor's CPU.
    """

    claim: Callable[[Transaction, bool], list[Claim]]  # the second argument: the attempt was settled as a success
    on_committed: Callable[[list[Claim]], None]
    durable: bool = False
