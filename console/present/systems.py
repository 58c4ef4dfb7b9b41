"""Breakers, pages and quarantined rows, each in one row: sign, word, figures, and the next event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...engine.core.breaker import BreakerState, BreakerStatus
from ...engine.core.causes import actor_name
from ...engine.core.views import STATE_STYLES, Sign, StateStyle
from ...engine.domain.rows import PageRow
from ...engine.domain.states import TaskState
from ...engine.domain.text import format_duration
from ...engine.statefile.lists import QuarantineGroup, QuarantineRow
from ..keys.keymap import shown_key
from ..model.board import Board
from ..model.snapshot import OPEN_NOTES
from ..model.systems import Section, Systems, SystemsRow
from ..text.columns import (
    FILL,
    CellText,
    Column,
    Columns,
    Width,
    chosen,
    field,
    limited,
    row_line,
    screen_row,
    screen_titles,
    with_fields,
)
from ..text.figures import SECOND, clock, number, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, plain, width
from ..text.text import cells, one_line
from .states import RowContext, sign_of
from .tasks import RunContext, attempts_text, progress_bar

BREAKER_STYLES: dict[BreakerState, StateStyle] = {
    BreakerState.CLOSED: StateStyle(Sign.DONE, "closed", Role.DONE),
    BreakerState.OPEN: StateStyle(Sign.FAILED, "open", Role.FAILED),
    BreakerState.HALF_OPEN: StateStyle(Sign.RETRYING, "half-open", Role.WAITING),
    BreakerState.FORCED_OPEN: StateStyle(Sign.CANCELLED, "forced open", Role.HUMAN),
    BreakerState.DISABLED: StateStyle(Sign.SKIPPED, "disabled", Role.WARNING),
    BreakerState.METRICS_ONLY: StateStyle(Sign.PENDING, "metrics only", Role.DIM),
}
#: An open breaker that only a human closes.
NEEDS_HUMAN_STYLE = StateStyle(Sign.DEAD, "open", Role.HUMAN)

PAGE_STYLES: dict[str, StateStyle] = {
    "open": StateStyle(Sign.DEAD, "open", Role.HUMAN),
    "acked": StateStyle(Sign.DONE, "acked", Role.DIM),
    "snoozed": StateStyle(Sign.SENSING, "snoozed", Role.WAITING),
    "resolved": StateStyle(Sign.DONE, "resolved", Role.DONE),
}
_SEVERITY_ROLES = {"critical": Role.FAILED, "high": Role.TEXT}

_LEAD = Width(2, gap=0)  # whether it is open
_SIGN = Width(1, gap=0)
_NAME = Width(9, 30, is_name=True)
_REST, _OTHERS = Width(16, FILL), Width(24, rank=1, gap=2)
_AGE = Width(5, is_right=True)
_BAR_CELLS_MIN = 3
_RETRIES_FROM = 76  # columns


def breaker_style(status: BreakerStatus) -> StateStyle:
    """Sign, word and colour of a breaker."""
    return (
        NEEDS_HUMAN_STYLE
        if status.state is BreakerState.OPEN and status.breaker.reopens_at is None
        else BREAKER_STYLES[status.state]
    )


def page_style(state: str) -> StateStyle:
    """Sign, word and colour of a page in a state."""
    return PAGE_STYLES.get(state, PAGE_STYLES["open"])


def row_state_style(state: str) -> StateStyle:
    """Sign, word and colour of a quarantined row in a state."""
    return _ROW_STYLES.get(state, _ROW_STYLES["held"])


def group_style(group: QuarantineGroup) -> StateStyle:
    """Sign, word and colour of rows with the same error, by the most urgent state among them."""
    urgent = _urgent_state(group)
    return STATE_STYLES[TaskState.SUCCESS] if urgent is None else _ROW_STYLES[urgent]


def _urgent_state(group: QuarantineGroup) -> str | None:
    return next((state for state in ("held", "provisional", "requeued") if group.counts.get(state)), None)


def row_counts(group: QuarantineGroup) -> list[str]:
    """Counts of rows by state: ``3 held``."""
    return [f"{number(count)} {state}" for state in _ROW_STYLES if (count := group.counts.get(state))]


_TITLES = {Section.BREAKERS: "Breakers", Section.PAGES: "Pages", Section.ROWS: "Quarantined rows"}

# --- Heads of sections ---------------------------------------------------------------------------------------------


def section_row(section: Section, systems: Systems, senders: Sequence[str], columns: int, glyphs: Glyphs) -> Line:
    """The heading of a section, with counts; that of breakers has the titles of the columns."""
    known = section in systems.loaded_sections
    facts, right = _HEADS[section](systems, senders, glyphs) if known else ([Piece("reading ...", Role.DIM)], [])
    left: Line = [Piece(f" {_TITLES[section]}", Role.STRONG), Piece("  "), *facts]
    if section is Section.BREAKERS and systems.breakers and known:
        left = _with_column_titles(left, columns)
    if not right or width(right) >= columns // 2:
        return left
    return [*fit(left, columns - width(right) - 1, glyphs.more), *right]


def _head_of_breakers(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    breakers = systems.breakers.values()
    if not breakers:
        return [Piece("no task names a downstream", Role.DIM)], []
    shut = sum(1 for status in breakers if status.is_blocking)
    if shut:
        return [Piece(f"{shut} of {len(breakers)} open")], []
    are_closed = all(status.state is BreakerState.CLOSED for status in breakers)
    return [Piece(f"{len(breakers)} closed" if are_closed else f"none of {len(breakers)} open", Role.DIM)], []


def _head_of_pages(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    pages = systems.pages.values()
    if not pages:
        return [Piece("no pages are open", Role.DIM)], _senders_line([], senders)
    counts = {state: sum(1 for page in pages if page.state == state) for state in PAGE_STYLES}
    return _counts(counts, "open", glyphs), _senders_line([page for page in pages if not page.is_idle], senders)


def _counts(counts: Mapping[str, int], urgent: str, glyphs: Glyphs) -> Line:
    """Counts by state; all but the ``urgent`` one are dim."""
    shown = {state: Role.TEXT if state == urgent else Role.DIM for state, count in counts.items() if count}
    parts = ([Piece(f"{number(counts[state])} {state}", role)] for state, role in shown.items())
    return join(parts, f" {glyphs.dot} ")


def _senders_line(pages: Sequence[PageRow], senders: Sequence[str]) -> Line:
    """The senders of pages, or the senders that fail."""
    failing = sorted({one_line(page.refusing_sender) for page in pages if page.refusing_sender is not None})
    if failing:
        return [Piece(f"{', '.join(failing)} fail{'s' if len(failing) == 1 else ''}", Role.WARNING)]
    if not senders:
        return [Piece("the flow names no sender", Role.WARNING if pages else Role.DIM)]
    return [Piece(f"by {', '.join(one_line(sender) for sender in senders)}", Role.DIM)]


def _head_of_rows(systems: Systems, senders: Sequence[str], glyphs: Glyphs) -> tuple[Line, Line]:
    groups = systems.groups.values()
    if not groups:
        return [Piece("no row was set aside", Role.DIM)], []
    counts = {state: sum(group.counts.get(state, 0) for group in groups) for state in _ROW_STYLES}
    return _counts(counts, "held", glyphs), []


_HEADS = {Section.BREAKERS: _head_of_breakers, Section.PAGES: _head_of_pages, Section.ROWS: _head_of_rows}


def past_section_row(section: Section, board: Board, columns: int) -> Line:
    """The heading of a section at a past instant, from the board."""
    if section is Section.PAGES:
        count = sum(note in OPEN_NOTES for note in board.snapshot.page_notes.values())
        what = "unacknowledged then"
    else:
        count, what = sum(row.bad_rows for row in board.projection.tasks.values()), "held then"
    return fit([Piece(f" {_TITLES[section]}", Role.STRONG), Piece(f"  {number(count)} {what}", Role.DIM)], columns)


def more_row(row: SystemsRow, glyphs: Glyphs) -> Line:
    """The number of entries that are not shown yet."""
    what = {
        Section.BREAKERS: "closed" if row.key is None else "held",
        Section.PAGES: "resolved",
        Section.ROWS: "dealt with",
    }[row.section]
    indent = 4 if row.key is None else 6
    return [Piece(f"{' ' * indent}{glyphs.more} {number(row.hidden)} {what} ({shown_key('open')})", Role.DIM)]


# --- Breakers ------------------------------------------------------------------------------------------------------


def breaker_row(status: BreakerStatus, is_open: bool, context: RunContext, columns: int) -> Line:
    """One breaker, behind the sign that its tasks can be shown."""
    fold = (context.glyphs.open if is_open else context.glyphs.closed) if status.held else " "
    return [
        Piece(f"{fold} "),
        *screen_row(_breaker_columns(columns), status, context.row_context, columns - 3, context.glyphs.more),
    ]


def _breaker_columns(columns: int) -> Columns[BreakerStatus, RowContext]:
    """Names come before retries."""
    return BREAKER_COLUMNS if columns >= _RETRIES_FROM else [one for one in BREAKER_COLUMNS if one.name != "tokens"]


def _with_column_titles(left: Line, columns: int) -> Line:
    """The heading with titles above the columns of figures."""
    titles = "  " + plain(screen_titles(_breaker_columns(columns), columns - 3))
    at = titles.find("FAILED")
    return [*fit(left, at), Piece(titles[at:].partition("HELD")[0].rstrip(), Role.DIM)] if at > width(left) else left


def _breaker_word(status: BreakerStatus, context: RowContext) -> Piece:
    return Piece(breaker_style(status).word, breaker_style(status).role)


def _failures(status: BreakerStatus, context: RowContext) -> int:
    return status.totals(context.now_us).failures


def _failed_share(status: BreakerStatus, context: RowContext) -> str:
    return f"{_failures(status, context)} of {status.totals(context.now_us).calls}"


def retries_left(status: BreakerStatus, context: RowContext) -> str:
    return f"{status.tokens:g} of {status.spec.bucket_capacity:g} left"


def _retries_bar(status: BreakerStatus, context: RowContext) -> CellText:
    """The bar has the same cells whatever is left: the words have the width of those of a full one."""
    now, full = (f"{compact(int(count))} left" for count in (status.tokens, status.spec.bucket_capacity))
    return lambda room: tokens(status, context, room - 3 - len(full), now.rjust(len(full)))


def _holds(status: BreakerStatus, context: RowContext) -> str:
    return f"holds {compact(len(status.held))}" if status.held else ""


def _reopens(status: BreakerStatus, context: RowContext) -> str:
    at = status.breaker.reopens_at
    return "" if at is None or not status.is_blocking else f"in {format_duration(max(at - context.now_us, 0))}"


def _failure_rate(status: BreakerStatus, context: RowContext) -> CellText:
    """The share of failed calls, as a bar and in words; without failures in words only."""
    found = status.totals(context.now_us)
    calls, failures = found.calls, found.failures
    words = f"{compact(failures)} of {compact(calls)}" if calls else "no calls"
    role = Role.FAILED if failures and failures / calls >= status.spec.failure_rate else Role.WAITING

    def shown(room: int) -> Line:
        size = room - 3 - len(words)
        if not failures or size < _BAR_CELLS_MIN:
            return [Piece(words.ljust(room), Role.TEXT if failures else Role.DIM)]
        return [*progress_bar(failures / calls, context.glyphs, role, size), Piece(f" {words}")]

    return shown


def tokens(status: BreakerStatus, context: RowContext, size: int, words: str) -> Line:
    """The retries that are left, as a bar of ``size`` cells, full while none is spent, and in ``words``."""
    role = Role.WAITING if status.tokens < status.spec.bucket_capacity / 2 else Role.DIM
    part = min(status.tokens / status.spec.bucket_capacity, 1.0) if status.spec.bucket_capacity else 0.0
    bars = [*progress_bar(part, context.glyphs, role, size), Piece(" ")] if size >= _BAR_CELLS_MIN else []
    return [*bars, Piece(words, role)]


def next_step(status: BreakerStatus, context: RowContext) -> Piece:
    """The next event that needs no human: the end of the row, and the only part that changes with time."""
    breaker, now = status.breaker, context.now_us
    if breaker.state is BreakerState.OPEN and breaker.reopens_at is not None:
        return Piece(_due("probe", breaker.reopens_at, context), Role.WAITING)
    if status.is_blocking:
        return Piece("until closed", Role.WARNING)
    if breaker.state is BreakerState.HALF_OPEN:
        return Piece("probing", Role.WAITING)
    if status.held and breaker.is_releasing(now):
        return Piece(f"at {breaker.release_rate:.3g}/s", Role.WAITING)
    if status.held and status.reserve_at is not None:
        return Piece(_due("retry", status.reserve_at, context), Role.WAITING)
    if status.would_open(now):
        return Piece("would open", Role.WARNING)
    return Piece("degraded" if status.is_degraded(now) else "", Role.WARNING)


def _due(word: str, at: int, context: RowContext) -> str:
    if at <= context.now_us:
        return f"{word} due"
    return f"{word} {clock(at - context.now_us + SECOND - 1).strip()}"


BREAKER_COLUMNS: Columns[BreakerStatus, RowContext] = (
    Column("sign", width=_SIGN, screen=lambda one, context: sign_of(breaker_style(one), context.glyphs)),
    Column("downstream", "DOWNSTREAM", lambda one, context: one.name, width=_NAME),
    field("state", "STATE", lambda one, context: Piece(one.state, breaker_style(one).role), Width(13), _breaker_word),
    Column("failures", "FAILED", _failures, _failed_share, Width(10, 20, rank=1), _failure_rate),
    Column("calls", value=lambda one, context: one.totals(context.now_us).calls),
    Column("window_seconds", value=lambda one, context: one.spec.window_seconds),
    field("tokens", "RETRIES", retries_left, Width(9, 16, rank=3), _retries_bar),
    Column("bucket_capacity", value=lambda one, context: one.spec.bucket_capacity),
    field("held", "HELD", lambda one, context: str(len(one.held)), Width(8, rank=2, gap=2), _holds),
    field("running"),
    Column("reopens_at", "REOPENS", lambda one, context: one.breaker.reopens_at, _reopens, Width(12), next_step),
    Column("changed_at", value=lambda one, context: one.since),
    field("why", "WHY"),
)


def held_row(name: str, context: RunContext, columns: int) -> Line:
    """A task that a breaker holds."""
    row, glyphs = context.board.row(name), context.glyphs
    waits_from = row.next_retry_at if row.next_retry_at is not None else row.changed_at
    return row_line(
        columns - 1,
        (Width(1, gap=6), sign_of(STATE_STYLES[row.state], glyphs)),
        (Width(9, max(9, min(context.names.longest, 30)), is_name=True), name),
        (Width(5, is_right=True), Piece(attempts_text(row), Role.DIM)),
        (Width(10, gap=2), f"waits {context.since(waits_from)}"),
        (Width(28, FILL, rank=1), Piece(one_line(row.error or ""), Role.DIM)),
        more=glyphs.more,
    )


# --- Pages ---------------------------------------------------------------------------------------------------------


def page_row(page: PageRow, context: RunContext, columns: int) -> Line:
    """One page: severity, title, number of occurrences, state, age."""
    return [Piece("  "), *screen_row(_PAGE_SCREEN, page, context.row_context, columns - 3, context.glyphs.more)]


def _page_severity(page: PageRow, context: RowContext) -> Piece:
    return Piece(one_line(page.severity), _SEVERITY_ROLES.get(page.severity, Role.DIM))


def page_state(page: PageRow, context: RowContext) -> Piece:
    words = page.state
    if page.state == "acked":
        words = f"acked by {one_line(page.acked_by or 'an operator')}"
    elif page.state == "snoozed" and page.snoozed_until is not None:
        words = f"snoozed for {format_duration(max(page.snoozed_until - context.now_us, 0))}"
    return Piece(words, page_style(page.state).role)


def _page_status(page: PageRow, context: RowContext) -> Piece:
    """The state in little room; first that nobody has got it."""
    if page.is_unsent:
        return Piece("not sent", Role.WARNING)
    if page.state == "acked":
        return Piece(f"acked {one_line(actor_name(page.acked_by))}", Role.DIM)
    if page.state == "snoozed" and page.snoozed_until is not None:
        return Piece(_until(page.snoozed_until, context), Role.WAITING)
    return Piece(page_style(page.state).word, Role.DIM if page.state == "resolved" else Role.TEXT)


def _until(at: int, context: RowContext) -> str:
    if at <= context.now_us:
        return f"until {wall(at)}"
    return f"snoozed {clock(at - context.now_us + SECOND - 1).strip()}"


def _page_sent(page: PageRow, context: RowContext) -> str:
    if page.send_error:
        return f"failed: {page.send_error}"
    if page.told_by is not None:
        return f"with the page of flow {page.told_by}"
    return "yes" if page.sent_at is not None else "no"


def _page_count(page: PageRow, context: RowContext) -> str:
    return f"{context.glyphs.times}{compact(page.counted)}" if page.counted > 1 else ""


def _page_age(page: PageRow, context: RowContext) -> str:
    return format_duration(context.now_us - page.created_at)


def _page_title(page: PageRow, context: RowContext) -> Piece:
    return Piece(one_line(page.title), Role.DIM if page.is_idle else Role.TEXT)


_PAGE_FIELDS: Columns[PageRow, RowContext] = (
    field("id", "ID"),
    Column("sign", width=_SIGN, screen=lambda page, context: sign_of(page_style(page.state), context.glyphs)),
    field("severity", "SEVERITY", _page_severity, Width(8)),
    field("state", "STATE", page_state, Width(14, gap=2), _page_status),
    Column("count", "COUNT", lambda page, context: page.counted, None, Width(5, rank=1, is_right=True), _page_count),
    field("created_at", "AGE", _page_age, _AGE, lambda page, context: Piece(context.since(page.created_at), Role.DIM)),
    field("sent_at", "SENT", _page_sent),
    field("title", "TITLE", None, Width(28, FILL), _page_title),
)
PAGE_COLUMNS = with_fields(_PAGE_FIELDS, (name for name in PageRow._fields if name != "counted"))
_PAGE_SCREEN = chosen(PAGE_COLUMNS, "sign", "severity", "title", "count", "state", "created_at")


# --- Quarantined rows ----------------------------------------------------------------------------------------------


def group_row(group: QuarantineGroup, longest_name: str, context: RunContext, columns: int) -> Line:
    """Quarantined rows of one task with the same error: counts by state, and the error."""
    glyphs, style, quiet = context.glyphs, group_style(group), Role.DIM if group.is_idle else Role.TEXT
    count, name_cells = group.counts.get(_urgent_state(group) or "", group.total), cells(one_line(longest_name))
    word = style.word if not group.is_idle else "done"
    others = _OTHERS, Piece(", ".join(_others(group, word)), Role.DIM)
    return row_line(
        columns - 1,
        (_LEAD, ""),
        (_SIGN, sign_of(style, glyphs)),
        (Width(min(name_cells, columns // 4, 30), is_name=True), Piece(one_line(group.name), quiet)),
        (Width(5, is_right=True), Piece(compact(count), quiet)),
        (Width(7), Piece(word, quiet)),
        (_REST, Piece(one_line(group.error) or "no error was given", quiet)),
        *([others] if others[1].text else ()),
        (_AGE, Piece(context.since(group.first_at), Role.DIM)),
        more=glyphs.more,
    )


def _others(group: QuarantineGroup, word: str) -> Iterator[str]:
    for state in ("provisional", "requeued"):
        if state != word and group.counts.get(state):
            yield f"{compact(group.counts[state])} {state}"


def compact(count: int) -> str:
    """At most four cells: ``999``, ``1.2k``, ``14k``, ``2M``."""
    if count < 1000:
        return str(count)
    size, unit = (1_000, "k") if count < 1_000_000 else (1_000_000, "M")
    amount = count / size
    return f"{int(amount * 10) / 10:.1f}{unit}" if amount < 10 else f"{int(amount)}{unit}"


_ROW_STYLES: dict[str, StateStyle] = {
    "held": StateStyle(Sign.DEAD, "held", Role.HUMAN),
    "provisional": StateStyle(Sign.RUNNING, "provisional", Role.RUNNING),
    "requeued": StateStyle(Sign.RETRYING, "requeued", Role.WAITING),
    "dropped": StateStyle(Sign.FAILED, "dropped", Role.FAILED),
    "discarded": StateStyle(Sign.SKIPPED, "discarded", Role.DIM),
    "resolved": StateStyle(Sign.DONE, "resolved", Role.DONE),
}


def quarantined_row(
    row: QuarantineRow | None, error: str, columns: int, context: RowContext, *, has_state: bool = True
) -> Line:
    """One quarantined row: state, key and start of its payload; its error if it differs from ``error``."""
    if row is None:
        return [Piece(f"   {context.glyphs.more}", Role.DIM)]
    shown = row._replace(error=None) if one_line(row.error or "") == one_line(error) else row
    return screen_row(_row_columns(columns, has_state=has_state), shown, context, columns - 1, context.glyphs.more)


def _error_and_payload(row: QuarantineRow, context: RowContext) -> Line:
    reason, holds = one_line(row.error or ""), one_line(row.payload or "")
    return [Piece(f"{reason}  " if reason and holds else reason), Piece(holds, Role.DIM)]


def _row_word(row: QuarantineRow, context: RowContext) -> Piece:
    return Piece(row_state_style(row.state).word, Role.DIM)


def _row_sign(row: QuarantineRow, context: RowContext) -> Piece:
    return Piece(context.glyphs.of(row_state_style(row.state).sign), Role.DIM)  # the accent is on the group


_ROW_FIELDS: Columns[QuarantineRow, RowContext] = (
    field("name", "TASK"),
    field("row_key", "ROW", None, _NAME, lambda row, context: Piece(one_line(row.row_key), Role.STRONG)),
    Column("sign", width=Width(1), screen=_row_sign),
    field(
        "state", "STATE", lambda row, context: Piece(row.state, row_state_style(row.state).role), Width(13), _row_word
    ),
    field("attempt", "ATTEMPT"),
    field("error", "ERROR", None, Width(16, FILL, gap=2), _error_and_payload),
)
ROW_COLUMNS = with_fields(_ROW_FIELDS, QuarantineRow._fields)
_ROW_SCREEN = chosen(ROW_COLUMNS, "sign", "state", "row_key", "error")


def _row_columns(columns: int, *, has_state: bool) -> Columns[QuarantineRow, RowContext]:
    """A key has a quarter of the row."""
    shown = [one for one in _ROW_SCREEN if has_state or one.name != "state"]
    return [limited(one, _NAME, columns // 4) if one.name == "row_key" else one for one in shown]


def rows_heading(group: QuarantineGroup, place: int, marked: int, columns: int, glyphs: Glyphs) -> tuple[Line, Line]:
    """Left and right side of the line above the rows of a group."""
    style = group_style(group)
    counts = ", ".join(row_counts(group))
    left: Line = [
        Piece(" "),
        Piece(one_line(group.name), Role.TITLE),
        Piece(" "),
        sign_of(style, glyphs),
        Piece(f" {counts}"),
        Piece(f"  {one_line(group.error)}", Role.DIM),
    ]
    right: Line = [Piece(f" {number(marked)} marked ", Role.MARK)] if marked else []
    right.append(Piece(f" {number(place)} of {number(group.total)} ", Role.DIM))
    return fit(left, columns - width(right) - 1, glyphs.more), right
