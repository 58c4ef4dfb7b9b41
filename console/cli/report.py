"""``redrive report``: a run as one HTML file, or in a few lines."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import click
from msgspec.structs import replace

from ...engine.core.projection import is_operator_act
from ...engine.core.spec import collector_paused
from ...engine.domain.events import Event, EventKind
from ...engine.domain.text import format_bytes
from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ..app.theme import load_theme
from ..model.board import Board
from ..model.inbox import Inbox, failures_of
from ..model.session_status import runner_of
from ..present.report import CAUSES_MAX, CauseEvidence, PageColours, ReportData, report_html, tasks_near_limits
from ..present.runs import incident_summary
from ..sessions.cause_histories import load_cause_histories
from ..sessions.evidence import TEXTS_OF, past_attempts, read_evidence
from ..sessions.once import with_session
from ..sessions.session import Session, board_query, listed_events
from ..text.text import echo
from .group import command
from .options import NamedFile, TargetWords


@command("report")
@TargetWords(old_run=True).declare
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Default: print it.")
@click.option("--short", "is_short", is_flag=True, help="A few lines of Markdown, for an incident channel.")
def write_report(file: NamedFile, path: str | None, is_short: bool) -> int:
    """The file has the graph, the timeline, causes, acts and slow tasks. It loads nothing from elsewhere and can be
    read on a phone.
    """
    if path is None and not is_short and sys.stdout.isatty():
        raise click.UsageError("HTML is not for a terminal: name a file with -o night.html, or say --short")
    if path is not None:
        if not path:
            raise click.UsageError("-o names no file")
        os.path.abspath(path)  # raises the error of a folder that was removed

    async def read(session: Session) -> str:
        if is_short:
            board, now_us = Board(await session.snapshot(session.run_id, successes="states")), session.now_us()
            return incident_summary(board, session.address, now_us, runner_of(board.projection.run, session.status))
        colours = (
            PageColours(one.background, one.foreground, one.styles) for one in map(load_theme, ("light", "dark"))
        )
        return report_html(await read_report(session), *colours)

    with collector_paused():  # all that is made stays until the report is written
        text = with_session(file.to_read(), read, [board_query()])
    if path is None:
        echo(text, nl=False)
        return 0
    private = partial(os.open, mode=0o600)  # errors and logs hold secrets; a file that is there keeps its mode
    try:
        with open(path, "w", encoding="utf-8", opener=private) as report:
            report.write(text)
    except OSError as error:
        raise RedriveError(f"{path} cannot be written: {error.strerror}") from error
    echo(f"{path}: {format_bytes(len(text.encode()))}")
    return 0


# --- Reads a whole run through a session: everything that a report shows ---------------------------------------------


async def read_report(session: Session) -> ReportData:
    """Read the run that the session was opened for. Raises RedriveError."""
    board, now_us = Board(await session.snapshot(session.run_id)), session.now_us()
    run_id = board.projection.run.run_id
    near_limits = tasks_near_limits(board)
    breakers, pages, board.duration_stats, acts, (causes, total), past = await asyncio.gather(
        session.rows(lists.BREAKERS),
        session.rows(lists.PAGE_HEADS),
        session.duration_stats(run_id),
        _acts_and_notes(session, run_id),
        _causes(session, board),
        asyncio.gather(*(past_attempts(session, name) for name in near_limits)),
    )
    board.update_lists(breakers, pages)
    runner = runner_of(board.projection.run, session.status)
    by_name = dict(zip(near_limits, past, strict=True))
    return ReportData(board, session.address, now_us, causes, total, acts, runner, by_name)


async def _acts_and_notes(session: Session, run_id: str) -> list[Event]:
    kinds = EventKind.OPERATOR, EventKind.NOTE
    of_kinds = (listed_events(session, lists.EVENTS_OF_KIND, run_id=run_id, kind=kind) for kind in kinds)
    acts, notes = await asyncio.gather(*of_kinds)
    return sorted([*filter(is_operator_act, acts), *notes], key=attrgetter("seq"))


async def _causes(session: Session, board: Board) -> tuple[Sequence[CauseEvidence], int]:
    """The first causes with their evidence, and the number of all."""
    run_id, causes = board.projection.run.run_id, Inbox(board).causes()
    shown = causes[:CAUSES_MAX]
    first = [board.row(cause.tasks[0]) for cause in shown]
    attempts = [[one.attempt for one in failures_of(row)[-TEXTS_OF:]] for row in first]
    evidence = (read_evidence(session, run_id, row.name, some) for row, some in zip(first, attempts, strict=True))
    histories, found = await asyncio.gather(load_cause_histories(session, run_id, shown), asyncio.gather(*evidence))
    with_history = (
        replace(one, cause_history=histories.get(cause.key)) for cause, one in zip(shown, found, strict=True)
    )
    return [*map(CauseEvidence, shown, with_history)], len(causes)
