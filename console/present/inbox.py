"""The inbox in rows: the heading, causes, their tasks, and what an act on the selected ones would do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...engine.core.causes import (
    REASON_CHARACTERS,
    CauseHistory,
    describe_history,
    describe_last_incident,
    describe_note,
    format_day,
)
from ...engine.core.projection import TaskRow
from ...engine.core.views import BLOCKED, RUN_STYLES, row_style
from ...engine.core.waiting import ALIVE, RunnerKind, WaitReason
from ...engine.domain.acts import ActPreview
from ...engine.domain.states import NEEDS_HUMAN, TaskState, describe_doubts
from ...engine.domain.text import counted, first_names, format_duration
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ..keys.keymap import shown_key
from ..model.inbox import COMPARED_MAX, Inbox, InboxCause, compare, failures_of, human_wait, verdict
from ..model.preview import doubtful_tasks, lost_tasks
from ..model.runs import WaitingRun
from ..text.columns import (
    FILL,
    Column,
    Columns,
    Width,
    field,
    row_line,
    screen_row,
    that_fit,
    with_fields,
)
from ..text.figures import instant, number, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, first_that_fits, fit, indented, join, plain, width, wrap, wrap_within
from ..text.text import added_message, cells, one_line, pad
from .needs import need_sentence
from .preview import consequences
from .runs import waiting_text
from .states import no_match_line, order_line, sign_and_word, state_sign
from .tasks import RunContext, attempts_text, named_tasks

_FOLD, AGE = Width(1, gap=0), Width(5, is_right=True)
_COUNT, _HELD = Width(5, 5, is_right=True), Width(11, 11, rank=1, is_right=True)
_KIND_FROM = 76  # cells of a row that has the kind of its failure
_NAME_CELLS, _MESSAGE_CELLS_MIN = 32, 16
_NAMED_MAX, _RUNNING_NAMED = 4, 12
_HEAD_ROWS_MAX = 2  # of the tasks under the cursor
_REASON_CHARACTERS = (REASON_CHARACTERS, 24, 0)  # the reason is shortened before the outcome


# --- The line above the list ---------------------------------------------------------------------------------------


def heading_line(
    inbox: Inbox, marked_count: int, filter_text: str, context: RunContext, columns: int, other_runs: int = 0
) -> tuple[Line, Line]:
    """Left and right side of the line; where there is no room, the oldest and the failed are left out first.

    ``other_runs``: how many other runs are listed. Empty for an empty inbox.
    """
    if not inbox.total:
        return [], []
    glyphs = context.glyphs
    first, *rest = _heading_parts(inbox, filter_text, context, other_runs)
    marked: Line = [Piece(f"{number(marked_count)} marked", Role.MARK)] if marked_count else []
    dot = Piece(f" {glyphs.dot} ", Role.DIM)
    ranked = [(place if place < 2 else place + 1, [dot, *part]) for place, part in enumerate(rest, 1)]
    *left, right = that_fit(
        columns - 1,
        (0, [Piece(" "), *first]),
        *ranked,
        (0, [dot, *marked] if marked else []),
        (2, order_line(inbox.sort, glyphs)),
    )
    return join(left, ""), right


def _heading_parts(inbox: Inbox, filter_text: str, context: RunContext, other_runs: int) -> list[Line]:
    """The most important first."""
    causes, dead = inbox.causes(), inbox.dead_letters
    parts: list[Line] = [[Piece(counted(len(causes), "cause"), Role.STRONG)]]
    if filter_text:
        found = f"/{one_line(filter_text)}: {number(sum(cause.count for cause in causes))} of {number(inbox.total)}"
        return [*parts, [Piece(found, Role.MATCH)]]
    if dead:
        parts.append([Piece(counted(dead, "dead letter"))])
    held = inbox.held
    if asked := held.pop(WaitReason.APPROVAL, 0):
        parts.append([Piece(counted(asked, "approval"))])
    if other_runs:
        parts.append([Piece(counted(other_runs, "other run"))])
    if inbox.failed:
        parts.append([Piece(f"{number(inbox.failed)} failed")])
    parts += [[Piece(f"{number(count)} {_HELD_WORDS.get(reason, reason)}")] for reason, count in held.items()]
    if causes:
        oldest = min(cause.oldest for cause in causes)
        parts.append([Piece(f"oldest {context.since(oldest)}", Role.DIM)])
    if context.names.prefix:
        parts.append([Piece(f"all begin with {context.names.prefix}", Role.DIM)])
    return parts


_AROUND = re.compile(r"\S+\.<locals>\.")

#: What holds tasks that did not fail, in the heading.
_HELD_WORDS = {
    WaitReason.DEADLINE: "by the deadline",
    WaitReason.PAUSE: "paused",
    WaitReason.CREDENTIAL: "at a breaker",
    WaitReason.FORCED_OPEN: "at a breaker",
    WaitReason.NOTHING: "stuck",
}


def empty_line(total: int, filter_text: str, need: Need | None, context: RunContext) -> Line:
    """The line in place of an empty list. ``need``: of the run as a whole."""
    if filter_text and total:
        return no_match_line(filter_text, f" {number(total)}")
    if need is not None:
        return [Piece("  "), *run_line(need, context)]
    return [Piece(f"   {context.glyphs.done} ", Role.DONE), Piece("nothing needs a human", Role.DIM)]


def run_line(need: Need | None, context: RunContext) -> Line:
    """The need of the run as a whole, or that it has none."""
    if need is None:
        return [Piece(" nothing in this run needs a human", Role.DIM)]
    return [Piece(" "), Piece(context.glyphs.dead, Role.HUMAN), Piece(f" {_need_of_run(need, context)}")]


def _need_of_run(need: Need, context: RunContext) -> str:
    """The need of a run; of a late one, which its header counts, also the time that it had."""
    if need.kind is not NeedKind.LATE or need.is_notice:
        return need_sentence(need, context.now_us)
    allowed_us = need.since - context.board.projection.run.started_at
    return f"late since {instant(need.since, context.now_us)}, {format_duration(allowed_us)} after the start"


def need_lines(
    need: Need, context: RunContext, columns: int, *, can_resume: bool, is_brief: bool = False
) -> list[Line]:
    """The need of a run of which no task needs a human. ``can_resume``: whether an executor can be started here.

    ``is_brief``: without the tasks before and below those that run, and without a sentence that the list has whole.
    """
    running = [row.name for row in context.board.projection.tasks.values() if row.state is TaskState.RUNNING]
    heading = "Runs now" if context.runner.is_alive else "Ran when it was lost"
    heading = heading if context.runner.kind is not RunnerKind.SILENT else "Ran when last heard of"
    is_listed = is_brief and width(run_line(need, context)) + 2 <= columns
    head = need_head(need, context, columns, can_resume=can_resume)
    return [
        *(_end_lines(need, context, can_resume=can_resume) if is_listed else head),
        *named_tasks(heading, number(len(running)), running, _RUNNING_NAMED, context),
        *(() if is_brief else _around(running, context)),
    ]


def need_head(need: Need, context: RunContext, columns: int, *, can_resume: bool, indent: int = 1) -> list[Line]:
    """The need of a run, and the keys that end it."""
    return [
        *indented(_need_of_run(need, context), columns, Role.STRONG, indent),
        *_end_lines(need, context, can_resume=can_resume, indent=indent),
    ]


def _end_lines(need: Need, context: RunContext, *, can_resume: bool, indent: int = 1) -> list[Line]:
    """The keys that end a need of a run."""
    ends = _ends_of(need, context, can_resume=can_resume)
    return [[Piece(" " * (indent - 1)), *line] for line in (_by_key(*ends) if ends else ())]


def _around(names: Sequence[str], context: RunContext, *, has_details: bool = False) -> Iterator[Line]:
    """The tasks below ``names`` that wait, and those done before them, unless details beside it name those."""
    done = dict.fromkeys(parent for name in names for parent in context.board.dag.parents(name) if not has_details)
    for heading, found in (("After that", context.board.names_waiting_below(*names)), ("Done before", [*done])):
        yield from named_tasks(heading, number(len(found)), found, _NAMED_MAX, context)


def waiting_lines(names: Sequence[str], context: RunContext, *, has_details: bool) -> list[Line]:
    """The tasks that go on once the wait of ``names`` ends, and those done before; empty if ``names`` failed."""
    if wait_of(names, context) is None:
        return []
    return [
        *named_tasks("May start then", number(len(names)), names, _NAMED_MAX, context),
        *_around(names, context, has_details=has_details),
    ][1:]


def _ends_of(need: Need, context: RunContext, *, can_resume: bool) -> Sequence[tuple[str, str]]:
    """Actions that end a need of the run as a whole, and what their keys do."""
    if need.kind in (NeedKind.LOST, NeedKind.STUCK):
        return [("resume_here", f"goes on with the run here{_lost_then(context)}")] if can_resume else []
    if need.kind is not NeedKind.LATE:
        return []
    if context.board.projection.run.ended_at is None:
        return [("postpone", "gives the run another deadline, or none")]
    return [("view_runs", f"lists the runs, where {shown_key('ack_run')} acknowledges that it was late")]


def _lost_then(context: RunContext) -> str:
    """The next step of an executor with the attempts that another has lost."""
    again, doubtful = lost_tasks(context.board)
    words = [f"{counted(len(again), 'task')} run{'s' if len(again) == 1 else ''} again"] if again else []
    words += [f"{first_names(doubtful, 1, one_line)} may have happened: you decide"] if doubtful else []
    return f": {', '.join(words)}" if words else ""


def other_run_page(other: WaitingRun, context: RunContext, columns: int) -> list[Line]:
    """Another run that needs a human, and each of its needs."""
    needs = (need_sentence(need, context.now_us) for need in (other.need, *other.others))
    title = [
        Piece(f" run {one_line(other.run.run_id)}", Role.TITLE),
        Piece(f"  {wall_day(other.run.started_at)}", Role.DIM),
    ]
    return [title, *(line for words in needs for line in indented(words, columns))]


# --- Rows ----------------------------------------------------------------------------------------------------------


def cause_row(
    cause: InboxCause,
    is_open: bool,
    context: RunContext,
    columns: int,
    listed: Columns[InboxCause, Any] | None = None,
) -> Line:
    """A cause behind the sign whether its tasks are shown; without tasks that it holds, nothing says so.

    ``listed``: the columns, as wide as all causes need them.
    """
    shown = [one for one in listed or CAUSE_COLUMNS if cause.held or one.name != "held"]
    fold = Piece(context.glyphs.open if is_open else context.glyphs.closed)
    return [fold, *screen_row(shown, cause, context, columns - 2, context.glyphs.more)]


def _cause_sign(cause: InboxCause, context: RunContext) -> Piece:
    is_held = all(context.board.row(name).state not in NEEDS_HUMAN for name in cause.tasks)
    if is_held and context.runner.is_alive and wait_of(cause.tasks, context) is WaitReason.PAUSE:
        return state_sign(TaskState.READY, context.glyphs)  # somebody meant it; it is no need
    return state_sign(TaskState.DEAD_LETTER if cause.dead or is_held else TaskState.FAILED, context.glyphs)


def _cause_title(cause: InboxCause, context: RunContext) -> Callable[[int], Line]:
    """The cause, its downstream, and its error where enough of that has room; of an approval its task."""
    reason = wait_of(cause.tasks, context)
    message = one_line(cause.tasks[0]) if reason is WaitReason.APPROVAL else message_of(cause)
    is_whole = one_line(cause.title) in message and cause.messages == 1  # the message says the cause, and more
    title = [Piece(message if is_whole else without_locals(one_line(cause.title)) or "unknown")]
    if cause.downstream:
        title.append(Piece(f" {context.glyphs.dot} {one_line(cause.downstream)}", Role.DIM))
    if not message or is_whole or reason is WaitReason.PAUSE:  # the header says who paused, and why
        return lambda size: title
    whole = [*title, Piece(f"  {message}", Role.DIM)]
    least = width(whole) if reason is not None else min(width(whole), width(title) + _MESSAGE_CELLS_MIN)
    return lambda size: whole if least <= size else title


#: On the screen, where the context is a run, and as JSON; the shell has a block of lines for each cause.
CAUSE_COLUMNS: Columns[InboxCause, Any] = with_fields(
    (
        Column("sign", width=Width(1), screen=_cause_sign),
        field("tasks", None, None, _COUNT, lambda cause, context: Piece(number(cause.count), Role.STRONG)),
        field("title", None, None, Width(28, FILL, gap=2), _cause_title),
        field("held", None, None, _HELD, lambda cause, context: Piece(f"holds {number(cause.held)}", Role.DIM)),
        field("oldest", None, None, AGE, lambda cause, context: age_piece(cause.oldest, context)),
    ),
    [name for name in InboxCause.__struct_fields__ if name not in ("kind", "wait", "search_text")],  # of single tasks
)


def without_locals(place: str) -> str:
    """``settle.py:87 in settle``: a place without the functions around that which failed."""
    return _AROUND.sub("", place)


def message_of(cause: InboxCause) -> str:
    """The error of its tasks, if the title does not say it already; of several the first, as one of so many."""
    if cause.messages > 1:
        return f"{number(cause.messages)} different errors, the first: {one_line(cause.message)}"
    return one_line(added_message(cause.title, cause.message))


def age_piece(since: int, context: RunContext) -> Piece:
    """The age of a row, which alone of it changes with time."""
    return Piece(context.since(since), Role.DIM)


def task_row(
    entry: InboxCause, row: TaskRow, context: RunContext, columns: int, cause: InboxCause | None = None
) -> Line:
    """One task of a cause; the accent is on the cause, which says what holds all of its tasks.

    ``cause``: says the error that all of its tasks have, if only below the list; what is left is when each failed.
    """
    word, glyphs, names = one_line(entry.wait or entry.kind or "failed"), context.glyphs, context.names
    said = entry.message
    if (
        cause is not None
        and cause.messages == 1
        and wait_of(cause.tasks, context) is None
        and (cause.count > 1 or message_of(cause) in plain(cause_row(cause, True, context, columns)))
    ):
        said = f"at {wall(entry.last_seen)}"
    if entry.wait in (WaitReason.DEADLINE, WaitReason.PAUSE):
        said = "has not started" if row.started_at is None else f"started at {wall(row.started_at)}"
    kind = Width(cells(word), gap=2), Piece(word, Role.DIM)
    return row_line(
        columns - 1,
        (Width(1, gap=4), Piece(glyphs.of(row_style(row, ALIVE).sign), Role.DIM)),
        (Width(9, min(names.longest, _NAME_CELLS)), lambda room: names.short(row.name, room, glyphs.more)),
        (Width(5, is_right=True), Piece(attempts_text(row), Role.DIM)),
        *([kind] if columns >= _KIND_FROM else ()),
        (Width(16, FILL, rank=1, gap=2), said),
        more=glyphs.more,
    )


def more_row(hidden: int, glyphs: Glyphs) -> Line:
    """Tasks of a cause that are not shown yet."""
    return [Piece(f"      {glyphs.more} {number(hidden)} more ({shown_key('open')})", Role.DIM)]


def other_run_row(other: WaitingRun, context: RunContext, columns: int) -> Line:
    """Another run that needs a human: its name, why, and how old it is."""
    glyphs, role = context.glyphs, Role.DIM if other.is_notice else Role.HUMAN
    style = BLOCKED if other.run.ended_at is None else RUN_STYLES[other.run.state]
    run = Piece("run ", Role.DIM if other.is_notice else Role.STRONG)
    flow = Piece(f" {glyphs.dot} {one_line(other.run.dag_name)}", Role.DIM)
    return row_line(
        columns - 1,
        (_FOLD, glyphs.closed),
        (Width(1), Piece(glyphs.of(style.sign), role)),
        (Width(28, FILL), [run, Piece(waiting_text(other)), flow]),
        (AGE, age_piece(other.run.blocked_since or other.run.started_at, context)),
        more=glyphs.more,
    )


def other_run_lines(other: WaitingRun) -> list[Line]:
    """Acts on another run."""
    has_ended = other.run.ended_at is not None
    there = f"{shown_key('ack_run')} acknowledges how it ended" if has_ended else "an unfinished one can be abandoned"
    return _by_key(
        ("open", f"opens run {one_line(other.run.run_id)}: act on it there"),
        ("view_runs", f"lists all runs, where {there}"),
    )


# --- The selection, and what an act would do to it -----------------------------------------------------------------


def selection_lines(names: Sequence[str], context: RunContext, columns: int) -> list[Line]:
    """The selected tasks in two or three rows: names, times and error; then the verdict, as far as there is room."""
    rows = [context.board.row(name) for name in names]
    shown = next((row for row in rows if row.state is TaskState.DEAD_LETTER), rows[0])
    who = one_line(rows[0].name) if len(names) == 1 else counted(len(names), "task")
    kinds, errors = {row.dead_letter_kind or "" for row in rows}, {row.error or "" for row in rows}
    is_said = wait_of(names, context) is WaitReason.DEADLINE  # by the verdict
    parts = [one_line(kinds.pop()) if len(kinds) == 1 else "", "", "" if is_said else one_line(errors.pop())]
    ends = [row.ended_at for row in rows if row.ended_at is not None]
    if len(names) > 1 and ends:
        first, last = wall(min(ends)), wall(max(ends))
        parts[1] = f"at {first}" if first == last else f"from {first} to {last}"
        parts[2] = f"{number(len(errors) + 1)} different errors" if errors and not is_said else parts[2]
    sign = sign_and_word(row_style(shown, context.runner), context.glyphs)
    head: Line = [Piece(" "), Piece(who, Role.TITLE), Piece(" "), sign, *([Piece(f" {parts[0]}")] if parts[0] else [])]
    for part in filter(None, parts[1:]):
        head += [Piece(f" {context.glyphs.dot} ", Role.DIM), Piece(part)]
    verdicts = (verdict_of(names, context, is_brief=is_brief) for is_brief in (False, True))
    lines = [[Piece(f"   {found[:1].upper()}{found[1:]}.", Role.STRONG)] for found in verdicts]
    return [*wrap_within(head, columns, _HEAD_ROWS_MAX, 3, context.glyphs.more), first_that_fits(lines, columns)]


def cause_history_line(history: CauseHistory | None, now_us: int, columns: int, glyphs: Glyphs) -> Line:
    """The latest note on a cause and how it ended last time, as far as there is room; empty while not read."""
    if history is None:
        return []
    if history.is_new:
        return [Piece("   never seen before in this flow", Role.DIM)]
    line: Line = []
    parts: list[Line] = [[Piece(one_line(describe_note(note, now_us)), Role.STRONG)] for note in history.notes[:1]]
    for reason_characters in _REASON_CHARACTERS:
        before = describe_last_incident(history, now_us, reason_characters) or _past_runs(history, now_us)
        line = join([*parts, [Piece(one_line(before))] if before else []], f" {glyphs.dot} ")
        if width(line) < columns - 3:
            break
    return fit([Piece("   "), *line], columns - 1, glyphs.more)


def cause_history_lines(history: CauseHistory | None, now_us: int, columns: int) -> Iterator[Line]:
    """The whole history of a cause, wrapped, notes first."""
    if history is None or history.is_new:
        return
    for when, what in describe_history(history, now_us):
        yield from _wrapped([Piece(when, Role.DIM), Piece(one_line(what), Role.TEXT if when else Role.STRONG)], columns)
    seen = _past_runs(history, now_us)
    if seen:
        yield from _wrapped([Piece(seen, Role.DIM)], columns)
    yield []


def _wrapped(line: Line, columns: int) -> list[Line]:
    return wrap([Piece(" "), *line], columns - 1, 3)


def _past_runs(history: CauseHistory, now_us: int) -> str:
    if not history.runs or history.first_at is None:
        return ""
    others = "one other run" if history.runs == 1 else f"{number(history.runs)} other runs"
    return f"seen in {others} of this flow, first {format_day(history.first_at, now_us)}"


def wait_of(names: Sequence[str], context: RunContext) -> WaitReason | None:
    """The one wait, which a human ends, of tasks that did not fail; None: they failed, or differ."""
    return human_wait(context.board, names, context.now_us, context.runner)


def verdict_of(names: Sequence[str], context: RunContext, *, is_brief: bool = False) -> str:
    """The verdict on the attempts of one or many tasks, in one sentence. ``is_brief``: as for ``verdict``."""
    board, reason = context.board, wait_of(names, context)
    if reason is not None:
        why = one_line(_WAIT_VERDICTS.get(reason) or board.explain(names[0], context.now_us, context.runner))
        return why if reason in _AFTER_FAILURES else f"nothing failed: {why}"
    doubts = doubtful_tasks(board, names)
    if doubts:
        key, more = doubts[0][1], f", and {number(len(doubts) - 1)} more" if len(doubts) > 1 else ""
        return f"look for the key {key}: it may have happened{more}" if is_brief and key else describe_doubts(doubts)
    if not any(failures_of(board.row(name)) for name in names[:COMPARED_MAX]):
        return f"nothing failed: {one_line(board.explain(names[0], context.now_us, context.runner))}"
    if len(names) == 1:
        return verdict(compare(failures_of(board.row(names[0]))), is_brief=is_brief)
    compared = names[:COMPARED_MAX]
    found = [compare(failures_of(board.row(name))) for name in compared]
    several = [one for one in found if len(one.attempts) > 1]
    where = "" if len(compared) == len(names) else f" (in the first {len(compared)})"
    if not several:
        return f"one failure each: nothing to compare them with{where}"
    same = sum(1 for one in several if one.is_deterministic)
    if same == len(several) == len(found):
        errors = len({board.row(name).error for name in compared})
        if errors > 1:
            said = "each alike every time," if is_brief else "each failed alike every time, with"
            return f"{said} {number(errors)} different errors; nothing changed between{where}"
        return f"same failure every time; nothing changed between attempts{where}"
    if same == len(several):
        if is_brief:
            return f"{number(same)} of {number(len(found))} failed alike again, the others once; nothing changed{where}"
        again = f"{number(same)} of {number(len(found))} failed again the same way with nothing changed between"
        return f"{again}; the others failed once{where}"
    return f"{number(same)} of {number(len(several))} failed the same way with nothing changed between{where}"


#: The waits of tasks that follow from a failure: of the run, or of a task above.
_AFTER_FAILURES = frozenset([WaitReason.DEADLINE, WaitReason.NOTHING])

#: Where the sentence of the task names a command that a key of the console replaces.
_WAIT_VERDICTS = {
    WaitReason.APPROVAL: "it waits for an answer",
    WaitReason.DEADLINE: "the deadline of the run has ended it",
}


class Mend(NamedTuple):
    """An end of a wait: the action of a key, its word there, and the effect with places for ``tasks`` and ``below``."""

    action: str
    word: str
    effect: str


#: What ends a wait, by its reason. A wait that is not here ends by a requeue or a skip.
MENDS: Mapping[WaitReason, Sequence[Mend]] = {
    WaitReason.PAUSE: (Mend("pause", "unpause", "{tasks} may start"),),
    WaitReason.APPROVAL: (
        Mend("copy", "approve", "{below} may start"),
        Mend("next", "reject", "{below} will not run"),
    ),
    WaitReason.DEADLINE: (
        Mend("postpone", "deadline…", "with another one {tasks} may start"),
        Mend("requeue", "requeue", "they run again without a deadline"),
    ),
    WaitReason.CREDENTIAL: (
        Mend("view_systems", "systems", "one probe of the breaker, once the credential is mended"),
    ),
    WaitReason.FORCED_OPEN: (Mend("view_systems", "systems", "the breaker is closed there"),),
}


def mends_of(names: Sequence[str], context: RunContext) -> Sequence[Mend]:
    """The ends of the wait of all of ``names``; empty if a requeue or a skip ends it."""
    reason = wait_of(names, context)
    return MENDS.get(reason, ()) if reason is not None else ()


def mend_lines(names: Sequence[str], context: RunContext, columns: int) -> list[Line]:
    """The keys that end the wait of ``names``; empty for a requeue or a skip."""
    mends = mends_of(names, context)
    if not mends:
        return []
    below = context.board.waiting_below(*names)
    words = {
        "tasks": counted(len(names), "task"),
        "below": f"{counted(below, 'task')} below" if below else "nothing below",
    }
    found = [(mend.action, f"{mend.word}: {mend.effect.format(**words)}") for mend in mends]
    if context.runner.has_ended:
        found.append(("resume_here", "then: starts an executor, for none runs it"))
    return [fit(line, columns) for line in _by_key(*found)]


def consequence_lines(requeue: ActPreview, skip: ActPreview) -> list[Line]:
    """The effects of requeue and skip, in one sentence each. The dialog has the exact lists."""
    return _by_key(("requeue", f"requeue: {_preview_text(requeue)}"), ("skip", f"skip: {_preview_text(skip)}"))


def _preview_text(preview: ActPreview) -> str:
    found = [f"{number(len(names))} {re.sub('^would', 'to', words)}" for words, names in consequences(preview)]
    return "; ".join([*found, *preview.notes])


def estimate_lines(count: int, held: int) -> list[Line]:
    """The effects of requeue and skip by their counts: a selection may be too large to preview at every move."""
    tasks, below = counted(count, "task"), f"; {number(held)} wait below" if held else ""
    return _by_key(("requeue", f"requeue: {tasks} run again{below}"), ("skip", f"skip: go on without {tasks}{below}"))


def _by_key(*sentences: tuple[str, str]) -> list[Line]:
    """Sentences, each behind the key of its action."""
    cells = max(len(shown_key(action)) for action, _ in sentences)
    return [[Piece(f" {pad(shown_key(action), cells)} ", Role.KEY), Piece(sentence)] for action, sentence in sentences]
