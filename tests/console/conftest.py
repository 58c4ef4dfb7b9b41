"""A console without a terminal and without an engine: a scripted session, a clock that stands still, an app on both."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from redrive.console.app.app import ConsoleApp
from redrive.console.keys.actions import VIEWS, ScreenName
from redrive.console.model.launch_context import LaunchContext
from redrive.console.model.log import LogText
from redrive.console.model.session_status import Link, SessionStatus
from redrive.console.present.runs import ListedRun, run_columns
from redrive.console.present.states import RowContext
from redrive.console.sessions.answers import Value
from redrive.console.sessions.session import Query
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.console.text.columns import screen_row
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Line, plain
from redrive.console.widgets.bars import KeyBar
from redrive.engine.core.causes import CauseHistory
from redrive.engine.core.projection import RunProjection, Successes
from redrive.engine.domain.acts import ActPreview, Answer, Command, TargetResult
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.liveness import TaskUsage
from redrive.engine.domain.rows import ExecutorState, RunFacts, RunSummary
from redrive.engine.domain.states import RunState
from redrive.engine.errors import RedriveError, RefusedError
from redrive.engine.statefile.causes import CauseKey
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.lists import ATTENTION_RUNS, Listing, Row
from redrive.engine.statefile.logs import AttemptText, LogChunk
from redrive.engine.statefile.pruning import PrunePreview
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.statefile.supervisor_file import NightSummary, ServedSchedule
from support.idle import (
    is_settled,
    loop_time,
    pass_time,
    wait_for_idle_loop,
    wait_for_screen_by_the_loop,
    wait_for_workers,
)
from support.stylesheets import share_parsed_stylesheets
from support.waiting import LIMIT_SECONDS
from textual.pilot import Pilot

from .model.runs import START, EventBuilder, S, projection_of

LIVE = SessionStatus(Link.LIVE, executor=ExecutorState(alive=True, age_us=300000))


class StillClock:
    """Wall time that moves only when it is told to."""

    def __init__(self, now_us: int = START) -> None:
        self.now = now_us

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / S

    def uniform(self, low: float, high: float) -> float:
        return low


def needs_attention(one: RunSummary) -> bool:
    """Whether the list of runs that may need a human has it."""
    run = one.run
    is_bad = run.state in (RunState.FAILED, RunState.PARTIAL) or (run.deadline_at or 2**62) < (run.ended_at or 0)
    return run.ended_at is None or (is_bad and run.acknowledged_at is None)


def attention_run(one: RunSummary, known: Sequence[RunSummary] = ()) -> RunFacts:
    """The row of the list of runs that may need a human. ``known``: the other runs of the file."""
    run = one.run
    later = [other.run for other in known if other.run.started_at > run.started_at and run.ended_at is not None]
    successes = sum(other.dag_name == run.dag_name and other.state == RunState.SUCCESS for other in later)
    ends = (run.blocked_since, run.paused_since, run.deadline_at, one.dead_letters)
    row = RunFacts(run.run_id, run.dag_name, run.started_at, run.ended_at, str(run.state), *ends)
    return row._replace(later_successes=successes)


def run_text(listed: ListedRun, now_us: int, columns: int = 150) -> str:
    """The row of a run in the list of runs."""
    place = RowContext(now_us, UTF8)
    return plain(screen_row(run_columns([listed], place), listed, place, columns))


class FakeSession:
    """A door to a run that the test tells: ``tell`` gives events, ``commands`` are the acts that were sent.

    ``answer`` decides what the engine says to an act; ``texts``, ``logs`` and ``lists`` are what can be read.
    """

    run_id: str | None = None

    def __init__(self, projection: RunProjection | None, address: str = "local:revenue.db") -> None:
        self.projection: Any = projection
        self.builder = EventBuilder(projection) if projection is not None else None
        self.address = address
        self.ssh_arguments: Sequence[str] = ()
        self.running_usage: Sequence[TaskUsage] = ()
        self.usage_reads = 0
        self.status = LIVE
        self.commands: list[Command] = []
        self.answer: Callable[[Command], Answer] = done
        self.error: RedriveError | None = None  # raised by whatever is asked
        self.texts: dict[tuple[str, int], AttemptText] = {}
        self.logs: dict[tuple[str, int], Sequence[LogChunk]] = {}
        self.lists: dict[str, Any] = {}
        self.memories: dict[str, dict[str, Any]] = {}  # loose fingerprint -> what is remembered of it
        self.durations: dict[str, DurationStats] = {}  # what the runs before say
        self.summaries: Sequence[RunSummary] | None = None
        self.last_nights: Sequence[NightSummary] = ()
        self.closed = False
        self._emitted: list[Event] = []
        self._news = asyncio.Event()
        self._broken: RedriveError | None = None

    # --- The test's side ------------------------------------------------------------------------------------------

    def emit(self, *batches: Event | Iterable[Event]) -> None:
        """Events that have happened."""
        for batch in batches:
            self._emitted += [batch] if isinstance(batch, Event) else list(batch)
        self._news.set()

    def break_off(self, error: RedriveError) -> None:
        """The events end with this."""
        self._broken = error
        self._news.set()

    def set_status(self, **status: Any) -> None:
        """Another status, and a sign of life that tells of it."""
        self.status = replace(self.status, **status)
        self._news.set()

    # --- The console's side ---------------------------------------------------------------------------------------

    def has_executor(self) -> bool:
        return self.status.executor.alive

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + round(self.status.clock_offset_seconds * S)

    async def read(self, decode: Callable[[Any], Value], query: Query) -> Value:
        raise AssertionError(f"no test has an answer to {query[0]}: each query has a method below")

    def prefetch(self, queries: Iterable[Query]) -> None:
        raise NotImplementedError

    async def runs(self, run_id: str | None = None) -> Sequence[RunSummary]:
        self._raise()
        if self.summaries is not None or self.projection is None:
            return self.summaries or ()
        counts: dict[str, int] = {}
        for row in self.projection.tasks.values():
            counts[str(row.state)] = counts.get(str(row.state), 0) + 1
        return [RunSummary(self.projection.run, counts)]

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        self._raise()
        if self.projection is None:
            raise RefusedError("no run has been recorded yet")
        return self.projection

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        return await self.snapshot(run_id)

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        given = since
        while True:
            await self._news.wait()
            self._news.clear()
            broken, self._broken = self._broken, None
            if broken is not None:
                raise broken
            batch = [event for event in self._emitted if event.seq > given]
            given = batch[-1].seq if batch else given
            yield batch

    async def run_events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        self._raise()
        return [event for event in self._emitted if event.run_id == run_id and event.seq > after][:limit]

    async def duration_stats(self, run_id: str) -> Mapping[str, DurationStats]:
        return self.durations

    async def send(self, command: Command) -> Answer:
        self._raise()
        self.commands.append(command)
        return self.answer(command)

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        return self.texts.get((task, attempt), AttemptText())

    async def log(self, run_id: str, task: str, attempt: int, /, **window: int | None) -> Sequence[LogChunk]:
        chunks, before = self.logs.get((task, attempt), ()), window.get("before")
        after, limit = window.get("after") or 0, window["limit"] or 0
        if before is not None:
            return [chunk for chunk in chunks if chunk.id < before][-limit:]
        return chunks[-limit:] if after < 0 else [chunk for chunk in chunks if chunk.id > after][:limit]

    async def find_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, before: int | None = None
    ) -> tuple[int | None, int | None]:
        text, wanted = LogText(), re.compile(pattern, re.IGNORECASE)
        text.append(self.logs.get((task, attempt), ()))
        ids = [line.id for line in text.lines if wanted.search(line)]
        found = (
            next((one for one in ids if one > after), None)
            if before is None
            else next((one for one in reversed(ids) if one < before), None)
        )
        return found, found

    async def usage(self) -> Sequence[TaskUsage]:
        self.usage_reads += 1
        return self.running_usage

    async def rows(self, listing: Listing[Row], **options: Any) -> Sequence[Row]:
        self._raise()
        if listing.name == ATTENTION_RUNS.name and listing.name not in self.lists:
            known = await self.runs()
            return [cast(Row, attention_run(one, known)) for one in known if needs_attention(one)]
        return [build_row(listing.row, row) for row in self.lists.get(listing.name, [])]

    async def file_row(self) -> FileRow:
        return FileRow(self.address, nights=self.last_nights)

    async def supervised(self) -> Sequence[ServedSchedule]:
        return ()

    async def cause_histories(
        self, run_id: str | None, causes: Sequence[CauseKey] | None = None
    ) -> Sequence[CauseHistory]:
        self._raise()
        assert causes is not None
        known = [{**unknown(*cause), **self.memories.get(cause[0], {})} for cause in causes]
        return msgspec.convert(known, list[CauseHistory])

    async def preview(self, command: Command) -> ActPreview:
        raise NotImplementedError

    async def preview_prune(self, options: Mapping[str, int | float]) -> PrunePreview:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed = True

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def build_row(kind: type[Row], columns: Mapping[str, Any]) -> Row:
    """A row of a type; columns that are not named are None."""
    return kind._make(columns.get(field) for field in kind._fields)


def unknown(fingerprint: str, downstream: str | None) -> dict[str, Any]:
    """A cause that was never seen before."""
    known: dict[str, Any] = {"runs": 0, "first_at": None, "episodes": [], "notes": []}
    return {"fingerprint": fingerprint, "downstream": downstream, **known}


def done(command: Command) -> Answer:
    """The engine did it for every target."""
    verb = {"requeue": "requeued", "skip": "skipped"}.get(command.act, command.act)
    results = tuple(TargetResult(task, "done", verb) for task, _, _ in command.targets)
    return Answer(True, f"{len(results)} {verb}" if results else verb, results)


def make_app(session: FakeSession, clock: StillClock, terminal: TerminalCapabilities | None = None) -> ConsoleApp:
    """The console on a session, not yet running; nothing is taken of the terminal of whoever runs the tests."""
    return ConsoleApp(session, clock=clock, tty=Tty(terminal or TerminalCapabilities()))


_VIEW_KEYS = {str(number): view for number, view in enumerate(VIEWS, 1) if view is not ScreenName.RUNS}


def keys_from_first_view(app: ConsoleApp, *keys: str) -> tuple[str, ...]:
    """The keys that are left when the app opens with the view of the first one: as somebody sees it who presses the key
    before the run has been read. Half of an app's start is the view that it opens with, here one instead of two."""
    if keys and keys[0] in _VIEW_KEYS:
        app.switch_view(_VIEW_KEYS[keys[0]])
        return keys[1:]
    return keys


@asynccontextmanager
async def shown(
    session: FakeSession, clock: StillClock, size: tuple[int, int] = (80, 24), **way: Any
) -> AsyncIterator[tuple[Any, Pilot[Any]]]:
    """The console on the screen, with its first picture; ``way`` are fields of ``app.Way``."""
    app = ConsoleApp(session, clock=clock, tty=Tty(TerminalCapabilities()), launch=LaunchContext(**way))
    async with app.run_test(size=size) as pilot:
        await settle(app, pilot)
        yield app, pilot


async def settle(app: ConsoleApp, pilot: Pilot[Any]) -> None:
    """Until what was sent has come, and what came has been painted."""
    rounds = 0
    while rounds < 3 or list(app.workers):  # on a busy machine a worker may start in the last round
        await pilot.pause()
        await wait_for_workers(app)
        app.live.flush_pending()
        rounds += 1
    await pilot.pause()


async def until(app: ConsoleApp, pilot: Pilot[Any], met: Callable[[], object]) -> None:
    """Until a condition holds, for what comes without a key: a timer, or an answer that leads to a question."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not met():
            await pilot.pause(0.02)
    await settle(app, pilot)


async def rest(app: ConsoleApp, pilot: Pilot[Any]) -> None:
    """Until the screen in front also shows what it adds when the cursor rests."""
    await settle(app, pilot)
    while not is_settled(app.screen):
        await pass_time(pilot)
    await settle(app, pilot)


async def press(app: ConsoleApp, pilot: Pilot[Any], *keys: str) -> None:
    """Keys, and what they lead to."""
    for key in keys:
        await pilot.press(key)
        await settle(app, pilot)


async def emit_events(app: ConsoleApp, pilot: Pilot[Any], session: FakeSession, *batches: Any) -> None:
    """Events come, and are painted."""
    session.emit(*batches)
    await settle(app, pilot)


def text_of(app: ConsoleApp) -> str:
    """What the screen in front shows, without the blanks at the ends of rows."""
    return "\n".join(row.text.rstrip() for row in app.screen._compositor.render_strips())


def rows_of(app: ConsoleApp) -> list[str]:
    """Its rows."""
    return text_of(app).splitlines()


@pytest.fixture(autouse=True)
def own_config(own_state_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No theme of the person who runs this: their folder is one of the test, which nobody has made yet."""
    config = own_state_home.parent / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.delenv("REDRIVE_THEME", raising=False)
    return config / "redrive"


@pytest.fixture(autouse=True)
def idle_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot goes on as soon as nothing is left to do."""
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", wait_for_idle_loop)
    monkeypatch.setattr("textual._time.get_time", loop_time)
    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_for_screen_by_the_loop)


@pytest.fixture(autouse=True)
def lasting_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for people stays until the next one: they read it within seconds, a test on a busy machine later."""
    show = KeyBar.show_message

    def show_until_the_next(
        bar: KeyBar, message: Line, seconds: float | None = None, about: str | None = None, *, yields: bool = False
    ) -> None:
        show(bar, message, None if seconds is not None and seconds >= 1 else seconds, about, yields=yields)

    monkeypatch.setattr(KeyBar, "show_message", show_until_the_next)


@pytest.fixture(autouse=True)
def shared_stylesheets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles of one test process parse each stylesheet once."""
    share_parsed_stylesheets(monkeypatch)


@pytest.fixture(autouse=True)
def one_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times on the screen are those of UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts are signed by the same person everywhere."""
    monkeypatch.setattr("redrive.console.sessions.session.current_actor", lambda: "ana@ops-1")


@pytest.fixture
def clock() -> StillClock:
    """Stands at the start of the run."""
    return StillClock()


# --- The run of the pictures -----------------------------------------------------------------------------------------

REVENUE = [
    ("extract_orders", []),
    ("extract_payments", []),
    ("extract_refunds", []),
    ("clean_orders", ["extract_orders"]),
    ("clean_payments", ["extract_payments"]),
    ("clean_refunds", ["extract_refunds"]),
    ("aggregate_revenue", ["clean_orders", "clean_payments", "clean_refunds"]),
    ("load_dashboard", ["aggregate_revenue"]),
    ("notify", ["aggregate_revenue"]),
    ("partner_file", []),
]


def revenue_events(builder: EventBuilder) -> list[Event]:
    """Three minutes of a night: one done, one retrying, one running, one dead letter, one sensor."""
    events: list[Event] = []
    for name in ("extract_orders", "extract_payments", "extract_refunds"):
        events += builder.start(name, timeout_us=300 * S)
    builder.after(9)
    events += builder.succeed("extract_refunds", duration_us=9 * S)
    events += builder.start("clean_refunds", timeout_us=300 * S)
    builder.after(3)
    zero = {"of": "ZeroDivisionError", "duration_us": 3 * S}
    events += builder.succeed("extract_orders", duration_us=12 * S)
    events += _failure(builder, "clean_refunds", "RETRYING", zero, failures=1, next_retry_at=builder.at + S)
    events += builder.start("clean_orders", timeout_us=300 * S)
    events += builder.start("partner_file")
    events.append(
        builder.move(
            "partner_file", "SENSING", {"outcome": "not_ready"}, deferrals=3, next_retry_at=builder.at + 63 * S
        )
    )
    builder.after(1)
    events += builder.start("clean_refunds", timeout_us=300 * S)
    builder.after(3)
    events += _failure(builder, "clean_refunds", "DEAD_LETTER", zero, failures=2, dead_letter_kind="poison")
    events += _failure(
        builder,
        "extract_payments",
        "RETRYING",
        {"of": "ConnectTimeout", "duration_us": 16 * S},
        failures=2,
        next_retry_at=builder.at + 32 * S,
        delay_us=9 * S,
        ceiling_us=16 * S,
    )
    progress = {"progress_done": 41, "progress_total": 100}
    events.append(builder.after(25).event(EventKind.TASK_CHANGED, "clean_orders", data={"set": progress}))
    return events


def _failure(builder: EventBuilder, name: str, state: str, what: dict[str, Any], **columns: Any) -> list[Event]:
    attempt = {"error": "division by zero", "fingerprint": "9c01e2", "fingerprint_loose": "4a7c1d09e2b5"}
    if what["of"] != "ZeroDivisionError":
        attempt = {"error": "no answer in 10 s", "fingerprint": "77d0aa", "fingerprint_loose": "b2a0ff3166c0"}
    attempt["duration_us"] = what["duration_us"]
    explain = f"{what['of']} settle.py:87 in settle" if what["of"] == "ZeroDivisionError" else f"{what['of']} api.py:12"
    return builder.fail(name, state, what["of"], attempt={**attempt, "explain": explain}, **columns)


@pytest.fixture
def revenue(clock: StillClock) -> FakeSession:
    """A session on the run of the pictures, with the clock where its story ends."""
    projection = projection_of(REVENUE, deadline_at=START + 3 * 3600 * S)
    projection.run = projection.run._replace(run_id="run-2026-04-25", dag_name="revenue")
    builder = EventBuilder(projection)
    for event in revenue_events(builder):
        projection.apply(event)
    session = FakeSession(projection)
    session.durations = {"notify": DurationStats(30 * S, 45 * S, 20)}
    session.builder = builder
    clock.now = builder.at
    return session
