"""``redrive report``: a run as one HTML file or as Markdown."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ...engine.core.projection import is_operator_act
from ...engine.domain.event_payloads import RunChange, RunChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import TaskState
from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ..app.theme import load_theme
from ..feed.live_run import load_memories
from ..feed.reads import TEXTS_OF, events_of_run, read_evidence
from ..model.board import Board, runner_of
from ..model.inbox import Inbox, failures_of
from ..present.report import CAUSES_MAX, CauseEvidence, Move, PageColours, ReportData, report_html, report_markdown
from ..sessions.open import with_session
from ..sessions.session import Session
from ..text.figures import format_bytes
from ..text.text import echo
from .main import command
from .options import NamedFile, complete_runs, ssh_options, state_option

if TYPE_CHECKING:
    pass


#
# ``redrive report``: a run as one HTML file or as Markdown.


@command("report")
@click.argument("run_id", required=False, metavar="[RUN]", shell_complete=complete_runs)
@state_option
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Default: print it.")
@click.option("--markdown", "is_markdown", is_flag=True, help="Markdown instead of HTML.")
@ssh_options
def write_report(file: NamedFile, run_id: str | None, path: str | None, is_markdown: bool) -> int:
    """RUN: default the latest run. The file loads nothing from elsewhere and can be read on a phone."""
    if path is None and not is_markdown and sys.stdout.isatty():
        raise click.UsageError("HTML is not for a terminal: name a file with -o night.html, or say --markdown")

    async def read(session: Session) -> ReportData:
        return await read_report(session, run_id, time.time_ns() // 1000)

    data = with_session(file.to_read(), read)
    text = report_markdown(data) if is_markdown else report_html(data, _colours("light"), _colours("dark"))
    if path is None:
        echo(text, nl=False)
        return 0
    try:
        with open(path, "w", encoding="utf-8", opener=_open_private) as report:
            report.write(text)
    except OSError as error:
        raise RedriveError(f"{path} cannot be written: {error.strerror}") from error
    echo(f"{path}: {format_bytes(len(text.encode()))}")
    return 0


def _open_private(path: str, flags: int) -> int:
    """Create a file for its owner alone, because errors and logs hold secrets. A file that is there keeps its mode."""
    return os.open(path, flags, 0o600)


def _colours(name: str) -> PageColours:
    theme = load_theme(name)
    return PageColours(theme.background, theme.foreground, theme.styles)


# --- Reads a whole run through a session: everything that a report shows ---------------------------------------------


async def read_report(session: Session, run_id: str | None, now_us: int) -> ReportData:
    """Read a run; None: the latest. Raises RedriveError."""
    board = Board(await session.snapshot(run_id))
    run_id = board.projection.run.run_id
    pages = await session.query(lists.PAGE_HEADS)
    board.update_lists(await session.query(lists.BREAKERS), pages)
    board.duration_stats = await session.duration_stats(run_id)
    moves: list[Move] = []
    acts: list[Event] = []
    is_whole = False
    async for event in events_of_run(session, board.projection):
        is_whole |= isinstance(event.payload, RunChanged) and event.payload.what == RunChange.CREATED
        if isinstance(event.payload, TaskMoved) and event.task in board.projection.tasks and event.new is not None:
            moves.append(Move(event.at, event.task, TaskState(event.new)))
        if is_operator_act(event) or event.kind == EventKind.NOTE:
            acts.append(event)
    causes, total = await _causes(session, board)
    runner = runner_of(board.projection.run, session.status)
    return ReportData(board, session.address, now_us, moves if is_whole else (), causes, total, acts, runner)


async def _causes(session: Session, board: Board) -> tuple[Sequence[CauseEvidence], int]:
    """The first causes with their evidence, and the number of all."""
    run_id, causes = board.projection.run.run_id, Inbox(board).causes()
    shown = causes[:CAUSES_MAX]
    memories = await load_memories(session, run_id, shown)
    found = []
    for cause in shown:
        name = cause.tasks[0]
        attempts = [one.attempt for one in failures_of(board.row(name))[-TEXTS_OF:]]
        evidence = await read_evidence(session, run_id, name, attempts, memories.get(cause.key))
        found.append(CauseEvidence(cause, evidence))
    return found, len(causes)
