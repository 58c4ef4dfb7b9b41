"""All data of one breaker, page, group of quarantined rows or row, the most important first.

The list shows the first lines of it, and Enter opens all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from ...engine.core.breaker import HOLDING, BreakerState, BreakerStatus
from ...engine.core.causes import PageBody, describe_history
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import ROWS_LIMIT
from ...engine.core.views import StateStyle
from ...engine.domain.event_payloads import BreakerChanged
from ...engine.domain.events import Event
from ...engine.domain.rows import PageRow
from ...engine.domain.text import counted, first_names, format_duration, format_seconds
from ...engine.statefile.lists import QuarantineGroup, QuarantineRow
from ..model.systems import Item, sender_names
from ..text.event_text import describe_event
from ..text.figures import number, wall, wall_day
from ..text.pieces import Line, Piece, Role, wrap
from ..text.text import one_line, sanitize
from . import systems
from .states import sign_of
from .tasks import RunContext

_INDENT = 3
_TOKEN_BAR_CELLS = 10
_HELD_NAMED = 12


def subject_lines(subject: Item, more: Any, context: RunContext, columns: int) -> list[Line]:
    """The details of a subject, wrapped to ``columns``.

    ``more``: the text of a page, the changes of a breaker, the first rows of a group; None while it is being read.
    """
    if isinstance(subject, BreakerStatus):
        head, rest = (
            _breaker_head(subject, context),
            [*_breaker_lines(subject, context), *_changes(more or (), context)],
        )
    elif isinstance(subject, PageRow):
        head, rest = _page_head(subject, context), list(_page_lines(subject, more or PageBody(), context))
    else:
        has_states = len(systems.row_counts(subject)) > 1
        rows = [
            systems.quarantined_row(row, subject.error, columns - _INDENT, context.row_context, has_state=has_states)
            for row in more or ()
        ]
        head, rest = _group_head(subject, context), [*_group_lines(subject, context), *([[], *rows] if rows else ())]
    lines = wrap(head, columns - 1, _INDENT)
    for line in rest:
        lines += wrap([Piece(" " * _INDENT), *line], columns - 1, _INDENT)
    return lines


def _head(title: str, style: StateStyle, word: str, parts: Iterable[str], context: RunContext) -> Line:
    line: Line = [Piece(" "), Piece(one_line(title), Role.TITLE), Piece(" "), sign_of(style, context.glyphs)]
    line.append(Piece(f" {word}", style.role))
    for part in filter(None, parts):
        line += [Piece(f" {context.glyphs.dot} ", Role.DIM), Piece(part)]
    return line


def _age(at: int, context: RunContext) -> str:
    return f"for {format_duration(context.now_us - at)}"


# --- A breaker -----------------------------------------------------------------------------------------------------


def _breaker_head(status: BreakerStatus, context: RunContext) -> Line:
    style = systems.breaker_style(status)
    word = style.word if status.since is None else f"{style.word} {_age(status.since, context)}"
    episode = f"episode {number(status.breaker.episode)}" if status.breaker.episode else ""
    return _head(status.name, style, word, [one_line(status.why), episode], context)


def _breaker_lines(status: BreakerStatus, context: RunContext) -> Iterator[Line]:
    spec, dot = status.spec, context.glyphs.dot
    found = status.totals(context.now_us)
    percent = 100 * (found.failures - found.repeats) // max(found.calls - found.repeats, 1)
    share = f" ({percent} %{' without retries' if found.repeats else ''})" if found.failures else ""
    none = "no calls but probes" if status.state in HOLDING else "no calls"
    rule = f" {dot} opens after {spec.minimum_calls} in a row, or well above {spec.failure_rate * 100:g} %"
    yield [
        Piece(f"{number(found.failures)} of {number(found.calls)} calls failed{share}" if found.calls else none),
        Piece(f" in {format_seconds(spec.window_seconds)}{'' if status.state in HOLDING else rule}", Role.DIM),
    ]
    yield [
        Piece("retries ", Role.DIM),
        *systems.tokens(
            status, context.row_context, _TOKEN_BAR_CELLS, systems.retries_left(status, context.row_context)
        ),
        Piece(f" {dot} each success adds {spec.bucket_refund:g}, each second {spec.bucket_per_second:g}", Role.DIM),
    ]
    yield [Piece(one_line("".join(_held_text(status))))]
    yield [Piece(_closing_text(status), Role.DIM)]
    if status.is_degraded(context.now_us):
        yield [Piece("degraded: most successes needed a retry", Role.WARNING)]


def _changes(changes: Sequence[Event], context: RunContext) -> Iterator[Line]:
    """Instants at which the breaker opened and closed, the latest first; a failed probe changes nothing."""
    states = [(one.payload.state, one.actor) if isinstance(one.payload, BreakerChanged) else None for one in changes]
    known = [(state, one) for state, one in zip(states, changes, strict=True) if state and state[0] != "HALF_OPEN"]
    if known:
        yield []
    for _, alike in groupby(reversed(known), lambda one: one[0]):
        latest, *others = [event for _, event in alike]
        more = f" {context.glyphs.dot} {number(len(others) + 1)} times since {wall(others[-1].at)}" if others else ""
        who = f" {context.glyphs.dot} {one_line(latest.actor)}" if latest.actor else ""
        words = [Piece(f"{one_line(describe_event(latest))}{who}"), Piece(more, Role.DIM)]
        yield [Piece(f"{wall(latest.at)}  ", Role.DIM), *words]


def _held_text(status: BreakerStatus) -> Iterator[str]:
    yield f"holds {counted(len(status.held), 'task')}" if status.held else "holds no task"
    if status.held:
        yield f": {first_names(status.held, _HELD_NAMED)}"
    if status.running:
        yield f"; {counted(status.running, 'call')} on the way"


def _closing_text(status: BreakerStatus) -> str:
    spec = status.spec
    if status.state is BreakerState.METRICS_ONLY:
        return "counts calls only; never holds a task"
    is_paced = spec.release_per_second > 0
    pace = f"{spec.release_per_second:g} a second, twice as many each further second" if is_paced else "all at once"
    what = {"fail": "end as failed", "dead_letter": "become dead letters"}.get(spec.on_open, "wait")
    probes = f"most of {spec.probes} probes succeed" if spec.probes > 1 else "a probe succeeds"
    return f"while it is open tasks {what}; once {probes} they go on, {pace}"


# --- A page --------------------------------------------------------------------------------------------------------


def _page_head(page: PageRow, context: RunContext) -> Line:
    style, dot = systems.page_style(page.state), context.glyphs.dot
    times = f"{number(page.counted)} times" if page.counted > 1 else ""
    when = f"first {wall_day(page.created_at)}"
    if page.counted > 1 and page.state == "open":
        when += f", last {wall(page.updated_at)}"
    words = systems.page_state(page, context.row_context).text
    line = _head(page.title, style, f"{words}, {one_line(page.severity)}", [times, when], context)
    if page.run_id is not None and page.run_id != context.board.projection.run.run_id:
        line.append(Piece(f" {dot} run {one_line(page.run_id)}", Role.WARNING))
    return line


def _page_lines(page: PageRow, body: PageBody, context: RunContext) -> Iterator[Line]:
    yield _sent(page, has_sender=bool(sender_names(context.board.projection.run.options)))
    if body.why:
        yield [Piece(_sentence(body.why))]
    yield from _labelled(("diagnostic", body.diagnostic), ("error", body.error))
    if body.changed is not None:
        words = ", ".join(one_line(word) for word in body.changed) or "nothing"
        yield [Piece("changed between the last two attempts ", Role.DIM), Piece(words)]
    yield from _cause_history(body, context)
    if body.held:
        yield [Piece("below it ", Role.DIM), Piece(f"{counted(body.held, 'task')} held up")]
    if body.deadline_at:
        yield [Piece("the run is due at ", Role.DIM), Piece(wall(body.deadline_at))]
    yield from _labelled(
        ("owner", body.owner), ("downstream", body.downstream), ("cause", page.cause), ("to act", body.command)
    )


def _labelled(*facts: tuple[str, str | None]) -> Iterator[Line]:
    for label, text in facts:
        if text:
            yield [Piece(f"{label} ", Role.DIM), Piece(one_line(text))]


def _cause_history(body: PageBody, context: RunContext) -> Iterator[Line]:
    """The history of the cause, as of when the page was written: the notes, and the latest incident."""
    if body.memory is not None:
        latest = replace(body.memory, episodes=body.memory.episodes[:1])
        for when, what in describe_history(latest, context.now_us):
            yield [Piece(when, Role.DIM), Piece(one_line(what))]


def _sent(page: PageRow, *, has_sender: bool) -> Line:
    if page.send_error is not None:
        again = "tried again, at growing intervals" if page.state == "open" else "not tried any more"
        return [Piece(f"not sent: {one_line(page.send_error)}", Role.WARNING), Piece(f"; {again}", Role.DIM)]
    if page.sent_at is not None:
        return [Piece("sent at ", Role.DIM), Piece(wall(page.sent_at))]
    words = "not sent yet" if has_sender else "not sent: the flow names no sender"
    return [Piece(words, Role.DIM if page.is_idle else Role.TEXT)]


def _sentence(text: object) -> str:
    sentence = one_line(str(text))
    return f"{sentence[:1].upper()}{sentence[1:]}"


# --- Quarantined rows ----------------------------------------------------------------------------------------------


def _group_head(group: QuarantineGroup, context: RunContext) -> Line:
    counts = systems.row_counts(group)
    word = counts[0] if counts else "none left"
    when = f"first {wall_day(group.first_at)}, last {wall(group.last_at)}"
    return _head(group.name, systems.group_style(group), word, [", ".join(counts[1:]), when], context)


def _group_lines(group: QuarantineGroup, context: RunContext) -> Iterator[Line]:
    yield [Piece(one_line(group.error) or "no error was given")]
    row = context.board.projection.tasks.get(group.name)
    if row is None:
        return
    spec = spec_of(row)
    most = "" if spec.max_bad_rows is None else f"more than {number(spec.max_bad_rows)} bad rows"
    share = "" if spec.max_bad_ratio is None else f"more than {spec.max_bad_ratio * 100:g} % of them bad"
    limits = " or ".join(filter(None, (most or f"more than {number(ROWS_LIMIT)} bad rows", share)))
    partial = "; held rows make the run PARTIAL" if spec.strict_rows else ""
    yield [Piece(f"{limits} would stop the task{partial}", Role.DIM)]
    if group.fingerprint:
        yield [Piece("fingerprint ", Role.DIM), Piece(one_line(group.fingerprint))]


# --- One row -------------------------------------------------------------------------------------------------------


def row_lines(row: QuarantineRow, columns: int) -> list[Line]:
    """All data of one quarantined row, with its payload line by line."""
    facts = (
        ("task", one_line(row.name)),
        ("state", one_line(row.state)),
        ("attempt", f"{row.attempt}, generation {row.generation}"),
        ("set aside", wall_day(row.at)),
        ("fingerprint", one_line(row.fingerprint or "none")),
    )
    lines: list[Line] = [[Piece(f"{label:<12} ", Role.DIM), Piece(text)] for label, text in facts]
    lines += [[], [Piece("error", Role.STRONG)], *_texts(row.error, columns)]
    return [*lines, [], [Piece("what it held", Role.STRONG)], *_texts(row.payload, columns)]


def _texts(text: object, columns: int) -> Iterator[Line]:
    shown = str(text) if text is not None else "its content was not stored"
    for line in shown.splitlines() or [""]:
        yield from wrap([Piece(sanitize(line, limit=len(line)))], columns)
