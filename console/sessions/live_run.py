"""Follows one run through a session: applies its events to a board and notifies an observer ten times a second.

Events wait for the next flush and are applied together: the screen shows exactly the state of the board, so an act
carries the state and generation that the operator saw when pressing the key. Countdowns need no events and no traffic:
``BoardObserver.tick`` is called on whole seconds of the clock of the run's host.

The board can show an instant of the past. New events are then applied to the snapshot of the present, which is not
shown; ``seek_present`` returns to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from ...engine.clock import Clock
from ...engine.domain.events import Event
from ...engine.errors import LinkError, RedriveError, RefusedError, SnapshotNeeded
from ...engine.statefile import lists
from ...engine.statefile.durations import DurationStats
from ..model.board import Board, BoardUpdate, Delta
from ..model.eta import Forecast, Forecaster
from ..model.session_status import Link, SessionStatus
from ..model.snapshot import RunSnapshot
from .session import LiveSession

SECOND_US = 1_000_000
FLUSH_SECONDS = 0.1  # between two updates of the screen by events; keys do not wait
PENDING_EVENTS_MAX = 5_000  # more are applied at once
_IN_VAIN_MAX = 3  # snapshots in a row at once; the next one waits
RETRY_SECONDS = 1.0  # after the session failed to return a snapshot
PAGES_MAX = 100  # the latest pages, for sentences that name who acknowledged a failure
PATIENCE_SECONDS = 2.0  # for the history of finished attempts, on a slow connection
LARGE_TASKS = 20_000  # of a run whose end is not estimated before
LARGE_DELAY_SECONDS = 5.0  # after its screens have started


class BoardObserver(Protocol):
    """The app, as ``LiveRun`` notifies it."""

    def on_board_replaced(self, board: Board) -> None:
        """Show another snapshot: the first one, another run, or one after missed events or added tasks."""

    def on_board_update(self, update: BoardUpdate) -> None:
        """Show events that were applied to the board, or another instant of the board."""

    def tick(self, now_us: int) -> None:
        """Update the countdowns; called once a second."""

    def on_status(self) -> None:
        """The status of the session may have changed."""

    def on_run_gone(self, sentence: str) -> None:
        """The run that was shown is not in the file any more; the board is that of its latest run."""

    def on_error(self, error: Exception) -> None:
        """A bug raised ``error``. Errors of the session are in ``LiveRun.error_message`` instead."""


class LiveRun:
    """The run on the screen."""

    def __init__(self, session: LiveSession, clock: Clock, observer: BoardObserver) -> None:
        self.session = session
        self.board: Board | None = None
        self.error_message: str | None = None  # why no snapshot could be loaded, in one sentence
        self.status = session.status  # at most one second old
        self._gone_since: float | None = None  # by the monotonic clock: since when the file has no run to show
        self._awaited_seq = 0  # of the events that came while there was no run
        self._clock = clock
        self._observer = observer
        self._forecaster: Forecaster | None = None
        self._present: RunSnapshot | None = None  # while the board shows the past
        self._shown_at_us = 0  # while the board shows the past
        self._stats: Mapping[str, DurationStats] = {}  # for the run ``_stats_run_id``
        self._stats_run_id: str | None = None
        self._stats_task: asyncio.Task[None] | None = None  # which loads them
        self._forecasts_from = 0.0  # on the monotonic clock
        self._still_at_us: int | None = None  # while the connection is down
        self._run_id: str | None = None
        self._pending: list[Event] = []
        self._flushed_at = float("-inf")
        self._flush_timer: asyncio.TimerHandle | None = None
        self._second_timer: asyncio.TimerHandle | None = None
        self._follow_task: asyncio.Task[None] | None = None

    @property
    def now_us(self) -> int:
        """The instant that the board shows, in microseconds UTC by the clock of the run's host.

        It stands still while the connection is down: nobody knows what goes on there.
        """
        if self._present is not None:
            return self._shown_at_us
        if self.status.connection_problem is None:
            self._still_at_us = None
            return self.clock_us
        if self._still_at_us is None:
            self._still_at_us = self.status.shown_at(self.clock_us)
        return self._still_at_us

    @property
    def clock_us(self) -> int:
        """The present, in microseconds UTC by the clock of the run's host."""
        return self._clock.now_us() + round(self.status.clock_offset_seconds * SECOND_US)

    @property
    def monotonic_seconds(self) -> float:
        """Seconds of a clock that never jumps: how long ago something happened here."""
        return self._clock.monotonic()

    @property
    def forecast(self) -> Forecast | None:
        """The estimated end of the run; None before the first snapshot, and while the screens of a large run start."""
        if self._forecaster is None or time.monotonic() < self._forecasts_from:
            return None
        return self._forecaster.forecast(self.now_us)

    @property
    def is_past(self) -> bool:
        """Whether the board shows an instant of the past."""
        return self._present is not None

    @property
    def latest_seq(self) -> int:
        """The number of the latest received event, also while the board shows the past; 0 without a board."""
        snapshot = self._present or (self.board.snapshot if self.board is not None else None)
        return snapshot.projection.seq if snapshot is not None else 0

    def seek(self, snapshot: RunSnapshot, at_us: int) -> None:
        """Show an instant of the past: ``snapshot`` at ``at_us`` (microseconds UTC)."""
        self.flush_pending()
        board = self.board
        assert board is not None
        if self._present is None:
            self._present = board.snapshot
        self._shown_at_us = at_us
        if snapshot is not board.snapshot:
            self._update(board, board.seek(snapshot))
        self._observer.tick(at_us)

    def seek_present(self) -> None:
        """Show the present again."""
        self.flush_pending()
        present, self._present = self._present, None
        if present is not None and self.board is not None:
            self._update(self.board, self.board.seek(present))
            self._observer.tick(self.now_us)

    def follow(self, run_id: str | None) -> None:
        """Follow a run. None: the latest run of the file, also one that does not exist yet."""
        self._stop_following()
        self._run_id = run_id
        self._follow_task = asyncio.create_task(self._follow())
        self._follow_task.add_done_callback(self._on_task_end)
        if self._second_timer is None:
            self._schedule_second()

    def reload(self) -> None:
        """Load a new snapshot of the same run."""
        self.follow(self._run_id)

    def close(self) -> None:
        """Stop following, with the board in the present. The session stays open."""
        self._stop_following()
        if self._present is not None and self.board is not None:
            self.board.seek(self._present)
            self._present = None
        self._stop_loading()
        if self._second_timer is not None:
            self._second_timer.cancel()
            self._second_timer = None

    def _stop_following(self) -> None:
        if self._follow_task is not None:
            self._follow_task.cancel()
            self._follow_task = None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._pending.clear()

    # --- Events -------------------------------------------------------------------------------------------------------

    def _on_task_end(self, following: asyncio.Task[None]) -> None:
        error = None if following.cancelled() else following.exception()
        if isinstance(error, Exception):
            self._observer.on_error(error)

    async def _follow(self) -> None:
        reason, in_vain = "", 0  # why the next snapshot is needed; how often one came to nothing
        while True:
            before = self.board
            try:
                await self._follow_snapshot(reason)
            except SnapshotNeeded as needed:
                reason, in_vain = str(needed), in_vain + 1 if self.board is before else 0
                if in_vain < _IN_VAIN_MAX:
                    await asyncio.sleep(FLUSH_SECONDS if self.board is not None else 0)
                    continue
            except LinkError as error:
                self._set_error(error)
                if error.final:
                    return
            except RedriveError as error:
                self._set_error(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_snapshot(self, reason: str) -> None:
        gone, projection = "", None
        try:
            projection = await self.session.snapshot(self._run_id, patience_seconds=PATIENCE_SECONDS)
        except RefusedError as error:
            if self.board is None or self._run_id is None:
                await self._wait_for_run(error)
                return
            gone = f"{reason or 'the file has changed'}: run {self._run_id} is not in it any more"
        if projection is None:
            self._run_id = None
            try:
                projection = await self.session.snapshot(None, patience_seconds=PATIENCE_SECONDS)
            except RefusedError:
                await self._wait_for_run(RefusedError(gone))
                return
        breakers = await self.session.rows(lists.BREAKERS)
        pages = await self.session.rows(lists.PAGES, limit=PAGES_MAX)
        if self._present is not None and self.board is not None:
            self.board.seek(self._present)  # the lists that the next board takes over are those of the present
        board = Board(projection, self.board)
        board.update_lists(breakers, pages)
        self._replace_board(board)
        if gone:
            self._observer.on_run_gone(f"{gone}; this is its latest run")
        async for batch in self.session.events(projection.seq):
            self._buffer(batch)

    async def _wait_for_run(self, error: RedriveError) -> None:
        """Say why there is no run to show, until the file has events. The board that is shown is out of date then."""
        if self._gone_since is None:
            self._gone_since = self.monotonic_seconds
            self._set_error(error)
        async for batch in self.session.events(self._awaited_seq):
            if batch:
                self._awaited_seq = batch[-1].seq
                raise SnapshotNeeded("the first event has arrived")
            self._update_status(is_up_to_date=True)

    def _read_status(self, *, is_up_to_date: bool = False) -> SessionStatus:
        """Read the status. An executor counts as gone once all that it has written is known (``is_up_to_date``)."""
        status = self.session.status
        if self.status.executor.alive and not (status.executor.alive or is_up_to_date):
            status = replace(status, executor=self.status.executor)
        if self._gone_since is None or self.board is None or status.connection_problem is not None:
            return status
        age = self.monotonic_seconds - self._gone_since
        return replace(status, link=Link.STALE, problem=self.error_message, data_age_seconds=age)

    def _update_status(self, *, is_up_to_date: bool = False) -> None:
        self.status = self._read_status(is_up_to_date=is_up_to_date)
        self._observer.on_status()

    def _set_error(self, error: RedriveError) -> None:
        self.error_message = str(error)
        self._update_status()

    def _replace_board(self, board: Board) -> None:
        self.error_message = self._gone_since = None
        self._awaited_seq = 0
        self.board = board
        self.status = self._read_status()
        self._present = None
        self._run_id = board.projection.run.run_id
        self._pending.clear()
        delay = LARGE_DELAY_SECONDS if board.total >= LARGE_TASKS else 0.0
        self._forecasts_from = time.monotonic() + delay
        self._use_duration_stats(board)
        self._observer.on_board_replaced(board)

    def _use_duration_stats(self, board: Board) -> None:
        """Estimate with the durations of earlier runs, which a background task loads once for each run."""
        run_id = board.projection.run.run_id
        if run_id != self._stats_run_id:
            self._stop_loading()
            self._stats, self._stats_run_id = {}, run_id
            self._stats_task = asyncio.create_task(self._load_duration_stats(run_id))
            self._stats_task.add_done_callback(self._on_task_end)
        board.duration_stats = self._stats
        self._forecaster = Forecaster(board, self._stats)

    async def _load_duration_stats(self, run_id: str) -> None:
        try:
            self._stats = await self.session.duration_stats(run_id)
        except RedriveError:
            self._stats_run_id = None  # estimate without them; the next snapshot tries again
            return
        if self.board is not None:
            self._use_duration_stats(self.board)
            self._observer.on_status()

    def _stop_loading(self) -> None:
        if self._stats_task is not None:
            self._stats_task.cancel()
            self._stats_task = None

    def _buffer(self, batch: Sequence[Event]) -> None:
        if not batch:
            self._update_status(is_up_to_date=not self._pending)
            return
        self._pending.extend(batch)
        if len(self._pending) >= PENDING_EVENTS_MAX:
            self.flush_pending()
        elif self._flush_timer is None:
            loop = asyncio.get_running_loop()
            due = max(self._flushed_at + FLUSH_SECONDS, loop.time())
            self._flush_timer = loop.call_at(due, self._guarded, self.flush_pending)

    def flush_pending(self) -> None:
        """Apply the pending events and notify the observer."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._flushed_at = asyncio.get_running_loop().time()
        events, self._pending = self._pending, []
        if self.board is None or not events:
            return
        if self._present is None:
            self._update(self.board, self.board.apply(events), events)
        else:
            for event in events:
                self._present.apply(event)
            self._observer.on_board_update(BoardUpdate(Delta(), events))

    def _update(self, board: Board, delta: Delta, events: Sequence[Event] = ()) -> None:
        if delta.is_graph_changed:
            self._use_duration_stats(board)
            self._observer.on_board_replaced(board)
        self._observer.on_board_update(BoardUpdate(delta, events))

    # --- Seconds --------------------------------------------------------------------------------------------------

    def _schedule_second(self) -> None:
        left_us = SECOND_US - self.clock_us % SECOND_US
        self._second_timer = asyncio.get_running_loop().call_later(left_us / SECOND_US, self._on_second)

    def _on_second(self) -> None:
        self._schedule_second()
        self.status = self._read_status()
        self._guarded(self._observer.on_status if self.is_past else lambda: self._observer.tick(self.now_us))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Report errors of callbacks; the event loop would only log them."""
        try:
            step()
        except Exception as error:
            self._observer.on_error(error)
