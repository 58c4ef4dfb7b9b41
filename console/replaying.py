"""The night once more: the events of a run read through a session, window by window, for a reel.

``redrive replay`` prints one moment; the console goes back and forth (``rewind.py``). Both ask a ``Night``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple, Unpack

import click

from ..engine.core.events import Event
from ..engine.core.fold import RunFold
from ..engine.errors import RedriveError
from .doors import DoorOptions, with_session
from .model.moment import Moment
from .model.replay import NUMBER_MAX, Reel, Stretch, parse_when
from .sessions.session import Session
from .shell.listing import task_lines

READ_EVENTS = 2_000  # at a time: what comes between does not wait for long
KEPT_EVENTS = 16_000  # of the stretches that were looked at last


class Sight(NamedTuple):
    """A moment, and the event that was the last by then; None where that is one of another run."""

    moment: Moment
    event: Event | None


class Night:
    """One run and its past, as far as it was read. ``fold``: any picture of the run."""

    def __init__(self, session: Session, fold: RunFold) -> None:
        self.reel = Reel(fold)
        self._session = session
        self._kept: OrderedDict[Stretch, Sequence[Event]] = OrderedDict()

    async def read(self, until: int, tell: Callable[[int], None] = lambda seq: None) -> None:
        """Read on, up to the event ``until`` or the end; ``tell`` hears of the last event of each window but the last.

        Raises RedriveError where the beginning is not in the file any more, and what the session raises.
        """
        reel = self.reel
        while reel.seq < until:
            events = await self._session.past(reel.run_id, reel.seq, READ_EVENTS)
            reel.extend(events)
            if len(events) < READ_EVENTS:
                break
            tell(reel.seq)
        if not reel.seq:
            raise RedriveError("nothing of what happened is in the file any more: the past cannot be shown")

    def sight_at_hand(self, seq: int) -> Sight | None:
        """The moment after the event ``seq``; None if its events have to be read first."""
        stretch = self.reel.stretch(seq)
        events = self._kept.get(stretch)
        if events is None or not (len(events) == stretch.limit or (events and events[-1].seq >= seq)):
            return None
        self._kept.move_to_end(stretch)
        return self._sight(seq, events)

    async def sight(self, seq: int) -> Sight:
        """The moment after the event ``seq``, which the reel knows."""
        sight = self.sight_at_hand(seq)
        if sight is None:
            stretch = self.reel.stretch(seq)
            events = await self._session.past(self.reel.run_id, stretch.after, stretch.limit)
            self._keep(stretch, events)
            sight = self._sight(seq, events)
        return sight

    def _sight(self, seq: int, events: Sequence[Event]) -> Sight:
        place = bisect_right(events, seq, key=attrgetter("seq"))
        event = events[place - 1] if place and events[place - 1].seq == seq else None
        return Sight(self.reel.moment(seq, events), event)

    def _keep(self, stretch: Stretch, events: Sequence[Event]) -> None:
        self._kept[stretch] = events
        self._kept.move_to_end(stretch)
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_EVENTS:
            self._kept.popitem(last=False)


def show(target: str, run_id: str | None, as_json: bool, at: str | None, **door: Unpack[DoorOptions]) -> int:
    """Print the tasks as they were ``at`` a time or after the event of a number; at the end if left out."""

    async def use(session: Session) -> RunFold:
        fold = await session.snapshot(run_id)
        if at is None:
            return fold
        when = parse_when(at, fold.run)
        night = Night(session, fold)
        await night.read(fold.seq)
        if NUMBER_MAX <= when < fold.run.started_at:
            raise RedriveError(f"{at} is before run {fold.run.run_id} began: {_spoken(fold.run.started_at)}")
        seq = when if when < NUMBER_MAX else night.reel.at(when)
        return (await night.sight(min(seq, night.reel.seq))).moment.fold

    for line in task_lines(with_session(target, use, **door), as_json):
        click.echo(line)
    return 0


def _spoken(instant: int) -> str:
    """As it is written to ``--at``."""
    return datetime.fromtimestamp(instant / 1e6).astimezone().isoformat(sep=" ", timespec="seconds")
