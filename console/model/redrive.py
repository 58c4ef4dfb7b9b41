"""The progress of a requeue of many tasks, from the event of the act and the present rows of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...engine.domain.command import DONE
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.states import MOVING, NEEDS_HUMAN, WAITING
from .board import Board


class RedriveProgress(NamedTuple):
    """How far a redrive has come. ``unstarted``: tasks that can still be taken back; ``last_at``: the last instant."""

    total: int
    started: int
    under_way: int
    failed_again: int
    unstarted: tuple[str, ...]
    rate: float  # starts per second; 0: no limit
    last_at: int | None  # microseconds UTC; None if no task waits for an instant

    @property
    def is_over(self) -> bool:
        """Whether all its tasks have ended, or moved on."""
        return not self.unstarted and not self.under_way


def latest_redrive(events: Iterable[Event]) -> Event | None:
    """The last event of a requeue of several tasks; None if there is none."""
    found = None
    for event in events:
        acted = event.payload
        if isinstance(acted, OperatorActed) and acted.act == "requeue" and len(list(requeued_names(acted))) > 1:
            found = event
    return found


def requeued_names(acted: OperatorActed) -> Iterator[str]:
    """The tasks that an act requeued, without those that it only unblocked."""
    for task, outcome, _ in acted.answer.get("results") or ():
        before = acted.was.get(task)
        if outcome == DONE and before is not None:
            yield task


def progress_of(acted: OperatorActed, board: Board) -> RedriveProgress:
    """The progress of a requeue on the board. A task that was requeued again, or taken back, is not counted."""
    unstarted: list[str] = []
    total = started = under_way = failed = 0
    last_at: int | None = None
    for name in requeued_names(acted):
        row = board.projection.tasks.get(name)
        if row is None or row.generation != int(acted.was[name]["generation"]) + 1:
            continue
        total += 1
        latest = row.attempts.get(row.attempt)
        has_started = latest is not None and latest.generation == row.generation
        started += has_started
        if not has_started and row.state in WAITING:
            unstarted.append(name)
            last_at = max(last_at or 0, row.next_retry_at or 0) or None
        elif has_started:
            under_way += row.state in MOVING
            failed += row.state in NEEDS_HUMAN
    rate = acted.options.get("rate_per_second")
    return RedriveProgress(
        total,
        started,
        under_way,
        failed,
        tuple(unstarted),
        float(rate) if isinstance(rate, int | float) else 0.0,
        last_at,
    )
