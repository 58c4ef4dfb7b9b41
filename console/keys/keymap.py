"""The keys of each action, and a guard against unintended keys.

A slow network can split an escape sequence and turn an arrow key into ``D`` and F3 into ``R``. Actions that change the
run are therefore only on keys that end no escape sequence, and are refused in bursts that are faster than a hand.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Generic, TypeVar

import msgspec

from .actions import ACTIONS, BY_NAME, ActionEffect, ScreenName

Event = TypeVar("Event")  # the event of the caller that belongs to a key press


BURST_KEYS = 4
BURST_SECONDS = 0.03
ESCAPE_SECONDS = 0.15
CALM_SECONDS = 0.3  # after a burst: a key may be the delayed end of the same paste
UNSEEN_SECONDS = 0.3  # after a dialog opened or closed: a key may be meant for what was there before
FLOOD_KEYS = 200  # of a burst; later keys of the same burst are dropped

_NAMES = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}


def key_name(key: str) -> str:
    """Textual's name of a key: ``?`` is ``question_mark``, ``G`` stays ``G``; long names are returned unchanged."""
    if len(key) != 1 or key.isalnum():
        return key
    if key == " ":
        return "space"
    name = unicodedata.name(key, key).lower().replace("-", "_").replace(" ", "_")
    return _NAMES.get(name, name)


def key_label(name: str) -> str:
    """The label of a key in the footer and in help: ``question_mark`` is ``?``, ``ctrl+l`` is ``^l``."""
    if name in _LABELS:
        return _LABELS[name]
    if name.startswith("ctrl+"):
        return f"^{key_label(name[5:])}"
    return _CHARACTERS.get(name, name)


_CHARACTERS = {key_name(chr(code)): chr(code) for code in range(0x21, 0x7F)}
_LABELS = {
    "escape": "Esc",
    "shift+tab": "S-Tab",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    **{name: name.capitalize() for name in ("enter", "space", "tab", "home", "end", "up", "down", "left", "right")},
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
}


def key_of_label(label: str) -> str:
    """Textual's name of the key with this label: the inverse of ``key_label``."""
    named = next((name for name, shown in _LABELS.items() if shown == label), None)
    if named is not None:
        return named
    return f"ctrl+{label[1:]}" if len(label) > 1 and label.startswith("^") else key_name(label)


@cache
def keys_of(action: str) -> tuple[str, ...]:
    """Textual's names of the keys of an action, the displayed key first."""
    return tuple(map(key_name, BY_NAME[action].keys))


def shown_key(action: str) -> str:
    """The displayed key of an action; "" for an action without keys."""
    keys = keys_of(action)
    return key_label(keys[0]) if keys else ""


@cache
def guarded_keys(screen: ScreenName | None = None) -> frozenset[str]:
    """Keys that change more than the view on ``screen``; None: on any screen."""
    acting = (one for one in ACTIONS if one.effect > ActionEffect.NONE and (screen is None or screen in one.screens))
    return frozenset(key for action in acting for key in keys_of(action.name))


class Refusal(Enum):
    """Why a key press was ignored; the value is the message for the operator."""

    BURST = "keys came faster than a hand types: nothing was done, press again"
    UNSEEN = "a dialog has just opened or closed: nothing was done; press again"
    ESCAPE = "right after Esc, on this line, keys may be pieces of others: nothing was done, press again"


class KeyPress(msgspec.Struct, Generic[Event]):
    """A key press at ``at`` (seconds), with the event of the caller. A press with a ``refusal`` must be ignored."""

    key: str
    at: float
    event: Event
    refusal: Refusal | None = None


class KeyGuard(Generic[Event]):
    """Delays key presses that change more than the view until it is certain that a hand made them.

    A burst is known only when it is over, so such a press waits ``BURST_SECONDS``; later presses wait behind it, to
    keep their order. Times are seconds of one monotonic clock.

    Args:
        has_effect: whether a key, pressed now, would change more than the view.
    """

    def __init__(self, has_effect: Callable[[str], bool]) -> None:
        self._has_effect = has_effect
        self._recent: deque[float] = deque(maxlen=BURST_KEYS)
        self._held: deque[KeyPress[Event]] = deque()
        self._escaped_at = float("-inf")
        self._burst_at = float("-inf")  # the last key of the last burst
        self._last_at = float("-inf")
        self._dialog_at = float("-inf")  # when a dialog opened or closed
        self._refuses_all = False  # since then also keys that only change the view
        self._burst_count = 0  # consecutive keys within BURST_SECONDS of the key before

    def press(self, key: str, at: float, event: Event) -> bool:
        """Add a key that arrived at ``at``. Return False if the key is dropped as part of a flood."""
        self._burst_count = self._burst_count + 1 if at - self._last_at <= BURST_SECONDS else 1
        self._last_at = at
        if self._burst_count > FLOOD_KEYS:
            self._burst_at = at
            return False
        self._recent.append(at)
        self._held.append(KeyPress(key, at, event))
        if len(self._recent) == BURST_KEYS and at - self._recent[0] <= BURST_SECONDS:
            for press in reversed(self._held):
                if at - press.at > BURST_SECONDS or (press.refusal and press.at < at):
                    break
                press.refusal = Refusal.BURST
            self._burst_at = at
        elif at - self._burst_at < CALM_SECONDS:
            self._held[-1].refusal = Refusal.BURST
        return True

    def dialog_changed(self, at: float, *, refuses_all: bool) -> None:
        """A dialog opened or closed at ``at``: refuse keys until a person can have seen that.

        ``refuses_all``: also keys that only change the view, such as marks.
        """
        self._dialog_at, self._refuses_all = at, refuses_all

    def ready(self, now: float) -> Iterator[KeyPress[Event]]:
        """Yield the presses that need not wait longer at ``now``, in order.

        Each press is checked only when the caller asks for it: the press before may have changed what a key does.
        """
        while self._held:
            press = self._held[0]
            has_effect = self._has_effect(press.key)
            if has_effect and now < press.at + BURST_SECONDS:
                return
            self._held.popleft()
            if not has_effect:
                press.refusal = None
            elif press.refusal is None and 0 <= press.at - self._escaped_at < ESCAPE_SECONDS:
                press.refusal = Refusal.ESCAPE
            if press.at - self._dialog_at < UNSEEN_SECONDS and (has_effect or self._refuses_all):
                press.refusal = press.refusal or Refusal.UNSEEN
            if press.key == "escape":
                self._escaped_at = press.at
            yield press

    def due(self) -> float | None:
        """The time at which the next delayed press is ready; None without delayed presses."""
        return self._held[0].at + BURST_SECONDS if self._held else None
