"""The questions that confirm acts, with their consequences and the exact list of tasks or rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from ...engine.core.breaker import BreakerStatus
from ...engine.core.projection import TaskRow
from ...engine.core.views import Sign, row_style
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.acts import BY_NAME, NOTE_CHARACTERS_MAX, ActPreview
from ...engine.domain.rows import RunSummary
from ...engine.domain.states import NEEDS_HUMAN, OPEN
from ...engine.domain.text import counted, first_names, format_seconds
from ..keys.keymap import shown_key
from ..model.board import Board
from ..model.inbox import InboxCause
from ..model.preview import lost_tasks
from ..present.preview import consequences
from ..present.states import sign_of
from ..present.tasks import RunContext, TaskNames
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad, shared_prefix
from ..widgets.dialog import PromptField, Question

if TYPE_CHECKING:
    from ...engine.executor.resume_plan import ResumePlan

GRACE_SECONDS = 5  # between a requeue and the first start
TYPED_ABOVE = 20  # acts on more tasks than this are confirmed by typing their number
_NAMED_MAX = 3
_BESIDE_NAME_CELLS, _NAME_CELLS_MIN = 18, 16  # of a list in a dialog: the frame, sign and word; the name


def named(names: Sequence[str]) -> str:
    """The first names, and the number of further ones."""
    return first_names(names, _NAMED_MAX, one_line)


def hidden_warning(hidden: Sequence[str]) -> str:
    """The tasks of an act that the screen does not show; empty if it shows all of them."""
    return f"Not in sight now: {named(hidden)}." if hidden else ""


def with_hidden(question: Question, hidden: Sequence[str]) -> Question:
    """``question`` with the warning about what is not in sight."""
    if not hidden:
        return question
    return replace(question, facts=[[Piece(hidden_warning(hidden), Role.WARNING)], *question.facts])


def requeue_question(
    preview: ActPreview,
    context: RunContext,
    names: Sequence[str],
    trigger: str | None,
    rate_per_second: float,
    *,
    is_spread: bool,
) -> Question:
    """The question before a requeue: asks for a rate if it is spread, offers a canary if all ``names`` need a human.

    ``trigger``: the key of the act, which the canary cannot have.
    """
    question = preview_question("requeue", preview, context, rate_per_second if is_spread else None)
    if is_spread:
        question = _with_rate(question, rate_per_second)
    if len(names) > 1 and all(context.board.row(name).state in NEEDS_HUMAN for name in names):
        question = _with_canary(replace(question, trigger=trigger), rate_per_second)
    return question


def preview_question(act: str, preview: ActPreview, context: RunContext, rate: float | None = None) -> Question:
    """The question before a requeue or a skip. ``rate``: starts per second if they are spread."""
    asked = (preview.run_again if act == "requeue" else preview.skipped) or preview.unblocked
    count, facts = len(asked), [*_facts(preview, asked)]
    if rate is not None:
        seconds = format_seconds(round(count / rate))
        facts.append(f"The first in {GRACE_SECONDS}s, then {rate:g} a second: about {seconds} in all.")
    return replace(
        _question_of_tasks(
            BY_NAME[act].verb.capitalize(),
            asked,
            context,
            facts,
            f"{act} {count:,}" if count > 1 else act,
            reason="required" if act == "skip" else "none",
        ),
        values=[_SUBSTITUTE] if preview.needed_by else (),
        enter_accepts=act != "requeue",
    )


def _json_problem(text: str) -> str | None:
    if not text:
        return "A value is needed in its place."
    try:
        json.loads(text)
    except ValueError:
        return 'That is not JSON: write 42, {"rows": 0}, null, or "a text" in quotes.'
    return None


_SUBSTITUTE = PromptField("Instead: ", 'JSON: 42, {"rows": 0}, "a text"', problem=_json_problem)


def _with_rate(question: Question, rate: float) -> Question:
    """``question`` with a field for the starts per second."""
    shown = f"{rate:g}"
    return replace(question, values=[PromptField("Starts per second: ", shown, shown, "0123456789.", _rate_problem)])


def _rate_problem(text: str) -> str | None:
    if not text:
        return "Type how many may start per second."
    try:
        return None if float(text) > 0 else "Type a number above 0."
    except ValueError:
        return "Type a number, as 5 or 0.5."


def _with_canary(question: Question, rate: float) -> Question:
    """``question`` with a second choice: a canary first, and the others when it has succeeded."""
    key = next(key for key in "oc" if key not in (question.yes_key, question.trigger))
    fact = f"Or one first: the others follow when it has succeeded, {rate:g} a second."
    return replace(question, facts=[*question.facts, fact], alternative=(key, "one first"))


def _facts(preview: ActPreview, asked: Sequence[str]) -> Iterator[str]:
    """The effects of the act, without those on all of the ``asked`` tasks, which are listed."""
    yield from (f"{note[:1].upper()}{note[1:]}." for note in preview.notes)
    if preview.needed_by:
        name, child = preview.needed_by[0]
        more = f", and {len(preview.needed_by) - 1:,} more are needed" if len(preview.needed_by) > 1 else ""
        yield f"{one_line(child)} requires the result of {one_line(name)}{more}: type a substitute."
    prefix = shared_prefix([one_line(name) for name in asked], least=2)  # said above the list
    for words, names in consequences(preview):
        if len(names) != len(asked) or set(names) != set(asked):
            shown = named([one_line(name).removeprefix(prefix) for name in names])
            yield f"{counted(len(names), 'task')} {words}: {shown}."
    if refused := preview.refused:
        name, _, sentence = refused[0]
        yield f"{len(refused)} not possible: {one_line(name)}, {sentence}."


def _task_lines(names: Sequence[str], context: RunContext) -> list[Line]:
    """The exact list: no two names read alike. What all begin with stands once, above them."""
    known = TaskNames(names, shared_prefix([one_line(name) for name in names], least=2))
    cells = max(min(known.longest, context.columns - _BESIDE_NAME_CELLS), _NAME_CELLS_MIN)
    head: list[Line] = [[Piece(f"All begin with {known.prefix}", Role.DIM)]] if known.prefix else []
    return [*head, *(_task_line(name, known.short(name, cells, context.glyphs.more), cells, context) for name in names)]


def _task_line(name: str, shown: str, name_cells: int, context: RunContext) -> Line:
    row = context.board.row(name)
    style = row_style(row, context.runner)
    return [
        sign_of(style, context.glyphs),
        Piece(f" {pad(shown, name_cells)}  "),
        Piece(style.word, style.role),
        Piece(f"  {one_line(row.error or '')}", Role.DIM),
    ]


def _question_of_tasks(
    verb: str,
    names: Sequence[str],
    context: RunContext,
    facts: Iterable[str],
    accept: str,
    *,
    then: str = "",
    reason: Literal["required", "none"] = "none",
) -> Question:
    """A question about tasks: ``Retry load now``. ``verb`` and ``then``: around what they are called."""
    what = one_line(names[0]) if len(names) == 1 else counted(len(names), "task")
    return Question(
        title=f"{verb} {what}{then}",
        facts=[*facts],
        preview=_task_lines(names, context),
        accept=accept,
        reason=reason,
        type_exactly=_number_to_type(len(names)),
    )


def _number_to_type(count: int) -> str | None:
    return str(count) if count > TYPED_ABOVE else None


def stop_question(names: Sequence[str], context: RunContext) -> Question:
    """The question before running attempts are stopped or waiting tasks are cancelled."""
    below = context.board.names_waiting_below(*names)
    facts = [*_stop_facts([context.board.row(name) for name in names], context.runner)]
    if below:
        facts.append(f"{counted(len(below), 'task')} below stop with it: {named(below)}.")
    accept = f"stop {len(names):,}" if len(names) > 1 else "stop it"
    question = _question_of_tasks("Stop", names, context, facts, accept, reason="required")
    return question if len(names) > 1 else replace(question, preview=())


def _stop_facts(rows: Sequence[TaskRow], runner: RunnerStatus) -> Iterator[str]:
    """The effects on attempts that run, and on tasks without one."""
    running = sum(row_style(row, runner).sign is Sign.RUNNING for row in rows)
    if running:
        yield "A running attempt gets SIGTERM, its grace, then SIGKILL, with all its processes."
    if running < len(rows):
        yield "What does not run now counts as cancelled and does not run again."


def answer_question(act: str, names: Sequence[str], context: RunContext) -> Question:
    """The question before an approval is answered. ``act``: approve or reject."""
    below = context.board.waiting_below(*names)
    then = {"approve": "may start then", "reject": "will not run"}[act]
    facts = [f"{counted(below, 'task')} below {then}." if below else "Nothing waits below."]
    accept = f"{act} {len(names):,}" if len(names) > 1 else act
    return _question_of_tasks(BY_NAME[act].verb.capitalize(), names, context, facts, accept, reason="required")


def abandon_question(summary: RunSummary) -> Question:
    """The question before a run is ended for good."""
    left = sum(count for state, count in summary.counts.items() if state in OPEN)
    return Question(
        title=f"Abandon run {summary.run.run_id}",
        facts=[
            f"{counted(left, 'task')} not ended so far: cancelled. The run becomes ABANDONED.",
            "A requeue of its tasks opens it again.",
        ],
        accept="abandon it",
        reason="optional",
    )


def hurry_question(names: Sequence[str], context: RunContext) -> Question:
    """The question before tasks are retried that are not the one under the cursor."""
    facts = ["The backoff ends at once; breakers, pools and slots still hold."]
    return _question_of_tasks("Retry", names, context, facts, f"retry {len(names):,} now", then=" now")


def acknowledge_question(names: Sequence[str], context: RunContext) -> Question:
    """The question before pages are acknowledged of tasks that are not the one under the cursor."""
    facts = ["No more pages come for these failures; the tasks wait for a decision as before."]
    return _question_of_tasks("Acknowledge", names, context, facts, f"acknowledge {len(names):,}")


#: How a breaker is set by hand -> the title of the question before the name, and what accepting it does.
_BREAKER_WORDS = {
    "close": ("Close", "close it"),
    "open": ("Force open", "force it open"),
    "disable": ("Disable", "disable it"),
}


def breaker_question(breaker: BreakerStatus, how: str) -> Question:
    """The question before a breaker is set by hand, with its effect on tasks."""
    title, accept = _BREAKER_WORDS[how]
    return Question(
        title=f"{title} {breaker.name}",
        facts=[*_breaker_effects(breaker, how)],
        accept=accept,
        reason="optional" if how == "close" else "required",  # a forced state lasts until an operator changes it
    )


def _breaker_effects(breaker: BreakerStatus, how: str) -> Iterator[str]:
    held, spec = len(breaker.held), breaker.spec
    go_on = f"{counted(held, 'task')} held by it {'goes' if held == 1 else 'go'} on"
    if how == "open":
        yield {
            "fail": "Tasks that call it end as failed until an operator closes it.",
            "dead_letter": "Tasks that call it become dead letters until an operator closes it.",
        }.get(spec.on_open, "No task calls it until an operator closes it; tasks wait and spend no attempt.")
        if breaker.running:
            yield f"{counted(breaker.running, 'running call')} may still end."
    elif how == "close":
        pace = f", {spec.release_per_second:g} a second" if spec.release_per_second > 0 else " at once"
        yield f"{go_on}{pace}." if held else "It holds no task now."
        yield "Past failures are forgotten: only new failures open it again."
    else:
        yield f"{go_on} at once." if held else "It holds no task now."
        yield "Until it is closed, calls are not counted and no task is held, however many calls fail."


def requeue_rows_question(task: str, count: int, lines: Sequence[Line], preview: ActPreview) -> Question:
    """The question before a task runs again over some of its rows."""
    facts = [f"{one_line(task)} runs again over {'this row' if count == 1 else 'these rows'} only."]
    facts += _facts(preview, (task,))
    return _rows_question("Requeue", "requeue", task, count, facts, lines)


def discard_rows_question(task: str, count: int, lines: Sequence[Line]) -> Question:
    """The question before held rows are discarded."""
    rows = "This row is" if count == 1 else "These rows are"
    facts = [f"{rows} no longer held. The file keeps discarded rows, and undo holds them again."]
    return _rows_question("Discard", "discard", task, count, facts, lines)


def _rows_question(
    verb: str, accept: str, task: str, count: int, facts: Sequence[str], lines: Sequence[Line]
) -> Question:
    rows = counted(count, "row")
    return Question(
        title=f"{verb} {rows} of {task}",
        facts=facts,
        preview=lines,
        accept=f"{accept} {rows}",
        reason="required" if accept == "discard" else "optional",
        type_exactly=_number_to_type(count),
    )


def note_question(cause: InboxCause, facts: Sequence[str]) -> Question:
    """The question for a note on a cause. ``facts``: its earlier notes."""
    shown = "Shown with this cause from now on, in later runs as well."
    return Question(
        title=f"Note on {cause.title}",
        facts=[*facts, shown],
        accept="write it",
        values=[PromptField("Note: ", "for the next operator who is paged", problem=_note_problem)],
    )


def _note_problem(text: str) -> str | None:
    if not text:
        return "Nothing is written yet."
    too_many = len(text) - NOTE_CHARACTERS_MAX
    return f"Too long by {too_many:,} characters." if too_many > 0 else None


def undo_question(what: str, names: Sequence[str]) -> Question:
    """The question before an earlier act is undone."""
    return Question(
        title=f"Undo: {what}",
        facts=["Each task that has not moved since is restored; those that have started stay."],
        preview=[[Piece(one_line(name))] for name in names],
        accept="undo it",
    )


def resume_question(board: Board, since: str, plan: ResumePlan) -> Question:
    """The question before an executor is started here; with doubts about its code, before the code is imported."""
    is_paused = board.projection.run.paused_since is not None
    paused = [[Piece(f"The run is paused: it starts nothing until {shown_key('pause')} unpauses it.", Role.WARNING)]]
    left = board.total - board.finished
    _, doubtful = lost_tasks(board)
    return Question(
        title=f"Start an executor here for {board.projection.run.run_id}",
        facts=[
            f"The last one has been gone{since}. {counted(left, 'task')} of {board.total:,} are not done.",
            "Attempts that were running count as lost and run again; finished tasks stay finished.",
            *(paused if is_paused else []),
            *([f"Not {named(doubtful)}, which may have happened: a human decides."] if doubtful else []),
            *([Piece(one_line(f"Others may have written the code: {doubt}."), Role.WARNING)] for doubt in plan.doubts),
            *([Piece(one_line(line), Role.DIM)] for line in plan.code_lines()),
            *_difference_lines(plan),
        ],
        accept="trust this code" if plan.doubts else "resume",
    )


def with_executor(question: Question, plan: ResumePlan) -> Question:
    """The question about an act and about the executor that starts here after it."""
    fact = f"Then an executor starts here, with {next(plan.code_lines())}."
    facts = [*question.facts, fact, *_difference_lines(plan)]
    return replace(question, facts=facts, accept=f"{question.accept} and go on")


def _difference_lines(plan: ResumePlan) -> list[Line]:
    role = Role.WARNING if plan.needs_acceptance else Role.TEXT
    return [[Piece(one_line(line), role)] for line in plan.difference_lines()]


def without_executor(question: Question, why: str) -> Question:
    """The question about an act after which no executor can be started here."""
    warning = Piece(f"No executor starts here then: {one_line(why)}.", Role.WARNING)
    return replace(question, facts=[*question.facts, [warning]])
