"""Back and forth in the night of the run on the screen: by steps, by troubles, to a time, and playing on.

Where to go is reckoned when the events for it are there: of many presses that wait for a slow line only the last moment
is shown. The present goes on behind it (``live_run.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.timer import Timer

from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ..feed.event_reader import Night, Sight
from ..model.replay import NUMBER_MAX, Reel, parse_when
from ..present.replay import Visit, why_locked
from ..screens.console import ConsoleHost
from ..text.event_text import subject
from ..text.pieces import Role

SPEEDS = (1, 10, 60)  # seconds of the night in one of ours
FRAME_SECONDS = 0.1  # between two pictures of what is played
SILENCE_SECONDS = 5.0  # of playing; what is longer is cut short
SAID_SECONDS = 5.0
SECOND_US = 1_000_000

_PRESENT = "this is the present"

#: From the event where one is, by its number, to where one wants to be; beyond ``Reel.seq`` is the present.
Move = Callable[[Reel, int], int]


class Rewind:
    """One for each console."""

    def __init__(self, console: ConsoleHost) -> None:
        self._console = console
        self._night: Night | None = None
        self._moves: list[Move] = []  # pressed, and not answered yet
        self._points = False  # the task of the event is wanted under the cursor
        self._instant: int | None = None  # that somebody asked for, rather than that of the event
        self._is_reading = False
        self._seq = 0
        self._event: Event | None = None
        self._speed = 0
        self._speed_wanted = 0  # as soon as one is there
        self._began = (0.0, 0)  # to play: when by the loop's clock, and the instant that was shown then
        self._timer: Timer | None = None  # to the next picture of what is played

    # --- Asked -----------------------------------------------------------------------------------------------------

    @property
    def visit(self) -> Visit | None:
        """Where one is; None: in the present."""
        live = self._console.live
        if not live.is_past:
            return None
        return Visit(live.now_us, live.clock_us, self._seq, live.head, self._event, self._speed)

    @property
    def locked(self) -> str | None:
        """Why nothing can be changed; None in the present."""
        visit = self.visit
        return None if visit is None else why_locked(visit, self._console.keymap.label("back"))

    # --- Keys ------------------------------------------------------------------------------------------------------

    def step(self, count: int) -> None:
        """So many events back or forward; behind the last one is the present."""

        def move(reel: Reel, here: int) -> int:
            found = reel.step(here, count - (here > reel.seq))  # the last one leads to what is shown already
            return reel.seq + 1 if found is None else found

        self._go(move, back=count < 0)

    def to_trouble(self, direction: int) -> None:
        """To the next failure, hang or act, or the one before; its task comes under the cursor."""

        def move(reel: Reel, here: int) -> int:
            found = reel.trouble(here, direction)
            if found is None:
                self._say(f"nothing went wrong {'before' if direction < 0 else 'after'} this")
            return here if found is None else found

        self._go(move, back=direction < 0, points=True)

    def to_subject(self, subject: object) -> None:
        """To the moment after the event under the cursor, if one is."""
        if isinstance(subject, Event):
            self.to_event(subject.seq)

    def to_event(self, seq: int) -> None:
        """To the moment after an event."""
        self._go(lambda reel, here: seq)

    def to_time(self, text: str) -> None:
        """To a clock time, or an event's number, as somebody types it."""
        board = self._console.live.board
        if board is None:
            return
        try:
            when = parse_when(text, board.fold.run)
        except RedriveError as error:
            self._say(str(error))
        else:
            is_number = when < NUMBER_MAX
            self._go(lambda reel, here: when if is_number else reel.at(when), instant=None if is_number else when)

    def faster(self) -> None:
        """Play on from here, or from the beginning; when it plays already, faster."""
        now = self._speed or self._speed_wanted
        self.play(next((speed for speed in SPEEDS if speed > now), SPEEDS[-1]))

    def slower(self) -> None:
        """Play slower, in the end not at all."""
        slower = [speed for speed in SPEEDS if speed < self._speed]
        if slower:
            self.play(slower[-1])
        elif self._speed:
            self.stand_still()
        else:
            self._say("time stands still" if self._console.live.is_past else _PRESENT)

    def play(self, speed: int) -> None:
        """So many seconds of the night in one of ours."""
        if self._console.live.is_past:
            self._begin(speed)
        else:
            self._go(lambda reel, here: reel.first)
            self._speed_wanted = speed

    def stand_still(self) -> None:
        """Play no more, and stay where one is."""
        played, self._speed, self._speed_wanted = self._speed, 0, 0
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if played:
            self._console.show_frames()

    def leave(self) -> bool:
        """Back to the present. False: this is the present."""
        live = self._console.live
        was_away = live.is_past or bool(self._moves)
        if was_away:
            self._moves = []
            live.show_present()
            self.stand_still()
        return was_away

    def forget(self) -> None:
        """The picture is another one: what was read of the past may be that of another run."""
        self._moves = []
        self._night = None
        self.stand_still()

    # --- Going -----------------------------------------------------------------------------------------------------

    def _go(self, move: Move, *, back: bool = True, points: bool = False, instant: int | None = None) -> None:
        live = self._console.live
        if live.board is None or not (back or live.is_past or self._moves):
            self._say(_PRESENT)
            return
        self.stand_still()
        self._moves.append(move)
        self._points, self._instant = points, instant
        if not self._is_reading and not self._go_at_once():
            self._is_reading = True
            self._console.run_worker(self._read_and_go(), group="rewind")

    def _go_at_once(self) -> bool:
        """Go where nothing has to be read for it."""
        night = self._night
        if night is None or not self._console.live.is_past:
            return False
        seq = self._target(night.reel)
        sight = night.sight_at_hand(seq) if seq <= night.reel.seq else None
        if sight is None:
            return False
        self._moves = []
        self._arrive(night.reel, seq, sight)
        return True

    def _target(self, reel: Reel) -> int:
        """Where the presses lead that were not answered yet."""
        here = self._seq if self._console.live.is_past else reel.seq + 1
        for move in self._moves:
            here = move(reel, here)
        return here

    async def _read_and_go(self) -> None:
        try:
            while self._moves:
                await self._answer(self._moves)
        except RedriveError as error:
            self._moves = []
            self._say(str(error))
        finally:
            self._is_reading = False

    async def _answer(self, moves: list[Move]) -> None:
        """Read what they need, and show where they lead, unless somebody wants something else by then."""
        night = await self.read_night()
        seq = self._target(night.reel)
        count = len(moves)
        sight = await night.sight(seq) if seq <= night.reel.seq else None
        if moves is not self._moves:
            return
        del moves[:count]
        if sight is not None:
            self._arrive(night.reel, seq, sight)
            if self._speed_wanted:
                self._begin(self._speed_wanted)
        elif self.leave():
            self._say(_PRESENT)

    async def read_night(self) -> Night:
        """The events up to the present: all of them the first time, then those that have come since."""
        live, is_first = self._console.live, self._night is None
        if self._night is None:
            assert live.board is not None
            self._night = Night(live.session, live.board.fold)
        night, head = self._night, live.head
        await night.read(head, lambda seq: self._say(f"reading the past, {100 * seq // max(head, 1)} %", 1.0))
        if is_first:
            self._console.keep()
        return night

    def _arrive(self, reel: Reel, seq: int, sight: Sight) -> None:
        at_us = reel.instant(seq)
        if self._instant is not None:
            at_us = max(at_us, min(self._instant, self._console.live.clock_us))
        self._show(seq, sight, at_us)

    def _show(self, seq: int, sight: Sight, at_us: int) -> None:
        self._seq, self._event = seq, sight.event
        self._console.live.show_moment(sight.moment, at_us)
        task = subject(sight.event) if sight.event is not None and self._points else None
        self._points = False
        self._console.turned(seq, task)

    def _say(self, sentence: str, seconds: float = SAID_SECONDS) -> None:
        self._console.show_message(sentence, Role.WARNING, seconds)

    # --- Playing ---------------------------------------------------------------------------------------------------

    def _begin(self, speed: int) -> None:
        self.stand_still()
        self._speed = speed
        self._began = asyncio.get_running_loop().time(), self._console.live.now_us
        self._plan(self._console.live.now_us, self._seq)
        self._console.show_frames()

    def _plan(self, now_us: int, seq: int) -> None:
        """When the next picture is due: with the next event or the next whole second. A long silence is cut short."""
        night, speed = self._night, self._speed
        assert night is not None
        due = night.reel.next_instant(seq)
        second = now_us - now_us % SECOND_US + SECOND_US
        left_us = min(second if due is None else due, second) - now_us
        if due is not None and due - now_us > SILENCE_SECONDS * speed * SECOND_US:
            self._began = asyncio.get_running_loop().time(), due - speed * SECOND_US
            left_us = 0
        delay = max(left_us / SECOND_US / speed, FRAME_SECONDS)
        self._timer = self._console.set_timer(delay, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._speed:
            self._console.run_worker(self._play_on(), group="play", exclusive=True)

    async def _play_on(self) -> None:
        try:
            await self._show_played()
        except RedriveError as error:
            self.stand_still()
            self._say(str(error))

    async def _show_played(self) -> None:
        night, began = self._night, self._began
        assert night is not None
        passed = asyncio.get_running_loop().time() - began[0]
        now_us = began[1] + round(passed * self._speed * SECOND_US)
        if night.reel.next_instant(night.reel.at(now_us)) is None:
            await night.read(self._console.live.head)  # the run has gone on meanwhile
        seq = night.reel.at(now_us)
        sight = await night.sight(seq)
        if not self._speed or began is not self._began or night is not self._night:
            return  # somebody wants something else by now
        self._show(seq, sight, now_us)
        if night.reel.next_instant(seq) is not None:
            self._plan(now_us, seq)
        elif self.leave():
            self._say(_PRESENT)
