"""Everything that can be done on a screen, by its name: the palette, help, and the list of all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ..keys.actions import ACTIONS, BY_NAME, MOVES, Action, Effect, actions_of
from ..keys.keymap import key_file, key_label
from ..screens.console import ConsoleHost
from ..screens.palette import CommandPalette, Entry
from ..screens.text_dialog import Reading, columns_within
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad
from ..text.wrapping import folded
from . import theme
from .time_travel import SPEEDS

_KEYS_CELLS = 9

_REPLAYED = "Play the night, from here or from its beginning, {} times as fast."

_WHAT_IF = "The night under another policy, from here on: what-if max_attempts=5 jitter=full."
_WORDED = {"at": "The run as it was then: 03:12, or an event's number.", "what-if": _WHAT_IF}

_GOING = frozenset(["open", "back", "quit", "details", "output", "why", "next_pane", "previous_pane"])
_FINDING = frozenset(["filter", "next", "previous", "palette", "help", "sort", "copy"])


def _changes(action: Action) -> bool:
    return action.effect > Effect.LOOK and action.name != "quit"


def _goes(action: Action) -> bool:
    return action.name in _GOING or action.name.startswith("view_")


def _finds(action: Action) -> bool:
    return action.name in _FINDING


def _shows(action: Action) -> bool:
    return not (_changes(action) or _goes(action) or _finds(action) or action in MOVES)


#: The headings of help, and what stands under each.
_HELP: tuple[tuple[str, Callable[[Action], bool]], ...] = (
    ("Change the run", _changes),
    ("Go", _goes),
    ("Find", _finds),
    ("Show", _shows),
    ("Move", lambda action: action in MOVES),
)


class Commands:
    """One for each console.

    Args:
        worded: what commands call that end in a word of the operator's own, by their first word.
    """

    def __init__(self, console: ConsoleHost, worded: Mapping[str, Callable[[str], None]]) -> None:
        self._console = console
        self._worded = worded
        self._history: list[str] = []

    def help(self) -> None:
        """The keys that work here."""
        lines: list[Line] = [[], *self._help_lines()]
        self._console.push_screen(Reading([Piece("Keys that work here", Role.TITLE)], lines))

    def _help_lines(self) -> Iterator[Line]:
        keymap, columns = self._console.keymap, columns_within(self._console.size.width)
        for heading, chosen in _HELP:
            actions = [action for action in self._possible() if chosen(action) and keymap.of(action.name)]
            if actions:
                yield [Piece(heading, Role.STRONG)]
                for action in actions:
                    keys = " ".join(key_label(key) for key in keymap.of(action.name))
                    line = [Piece(f"  {pad(keys, _KEYS_CELLS)} ", Role.KEY), Piece(action.help)]
                    yield from folded(line, columns, _KEYS_CELLS + 3)
                yield []

    def list_keys(self) -> None:
        """Every key, and the file that changes them."""
        keymap = self._console.keymap
        lines: list[Line] = [[Piece(f"Changed by {key_file()}", Role.DIM)], []]
        for action in ACTIONS:
            keys = " ".join(key_label(key) for key in keymap.of(action.name))
            lines.append(
                [Piece(f"{pad(action.name, 18)} "), Piece(pad(keys, 14), Role.KEY), Piece(action.help, Role.DIM)]
            )
        self._console.push_screen(Reading([Piece("All keys", Role.TITLE)], lines))

    def palette(self, text: str = "") -> None:
        """Run any command by its name; ``text`` is typed already."""
        keymap = self._console.keymap
        entries = [
            Entry(action.name, action.name.replace("_", " "), action.help, keymap.label(action.name))
            for action in self._possible()
            if action not in MOVES
        ]
        entries += [Entry("quit", "q", BY_NAME["quit"].help)]
        entries += [Entry(f"theme:{name}", f"theme {name}", theme.about(name)) for name in theme.names()]
        entries += [Entry(f"replay:{speed}", f"replay {speed}x", _REPLAYED.format(speed)) for speed in SPEEDS]
        entries.append(Entry("what-if:", "what-if", _WHAT_IF))

        def chosen(value: str | None) -> None:
            if value is not None:
                self._history.append(value.replace(":", " ", 1) if ":" in value else value.replace("_", " "))
                self._console.run_worker(partial(self._run, value), group="palette", exclusive=True)

        self._console.push_screen(CommandPalette(entries, self._history, text, _with_words), chosen)

    async def _run(self, value: str) -> None:
        command, colon, argument = value.partition(":")
        if colon and command in self._worded:
            self._worded[command](argument)
            return
        action = BY_NAME[value]
        handler = self._console.handler_of(action)
        if handler is not None:
            await self._console.handle(action, handler)

    def _possible(self) -> list[Action]:
        """What can be done on the screen that is seen."""
        console = self._console
        return [action for action in actions_of(console.place) if console.handler_of(action) is not None]


def _with_words(text: str) -> Entry | None:
    """What is typed as ``at 03:12``, or ``what-if max_attempts=5``."""
    word, _, words = text.strip().partition(" ")
    if word not in _WORDED:
        return None
    return Entry(f"{word}:{words.strip()}", one_line(text.strip()), _WORDED[word])
