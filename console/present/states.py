"""Signs and words of states as pieces, their legend, and counts of tasks by state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...engine.core import views
from ...engine.core.projection import TaskRow
from ...engine.core.waiting import ALIVE, RunnerStatus
from ...engine.domain.states import FINISHED, UNDER_WAY, TaskState
from ...engine.domain.trigger_rules import STATES_OF, ParentStatus
from ..text.figures import age, need_human, number, times_text
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, join, width
from ..text.text import cells, one_line, shorten_middle

if TYPE_CHECKING:  # a command that prints events reads no list of runs
    from ..model.runs import Pace


class RowContext(NamedTuple):
    """The context of a row's drawing: the time in microseconds, and the signs of the terminal.

    ``label``: the key of an action by its name, empty where no key acts.
    """

    now_us: int
    glyphs: Glyphs
    label: Callable[[str], str] = lambda action: ""

    def since(self, at: int) -> str:
        """The time since ``at``, as text."""
        return age(self.now_us - at)


_PATH_CELLS_MIN = 12


def named_rule(name: str, path: str, glyphs: Glyphs, columns: int) -> Line:
    """The rule above what is under the cursor, with its name, if it has one, and its file where that has room."""
    if not name:
        return [Piece(glyphs.rule * columns, Role.RULE)]
    name, path = f" {name} ", f" {one_line(path)} "
    room = columns - cells(name) - 6
    path = shorten_middle(path, room, glyphs.more) if room > _PATH_CELLS_MIN else ""
    return [
        Piece(glyphs.rule * 2, Role.RULE),
        Piece(name, Role.TITLE),
        Piece(glyphs.rule * (columns - 4 - cells(name) - cells(path)), Role.RULE),
        Piece(path, Role.DIM),
        Piece(glyphs.rule * 2, Role.RULE),
    ]


SEVERITY: tuple[views.CountedState, ...] = tuple(views.COUNTED_STYLES)


def sign_of(style: views.StateStyle, glyphs: Glyphs) -> Piece:
    """The sign of a style, in its role."""
    return Piece(glyphs.of(style.sign), Role(style.role))


def sign_and_word(style: views.StateStyle, glyphs: Glyphs) -> Piece:
    """The sign and the word of a style, in its role."""
    return Piece(f"{glyphs.of(style.sign)} {style.word}", Role(style.role))


def row_sign(row: TaskRow, glyphs: Glyphs, runner: RunnerStatus) -> Piece:
    """The sign of a task, in the colour of its role."""
    return sign_of(views.row_style(row, runner), glyphs)


def state_sign(state: views.CountedState, glyphs: Glyphs, runner: RunnerStatus = ALIVE) -> Piece:
    """The one-cell sign of a task state, in its role."""
    return sign_of(views.state_style(state, runner), glyphs)


# --- The legend -------------------------------------------------------------------------------------------------------

_ENTRY_CELLS = 15
_GAP = "  "


def legend_lines(glyphs: Glyphs, columns: int, bars: Sequence[Line]) -> list[Line]:
    """The legend in lines of at most ``columns``. ``bars``: the entries of the timeline."""
    outcomes = [views.OUTCOME_STYLES[name] for name in ("timed_out", "lost")]
    shown: list[views.StateStyle] = [
        *views.STATE_STYLES.values(),
        views.ASKS,
        views.CUT_OFF,
        views.UNSEEN,
        views.SILENT,
        views.UNSAVED,
        views.IDLE,
        views.BLOCKED,
        *outcomes,
    ]
    states = [[sign_and_word(style, glyphs)] for style in shown]
    marks = [
        [Piece(sign, role), Piece(f" {words}")]
        for sign, role, words in (
            (f"{glyphs.dead}2", Role.HUMAN, "so many need a human"),
            (glyphs.mark, Role.MARK, "marked for an act on many"),
            (glyphs.up, Role.WARNING, "slower than usual"),
            (f"{glyphs.open}{glyphs.closed}", Role.DIM, "open, folded"),
            (glyphs.elided, Role.DIM, "more than is drawn"),
            ("~12s", Role.DIM, "an estimate"),
            ("".join(glyphs.heat), Role.DONE, "quick to slow beside usual"),
        )
    ]
    flows = *flow(states, columns, _ENTRY_CELLS), *flow(marks, columns, 0), *flow(bars, columns, 0)
    return [[Piece("Signs", Role.STRONG)], *flows]


def flow(entries: Sequence[Line], columns: int, least: int, gap: int = len(_GAP)) -> list[Line]:
    """Put as many entries in a line as fit, each at least ``least`` cells wide. ``gap``: cells before the first."""
    lines: list[Line] = []
    for entry in entries:
        padded = [*entry, Piece(" " * max(least - width(entry), 0))]
        if not lines or width(lines[-1]) + len(_GAP) + width(entry) > columns:
            lines.append([Piece(" " * gap), *padded])
        else:
            lines[-1] += [Piece(_GAP), *padded]
    return lines


# --- How long finished work took beside what is usual -----------------------------------------------------------------

#: Up to which multiple of the usual duration work has which of the shades.
_SHADES = (0.67, 1.5, 2.5)


def shade(times: float, glyphs: Glyphs) -> str:
    """The darker, the longer: the usual duration has the second of four shades."""
    return glyphs.heat[bisect_left(_SHADES, times)]


def height(times: float, glyphs: Glyphs) -> str:
    """The higher, the longer: the usual duration has two eighths of a cell."""
    return glyphs.spark[min(max(round(times * 2) - 1, 0), len(glyphs.spark) - 1)]


def pace_role(pace: Pace) -> Role:
    """The brighter, the longer."""
    return Role.WARNING if pace.is_slow else Role.TEXT if pace.times > _SHADES[1] else Role.DONE


def pace_piece(pace: Pace, glyphs: Glyphs) -> Piece:
    """The shade, and how many times the usual duration if that is much more or less."""
    words = "" if _SHADES[0] < pace.times <= _SHADES[1] else f" {times_text(pace.times)}{glyphs.times} usual"
    return Piece(f"{shade(pace.times, glyphs)}{words}", pace_role(pace))


# --- Counts of tasks by state: as a bar, as words, and as signs ------------------------------------------------------


DONE = FINISHED | {TaskState.CANCELLED}
FAILED = STATES_OF[ParentStatus.FAILED] - DONE
TO_DECIDE: tuple[views.CountedState, ...] = (TaskState.DEAD_LETTER, views.OperatorPrompt.APPROVAL)
LIVELY: Collection[views.CountedState] = (
    UNDER_WAY | FAILED | {TaskState.READY, views.OperatorPrompt.APPROVAL}
)  # a reader wants to find them
#: The parts of a bar in order; the rest are tasks that are not done yet.
_PARTS: Sequence[tuple[Collection[views.CountedState], views.Sign | Glyph, Role]] = (
    (DONE, Glyph.BAR_QUIET, Role.DONE),
    (UNDER_WAY, Glyph.BAR_ACTIVE, Role.RUNNING),
    (FAILED, views.Sign.FAILED, Role.FAILED),
    (TO_DECIDE, views.Sign.DEAD, Role.HUMAN),
)


def state_bar(counts: views.Counts, glyphs: Glyphs, size: int) -> Line:
    """``size`` cells. A part with any task has at least one cell, so that no problem and nothing left disappears."""
    shares = [_sum(counts, states) for states, _, _ in _PARTS]
    *cells, rest = _shares([*shares, sum(counts.values()) - sum(shares)], size)
    line = [
        Piece(glyphs.of(glyph) * count, role) for (_, glyph, role), count in zip(_PARTS, cells, strict=True) if count
    ]
    return [*line, Piece(glyphs.bar_pending * rest, Role.RULE)]


def waiting_pieces(waiting: int, glyphs: Glyphs) -> Line:
    """The number of runs or state files that need a human, behind a dot; empty if none does."""
    return [Piece(f" {glyphs.dot} ", Role.DIM), Piece(f"{number(waiting)} {need_human(waiting)}")] if waiting else []


def no_match_line(filter_text: str, count: str = "") -> Line:
    """The line in place of a list of which a filter leaves nothing; of one without a filter empty.

    ``count``: how many rows there are without it.
    """
    words = f"   nothing matches /{one_line(filter_text)}; Esc shows all{count}"
    return [Piece(words, Role.DIM)] if filter_text else []


def order_line(order: str, glyphs: Glyphs) -> Line:
    """The order of a list, at the right end of its heading; a click on it changes the order."""
    return [Piece("sort: ", Role.DIM), Piece(f"{order} {glyphs.open} ")]


def _sum(counts: views.Counts, states: Collection[views.CountedState]) -> int:
    return sum(count for state, count in counts.items() if state in states)


def _shares(parts: Sequence[int], size: int) -> list[int]:
    """Cells of each part: one at first, for small ones before large ones and for the last part at the end."""
    cells, left = [0] * len(parts), size
    by_size = sorted(range(len(parts)), key=parts.__getitem__)
    for place in sorted(by_size, key=(len(parts) - 1).__eq__):
        cells[place] = min(parts[place], left, 1)
        left -= cells[place]
    for place in by_size:
        more = min(max(parts[place] * size // max(sum(parts), 1) - cells[place], 0), left)
        cells[place], left = cells[place] + more, left - more
    cells[by_size[-1]] += left
    return cells


def leading_state(counts: views.Counts) -> views.CountedState:
    """The state whose sign stands for all tasks: the worst; a finished one only if every task is finished."""
    present = {state for state, count in counts.items() if count}
    found = next(state for state in SEVERITY if state in present)
    return TaskState.PENDING if found in DONE and TaskState.PENDING in present else found


def progress(counts: views.Counts, glyphs: Glyphs) -> Line:
    """``852/900 ◆1``: the done tasks, of all, and those that need a human; ``900`` where all are done or none is."""
    total, done, problems = sum(counts.values()), _sum(counts, DONE), problem_counts(counts, glyphs)
    share = f"{number(done)}/" if problems or 0 < done < total else ""
    return join([[Piece(f"{share}{number(total)}", Role.DIM)], problems], " ")


def problem_counts(counts: views.Counts, glyphs: Glyphs) -> Line:
    """Counts of tasks that need a human, by sign, the most severe first."""
    needed = {state: count for state, count in counts.items() if state in views.PROBLEMS}
    signed = _signed(needed, glyphs, ALIVE)
    return join(([Piece(f"{sign.text}{number(count)}", sign.role)] for sign, count in signed), " ")


def _signed(
    counts: views.Counts, glyphs: Glyphs, runner: RunnerStatus, without: Sequence[views.CountedState] = ()
) -> list[tuple[Piece, int]]:
    """Counts of tasks by sign, the worst first; states with one sign are one number."""
    found: dict[Piece, int] = {}
    for style, count in _styled(counts, runner, without):
        sign = sign_of(style, glyphs)
        found[sign] = found.get(sign, 0) + count
    return list(found.items())


def counts_line(
    counts: views.Counts, glyphs: Glyphs, without: Sequence[views.CountedState] = (), runner: RunnerStatus = ALIVE
) -> Line:
    """``◆3  2 failed  41 running  1,204 ok``, the worst state first; ``◆3`` counts all that waits for a decision."""
    to_decide = _sum(counts, [state for state in TO_DECIDE if state not in without])
    sign = state_sign(TaskState.DEAD_LETTER, glyphs)
    found = [[Piece(f"{sign.text}{number(to_decide)}", sign.role)]] if to_decide else []
    styled = _styled(counts, runner, (*without, *TO_DECIDE))
    return join([*found, *([Piece(f"{number(count)} {style.word}", Role(style.role))] for style, count in styled)])


def _styled(
    counts: views.Counts, runner: RunnerStatus, without: Collection[views.CountedState] = ()
) -> list[tuple[views.StateStyle, int]]:
    """Counts of tasks by style, the worst first; those whose end is not saved are counted apart from those that run."""
    found, kept = [], {state: count for state, count in counts.items() if state not in without}
    for state in SEVERITY:
        count = kept.get(state, 0)
        unsaved = min(len(runner.unsaved), count) if state is TaskState.RUNNING else 0
        found += [(views.UNSAVED, unsaved), (views.state_style(state, runner), count - unsaved)]
    return [(style, count) for style, count in found if count]


def counts_text(counts: views.Counts, runner: RunnerStatus) -> str:
    """``2 DEAD, 2 cut off, 1,204 ok``, the worst state first."""
    return ", ".join(f"{number(count)} {style.word}" for style, count in _styled(counts, runner))


def counts_within(
    counts: views.Counts,
    glyphs: Glyphs,
    size: int,
    without: Sequence[views.CountedState] = (),
    runner: RunnerStatus = ALIVE,
) -> Line:
    """The counts as words, or as signs if the words need more than ``size`` cells."""
    words = counts_line(counts, glyphs, without, runner)
    if width(words) <= size:
        return words
    return counts_signs(counts, glyphs, size, without, runner)


def counts_signs(
    counts: views.Counts,
    glyphs: Glyphs,
    size: int,
    without: Sequence[views.CountedState] = (),
    runner: RunnerStatus = ALIVE,
) -> Line:
    """``◆3 ●41 ✓1204``, the worst state first, as many as fit in ``size`` cells."""
    line: Line = []
    left = size
    for sign, count in _signed(counts, glyphs, runner, without):
        text = f"{sign.text}{count}"
        if left > len(text):
            line += [Piece(text, sign.role), Piece(" ")]
            left -= len(text) + 1
    return line
