"""The evidence on a failure: the attempts of a task side by side, what changed between them, and their long texts.

Someone who decides between requeue and skip needs to know whether another attempt would end differently. So each fact
is a row, each attempt a column, and a row whose values differ is marked as changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from ...engine.core import advice
from ...engine.core.explain import short_error
from ...engine.core.failures import hang
from ...engine.core.failures.tables import POISON_RULE
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.views import STATE_STYLES, failure_mode_word
from ...engine.domain.states import DeadLetterKind, TaskState
from ...engine.domain.text import counted, format_duration, format_seconds
from ...engine.domain.text import format_bytes as size_of
from ...engine.statefile.lists import PastAttemptRow, QuarantineRow
from ..model import inbox as model
from ..text.figures import FINGERPRINT_DIGITS, age, number, offset, wall, wall_day
from ..text.pieces import Line, Piece, Role, indented, plain, two_sided, width, wrap
from ..text.text import cells, one_line, pad, sanitize, shorten
from . import tasks
from .inbox import cause_history_lines, message_of, verdict_of, wait_of, without_locals
from .log import line_text
from .states import sign_and_word, sign_of, state_sign
from .tasks import RunContext

_LABEL_CELLS = 14
_COLUMN_CELLS_MIN = 16
_COLUMN_CELLS_MAX = 44
_TEXT_CELLS_MIN = 8
_CHANGED = " changed"
_HELD_NAMED = 12
_ROWS_SHOWN = 10
_NUMBERS_MAX = 4  # attempts that are named each
_HASH_DIGITS = 10


# --- One task ------------------------------------------------------------------------------------------------------


def verdict_lines(row: TaskRow, context: RunContext, evidence: model.EvidenceData, columns: int) -> Iterator[Line]:
    """Whether another attempt would end otherwise, and whether other runs had this failure."""
    role = Role.STRONG if model.compare(model.failures_of(row)).is_deterministic else Role.TEXT
    yield from indented(_sentence(verdict_of((row.name,), context)), columns, role)
    yield from _history(row, context, evidence.history)


def evidence_lines(row: TaskRow, context: RunContext, evidence: model.EvidenceData, columns: int) -> Iterator[Line]:
    """The attempts of a task, and what speaks for or against another one, without the long texts."""
    failures = model.failures_of(row)
    comparison = model.compare(failures)
    yield []
    yield from cause_history_lines(evidence.cause_history, context.now_us, columns)
    yield from _messages(row, failures, evidence.texts, columns)
    if row.attempts:
        yield from attempt_table(row, comparison, context, columns, evidence.texts)
    yield from _fields(evidence.texts, context, columns)
    yield from _durations(row, evidence.history)
    yield from _quarantined(evidence.rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def rule_of_poison(row: TaskRow, columns: int) -> list[Line]:
    """Why the failure is poison: the rule, or the number that the policy of the task asks for."""
    if row.dead_letter_kind != DeadLetterKind.POISON:
        return []
    asked = spec_of(row).retry.poison_after
    rule = POISON_RULE if asked == "evidence" else f"poison_after={asked}"
    return [[], *indented(_sentence(rule), columns, Role.DIM)]


def _history(row: TaskRow, context: RunContext, attempts: Sequence[PastAttemptRow]) -> Iterator[Line]:
    """Whether other runs had this failure, and when the task last succeeded."""
    if not attempts:
        return
    fingerprint = model.fingerprint_of_task(row)
    others = {one.run_id for one in attempts} - {context.board.projection.run.run_id}
    seen = {one.run_id for one in attempts if fingerprint and one.fingerprint_loose == fingerprint} & others
    good = [one.ended_at for one in attempts if one.outcome == "success" and one.ended_at is not None]
    if not others and not good:
        yield [Piece(" First run of this task in this file.", Role.DIM)]
        return
    words = [counted(len(others), "earlier run")]
    words.append(f"this failure in {number(len(seen))} of them" if seen else "this failure in none of them")
    words.append(f"last went well {wall_day(max(good))}" if good else "it never went well")
    yield [Piece(f" {f' {context.glyphs.dot} '.join(words)}", Role.DIM)]


def _durations(row: TaskRow, attempts: Sequence[PastAttemptRow]) -> Iterator[Line]:
    """Past durations, to compare a timeout with."""
    if not any(one.outcome == "timed_out" for one in row.attempts.values()):
        return
    if lines := quantile_lines(past_durations(attempts), only_other_days=True):
        yield []
        yield from ([Piece(f" {line}", Role.DIM)] for line in lines)


def past_durations(attempts: Sequence[PastAttemptRow]) -> list[advice.PastDuration]:
    """The durations with which the advice on limits compares."""
    return [
        advice.past_duration(one.started_at, one.duration_us, one.outcome, one.max_rss_kb)
        for one in attempts
        if one.outcome in ("success", "timed_out") and one.duration_us is not None
    ]


# --- Side by side --------------------------------------------------------------------------------------------------


def attempt_table(
    row: TaskRow,
    comparison: model.AttemptComparison,
    context: RunContext,
    columns: int,
    texts: Sequence[model.AttemptTexts] = (),
) -> list[Line]:
    """Show as many attempts as fit as columns, the latest on the right; if some do not fit, all in one row each below.

    ``texts``: what was read of attempts says how much they have written by now.
    """
    changed = {*comparison.environment, *comparison.results}
    room = columns - _LABEL_CELLS - (len(_CHANGED) if changed else 0) - 1
    written = {one.attempt: {"output_bytes": one.output_bytes} for one in texts if one.output_bytes}
    attempts = [replace(row.attempts[key], **written.get(key, {})) for key in sorted(row.attempts)]
    shown = attempts[-max(room // _COLUMN_CELLS_MIN, 1) :]
    size = max(min(room // len(shown), _COLUMN_CELLS_MAX), 8)
    counts = tasks.attempts_text(row) or f"{len(attempts)} in all"
    head = "".join(pad(_heading(one, row), size) for one in shown)
    lines: list[Line] = [[Piece(pad(f" {counts}", _LABEL_CELLS), Role.DIM), Piece(head, Role.STRONG)]]
    for label, value in _FACTS:
        values = [value(one, context) for one in shown]
        if any(values) and not (label in _HASHES and len({*values}) == 1):
            differs = _CHANGE_NAMES.get(label, label) in changed and len(set(values)) > 1
            lines.append(_fact_line(label, values, size, differs))
    if len(attempts) > len(shown):
        lines += [[], *(attempt_line(one, context, columns, checks) for one, checks in tasks.latest_first(row))]
    return lines


def attempt_line(attempt: AttemptRow, context: RunContext, columns: int, checks: int = 0) -> Line:
    """An attempt in one row. ``checks``: the number of checks before it that found nothing either."""
    view = context.attempt(attempt)
    explained = without_locals(one_line(attempt.explain or ""))
    failure = explained or attempt.error or attempt.where or view.style.word
    line: Line = [
        Piece(f"   #{attempt.attempt:<2} ", Role.DIM),
        sign_of(view.style, context.glyphs),
        Piece(f" {wall(attempt.started_at)} {offset(view.clock)}  ", Role.DIM),
    ]
    mark = f"  fp {one_line(model.fingerprint_of_attempt(attempt))[:FINGERPRINT_DIGITS]}"
    room = columns - width(line) - cells(mark)
    has_mark = bool(model.fingerprint_of_attempt(attempt)) and room >= _TEXT_CELLS_MIN
    room = room if has_mark else max(columns - width(line), _TEXT_CELLS_MIN)
    tail = [Piece(mark, Role.DIM)] if has_mark else []
    text = one_line(failure + tasks.describe_checks_before(checks))
    return [*line, Piece(shorten(text, room, context.glyphs.more)), *tail]


def _heading(attempt: AttemptRow, row: TaskRow) -> str:
    again = f" generation {attempt.generation + 1}" if row.generation else ""
    return f"#{attempt.attempt}{again}"


def _fact_line(label: str, values: Sequence[str], column_cells: int, differs: bool) -> Line:
    line = [Piece(f" {pad(label, _LABEL_CELLS - 1)}", Role.DIM)]
    if len(set(values)) == 1 < len(values) and cells(values[0]) >= column_cells:
        return [*line, Piece(shorten(values[0], column_cells * len(values) - 1)), Piece("  each time", Role.DIM)]
    given = [place for place, value in enumerate(values) if value and place]
    for place, end in pairwise([0, *given, len(values)]):  # a value has the room of the blanks behind it
        is_new, room = differs and place > 0 and values[place] != values[place - 1], column_cells * (end - place)
        line.append(Piece(pad(shorten(values[place], room - 1), room), Role.WARNING if is_new else Role.TEXT))
    return [*line, Piece(_CHANGED, Role.WARNING)] if differs else line


def _attempt_duration(attempt: AttemptRow, context: RunContext) -> str:
    lasts, limit = format_duration(context.attempt(attempt).clock), attempt.timeout_us
    return f"{lasts} of {format_duration(limit)}" if limit and attempt.outcome == "timed_out" else lasts


def _place(attempt: AttemptRow, context: RunContext) -> str:
    if attempt.where and attempt.where != tasks.hang_of(attempt):
        return without_locals(one_line(attempt.where))
    name = short_error(attempt.error_type or "")
    return without_locals(one_line((attempt.explain or "").removeprefix(f"{name} ")))


def _killed(attempt: AttemptRow, context: RunContext) -> str:
    if attempt.sigkill_at is not None:
        after = offset(attempt.sigkill_at - attempt.sigterm_at) if attempt.sigterm_at is not None else "at once"
        return f"SIGKILL {after}"
    return "SIGTERM" if attempt.sigterm_at is not None else ""


def _text_of(value: object) -> str:
    return "" if value is None else one_line(str(value))


def _hash(value: str | None) -> str:
    return _text_of(value)[:_HASH_DIGITS]


#: Row by row: label and value.
_FACTS: Sequence[tuple[str, Callable[[AttemptRow, RunContext], str]]] = (
    ("started", lambda attempt, context: wall(attempt.started_at)),
    ("took", _attempt_duration),
    ("ended", lambda attempt, context: plain([sign_and_word(context.attempt(attempt).style, context.glyphs)])),
    ("error", lambda attempt, context: one_line(short_error(attempt.error_type or ""))),
    ("place", _place),
    ("line by line", lambda attempt, context: _hash(attempt.fingerprint)),  # strict: what the verdict compares
    ("fingerprint", lambda attempt, context: _text_of(model.fingerprint_of_attempt(attempt))[:FINGERPRINT_DIGITS]),
    ("class", lambda attempt, context: _text_of(attempt.failure_class).lower()),
    ("kind", lambda attempt, context: one_line(failure_mode_word(attempt))),
    ("exit code", lambda attempt, context: _text_of(attempt.exit_code)),
    ("signal", lambda attempt, context: _text_of(attempt.signal)),
    ("killed", _killed),
    ("code", lambda attempt, context: _hash(attempt.code_hash)),
    ("input", lambda attempt, context: _hash(attempt.input_hash)),
    ("parameters", lambda attempt, context: _hash(attempt.params_hash)),
    ("packages", lambda attempt, context: _hash(attempt.image_hash)),
    ("host", lambda attempt, context: _text_of(attempt.host)),
    ("peak memory", lambda attempt, context: size_of(attempt.max_rss_kb * 1024) if attempt.max_rss_kb else ""),
    ("cpu", lambda attempt, context: format_duration(attempt.cpu_user_us) if attempt.cpu_user_us else ""),
    ("output", lambda attempt, context: size_of(attempt.output_bytes) if attempt.output_bytes else ""),
    ("then waited", lambda attempt, context: tasks.waited_text(attempt)),
    ("late", lambda attempt, context: "it changed nothing" if attempt.late else ""),
)

#: Facts of which only a difference says something: the verdict names those that are alike.
_HASHES = frozenset(["line by line", "code", "input", "parameters", "packages"])

#: label -> the name of its change in ``model/inbox.py``, where the two differ.
_CHANGE_NAMES = {"place": "place of the failure", "line by line": "place of the failure"}


def _messages(
    row: TaskRow, failures: Sequence[AttemptRow], texts: Sequence[model.AttemptTexts], columns: int
) -> Iterator[Line]:
    """The error messages and diagnostics, once where they are the same; with their attempts, unless each has them."""
    messages = {one.attempt: one.error or "" for one in failures}
    diagnostics = {one.attempt: one.long.diagnostic for one in texts}
    for label, by_attempt in (("said", messages), ("diagnostic", diagnostics)):
        for text, attempts in _shared(by_attempt).items():
            is_of_each = len(attempts) == len(failures) and row.latest in failures
            whose = label if is_of_each else f"{label} {_numbers(attempts)}"
            yield from labelled(whose, one_line(text), columns)
    if any(messages.values()) or any(diagnostics.values()):
        yield []


def _shared(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """Text -> the attempts that have it, without empty texts."""
    found: dict[str, list[int]] = {}
    for attempt, text in sorted(texts.items()):
        if text.strip():
            found.setdefault(text.rstrip(), []).append(attempt)
    return found


def _numbers(attempts: Sequence[int]) -> str:
    if len(attempts) > _NUMBERS_MAX:
        return f"#{attempts[0]} and {number(len(attempts) - 1)} more"
    return " ".join(f"#{attempt}" for attempt in attempts)


def labelled(label: str, text: str, columns: int) -> list[Line]:
    """A text wrapped beside its label."""
    label = f" {label} ".ljust(_LABEL_CELLS)
    return wrap([Piece(label, Role.DIM), Piece(text)], columns - 1, len(label))


def _quarantined(rows: Sequence[QuarantineRow]) -> Iterator[Line]:
    held = [row for row in rows if row.state in ("held", "provisional")]
    if not held:
        return
    yield from tasks.section("Rows set aside", number(len(held)))
    for row in held[:_ROWS_SHOWN]:
        yield [Piece(f"   {one_line(row.row_key)}", Role.TEXT), Piece(f"  {one_line(row.error or '')}", Role.DIM)]
    if len(held) > _ROWS_SHOWN:
        yield [Piece(f"   and {number(len(held) - _ROWS_SHOWN)} more", Role.DIM)]


def text_lines(
    texts: Sequence[model.AttemptTexts],
    log_lines: int,
    context: RunContext,
    columns: int,
    *,
    has_diagnostics: bool = True,
) -> Iterator[Line]:
    """The long texts of attempts, each once, and the last ``log_lines`` of what they wrote, in the past until then."""
    by_heading: dict[str, dict[int, str]] = {}
    is_past = context.board.snapshot.is_past
    for one in texts:
        stack, autopsy = hang.split_stack_and_report(one.long.stack)
        log = [line for line in one.log if not is_past or line.at <= context.now_us]
        parts = {
            "Diagnostic": one.long.diagnostic if has_diagnostics else "",
            "Traceback": one.long.traceback,
            "Stack when it was ended": stack,
            "What it did and held then": autopsy,
            "Log, its end": "\n".join(line_text(line, context.glyphs) for line in log[-log_lines:]),
        }
        for heading, text in parts.items():
            by_heading.setdefault(heading, {})[one.attempt] = text
    for heading, by_attempt in by_heading.items():
        for text, attempts in _shared(by_attempt).items():
            whose = f"attempt {attempts[0]}" if len(attempts) == 1 else f"attempts {_numbers(attempts)}, the same"
            yield from tasks.section(heading, whose)
            yield from ([Piece("  "), Piece(line)] for line in _lines_of(text, columns - 2))


def _lines_of(text: str, columns: int) -> Iterator[str]:
    """The lines of a text, without marks below a line of code that is folded: they would stand below other words."""
    is_folded = False
    for line in text.splitlines():
        shown = sanitize(line.replace("\t", "    "))
        if not is_folded or set(shown) - set(" ^~"):
            yield shown
        is_folded = cells(shown) > columns


def _below(names: Sequence[str], context: RunContext) -> Iterator[Line]:
    held = context.board.names_waiting_below(*names)
    return tasks.named_tasks("Holds", counted(len(held), "task"), held, _HELD_NAMED, context)


# --- One cause -----------------------------------------------------------------------------------------------------


def cause_page(cause: model.InboxCause, context: RunContext, evidence: model.EvidenceData, columns: int) -> list[Line]:
    """The tasks of a cause: when, which kinds, what they hold, and the attempts and long texts of the first of them."""
    reason = wait_of(cause.tasks, context)
    state = TaskState.DEAD_LETTER if cause.dead or reason is not None else TaskState.FAILED
    head = two_sided(
        [Piece(" "), Piece(one_line(cause.title), Role.TITLE)],
        [state_sign(state, context.glyphs), Piece(f" {number(cause.count)}", STATE_STYLES[state].role), Piece(" ")],
        columns,
        context.glyphs.more,
    )
    return [
        head,
        *indented(_sentence(verdict_of(cause.tasks, context)), columns, Role.STRONG),
        *(indented(message, columns) if (message := message_of(cause)) else ()),
        [],
        *(_cause_of_failure(cause, context, evidence, columns) if reason is None else _cause_of_wait(cause, context)),
    ]


def _cause_of_wait(cause: model.InboxCause, context: RunContext) -> Iterator[Line]:
    """The kinds of the waiting tasks, since when they wait, and what they hold."""
    yield _kinds_line(cause, context)
    yield _labelled_value("since", f"{wall_day(cause.oldest)}, {age(context.now_us - cause.oldest)} ago")
    yield from _below(cause.tasks, context)


def _cause_of_failure(
    cause: model.InboxCause, context: RunContext, evidence: model.EvidenceData, columns: int
) -> list[Line]:
    return [
        *cause_history_lines(evidence.cause_history, context.now_us, columns),
        *_counted(cause, context),
        *_fields(evidence.texts, context, columns),
        *_below(cause.tasks, context),
        *_first_task(context.board.row(cause.tasks[0]), context, evidence, columns),
        *rule_of_poison(context.board.row(cause.tasks[0]), columns),
        *text_lines(evidence.texts, 0, context, columns),
    ]


def _first_task(row: TaskRow, context: RunContext, evidence: model.EvidenceData, columns: int) -> Iterator[Line]:
    """The attempts of the task whose texts stand for the cause, and whether earlier runs had this failure."""
    yield from tasks.section(one_line(row.name), "the first of them")
    yield from _history(row, context, evidence.history)
    if row.attempts:
        yield from attempt_table(row, model.compare(model.failures_of(row)), context, columns, evidence.texts)


def _counted(cause: model.InboxCause, context: RunContext) -> Iterator[Line]:
    yield _kinds_line(cause, context)
    yield _labelled_value("first seen", f"{wall_day(cause.first_seen)}, {age(context.now_us - cause.first_seen)} ago")
    yield _labelled_value("last seen", f"{wall_day(cause.last_seen)}, {age(context.now_us - cause.last_seen)} ago")
    yield _labelled_value("fingerprint", one_line(cause.fingerprint)[:FINGERPRINT_DIGITS])
    if cause.downstream:
        yield _labelled_value("downstream", one_line(cause.downstream))


def _kinds_line(cause: model.InboxCause, context: RunContext) -> Line:
    """The number of its tasks in the inbox by kind of reason."""
    kinds = Counter(model.kind_of(context.board.row(name), context.view(name).reason) for name in cause.tasks)
    return _labelled_value(
        "tasks", ", ".join(f"{number(count)} {one_line(kind)}" for kind, count in kinds.most_common())
    )


def _fields(texts: Sequence[model.AttemptTexts], context: RunContext, columns: int) -> Iterator[Line]:
    """The parts of the fingerprint of the latest failure."""
    if texts and (text := _detail_text(texts[-1].long.fingerprint_detail, context.glyphs.dot)):
        yield from labelled("taken from", one_line(text), columns)


def _detail_text(fingerprint_detail: str, dot: str) -> str:
    """``type httpx.HTTPStatusError · place fetch.py:get · status 404``. ``fingerprint_detail``: JSON of an attempt."""
    detail = json.loads(fingerprint_detail) if fingerprint_detail else {}
    return f" {dot} ".join(" ".join(field).rstrip() for field in detail.get("fields") or ())


def _labelled_value(label: str, value: str) -> Line:
    return [Piece(f" {pad(label, _LABEL_CELLS - 1)}", Role.DIM), Piece(value)]


# --- Past durations of a task, in all and by day of the week: one line each ------------------------------------------


def quantile_lines(past: Sequence[advice.PastDuration], *, only_other_days: bool = False) -> list[str]:
    """Quantiles of past durations; empty if no attempt ended. Days with too few attempts are left out.

    ``only_other_days``: also leave out days that are like the others.
    """
    total = advice.duration_stats(past)
    if total is None:
        return []
    days = {
        day: one
        for day, one in advice.stats_by_weekday(past).items()
        if not (only_other_days and _is_alike(one, total))
    }
    words = ("took", *(advice.WEEKDAYS[day] for day in days))
    return [f"{word:9} {_quantiles(one)}" for word, one in zip(words, (total, *days.values()), strict=True)]


def _is_alike(quantiles: advice.DurationQuantiles, other: advice.DurationQuantiles) -> bool:
    return quantiles.p50 < advice.WEEKDAY_DIFFERS * other.p50 and other.p50 < advice.WEEKDAY_DIFFERS * quantiles.p50


def _quantiles(quantiles: advice.DurationQuantiles) -> str:
    p50, p95, p99 = (format_seconds(seconds) for seconds in (quantiles.p50, quantiles.p95, quantiles.p99))
    killed = f", {quantiles.killed} killed" if quantiles.killed else ""
    figures = f"p50 {p50}, p95 {p95}, p99 {p99}" if quantiles.count > 1 else p50
    return f"{figures} in {counted(quantiles.count, 'attempt')}{killed}"
