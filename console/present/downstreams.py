"""Breakers, pages and quarantined rows, each in one row: sign, word, figures, and when something happens next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.core.breaker import BreakerState
from ...engine.domain.states import TaskState
from ...engine.statefile.queries import QuarantineRow
from ..model.board import Board
from ..model.breaker_view import Guard
from ..model.downstreams import Group, Page, Section, Systems, SystemsRow
from ..text.durations import SECOND, clock, number, wall
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, width
from ..text.text import one_line, pad, pad_left, shorten, shorten_middle
from .inbox import age
from .states import LOOKS, Look
from .tasks import Scene, bar, tries

GUARD_LOOKS: dict[BreakerState, Look] = {
    BreakerState.CLOSED: Look(Glyph.DONE, "closed", Role.DONE),
    BreakerState.OPEN: Look(Glyph.FAILED, "open", Role.FAILED),
    BreakerState.HALF_OPEN: Look(Glyph.RETRYING, "half-open", Role.WAITING),
    BreakerState.FORCED_OPEN: Look(Glyph.CANCELLED, "forced open", Role.HUMAN),
    BreakerState.DISABLED: Look(Glyph.SKIPPED, "disabled", Role.WARNING),
    BreakerState.METRICS_ONLY: Look(Glyph.PENDING, "metrics only", Role.DIM),
}
#: A breaker that opens again by nobody but a human.
BY_HAND = Look(Glyph.DEAD, "open", Role.HUMAN)

PAGE_LOOKS: dict[str, Look] = {
    "open": Look(Glyph.DEAD, "open", Role.HUMAN),
    "acked": Look(Glyph.DONE, "acked", Role.DIM),
    "snoozed": Look(Glyph.SENSING, "snoozed", Role.WAITING),
    "resolved": Look(Glyph.DONE, "resolved", Role.DONE),
}
_SEVERITY_ROLES = {"critical": Role.FAILED, "high": Role.TEXT}

_LEAD_CELLS = 4
_WORD_CELLS = 13  # "metrics only", and a gap
_NAME_CELLS = (9, 30)
_RATE_CELLS = 7
_TOKENS_CELLS = 3
_HOLDS_CELLS = 8
_WHEN_CELLS = 12  # "until closed"
_RATE_FROM, _HOLDS_FROM, _TOKENS_FROM = 46, 60, 76  # columns: narrower lists leave these out
_SEVERITY_CELLS = 8
_STATE_CELLS = 14
_AGE_CELLS = 7
_COUNT_CELLS = 6
_HELD_CELLS = 13


def guard_look(guard: Guard) -> Look:
    """Sign, word and colour of a breaker."""
    return (
        BY_HAND if guard.state is BreakerState.OPEN and guard.breaker.reopens_at is None else GUARD_LOOKS[guard.state]
    )


def page_look(page: Page) -> Look:
    """Sign, word and colour of a page."""
    return PAGE_LOOKS.get(page.state, PAGE_LOOKS["open"])


def group_look(group: Group) -> Look:
    """Sign, word and colour of rows that failed alike: what most of all is to be done about them."""
    if group.held:
        return Look(Glyph.DEAD, "held", Role.HUMAN)
    if group.counts.get("provisional"):
        return Look(Glyph.RUNNING, "provisional", Role.RUNNING)
    return Look(Glyph.RETRYING, "requeued", Role.WAITING) if group.counts.get("requeued") else LOOKS[TaskState.SUCCESS]


def sign_of(look: Look, glyphs: Glyphs) -> Piece:
    """Its sign."""
    return Piece(glyphs.of(look.glyph), look.role)


_TITLES = {Section.BREAKERS: "Breakers", Section.PAGES: "Pages", Section.ROWS: "Quarantined rows"}

# --- Heads of sections ---------------------------------------------------------------------------------------------


def head_row(section: Section, systems: Systems, senders: Sequence[str], columns: int, glyphs: Glyphs) -> Line:
    """What there is in a section, in one quiet line; above breakers also what their columns mean."""
    known = section in systems.known
    said, right = _HEADS[section](systems, senders, glyphs) if known else ([Piece("reading ...", Role.DIM)], [])
    left: Line = [Piece(f" {_TITLES[section]}", Role.STRONG), Piece("  "), *said]
    if section is Section.BREAKERS and systems.guards and known:
        return _captioned(left, columns, glyphs)
    if not right or width(right) >= columns // 2:
        return left
    return [*fit(left, columns - width(right) - 1, glyphs.more), *right]


def _head_of_breakers(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    guards = systems.guards.values()
    if not guards:
        return [Piece("no task names a downstream", Role.DIM)], []
    shut = sum(1 for guard in guards if guard.is_shut)
    if shut:
        return [Piece(f"{shut} of {len(guards)} open")], []
    are_closed = all(guard.state is BreakerState.CLOSED for guard in guards)
    return [Piece(f"{len(guards)} closed" if are_closed else f"none of {len(guards)} open", Role.DIM)], []


def _head_of_pages(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    pages = systems.pages.values()
    if not pages:
        return [Piece("nobody was called", Role.DIM)], _sending([], senders)
    counts = [(state, sum(1 for page in pages if page.state == state)) for state in PAGE_LOOKS]
    parts = [[Piece(f"{number(count)} {state}", _loud(state == "open"))] for state, count in counts if count]
    return join(parts, f" {glyphs.dot} "), _sending([page for page in pages if not page.is_quiet], senders)


def _sending(pages: Sequence[Page], senders: Sequence[str]) -> Line:
    """How pages leave this machine, and whether they do."""
    failing = sorted({one_line(page.send_error).partition(":")[0] for page in pages if page.send_error is not None})
    if failing:
        return [Piece(f"{', '.join(failing)} fail{'s' if len(failing) == 1 else ''}", Role.WARNING)]
    if not senders:
        return [Piece("the flow names no sender", Role.WARNING if pages else Role.DIM)]
    return [Piece(f"by {', '.join(one_line(sender) for sender in senders)}", Role.DIM)]


def _head_of_rows(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    groups = systems.groups.values()
    if not groups:
        return [Piece("no row was set aside", Role.DIM)], []
    states = ("held", "provisional", "requeued", "discarded", "resolved")
    counts = [(state, sum(group.counts.get(state, 0) for group in groups)) for state in states]
    parts = [[Piece(f"{number(count)} {state}", _loud(state == "held"))] for state, count in counts if count]
    return join(parts, f" {glyphs.dot} "), []


def _loud(is_loud: bool) -> Role:
    return Role.TEXT if is_loud else Role.DIM


_HEADS = {
    Section.BREAKERS: _head_of_breakers,
    Section.PAGES: _head_of_pages,
    Section.ROWS: _head_of_rows,
}


def past_row(section: Section, board: Board, columns: int) -> Line:
    """What the board knows of a section at another moment than now."""
    if section is Section.PAGES:
        count, what = sum(1 for note in board.moment.page_notes.values() if note == "page open"), "unacknowledged then"
    else:
        count, what = sum(row.bad_rows for row in board.fold.tasks.values()), "held then"
    return fit([Piece(f" {_TITLES[section]}", Role.STRONG), Piece(f"  {number(count)} {what}", Role.DIM)], columns)


def more_row(row: SystemsRow, key: str, glyphs: Glyphs) -> Line:
    """What is not shown yet."""
    what = {
        Section.BREAKERS: "closed" if row.key is None else "held",
        Section.PAGES: "resolved",
        Section.ROWS: "dealt with",
    }[row.section]
    indent = _LEAD_CELLS if row.key is None else _LEAD_CELLS + 2
    return [Piece(f"{' ' * indent}{glyphs.more} {number(row.hidden)} {what} ({key})", Role.DIM)]


# --- Breakers ------------------------------------------------------------------------------------------------------


def _name_cells(columns: int) -> int:
    """What the other columns leave for the name of a downstream."""
    taken = _LEAD_CELLS + 1 + _WORD_CELLS + 1 + _WHEN_CELLS
    taken += _rate_cells(columns) * (columns >= _RATE_FROM) + _tokens_cells(columns) * (columns >= _TOKENS_FROM)
    taken += (_HOLDS_CELLS + 1) * (columns >= _HOLDS_FROM)
    low, high = _NAME_CELLS
    return max(min(columns - taken - 1, high), low)


def _bar_cells(columns: int) -> int:
    return 4 if columns < 100 else 10


def _token_bar_cells(columns: int) -> int:
    return 3 if columns < 100 else 6


def _rate_cells(columns: int) -> int:
    """A bar between its ends, a gap, figures, a gap."""
    return _bar_cells(columns) + 2 + 1 + _RATE_CELLS + 1


def _tokens_cells(columns: int) -> int:
    return _token_bar_cells(columns) + 2 + 1 + _TOKENS_CELLS + 1


def _captioned(left: Line, columns: int, glyphs: Glyphs) -> Line:
    """What the figures below mean, where they stand."""
    at = _LEAD_CELLS + _name_cells(columns) + 1 + _WORD_CELLS + 1
    captions: Line = []
    if columns >= _RATE_FROM:
        captions.append(Piece(pad(" failed", _rate_cells(columns)), Role.DIM))
    if columns >= _TOKENS_FROM:
        captions.append(Piece(pad(" retries", _tokens_cells(columns)), Role.DIM))
    return [*fit(left, at, glyphs.more), *captions]


def guard_row(guard: Guard, is_open: bool, scene: Scene, columns: int) -> Line:
    """One breaker: how it is, what share of calls failed, what retries are left, whom it holds, what comes next."""
    glyphs, look = scene.glyphs, guard_look(guard)
    fold = (glyphs.open if is_open else glyphs.closed) if guard.held else " "
    cells = _name_cells(columns)
    name = shorten_middle(one_line(guard.name), cells, glyphs.more)
    line: Line = [
        Piece(f"{fold} "),
        sign_of(look, glyphs),
        Piece(f" {pad(name, cells, glyphs.more)} "),
        *_padded(Piece(look.word, look.role), _WORD_CELLS + 1),
    ]
    if columns >= _RATE_FROM:
        line += [*rate(guard, scene, _bar_cells(columns)), Piece(" ")]
    if columns >= _TOKENS_FROM:
        line += [*tokens(guard, scene, _token_bar_cells(columns)), Piece(" ")]
    if columns >= _HOLDS_FROM:
        line.append(Piece(f"{pad(f'holds {compact(len(guard.held))}' if guard.held else '', _HOLDS_CELLS)} "))
    return [*line, *next_step(guard, scene)]


def _padded(piece: Piece, cells: int) -> Line:
    return [piece, Piece(" " * max(cells - len(piece.text), 1))]


def rate(guard: Guard, scene: Scene, size: int) -> Line:
    """The share of calls that failed, as a bar and in figures; where none did, the figures are enough."""
    calls, failures = guard.totals(scene.now_us)
    said = pad(f"{compact(failures)}/{compact(calls)}" if calls else "none", _RATE_CELLS)
    if not failures:
        return [Piece(f"{' ' * (size + 3)}{said}", Role.DIM)]
    role = Role.FAILED if failures / calls >= guard.spec.failure_rate else Role.WAITING
    return [*bar(failures / calls, scene.glyphs, role, size), Piece(f" {said}")]


def tokens(guard: Guard, scene: Scene, size: int) -> Line:
    """The retries that are left, as a bar that drains and in figures; of a full one the figures are enough."""
    said, capacity = pad(compact(int(guard.tokens)), _TOKENS_CELLS), guard.spec.bucket_capacity
    if int(guard.tokens) >= int(capacity):
        return [Piece(f"{' ' * (size + 3)}{said}", Role.DIM)]
    role = Role.WAITING if guard.tokens < capacity / 2 else Role.DIM
    return [*bar(guard.tokens / capacity, scene.glyphs, role, size), Piece(f" {said}", role)]


def next_step(guard: Guard, scene: Scene) -> Line:
    """When something happens by itself: the end of the row, and all of it that ticks."""
    text, role = _next_step(guard, scene)
    return [Piece(pad(text, _WHEN_CELLS), role)]


def _next_step(guard: Guard, scene: Scene) -> tuple[str, Role]:
    breaker, now = guard.breaker, scene.now_us
    if breaker.state is BreakerState.OPEN and breaker.reopens_at is not None:
        return _due("probe", breaker.reopens_at, scene), Role.WAITING
    if guard.is_shut:
        return "until closed", Role.WARNING
    if breaker.state is BreakerState.HALF_OPEN:
        return "probing", Role.WAITING
    if guard.held and breaker.state is BreakerState.CLOSED and breaker.release_at is not None:
        return f"at {guard.spec.release_per_second:g}/s", Role.WAITING
    if guard.held and guard.is_spent:
        return _due("retry", guard.reserve_at, scene), Role.WAITING
    if guard.would_open(now):
        return "would open", Role.WARNING
    return ("degraded", Role.WARNING) if guard.is_degraded(now) else ("", Role.DIM)


def _due(word: str, at: int, scene: Scene) -> str:
    if at <= scene.now_us:
        return f"{word} due"
    return wall(at, None) if scene.absolute else f"{word} {clock(at - scene.now_us + SECOND - 1)}"


def held_row(name: str, scene: Scene, columns: int) -> Line:
    """A task that a breaker holds."""
    row, glyphs = scene.board.row(name), scene.glyphs
    look = LOOKS[row.state]
    cells = min(_NAME_CELLS[1], max(columns // 3, _NAME_CELLS[0]))
    waits_from = row.next_retry_at if row.next_retry_at is not None else row.changed_at
    return fit(
        [
            Piece(" " * (_LEAD_CELLS + 2)),
            sign_of(look, glyphs),
            Piece(f" {pad(shorten_middle(one_line(name), cells, glyphs.more), cells)} "),
            Piece(f"{tries(row):>5}  ", Role.DIM),
            Piece(pad(f"waits {_since(waits_from, scene)}", _AGE_CELLS + 8)),
            Piece(one_line(row.error or ""), Role.DIM),
        ],
        columns - 1,
        glyphs.more,
    )


# --- Pages ---------------------------------------------------------------------------------------------------------


def page_row(page: Page, scene: Scene, columns: int) -> Line:
    """One page: how urgent, how often, what for, who looks after it, since when."""
    glyphs, look = scene.glyphs, page_look(page)
    count = f"{glyphs.times}{compact(page.count)}" if page.count > 1 else ""
    quiet = Role.DIM if page.is_quiet else Role.TEXT
    left: Line = [
        Piece("  "),
        sign_of(look, glyphs),
        Piece(f" {pad(one_line(page.severity), _SEVERITY_CELLS)} ", _SEVERITY_ROLES.get(page.severity, Role.DIM)),
        Piece(one_line(page.title), quiet),
    ]
    right = page_end(page, scene)
    if columns >= _HOLDS_FROM:
        right = [Piece(f" {pad_left(count, _COUNT_CELLS - 1)}  "), *right]
    return [*fit(left, columns - width(right), glyphs.more), *right]


def page_end(page: Page, scene: Scene) -> Line:
    """State and age: the end of the row, and all of it that ticks."""
    look = page_look(page)
    text, role = look.word, Role.DIM if page.state in ("acked", "resolved") else Role.TEXT
    if page.is_unsent:
        text, role = "not sent", Role.WARNING
    elif page.state == "acked":
        text = shorten(f"acked {who(page.acked_by)}", _STATE_CELLS, scene.glyphs.more)
    elif page.state == "snoozed" and page.snoozed_until is not None:
        text, role = _until(page.snoozed_until, scene), Role.WAITING
    at = wall(page.first_at, None) if scene.absolute else age(scene.now_us - page.first_at)
    return [Piece(pad(text, _STATE_CELLS), role), Piece(f" {pad_left(at, _AGE_CELLS + 1)} ", Role.DIM)]


def _until(at: int, scene: Scene) -> str:
    if scene.absolute or at <= scene.now_us:
        return f"until {wall(at, None)}"
    return f"snoozed {clock(at - scene.now_us + SECOND - 1).strip()}"


def who(actor: str | None) -> str:
    """A person without the host: ``ana``."""
    return one_line((actor or "somebody").partition("@")[0])


# --- Quarantined rows ----------------------------------------------------------------------------------------------


def group_row(group: Group, scene: Scene, columns: int) -> Line:
    """Rows of one task that failed alike: how many wait, why, what became of the others."""
    glyphs, look = scene.glyphs, group_look(group)
    cells = max(min(columns // 4, _NAME_CELLS[1]), _NAME_CELLS[0])
    count = group.held or group.counts.get("provisional") or group.counts.get("requeued") or group.total
    word = look.word if not group.is_quiet else "done"
    quiet = Role.DIM if group.is_quiet else Role.TEXT
    left: Line = [
        Piece("  "),
        sign_of(look, glyphs),
        Piece(f" {pad(shorten_middle(one_line(group.key.task), cells, glyphs.more), cells)} ", quiet),
        Piece(f"{pad_left(compact(count), _COUNT_CELLS)} {pad(word, _HELD_CELLS - _COUNT_CELLS)} ", quiet),
        Piece(one_line(group.error) or "no error was given", quiet),
    ]
    right: Line = [Piece(f" {pad_left(_since(group.first_at, scene), _AGE_CELLS + 1)} ", Role.DIM)]
    if columns >= _HOLDS_FROM and (others := ", ".join(_others(group, word))):
        right = [Piece(f"  {others}", Role.DIM), *right]
    return [*fit(left, columns - width(right), glyphs.more), *right]


def _others(group: Group, word: str) -> Iterator[str]:
    for state in ("provisional", "requeued"):
        if state != word and group.counts.get(state):
            yield f"{compact(group.counts[state])} {state}"


def _since(at: int, scene: Scene) -> str:
    return wall(at, None) if scene.absolute else age(scene.now_us - at)


def compact(count: int) -> str:
    """At most four cells: ``999``, ``1.2k``, ``14k``, ``2M``."""
    if count < 1000:
        return str(count)
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            amount = count / size
            return f"{int(amount * 10) / 10:.1f}{unit}" if amount < 10 else f"{int(amount)}{unit}"
    raise AssertionError("unreachable")


_ROW_LOOKS: dict[str, Look] = {
    "held": Look(Glyph.DEAD, "held", Role.HUMAN),
    "provisional": Look(Glyph.RUNNING, "provisional", Role.RUNNING),
    "requeued": Look(Glyph.RETRYING, "requeued", Role.WAITING),
    "discarded": Look(Glyph.SKIPPED, "discarded", Role.DIM),
    "resolved": Look(Glyph.DONE, "resolved", Role.DONE),
}


def quarantined_row(row: QuarantineRow | None, error: str, columns: int, glyphs: Glyphs) -> Line:
    """One row that was set aside: what became of it, its key, and how it begins; its error where it is another one."""
    if row is None:
        return [Piece(f"   {glyphs.more}", Role.DIM)]
    look = _ROW_LOOKS.get(row.state, _ROW_LOOKS["held"])
    said, holds = one_line(row.error or ""), one_line(row.payload or "")
    cells = max(min(columns // 4, _NAME_CELLS[1]), _NAME_CELLS[0])
    line: Line = [
        Piece(" "),
        Piece(sign_of(look, glyphs).text, Role.DIM),  # the accent is on the group
        Piece(f" {pad(look.word, _WORD_CELLS)} ", Role.DIM),
        Piece(f"{pad(one_line(row.row_key), cells, glyphs.more)}  ", Role.STRONG),
    ]
    if said != one_line(error):
        line += [Piece(f"{said}  " if holds else said)]
    return fit([*line, Piece(holds, Role.DIM)], columns - 1, glyphs.more)


def rows_heading(group: Group, place: int, marked: int, columns: int, glyphs: Glyphs) -> tuple[Line, Line]:
    """Left and right side of the line above the rows of a group."""
    look = group_look(group)
    counts = ", ".join(f"{number(count)} {state}" for state in _ROW_LOOKS if (count := group.counts.get(state)))
    left: Line = [
        Piece(" "),
        Piece(one_line(group.key.task), Role.TITLE),
        Piece(" "),
        sign_of(look, glyphs),
        Piece(f" {counts}"),
        Piece(f"  {one_line(group.error)}", Role.DIM),
    ]
    right: Line = [Piece(f" {number(marked)} marked ", Role.MARK)] if marked else []
    right.append(Piece(f" {number(place)} of {number(group.total)} ", Role.DIM))
    return fit(left, columns - width(right) - 1, glyphs.more), right
