"""The views of the console, each imported when it is first shown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..keys.actions import ScreenName
from ..screens.base import ConsoleScreen

#: View -> module and class; imported when the view is first shown, so that the first frame comes early.
SCREENS: dict[ScreenName, tuple[str, str]] = {
    ScreenName.RUNS: ("..screens.runs", "RunsScreen"),
    ScreenName.GRAPH: ("..screens.graph", "GraphScreen"),
    ScreenName.TIMELINE: ("..screens.timeline.screen", "TimelineScreen"),
    ScreenName.INBOX: ("..screens.inbox", "InboxScreen"),
    ScreenName.LOG: ("..screens.log.screen", "LogScreen"),
    ScreenName.JOURNAL: ("..screens.journal", "JournalScreen"),
    ScreenName.DOWNSTREAMS: ("..screens.downstreams", "DownstreamsScreen"),
    ScreenName.HISTORY: ("..screens.history", "HistoryScreen"),
}


def screen_maker(view: ScreenName) -> Callable[[], ConsoleScreen]:
    """What makes the screen of a view."""

    def make() -> ConsoleScreen:
        module, name = SCREENS[view]
        screen: ConsoleScreen = getattr(import_module(module, __package__), name)()
        return screen

    return make
