"""What is said of a key that does nothing on a screen."""

from __future__ import annotations

from functools import partial

from redrive.console.keys.actions import Action, ScreenName
from redrive.console.keys.habits import hint_for


def acts_in(place: ScreenName, action: Action) -> bool:
    return place in action.screens


def test_a_key_that_does_nothing_is_explained_by_what_it_might_have_meant():
    said = {
        (key, place): hint_for(key, place, partial(acts_in, place))
        for key, place in (
            ("u", ScreenName.GRAPH),
            ("ctrl+f", ScreenName.FLEET),
            ("P", ScreenName.GRAPH),
            ("f", ScreenName.INBOX),
            ("8", ScreenName.GRAPH),
            ("j", ScreenName.GRAPH),
            ("r", ScreenName.FLEET),
        )
    }
    assert [*said.values()] == [
        "u does nothing here; z: Take back the last act that can be taken back.",
        "^f does nothing here; PgDn: One page down.",
        "P does nothing here; p: Pause or unpause the run; running tasks continue.",
        "f does nothing here; it does in Graph, Timeline, Log, Systems",
        "8 does nothing here; ? lists the keys that do",
        "",
        "",
    ]
