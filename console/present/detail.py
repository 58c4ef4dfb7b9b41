"""Everything about one task, as lines: why it is where it is, its attempts, what changed between, its relatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.core.failures import hang
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import with_overrides
from ...engine.domain.overrides import in_words, read
from ...engine.domain.states import NEEDS_HUMAN, NOT_STARTED
from ...engine.domain.trigger_rules import ALL_SUCCESS
from ..model.evidence import compare, failures_of, verdict
from ..text.durations import brief, clock, offset, size, spoken, wall
from ..text.glyphs import Glyph
from ..text.pieces import Line, Piece, Role, fit, two_sided, width
from ..text.text import one_line, sanitize
from .states import LOOKS, sign
from .tasks import Scene, explained, facts, hang_of, tries

FINGERPRINT_DIGITS = 6
_LOG_LINES = 12
_INDENT = Piece("  ")
_DEEP = " " * 6
_SAID = 4  # the piece of an attempt's line that says how it ended

#: outcome -> (field of Glyphs, role)
_OUTCOMES = {
    "running": (Glyph.RUNNING, Role.RUNNING),
    "success": (Glyph.DONE, Role.DONE),
    "error": (Glyph.FAILED, Role.FAILED),
    "timed_out": (Glyph.SIGKILL, Role.FAILED),
    "lost": (Glyph.LOST, Role.WAITING),
    "cancelled": (Glyph.CANCELLED, Role.SKIPPED),
    "deferred": (Glyph.SENSING, Role.WAITING),
    "skipped": (Glyph.SKIPPED, Role.SKIPPED),
}


@dataclass(frozen=True, slots=True)
class Texts:
    """The long texts of one attempt and the end of its log, as far as they have been read."""

    attempt: int
    traceback: str = ""
    stack: str = ""
    diagnostic: str = ""
    log: Sequence[str] = ()


def title_line(row: TaskRow, scene: Scene, columns: int) -> Line:
    """Name, state, since when."""
    look = LOOKS[row.state]
    right: Line = [Piece(f"{sign(row.state, scene.glyphs)} {look.word}", look.role)]
    if row.state in NEEDS_HUMAN and row.ended_at is not None:
        right.append(Piece(f" for {clock(scene.now_us - row.ended_at).strip()}"))
    return two_sided([Piece(" "), Piece(one_line(row.name), Role.TITLE)], [*right, Piece(" ")], columns)


def strip(row: TaskRow, scene: Scene, columns: int, rows: int) -> list[Line]:
    """The task in a few rows: state and verdict, the last attempts, what it holds."""
    look = LOOKS[row.state]
    head: Line = [
        Piece(" "),
        Piece(one_line(row.name), Role.TITLE),
        Piece("  "),
        Piece(f"{sign(row.state, scene.glyphs)} {look.word}", look.role),
    ]
    if row.state in NEEDS_HUMAN and row.ended_at is not None:
        head.append(Piece(f" for {clock(scene.now_us - row.ended_at).strip()}"))
    head += _remark(row, scene)
    last = _held(row, scene)
    shown = _attempts(row)[-max(rows - 1 - bool(last), 0) :] if rows > 1 else []
    lines = [head, *(attempt_line(one, scene) for one in shown)]
    if last and len(lines) < rows:
        lines.append([Piece("   "), *last])
    return [fit(line, columns, scene.glyphs.more) for line in lines[:rows]]


def _remark(row: TaskRow, scene: Scene) -> Line:
    """What a person may conclude, where there is something."""
    failures = failures_of(row)
    if row.state in NEEDS_HUMAN and len(failures) > 1:
        return [Piece(f" {scene.glyphs.dot} {verdict(compare(failures))}")]
    if row.state in NEEDS_HUMAN:
        return [Piece(f" {scene.glyphs.dot} {one_line(row.error or row.dead_letter_kind or '')}")]
    if row.state in NOT_STARTED:
        return [Piece(f" {scene.glyphs.dot} {one_line(scene.board.why(row.name, scene.now_us))}", Role.DIM)]
    return [Piece("  "), *facts(row, scene)[2:]]


def _held(row: TaskRow, scene: Scene) -> Line:
    count = scene.board.held_by(row.name)
    if not count or row.state not in NEEDS_HUMAN:
        return []
    return [Piece(f"holds {count:,} task{'' if count == 1 else 's'} and the run's end")]


def _attempts(row: TaskRow) -> list[AttemptRow]:
    return [row.attempts[number] for number in sorted(row.attempts)]


def attempt_line(attempt: AttemptRow, scene: Scene) -> Line:
    """One attempt in one row."""
    glyph, role = _OUTCOMES.get(attempt.outcome, (Glyph.LOST, Role.WAITING))
    took = attempt.duration_us
    if took is None:
        took = (attempt.ended_at or scene.now_us) - attempt.started_at
    when = wall(attempt.started_at, None)
    said = explained(attempt.explain or "") or attempt.error or attempt.where or attempt.outcome.replace("_", " ")
    line: Line = [
        Piece(f"   #{attempt.attempt:<2} ", Role.DIM),
        Piece(scene.glyphs.of(glyph), role),
        Piece(f" {when} {offset(took)}", Role.DIM),
        Piece("  "),
        Piece(one_line(said)),
    ]
    if attempt.fingerprint:
        line.append(Piece(f"  fp {one_line(attempt.fingerprint)[:FINGERPRINT_DIGITS]}", Role.DIM))
    return line


# --- The whole page ------------------------------------------------------------------------------------------------


def page(row: TaskRow, scene: Scene, texts: Texts | None, gone_at: int | None, columns: int) -> list[Line]:
    """All that is known, from what matters most to what is looked up."""
    return [
        title_line(row, scene, columns),
        *_sentences(row, scene, gone_at, columns),
        *_attempt_lines(row, scene, columns),
        *_comparison(row),
        *_texts(texts),
        *_usual(row, scene),
        *_relatives(row, scene),
        *_rules(row),
    ]


def _sentences(row: TaskRow, scene: Scene, gone_at: int | None, columns: int) -> Iterator[Line]:
    links = scene.board.chain(row.name, scene.now_us, gone_at)
    for place, (name, sentence) in enumerate(links):
        text = sentence if not place else f"{name}: {sentence}"
        lead = " " if not place else f"  {scene.glyphs.arrow} "
        for number, part in enumerate(_wrapped(one_line(text), columns - len(lead) - 1)):
            yield [Piece(lead if not number else " " * len(lead), Role.DIM), Piece(part)]
    held = _held(row, scene)
    if held:
        yield [Piece(" "), *held]
    if row.owner_note:
        yield [Piece(f" owner: {one_line(row.owner_note)}", Role.DIM)]


def _wrapped(text: str, columns: int) -> list[str]:
    """At spaces, as far as words allow."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > max(columns, 20):
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _attempt_lines(row: TaskRow, scene: Scene, columns: int) -> Iterator[Line]:
    if not row.attempts:
        return
    yield []
    yield [Piece(" Attempts ", Role.STRONG), Piece(f" {tries(row)} of this generation", Role.DIM)]
    for attempt in reversed(_attempts(row)):
        yield from _attempt_head(attempt, scene, columns)
        yield from _attempt_facts(attempt, scene, columns)


def _attempt_head(attempt: AttemptRow, scene: Scene, columns: int) -> Iterator[Line]:
    line = attempt_line(attempt, scene)
    if width(line) <= columns:
        yield line
        return
    yield [piece for piece in line if piece not in (line[_SAID], line[_SAID - 1])]
    yield from _folded(line[_SAID].text, columns, Role.TEXT)


def _folded(text: str, columns: int, role: Role) -> Iterator[Line]:
    """A text of an attempt, at its indentation, at words."""
    for part in _wrapped(one_line(text), columns - len(_DEEP) - 1):
        yield [Piece(_DEEP), Piece(part, role)]


def _cut(attempt: AttemptRow) -> str:
    """What the deadline of the run took from the wait."""
    return "" if attempt.shortened_us is None else f", shortened from {brief(attempt.shortened_us)} for the deadline"


def _attempt_facts(attempt: AttemptRow, scene: Scene, columns: int) -> Iterator[Line]:
    if attempt.error and attempt.explain:
        yield from _folded(attempt.error, columns, Role.TEXT)
    words = [
        f"class {attempt.failure_class.lower()}" if attempt.failure_class else "",
        f"mode {attempt.failure_mode}" if attempt.failure_mode else "",
        f"exit {attempt.exit_code}" if attempt.exit_code else "",
        f"signal {attempt.signal}" if attempt.signal else "",
        f"then waited {brief(attempt.delay_us)} of {brief(attempt.ceiling_us)}{_cut(attempt)}"
        if attempt.delay_us is not None and attempt.ceiling_us
        else "",
        f"peak {size(attempt.max_rss_kb * 1024)}" if attempt.max_rss_kb else "",
        f"cpu {brief((attempt.cpu_user_us or 0) + (attempt.cpu_system_us or 0))}" if attempt.cpu_user_us else "",
        f"log {size(attempt.output_bytes)}" if attempt.output_bytes else "",
        "late: it changed nothing" if attempt.late else "",
    ]
    said = f" {scene.glyphs.dot} ".join(one_line(word) for word in words if word)
    if said:
        yield from _folded(said, columns, Role.DIM)
    for part in _ladder(attempt):
        yield from _folded(part, columns, Role.WARNING)


def _ladder(attempt: AttemptRow) -> Iterator[str]:
    """The kill, step by step."""
    if attempt.deadline_at is None and attempt.sigterm_at is None:
        return
    steps = []
    if attempt.deadline_at is not None:
        steps.append(f"timeout {brief(attempt.timeout_us or 0)} passed at {wall(attempt.deadline_at, None)}")
    if attempt.sigterm_at is not None:
        steps.append("SIGTERM")
    if attempt.sigkill_at is not None:
        after = attempt.sigkill_at - (attempt.sigterm_at or attempt.sigkill_at)
        steps.append(f"ignored for {brief(after)}; SIGKILL at {wall(attempt.sigkill_at, None)}")
    if attempt.where and not hang_of(attempt):  # else that says it
        steps.append(f"it was in {attempt.where}")
    yield "; ".join(steps)


def _comparison(row: TaskRow) -> Iterator[Line]:
    failures = failures_of(row)
    if len(failures) < 2:
        return
    comparison = compare(failures)
    yield []
    yield [Piece(" Changed between ", Role.STRONG), Piece(f" {verdict(comparison)}")]
    for change in (*comparison.circumstances, *comparison.results):
        text = f"#{change.attempt} {change.what}: {change.before} -> {change.after}"
        yield [Piece(f"   {one_line(text)}", Role.DIM)]


def _texts(texts: Texts | None) -> Iterator[Line]:
    if texts is None:
        return
    stack, autopsy = hang.split(texts.stack)
    parts = (
        ("Diagnostic", texts.diagnostic),
        ("Traceback", texts.traceback),
        ("Stack at the timeout", stack),
        ("What it did and held then", autopsy),
        ("Log, its end", "\n".join(texts.log[-_LOG_LINES:])),
    )
    for heading, text in parts:
        if text.strip():
            yield []
            yield [Piece(f" {heading} ", Role.STRONG), Piece(f" attempt {texts.attempt}", Role.DIM)]
            for line in text.rstrip().splitlines():
                yield [_INDENT, Piece(sanitize(line.replace("\t", "    ")))]


def _usual(row: TaskRow, scene: Scene) -> Iterator[Line]:
    """How long it took in earlier runs."""
    usual = scene.board.usual.get(row.name)
    if usual is None:
        return
    many = f"{usual.attempts:,} attempt{'' if usual.attempts == 1 else 's'} in earlier runs"
    said = f" {brief(usual.p50_us)}, 95 of 100 within {brief(usual.p95_us)} {scene.glyphs.dot} {many}"
    yield []
    yield [Piece(" Usually ", Role.STRONG), Piece(said, Role.DIM)]


def _relatives(row: TaskRow, scene: Scene) -> Iterator[Line]:
    for heading, names in (
        ("After", scene.board.dag.parents(row.name)),
        ("Before", scene.board.dag.children(row.name)),
    ):
        if names:
            yield []
            yield [Piece(f" {heading} ", Role.STRONG), Piece(f" {len(names)}", Role.DIM)]
            for name in names[:20]:
                other = scene.board.row(name)
                look = LOOKS[other.state]
                yield [
                    Piece(f"   {sign(other.state, scene.glyphs)} ", look.role),
                    Piece(one_line(name)),
                    Piece(f"  {look.word}", Role.DIM),
                ]
            if len(names) > 20:
                yield [Piece(f"   {scene.glyphs.more} {len(names) - 20} more", Role.DIM)]


def _rules(row: TaskRow) -> Iterator[Line]:
    """What the flow says of it, and what an operator has changed for this generation."""
    spec = with_overrides(spec_of(row), row.overrides)
    retry = spec.retry
    changed = in_words(read(row.overrides))
    words = [
        f"requeued with {changed}, this time only" if changed else "",
        f"{retry.max_attempts} attempts, backoff {retry.base:g} s to {retry.cap:g} s, {retry.jitter} jitter",
        f"timeout {spoken(int(spec.timeout * 1e6))}, then {spec.grace_seconds:g} s of grace"
        if spec.timeout
        else "no timeout",
        f"downstream {spec.downstream}" if spec.downstream else "",
        f"pool {spec.pool}" if spec.pool else "",
        f"starts on {spec.rule.replace('_', ' ')}" if spec.rule != ALL_SUCCESS else "",
        "an effect: done at most once, whatever happens" if spec.effect else "",
        "not idempotent: a lost attempt is not run again" if not (spec.idempotent or spec.effect) else "",
        f"$ {spec.command}" if spec.command else "",
        f"from {spec.source}" if spec.source else "",
    ]
    yield []
    yield [Piece(" Rules ", Role.STRONG)]
    for word in words:
        if word:
            yield [Piece(f"   {one_line(word)}", Role.DIM)]
