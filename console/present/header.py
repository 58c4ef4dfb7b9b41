"""The two lines at the top: which run, where, how it stands; the views, and how old the picture is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...engine.domain.states import TaskState
from ..model.board import Board
from ..model.eta import Forecast
from ..text.durations import clock, spoken, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, width
from ..text.text import cells, one_line, shorten_middle
from .runs import look_of
from .states import BLOCKED, PAUSED

OLD_SECONDS = 3.0  # an age worth looking at
CLOCK_OFFSET_SECONDS = 2.0  # two clocks so far apart are worth knowing of
STALE_SECONDS = 10.0  # the picture may be wrong: nothing is acted on
_NAME_CELLS_MIN = 34  # which run, and where, before the less wanted facts
_RUN_CELLS_MIN = 8
_DOT_CELLS = 3
_WIDE = 100
_SLACK_FIRST_US = 600_000_000  # a deadline so near is more wanted than the ETA
_NARROW = 56


@dataclass(frozen=True, slots=True)
class Health:
    """How the picture itself is: what a session says of itself, without the session.

    Ages in seconds; ``gone_at`` in microseconds UTC. ``line_down``: why nothing is heard, with ``retry_in_seconds``.
    ``dead_pid``: of an executor that did not leave in order. ``service_pid``: of who starts runs by a schedule.
    ``storage_trouble``: why the executor cannot write the state file.
    """

    executor_alive: bool = False
    heartbeat_age: float | None = None
    gone_at: int | None = None
    dead_pid: int | None = None
    service_pid: int | None = None
    storage_trouble: str | None = None
    picture_age: float = 0.0
    line_down: str | None = None
    retry_in_seconds: float | None = None
    read_only: str | None = None
    others: Sequence[str] = ()
    clock_offset: float = 0.0  # seconds, theirs minus ours

    @property
    def fate(self) -> str:
        """What became of an executor that is not alive."""
        return "executor gone" if self.dead_pid is None else "executor dead"

    @property
    def stale(self) -> bool:
        """Nobody can say whether what is shown is still so."""
        return self.line_down is not None or self.age >= STALE_SECONDS

    @property
    def age(self) -> float:
        """Seconds since anything of it was known to be so."""
        silent = self.heartbeat_age if self.executor_alive and self.heartbeat_age is not None else 0.0
        return max(self.picture_age, silent)

    @property
    def locked(self) -> str | None:
        """Why nothing may be changed, in a few words."""
        if self.line_down is not None:
            retry = self.retry_in_seconds
            when = f" · reconnecting in {max(round(retry), 0)} s" if retry is not None else ""
            return f"stale {_age(self.picture_age)}{when}"
        if self.picture_age >= STALE_SECONDS:
            return f"stale {_age(self.picture_age)}"
        if self.age >= STALE_SECONDS:
            return f"executor silent for {_age(self.age)}"
        return f"read-only: {self.read_only}" if self.read_only else None


class Tab(NamedTuple):
    """A view that a key leads to. ``badge``: what waits there."""

    key: str
    word: str
    active: bool
    badge: str = ""


def run_line(board: Board, address: str, forecast: Forecast | None, now_us: int, size: int, glyphs: Glyphs) -> Line:
    """Which run, where; its state, progress, elapsed, ETA, slack: as much of it as ``size`` cells hold."""
    facts = _facts(board, forecast, now_us, glyphs)
    natural = width(whereabouts(board, address, 1000, glyphs)) if size >= _WIDE else _NAME_CELLS_MIN
    while len(facts) > 1 and size - width(join(facts)) - 3 < min(natural, size // 2):
        facts.pop()
    right = [*join(facts), Piece(" ")]
    left = whereabouts(board, address, size - width(right) - 2, glyphs)
    return [Piece(" "), *fit(left, size - width(right) - 1, glyphs.more), *right]


def _facts(board: Board, forecast: Forecast | None, now_us: int, glyphs: Glyphs) -> list[Line]:
    """The most wanted first."""
    run, look = board.fold.run, look_of(board.fold.run)
    progress = f"{glyphs.of(look.glyph)} {look.word}"
    facts: list[Line] = [[Piece(progress, look.role), Piece(f" {board.finished}/{board.total}")]]
    if look is BLOCKED and run.paused_since is not None:
        facts[0].insert(1, Piece(f" {PAUSED.word}", PAUSED.role))  # whoever decides now still sees nothing start
    if run.ended_at is not None:
        return [*facts, [Piece(clock(run.ended_at - run.started_at).strip())], [Piece(wall(run.ended_at, None))]]
    facts.append([Piece(clock(now_us - run.started_at).strip())])
    eta: list[Line] = []
    if forecast is not None and run.blocked_since is None:
        eta = [[Piece("eta ", Role.DIM), Piece(f"~{clock(forecast.left_us).strip()}")]]
    if run.deadline_at is None:
        return [*facts, *eta]
    left_us = forecast.slack_us if forecast is not None else None
    slack_us = run.deadline_at - now_us if left_us is None else left_us
    slack = [_slack(slack_us)]
    return [*facts, *slack, *eta] if slack_us < _SLACK_FIRST_US else [*facts, *eta, *slack]


def _slack(slack_us: int) -> Line:
    if slack_us < 0:
        return [Piece(f"late by {clock(-slack_us).strip()}", Role.WARNING)]
    return [Piece("slack ", Role.DIM), Piece(clock(slack_us).strip())]


def whereabouts(board: Board, address: str, size: int, glyphs: Glyphs) -> Line:
    """Flow, run and place; where they do not fit, the run's name is cut in its middle, then the place is left out."""
    flow, run_id = one_line(board.fold.run.dag_name), one_line(board.fold.run.run_id)
    for rest in ([one_line(address)], [where(address)], []):
        room = size - sum(cells(text) + _DOT_CELLS for text in (flow, *rest))
        is_long = rest == [one_line(address)] and rest != [where(address)]
        if room >= (cells(run_id) if is_long else min(cells(run_id), _RUN_CELLS_MIN)):
            return _dotted([flow, shorten_middle(run_id, room, glyphs.more), *rest], glyphs)
    return _dotted([flow], glyphs)


def _dotted(texts: Sequence[str], glyphs: Glyphs) -> Line:
    line = [Piece(texts[0], Role.TITLE)]
    for text in texts[1:]:
        line += [Piece(f" {glyphs.dot} ", Role.DIM), Piece(text, Role.DIM)]
    return line


def where(address: str) -> str:
    """The host and the file, without its folders."""
    host, slash, path = address.removeprefix("ssh://").partition("/")
    name = one_line(address.rpartition("/")[2])
    return f"{one_line(host)}:{name}" if address.startswith("ssh://") and slash and path else name


def tabs_line(tabs: Sequence[Tab], rights: Sequence[Line], size: int) -> Line:
    """The views, and beside them the first of ``rights`` that lets them keep their words.

    Where none does, the last of them and the keys alone.
    """
    for spell, gap in ((_spelled, "  "), (_spelled, " "), (_spelled_if_active, "  ")):
        for right in rights:
            left = _tabs(tabs, spell, gap)
            if width(left) + width(right) + 2 <= size:
                return [*fit(left, size - width(right) - 1), *right, Piece(" ")]
    left = _tabs(tabs, _spelled_if_active)
    room = size - width(left) - 2
    return [*left, Piece("  "), *fit(rights[-1], room)] if room > 0 else left


def tab_at(line: Line, tabs: Sequence[Tab], x: int) -> int | None:
    """Which of the tabs stands in column ``x`` of their line; None beside them."""
    places = {tab.key: place for place, tab in enumerate(tabs)}
    found, at = None, 0
    for text, role in line:
        if text in places and role in (Role.KEY, Role.STRONG):
            found = places[text]
        elif found is not None and text not in (f" {tabs[found].word}", " ", tabs[found].badge):
            found = None
        at += cells(text)
        if x < at:
            return found
    return None


def _tabs(tabs: Sequence[Tab], spell: Callable[[Tab], Line], gap: str = "  ") -> Line:
    return [Piece(" "), *join([spell(tab) for tab in tabs], gap)]


def _spelled(tab: Tab) -> Line:
    word = Piece(f" {tab.word}", Role.STRONG if tab.active else Role.DIM)
    return [Piece(tab.key, Role.KEY if not tab.active else Role.STRONG), word, *_badge(tab)]


def _spelled_if_active(tab: Tab) -> Line:
    return _spelled(tab) if tab.active else [Piece(tab.key, Role.KEY), *_badge(tab)]


def _badge(tab: Tab) -> Line:
    return [Piece(" "), Piece(tab.badge, Role.HUMAN)] if tab.badge else []


def health_lines(board: Board | None, health: Health, armed_seconds: int, size: int) -> list[Line]:
    """How the executor and the picture are, who else is here, and whether a console opened to look may act.

    The same with less and less detail, for ``tabs_line``.
    """
    executor = _executor(board, health)
    short = [piece._replace(text=piece.text.removeprefix("executor ")) for piece in executor]
    if size < _NARROW:
        return [short]
    parts: list[Line] = []
    if armed_seconds:
        parts.append([Piece(f"ARMED {_age(armed_seconds)}", Role.WARNING)])
    if abs(health.clock_offset) >= CLOCK_OFFSET_SECONDS:
        parts.append([Piece(f"clock {health.clock_offset:+.0f} s", Role.WARNING)])
    found = [join([*parts, executor])]
    if health.others:
        more = f" +{len(health.others) - 1}" if len(health.others) > 1 else ""
        found.insert(0, join([[Piece(f"with {one_line(health.others[0])}{more}", Role.DIM)], *parts, executor]))
    if health.gone_at is not None:
        found.append([executor[0]])
    if size >= _WIDE:
        return found
    # Beside the words of seven views: that somebody may act here goes before an executor that is well.
    is_well = all(piece.role is Role.DIM for piece in short)
    last = parts[0] if armed_seconds and is_well else join([*parts[: bool(armed_seconds)], short[:1]])
    return [*found, join([*parts, short]), last]


def _executor(board: Board | None, health: Health) -> Line:
    if health.line_down is not None or health.picture_age >= OLD_SECONDS:
        return [Piece(f"stale {_age(health.picture_age)}", Role.WARNING)]
    if health.executor_alive:
        if health.age >= OLD_SECONDS:
            return [Piece(f"executor {int(health.age)}s ago", Role.WARNING)]
        if health.storage_trouble is not None:
            return [Piece("executor cannot write", Role.WARNING)]
        return [Piece("executor alive", Role.DIM)]
    if board is not None and board.fold.run.ended_at is not None:
        return [Piece("ended", Role.DIM)]
    if health.service_pid is not None and health.dead_pid is None:
        return [Piece("served", Role.DIM)]
    if health.gone_at is not None:
        return [Piece(health.fate, Role.WARNING), Piece(f" {wall(health.gone_at, None)}", Role.WARNING)]
    return [Piece("no executor", Role.WARNING)]


def storage_line(health: Health, address: str) -> Line:
    """Why an executor that lives starts nothing; nothing while it can write the state file."""
    if health.storage_trouble is None or not health.executor_alive or health.stale:
        return []
    sentence = health.storage_trouble.replace(_folder(address), "")
    return [Piece(one_line(f"nothing is started: {sentence}"), Role.WARNING)]


def _folder(address: str) -> str:
    """Of the state file, with the slash behind it."""
    _, _, path = address.removeprefix("ssh://").partition("/")
    path = f"/{path}" if address.startswith("ssh://") else address
    return path[: path.rfind("/") + 1]


def gone_line(board: Board, health: Health, resume_key: str) -> Line:
    """What the operator may do when the executor has left an unfinished run; nothing if it has not.

    ``resume_key``: "" where no executor can be started from here.
    """
    if health.executor_alive or board.fold.run.ended_at is not None or health.stale:
        return []
    if health.service_pid is not None and health.dead_pid is None:
        return [Piece(f"redrive serve (pid {health.service_pid}) goes on with it when something can move", Role.DIM)]
    running = board.counts[TaskState.RUNNING]
    since = f" since {wall(health.gone_at, None)}" if health.gone_at is not None else ""
    were = f" · {running} task{'s were' if running != 1 else ' was'} running" if running else ""
    how = f"{resume_key} to resume here" if resume_key else "redrive resume over there"
    pid = f" (pid {health.dead_pid} gone)" if health.dead_pid is not None else ""
    return [Piece(f"{health.fate}{since}{pid} · {how}{were}", Role.WARNING)]


def since(at_us: int, now_us: int) -> str:
    """An age in words: ``14 min``."""
    return spoken(now_us - at_us)


def _age(seconds: float) -> str:
    return clock(round(seconds * 1_000_000)).strip()
