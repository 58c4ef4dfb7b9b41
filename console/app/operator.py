"""The acts of operators on tasks and runs: confirmation, command, and the message with the answer.

The one task under the cursor is requeued without a question if it needs a human, with a grace period during which ``z``
undoes it, unless it may have happened: then the question says what to check first. Acts on many tasks, on a task that
is not under the cursor, and acts that cannot be undone are confirmed with the exact list of tasks, which is then sent.
The screen changes only by the events of the act.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ...engine.core.causes import DEFAULT_REASON, describe_note
from ...engine.core.projection import is_operator_act
from ...engine.core.waiting import waits_for_approval
from ...engine.domain import acts
from ...engine.domain.acts import DONE, STARTS_WORK, ActPreview, Answer, Command, Target
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, PAUSED_NOTE
from ...engine.domain.text import counted, first_names, format_duration, format_seconds
from ...engine.errors import NoAnswerError, RedriveError
from ...engine.statefile import lists
from ..keys.actions import ANSWERS, BY_NAME
from ..keys.keymap import keys_of, shown_key
from ..model.board import Board
from ..model.inbox import causes_of, is_sole_cause, targets_of
from ..model.preview import latest_redrive, preview_requeue, preview_skip, progress_of, refusal
from ..model.replay import last_undoable
from ..present.act_results import answer_line, describe_past_act, redrive_line, refusals, result_lines
from ..present.tasks import RunContext
from ..screens.console import run_latest
from ..screens.dialogs import ChoiceOption, TextDialog, choose
from ..sessions.session import Session, listed_events, new_command, unanswered
from ..text.figures import clock
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.dialog import Dialog, Question, Reply, ask
from . import confirmations
from .confirmations import GRACE_SECONDS
from .executor_start import ExecutorStarter
from .views import ViewConsole

SPREAD_ABOVE = 20  # more requeues than this start one by one
RATE_PER_SECOND = 5.0
LATE_SECONDS = 3  # of an answer, until it is said to be missing
ANSWER_SECONDS = 8.0  # the message with an answer stays visible
SECOND_US = 1_000_000
_JOURNAL_ROWS = 100
_NOTES_SHOWN = 2


def _for_seconds(before: str, *choices: int) -> tuple[ChoiceOption, ...]:
    """Durations to choose from, the best first. The command line takes any."""
    return tuple(ChoiceOption(str(seconds), f"{before}{format_seconds(seconds)}") for seconds in choices)


_EXTENSIONS = _for_seconds("", 600, 1800, 3600, 10800)
_DEADLINES = (*_for_seconds("in ", 3600, 1800, 10800), ChoiceOption("", "none"))
SNOOZES = _for_seconds("in ", 3600, 900, 14400, 43200)


class TaskAct(NamedTuple):
    """An act on tasks after a question.

    Attributes:
        question: of the tasks.
        is_quick: whether it is done without the question on the task under the cursor.
        reason: if the operator gives none.
    """

    question: Callable[[Sequence[str], RunContext], Question]
    is_quick: bool = False
    reason: str = DEFAULT_REASON


TASK_ACTS: Mapping[str, TaskAct] = {
    "approve": TaskAct(partial(confirmations.answer_question, "approve")),
    "reject": TaskAct(partial(confirmations.answer_question, "reject")),
    "stop_task": TaskAct(confirmations.stop_question),
    "hurry": TaskAct(confirmations.hurry_question, is_quick=True),
    "acknowledge": TaskAct(confirmations.acknowledge_question, is_quick=True, reason=""),
}


class TimedAct(NamedTuple):
    """An act on tasks for so many seconds, which are chosen. ``words``: of the question, before the tasks."""

    words: str
    options: Sequence[ChoiceOption]
    reason: str


TIMED_ACTS: Mapping[str, TimedAct] = {
    "extend": TimedAct("More time for", _EXTENSIONS, DEFAULT_REASON),
    "snooze": TimedAct("Page again for", SNOOZES, ""),
}

Targets = tuple[Target, ...]
Item = TypeVar("Item")


class GracePeriod(msgspec.Struct, frozen=True):
    """A requeue that can still be undone. ``until_us``: microseconds UTC by the clock of the run's host.

    ``holders``: the dead letters that hold all of its tasks; empty if one may start.
    """

    command_id: str
    message: str
    until_us: int
    holders: tuple[str, ...]


class SentAct(NamedTuple):
    """A command without an answer. ``sent_at``: monotonic seconds."""

    command: Command
    sent_at: float

    @property
    def words(self) -> str:
        """The act and its tasks."""
        return f"{self.command.act} {confirmations.named([one.task for one in self.command.targets])}".rstrip()


class OperatorActions:
    """The controller of acts on tasks and runs; each console has one."""

    def __init__(self, console: ViewConsole, monotonic: Callable[[], float]) -> None:
        self._console = console
        self._monotonic = monotonic
        self.executor = ExecutorStarter(console)
        self._sent: dict[str, SentAct] = {}  # by the id of the command, the oldest first
        self._goes_on = False  # the act that is about to be sent gets an executor
        self._grace: GracePeriod | None = None
        self._redrive: Event | None = None  # the latest requeue of several tasks
        self._acts: Sequence[Event] = ()  # the latest acts of this run, the oldest first

    # --- The acts -------------------------------------------------------------------------------------------------

    def act_on_tasks(self, act: Callable[[Board, Sequence[str]], None]) -> None:
        """Begin an act on the selected tasks, if there are any and changes are allowed; else say why not."""
        names = self._console.console_screen.target_tasks()
        board = self.actionable_board(names)
        if board is not None:
            act(board, names)

    def act_on_run(self, act: Callable[[Board], None]) -> None:
        """Begin an act on the run, if changes are allowed; else say why not."""
        board = self.actionable_board(None)
        if board is not None:
            act(board)

    def requeue(self, board: Board, names: Sequence[str]) -> None:
        """Requeue: one task that needs a human at once, other tasks after a confirmation."""
        preview = preview_requeue(board, names, is_abandoned=self.is_abandoned)
        if self._is_refused("requeue", board, names, preview):
            return
        targets = targets_of(board, names)
        # the eye is on it, and no descendant runs or has run
        is_plain = self._is_at_cursor(names) and board.row(names[0]).state in ENDED_BADLY
        holders = () if preview.startable else tuple(dict.fromkeys(chain(*preview.holders.values())))
        begin_grace = partial(self._begin_grace, holders)
        if is_plain and not self.executor.can_be_started and not set(preview.notes).difference([PAUSED_NOTE]):
            self.send("requeue", targets, DEFAULT_REASON, {"not_before": GRACE_SECONDS}, begin_grace)
            return
        is_spread = len(names) > SPREAD_ABOVE
        options = _requeue_options(board, names)

        def requeue(reply: Reply) -> None:
            if reply.is_alternative:
                options["canary"] = True
            if is_spread or reply.is_alternative:
                options["rate_per_second"] = float(reply.values[0]) if is_spread else RATE_PER_SECOND
            self.send("requeue", targets, DEFAULT_REASON, options, None if reply.is_alternative else begin_grace)

        question = confirmations.requeue_question(
            preview, self._run_context(board), names, _key_of("requeue"), RATE_PER_SECOND, is_spread=is_spread
        )
        self._confirm_for(names, "requeue", question, requeue)

    def skip(self, board: Board, names: Sequence[str]) -> None:
        """Skip the tasks, with a reason."""
        preview = preview_skip(board, names, is_abandoned=self.is_abandoned)
        if self._is_refused("skip", board, names, preview):
            return
        targets = targets_of(board, names)

        def skip(reply: Reply) -> None:
            options = {"substitute": json.loads(reply.values[0])} if reply.values else {}
            self.send("skip", targets, reply.reason, options)

        self._confirm_for(
            names, "skip", confirmations.preview_question("skip", preview, self._run_context(board)), skip
        )

    def act(self, action: str, board: Board, names: Sequence[str]) -> None:
        """Do an act of ``TASK_ACTS``."""
        task_act, act = TASK_ACTS[action], BY_NAME[action].act
        assert act is not None
        if self._is_refused(act, board, names):
            return
        is_answer = action in ANSWERS.values()
        asked = [name for name in names if waits_for_approval(board.row(name))] if is_answer else names
        send = partial(self.send, act, targets_of(board, asked))
        if task_act.is_quick and self._is_at_cursor(names):
            send(task_act.reason)
        else:
            question = task_act.question(asked, self._run_context(board))
            self._confirm_for(names, action, question, lambda reply: send(reply.reason or task_act.reason))

    def act_for_seconds(self, action: str, board: Board, names: Sequence[str]) -> None:
        """Do an act of ``TIMED_ACTS``."""
        timed_act = TIMED_ACTS[action]
        if self._is_refused(action, board, names):
            return
        targets, warning = targets_of(board, names), confirmations.hidden_warning(self._hidden_names(names))

        def act(seconds: str) -> None:
            self.send(action, targets, timed_act.reason, {"seconds": int(seconds)})

        choose(self._console, f"{timed_act.words} {confirmations.named(names)}", timed_act.options, act, warning)

    def note(self, board: Board, names: Sequence[str]) -> None:
        """Write a note on the cause of these tasks, for the next operator who is paged for it."""
        causes = causes_of(board, names)
        if len(causes) != 1:
            many = f"these tasks failed for {len(causes)} causes: choose one of them for the note"
            self.show_warning(many if causes else "a note belongs to a failure, and nothing failed here")
            return
        (cause,) = causes
        history, now_us = self._console.cause_histories.get(cause.key), self._console.live.now_us
        facts = [describe_note(note, now_us) for note in history.notes[:_NOTES_SHOWN]] if history is not None else []
        about = {"fingerprint": cause.fingerprint, "downstream": cause.downstream}
        question = confirmations.note_question(cause, facts)
        self._confirm_for(
            names, "note", question, lambda reply: self.send("note", (), "", {**about, "text": reply.values[0]})
        )

    def pause(self, board: Board) -> None:
        is_paused = board.projection.run.paused_since is not None
        self.send("unpause" if is_paused else "pause", (), "", on_done=self._show_who_goes_on)

    def _show_who_goes_on(self, command: Command, answer: Answer) -> None:
        """Show the answer; after an unpause without an executor also what makes the run go on."""
        absence = self._console.runner.absence if command.act == "unpause" else ""
        parts = filter(None, (answer.message, absence))
        self._show_answer(answer._replace(message=f" {self._console.glyphs.dot} ".join(parts)))

    def postpone(self, board: Board) -> None:
        """Give the run another deadline, or none."""

        def postpone(seconds: str) -> None:
            self.send("postpone", (), DEFAULT_REASON, {"seconds": int(seconds)} if seconds else {})

        choose(self._console, "The new deadline of the run", _DEADLINES, postpone)

    def reload_code(self, board: Board) -> None:
        """Have the executor load changed source files."""
        self.send("reload", (), DEFAULT_REASON)

    def stop_run(self, how: str) -> None:
        """Stop the executor: ``drain`` after the running tasks, ``now`` with them."""
        if self.actionable_board(None) is not None:
            self.send("stop", (), DEFAULT_REASON, {"how": how})

    # --- Undo -----------------------------------------------------------------------------------------------------

    def undo(self, board: Board) -> None:
        """Undo the requeue whose grace period is shown; else ask whether to undo the last act that can be undone."""
        if self._grace is not None:
            grace, self._grace = self._grace, None
            self.send("undo", (), DEFAULT_REASON, {"command": grace.command_id})
        else:
            run_latest(self._console, partial(self._find_undo, board), "undo")

    @property
    def can_undo(self) -> bool:
        """Whether an act of this run can be taken back, by what is known here."""
        act, board = last_undoable(self._acts), self._console.live.board
        return act is not None and board is not None and _undone_names(*act, board) is not None

    async def _find_undo(self, board: Board) -> None:
        act = last_undoable(await _latest_acts(board, self._console.live.session))
        if act is None:
            self.show_warning("there is no act of this run that can be undone")
            return
        event, acted = act
        names = _undone_names(event, acted, board)
        if names is None:
            when = format_duration(self._console.live.now_us - event.at)
            self.show_warning(f"too late: what the last {acted.act} ({when} ago) let start has started")
            return
        question = confirmations.undo_question(describe_past_act(event, acted, self._console.live.now_us), names)
        self.confirm(
            "undo", question, lambda reply: self.send("undo", (), DEFAULT_REASON, {"command": event.command_id})
        )

    def _begin_grace(self, holders: tuple[str, ...], command: Command, answer: Answer) -> None:
        if refusals(answer.results):
            self._show_answer(answer)
            return
        name = command.targets[0][0] if len(command.targets) == 1 else counted(len(command.targets), "task")
        until = self._console.live.now_us + GRACE_SECONDS * SECOND_US
        self._grace = GracePeriod(command.id, f"{one_line(name)} requeued", until, holders)
        self.tick(self._console.live.now_us, yields=False)

    def on_board_replaced(self, board: Board) -> None:
        """Find a redrive that another or an earlier console has started."""
        self._redrive, self._acts = None, ()
        # without a connection, the header shows no progress
        find = partial(self._find_redrive, board, self._console.live.session)
        run_latest(self._console, find, "redrive", shows_errors=False)

    async def _find_redrive(self, board: Board, session: Session) -> None:
        self.on_events(await _latest_acts(board, session))

    def on_events(self, events: Sequence[Event]) -> None:
        """Follow the latest requeue of several tasks, and acts whose answer is missing."""
        event = latest_redrive(events)
        if event is not None:
            self._redrive = event
        self._acts = [*self._acts, *filter(is_operator_act, events)][-_JOURNAL_ROWS:]
        for event in events:
            self._sent.pop(event.command_id or "", None)  # what has happened needs no answer

    def redrive_line(self) -> Line:
        """The progress of the redrive that is under way; empty if there is none."""
        console, board, event = self._console, self._console.live.board, self._redrive
        if board is None or event is None or console.live.is_past or not isinstance(event.payload, OperatorActed):
            return []
        progress = progress_of(event.payload, board)
        if progress.is_over or board.projection.run.ended_at is not None:
            return []
        return redrive_line(progress, console.live.now_us, console.runner, console.size.width, console.glyphs)

    @property
    def unanswered(self) -> Sequence[SentAct]:
        """The acts that were sent and may have been done, the oldest first."""
        return [*self._sent.values()]

    def unanswered_lines(self) -> list[str]:
        """For each of them, how to ask what became of it."""
        session = self._console.live.session
        lost = ((one, NoAnswerError(f"no answer for {self._seconds_since(one)} s")) for one in self.unanswered)
        return [str(unanswered(one.command, session, error)) for one, error in lost]

    def _seconds_since(self, sent_act: SentAct) -> int:
        return int(self._monotonic() - sent_act.sent_at)

    def tick(self, now_us: int, *, yields: bool = True) -> None:
        """Show which act has no answer, else the rest of the grace period, if there is one.

        ``yields``: why another key did nothing stays visible before it.
        """
        late = [one for one in self.unanswered if self._seconds_since(one) >= LATE_SECONDS]
        if late:
            words = first_names(late, 1, lambda one: one.words)
            sentence = f"{words}: sent, no answer for {self._seconds_since(late[0])} s"
            self._console.show_line([Piece(one_line(sentence), Role.WARNING)], ANSWER_SECONDS, yields=yields)
            return
        grace = self._grace
        if grace is None:
            return
        left = grace.until_us - now_us
        if left <= 0:
            self._grace = None
            return
        glyphs = self._console.glyphs
        when = self._start_of(grace, f"starts in {clock(left + SECOND_US - 1).strip()}")
        text = f"{glyphs.done} {grace.message} {glyphs.dot} {when} {glyphs.dot} "
        line = [Piece(text), Piece(shown_key("undo"), Role.KEY), Piece(" takes it back")]
        self._console.show_line(line, left / SECOND_US, yields=yields)

    def _start_of(self, grace: GracePeriod, countdown: str) -> str:
        """The wait of a requeued task, which only a human may end; else the countdown to its start."""
        console, board = self._console, self._console.live.board
        if board is not None and board.projection.run.paused_since is not None:
            return f"the run is paused: {shown_key('pause')} unpauses"
        if grace.holders:
            return f"held by {confirmations.named(grace.holders)}"
        absence = console.runner.absence
        return "an executor starts" if absence and self.executor.is_expected else absence or countdown

    # --- Asking ---------------------------------------------------------------------------------------------------

    def actionable_board(self, names: Sequence[str] | None) -> Board | None:
        """The board; None, with a warning, if ``names`` is empty or if changes are not allowed."""
        board, locked = self._console.live.board, self._console.lock_reason
        if board is None or (names is not None and not names):
            self.show_warning(self._console.console_screen.selection_problem)
        elif locked is not None:
            self.show_warning(f"{locked}: nothing was done")
        else:
            return board
        return None

    def actionable_item(
        self, subject: object, kind: type[Item], what: str, refusal_of: Callable[[Item], str | None]
    ) -> Item | None:
        """The item under the cursor if an act can change it; else say why not. ``what``: it is called."""
        if not isinstance(subject, kind):
            self.show_warning(f"select a {what} first")
        elif self.actionable_board(None) is not None:
            refused = refusal_of(subject)
            if refused is None:
                return subject
            self.show_warning(refused)
        return None

    @property
    def is_abandoned(self) -> bool:
        """Whether no executor lives: acts are decided under the lock of the state file."""
        return not self._console.live.status.executor.alive

    def _is_refused(self, act: str, board: Board, names: Sequence[str], preview: ActPreview | None = None) -> bool:
        """Whether an act would change none of the tasks; then show why. Their pages answer for themselves."""
        if acts.BY_NAME[act].scope is acts.Scope.PAGES:
            return False
        why = refusal(preview, board, act, names, is_abandoned=self.is_abandoned)
        if why is not None:
            self.show_warning(why)
        return why is not None

    def _run_context(self, board: Board) -> RunContext:
        console = self._console
        return RunContext(board, console.live.now_us, console.glyphs, runner=console.runner, columns=console.size.width)

    def _is_at_cursor(self, names: Sequence[str]) -> bool:
        """Whether the tasks are the one under the cursor, in sight: only that is acted on without a question."""
        return list(names) == [self._console.console_screen.task_at_cursor()]

    def _hidden_names(self, names: Sequence[str]) -> list[str]:
        shown = self._console.console_screen.visible_tasks()
        return [name for name in names if name not in shown]

    def _confirm_for(
        self, names: Sequence[str], action: str, question: Question, act: Callable[[Reply], object]
    ) -> None:
        """Ask a question about tasks, which names those that are out of sight; also about the executor that makes what
        the act lets go on, where none is there."""
        question = confirmations.with_hidden(question, self._hidden_names(names))
        if self.executor.can_be_started and BY_NAME[action].act in STARTS_WORK:
            run_latest(self._console, partial(self._confirm_with_executor, names, action, question, act), "resume")
        else:
            self.confirm(action, question, act)

    async def _confirm_with_executor(
        self, names: Sequence[str], action: str, question: Question, act: Callable[[Reply], object]
    ) -> None:
        """Ask about an act and an executor; about the act alone, and say why, if none can be started."""
        run_again = names if action == "requeue" else ()
        try:
            plan = await self.executor.plan(trusted=self.executor.is_trusted, run_again=run_again)
            why = plan.doubts[0] if plan.doubts else ""
        except RedriveError as error:
            plan, why = None, str(error)
        if plan is None or why:
            self.confirm(action, confirmations.without_executor(question, why), act)
            return

        def go_on(reply: Reply) -> None:
            self._goes_on = True
            act(reply)

        self.confirm(action, confirmations.with_executor(question, plan), go_on)

    def confirm(self, action: str, question: Question, act: Callable[[Reply], object]) -> None:
        """Ask a question, and call ``act`` if the operator accepts. ``action``: what led to it."""
        self._console.console_screen.key_bar.clear_message()  # what led here has been said
        ask(self._console, Dialog(replace(question, trigger=_key_of(action))), act)

    def show_warning(self, sentence: str) -> None:
        """Show why nothing was done."""
        self._console.show_warning(sentence, ANSWER_SECONDS)

    # --- Sending --------------------------------------------------------------------------------------------------

    def send(
        self,
        act: str,
        targets: Targets,
        reason: str = "",
        options: Mapping[str, object] | None = None,
        on_done: Callable[[Command, Answer], None] | None = None,
        run_id: str | None = None,
    ) -> None:
        """Send a command about ``run_id``; None: the run that is followed.

        If the act was done, call ``on_done``; without it, or on a refusal, show the answer.
        """
        board = self._console.live.board
        assert board is not None
        run_id = run_id or board.projection.run.run_id
        command = new_command(act, run_id, targets, reason, options or {})
        goes_on, self._goes_on = self._goes_on, False
        deliver = self._deliver(command, self._console.live.session, on_done, goes_on=goes_on)
        self._console.run_worker(deliver, group="acts")

    async def _deliver(
        self, command: Command, session: Session, on_done: Callable[[Command, Answer], None] | None, *, goes_on: bool
    ) -> None:
        self._sent[command.id] = SentAct(command, self._monotonic())
        self.executor.expected_run_id = command.run_id if goes_on else None
        try:
            answer = await session.send(command)
        except RedriveError as error:
            self.executor.expected_run_id = None
            if not isinstance(error, NoAnswerError):
                del self._sent[command.id]
            self.show_warning(str(error))
            return
        self._sent.pop(command.id, None)
        for task, word, _ in answer.results:
            if word == DONE:
                self._console.handle_task_act(task)
        if not answer.ok:
            self.executor.expected_run_id = None
        if answer.ok and on_done is not None:
            on_done(command, answer)
        else:
            self._show_answer(answer)
        if answer.ok and (problem := await self.executor.start_after(command, is_confirmed=goes_on)):
            self.show_warning(f"{answer.message}; {problem}")

    def _show_answer(self, answer: Answer) -> None:
        glyphs = self._console.glyphs
        self._console.show_line(answer_line(answer.ok, answer.message, answer.results, glyphs), ANSWER_SECONDS)
        if len(refusals(answer.results)) > 1:
            self._console.push_screen(TextDialog(answer.message, result_lines(answer.results, glyphs)))


def _key_of(action: str) -> str | None:
    """Textual's name of the first key of an action; None if it has no key."""
    return next(iter(keys_of(action)), None)


def _requeue_options(board: Board, names: Sequence[str]) -> dict[str, object]:
    """The options of a confirmed requeue; with the fingerprint, for the journal, if ``names`` are all of one cause."""
    options: dict[str, object] = {"not_before": GRACE_SECONDS}
    causes = causes_of(board, names)
    if len(causes) == 1 and set(causes[0].tasks) == set(names) and is_sole_cause(board, causes[0]):
        options["fingerprint"] = causes[0].fingerprint
    return options


async def _latest_acts(board: Board, session: Session) -> Sequence[Event]:
    run_id = board.projection.run.run_id
    return await listed_events(session, lists.JOURNAL, run_id=run_id, acts=1, limit=_JOURNAL_ROWS)


def _undone_names(event: Event, acted: OperatorActed, board: Board) -> Sequence[str] | None:
    """The tasks that an undo of an act would change; None if all that it changed has started since, or one below."""

    def has_started(name: str) -> bool:
        near = (board.projection.tasks.get(one) for one in (name, *board.dag.children(name)))
        return any(row is not None and (row.started_at or 0) > event.at for row in near)

    names = [name for name in acted.was if name in board.projection.tasks and not has_started(name)]
    return names if names or not acted.was else None
