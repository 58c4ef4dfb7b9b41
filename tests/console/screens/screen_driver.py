"""Nights that went wrong, for the screens that are looked at then; and what it takes to press keys on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redrive.engine.domain.events import Event
from redrive.engine.statefile.logs import AttemptText
from support.idle import is_settled, pass_time, wait_for_workers
from textual.pilot import Pilot
from textual.widget import Widget

from ..conftest import FakeSession, StillClock, keys_from_first_view, make_app
from ..model.runs import EventBuilder, S, projection_of

DECODING = {
    "error": "'utf-8' codec can't decode byte 0xe9 in position 7: invalid continuation byte",
    "explain": "UnicodeDecodeError parser.py:31 in read_row",
    "fingerprint": "c0ffee12",
    "fingerprint_loose": "c0ffee",
    "duration_us": 3 * S,
    "failure_mode": "poisoned",
    "max_rss_kb": 41_000,
}
DENIED = {
    "error": "invoices-api: 401 unauthorized",
    "explain": "PermanentError api.py:12 in fetch_invoices",
    "fingerprint": "aa11",
    "fingerprint_loose": "aa11",
    "duration_us": 600 * S,
}
SILENT = {
    "error": "no answer in 10 s",
    "explain": "TimeoutError net.py:4 in put",
    "fingerprint": "bb11",
    "fingerprint_loose": "bb11",
    "duration_us": 640 * S,
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/flows/nightly.py", line 12, in load
    rows = parser.read_row(path)
  File "/srv/flows/parser.py", line 31, in read_row
    return line.decode("utf-8")
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 7: invalid continuation byte
"""
_ON = {
    "timeout_us": 300 * S,
    "host": "ops-1",
    "code_hash": "9f2ac1d4e5",
    "input_hash": "77aa01bc",
    "params_hash": "1c0ffee5",
}


def poisoned_run(clock: StillClock, parts: int = 30) -> FakeSession:
    """Three causes: many parts that no decoder reads, one refused door, one silent one that has failed for good."""
    names = [f"load_part_{number:04}" for number in range(1, parts + 1)]
    flow: list[tuple[str, list[str]]] = [(name, []) for name in [*names, "fetch_invoices", "archive"]]
    flow += [(f"sum_part_{name[-4:]}", [name]) for name in names]
    flow += [("report", ["fetch_invoices"]), ("mail", ["report"]), ("close_books", ["report"])]
    projection = projection_of(flow)
    projection.run = projection.run._replace(run_id="run-2026-04-25", dag_name="nightly")
    builder = EventBuilder(projection)
    for event in _failure_events(builder, names):
        projection.apply(event)
    session = FakeSession(projection, "local:nightly.db")
    session.builder = builder
    session.texts = {(name, attempt): AttemptText(traceback=TRACEBACK) for name in names[:2] for attempt in (1, 2)}
    clock.now = builder.at
    return session


def _failure_events(builder: EventBuilder, names: list[str]) -> list[Event]:
    events: list[Event] = []
    for name in (*names, "fetch_invoices", "archive"):
        events += builder.start(name, **_ON)
    builder.after(3)
    for name in names:
        drawn: dict[str, Any] = {"delay_us": 2 * S, "ceiling_us": 4 * S}
        events += builder.fail(name, "RETRYING", "UnicodeDecodeError", failures=1, attempt=DECODING | drawn)
    builder.after(2)
    for name in names:
        events += builder.start(name, **_ON)
    builder.after(3)
    for number, name in enumerate(names):
        builder.after(2 if number % 100 == 0 else 0)
        events += builder.fail(name, "DEAD_LETTER", "UnicodeDecodeError", attempt=DECODING, **_dead("poison", 2))
    builder.after(660)
    events += builder.fail("fetch_invoices", "DEAD_LETTER", "PermanentError", attempt=DENIED, **_dead("permanent", 1))
    builder.after(40)
    events += builder.fail("archive", "FAILED", "TimeoutError", failures=3, attempt=SILENT)
    builder.after(90)
    return events


def _dead(kind: str, failures: int) -> dict[str, Any]:
    return {"failures": failures, "dead_letter_kind": kind}


class ScreenDriver:
    """Presses keys and reads the screen."""

    def __init__(self, app: Any, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        """Keys, until everything that they lead to has settled."""
        await self.pilot.press(*keys)
        await self.settle()

    async def type(self, text: str) -> None:
        """The characters of a text."""
        names = {" ": "space", "!": "exclamation_mark", "_": "underscore", "/": "slash", "-": "minus"}
        await self.press(*(names.get(character, character) for character in text))

    async def submit(self, text: str) -> None:
        """The characters of a text, and Enter."""
        await self.type(text)
        await self.press("enter")

    async def visit(self, key: str, pane: Widget) -> None:
        """A key gives a pane beside the list the focus, and Esc gives it back to the list."""
        await self.press(key)
        assert pane.has_focus
        await self.press("escape")
        assert self.app.screen.table.has_focus

    async def settle(self) -> None:
        """Messages delivered, workers done, and what waits for the cursor to rest has been said."""
        is_still = False
        while not is_still:  # a message that came late may start a timer, and a timer a worker
            await self.pilot.pause()
            await wait_for_workers(self.app)
            while not is_settled(self.app.screen):
                await pass_time(self.pilot)
            await wait_for_workers(self.app)
            await self.pilot.pause()
            is_still = is_settled(self.app.screen) and not list(self.app.workers)

    async def emit(self, session: FakeSession, *batches: Any) -> None:
        """Events come; wait until they have been painted."""
        seq = self.app.live.board.projection.seq if self.app.live.board is not None else 0
        session.emit(*batches)
        while self.app.live.board is None or self.app.live.board.projection.seq == seq:
            await pass_time(self.pilot)
        await self.settle()

    @property
    def lines(self) -> list[str]:
        """The rows of the screen without the blanks at their ends."""
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """The whole screen."""
        return "\n".join(self.lines)

    def find(self, words: str) -> str:
        """The first row with these words; "" if there is none."""
        return next((line for line in self.lines if words in line), "")


def pressing(app: Any, *keys: str) -> Callable[[Pilot[Any]], Awaitable[None]]:
    """What is done before a picture is taken: these keys."""
    keys = keys_from_first_view(app, *keys)

    async def prepare(pilot: Pilot[Any]) -> None:
        driver = ScreenDriver(app, pilot)
        await driver.settle()
        for key in keys:
            await driver.press(key)

    return prepare


@asynccontextmanager
async def open_console(
    session: FakeSession, clock: StillClock, *keys: str, size: tuple[int, int] = (80, 24), selected: str | None = None
) -> AsyncIterator[ScreenDriver]:
    """The console on a session, with a task selected, after some keys."""
    app = make_app(session, clock)
    app.selected = selected
    keys = keys_from_first_view(app, *keys)
    async with app.run_test(size=size) as pilot:
        driver = ScreenDriver(app, pilot)
        await driver.settle()
        if keys:
            await driver.press(*keys)
        yield driver
