"""From a key to an act and back: what is asked first, what is sent, and what is said of the answer.

One task that needs a human is acted on at once, with a grace during which ``z`` takes it back; many tasks, or what
cannot be taken back, are asked about with the exact list, and that list is what is sent. Nothing on the screen changes
here: the events do that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engine.core.cause_history import BY_KEY, noted
from ...engine.domain.acts import STOPPABLE, UNDOABLE
from ...engine.domain.command import DONE, Answer, Command, Target
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, NEEDS_HUMAN, TaskState
from ...engine.errors import RedriveError
from ...engine.statefile import queries
from ...engine.statefile.queries import EventRow
from ..model.board import Board
from ..model.inbox import causes_of, targets_of
from ..model.journal import event_of
from ..model.preview import PREVIEWS, Preview
from ..present.answers import answer_line, lines_of_results, refusals
from ..present.header import since
from ..screens.choice_dialog import Choice, Option
from ..screens.console import ConsoleHost
from ..screens.text_dialog import Reading
from ..sessions.open import actor
from ..text.durations import clock
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..text.wrapping import folded
from ..widgets.dialog import Dialog, Question, Reply
from . import confirmations

GRACE_SECONDS = 5  # between the requeue of one task and its start
SPREAD_ABOVE = 20  # more requeues than this start one by one
RATE_PER_SECOND = 5.0
ANSWER_SECONDS = 8.0
SECOND_US = 1_000_000
DIALOG_COLUMNS = 76
_DIALOG_FRAME_COLUMNS = 5
_JOURNAL_ROWS = 100
_NOTES_SHOWN = 2

#: How much more time can be given by key; any other from the shell.
_EXTENSIONS = (
    Option("600", "10 minutes"),
    Option("1800", "30 minutes"),
    Option("3600", "1 hour"),
    Option("10800", "3 hours"),
)

_SNOOZES = (
    Option("3600", "In an hour"),
    Option("900", "In a quarter of an hour"),
    Option("14400", "In four hours"),
    Option("43200", "In twelve hours"),
)

Targets = tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Grace:
    """An act that has not begun to work yet. ``until``: microseconds UTC over there."""

    command_id: str
    said: str
    until: int


class Acts:
    """What the keys of operators lead to. One for each console."""

    def __init__(self, console: ConsoleHost) -> None:
        self._console = console
        self._grace: Grace | None = None

    # --- The acts -------------------------------------------------------------------------------------------------

    def requeue(self, names: Sequence[str]) -> None:
        """Run again: one that needs a human at once, all others after a look at the list."""
        board = self.ready_for(names)
        if board is None:
            return
        preview = PREVIEWS["requeue"](board, names, is_abandoned=not self._console.health.executor_alive)
        if self._is_refused(preview, preview.run_again or preview.unblocked):
            return
        targets = targets_of(board, names)
        if len(names) == 1 and board.row(names[0]).state in ENDED_BADLY:  # nothing runs, and nothing below has run
            self.send("requeue", targets, BY_KEY, {"not_before": GRACE_SECONDS}, self._begin_grace)
            return
        spread = len(names) > SPREAD_ABOVE
        options = {"rate_per_second": RATE_PER_SECOND} if spread else {}
        question = confirmations.of_preview(
            preview, board, self.key_of("requeue"), self._console.glyphs, RATE_PER_SECOND if spread else None
        )
        careful = {"canary": True, "rate_per_second": RATE_PER_SECOND}
        if len(names) > 1 and all(board.row(name).state in NEEDS_HUMAN for name in names):
            question = confirmations.with_canary(question, RATE_PER_SECOND)
        self.ask(question, lambda reply: self.send("requeue", targets, BY_KEY, careful if reply.other else options))

    def skip(self, names: Sequence[str]) -> None:
        """Permit the failure, with a reason."""
        board = self.ready_for(names)
        if board is None:
            return
        preview = PREVIEWS["skip"](board, names, is_abandoned=not self._console.health.executor_alive)
        if self._is_refused(preview, preview.skipped):
            return
        targets = targets_of(board, names)
        question = confirmations.of_preview(preview, board, self.key_of("skip"), self._console.glyphs)

        def skip(reply: Reply) -> None:
            options = {"substitute": json.loads(reply.value)} if reply.value else {}
            self.send("skip", targets, reply.reason, options)

        self.ask(question, skip)

    def stop(self, names: Sequence[str]) -> None:
        """End running attempts, or cancel what waits."""
        board = self.ready_for(names)
        if board is None:
            return
        if not any(board.row(name).state in STOPPABLE for name in names):
            self.complain("there is nothing to stop: it has ended")
        else:
            targets = targets_of(board, names)
            question = confirmations.of_stop(names, board, self.key_of("stop_task"), self._console.glyphs)
            self.ask(question, lambda reply: self.send("cancel", targets, reply.reason))

    def hurry(self, names: Sequence[str]) -> None:
        """Do not wait for the instant of a retry or of a sensor's next look."""
        board = self.ready_for(names)
        if board is None:
            return
        targets = targets_of(board, names)
        if len(names) == 1:
            self.send("hurry", targets, BY_KEY)
        else:
            question = confirmations.of_hurry(names, board, self.key_of("hurry"), self._console.glyphs)
            self.ask(question, lambda reply: self.send("hurry", targets, BY_KEY))

    def extend(self, names: Sequence[str]) -> None:
        """Give running attempts more time, once."""
        board = self.ready_for(names)
        if board is None:
            return
        if not any(board.row(name).state is TaskState.RUNNING for name in names):
            self.complain("there is nothing to extend: it does not run")
            return
        targets = targets_of(board, names)
        title = f"More time for {confirmations.named(names)}"
        self.choose(title, _EXTENSIONS, lambda seconds: self.send("extend", targets, BY_KEY, {"seconds": int(seconds)}))

    def acknowledge(self, names: Sequence[str]) -> None:
        """Seen: page no more for these."""
        board = self.ready_for(names)
        if board is not None:
            self.send("ack", targets_of(board, names))

    def snooze(self, names: Sequence[str]) -> None:
        """Page again later."""
        board = self.ready_for(names)
        if board is not None:
            targets = targets_of(board, names)
            title = f"Page again for {confirmations.named(names)}"
            self.choose_time(title, lambda seconds: self.send("snooze", targets, "", {"seconds": seconds}))

    def note(self, names: Sequence[str]) -> None:
        """Write on the cause of these what the next one who is called for it should know."""
        board = self.ready_for(names)
        if board is None:
            return
        causes = causes_of(board, names)
        if len(causes) != 1:
            many = f"these failed for {len(causes)} causes: a note is about one"
            self.complain(many if causes else "nothing failed here: a note is about a failure")
            return
        (cause,) = causes
        memory, now_us = self._console.memory.of(cause.key), self._console.live.now_us
        facts = [noted(note, now_us) for note in memory.notes[:_NOTES_SHOWN]] if memory is not None else []
        about = {"fingerprint": cause.fingerprint, "downstream": cause.downstream}
        question = confirmations.of_note(cause, facts, self.key_of("note"))
        self.ask(question, lambda reply: self.send("note", (), "", {**about, "text": reply.value}))

    def pause(self) -> None:
        """Start nothing more, or start tasks again."""
        board = self.ready_for(None)
        if board is not None:
            self.send("unpause" if board.fold.run.paused_since is not None else "pause", (), BY_KEY)

    def stop_run(self, how: str) -> None:
        """End the executor: ``drain`` after the running tasks, ``now`` with them."""
        if self.ready_for(None) is not None:
            self.send("stop", (), BY_KEY, {"how": how})

    # --- Undo -----------------------------------------------------------------------------------------------------

    def undo(self) -> None:
        """Take back what the footer counts down; else ask about the last act that can be taken back."""
        if self.ready_for(None) is None:
            return
        if self._grace is not None:
            grace, self._grace = self._grace, None
            self.send("undo", (), BY_KEY, {"command": grace.command_id})
        else:
            self._console.run_worker(self._find_undo, group="undo", exclusive=True)

    async def _find_undo(self) -> None:
        board = self._console.live.board
        assert board is not None
        try:
            rows = await self._console.live.session.query(
                queries.JOURNAL, run_id=board.fold.run.run_id, acts=1, limit=_JOURNAL_ROWS
            )
        except RedriveError as error:
            self.complain(str(error))
            return
        act = last_undoable(rows)
        if act is None:
            self.complain("there is no act of this run that can be taken back")
            return
        event, acted = act
        when = since(event.at, self._console.live.now_us)
        what = f"{acted.act} by {event.actor} {when} ago ({acted.answer.get('message')})"
        question = confirmations.of_undo(what, list(acted.was), self.key_of("undo"))
        self.ask(question, lambda reply: self.send("undo", (), BY_KEY, {"command": event.command_id}))

    def _begin_grace(self, command: Command, answer: Answer) -> None:
        name = command.targets[0][0]
        until = self._console.live.now_us + GRACE_SECONDS * SECOND_US
        self._grace = Grace(command.id, f"{one_line(name)} requeued", until)
        self.tick(self._console.live.now_us)

    def tick(self, now_us: int) -> None:
        """Count the grace down, where there is one."""
        grace = self._grace
        if grace is None:
            return
        left = grace.until - now_us
        if left <= 0:
            self._grace = None
            return
        glyphs = self._console.glyphs
        said = f"{glyphs.done} {grace.said} {glyphs.dot} starts in {clock(left + SECOND_US - 1)} {glyphs.dot} "
        line = [Piece(said), Piece(self._console.keymap.label("undo"), Role.KEY), Piece(" takes it back")]
        self._console.say(line, left / SECOND_US)

    # --- Asking ---------------------------------------------------------------------------------------------------

    def ready_for(self, names: Sequence[str] | None) -> Board | None:
        """The board, if there is something to act on and nothing forbids it; says what does."""
        board, locked = self._console.live.board, self._console.locked
        if board is None or (names is not None and not names):
            self.complain("nothing is selected")
        elif locked is not None:
            self.complain(f"{locked}: nothing was done")
        else:
            return board
        return None

    def _is_refused(self, preview: Preview, effect: Sequence[str]) -> bool:
        if not effect:
            name, sentence = preview.refused[0] if preview.refused else ("", f"there is nothing to {preview.act}")
            self.complain(f"{name}: {sentence}" if name else sentence)
        return not effect

    def ask(self, question: Question, act: Callable[[Reply], object]) -> None:
        """Ask, and act on a yes."""

        def replied(reply: Reply | None) -> None:
            if reply is not None and reply.accepted:
                act(reply)

        room = min(self._console.size.width, DIALOG_COLUMNS) - _DIALOG_FRAME_COLUMNS
        facts = [line for fact in question.facts for line in folded(fact, room)]
        self._console.push_screen(Dialog(replace(question, facts=facts)), replied)

    def choose(self, title: str, options: Sequence[Option], act: Callable[[str], None]) -> None:
        """Let the operator pick one of a few; the first is the default."""

        def chosen(value: str | None) -> None:
            if value is not None:
                act(value)

        self._console.push_screen(Choice([Piece(one_line(title), Role.TITLE)], options), chosen)

    def choose_time(self, title: str, act: Callable[[int], None]) -> None:
        """Let the operator pick when pages may come again, in seconds from now."""
        self.choose(title, _SNOOZES, lambda seconds: act(int(seconds)))

    def key_of(self, action: str) -> str | None:
        """The key that leads to an action, as Textual names it."""
        keys = self._console.keymap.of(action)
        return keys[0] if keys else None

    def complain(self, sentence: str) -> None:
        """Say why nothing was done."""
        self._console.show_message(sentence, Role.WARNING, ANSWER_SECONDS)

    # --- Sending --------------------------------------------------------------------------------------------------

    def send(
        self,
        act: str,
        targets: Targets,
        reason: str = "",
        options: Mapping[str, Any] | None = None,
        then: Callable[[Command, Answer], None] | None = None,
    ) -> None:
        """Send one command; the answer is said, and ``then`` called if the act was done."""
        board = self._console.live.board
        assert board is not None
        run_id = board.fold.run.run_id
        command = Command(uuid.uuid4().hex, act, run_id, targets, actor(), reason, dict(options or {}))
        self._console.run_worker(self._deliver(command, then), group="acts")

    async def _deliver(self, command: Command, then: Callable[[Command, Answer], None] | None) -> None:
        try:
            session = self._console.acting_session or self._console.live.session
            answer = await session.send(command)
        except RedriveError as error:
            self.complain(str(error))
            return
        for task, word, _ in answer.results:
            if word == DONE:
                self._console.acted(task)
        if answer.ok and then is not None:
            then(command, answer)
        else:
            self._tell(answer)

    def _tell(self, answer: Answer) -> None:
        glyphs = self._console.glyphs
        self._console.say(answer_line(answer.ok, answer.message, answer.results, glyphs), ANSWER_SECONDS)
        if len(refusals(answer.results)) > 1:
            title: Line = [Piece(one_line(answer.message), Role.TITLE)]
            self._console.push_screen(Reading(title, lines_of_results(answer.results, glyphs)))


def last_undoable(rows: Sequence[EventRow]) -> tuple[Event, OperatorActed] | None:
    """The latest act in rows of the journal (oldest first) that changed something and was not taken back."""
    undone: set[str] = set()
    for event in map(event_of, rows[::-1]):
        acted = event.payload
        if not isinstance(acted, OperatorActed) or not acted.answer.get("ok"):
            continue
        if acted.act == "undo":
            undone.add(str(acted.options.get("command")))
        elif acted.act in UNDOABLE and (acted.was or acted.was_run) and event.command_id not in undone:
            return event, acted
    return None
