"""``redrive events`` and ``replay``: what happened, as text or JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import cast

import click

from ...engine.core.explain import explain_task
from ...engine.core.waiting import ALIVE, ExplainContext
from ...engine.domain.acts import parse_answer
from ...engine.domain.event_codec import row_of
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.text import advised
from ...engine.errors import RedriveError, RefusedError
from ...engine.statefile.lists import OPERATOR_ACTS
from ..model.replay import NUMBER_MAX, parse_when
from ..model.session_status import runner_of
from ..present import runs as present
from ..sessions.address import Endpoint
from ..sessions.event_history import EventHistory
from ..sessions.once import with_session
from ..sessions.session import LiveSession, Session, listed_events, part_query
from ..text.figures import wall_day
from ..text.text import echo, json_line, one_line
from . import options as shared
from .event_lines import EventLabeller
from .group import ExitCode, command
from .listings import TasksContext, task_lines
from .operate import place_of, print_answer
from .output import Shown, print_lines, with_schema


@command("events")
@shared.of_tasks
@shared.json_option
@shared.follow_option
@click.option("--since", type=shared.Number(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@click.option("--command-id", metavar="ID", help="Only the act with this id; exit code 1: it was not done.")
def print_events(file: shared.NamedFile, as_json: bool, follow: bool, since: int, command_id: str | None) -> int:
    """TASK may be a glob, as 'load_*': only events of these tasks."""
    if command_id is not None:
        return with_session(file.to_read(), partial(_print_act, command_id=command_id, as_json=as_json))

    def is_meant(event: Event, run_id: str | None) -> bool:
        is_task = not file.tasks or any(fnmatchcase(event.task or "", task) for task in file.tasks)
        return is_task and run_id in (None, event.run_id)

    async def use(session: LiveSession) -> int:
        run_id = session.run_id
        projection = await session.part(run_id, ()) if run_id is not None or not follow else None
        until = None if follow else projection.seq if projection is not None else None
        if not as_json:
            run = projection.run if projection is not None and run_id is not None else None
            echo(present.place_line(run, session.address))
        labeller = EventLabeller(has_date=True, target=session.address, has_each_check=True)
        is_found = not file.tasks
        async with aclosing(cast("AsyncGenerator[Sequence[Event]]", session.events(since))) as batches:
            async for batch in batches:
                shown = [event for event in batch if is_meant(event, run_id)]
                is_found |= bool(shown)
                print_lines(line for event in shown for line in _event_lines(event, None if as_json else labeller))
                if until is not None and (not batch or batch[-1].seq >= until):
                    break
        if not is_found:
            raise RedriveError(
                f"no event here is about {' or '.join(file.tasks)}; see: {advised('tasks', session.address, run_id)}"
            )
        return 0

    return with_session(file.to_read(), use, [part_query(names=())])


async def _print_act(session: Session, *, command_id: str, as_json: bool) -> int:
    found = await listed_events(session, OPERATOR_ACTS, command_id=command_id)
    if not found:
        raise RefusedError(f"no act with id {command_id} is in {session.address}: it was not done until now")
    for event in found:
        if as_json:
            print_lines(_event_lines(event, None))
        elif isinstance(event.payload, OperatorActed):
            echo(one_line(f"{wall_day(event.at)} {event.payload.act} by {event.actor}"))
            print_answer(parse_answer(event.payload.answer), as_json, place_of(session, None))
    return ExitCode.SUCCESS


def _event_lines(event: Event, labeller: EventLabeller | None) -> Iterable[Shown]:
    """The lines of an event; without ``labeller``, its row as JSON."""
    return [json_line(with_schema("events", row_of(event)))] if labeller is None else labeller.lines(event)


@command("replay")
@shared.of_tasks
@shared.json_option
@click.option("--at", metavar="TIME", help="Show this moment: 03:12, 2026-04-25T03:12:00, or an event's number.")
def replay(file: shared.NamedFile, as_json: bool, at: str | None) -> int:
    return print_replay(file.to_read(), file.tasks, as_json, at)


def print_replay(endpoint: Endpoint, patterns: Sequence[str], as_json: bool, at: str | None) -> int:
    """Print the tasks as they were ``at`` a time or after an event's number; None: now."""

    async def use(session: Session) -> Iterable[Shown]:
        projection, now_us = await session.snapshot(session.run_id), session.now_us()
        runner, then = runner_of(projection.run, session.status), ""
        if at is not None:
            when = parse_when(at, projection.run, now_us)
            is_number = when < NUMBER_MAX
            history = EventHistory(session, projection)
            await history.load(projection.seq)
            if not is_number and when < projection.run.started_at:
                began = _local_time(projection.run.started_at)
                raise RedriveError(f"{at} is before run {projection.run.run_id} began: {began}")
            seq = min(when if is_number else history.index.seq_at(when), history.index.seq)
            now_us = history.index.instant_of(seq) if is_number else when
            is_after_executor = runner.gone_at is not None and now_us >= runner.gone_at
            if not (seq == history.index.seq if is_number else is_after_executor):
                runner = ALIVE
            projection, then = (await history.point_at(seq)).snapshot.projection, f" at {_local_time(now_us)}"
        context = ExplainContext(runner=runner, holders={})
        about = TasksContext(projection, lambda name: explain_task(projection, name, now_us, context), runner)
        lines = task_lines(projection, as_json, {"state_file": session.address}, patterns, about)
        return lines if as_json else [f"{present.place_line(projection.run, session.address)}{then}", *lines]

    print_lines(with_session(endpoint, use))
    return 0


def _local_time(instant: int) -> str:
    """A time in the format of ``--at``."""
    return datetime.fromtimestamp(instant / 1e6).astimezone().isoformat(sep=" ", timespec="seconds")
