"""The navigation history: the views that ``Esc`` and ``q`` return to, with their selected tasks.

A view that is opened by its key or tab is a top level and clears the history; a view that is opened from a task or a
run adds an entry.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ..keys.actions import ScreenName

STOPS_MAX = 50


class Stop(NamedTuple):
    """A view, and the task that was selected in it."""

    view: ScreenName
    selected: str | None


class NavigationHistory:
    """A stack of views, at most ``STOPS_MAX``."""

    def __init__(self) -> None:
        self._stops: deque[Stop] = deque(maxlen=STOPS_MAX)

    @property
    def last(self) -> Stop | None:
        """The view to which ``pop`` returns; None at the top level."""
        return self._stops[-1] if self._stops else None

    def push(self, view: ScreenName, selected: str | None) -> None:
        """Record a view that the operator leaves."""
        self._stops.append(Stop(view, selected))

    def pop(self) -> Stop | None:
        """Remove and return the latest view; None at the top level."""
        return self._stops.pop() if self._stops else None

    def clear(self) -> None:
        """Make the current view a top level."""
        self._stops.clear()
