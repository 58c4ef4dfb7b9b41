"""The details of one task: why it is in its state, its attempts, what changed between them, its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from ...engine.core.failures import hang
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import with_overrides
from ...engine.core.views import describe_kill, failure_mode_word, row_style
from ...engine.domain.states import APPROVAL, NEEDS_HUMAN, NOT_STARTED, TaskUsage
from ...engine.domain.task_options import describe_overrides, load_overrides
from ...engine.domain.text import counted, format_bytes, format_duration, format_seconds
from ...engine.domain.trigger_rules import ALL_SUCCESS
from ..model.inbox import AttemptTexts, compare, failures_of, fingerprint_of, verdict
from ..text.figures import FINGERPRINT_DIGITS, clock, offset, wall
from ..text.pieces import Line, Piece, Role, first_that_fits, fit, indented, two_sided, width, wrap
from ..text.text import cells, one_line, sanitize, shorten
from . import tasks
from .log import line_text
from .states import sign_and_word, sign_of

_LOG_LINES = 12
_RELATIVES_MAX = 20
_NAME_CELLS_MIN = 8
_INDENT = Piece("  ")
_ATTEMPT_INDENT = 6
_TEXT_PIECE = 4  # the piece of ``attempt_line`` that holds its text


def title_line(row: TaskRow, scene: tasks.Scene, columns: int) -> Line:
    """Name, state and age."""
    right: Line = [sign_and_word(row_style(row, scene.runner), scene.glyphs)]
    if row.state in NEEDS_HUMAN and row.ended_at is not None:
        right.append(Piece(f" for {clock(scene.now_us - row.ended_at).strip()}"))
    name = _name_within(row.name, max(columns - width(right) - 4, _NAME_CELLS_MIN), scene)
    return two_sided([Piece(" "), Piece(name, Role.TITLE)], [*right, Piece(" ")], columns)


def _name_within(name: str, size: int, scene: tasks.Scene) -> str:
    """The whole name, or as lists show it where it has no room."""
    whole = one_line(name)
    return whole if cells(whole) <= size else scene.names.short(name, size, scene.glyphs.more)


def summary_lines(row: TaskRow, scene: tasks.Scene, columns: int, rows: int) -> list[Line]:
    """The task in at most ``rows`` rows: state and verdict, its attempts, the number of tasks that it holds.

    A verdict without room loses what it compared, and continues in rows that nothing else needs.
    """
    head: Line = [
        Piece(" "),
        Piece(_name_within(row.name, max(columns // 2, _NAME_CELLS_MIN), scene), Role.TITLE),
        Piece("  "),
        sign_and_word(row_style(row, scene.runner), scene.glyphs),
    ]
    if row.state in NEEDS_HUMAN and row.ended_at is not None:
        head.append(Piece(f" for {clock(scene.now_us - row.ended_at).strip()}"))
    last = _held_text(row, scene)
    shown = tasks.latest_first(row)[: max(rows - 1 - bool(last), 0)]
    below = [_attempt_within(columns, attempt_line(attempt, scene, checks), scene) for attempt, checks in shown]
    if last and len(below) + 1 < rows:
        below.append([Piece("   "), *last])
    free = max(rows - len(below), 1)
    heads = [[*head, *_conclusion(row, scene, is_brief=is_brief)] for is_brief in (False, True)]
    wrapped = wrap(heads[0], columns, 1) if free > 1 else [first_that_fits(heads, columns)]
    lines = [*wrapped[: free - 1], [piece for line in wrapped[free - 1 :] for piece in line], *below]
    return [fit(line, columns, scene.glyphs.more) for line in lines[:rows] if line]


def _conclusion(row: TaskRow, scene: tasks.Scene, *, is_brief: bool) -> Line:
    """The verdict on a task that needs a human; else why it waits, or its facts."""
    failures = failures_of(row)
    if row.state in NEEDS_HUMAN and len(failures) > 1:
        return [Piece(f" {scene.glyphs.dot} {verdict(compare(failures), is_brief=is_brief)}")]
    if row.state in NEEDS_HUMAN:
        return [Piece(f" {scene.glyphs.dot} {one_line(row.error or row.dead_letter_kind or '')}")]
    if row.state in NOT_STARTED:
        return [
            Piece(
                f" {scene.glyphs.dot} {one_line(scene.board.explain(row.name, scene.now_us, scene.runner))}", Role.DIM
            )
        ]
    return [Piece("  "), *tasks.state_facts(row, scene)[2:]]


def _held_text(row: TaskRow, scene: tasks.Scene) -> Line:
    count = scene.board.waiting_below(row.name)
    if not count or row.state not in NEEDS_HUMAN:
        return []
    return [Piece(f"holds {counted(count, 'task')} and the run's end")]


def attempt_line(attempt: AttemptRow, scene: tasks.Scene, checks: int = 0) -> Line:
    """One attempt in one row. ``checks``: how many checks before it found nothing either."""
    view = scene.attempt(attempt)
    when = wall(attempt.started_at)
    failure = (
        tasks.short_failure(attempt.explain or "") or attempt.error or attempt.where or view.word
    ) + tasks.describe_checks_before(checks)
    line: Line = [
        Piece(f"   #{attempt.attempt:<2} ", Role.DIM),
        sign_of(view, scene.glyphs),
        Piece(f" {when} {offset(view.clock)}", Role.DIM),
        Piece("  "),
        Piece(one_line(failure)),
    ]
    if mark := fingerprint_of(attempt):
        line.append(Piece(f"  fp {one_line(mark)[:FINGERPRINT_DIGITS]}", Role.DIM))
    return line


def _attempt_within(columns: int, line: Line, scene: tasks.Scene) -> Line:
    """The line with less of its text, which lets the fingerprint behind it stand whole."""
    text = line[_TEXT_PIECE]
    room = max(columns - width(line) + cells(text.text), _NAME_CELLS_MIN)
    return [
        *line[:_TEXT_PIECE],
        text._replace(text=shorten(text.text, room, scene.glyphs.more)),
        *line[_TEXT_PIECE + 1 :],
    ]


# --- The whole page ------------------------------------------------------------------------------------------------


def detail_page(
    row: TaskRow, scene: tasks.Scene, texts: AttemptTexts | None, columns: int, rows: int = 0
) -> list[Line]:
    """Everything known about a task, the most important first. More of its log fills a page of ``rows`` rows."""
    before = [
        title_line(row, scene, columns),
        *_sentences(row, scene, columns),
        *_usage_lines(scene.board.usage.get(row.name) if scene.view(row.name).clock is not None else None, columns),
        *_attempt_lines(row, scene, columns, texts),
        *_comparison(row),
    ]
    after = [*_typical_durations(row, scene), *_relatives(row, scene), *_rules(row)]
    shown = [*text_lines(texts, _LOG_LINES, scene)]
    free = rows - len(before) - len(shown) - len(after)
    return [*before, *(text_lines(texts, _LOG_LINES + free, scene) if free > 0 else shown), *after]


def _sentences(row: TaskRow, scene: tasks.Scene, columns: int) -> Iterator[Line]:
    links = scene.board.blocking_chain(row.name, scene.now_us, scene.runner)
    for place, (name, sentence) in enumerate(links):
        text = sentence if not place else f"{name}: {sentence}"
        lead = " " if not place else f"  {scene.glyphs.arrow} "
        for first, *rest in wrap([Piece(lead, Role.DIM), Piece(one_line(text))], columns - 1, len(lead)):
            yield [first._replace(role=Role.DIM), *rest]
    held = _held_text(row, scene)
    if held:
        yield [Piece(" "), *held]
    if row.spec is not None and row.spec.owner is not None:
        yield [Piece(f" owner: {one_line(row.spec.owner)}", Role.DIM)]


def _usage_lines(usage: TaskUsage | None, columns: int) -> Iterator[Line]:
    """What a running task uses now, and the last line that it wrote."""
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


def _attempt_lines(row: TaskRow, scene: tasks.Scene, columns: int, texts: AttemptTexts | None) -> Iterator[Line]:
    if not row.attempts:
        return
    counted, in_all = tasks.attempts_text(row), f"{len(row.attempts)} in all"
    counts = f"{counted}{f' since the requeue, {in_all}' if row.generation else ''}" if counted else in_all
    yield from tasks.section("Attempts", counts)
    for attempt, checks in tasks.latest_first(row):
        yield from _attempt_head(attempt, scene, columns, checks)
        written = texts.output_bytes if texts is not None and texts.attempt == attempt.attempt else None
        yield from _attempt_facts(attempt, scene, columns, written or attempt.output_bytes)


def _attempt_head(attempt: AttemptRow, scene: tasks.Scene, columns: int, checks: int) -> Iterator[Line]:
    line = attempt_line(attempt, scene, checks)
    if width(line) <= columns:
        yield line
        return
    yield [piece for piece in line if piece not in (line[_TEXT_PIECE], line[_TEXT_PIECE - 1])]
    yield from indented(line[_TEXT_PIECE].text, columns, Role.TEXT, _ATTEMPT_INDENT)


#: The modes of a failure (``FailureMode``) in words.
_MODES = {"hang": "it hung", "slow": "it was slow", "poisoned": "failed alike before"}


def _attempt_facts(attempt: AttemptRow, scene: tasks.Scene, columns: int, written: int) -> Iterator[Line]:
    cpu_us = (attempt.cpu_user_us or 0) + (attempt.cpu_system_us or 0)
    if attempt.error and attempt.explain:
        yield from indented(attempt.error, columns, Role.TEXT, _ATTEMPT_INDENT)
    words = [
        f"class {attempt.failure_class.lower()}" if attempt.failure_class else "",
        _MODES.get(mode := failure_mode_word(attempt), mode),
        f"exit {attempt.exit_code}" if attempt.exit_code else "",
        f"signal {attempt.signal}" if attempt.signal else "",
        f"then waited {waited}" if (waited := tasks.waited_text(attempt)) else "",
        f"peak {format_bytes(attempt.max_rss_kb * 1024)}" if attempt.max_rss_kb else "",
        f"cpu {format_duration(cpu_us)}" if attempt.cpu_user_us else "",
        f"log {format_bytes(written)}" if written else "",
        "late: it changed nothing" if attempt.late else "",
    ]
    text = f" {scene.glyphs.dot} ".join(one_line(word) for word in words if word)
    if text:
        yield from indented(text, columns, Role.DIM, _ATTEMPT_INDENT)
    for part in _kill_steps(attempt):
        yield from indented(part, columns, Role.WARNING, _ATTEMPT_INDENT)


def _kill_steps(attempt: AttemptRow) -> Iterator[str]:
    """The steps of a kill."""
    steps = describe_kill(attempt)
    if not steps:
        return
    if attempt.where and not tasks.hang_of(attempt):  # the autopsy sentence names the place
        steps.append(f"it was in {attempt.where}")
    yield "; ".join(steps)


def _comparison(row: TaskRow) -> Iterator[Line]:
    failures = failures_of(row)
    if len(failures) < 2:
        return
    comparison = compare(failures)
    yield []
    yield [Piece(" Changed between ", Role.STRONG), Piece(f" {verdict(comparison)}")]
    for change in (*comparison.environment, *comparison.results):
        text = f"#{change.attempt} {change.what}: {change.before} -> {change.after}"
        yield [Piece(f"   {one_line(text)}", Role.DIM)]


def text_lines(texts: AttemptTexts | None, log_lines: int, scene: tasks.Scene) -> Iterator[Line]:
    """The long texts of an attempt, and the last ``log_lines`` of its log."""
    if texts is None:
        return
    stack, autopsy = hang.split_stack_and_report(texts.long.stack)
    parts = (
        ("Diagnostic", texts.long.diagnostic),
        ("Traceback", texts.long.traceback),
        ("Stack at the timeout", stack),
        ("What it did and held at the timeout", autopsy),
        ("Log, its end", "\n".join(line_text(line, scene.glyphs) for line in texts.log[-log_lines:])),
    )
    for heading, text in parts:
        if text.strip():
            yield from tasks.section(heading, f"attempt {texts.attempt}")
            for line in text.rstrip().splitlines():
                yield [_INDENT, Piece(sanitize(line.replace("\t", "    ")))]


_ATTEMPTS_OF_A_SHARE = 20  # of fewer, 95 of 100 are all


def _typical_durations(row: TaskRow, scene: tasks.Scene) -> Iterator[Line]:
    """Durations in earlier runs."""
    usual = scene.board.duration_stats.get(row.name)
    if usual is None:
        return
    many = f"{counted(usual.attempts, 'attempt')} in earlier runs"
    within = f", 95 of 100 within {format_duration(usual.p95_us)}" if usual.attempts >= _ATTEMPTS_OF_A_SHARE else ""
    yield from tasks.section("Usually", f"{format_duration(usual.p50_us)}{within} {scene.glyphs.dot} {many}")


def _relatives(row: TaskRow, scene: tasks.Scene) -> Iterator[Line]:
    parents, children = scene.board.dag.parents(row.name), scene.board.dag.children(row.name)
    yield from tasks.named_tasks("Waits for", str(len(parents)), parents, _RELATIVES_MAX, scene)
    yield from tasks.named_tasks("Followed by", str(len(children)), children, _RELATIVES_MAX, scene)


def _rules(row: TaskRow) -> Iterator[Line]:
    """The options of the task, and what an operator changed for this generation."""
    spec = with_overrides(spec_of(row), row.overrides)
    retry = spec.retry
    changed = describe_overrides(load_overrides(row.overrides))
    waits = f"{format_seconds(retry.base)} to {format_seconds(retry.cap)}"
    words = [
        f"requeued with {changed}, this time only" if changed else "",
        f"{retry.max_attempts} attempts, backoff {waits}, {retry.jitter} jitter"
        if retry.max_attempts > 1
        else "1 attempt" * (spec.kind != APPROVAL),
        f"timeout {format_seconds(spec.timeout)}, then {format_seconds(spec.grace_seconds)} of grace"
        if spec.timeout
        else "no timeout",
        f"downstream {spec.downstream}" if spec.downstream else "",
        f"pool {spec.pool}" if spec.pool else "",
        f"starts on {spec.rule.replace('_', ' ')}" if spec.rule != ALL_SUCCESS else "",
        "an effect: done at most once" if spec.effect else "",
        "not idempotent: a lost attempt is not run again" if not (spec.idempotent or spec.effect) else "",
        f"$ {spec.command}" if spec.command else "",
        f"from {spec.source}" if spec.source else "",
    ]
    yield from tasks.section("Rules")
    for word in words:
        if word:
            yield [Piece(f"   {one_line(word)}", Role.DIM)]
