"""Hints for a key that does nothing here: keys of vim, less and k9s, and keys of other screens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from .actions import ACTIONS, BY_NAME, FIXED, MOVE_ACTIONS, VIEWS, Action, ScreenName
from .keymap import key_label, key_name, keys_of, shown_key

#: Keys that people bring from elsewhere -> the action that does here what they do there.
_HABITS: Mapping[str, str] = {
    "u": "undo",
    "ctrl+f": "page_down",
    "ctrl+b": "page_up",
    "ctrl+e": "down",
    "ctrl+y": "up",
    "H": "top",
    "M": "half_page_down",
    "L": "bottom",
    "F": "follow",
    "Z": "quit",
    "Q": "quit",
    "K": "stop_task",
    "ctrl+k": "stop_task",
    "delete": "stop_task",
    "ctrl+r": "redraw",
    "f5": "redraw",
    "f3": "filter",
    "asterisk": "filter",
    "number_sign": "filter",
    "percent_sign": "critical_path",
    "backspace": "back",
    "ctrl+o": "back",
    "ctrl+g": "help",
    "h": "help",
    "ctrl+a": "palette",
    "semicolon": "palette",
    "exclamation_mark": "palette",
}


def hint_for(key: str, place: ScreenName, acts: Callable[[Action], bool]) -> str:
    """Return a sentence about a key that does nothing on a screen; empty for another, and for one that moves elsewhere.

    ``acts``: whether the screen handles an action.
    """
    if key in _known(place):
        return ""
    nothing = f"{key_label(key)} does nothing here"
    meant = BY_NAME.get(_HABITS.get(key, "")) or _same_letter(key)
    if meant is not None and shown_key(meant.name) and acts(meant):
        return f"{nothing}; {shown_key(meant.name)}: {meant.help}"
    there = [view.value.capitalize() for view in VIEWS if view is not place and _acts_in(key, view)]
    if there:
        return f"{nothing}; it does in {', '.join(there)}"
    return f"{nothing}; {shown_key('help')} lists the keys that do"


@lru_cache(maxsize=len(ScreenName))
def _known_names(place: ScreenName) -> tuple[str, ...]:
    return tuple(action.name for action in ACTIONS if place in action.screens or action in MOVE_ACTIONS)


def _known(place: ScreenName) -> Iterator[str]:
    """The keys that mean something on a screen, and those of the terminal."""
    yield from (key for name in _known_names(place) for key in keys_of(name))
    yield from (key_name(key) for action in FIXED for key in action.keys)


def _same_letter(key: str) -> Action | None:
    """The action of a letter that was typed in the other case."""
    return next((action for action in ACTIONS if len(key) == 1 and key.swapcase() in keys_of(action.name)), None)


def _acts_in(key: str, view: ScreenName) -> bool:
    return any(view in action.screens and key in keys_of(action.name) for action in ACTIONS)
