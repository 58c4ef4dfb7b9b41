"""``redrive replay``: the night once more. The events up to an instant, folded, are the run as it was then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime, time, timedelta
from typing import Any, cast

from ..engine.core.events import Event
from ..engine.core.fold import RunFold, RunRow, TaskRow
from ..engine.errors import RedriveError
from .doors import with_session
from .listing import print_tasks
from .sessions.session import Session

_DAY = timedelta(days=1)


def show(target: str, run_id: str | None, as_json: bool, at: str | None, **door: Any) -> int:
    """Print the tasks as they were ``at`` a time or an event's number; at the end if left out."""

    async def use(session: Session) -> tuple[RunFold, list[Event]]:
        fold = await session.snapshot(run_id)
        told: list[Event] = []
        async with aclosing(cast("AsyncGenerator[Sequence[Event]]", session.events(0))) as batches:
            async for batch in batches:
                told += batch
                if not batch or batch[-1].seq >= fold.seq:
                    break
        return fold, told

    fold, told = with_session(target, use, **door)
    print_tasks(as_of(fold, told, parse_instant(at, fold.run)), as_json)
    return 0


def as_of(fold: RunFold, told: list[Event], until: int | None) -> RunFold:
    """The run as it was: ``until`` is an instant in microseconds UTC, or below 2**40 an event's number."""
    then = RunFold(RunRow(fold.run.run_id, dag_name=fold.run.dag_name), parents=fold.parents, children=fold.children)
    for name, row in fold.tasks.items():
        then.tasks[name] = TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
    for event in told:
        if until is not None and (event.seq if until < 2**40 else event.at) > until:
            break
        then.apply(event)
    return then


def parse_instant(text: str | None, run: RunRow) -> int | None:
    """``03:12`` is the first such time after the start of the run. Raises RedriveError for what is no time."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    start = datetime.fromtimestamp(run.started_at / 1e6).astimezone()
    try:
        if "-" in text:
            instant = datetime.fromisoformat(text).astimezone()
        else:
            instant = datetime.combine(start, time.fromisoformat(text), start.tzinfo)
            instant += _DAY if instant < start.replace(microsecond=0) else timedelta()
    except ValueError:
        why = f"{text!r} is no time; write 03:12, 03:12:30, 2026-04-25T03:12:00, or an event's number"
        raise RedriveError(why) from None
    return round(instant.timestamp() * 1e6)
