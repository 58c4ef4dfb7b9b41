"""The night once more: the events of a run read through a session, window by window, for a reel.

``redrive replay`` prints one moment (``cli/listings.py``); the console goes back and forth (``time_travel.py``). Both ask a
``Night``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ...engine.core.projection import RunFold
from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ..model.replay import Reel, Stretch
from ..model.run_snapshot import Moment
from ..sessions.session import Session

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
