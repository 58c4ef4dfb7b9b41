"""Repeats in the journal, each one row: tries of a task that end alike, as checks of a sensor; reports of progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from ...engine.domain.event_payloads import TaskChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import TIMED, TaskState
from ..text.task_events import failure_text

FOLDED_FROM = 3  # tries
REPORTS = "reports", ""  # the ``end`` of reports of progress

_BETWEEN = frozenset([TaskState.READY, TaskState.RUNNING])


class Tries(msgspec.Struct):
    """Tries of one task that ended alike, one after the other, or the reports of progress of one attempt.

    Attributes:
        end: what is alike: the state after the try, and for a failure its error.
        first, last: the numbers of the events that ended the first and the latest of them.
        hidden: the numbers of the events before ``last`` that the row stands for.
        since: those behind ``last``, of a try that has not ended.
    """

    end: tuple[str, str]
    first: int
    last: int
    began_at: int
    count: int = 1
    hidden: list[int] = []
    since: list[int] = []


def _with(event: Event, end: tuple[str, str], tries: Tries | None) -> Tries:
    """``tries`` and the one that the event ends; new ones if it ends otherwise."""
    if tries is None or tries.end != end:
        return Tries(end, event.seq, event.seq, event.at)
    tries.hidden += [tries.last, *tries.since]
    tries.last, tries.since, tries.count = event.seq, [], tries.count + 1
    return tries


def _failure_of(event: Event) -> str:
    """The failure of a try and what has changed before it; empty for a check that found nothing."""
    payload = event.payload
    if event.new == TaskState.SENSING or not isinstance(payload, TaskMoved):
        return ""
    return ", ".join([failure_text(payload), *payload.changed])


def fold_tries(events: Iterable[Event], opened: Collection[int]) -> tuple[list[int], Mapping[int, Tries]]:
    """The numbers of the events that have a row, oldest first, and the tries for which a row stands, by its number.

    ``opened``: the ``first`` of tries that are listed each.
    """
    order: list[int] = []
    open_tries: dict[str, Tries] = {}
    reports: dict[str, Tries] = {}
    found: dict[int, Tries] = {}  # by ``first``
    for event in events:
        order.append(event.seq)
        if event.task is None:
            continue
        if isinstance(event.payload, TaskChanged) and event.payload.set.get("progress_total"):
            reports[event.task] = one = _with(event, REPORTS, reports.get(event.task))
            found[one.first] = one
        if event.kind != EventKind.TASK and event.kind != EventKind.ATTEMPT_STARTED:
            continue
        tries = open_tries.get(event.task)
        reports.pop(event.task, None)
        if event.new in TIMED:
            end = event.new, _failure_of(event)
            open_tries[event.task] = one = _with(event, end, tries)
            found[one.first] = one
        elif event.new is not None and event.new not in _BETWEEN:
            open_tries.pop(event.task, None)
        elif tries is not None:
            tries.since.append(event.seq)
    folded = {one.last: one for one in found.values() if one.count >= FOLDED_FROM and one.first not in opened}
    hidden = {number for one in folded.values() for number in one.hidden}
    return [number for number in order if number not in hidden] if hidden else order, folded
