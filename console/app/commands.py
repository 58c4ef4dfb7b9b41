"""The command palette, help and themes; copies to the clipboard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ..keys.actions import BY_HEADING, BY_NAME, MOVE_ACTIONS, Action, actions_of, shell_line
from ..keys.keymap import keys_of, shown_key
from ..model.replay import command_line
from ..present.runs import incident_summary
from ..present.states import legend_lines
from ..screens.console import run_latest
from ..screens.dialogs import ChoiceOption, CommandPalette, TextDialog, choose, help_lines
from ..terminal.driver import truncated_to_clipboard
from ..text.event_text import describe_event
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, sanitize_lines, shorten
from ..widgets.dialog import ask
from . import theme
from .views import ViewConsole

_AT_HELP = "Show the run as it was at a time: 03:12, or an event's number."


class CommandMenu:
    """The controller of palette, help and themes; each console has one. ``to_time``: what ``at`` calls."""

    def __init__(self, console: ViewConsole, to_time: Callable[[str], None]) -> None:
        self._console = console
        self._argument_commands = {"theme": self.use_theme, "at": to_time}

    def help(self) -> None:
        """Show the keys of the visible screen, and what the signs mean."""
        glyphs, available, legend = self._console.glyphs, self._available(), self._console.console_screen.legend()

        def lines(columns: int) -> Sequence[Line]:
            return [
                *self._help_lines(available, columns),
                *legend_lines(glyphs, columns, legend),
                [],
                [Piece("Explanations are in the manual: redrive help")],
            ]

        self._console.push_screen(TextDialog("The keys that work here, and the signs", lines))

    def _help_lines(self, available: Collection[Action], columns: int) -> Iterator[Line]:
        for heading, group in BY_HEADING.items():
            if actions := [one for one in group if one in available and keys_of(one.name)]:
                yield [Piece(heading, Role.STRONG)]
                yield from help_lines(actions, columns)
                yield []

    def use_theme(self, name: str) -> None:
        """Use a theme now and in later consoles."""
        message, role = f"theme {name}", Role.TEXT
        try:
            self._console.use_theme(theme.load_theme(name))
            theme.save_choice(name)
        except RedriveError as error:
            message, role = str(error), Role.WARNING
        except OSError as error:
            message, role = f"theme {name}; the choice could not be saved: {error.strerror}", Role.WARNING
        self._console.show_message(message, role)

    def palette(self, text: str = "") -> None:
        """Open the palette with ``text`` in its input."""
        entries = [
            ChoiceOption(action.name, action.name.replace("_", " "), action.help, shown_key(action.name))
            for action in self._available()
            if action not in MOVE_ACTIONS and self._console.console_screen.is_offered(action)
        ]
        entries += [ChoiceOption("quit", "q", BY_NAME["quit"].help)]
        entries += [
            ChoiceOption(f"theme:{name}", f"theme {name}", theme.load_theme(name).description)
            for name in theme.theme_names()
        ]
        palette = CommandPalette(entries, text, _argument_entry)
        ask(self._console, palette, lambda value: run_latest(self._console, partial(self._run, value), "palette"))

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
        console = self._console
        return [action for action in actions_of(console.console_screen.PLACE) if console.handler_of(action) is not None]


def _argument_entry(text: str) -> ChoiceOption | None:
    """The entry for a typed command with an argument, as ``at 03:12``; None for other texts."""
    word, _, words = text.strip().partition(" ")
    if word != "at":
        return None
    return ChoiceOption(f"at:{words.strip()}", one_line(text.strip()), _AT_HELP)


# --- Copies an error, a command line or a summary to the clipboard of the operator's machine -------------------------


_OPTION_CELLS = 48


class Copying:
    """The controller of the clipboard; each console has one."""

    def __init__(self, console: ViewConsole) -> None:
        self._console = console

    def copy(self, subject: object, names: Sequence[str]) -> None:
        """Copy ``subject`` if it is an event; else let the operator choose a text about the tasks."""
        console = self._console
        board, session, ssh_arguments = console.live.board, console.live.session, console.live.session.ssh_arguments
        if isinstance(subject, Event):
            command = command_line(subject, self._target, ssh_arguments)
            text = command or one_line(f"{subject.task or ''} {describe_event(subject)}")
            self._copy("command line" if command else "sentence", text)
        elif board is not None:
            texts = {"summary": incident_summary(board, session.address, console.live.now_us, console.runner)}
            if names:
                run_id, reason = board.projection.run.run_id, "after a fix"
                line = shell_line("requeue", self._target, run_id, names, reason, ssh_arguments=ssh_arguments)
                error = board.row(names[0]).error
                texts = {**({"error": error} if error else {}), "command": line or "", **texts}
            more = console.glyphs.more
            starts = {word: shorten(one_line(text), _OPTION_CELLS, more) for word, text in texts.items()}
            options = [ChoiceOption(word, word, start) for word, start in starts.items()]
            choose(console, "Copy", options, lambda word: self._copy(word, texts[word]))

    @property
    def _target(self) -> str:
        return self._console.launch.state_path or self._console.live.session.address

    def _copy(self, word: str, text: str) -> None:
        text = sanitize_lines(text)
        self._console.copy_to_clipboard(text)
        whole, part = len(text.encode("utf-8", "replace")), len(truncated_to_clipboard(text).encode())
        if part < whole:
            message = f"{word}: the first {part:,} of {whole:,} bytes, as much as terminals take"
            self._console.show_warning(message)
        else:
            self._console.show_message(f"{word} sent to the terminal's clipboard ({whole:,} bytes, by OSC 52)")
