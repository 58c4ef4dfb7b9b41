"""Reads a whole run through a session: everything that a report shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ...engine.analysis.counters import is_operator_act
from ...engine.core.projection import RunProjection
from ...engine.domain.event_changes import RunChange
from ...engine.domain.event_payloads import RunChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import TaskState
from ...engine.statefile import list_rows
from ..model.board import Board
from ..model.evidence import failures_of
from ..model.inbox import Inbox
from ..present.report import CAUSES_MAX, CauseEvidence, Move, ReportData
from ..sessions.session import Session
from .cause_memory import load_memories
from .event_reader import READ_EVENTS
from .evidence import TEXTS_OF, read_evidence


async def read_report(session: Session, run_id: str | None, now_us: int) -> ReportData:
    """Read a run; None: the latest. Raises RedriveError."""
    board = Board(await session.snapshot(run_id))
    run_id = board.projection.run.run_id
    pages = await session.query(list_rows.PAGE_HEADS)
    board.update_lists(await session.query(list_rows.BREAKERS), pages)
    board.duration_stats = await session.duration_stats(run_id)
    moves: list[Move] = []
    acts: list[Event] = []
    is_whole = False
    async for event in _events(session, board.projection):
        is_whole |= isinstance(event.payload, RunChanged) and event.payload.what == RunChange.CREATED
        if isinstance(event.payload, TaskMoved) and event.task in board.projection.tasks and event.new is not None:
            moves.append(Move(event.at, event.task, TaskState(event.new)))
        if is_operator_act(event) or event.kind == EventKind.NOTE:
            acts.append(event)
    causes, total = await _causes(session, board)
    return ReportData(board, session.address, now_us, moves if is_whole else (), causes, total, acts)


async def _events(session: Session, projection: RunProjection) -> AsyncIterator[Event]:
    """The events of a run up to its projection, in pages."""
    after, is_last = 0, False
    while not is_last:
        page = await session.run_events(projection.run.run_id, after, READ_EVENTS)
        is_last = len(page) < READ_EVENTS or page[-1].seq >= projection.seq
        for event in page:
            if event.seq <= projection.seq:
                yield event
        after = page[-1].seq if page else after


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
