"""Copies a name, an error, a command line or a summary to the clipboard of the operator's machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.domain.events import Event
from ..keys.shell_lines import shell_line
from ..model.board import Board
from ..model.journal import command_line
from ..present.summary import incident_summary
from ..screens.choice_dialog import ChoiceOption
from ..screens.console import ConsoleHost
from ..terminal.clipboard import truncated_to_clipboard
from ..text.event_text import describe_event
from ..text.pieces import Role
from ..text.text import one_line, sanitize, sanitize_lines
from .operator import OperatorActions

_OPTION_CELLS = 48


class Copying:
    """The controller of the clipboard; each console has one."""

    def __init__(self, console: ConsoleHost, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions

    def copy(self, subject: object, names: Sequence[str]) -> None:
        """Copy ``subject`` if it is an event; else let the operator choose a text about the tasks."""
        board = self._console.live.board
        if isinstance(subject, Event):
            self._copy_event(subject)
        elif board is not None:
            texts = dict(self._texts(board, names))
            options = [ChoiceOption(word, word, one_line(text)[:_OPTION_CELLS]) for word, text in texts.items()]
            self._actions.choose("Copy", options, lambda word: self._copy(word, texts[word]))

    @property
    def _target(self) -> str:
        return self._console.launch.state_path or self._console.address

    def _copy_event(self, event: Event) -> None:
        """Copy the command line of an act, or the sentence of another event."""
        command = command_line(event, self._target)
        text = command or one_line(f"{event.task or ''} {describe_event(event)}")
        self._console.copy_to_clipboard(text)
        what = "command line" if command else "sentence"
        self._console.show_message(f"{what} sent to the terminal's clipboard: {text}")

    def _texts(self, board: Board, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        console = self._console
        if names:
            row = board.row(names[0])
            yield "name", "\n".join(map(sanitize, names))
            if row.error:
                yield "error", row.error
            if row.failure_fingerprint:
                yield "fingerprint", row.failure_fingerprint
            line = shell_line("requeue", self._target, board.projection.run.run_id, names, "after a fix")
            if line is not None:
                yield "command", line
        yield "summary", incident_summary(board, console.address, console.live.now_us)

    def _copy(self, word: str, text: str) -> None:
        text = sanitize_lines(text)
        self._console.copy_to_clipboard(text)
        whole, part = len(text.encode("utf-8", "replace")), len(truncated_to_clipboard(text).encode())
        if part < whole:
            message = f"{word}: the first {part:,} of {whole:,} bytes, as much as terminals take"
            self._console.show_message(message, Role.WARNING)
        else:
            self._console.show_message(f"{word} sent to the terminal's clipboard ({whole:,} bytes, by OSC 52)")
