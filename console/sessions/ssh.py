"""The door to a state file on another host: one ssh, an agent sent through it, and patience with the line.

The far side needs Python 3.6 and nothing else; nothing is installed or left there. While the line is down, the last
good picture stays, what reads waits, and the events go on after the last one that was received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engine.core.cause_history import Memory
from ...engine.core.projection import RunFold
from ...engine.domain.command import Answer, Command, answer_of
from ...engine.domain.events import Event
from ...engine.errors import LinkError, SnapshotNeeded, StateFileError
from ...engine.statefile import duration_stats
from ...engine.statefile.changes import logs
from ...engine.statefile.on_demand.failure_queries import FailedTask
from ...engine.statefile.queries import ExecutorState, Listing, Option, Row, RunLine
from . import run_decoder
from .address import SshAddress, parse
from .agent_process import Message, Pipe
from .bundle import CHANGING, ON_DEMAND, boot_command
from .connection import Line
from .event_buffer import Feed
from .identity import me, others
from .session import AttemptText, Cause, Link, LogChunk, RunSummary, SessionStatus
from .ssh_options import SshOptions
from .wire import row_of, rows_of

DEFAULT_OPTIONS = SshOptions()
WINDOW_TASKS = 500  # of history, at first; more as the line allows
WINDOW_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Offer:
    """A state file that a host has in its default place. ``trouble``: why it cannot be read."""

    address: str
    written_at: int  # microseconds UTC, their clock
    dag_name: str | None = None  # of the latest run
    run_id: str | None = None
    state: str | None = None
    trouble: str | None = None


async def offers(target: str, options: SshOptions = DEFAULT_OPTIONS) -> list[Offer]:
    """What ``ssh://host`` alone may mean, the file written last first. Raises AddressError, LinkError."""
    address = parse(target)
    pipe = Pipe(address, options.python, lambda message: None)
    hello = await pipe.open(options.argv(address, boot_command(options.python)), {"list": True})
    await pipe.close()
    return [Offer(str(replace(address, path=found.pop("path"))), **found) for found in hello["files"]]


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of the agent, as ``Agent._beat`` sends it."""

    trouble: str | None = None
    present: Sequence[str] = ()
    read_only: str | None = None
    service_pid: int | None = None
    storage_trouble: str | None = None
    executor: ExecutorState | None = None


class SshSession:
    """Made by ``open``."""

    def __init__(self, address: SshAddress, options: SshOptions, actor: str, read_only: bool) -> None:
        self._given = address
        self._path = address.path
        self._actor = actor
        self._read_only = "opened read-only" if read_only else None
        self._uuid: str | None = None
        self._beat = Beat()
        self._feed: Feed | None = None
        self._reset: SnapshotNeeded | None = None  # told while nobody followed
        self._handed_out: RunFold | None = None  # before it was whole
        self._filled: RunFold | None = None  # more of it has come since
        self._filling: asyncio.Task[None] | None = None
        settings = {"path": address.path, "actor": actor}
        self._line = Line(address, options, settings, self._greet, self._take, self._tick)

    @classmethod
    async def open(
        cls,
        target: str,
        *,
        actor: str | None = None,
        read_only: bool = False,
        options: SshOptions = DEFAULT_OPTIONS,
    ) -> SshSession:
        """Connect. Raises AddressError, LinkError, or what the agent found wrong with the file."""
        session = cls(parse(target), options, actor or me(), read_only)
        await session._line.open()
        return session

    @property
    def address(self) -> str:
        """Host and file, as found over there."""
        return str(replace(self._given, path=self._path))

    @property
    def status(self) -> SessionStatus:
        """As of now; cheap. What the executor does is as the agent told last: it tells at once when that changes."""
        beat = self._beat
        executor = beat.executor or ExecutorState(alive=False)
        age_us = executor.age_us
        return SessionStatus(
            link=self._line.link,
            trouble=self._line.trouble or beat.trouble,
            retry_in_seconds=self._line.retry_in_seconds,
            executor_alive=executor.alive,
            heartbeat_age_seconds=None if age_us is None else age_us / 1e6,
            executor_gone_at=executor.gone_at,
            executor_pid=executor.pid,
            executor_run_id=executor.run_id,
            executor_stopped=executor.stopped,
            service_pid=beat.service_pid,
            storage_trouble=beat.storage_trouble,
            clock_offset_seconds=self._line.offset_seconds,
            read_only=self._read_only or beat.read_only,
            others=others(beat.present, self._actor),
            picture_age_seconds=self._line.age_seconds,
        )

    async def close(self) -> None:
        """Leave. The run goes on."""
        if self._filling is not None:
            self._filling.cancel()
        await self._line.close()

    # --- What people ask --------------------------------------------------------------------------------------------

    async def runs(self) -> Sequence[RunSummary]:
        """Every run of the file, latest first."""
        found = rows_of(RunLine, await self._read("runs"))
        return [RunSummary(run_decoder.run_of(one.run), one.counts, one.counts.get("DEAD_LETTER", 0)) for one in found]

    async def snapshot(self, run_id: str | None = None, patience_seconds: float | None = None) -> RunFold:
        """A run, by default the latest, as of ``fold.seq``.

        On a slow line when and how long tasks ran comes later than the rest, and so do very many edges. With
        ``patience_seconds`` the picture is handed out without waiting longer than that; ``events`` raises
        SnapshotNeeded when more of it has come, and the next snapshot is the same picture with it.
        """
        filled, self._filled = self._filled, None
        if filled is not None and run_id in (None, filled.run.run_id):
            return filled
        board = await self._read("board", run_id=run_id)
        self._reset = None
        fold = run_decoder.fold_of(board)
        if board["done"] or board["parents"] is None:
            await self._fill(fold, board["parents"] is None, patience_seconds)
        return fold

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Batches of what came after ``since``; see ``Session``. The latest call takes over from an earlier one."""
        if self._reset is not None:
            raise self._reset
        if self._feed is not None:
            self._feed.fail(SnapshotNeeded("somebody else follows this session now"))
        feed = self._feed = Feed(since)
        self._line.tell("follow", since=since)
        try:
            async for batch in feed.batches(lambda seq: self._line.tell("take", seq=seq)):
                yield batch
        finally:
            if self._feed is feed:
                self._feed = None
                self._line.tell("follow", since=None)

    async def past(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """A window of what happened; see ``Session``."""
        rows = await self._read("past", run_id=run_id, after=after, limit=limit)
        return [run_decoder.event_of(row) for row in rows]

    async def usual(self, run_id: str) -> Mapping[str, duration_stats.Usual]:
        """How long its tasks took before; see ``Session``."""
        return duration_stats.read(await self._read("usual", run_id=run_id))

    async def send(self, command: Command) -> Answer:
        """Ask for an act. Asked again by itself, with the same id, when the line drops before the answer.

        Raises LinkError while the line is down: what is on the screen may be old.
        """
        if self.status.read_only is not None:
            raise StateFileError(f"read-only: {self.status.read_only}")
        if self._line.link is not Link.LIVE:
            raise LinkError(f"not sent, the line is down: {self._line.trouble or 'nothing heard for too long'}")
        return answer_of(await self._line.ask("send", teach=CHANGING, command=command.as_json()))

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Traceback, stack and diagnostic of one attempt."""
        said = await self._read("attempt_text", teach=CHANGING, run_id=run_id, name=task, attempt=attempt)
        return AttemptText(*row_of(logs.AttemptText, said))

    async def log(self, run_id: str, task: str, attempt: int, after: int = 0, limit: int = 500) -> Sequence[LogChunk]:
        """A window of its output; see ``Session``."""
        where = {"run_id": run_id, "name": task, "attempt": attempt}
        said = await self._read("log", teach=CHANGING, **where, after=after, limit=limit)
        return [LogChunk(*piece) for piece in rows_of(logs.LogPiece, said)]

    async def query(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """The rows of a list beside a run; see ``Session``."""
        return rows_of(listing.row, await self._read("query", what=listing.name, options=options))

    async def memory(self, run_id: str, causes: Sequence[Cause]) -> Sequence[Memory]:
        """What came of causes before; see ``Session``."""
        return rows_of(Memory, await self._read("memory", teach=ON_DEMAND, run_id=run_id, causes=causes))

    async def failures(self, run_id: str, downstream: str | None, names: Sequence[str] = ()) -> Sequence[FailedTask]:
        """What failed against a downstream; see ``Session``."""
        options = {"run_id": run_id, "downstream": downstream, "names": names}
        return rows_of(FailedTask, await self._read("failures", teach=ON_DEMAND, **options))

    async def preview(self, command: Command) -> Mapping[str, object]:
        """What an act would do; see ``Session``."""
        return row_of(dict[str, object], await self._read("preview", teach=CHANGING, command=command.as_json()))

    async def _read(self, what: str, /, *, teach: Sequence[str] = (), **options: Any) -> Any:
        return await self._line.ask("read", teach=teach, what=what, options=options)

    # --- What comes after the board ---------------------------------------------------------------------------------

    async def _fill(self, fold: RunFold, has_links: bool, patience_seconds: float | None) -> None:
        if self._filling is not None:
            self._filling.cancel()
        self._handed_out = None
        self._filling = asyncio.create_task(self._read_the_rest(fold, has_links))
        done, _ = await asyncio.wait({self._filling}, timeout=patience_seconds)
        if done:
            self._filling.result()
        else:
            self._handed_out = fold
            self._filling.add_done_callback(_look_at_result)

    async def _read_the_rest(self, fold: RunFold, has_links: bool) -> None:
        if has_links:
            await self._read_windows("links", fold, run_decoder.Links(fold).merge)
            self._hand_out_again(fold)
        await self._read_windows("history", fold, lambda window: run_decoder.merge_history(fold, window))
        self._hand_out_again(fold)

    async def _read_windows(self, what: str, fold: RunFold, merge: Callable[[Message], bool]) -> None:
        """One window after the other, so that events and answers need not wait behind all of it."""
        start: int | None = 0
        count = WINDOW_TASKS
        while start is not None:
            began = time.monotonic()
            window = await self._read(what, run_id=fold.run.run_id, start=start, count=count)
            if not merge(window):
                return  # the run has other tasks by now
            if time.monotonic() - began < WINDOW_SECONDS:
                count *= 2
            start = window["next"]

    def _hand_out_again(self, fold: RunFold) -> None:
        if self._handed_out is fold:
            self._filled = fold
            if self._feed is not None:
                self._feed.fail(SnapshotNeeded("more of the picture has been read"))

    # --- What the agent says ----------------------------------------------------------------------------------------

    def _greet(self, hello: Message) -> None:
        """Also after each reconnection: go on where the last one ended, if the file is still the same."""
        self._path = hello["path"]
        before, self._uuid = self._uuid, hello["uuid"]
        if before not in (None, self._uuid):
            self._begin_anew(SnapshotNeeded("another state file is in the place of the one before"))
        elif self._feed is not None:
            self._line.tell("follow", since=self._feed.received)

    def _take(self, message: Message) -> None:
        if "events" in message:
            self._take_events(message["events"])
        elif "following" in message:
            if self._feed is not None:
                self._feed.begin(message["following"])
        elif "beat" in message:
            self._beat = row_of(Beat, message["beat"])
            self._tick()
        elif "reset" in message:
            self._uuid = message["uuid"]
            self._begin_anew(SnapshotNeeded(message["reset"]))

    def _take_events(self, rows: Sequence[Sequence[Any]]) -> None:
        if self._feed is None:
            return
        try:
            events = [run_decoder.event_of(row) for row in rows]
        except StateFileError as error:  # no reconnection mends it
            self._feed.fail(error)
        else:
            self._feed.put(events)

    def _begin_anew(self, needed: SnapshotNeeded) -> None:
        self._filled = None
        if self._feed is not None:
            self._feed.fail(needed)
        else:
            self._reset = needed

    def _tick(self) -> None:
        if self._feed is not None:
            self._feed.tick()


def _look_at_result(filling: asyncio.Task[None]) -> None:
    """A line that is down for good says so in the status."""
    if not filling.cancelled():
        filling.exception()
