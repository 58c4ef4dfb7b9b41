"""What a key costs on the real screens: processor time of the loop's thread until the last frame that it leads to.

    python tests/bench/bench_console_screens.py [--size 120x40] [--tasks N] [--keys N] [--only NAME ...] [--profile]

The whole console runs in this process on a pseudo-terminal that reads everything, over a run that stands still. "CPU"
is everything that the thread does until it has been quiet for a moment; the bars are 10 ms for a page of the graph and
30 ms for filtering and sorting an inbox of 10,000 rows.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_console_model import layered, projection_of
from bench_console_output import terminal_that_reads
from console.conftest import FakeSession, StillClock
from redrive.console.app.app import ConsoleApp
from redrive.console.screens.timeline_bars import TimelineView
from redrive.console.terminal.capabilities import Colours, TerminalCapabilities
from redrive.console.terminal.driver import ConsoleDriver
from redrive.console.terminal.tty import Tty
from redrive.engine.core.projection import AttemptRow, RunProjection
from redrive.engine.domain.event_payloads import TaskChanged
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.states import TaskState

QUIET_SECONDS = 0.05
_profile = cProfile.Profile()


class Measured(ConsoleApp):
    """The console, with a key that can be waited for."""

    profiled = False

    async def cpu_of(self, step: Callable[[], object]) -> float:
        """Milliseconds of this thread for a step and all that follows from it."""
        await asyncio.sleep(QUIET_SECONDS)
        if self.profiled:
            _profile.enable()
        started = time.thread_time()
        step()
        await asyncio.sleep(QUIET_SECONDS)
        used = time.thread_time() - started
        _profile.disable()
        return used * 1000

    @property
    def bytes_written(self) -> int:
        """To the terminal so far."""
        driver = self.console_driver
        assert isinstance(driver, ConsoleDriver) and driver.output is not None
        return driver.output.bytes_written


@asynccontextmanager
async def on_screen(
    projection: RunProjection, options: argparse.Namespace
) -> AsyncIterator[tuple[Measured, FakeSession]]:
    """The console with its first picture."""
    session = FakeSession(projection)
    with terminal_that_reads(*options.size) as slave:
        app = Measured(
            session, clock=StillClock(), tty=Tty(TerminalCapabilities(colours=Colours.INDEXED), slave, slave)
        )
        app.profiled = options.profile
        running = asyncio.create_task(app.run_async())
        await asyncio.sleep(1.5)
        yield app, session
        app.exit()
        await running


async def pressed(app: Measured, *keys: str) -> None:
    """Keys that are not measured."""
    for key in keys:
        app.simulate_key(key)
        await asyncio.sleep(0.4)


async def report(app: Measured, what: str, steps: list[Callable[[], object]]) -> None:
    """The cost of some steps of one kind."""
    before = app.bytes_written
    used = sorted([await app.cpu_of(step) for step in steps])
    size = (app.bytes_written - before) // len(steps)
    p95 = used[int(len(used) * 0.95)]
    print(f"{what:<44} CPU p50 {statistics.median(used):5.1f}  p95 {p95:5.1f} ms  {size:6} B", file=sys.__stdout__)


def key(app: Measured, name: str) -> Callable[[], object]:
    return lambda: app.simulate_key(name)


def there_and_back(app: Measured, count: int, there: str, back: str) -> list[Callable[[], object]]:
    """A key some times, then the other one as often."""
    return [key(app, there)] * (count // 2) + [key(app, back)] * (count // 2)


# --- Measurements ---------------------------------------------------------------------------------------------------


def mixed_states(projection: RunProjection, seed: int = 7) -> RunProjection:
    """A run in its middle: every state somewhere."""
    dice = random.Random(seed)
    states = [TaskState.SUCCESS, TaskState.RUNNING, TaskState.PENDING, TaskState.READY, TaskState.SKIPPED]
    for row in projection.tasks.values():
        row.state = dice.choice(states)
        if row.state in (TaskState.SUCCESS, TaskState.RUNNING):
            row.attempt, row.started_at = 1, 1_776_999_900_000_000
            row.ended_at = 1_776_999_950_000_000 if row.state is TaskState.SUCCESS else None
    return projection


async def graph(options: argparse.Namespace) -> None:
    projection = mixed_states(projection_of(layered(options.tasks, 40)))
    async with on_screen(projection, options) as (app, _):
        count = options.keys
        await pressed(app, "2", "minus", "minus")
        await report(app, "groups: cursor", there_and_back(app, count, "j", "k"))
        await pressed(app, "equals_sign")
        await report(app, "rows: page", there_and_back(app, count, "pagedown", "pageup"))
        await report(app, "rows: cursor", there_and_back(app, count, "j", "k"))
        await pressed(app, "equals_sign")
        await report(app, "drawing: page", there_and_back(app, count, "pagedown", "pageup"))
        await report(app, "drawing: cursor", there_and_back(app, count, "j", "k"))


async def events(options: argparse.Namespace) -> None:
    """A tenth of a second at 2,000 events a second."""
    projection = mixed_states(projection_of(layered(options.tasks, 40)))
    names = list(projection.tasks)
    async with on_screen(projection, options) as (app, session):
        await pressed(app, "2", "minus", "minus", "equals_sign")
        seq = projection.seq

        def batch() -> None:
            nonlocal seq
            batch_events = [progress_of(seq + n + 1, names[(seq + n) % len(names)]) for n in range(200)]
            seq += len(batch_events)
            session.emit(batch_events)

        await report(app, "200 events at once, rows", [batch] * (options.keys // 2))


def progress_of(seq: int, name: str) -> Event:
    payload = TaskChanged({"progress_done": seq % 997, "progress_total": 1000})
    return Event(seq, seq, EventKind.TASK_CHANGED, "run", name, None, None, None, 0, None, None, None, payload)


async def inbox(options: argparse.Namespace) -> None:
    names = [f"load_{number:05}" for number in range(options.tasks)]
    projection = projection_of([*((name, []) for name in names), ("join", names)], failed_every=1)
    async with on_screen(projection, options) as (app, _):
        await pressed(app, "4", "equals_sign")
        for name in ("first", "again"):
            await report(app, f"inbox: filter typed, {name}", [key(app, "slash"), *[key(app, c) for c in "load_0"]])
            await report(app, f"inbox: filter cleared, {name}", [key(app, "escape")])
        await report(app, "inbox: sorted", [key(app, "e")] * 8)
        await report(app, "inbox: page", there_and_back(app, options.keys, "pagedown", "pageup"))
        await report(app, "inbox: cursor", there_and_back(app, options.keys, "j", "k"))


async def timeline(options: argparse.Namespace) -> None:
    """Groups of a run in its middle: the whole screen painted again, keys, and a tenth of a second of changes."""
    stems = [one + other for one in "abcde" for other in "stuvwxyz"]
    names = [f"{stem}_{number:05}" for stem in stems for number in range(options.tasks // len(stems))]
    projection = projection_of([(name, []) for name in names])
    attempts = {TaskState.SUCCESS: "success", TaskState.RUNNING: "running"}
    for row in mixed_states(projection).tasks.values():
        if row.started_at is not None:
            row.attempts[1] = AttemptRow(1, 0, row.started_at, row.ended_at, outcome=attempts[row.state])
    async with on_screen(projection, options) as (app, session):
        await pressed(app, "3", "g")
        view = app.screen.query_one(TimelineView)
        await report(app, "timeline: all groups painted", [view.refresh] * options.keys)
        await report(app, "timeline: zoom", there_and_back(app, options.keys, "equals_sign", "minus"))
        await report(app, "timeline: cursor", there_and_back(app, options.keys, "j", "k"))
        seq = projection.seq

        def batch() -> None:
            nonlocal seq
            batch_events = [progress_of(seq + n + 1, names[(seq + n) % len(names)]) for n in range(200)]
            seq += len(batch_events)
            session.emit(batch_events)

        await report(app, "200 events at once, timeline", [batch] * (options.keys // 2))
        await pressed(app, "enter")
        await report(app, "timeline: page of an open group", there_and_back(app, options.keys, "pagedown", "pageup"))
        await report(app, "timeline: group opened and closed", [key(app, "g"), key(app, "enter")] * 8)


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Awaitable[None]]] = {
    "graph": graph,
    "events": events,
    "inbox": inbox,
    "timeline": timeline,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="120x40", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--only", nargs="*", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--profile", action="store_true", help="what the time goes into; slower by half")
    options = parser.parse_args()
    for name in options.only:
        asyncio.run(MEASUREMENTS[name](options))  # type: ignore[arg-type]
    if options.profile:
        pstats.Stats(_profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
