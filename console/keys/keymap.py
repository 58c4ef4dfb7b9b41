"""Which key does what: the defaults of ``actions``, changed by one file; and which key presses are not a person's.

The file is ``keys.toml`` in the user's configuration folder::

    requeue = "e"              # one key, or a list of keys
    quit = ["q", "ctrl+q"]
    force = ["requeue"]        # yes, on an unsafe key

A line that is cut by the network can turn an arrow key into ``D`` and F3 into ``R``. What changes state therefore sits
only on keys that end no escape sequence, and never acts inside a burst faster than a hand.
"""

from __future__ import annotations

import tomllib
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import platformdirs

from ...engine.errors import RedriveError
from .actions import ACTIONS, Effect, Place

#: Characters that end or fill an escape sequence or an answer of some terminal: arrows, keypad, focus, mouse, F1-F4,
#: Shift-Tab, modes, the kitty protocol, and the keys of rxvt.
SEQUENCE_CHARACTERS = frozenset("ABCDEFHIMOPQRSZcmnRtuy~^$@[]<>?;:=!0123456789")
#: Keys that are pressed by reflex, or eaten by shells, multiplexers, terminals and input methods.
REFLEX_KEYS = frozenset({"enter", "tab", "shift+tab", "space", "escape", "backspace", "delete", "up", "down"})
TAKEN_KEYS = frozenset(
    f"ctrl+{key}" for key in ("a", "b", "c", "d", "h", "i", "j", "m", "q", "s", "z", "space", "backslash")
) | {"f10", "f11"}

BURST_KEYS = 4
BURST_SECONDS = 0.03
ESCAPE_SECONDS = 0.15
CALM_SECONDS = 0.3  # after a burst: what comes now may be the end of the same paste, held up on its way
FLOOD_KEYS = 200  # a burst goes no further than this; the rest of it is not even looked at

_NAMES = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
_EDITING_KEYS = ("enter", "escape", "space", "tab", "backspace", "delete", "insert")
_MOVING_KEYS = ("home", "end", "pageup", "pagedown", "up", "down", "left", "right")
_LONG_KEYS = frozenset({*_EDITING_KEYS, *_MOVING_KEYS, *(f"f{number}" for number in range(1, 25))})
_MODIFIERS = frozenset({"ctrl", "shift", "alt"})


class KeyMapError(RedriveError):
    """The file of keys cannot be used as it stands. One line for each thing that is wrong."""


def key_name(key: str) -> str:
    """The name that Textual gives a key: ``?`` is ``question_mark``, ``G`` stays ``G``. Long names pass unchanged."""
    if len(key) != 1 or key.isalnum():
        return key
    if key == " ":
        return "space"
    name = unicodedata.name(key, key).lower().replace("-", "_").replace(" ", "_")
    return _NAMES.get(name, name)


def key_label(name: str) -> str:
    """How a key is written in the footer and in help: ``question_mark`` is ``?``, ``ctrl+l`` is ``^l``."""
    if name in _LABELS:
        return _LABELS[name]
    if name.startswith("ctrl+"):
        return f"^{key_label(name[5:])}"
    return _CHARACTERS.get(name, name)


_CHARACTERS = {key_name(chr(code)): chr(code) for code in range(0x21, 0x7F)}
_LABELS = {
    "enter": "Enter",
    "escape": "Esc",
    "space": "Space",
    "tab": "Tab",
    "shift+tab": "S-Tab",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
}


def why_unsafe(name: str) -> str | None:
    """Why nothing that changes state may sit on this key; None if it may."""
    character = _CHARACTERS.get(name)
    if character is not None and character in SEQUENCE_CHARACTERS:
        return "a broken escape sequence can fake it"
    if name in REFLEX_KEYS:
        return "it is pressed without looking"
    if name in TAKEN_KEYS or name.startswith("alt+"):
        return "shells, multiplexers or terminals take it"
    return None if character is not None else "only plain characters are safe for what changes state"


@dataclass(frozen=True, slots=True)
class KeyMap:
    """The keys of every action, by the names that Textual gives keys."""

    keys: Mapping[str, tuple[str, ...]]

    def of(self, action: str) -> tuple[str, ...]:
        """The keys of an action, the one to be shown first."""
        return self.keys.get(action, ())

    def label(self, action: str) -> str:
        """The key to be shown for an action; "" if it has none."""
        keys = self.of(action)
        return key_label(keys[0]) if keys else ""

    def guarded(self, place: Place | None = None) -> frozenset[str]:
        """Keys that do more than look there; by default, anywhere."""
        acting = (one for one in ACTIONS if one.effect > Effect.LOOK and (place is None or place in one.places))
        return frozenset(key for action in acting for key in self.of(action.name))

    def for_textual(self) -> dict[str, str]:
        """For ``App.set_keymap``: the ids of bindings are the names of actions. Those that were moved alone: Textual
        applies the whole map to every binding in reach, twice for each key that is pressed."""
        moved = (name for name, keys in self.keys.items() if keys != DEFAULT_KEYS.of(name))
        return {name: ",".join(self.keys[name]) for name in moved}


DEFAULT_KEYS = KeyMap({action.name: tuple(map(key_name, action.keys)) for action in ACTIONS})


def key_file() -> Path:
    """Where the user's keys are."""
    return Path(platformdirs.user_config_path("redrive", appauthor=False)) / "keys.toml"


def load_keys(path: Path | None = None) -> KeyMap:
    """The defaults, changed by the file if there is one.

    Raises:
        KeyMapError: it cannot be read, names unknown actions or keys, gives one key two meanings in one place, or puts
            a change of state on an unsafe key without ``force``.
    """
    path = path or key_file()
    try:
        with open(path, "rb") as file:
            chosen = tomllib.load(file)
    except FileNotFoundError:
        return DEFAULT_KEYS
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KeyMapError(f"{path} cannot be read: {error}") from error
    forced = chosen.pop("force", [])
    keymap, problems = _apply(chosen)
    problems += _clashes(keymap) + _unsafe(keymap, set(forced) if isinstance(forced, list) else set())
    if problems:
        raise KeyMapError("\n".join(f"{path}: {problem}" for problem in problems))
    return keymap


def _apply(chosen: Mapping[str, object]) -> tuple[KeyMap, list[str]]:
    keys = dict(DEFAULT_KEYS.keys)
    problems = []
    for action, value in chosen.items():
        listed = [value] if isinstance(value, str) else value
        if action not in keys:
            problems.append(f"there is no action {action!r}; :keys lists them")
        elif not isinstance(listed, list) or not all(isinstance(key, str) for key in listed):
            problems.append(f"{action} needs a key or a list of keys")
        else:
            problems += [f"{action}: there is no key {key!r}" for key in listed if not _is_key(key)]
            keys[action] = tuple(map(key_name, listed))
    return KeyMap(keys), problems


def _is_key(key: str) -> bool:
    if len(key) == 1:
        return key.isprintable()
    *modifiers, last = key.split("+")
    known = last in _LONG_KEYS or last in _CHARACTERS or (len(last) == 1 and last.isprintable())
    return known and set(modifiers) <= _MODIFIERS


def _clashes(keymap: KeyMap) -> list[str]:
    taken: dict[tuple[Place, str], str] = {}
    problems: dict[str, None] = {}
    for action in ACTIONS:
        for key in keymap.of(action.name):
            for place in action.places:
                other = taken.setdefault((place, key), action.name)
                if other != action.name:
                    problems[f"{key_label(key)} would be both {other} and {action.name}"] = None
    return list(problems)


def _unsafe(keymap: KeyMap, forced: set[str]) -> list[str]:
    return [
        f"{action.name} changes state and must not be on {key_label(key)}: {why} (or list it under force)"
        for action in ACTIONS
        if action.effect is Effect.CHANGE and action.name not in forced
        for key in keymap.of(action.name)
        if (why := why_unsafe(key))
    ]


class Refusal(Enum):
    """Why a key press did nothing."""

    BURST = "keys came faster than a hand types: nothing was done, press again"
    ESCAPE = "right after Esc, on this line, keys may be pieces of others: nothing was done, press again"


@dataclass(slots=True)
class Press:
    """A key press: ``token`` is what the caller gave with it; with a ``refusal`` it must do nothing."""

    key: str
    at: float
    token: Any = None
    refusal: Refusal | None = None


class KeyGuard:
    """Holds back presses that do more than look until it is clear that a hand made them.

    A burst is known only when it is over, so such a press waits for ``BURST_SECONDS``; what is pressed behind it waits
    with it, to stay in order. Instants are seconds of one monotonic clock.

    Args:
        acts: whether a key, pressed now, would do more than look.
    """

    def __init__(self, acts: Callable[[str], bool]) -> None:
        self._acts = acts
        self._recent: deque[float] = deque(maxlen=BURST_KEYS)
        self._held: deque[Press] = deque()
        self._escaped_at = float("-inf")
        self._burst_at = float("-inf")  # the last key of the last burst
        self._last_at = float("-inf")
        self._run = 0  # keys so far of which none came later than a burst after the one before

    def press(self, key: str, at: float, token: object = None) -> bool:
        """A key arrived at ``at``. False: it is dropped, as the rest of a flood."""
        self._run = self._run + 1 if at - self._last_at <= BURST_SECONDS else 1
        self._last_at = at
        if self._run > FLOOD_KEYS:
            self._burst_at = at
            return False
        self._recent.append(at)
        self._held.append(Press(key, at, token))
        if len(self._recent) == BURST_KEYS and at - self._recent[0] <= BURST_SECONDS:
            for press in reversed(self._held):
                if at - press.at > BURST_SECONDS or (press.refusal and press.at < at):
                    break
                press.refusal = Refusal.BURST
            self._burst_at = at
        elif at - self._burst_at < CALM_SECONDS:
            self._held[-1].refusal = Refusal.BURST
        return True

    def ready(self, now: float) -> Iterator[Press]:
        """What may go on by ``now``, in order. Each is decided only when it is asked for: the one before may have
        changed what a key means."""
        while self._held:
            press = self._held[0]
            acts = self._acts(press.key)
            if acts and now < press.at + BURST_SECONDS:
                return
            self._held.popleft()
            if not acts:
                press.refusal = None
            elif press.refusal is None and 0 <= press.at - self._escaped_at < ESCAPE_SECONDS:
                press.refusal = Refusal.ESCAPE
            if press.key == "escape":
                self._escaped_at = press.at
            yield press

    def due(self) -> float | None:
        """When to ask again; None if nothing is held back."""
        return self._held[0].at + BURST_SECONDS if self._held else None
