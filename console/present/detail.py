"""The details of one task: why it is in its state, its attempts, what changed between them, its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice

from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import with_overrides
from ...engine.core.views import row_style
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.liveness import TaskUsage
from ...engine.domain.states import APPROVAL, NEEDS_HUMAN, NOT_STARTED, TaskState
from ...engine.domain.task_options import describe_overrides, load_overrides
from ...engine.domain.text import counted, format_bytes, format_duration, format_seconds
from ...engine.domain.trigger_rules import ALL_SUCCESS
from ..model.inbox import EvidenceData, compare, failures_of, verdict
from ..model.runs import trend_of_attempts
from ..text.figures import age, number, wall_day
from ..text.pieces import Line, Piece, Role, count_rows, first_that_fits, fit, two_sided, width, wrap, wrap_within
from ..text.text import cells, one_line, pad
from . import tasks
from .evidence import attempt_line, evidence_lines, rule_of_poison, text_lines, verdict_lines
from .log import line_text
from .run_grid import CHART_LABEL_CELLS, duration_chart, even_slots, timeout_of
from .states import sign_and_word
from .tasks import RunContext

_LOG_LINES = 12
_RELATIVES_MAX = 20
_PAST_ATTEMPTS, _PAST_ATTEMPTS_MIN = 40, 3
_CHART_ROWS_MIN, _CHART_ROWS_MAX = 6, 12
_NAME_CELLS_MIN = 8
_ANSWERS_MAX, _HEADING_ROWS = 3, 2
_RESULTS_MAX, _RESULT_CHARACTERS = 8, 400  # of what a task returned


def title_line(row: TaskRow, context: RunContext, columns: int) -> Line:
    """Name, state and age."""
    right = _state_of(row, context)
    name = _name_within(row.name, max(columns - width(right) - 4, _NAME_CELLS_MIN), context)
    return two_sided([Piece(" "), Piece(name, Role.TITLE)], [*right, Piece(" ")], columns)


def _state_of(row: TaskRow, context: RunContext) -> Line:
    """The state of a task; of one that needs a human also since when."""
    state = sign_and_word(row_style(row, context.runner), context.glyphs)
    if row.state not in NEEDS_HUMAN or row.ended_at is None:
        return [state]
    return [state, Piece(f" for {age(context.now_us - row.ended_at)}")]


def _name_within(name: str, size: int, context: RunContext) -> str:
    """The whole name, or as lists show it where it has no room."""
    whole = one_line(name)
    return whole if cells(whole) <= size else context.names.short(name, size, context.glyphs.more)


def summary_lines(row: TaskRow, context: RunContext, columns: int, rows: int) -> list[Line]:
    """The task in at most ``rows`` rows: state and verdict, its attempts, the number of tasks that it holds.

    A verdict without room loses what it compared, and continues in rows that nothing else needs.
    """
    name = _name_within(row.name, max(columns // 2, _NAME_CELLS_MIN), context)
    head = [Piece(" "), Piece(name, Role.TITLE), Piece("  "), *_state_of(row, context)]
    last = _held_text(row, context)
    shown = tasks.latest_first(row)[: max(rows - 1 - bool(last), 0)]
    below = [attempt_line(attempt, context, columns, checks) for attempt, checks in shown]
    if last and len(below) + 1 < rows:
        below.append([Piece("   "), *last])
    free = max(rows - len(below), 1)
    heads = [[*head, *_conclusion(row, context, is_brief=is_brief)] for is_brief in (False, True)]
    is_sentence = free > 1 and row.state in NEEDS_HUMAN | NOT_STARTED
    more = context.glyphs.more
    top = wrap_within(heads[0], columns, free, 1, more) if is_sentence else [first_that_fits(heads, columns)]
    return [fit(line, columns, more) for line in [*top, *below][:rows]]


def _conclusion(row: TaskRow, context: RunContext, *, is_brief: bool) -> Line:
    """The verdict on a task that needs a human; else why it waits, or its facts."""
    failures = failures_of(row)
    if row.state in NEEDS_HUMAN and len(failures) > 1:
        return [Piece(f" {context.glyphs.dot} {verdict(compare(failures), is_brief=is_brief)}")]
    if row.state in NEEDS_HUMAN:
        return [Piece(f" {context.glyphs.dot} {one_line(row.error or row.dead_letter_kind or '')}")]
    if row.state in NOT_STARTED:
        why = one_line(context.board.explain(row.name, context.now_us, context.runner))
        return [Piece(f" {context.glyphs.dot} {why}", Role.DIM)]
    head, *facts = tasks.state_facts(row, context)
    if row.state is TaskState.RETRYING:  # the countdown goes on behind the word
        return [Piece(head.text.removeprefix(context.view(row.name).style.word), head.role), *facts]
    return [Piece("  "), *facts[1:]]


def _held_text(row: TaskRow, context: RunContext) -> Line:
    count = context.board.waiting_below(row.name)
    if not count or row.state not in NEEDS_HUMAN:
        return []
    return [Piece(f"holds {counted(count, 'task')} and the run's end")]


# --- The whole page ------------------------------------------------------------------------------------------------


def detail_page(
    row: TaskRow,
    context: RunContext,
    evidence: EvidenceData,
    columns: int,
    rows: int = 0,
    *,
    has_past: bool = True,
    fill: Callable[[int], list[Line]] = lambda rows: [],
) -> list[Line]:
    """Everything known about a task, the most important first. More of its log fills a page of ``rows`` rows.

    Its rules, which never change, stand at the foot. ``has_past``: with how long it took in each attempt, even if that
    has no room. ``fill``: what has the rows that are free then.
    """
    is_judged = row.state in NEEDS_HUMAN
    reason = verdict_lines(row, context, evidence, columns) if is_judged else _blocking_lines(row, context, columns)
    before = [
        title_line(row, context, columns),
        *reason,
        *_usage_lines(context.board.usage.get(row.name) if context.view(row.name).clock is not None else None, columns),
        *evidence_lines(row, context, evidence, columns),
        *(asked_lines(row, context, evidence, columns, rows) if evidence.logs or evidence.answers else ()),
    ]
    held = _held_text(row, context)
    after = [
        *([[], [Piece(" "), *held]] if held else ()),
        *_typical_durations(row, context),
        *chain(*_relatives(row, context)),
    ]
    foot = [*_rules(row), *rule_of_poison(row, columns)]
    shown = [*text_lines(evidence.texts, _LOG_LINES, context, columns, has_diagnostics=False)]
    free = max(rows - len(before) - len(shown) - len(after) - len(foot), 0)
    past = past_chart(row, context, evidence, columns, free - 2) if has_past or has_room_for_past(row, free) else []
    if free > len(past):
        log_lines = _LOG_LINES + free - len(past)
        shown = [*text_lines(evidence.texts, log_lines, context, columns, has_diagnostics=False)]
    page = [*before, *shown, *after, *past]
    page += fill(rows - sum(count_rows(line, columns) for line in (*page, *foot)))
    used = sum(count_rows(line, columns) for line in (*page, *foot))
    return [*page, *([] for _ in range(used, rows)), *foot]


def has_room_for_past(row: TaskRow, rows: int) -> bool:
    """Whether the details beside a list show how long the task took; what has failed leaves that to its texts."""
    return rows > _CHART_ROWS_MIN and row.state not in NEEDS_HUMAN


def static_lines(row: TaskRow, context: RunContext, rows: int) -> list[Line]:
    """The facts of a task that change little, in ``rows`` rows: its usual duration, its neighbours, its rules."""
    lines: list[Line] = []
    for part in (_typical_durations(row, context), *_relatives(row, context), _rules(row)):
        found = list(part)
        lines += found if len(lines) + len(found) <= rows else []
    return lines


def asked_lines(row: TaskRow, context: RunContext, evidence: EvidenceData, columns: int, rows: int) -> list[Line]:
    """The subject of an approval: what the tasks above it returned, who answered before, and what they wrote."""
    lines: list[Line] = []
    for parent in context.board.dag.parents(row.name):
        if returned := _returned(context.board.row(parent).result, columns):
            lines += [*tasks.section(one_line(parent), "returned"), *returned]
    lines += tasks.section("Answered before", "" if evidence.answers else "never")
    lines += (approval_line(event) for event in reversed(evidence.answers[-_ANSWERS_MAX:]))
    size = max((rows - len(lines)) // max(len(evidence.logs), 1) - _HEADING_ROWS, 1)
    for parent, log in evidence.logs.items():
        lines += tasks.section(one_line(parent), "wrote" if log else "wrote nothing")
        lines += ([Piece(f"   {line_text(line, context.glyphs)}")] for line in log[-size:])
    return lines[1:]


def approval_line(event: Event) -> Line:
    """The earlier answer to an approval: by whom, and why."""
    act = "approved" if isinstance(event.payload, OperatorActed) and event.payload.act == "approve" else "rejected"
    who = f"{act} by {one_line(event.actor or 'somebody')}"
    return [Piece(f"   {wall_day(event.at)}  ", Role.DIM), Piece(who), Piece(f": {one_line(event.reason or '')}")]


def _returned(result: str | None, columns: int) -> list[Line]:
    """The result of a task, by its keys if it has some."""
    try:
        value = json.loads(result or "null")
    except ValueError:  # of another version
        value = result
    named = value if isinstance(value, dict) else {} if value is None else {"": value}
    size = max((cells(one_line(name)) + 2 for name in named if name), default=0)
    return [
        fit([Piece(f"   {pad(one_line(name), size)}", Role.DIM), Piece(_value_text(one))], columns - 1)
        for name, one in islice(named.items(), _RESULTS_MAX)
    ]


def _value_text(value: object) -> str:
    return one_line((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_RESULT_CHARACTERS])


def past_chart(row: TaskRow, context: RunContext, evidence: EvidenceData, columns: int, rows: int) -> list[Line]:
    """The durations of the attempts of a task, beside its timeout, in about ``rows`` rows."""
    past = trend_of_attempts(row.name, evidence.history[:_PAST_ATTEMPTS], context.view(row.name).clock)
    if len(past.cells) < _PAST_ATTEMPTS_MIN:
        return []
    slots, rows = even_slots(past, columns - CHART_LABEL_CELLS - 1), min(max(rows, _CHART_ROWS_MIN), _CHART_ROWS_MAX)
    title, glyphs = f"In each attempt {context.glyphs.dot} ", context.glyphs
    return [[], *duration_chart(past, timeout_of(row), rows, CHART_LABEL_CELLS, slots, glyphs, title=title)]


def _blocking_lines(row: TaskRow, context: RunContext, columns: int) -> Iterator[Line]:
    links = context.board.blocking_chain(row.name, context.now_us, context.runner)
    for place, (name, sentence) in enumerate(links):
        text = sentence if not place else f"{name}: {sentence}"
        lead = " " if not place else f"  {context.glyphs.arrow} "
        for first, *rest in wrap([Piece(lead, Role.DIM), Piece(one_line(text))], columns - 1, len(lead)):
            yield [first._replace(role=Role.DIM), *rest]


def _usage_lines(usage: TaskUsage | None, columns: int) -> Iterator[Line]:
    """The usage of a running task, and the last line that it wrote."""
    if usage is None:
        return
    children = f"{usage.children} child process{'' if usage.children == 1 else 'es'}" if usage.children else ""
    percent = f"{usage.cpu_percent} % of a CPU" if usage.cpu_percent is not None else ""
    memory = format_bytes(usage.memory_bytes) if usage.memory_bytes is not None else ""
    used = ", ".join(filter(None, (percent, memory, children)))
    if used:
        yield [Piece(" now ", Role.DIM), Piece(used, Role.RUNNING)]
    if line := tasks.written_line(usage):
        yield from wrap([Piece(" wrote ", Role.DIM), Piece(line)], columns - 1, 7)


_ATTEMPTS_OF_A_SHARE = 20  # of fewer, 95 of 100 are all


def _typical_durations(row: TaskRow, context: RunContext) -> Iterator[Line]:
    """Durations in earlier runs."""
    usual = context.board.duration_stats.get(row.name)
    if usual is None:
        return
    many = f"{counted(usual.attempts, 'attempt')} in earlier runs"
    within = f", 95 of 100 within {format_duration(usual.p95_us)}" if usual.attempts >= _ATTEMPTS_OF_A_SHARE else ""
    yield from tasks.section("Usually", f"{format_duration(usual.p50_us)}{within} {context.glyphs.dot} {many}")


def _relatives(row: TaskRow, context: RunContext) -> Iterator[Iterator[Line]]:
    parents, children = context.board.dag.parents(row.name), context.board.dag.children(row.name)
    yield tasks.named_tasks("Waits for", number(len(parents)), parents, _RELATIVES_MAX, context)
    yield tasks.named_tasks("Followed by", number(len(children)), children, _RELATIVES_MAX, context)


def _rules(row: TaskRow) -> Iterator[Line]:
    """The options of the task, and what an operator changed for this generation."""
    spec = with_overrides(spec_of(row), row.overrides)
    retry = spec.retry
    changed = describe_overrides(load_overrides(row.overrides))
    waits = f"{format_seconds(retry.base)} to {format_seconds(retry.cap)}"
    tries = f"{retry.max_attempts} attempts, backoff {waits}, {retry.jitter} jitter"
    grace = f"then {format_seconds(spec.grace_seconds)} of grace"
    words = [
        f"requeued with {changed}, this time only" if changed else "",
        tries if retry.max_attempts > 1 else "1 attempt" * (spec.kind != APPROVAL),
        f"timeout {format_seconds(spec.timeout)}, {grace}" if spec.timeout else "no timeout",
        f"downstream {spec.downstream}" if spec.downstream else "",
        f"pool {spec.pool}" if spec.pool else "",
        f"starts on {spec.rule.replace('_', ' ')}" if spec.rule != ALL_SUCCESS else "",
        "an effect: done at most once" if spec.effect else "",
        "not idempotent: a lost attempt is not run again" if not (spec.idempotent or spec.effect) else "",
        f"$ {spec.command}" if spec.command else "",
        f"from {spec.source}" if spec.source else "",
        f"owner {spec.owner}" if spec.owner else "",
    ]
    yield from tasks.section("Rules")
    for word in words:
        if word:
            yield [Piece(f"   {one_line(word)}", Role.DIM)]
