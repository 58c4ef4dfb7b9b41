"""``redrive report``: a run as one HTML file or as Markdown."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from typing import Any

import click

from ...engine.core.projection import RunProjection, is_operator_act
from ...engine.core.spec import collector_paused
from ...engine.domain.event_payloads import RunChange, RunChanged, TaskMoved
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import TaskState
from ...engine.errors import NotFoundError, RedriveError, SnapshotNeeded
from ...engine.statefile import lists
from ..app.theme import load_theme
from ..model.board import Board, runner_of
from ..model.inbox import Inbox, failures_of
from ..present.report import (
    CAUSES_MAX,
    MOVES_MAX,
    CauseEvidence,
    Move,
    PageColours,
    ReportData,
    report_html,
    report_markdown,
)
from ..present.runs import incident_summary
from ..sessions.once import with_session
from ..sessions.past import events_of_run
from ..sessions.reads import TEXTS_OF, load_memories, read_evidence
from ..sessions.session import LiveSession, Session, listed_events
from ..text.figures import format_bytes
from ..text.text import echo
from .group import command
from .options import NamedFile, Words


@command("report")
@Words(old_run=True).declare
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Default: print it.")
@click.option("--short", "is_short", is_flag=True, help="A few lines of Markdown, for an incident channel.")
@click.option("--markdown", "is_markdown", is_flag=True, help="Markdown instead of HTML.")
@click.option("--serve", "is_served", is_flag=True, help="Serve it to browsers of this machine, live.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of --serve. Default: a free one.")
@click.option(
    "--otlp", "url", metavar="URL", help="Export it as a trace to an OTLP/HTTP receiver, as http://localhost:4318."
)
def write_report(
    file: NamedFile, path: str | None, is_short: bool, is_markdown: bool, is_served: bool, port: int, url: str | None
) -> int:
    """The file loads nothing from elsewhere and can be read on a phone. In a trace tasks are spans, and their attempts
    spans below; a second export is the same trace.
    """
    if url is not None:
        if path is not None or is_markdown or is_short or is_served:
            raise click.UsageError("--otlp prints no report: leave the other options out")
        from .telemetry import export_trace

        return export_trace(file.to_read(), url)
    if is_served and (path is not None or is_markdown or is_short):
        raise click.UsageError("--serve goes with none of -o, --markdown and --short")
    if is_served:
        with suppress(KeyboardInterrupt):
            with_session(file.to_read(), lambda session: _serve(session, session.run_id, port))
        return 0
    if path is None and not (is_markdown or is_short) and sys.stdout.isatty():
        raise click.UsageError("HTML is not for a terminal: name a file with -o night.html, or say --markdown")

    async def read(session: Session) -> str:
        if is_short:
            return await _read_short(session, session.run_id)
        data = await read_report(session, session.run_id, session.now_us())
        return report_markdown(data) if is_markdown else _html(data)

    with collector_paused():  # all that is made stays until the report is written
        text = with_session(file.to_read(), read)
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


async def _read_short(session: Session, run_id: str | None) -> str:
    board = Board(await session.snapshot(run_id, successes="states"))
    return incident_summary(board, session.address, session.now_us(), runner_of(board.projection.run, session.status))


def _html(data: ReportData, *, is_live: bool = False) -> str:
    return report_html(data, _colours("light"), _colours("dark"), is_live=is_live)


def _open_private(path: str, flags: int) -> int:
    """Create a file for its owner alone, because errors and logs hold secrets. A file that is there keeps its mode."""
    return os.open(path, flags, 0o600)


def _colours(name: str) -> PageColours:
    theme = load_theme(name)
    return PageColours(theme.background, theme.foreground, theme.styles)


# --- ``--serve``: the page in browsers of this machine, read-only ----------------------------------------------------
#
# The address has a secret part, because other users of the machine reach the port as well; the Host header is checked,
# because a page of a stranger may give his name the address 127.0.0.1 (DNS rebinding).


_LOOPBACK = "127.0.0.1"
_READERS_MAX = 32
_CLOCK_SECONDS = 5.0  # between two pages of a run without events, for its clocks
_COMMENT_SECONDS = 15.0  # between two signs of life of a stream without events
_READ_SECONDS_MAX = 60.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """The page of a run, rendered again when it is asked for after a change. Its loop owns the session.

    Attributes:
        version: the number of changes so far.
    """

    def __init__(self, session: LiveSession, run_id: str | None) -> None:
        self.version = 0
        self._session, self._run_id = session, run_id
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.Lock()
        self._rendered: tuple[int, str] = (-1, "")

    async def follow(self) -> None:
        """Count the changes of the state file and of its executor, and while one runs, also the time."""
        while True:
            try:
                seq = (await self._session.snapshot(self._run_id)).seq
                await self._follow(seq)
            except SnapshotNeeded:
                self._change()  # another file is in the place of the old one
            except NotFoundError:
                await asyncio.sleep(_CLOCK_SECONDS)  # there is no run yet

    async def _follow(self, seq: int) -> None:
        status, changed_at = self._session.status, time.monotonic()
        async for batch in self._session.events(seq):
            before, status = status, self._session.status
            is_new = (before.executor.alive, before.link) != (status.executor.alive, status.link)
            if batch or is_new or (status.executor.alive and time.monotonic() - changed_at >= _CLOCK_SECONDS):
                changed_at = time.monotonic()
                self._change()

    def _change(self) -> None:
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def wait(self, version: int, seconds: float) -> int:
        """The version once it differs from ``version``, or after ``seconds``; called in threads of readers."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != version, seconds)
            return self.version

    def html(self) -> str:
        """The page of now; called in threads of readers. Raises RedriveError."""
        return asyncio.run_coroutine_threadsafe(self._html(), self._loop).result(_READ_SECONDS_MAX)

    async def _html(self) -> str:
        async with self._reading:
            version, text = self._rendered
            if version != self.version:
                version = self.version
                text = _html(await read_report(self._session, self._run_id, self._session.now_us()), is_live=True)
                self._rendered = (version, text)
            return text


class ReportServer(ThreadingHTTPServer):
    """Serves ``page`` on the loopback. Raises OSError if the port cannot be used."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: LivePage, port: int) -> None:
        super().__init__((_LOOPBACK, port), ReportRequest)
        self.page, self.path = page, f"/{secrets.token_urlsafe(16)}/"
        self.hosts = [f"{name}:{self.server_port}" for name in (_LOOPBACK, "localhost")]
        self._free = threading.BoundedSemaphore(_READERS_MAX)

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}{self.path}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request in a thread; without a free one, close the connection."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no error of the server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class ReportRequest(BaseHTTPRequestHandler):
    """Answers GET; the library refuses any other method."""

    server: ReportServer
    server_version, sys_version = "redrive", ""
    timeout = 2 * _COMMENT_SECONDS

    def do_GET(self) -> None:
        """Send the page or its events to a reader who knows the address."""
        if self.headers.get("Host") not in self.server.hosts:
            self._send(403, "text/plain", "this page is for browsers of its own machine")
        elif self.path == self.server.path:
            self._send_page()
        elif self.path == f"{self.server.path}events":
            self._send_events()
        else:
            self._send(404, "text/plain", "there is nothing here; `redrive report --serve` has printed the address")

    def _send_page(self) -> None:
        try:
            self._send(200, "text/html", self.server.page.html())
        except RedriveError as error:
            self._send(503, "text/plain", str(error))

    def _send_events(self) -> None:
        self._send_head(200, "text/event-stream")
        version = -1
        while True:
            before, version = version, self.server.page.wait(version, _COMMENT_SECONDS)
            self.wfile.write(f"data: {version}\n\n".encode() if version != before else b":\n\n")

    def _send(self, code: int, kind: str, text: str) -> None:
        self._send_head(code, kind)
        self.wfile.write(text.encode())

    def _send_head(self, code: int, kind: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed for a request."""


async def _serve(session: LiveSession, run_id: str | None, port: int) -> None:
    page = LivePage(session, run_id)
    try:
        server = ReportServer(page, port)
    except OSError as error:
        raise RedriveError(f"port {port} cannot be used: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    echo(f"{server.url}  (Ctrl-C ends it)")
    try:
        await page.follow()
    finally:
        server.shutdown()
        server.server_close()


# --- Reads a whole run through a session: everything that a report shows ---------------------------------------------


async def read_report(session: Session, run_id: str | None, now_us: int) -> ReportData:
    """Read a run; None: the latest. Raises RedriveError."""
    board = Board(await session.snapshot(run_id))
    run_id = board.projection.run.run_id
    pages = await session.query(lists.PAGE_HEADS)
    board.update_lists(await session.query(lists.BREAKERS), pages)
    board.duration_stats = await session.duration_stats(run_id)
    acts = [event for event in await _events_of(session, run_id, EventKind.OPERATOR) if is_operator_act(event)]
    acts += await _events_of(session, run_id, EventKind.NOTE)
    acts.sort(key=attrgetter("seq"))
    attempts = sum(len(row.attempts) for row in board.projection.tasks.values())
    moves = await _moves(session, board.projection) if attempts <= MOVES_MAX else ()  # each attempt is one move or more
    causes, total = await _causes(session, board)
    runner = runner_of(board.projection.run, session.status)
    return ReportData(board, session.address, now_us, moves, causes, total, acts, runner)


async def _events_of(session: Session, run_id: str, kind: str) -> list[Event]:
    return await listed_events(session, lists.EVENTS_OF_KIND, run_id=run_id, kind=kind)


async def _moves(session: Session, projection: RunProjection) -> Sequence[Move]:
    """The changes of state of the tasks; none if the file no longer has the start of the run."""
    moves: list[Move] = []
    is_whole = False
    async for event in events_of_run(session, projection):
        is_whole |= isinstance(event.payload, RunChanged) and event.payload.what == RunChange.CREATED
        if isinstance(event.payload, TaskMoved) and event.task in projection.tasks and event.new is not None:
            moves.append(Move(event.at, event.task, TaskState(event.new)))
    return moves if is_whole else ()


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
