"""The two lines at the top: which run, where, its state; and the tabs with the age of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...engine.core.deadline import passed_reason
from ...engine.core.views import IDLE, PAUSED, RunView, Sign, run_style, run_view
from ...engine.core.waiting import ALIVE, RunnerKind, RunnerStatus, pause_author
from ...engine.domain.events import Event
from ...engine.domain.rows import RunRow
from ...engine.domain.states import TaskState
from ...engine.domain.text import counted, first_names, format_duration
from ..keys.keymap import shown_key
from ..model.board import Board
from ..model.eta import Forecast, sensing_tasks
from ..model.runs import WaitingRun
from ..model.session_status import CLOCK_OFFSET_SECONDS, OPENED_READ_ONLY, STALE_SECONDS, Link, SessionStatus, runner_of
from ..text.event_text import describe_event, event_subject
from ..text.figures import SECOND, clock, need_human, number, offset, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, width
from ..text.text import cells, one_line, shorten, shorten_middle, split_address
from .executors import executor_loss, executor_subject, executor_word, service_advice
from .states import sign_and_word

OLD_SECONDS = 3.0  # from this age on, the last sign of life of an executor is said
_NAME_CELLS_MIN = 34  # for run and location, before the less important facts
_RUN_CELLS_MIN = 8
_DOT_CELLS = 3
_WIDE, _WIDEST = 100, 130
_SLACK_FIRST_US = 600_000_000  # below this slack, the deadline comes before the ETA
_NARROW = 56
_MINUTE_CELLS = 5  # of an instant without its seconds
_SHORT_LABEL = 5  # characters
_PAUSE_CELLS = 40  # of who paused a run, and why
_STATUS_CELLS = 8  # of the status right of the tabs: room for its shortest words


def lock_reason(status: SessionStatus) -> str | None:
    """Why no act is possible, in a few words; None if acts are possible."""
    problem, retry = status.connection_problem, status.retry_in_seconds
    if problem is not None and status.is_missing:
        return f"{one_line(problem)} any more: it was deleted or moved; q quits"
    if status.link is Link.CLOSED:
        return f"closed: {one_line(problem or '')}"
    if problem is not None:
        when = f" · reconnecting in {_age(retry)}" if retry is not None else ""
        reason = f" · {one_line(status.problem)}" if status.problem is not None else ""
        return f"stale {_age(status.data_age_seconds)}{when}{reason}"
    if status.data_age_seconds >= STALE_SECONDS:
        return f"stale {_age(status.data_age_seconds)}"
    if status.age_seconds >= STALE_SECONDS:
        return f"executor silent for {_age(status.age_seconds)}"
    why = status.read_only
    return why if why in (None, OPENED_READ_ONLY) else f"read-only: {why}"


class Tab(NamedTuple):
    """A view, its key, and a ``badge``: the count of what waits there."""

    key: str
    label: str
    is_active: bool
    badge: str = ""


def waiting_fact(waiting: Sequence[WaitingRun], size: int, glyphs: Glyphs) -> Line:
    """The number of other runs that need a human, with the first of them where there is room; empty if none does."""
    found = [one for one in waiting if not one.is_notice]
    if not found:
        return []
    count = counted(len(found), "other run")
    if size < _WIDE:
        return [Piece(f"{glyphs.dead} {count}", Role.HUMAN)]
    first = f": {shorten_middle(one_line(found[0].run.run_id), _NAME_CELLS_MIN, glyphs.more)}"
    return [Piece(f"{glyphs.dead} {count} {need_human(len(found))}{first if size >= _WIDEST else ''}", Role.HUMAN)]


def run_line(
    board: Board,
    address: str,
    forecast: Forecast | None,
    now_us: int,
    size: int,
    glyphs: Glyphs,
    waiting: Line | None = None,
    runner: RunnerStatus = ALIVE,
) -> Line:
    """Run, location, state, progress, elapsed, ETA, slack: as many of them as fit in ``size`` cells.

    ``waiting``: a fact about other runs.
    """
    state, others = _facts(board, forecast if runner.is_alive else None, now_us, glyphs, runner)
    natural = width(location_line(board, address, 1000, glyphs)) if size >= _WIDE else _NAME_CELLS_MIN
    least = cells(one_line(board.projection.run.dag_name)) + _DOT_CELLS + _RUN_CELLS_MIN
    facts = [_Fact(state, is_vital=True), *([_Fact(waiting, is_vital=True)] if waiting else []), *others]
    shown: set[int] = set()
    for place in sorted(range(len(facts)), key=lambda place: not facts[place].is_vital):
        room = size - 3 - min(least if facts[place].is_vital else natural, size // 2)
        line = join([facts[one].line for one in sorted({*shown, place})])
        shown |= {place} if width(line) <= room or not shown else set()
    right = [*join([facts[place].line for place in sorted(shown)]), Piece(" ")]
    left = location_line(board, address, size - width(right) - 2, glyphs)
    return [Piece(" "), *fit(left, size - width(right) - 1, glyphs.more), *right]


class _Fact(NamedTuple):
    """``is_vital``: the address of the state file, and what is not vital, are left out before it."""

    line: Line
    is_vital: bool = False


def _facts(
    board: Board, forecast: Forecast | None, now_us: int, glyphs: Glyphs, runner: RunnerStatus
) -> tuple[Line, Sequence[_Fact]]:
    """The state, and further facts, the most important first."""
    run, view = board.projection.run, run_view(board.projection.run, runner, now_us, board.counts)
    state = [sign_and_word(view.style, glyphs), Piece(f" {number(board.finished)}/{number(board.total)}")]
    if view.is_paused:
        state.insert(1, Piece(f" {PAUSED.word}", PAUSED.role))  # also with an executor, no task starts
    facts: list[Line] = []
    passed = _passed(run)
    if run.ended_at is not None:
        lasted_us = max(run.ended_at - run.started_at - run.waited_us, 0)
        facts += [
            [Piece("after ", Role.DIM), Piece(format_duration(lasted_us))],
            [Piece("at ", Role.DIM), Piece(wall(run.ended_at))],
        ]
        return state, [*passed, *(_Fact(fact) for fact in facts)]
    if run.code_changed:
        facts.append([Piece(f"code changed since start: {one_line(run.code_changed)}", Role.WARNING)])
    if board.noticed:
        named = one_line(min(board.noticed)) if len(board.noticed) == 1 else number(len(board.noticed))
        facts.append([Piece(f"late: {named}", Role.WARNING)])
    facts.append(_elapsed(view, " of work" if run.waited_us else ""))
    eta: Line = _sensors(board) if view.style.sign is Sign.SENSING else []
    if forecast is not None and run.blocked_since is None:
        eta = _eta(forecast)
    times = [_Fact(eta)] if eta else []
    if run.paused_since is not None:
        paused = "paused " * view.is_paused  # the word in front of the count says something else
        author = shorten(one_line(paused + pause_author(run)), _PAUSE_CELLS, glyphs.more)
        times.append(_Fact([Piece(author, Role.WAITING)], is_vital=True))
    if run.deadline_at is not None:
        left_us = forecast.slack_us if forecast is not None else None
        slack_us = run.deadline_at - now_us if left_us is None else left_us
        times.insert(0 if slack_us < _SLACK_FIRST_US else 1, _Fact(_slack(slack_us), is_vital=True))
    return state, [*passed, *map(_Fact, facts), *times]


def _passed(run: RunRow) -> Sequence[_Fact]:
    """Why a run is over that has not ended by itself: the deadline has room in any header."""
    passed = passed_reason(run)
    if passed is None:
        return ()
    is_short = run.abandoned_at is None and run.deadline_at is not None
    return (_Fact([Piece(passed, Role.WARNING)], is_vital=is_short),)


def _sensors(board: Board) -> Line:
    """The wait of a run in which only sensors are left; empty if it waits for a retry."""
    rows = sensing_tasks(board)
    if not rows:
        return []
    named = first_names(rows, 1, lambda row: f"{one_line(row.name)} (sensor, {counted(row.deferrals, 'check')})")
    return [Piece(f"waits for {named}")]


def _elapsed(view: RunView, unit: str) -> Line:
    """The time of work; of a run in which nothing moves also for how long: ``after 5m51, for 50s``.

    ``unit``: names it, if the run has waited before.
    """
    elapsed = f"{clock(view.clock).strip()}{unit}"
    if view.is_moving or not view.fact:
        return [Piece(elapsed)]
    if view.style is IDLE or view.clock < SECOND:  # it was blocked at once
        return [Piece(view.fact, Role.DIM)]
    return [Piece("after ", Role.DIM), Piece(elapsed), Piece(f", {view.fact}", Role.DIM)]


def _eta(forecast: Forecast) -> Line:
    """The band of the end, and what is left out of it."""
    low, high = (clock(end).strip() for end in forecast.left)
    line = [Piece("eta ", Role.DIM), Piece(low if low == high else f"{low}-{high}")]
    if forecast.is_blocked_then:
        held = f": {number(forecast.held)} held" if forecast.held else ""
        line.append(Piece(f" then blocked{held}", Role.WARNING))
    return line


def _slack(slack_us: int) -> Line:
    if slack_us < 0:
        return [Piece(f"late by {clock(-slack_us).strip()}", Role.WARNING)]
    return [Piece("slack ", Role.DIM), Piece(clock(slack_us).strip())]


def location_line(board: Board, address: str, size: int, glyphs: Glyphs) -> Line:
    """Flow, run and address; without room the run's name is cut in its middle, then the address is left out."""
    run = board.projection.run
    flow, run_id = one_line(run.dag_name), one_line(run.run_id)
    for rest in ([one_line(address)], [location_text(address)], []):
        room = size - sum(cells(text) + _DOT_CELLS for text in (flow, *rest))
        is_long = rest == [one_line(address)] and rest != [location_text(address)]
        if room >= (cells(run_id) if is_long else min(cells(run_id), _RUN_CELLS_MIN)):
            return _dotted([flow, shorten_middle(run_id, room, glyphs.more), *rest], glyphs)
    return _dotted([flow], glyphs)


def _dotted(texts: Sequence[str], glyphs: Glyphs) -> Line:
    line = [Piece(texts[0], Role.TITLE)]
    for text in texts[1:]:
        line += [Piece(f" {glyphs.dot} ", Role.DIM), Piece(text, Role.DIM)]
    return line


def location_text(address: str) -> str:
    """Host and file name of an address."""
    host, path = split_address(address)
    name = one_line(path.rpartition("/")[2])
    return ":".join(filter(None, (one_line(host), name)))


def tabs_line(tabs: Sequence[Tab], rights: Sequence[Line], size: int) -> Line:
    """The tabs, with the longest of ``rights`` (longest first) that fits beside them; with none if none fits.

    The shape depends on the size and the badges alone, so that no key and no status moves a tab. Where whole labels do
    not fit, the last two become short, then the last one loses its label, then all become short; in the end only the
    active tab has one.
    """
    left = _shape_of_tabs(tabs, size)
    room = size - width(left) - 2
    right = next((one for one in rights if width(one) <= room), [])
    return [*fit(left, size - width(right) - 1), *right, Piece(" ")] if right else left


def _shape_of_tabs(tabs: Sequence[Tab], size: int) -> Line:
    labels, gap, has_labels = _labels_within(tabs, size)
    left = [Piece(" "), *join(labels, gap)]
    if has_labels:
        return left
    return fit([*left, *(Piece(f"  {tab.label}", Role.STRONG) for tab in tabs if tab.is_active)], size)


def _labels_within(tabs: Sequence[Tab], size: int) -> tuple[Sequence[Line], str, bool]:
    """The tabs with as much of their labels as has room, the gap between them, and whether any label has room."""
    whole, brief = [_tab(tab, tab.label) for tab in tabs], [_tab(tab, _short_label(tab)) for tab in tabs]
    keys = [_tab(tab, "") for tab in tabs]
    last = [*whole[:-1], brief[-1]], [*whole[:-2], *brief[-2:]], [*whole[:-1], keys[-1]]
    for labels, gap in ((whole, "  "), *((labels, " ") for labels in (whole, *last, brief))):
        if 1 + width(join(labels, gap)) + _STATUS_CELLS + 2 <= size:
            return labels, gap, True
    return keys, " ", False


def tab_at(tabs: Sequence[Tab], size: int, x: int) -> int | None:
    """The index of the tab in column ``x`` of the line; None if there is none."""
    labels, gap, _ = _labels_within(tabs, size)
    start = 1
    for place, label in enumerate(labels):
        if start <= x < start + width(label):
            return place
        start += width(label) + len(gap)
    return None


def _tab(tab: Tab, label: str) -> Line:
    """A tab with as much of its label as has room."""
    key, word = (Role.STRONG, Role.STRONG) if tab.is_active else (Role.KEY, Role.DIM)
    badge = [Piece(" "), Piece(tab.badge, Role.HUMAN)] if tab.badge else []
    return [Piece(tab.key, key), *([Piece(f" {label}", word)] if label else []), *badge]


def _short_label(tab: Tab) -> str:
    return tab.label if len(tab.label) <= _SHORT_LABEL else tab.label[: _SHORT_LABEL - 1]


def status_lines(board: Board | None, status: SessionStatus, size: int) -> list[Line]:
    """The state of the executor and of the data.

    Returns the same with less and less detail, for ``tabs_line``.
    """
    run = None if board is None else board.projection.run
    subject, short = _executor(run, runner_of(run, status), status)
    executor = [short[0]._replace(text=f"{subject}{short[0].text}"), *short[1:]]
    if size < _NARROW:
        return [short]
    parts: list[Line] = []
    if abs(status.clock_offset_seconds) >= CLOCK_OFFSET_SECONDS:
        parts.append([Piece(f"clock {offset(round(status.clock_offset_seconds) * SECOND)}", Role.WARNING)])
    found = [join([*parts, executor])]
    if status.executor.gone_at is not None:
        found.append([executor[0]])
    if size >= _WIDE:
        return found
    is_alive = status.executor.alive and all(piece.role is Role.DIM for piece in short)
    nothing: list[Line] = [[]] if is_alive else []  # the label of a tab says more
    return [*found, join([*parts, short]), short[:1], *nothing]


def _executor(run: RunRow | None, runner: RunnerStatus, status: SessionStatus) -> tuple[str, Line]:
    """The subject, which is left out where there is little room, and the words about it."""
    subject, word, gone_at = executor_subject(runner), executor_word(runner), runner.gone_at
    if status.link is Link.CLOSED:
        return "", [Piece("closed", Role.WARNING)]
    if status.is_late:
        return "", [Piece(f"stale {_age(status.data_age_seconds)}", Role.WARNING)]
    if status.executor.alive:
        if status.executor.silent_seconds >= OLD_SECONDS:
            return subject, [Piece(f"{_age(status.executor.silent_seconds)} ago", Role.WARNING)]
        if status.storage_problem is not None:
            return subject, [Piece("stuck", Role.WARNING), Piece(", cannot write", Role.WARNING)]
        return subject, [Piece(word, Role.DIM)]
    if run is not None and run.ended_at is not None:
        return "", [Piece("ended", Role.DIM)]
    if runner.kind is RunnerKind.SERVED:
        return subject, [Piece(word, Role.DIM)]
    if gone_at is not None and _waits_for_operator(run, runner):
        return "", [Piece(f"ended {wall(gone_at)[:_MINUTE_CELLS]}", Role.DIM), Piece(" · waits for you", Role.DIM)]
    since = [] if gone_at is None else [Piece(f" {wall(gone_at)}", Role.WARNING)]
    return subject, [Piece(word, Role.WARNING), *since]


def _waits_for_operator(run: RunRow | None, runner: RunnerStatus) -> bool:
    """Whether the executor ended by design: only a human can go on."""
    return runner.kind is RunnerKind.LEFT and run is not None and run.blocked_since is not None


def storage_line(status: SessionStatus, address: str) -> Line:
    """Why a living executor starts nothing; empty while it can write the state file."""
    if status.storage_problem is None or not status.executor.alive or status.is_stale:
        return []
    _, path = split_address(address)
    name = path.rpartition("/")[2]
    problem = status.storage_problem.replace("; ", " · ")
    return [Piece(one_line(f"nothing is started: {problem.replace(path, name) if name else problem}"), Role.WARNING)]


def executor_gone_line(board: Board, status: SessionStatus, resume_key: str, now_us: int) -> Line:
    """The act that resumes an unfinished run without executor; empty if there is one.

    ``resume_key``: "" if this console cannot start an executor.
    """
    run = board.projection.run
    runner = runner_of(run, status)
    if status.executor.alive or run.ended_at is not None or status.is_stale or _waits_for_operator(run, runner):
        return []
    if runner.kind is RunnerKind.SERVED:
        return [Piece(service_advice(runner, " when a task can run"), Role.DIM)]
    loss = executor_loss(runner, now_us)
    if runner.kind is RunnerKind.COPY:
        return [Piece(loss.clause, Role.WARNING)]
    running = board.counts[TaskState.RUNNING]
    were = f"{running} task{'s were' if running != 1 else ' was'} running" if running else ""
    how = f"{resume_key} to resume here" if resume_key else "resume it over there"
    if runner.service_pid is not None:
        how = service_advice(runner)
    parts = (loss.clause, how, were, loss.process)  # the process last: the end may have no room
    return [Piece(" · ".join(filter(None, parts)), Role.WARNING)]


def _age(seconds: float) -> str:
    return clock(round(seconds * 1_000_000)).strip()


# --- The screen at a past instant: a header that differs clearly from the present, and the last event before it ------


_PAST_NAME_CELLS_MIN = 12
_SENTENCE_CELLS_MIN = 24
_KEYS_CELLS = 43  # of the keys beside the sentence


class ReplayPosition(msgspec.Struct, frozen=True):
    """A position in the past of a run.

    Attributes:
        at: the instant that is shown, microseconds UTC.
        now: the present, microseconds UTC.
        seq: the number of the last event before ``at``; ``head``: of the last event so far.
        event: the event ``seq``, if it belongs to this run.
        speed: recorded seconds per second; 0 if the replay is paused.
    """

    at: int
    now: int
    seq: int
    head: int
    event: Event | None = None
    speed: int = 0


def format_instant(position: ReplayPosition) -> str:
    """``03:11:24``; with the date if it is not today."""
    day = wall_day(position.at)
    return wall(position.at) if day[:5] == wall_day(position.now)[:5] else day


def replay_line(position: ReplayPosition, board: Board, address: str, size: int, glyphs: Glyphs) -> Line:
    """The run line of a past instant: time, number of the event, the key back to the present, the run's state."""
    sign = f"{glyphs.play if position.speed else glyphs.past} {format_instant(position)}"
    speed = f" {glyphs.times}{position.speed}" if position.speed else ""
    event = f"event {number(position.seq)} of {number(position.head)}"
    banner = Piece(f" {sign}{speed} {glyphs.dot} {event} {glyphs.dot} {shown_key('back')}: now ", Role.CURSOR)
    right = [*join(_past_facts(position, board, glyphs)), Piece(" ")]
    room = size - width([banner]) - width(right) - 2
    if room < 0:
        return fit([banner], size, glyphs.more)
    left = location_line(board, address, room, glyphs) if room >= _PAST_NAME_CELLS_MIN else []
    return [banner, Piece(" "), *fit(left, room + 1, glyphs.more), *right]


def _past_facts(position: ReplayPosition, board: Board, glyphs: Glyphs) -> list[Line]:
    run, style = board.projection.run, run_style(board.projection.run, ALIVE)
    return [
        [sign_and_word(style, glyphs), Piece(f" {number(board.finished)}/{number(board.total)}")],
        [Piece(clock(position.at - run.started_at).strip())],
    ]


def describe_last_event(event: Event | None, size: int) -> str:
    """The last event before the instant, shortened to leave room for the keys."""
    if event is None:
        return ""
    sentence = one_line(f"{event_subject(event)}: {describe_event(event)}")
    return shorten(sentence, max(size - _KEYS_CELLS, _SENTENCE_CELLS_MIN))


def describe_read_only(position: ReplayPosition) -> str:
    """Why no act is possible at a past instant."""
    return f"this is {format_instant(position)} and not now: {shown_key('back')} returns to the present"
