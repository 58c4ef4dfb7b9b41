"""The way back: which views the operator came through, and what was selected there.

Going to a view by its key or tab begins anew, as such a view is a top level; whatever leads on from a task (its log, a
run of the list) leaves a stop behind that ``Esc`` and ``q`` return to.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..keys.actions import Place

STOPS_MAX = 50


class Stop(NamedTuple):
    """A view, and the task that was selected in it."""

    view: Place
    selected: str | None


class Trail:
    """The stops, the latest last."""

    def __init__(self) -> None:
        self._stops: deque[Stop] = deque(maxlen=STOPS_MAX)

    @property
    def last(self) -> Stop | None:
        """Where going back leads to; None at the top level."""
        return self._stops[-1] if self._stops else None

    def leave(self, view: Place, selected: str | None) -> None:
        """Somebody goes on from here."""
        self._stops.append(Stop(view, selected))

    def back(self) -> Stop | None:
        """Take the latest stop."""
        return self._stops.pop() if self._stops else None

    def forget(self) -> None:
        """This is a top level."""
        self._stops.clear()
