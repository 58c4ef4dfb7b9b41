"""One run, followed through a session: events in, a board brought forward, and the screen told ten times a second.

Events are kept until the next paint is due and applied then, all at once: what the operator sees is exactly what the
board says, so an act carries the state and generation that was on the screen when the key was pressed. Countdowns need
no event and no byte of the wire: ``Viewer.tick`` is called on whole seconds of the clock over there.

The board may be turned to a moment of the past. Events go on to be taken meanwhile, unseen; the present is exact as
soon as it is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...engine.clock import Clock
from ...engine.domain.events import Event
from ...engine.errors import LinkError, RedriveError, RefusedError, SnapshotNeeded
from ...engine.statefile import queries
from ...engine.statefile.duration_stats import Usual
from ..model.board import Board, Delta
from ..model.eta import Forecast, Forecaster
from ..model.run_snapshot import Moment
from ..sessions.session import Session

SECOND_US = 1_000_000
PAINT_SECONDS = 0.1  # between two paints of what events changed; a key is answered at once
WAITING_EVENTS_MAX = 5_000  # then they are applied before their time
RETRY_SECONDS = 1.0  # after a door failed to give a picture
PAGES_MAX = 100  # of the latest, for sentences that name who looks after a failure
PATIENCE_SECONDS = 2.0  # for the history of what is done, on a slow line


@dataclass(frozen=True, slots=True)
class News:
    """What one paint has to show: the events of all runs of the file since the last one, and what they changed here."""

    delta: Delta
    events: Sequence[Event]


class Viewer(Protocol):
    """Who is told."""

    def board_replaced(self, board: Board) -> None:
        """A picture of the run, read as a whole: the first one, or another run, or events no longer led to it."""

    def take(self, news: News) -> None:
        """The board has been brought forward."""

    def tick(self, now_us: int) -> None:
        """A second has passed."""

    def heard(self) -> None:
        """The status of the session may be another one."""

    def failed(self, error: Exception) -> None:
        """Something here is broken: no error of the outside world, which would be ``trouble``."""


class LiveRun:
    """The run on the screen. ``run_id`` None: the latest of the file, as soon as there is one."""

    def __init__(self, session: Session, clock: Clock, viewer: Viewer) -> None:
        self.session = session
        self.board: Board | None = None
        self.trouble: str | None = None  # why there is no picture, in one sentence
        self.status = session.status  # as of the last sign of life, or the last second
        self._clock = clock
        self._viewer = viewer
        self._forecaster: Forecaster | None = None
        self._present: Moment | None = None  # while the board shows another moment
        self._shown_at = 0  # the instant of that one
        self._usual: Mapping[str, Usual] = {}  # of the run ``_usual_of``
        self._usual_of: str | None = None
        self._learning: asyncio.Task[None] | None = None  # about the run ``_learning_of``
        self._learning_of: str | None = None
        self._run_id: str | None = None
        self._waiting: list[Event] = []
        self._painted_at = float("-inf")
        self._paint: asyncio.TimerHandle | None = None
        self._second: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def now_us(self) -> int:
        """The instant that the board shows, microseconds UTC, by the clock of the host where the run is."""
        return self._shown_at if self._present is not None else self.clock_us

    @property
    def clock_us(self) -> int:
        """The same for the present, whatever the board shows."""
        return self._clock.now_us() + round(self.status.clock_offset_seconds * SECOND_US)

    @property
    def forecast(self) -> Forecast | None:
        """When it will be done, as far as anybody can tell."""
        return self._forecaster.forecast(self.now_us) if self._forecaster is not None else None

    @property
    def is_past(self) -> bool:
        """Whether the board shows a moment of the past."""
        return self._present is not None

    @property
    def head(self) -> int:
        """The number of the latest event of the file that has come, whatever the board shows; 0 without a board."""
        moment = self._present or (self.board.moment if self.board is not None else None)
        return moment.fold.seq if moment is not None else 0

    def show_moment(self, moment: Moment, at_us: int) -> None:
        """Turn the board to a moment of its run, or let time pass there."""
        self.bring_forward()
        board = self.board
        assert board is not None
        if self._present is None:
            self._present = board.moment
        self._shown_at = at_us
        if moment is not board.moment:
            self._viewer.take(News(board.turn(moment), ()))
        self._viewer.tick(at_us)

    def show_present(self) -> None:
        """Turn the board to where the run is by now."""
        self.bring_forward()
        present, self._present = self._present, None
        if present is not None and self.board is not None:
            self._viewer.take(News(self.board.turn(present), ()))
            self._viewer.tick(self.now_us)

    def follow(self, run_id: str | None) -> None:
        """Show this run from now on."""
        self._stop_following()
        self._run_id = run_id
        self._following = asyncio.create_task(self._follow())
        self._following.add_done_callback(self._ended)
        if self._second is None:
            self._plan_second()

    def read_again(self) -> None:
        """Take a new picture of the same run."""
        self.follow(self._run_id)

    def close(self) -> None:
        """Follow nothing any more, with the board in the present. The session stays open."""
        self._stop_following()
        if self._present is not None and self.board is not None:
            self.board.turn(self._present)
            self._present = None
        self._stop_learning()
        if self._second is not None:
            self._second.cancel()
            self._second = None

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if self._paint is not None:
            self._paint.cancel()
            self._paint = None
        self._waiting.clear()

    # --- Events in ------------------------------------------------------------------------------------------------

    def _ended(self, following: asyncio.Task[None]) -> None:
        error = None if following.cancelled() else following.exception()
        if isinstance(error, Exception):
            self._viewer.failed(error)

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_picture()
            except SnapshotNeeded:
                continue
            except LinkError as error:
                self._fail(error)
                if error.final:
                    return
            except RedriveError as error:
                self._fail(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_picture(self) -> None:
        try:
            fold = await self.session.snapshot(self._run_id, patience_seconds=PATIENCE_SECONDS)
        except RefusedError as error:
            self._fail(error)
            await self._wait_for_a_run()
            return
        breakers = await self.session.query(queries.BREAKERS)
        pages = await self.session.query(queries.PAGES, limit=PAGES_MAX)
        if self._present is not None and self.board is not None:
            self.board.turn(self._present)  # what is known beside the run is that of now
        board = Board(fold, self.board)
        board.learn(breakers, pages)
        self._replace(board)
        async for batch in self.session.events(fold.seq):
            self._take(batch)

    async def _wait_for_a_run(self) -> None:
        async for batch in self.session.events(0):
            if batch:
                raise SnapshotNeeded("there is something to see")
            self._hear()

    def _hear(self) -> None:
        self.status = self.session.status
        self._viewer.heard()

    def _fail(self, error: RedriveError) -> None:
        self.trouble = str(error)
        self._hear()

    def _replace(self, board: Board) -> None:
        self.trouble = None
        self.board = board
        self._present = None
        self._run_id = board.fold.run.run_id
        self._waiting.clear()
        self._use_what_is_usual(board)
        self._viewer.board_replaced(board)

    def _use_what_is_usual(self, board: Board) -> None:
        """How long tasks took in earlier runs; asked once for each run, and waited for by nobody."""
        run_id = board.fold.run.run_id
        if run_id == self._usual_of:
            board.usual = self._usual
        elif run_id != self._learning_of:
            self._stop_learning()
            self._learning_of = run_id
            self._learning = asyncio.create_task(self._learn_what_is_usual(run_id))
            self._learning.add_done_callback(self._ended)
        self._forecaster = Forecaster(board, {name: one.p50_us / SECOND_US for name, one in board.usual.items()})

    async def _learn_what_is_usual(self, run_id: str) -> None:
        try:
            usual = await self.session.usual(run_id)
        except RedriveError:
            self._learning_of = None  # an estimate without them is one too; the next picture asks again
            return
        self._usual, self._usual_of = usual, run_id
        if self.board is not None:
            self._use_what_is_usual(self.board)
            self._viewer.heard()

    def _stop_learning(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
            self._learning = None

    def _take(self, batch: Sequence[Event]) -> None:
        if not batch:
            self._hear()
            return
        self._waiting.extend(batch)
        if len(self._waiting) >= WAITING_EVENTS_MAX:
            self.bring_forward()
        elif self._paint is None:
            loop = asyncio.get_running_loop()
            due = max(self._painted_at + PAINT_SECONDS, loop.time())
            self._paint = loop.call_at(due, self._safely, self.bring_forward)

    def bring_forward(self) -> None:
        """Apply what has come, and have it painted."""
        if self._paint is not None:
            self._paint.cancel()
            self._paint = None
        self._painted_at = asyncio.get_running_loop().time()
        events, self._waiting = self._waiting, []
        if self.board is None or not events:
            return
        if self._present is None:
            self._viewer.take(News(self.board.apply(events), events))
        else:
            for event in events:
                self._present.apply(event)
            self._viewer.take(News(Delta(), events))

    # --- Seconds --------------------------------------------------------------------------------------------------

    def _plan_second(self) -> None:
        left_us = SECOND_US - self.clock_us % SECOND_US
        self._second = asyncio.get_running_loop().call_later(left_us / SECOND_US, self._on_second)

    def _on_second(self) -> None:
        self._plan_second()
        self.status = self.session.status
        self._safely(self._viewer.heard if self.is_past else lambda: self._viewer.tick(self.now_us))

    def _safely(self, step: Callable[[], None]) -> None:
        """For callbacks of the loop, whose errors would only be logged."""
        try:
            step()
        except Exception as error:
            self._viewer.failed(error)
