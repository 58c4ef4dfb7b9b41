"""The command palette, help, and the list of all keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from .. import manual
from ..keys.actions import ACTIONS, BY_NAME, MOVE_ACTIONS, Action, ActionEffect, actions_of
from ..keys.keymap import key_file, key_label
from ..present.manual import page_lines
from ..present.states import legend_lines
from ..present.timeline.task_texts import bar_entries
from ..screens.choice_dialog import ChoiceDialog, ChoiceOption
from ..screens.console import ConsoleHost, errors_shown
from ..screens.palette import CommandPalette, PaletteEntry
from ..screens.text_dialog import TextDialog, columns_within
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad
from ..text.wrapping import wrap
from . import theme
from .time_travel import SPEEDS

_KEYS_CELLS = 9

_REPLAY_HELP = "Play the run, from here or from its start, {} times as fast."
_WHAT_IF_HELP = "The run under another policy, from here on: what-if max_attempts=5 jitter=full."
#: Commands with an argument that the operator types -> help.
_ARGUMENT_HELP = {
    "at": "Show the run as it was at a time: 03:12, or an event's number.",
    "manual": "The page of the manual about this topic.",
    "save-filter": "Save the filter of this list under a name: save-filter slow loads.",
    "what-if": _WHAT_IF_HELP,
}

_NAVIGATION = frozenset(["open", "back", "quit", "details", "output", "why", "next_pane", "previous_pane"])
_SEARCHING = frozenset(["filter", "filter_states", "filters", "next", "previous", "palette", "help", "sort", "copy"])


def _changes(action: Action) -> bool:
    return action.effect > ActionEffect.NONE and action.name not in _NAVIGATION


def _navigates(action: Action) -> bool:
    return action.name in _NAVIGATION or action.name.startswith("view_")


def _searches(action: Action) -> bool:
    return action.name in _SEARCHING


def _shows(action: Action) -> bool:
    return not (_changes(action) or _navigates(action) or _searches(action) or action in MOVE_ACTIONS)


#: The headings of help -> which actions belong there.
_HELP: tuple[tuple[str, Callable[[Action], bool]], ...] = (
    ("Change the run", _changes),
    ("Go", _navigates),
    ("Find", _searches),
    ("Show", _shows),
    ("Move", lambda action: action in MOVE_ACTIONS),
)


class CommandMenu:
    """The controller of palette and help; each console has one.

    Args:
        argument_commands: the handlers of commands with an argument, by the first word of the command.
    """

    def __init__(self, console: ConsoleHost, argument_commands: Mapping[str, Callable[[str], None]]) -> None:
        self._console = console
        self._argument_commands = argument_commands
        self._history: list[str] = []

    def help(self) -> None:
        """Show what the signs mean, and the keys of the visible screen."""
        glyphs = self._console.glyphs
        lines: list[Line] = [
            *legend_lines(glyphs, columns_within(self._console.size.width), bar_entries(glyphs)),
            [],
            [Piece("Explanations are in the manual:"), Piece(" :manual", Role.KEY)],
            [],
            *self._help_lines(),
        ]
        self._console.push_screen(TextDialog([Piece("Signs, and the keys that work here", Role.TITLE)], lines))

    def _help_lines(self) -> Iterator[Line]:
        keymap, columns = self._console.keymap, columns_within(self._console.size.width)
        for heading, chosen in _HELP:
            actions = [action for action in self._available() if chosen(action) and keymap.keys_of(action.name)]
            if actions:
                yield [Piece(heading, Role.STRONG)]
                for action in actions:
                    keys = " ".join(key_label(key) for key in keymap.keys_of(action.name))
                    name = Piece(f"{action.name.replace('_', ' ')}: ", Role.DIM)
                    line = [Piece(f"  {pad(keys, _KEYS_CELLS)} ", Role.KEY), name, Piece(action.help)]
                    yield from wrap(line, columns, _KEYS_CELLS + 3)
                yield []

    def list_keys(self) -> None:
        """Show the keys of all actions, and the file that changes them."""
        keymap = self._console.keymap
        lines: list[Line] = [[Piece(f"Changed by {key_file()}", Role.DIM)], []]
        for action in ACTIONS:
            keys = " ".join(key_label(key) for key in keymap.keys_of(action.name))
            lines.append(
                [Piece(f"{pad(action.name, 18)} "), Piece(pad(keys, 14), Role.KEY), Piece(action.help, Role.DIM)]
            )
        self._console.push_screen(TextDialog([Piece("All keys", Role.TITLE)], lines))

    def manual(self, topic: str = "") -> None:
        """Show a page of the manual; without a topic, let the operator choose one."""
        if topic:
            self._show_page(topic)
            return
        options = [ChoiceOption(one.name, one.name, one.summary) for one in manual.load_topics()]

        def chosen(name: str | None) -> None:
            if name is not None:
                self._show_page(name)

        self._console.push_screen(ChoiceDialog([Piece("Manual", Role.TITLE)], options), chosen)

    def _show_page(self, name: str) -> None:
        with errors_shown(self._console):
            page = manual.load_topic(name)
            self._console.push_screen(TextDialog([Piece(page.name, Role.TITLE)], page_lines(page.text)))

    def palette(self, text: str = "") -> None:
        """Open the palette with ``text`` in its input."""
        keymap = self._console.keymap
        entries = [
            PaletteEntry(action.name, action.name.replace("_", " "), action.help, keymap.label(action.name))
            for action in self._available()
            if action not in MOVE_ACTIONS
        ]
        entries += [PaletteEntry("quit", "q", BY_NAME["quit"].help)]
        entries += [
            PaletteEntry(f"theme:{name}", f"theme {name}", theme.theme_description(name))
            for name in theme.theme_names()
        ]
        entries += [PaletteEntry(f"replay:{speed}", f"replay {speed}x", _REPLAY_HELP.format(speed)) for speed in SPEEDS]
        entries.append(PaletteEntry("what-if:", "what-if", _WHAT_IF_HELP))
        entries.append(PaletteEntry("save-filter:", "save-filter", _ARGUMENT_HELP["save-filter"]))
        entries.append(PaletteEntry("shot:", "shot", "Save the screen as SVG and as text in the current folder."))

        def chosen(value: str | None) -> None:
            if value is not None:
                self._history.append(value.replace(":", " ", 1) if ":" in value else value.replace("_", " "))
                self._console.run_worker(partial(self._run, value), group="palette", exclusive=True)

        self._console.push_screen(CommandPalette(entries, self._history, text, _argument_entry), chosen)

    async def _run(self, value: str) -> None:
        command, colon, argument = value.partition(":")
        if colon and command in self._argument_commands:
            self._argument_commands[command](argument)
            return
        action = BY_NAME[value]
        handler = self._console.handler_of(action)
        if handler is not None:
            await self._console.handle(action, handler)

    def _available(self) -> list[Action]:
        """The actions that have a handler on the visible screen."""
        console = self._console
        return [action for action in actions_of(console.screen_name) if console.handler_of(action) is not None]


def _argument_entry(text: str) -> PaletteEntry | None:
    """The entry for a typed command with an argument, as ``at 03:12``; None for other texts."""
    word, _, words = text.strip().partition(" ")
    if word not in _ARGUMENT_HELP:
        return None
    return PaletteEntry(f"{word}:{words.strip()}", one_line(text.strip()), _ARGUMENT_HELP[word])
