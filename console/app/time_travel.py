"""Time travel: shows the run as it was, by events, by problems, at a time, or played.

The target is computed when its events are loaded: if several key presses wait for a slow connection, only the last
target is shown. The present is updated in the background (``live_run.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from textual.timer import Timer

from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ..model.replay import NUMBER_MAX, ReplayIndex, parse_when
from ..present.header import ReplayPosition, describe_read_only
from ..screens.console import errors_shown
from ..sessions.event_history import EventHistory, HistoryPoint
from ..text.event_text import event_subject
from .views import ViewConsole

SPEEDS = (1, 10, 60)  # recorded seconds per second
FRAME_SECONDS = 0.1  # at least, between two frames of playback
SILENCE_SECONDS = 5.0  # of playback without events; longer gaps are skipped
SECOND_US = 1_000_000

_PRESENT = "this is the present"

#: (index, number of the current event) -> number of the target event; a number above ``index.seq`` is the present.
Move = Callable[[ReplayIndex, int], int]


class TimeTravel:
    """The controller of the past; each console has one."""

    def __init__(self, console: ViewConsole) -> None:
        self._console = console
        self._history: EventHistory | None = None
        self._moves: list[Move] = []  # of keys whose target is not shown yet
        self._selects_task = False  # move the cursor to the task of the target event
        self._instant_us: int | None = None  # the time that the operator typed; None: the time of the target event
        self._is_reading = False
        self._seq = 0
        self._event: Event | None = None
        self._speed = 0  # recorded seconds per second; 0: no playback
        self._next_speed = 0  # start playback at this speed when the target is shown
        self._play_start = (0.0, 0)  # monotonic seconds, and the recorded instant at that time
        self._timer: Timer | None = None  # for the next frame of playback

    # --- State -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> ReplayPosition | None:
        """The position in the past; None: the board shows the present."""
        live = self._console.live
        if not live.is_past:
            return None
        return ReplayPosition(live.now_us, live.clock_us, self._seq, live.latest_seq, self._event, self._speed)

    @property
    def lock_reason(self) -> str | None:
        """Why changes are refused; None in the present."""
        position = self.position
        return None if position is None else describe_read_only(position)

    # --- Keys ------------------------------------------------------------------------------------------------------

    def step(self, count: int) -> None:
        """Go ``count`` events forward, or back if negative; after the last event comes the present."""

        def move(index: ReplayIndex, here: int) -> int:
            found = index.step(here, count - (here > index.seq))  # the present already shows the last event
            return index.seq + 1 if found is None else found

        self._go(move, back=count < 0)

    def to_problem(self, direction: int) -> None:
        """Go to the next (1) or previous (-1) failure, hang or act, and move the cursor to its task."""

        def move(index: ReplayIndex, here: int) -> int:
            where = "before" if direction < 0 else "after"
            return self._problem(index.next_problem(here, direction), here, f"no problem {where} this")

        self._go(move, back=direction < 0, selects_task=True)

    def to_first_problem(self) -> None:
        """Go to the first failure, hang or act, and move the cursor to its task."""
        self._go(
            lambda index, here: self._problem(index.next_problem(0, 1), here, "nothing went wrong"), selects_task=True
        )

    def _problem(self, found: int | None, here: int, nothing: str) -> int:
        """The problem that was found; if there is none, stay here and say so."""
        if found is None:
            self._console.show_warning(nothing)
        return here if found is None else found

    def to_cursor_event(self, subject: object) -> None:
        """Go to the instant after ``subject`` if it is an event."""
        if isinstance(subject, Event):
            self.to_event(subject.seq)
        else:
            self._console.show_message("no event is under the cursor")

    def to_event(self, seq: int) -> None:
        """Go to the instant after an event."""
        self._go(lambda index, here: seq)

    def to_time(self, text: str) -> None:
        """Go to a clock time, or to the number of an event, as the operator typed it."""
        board = self._console.live.board
        if board is None:
            return
        with errors_shown(self._console.show_warning):
            when = parse_when(text, board.projection.run, self._console.live.clock_us)
            if when < NUMBER_MAX:
                self.to_event(when)
            else:
                self._go(lambda index, here: index.seq_at(when), instant_us=when)

    def faster(self) -> None:
        """Start playback here, or from the start of the run; during playback: play faster."""
        now = self._speed or self._next_speed
        self.play(next((speed for speed in SPEEDS if speed > now), SPEEDS[-1]))

    def slower(self) -> None:
        """Play slower; at the lowest speed, stop."""
        slower = [speed for speed in SPEEDS if speed < self._speed]
        if slower:
            self.play(slower[-1])
        elif self._speed:
            self.stop_playing()
        else:
            self._console.show_warning("playback stopped" if self._console.live.is_past else _PRESENT)

    def play(self, speed: int) -> None:
        """Start playback at ``speed`` recorded seconds per second."""
        if self._console.live.is_past:
            self._start_playing(speed)
        else:
            self._go(lambda index, here: index.first)
            self._next_speed = speed

    def stop_playing(self) -> None:
        """Stop playback at the current instant."""
        was_playing, self._speed, self._next_speed = self._speed > 0, 0, 0
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if was_playing:
            self._console.show_frames()

    def return_to_present(self) -> bool:
        """Show the present. Return False if the board showed it already."""
        live = self._console.live
        was_past = live.is_past or bool(self._moves)
        if was_past:
            self._moves = []
            live.seek_present()
            self.stop_playing()
        return was_past

    def reset(self) -> None:
        """Forget the loaded history: the board was replaced, perhaps by that of another run."""
        self._moves = []
        self._history = None
        self.stop_playing()

    # --- Going -----------------------------------------------------------------------------------------------------

    def _go(self, move: Move, *, back: bool = True, selects_task: bool = False, instant_us: int | None = None) -> None:
        live = self._console.live
        if live.board is None or not (back or live.is_past or self._moves):
            self._console.show_warning(_PRESENT)
            return
        self.stop_playing()
        self._moves.append(move)
        self._selects_task, self._instant_us = selects_task, instant_us
        if not self._is_reading and not self._move_from_cache():
            self._is_reading = True
            self._console.run_worker(self._read_and_move(), group="time_travel")

    def _move_from_cache(self) -> bool:
        """Show the target if its events are in the cache."""
        history = self._history
        if history is None or not self._console.live.is_past:
            return False
        seq = self._target(history.index)
        point = history.cached_point(seq) if seq <= history.index.seq else None
        if point is None:
            return False
        self._moves = []
        self._show_target(history.index, seq, point)
        return True

    def _target(self, index: ReplayIndex) -> int:
        """The number of the event that the waiting moves lead to."""
        here = self._seq if self._console.live.is_past else index.seq + 1
        for move in self._moves:
            here = move(index, here)
        return here

    async def _read_and_move(self) -> None:
        try:
            while self._moves:
                await self._make_moves(self._moves)
        except RedriveError as error:
            self._moves = []
            self._console.show_warning(str(error))
        finally:
            self._is_reading = False

    async def _make_moves(self, moves: list[Move]) -> None:
        """Load the events for ``moves`` and show their target, unless the operator has left the past since."""
        history = await self._load_history()
        seq = self._target(history.index)
        count = len(moves)
        point = await history.point_at(seq) if seq <= history.index.seq else None
        if moves is not self._moves:
            return
        del moves[:count]
        if point is not None:
            self._show_target(history.index, seq, point)
            if self._next_speed:
                self._start_playing(self._next_speed)
        elif self.return_to_present():
            self._console.show_warning(_PRESENT)

    async def _load_history(self) -> EventHistory:
        """Load the events up to the present: all of them the first time, later only new ones."""
        live, is_first = self._console.live, self._history is None
        if self._history is None:
            assert live.board is not None
            self._history = EventHistory(live.session, live.board.projection)
        history, latest_seq = self._history, live.latest_seq

        def show_progress(seq: int) -> None:
            self._console.show_warning(f"reading the past, {100 * seq // max(latest_seq, 1)} %", 1.0)

        await history.load(latest_seq, show_progress)
        if is_first:
            self._console.freeze_gc()
        return history

    def _show_target(self, index: ReplayIndex, seq: int, point: HistoryPoint) -> None:
        at_us = index.instant_of(seq)
        if self._instant_us is not None:
            at_us = max(at_us, min(self._instant_us, self._console.live.clock_us))
        self._show(seq, point, at_us)

    def _show(self, seq: int, point: HistoryPoint, at_us: int) -> None:
        self._seq, self._event = seq, point.event
        self._console.live.seek(point.snapshot, at_us)
        task = event_subject(point.event) if point.event is not None and self._selects_task else None
        self._selects_task = False
        self._console.on_seek(seq, task)

    # --- Playing ---------------------------------------------------------------------------------------------------

    def _start_playing(self, speed: int) -> None:
        self.stop_playing()
        self._speed = speed
        self._play_start = self._console.live.monotonic_seconds, self._console.live.now_us
        self._schedule_frame(self._console.live.now_us, self._seq)
        self._console.show_frames()

    def _schedule_frame(self, now_us: int, seq: int) -> None:
        """Schedule the next frame: at the next event or the next whole second. Long gaps without events are skipped."""
        history, speed = self._history, self._speed
        assert history is not None
        due = history.index.next_instant(seq)
        second = now_us - now_us % SECOND_US + SECOND_US
        left_us = min(second if due is None else due, second) - now_us
        if due is not None and due - now_us > SILENCE_SECONDS * speed * SECOND_US:
            self._play_start = self._console.live.monotonic_seconds, due - speed * SECOND_US
            left_us = 0
        delay = max(left_us / SECOND_US / speed, FRAME_SECONDS)
        self._timer = self._console.set_timer(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._speed:
            self._console.run_worker(self._play_frame(), group="play", exclusive=True)

    async def _play_frame(self) -> None:
        try:
            await self._show_frame()
        except RedriveError as error:
            self.stop_playing()
            self._console.show_warning(str(error))

    async def _show_frame(self) -> None:
        history, play_start = self._history, self._play_start
        assert history is not None
        passed = self._console.live.monotonic_seconds - play_start[0]
        now_us = play_start[1] + round(passed * self._speed * SECOND_US)
        if history.index.next_instant(history.index.seq_at(now_us)) is None:
            await history.load(self._console.live.latest_seq)  # new events have arrived
        seq = history.index.seq_at(now_us)
        point = await history.point_at(seq)
        if not self._speed or play_start is not self._play_start or history is not self._history:
            return  # the operator has gone elsewhere since
        self._show(seq, point, now_us)
        if history.index.next_instant(seq) is not None:
            self._schedule_frame(now_us, seq)
        elif self.return_to_present():
            self._console.show_warning(_PRESENT)
