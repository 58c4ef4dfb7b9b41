"""What ``y`` copies to the clipboard of the operator's own machine: a name, an error, a command line, a summary."""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.domain.events import Event
from ..keys.actions import shell_line
from ..model.board import Board
from ..model.journal import command_line
from ..present.summary import incident
from ..screens.choice_dialog import Option
from ..screens.console import ConsoleHost
from ..terminal.clipboard import copied_part
from ..text.event_text import sentence
from ..text.pieces import Role
from ..text.text import one_line
from .operator import Acts

_OPTION_CELLS = 48


class Copying:
    """One for each console."""

    def __init__(self, console: ConsoleHost, acts: Acts) -> None:
        self._console = console
        self._acts = acts

    def copy(self, subject: object) -> None:
        """Copy what says an event again; else ask which text about the selected task."""
        board = self._console.live.board
        if isinstance(subject, Event):
            self._copy_event(subject)
        elif board is not None:
            texts = dict(self._texts(board))
            options = [Option(word, word, one_line(text)[:_OPTION_CELLS]) for word, text in texts.items()]
            self._acts.choose("Copy", options, lambda word: self._copy(word, texts[word]))

    @property
    def _target(self) -> str:
        return self._console.way.state_path or self._console.address

    def _copy_event(self, event: Event) -> None:
        """The command line that does the same; of what is no act, the sentence."""
        command = command_line(event, self._target)
        text = command or one_line(f"{event.task or ''} {sentence(event)}")
        self._console.copy_to_clipboard(text)
        what = "command line" if command else "sentence"
        self._console.show_message(f"{what} sent to the terminal's clipboard: {text}")

    def _texts(self, board: Board) -> Iterator[tuple[str, str]]:
        console, name = self._console, self._console.selected
        if name is not None:
            row = board.row(name)
            yield "name", name
            if row.error:
                yield "error", row.error
            if row.failure_fingerprint:
                yield "fingerprint", row.failure_fingerprint
            line = shell_line("requeue", self._target, board.fold.run.run_id, [name], "after a fix")
            if line is not None:
                yield "command", line
        yield "summary", incident(board, console.address, console.live.now_us)

    def _copy(self, word: str, text: str) -> None:
        self._console.copy_to_clipboard(text)
        whole, part = len(text.encode("utf-8", "replace")), len(copied_part(text).encode())
        if part < whole:
            said = f"{word}: the first {part:,} of {whole:,} bytes, as much as terminals take"
            self._console.show_message(said, Role.WARNING)
        else:
            self._console.show_message(f"{word} sent to the terminal's clipboard ({whole:,} bytes, by OSC 52)")
