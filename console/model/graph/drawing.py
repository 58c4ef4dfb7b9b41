"""The graph as a drawing, left to right: one text row per task, lines between the columns.

No canvas is built. ``Drawing`` stores the vertices of each level by row, and for each channel between two levels the
vertical parts of its buses; ``segments`` returns the visible segments of one row, at a cost that depends on the
viewport and not on the graph. Task states do not matter here.

How to read a drawing, as the tests do: from a task to the right, every cell with an arm to the left belongs to its
line. A vertical line without an arm to the left is crossed; one with an arm to the right and none to the left starts
the line to another task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import msgspec

from ....engine.core.dag import Dag
from ...text.glyphs import ACROSS, DOWN, LEFT, RIGHT, UP
from .layout import Bus, Layers, assign_columns, buses_of, families, lay_out, order_of_tracks, rows_of

STUB = 1  # cells between a task and the first vertical line
TAIL = 2  # cells between the last vertical line and a task
_APART_MAX = 4  # vertical lines of a channel that have a cell between them


class Segment(NamedTuple):
    """A segment of one row: a task (``task`` >= 0; with ``arms`` if a line leaves it), or ``width`` cells of a line."""

    x: int
    width: int
    task: int = -1
    arms: int = 0
    lit: bool = False


class Channel(msgspec.Struct):
    """The cells between two levels. ``width``: the number of cells."""

    buses: list[Bus]
    columns: int = 0
    tracks: list[tuple[list[int], list[Bus]]] = []  # per column: tops, and the buses
    leaving: dict[int, list[Bus]] = {}  # by row: the buses that the line of its source enters
    entering: dict[int, Bus] = {}  # by row: the bus that the line to its target leaves

    @property
    def width(self) -> int:
        """Cells from the end of one level to the start of the next."""
        return STUB + self.columns + TAIL

    def crossings(self, first: int, last: int, row: int) -> Iterator[tuple[int, Bus]]:
        """Yield the columns from ``first`` to before ``last`` with a vertical part in this row, and the bus of each."""
        for column in range(first, last):
            tops, buses = self.tracks[column]
            index = bisect_right(tops, row) - 1
            if index >= 0 and buses[index].bottom >= row:
                yield column, buses[index]


class _Across(NamedTuple):
    """Horizontal lines of a channel in one row: before ``reach`` and behind ``start``; highlighted likewise."""

    reach: int
    start: int
    lit_reach: int
    lit_start: int

    def runs(self, first: int, last: int, left: int) -> Iterator[Segment]:
        """Yield the lines in the columns from ``first`` to before ``last``, which have no vertical part."""
        if first < self.reach:
            yield from _split(first, min(last, self.reach), self.lit_reach, left, lit_first=True)
        if last > self.start + 1:
            yield from _split(max(first, self.start + 1), last, self.lit_start + 1, left, lit_first=False)


class EdgeHighlight(msgspec.Struct, frozen=True):
    """Highlighted edges: the paths to and from a task, or the critical path."""

    passing: frozenset[int] = frozenset()  # vertices
    leaving: dict[tuple[int, int], int] = {}  # (channel, row) -> up to which column
    entering: frozenset[tuple[int, int]] = frozenset()  # (channel, row)
    spans: dict[tuple[int, int], tuple[int, int]] = {}  # (channel, bus) -> rows
    taps: frozenset[tuple[int, int, int]] = frozenset()  # (channel, bus, row)


_NO_HIGHLIGHT = EdgeHighlight()


def _widest(dag: Dag, widths: Sequence[int]) -> dict[int, int]:
    """Return for each level the cells of its widest text."""
    found: dict[int, int] = {}
    for level, width in zip(dag.levels, widths, strict=True):
        found[level] = max(found.get(level, 0), width)
    return found


class Drawing:
    """The positions of all tasks and lines. ``widths``: cells of each task's text, by task number."""

    def __init__(self, dag: Dag, widths: Sequence[int]) -> None:
        self.dag = dag
        self._layers = lay_out(dag)
        self._widths = widths
        layers = self._layers
        self._channels = [_channel(layers, level) for level in range(1, layers.depth)]
        self._rows = [{layers.row[vertex]: vertex for vertex in rank} for rank in layers.ranks]
        self.height = layers.height
        self._place_columns()

    def resized(self, widths: Sequence[int]) -> Drawing:
        """Return the same drawing with other widths: rows and lines depend on the edges alone."""
        other = copy(self)
        other._widths = widths
        other._place_columns()
        return other

    def _place_columns(self) -> None:
        self._lefts: list[int] = []
        self._channel_lefts: list[int] = []
        x = 0
        for level, rank in enumerate(self._layers.ranks):
            self._lefts.append(x)
            x += max((self._widths[vertex] for vertex in rank if vertex < len(self.dag)), default=1)
            if level < len(self._channels):
                self._channel_lefts.append(x)
                x += self._channels[level].width
        self.width = x
        self.spans = self._row_spans()

    def _row_spans(self) -> list[tuple[int, int]]:
        """Return for each row the first cell with a task or a passing line, and the cell after the last one."""
        spans = [(self.width, 0)] * self.height
        for vertex, y in enumerate(self._layers.row):
            level = self._layers.level[vertex]
            left = self._lefts[level]
            right = left + self._widths[vertex] if self._is_task(vertex) else self._channel_lefts[level]
            if self._layers.below[vertex]:
                right = self._channel_lefts[level] + self._channels[level].width
            spans[y] = min(spans[y][0], left), max(spans[y][1], right)
        return spans

    # --- Positions -------------------------------------------------------------------------------------------------

    def place(self, name: str) -> tuple[int, int, int]:
        """Return (x, y, width) of a task's text."""
        number = self.dag.number[name]
        return self._lefts[self._layers.level[number]], self._layers.row[number], self._widths[number]

    def at(self, x: int, y: int) -> str | None:
        """Return the task whose text covers a cell, or None."""
        level = bisect_right(self._lefts, x) - 1
        vertex = self._rows[level].get(y) if level >= 0 else None
        if vertex is None or not self._is_task(vertex) or x >= self._lefts[level] + self._widths[vertex]:
            return None
        return self.dag.names[vertex]

    def column_of(self, name: str) -> list[str]:
        """Return the tasks of the same level, from top to bottom."""
        rank = self._layers.ranks[self._layers.level[self.dag.number[name]]]
        return [self.dag.names[vertex] for vertex in rank if self._is_task(vertex)]

    def _is_task(self, vertex: int) -> bool:
        return vertex < len(self.dag)

    # --- Rows ------------------------------------------------------------------------------------------------------

    def segments(self, y: int, x0: int, x1: int, lit: EdgeHighlight = _NO_HIGHLIGHT) -> list[Segment]:
        """Return the segments of row ``y`` that touch the cells from ``x0`` to before ``x1``, from left to right.

        Segments of tasks are complete, also across the edge; lines are cut.
        """
        found: list[Segment] = []
        level = max(bisect_right(self._lefts, x0) - 1, 0)
        while level < len(self._lefts) and self._lefts[level] < x1:
            found.extend(self._level_runs(level, y, x0, x1, lit))
            if level < len(self._channels):
                found.extend(self._channel_runs(level, y, x0, x1, lit))
            level += 1
        return found

    def below(self, y: int, x0: int, x1: int, lit: EdgeHighlight = _NO_HIGHLIGHT) -> list[Segment]:
        """Return the segments of a further text row under row ``y``: its tasks, and the lines on to row ``y + 1``."""
        found: list[Segment] = []
        for level, left in enumerate(self._lefts):
            vertex = self._rows[level].get(y)
            if vertex is not None and self._is_task(vertex) and left < x1 and left + self._widths[vertex] > x0:
                found.append(Segment(left, self._widths[vertex], vertex))
            if level < len(self._channels):
                channel = self._channels[level]
                first = self._channel_lefts[level] + STUB
                for column, bus in channel.crossings(0, channel.columns, y):
                    if bus.bottom > y and x0 <= first + column < x1:
                        top, bottom = lit.spans.get((level, bus.number), (y + 1, y))
                        found.append(Segment(first + column, 1, arms=UP | DOWN, lit=top <= y < bottom))
        return found

    def _level_runs(self, level: int, y: int, x0: int, x1: int, lit: EdgeHighlight) -> Iterator[Segment]:
        vertex = self._rows[level].get(y)
        if vertex is None:
            return
        left = self._lefts[level]
        is_task = self._is_task(vertex)
        arms = ACROSS if self._layers.below[vertex] else 0
        is_lit = (level, y) in lit.leaving if is_task else vertex in lit.passing
        if is_task:
            if left + self._widths[vertex] > x0:
                yield Segment(left, self._widths[vertex], vertex, arms, is_lit)
            left += self._widths[vertex]
        end = self._channel_lefts[level] if arms else left
        if max(left, x0) < min(end, x1):
            yield Segment(max(left, x0), min(end, x1) - max(left, x0), arms=ACROSS, lit=is_lit)

    def _channel_runs(self, level: int, y: int, x0: int, x1: int, lit: EdgeHighlight) -> Iterator[Segment]:
        channel, channel_left = self._channels[level], self._channel_lefts[level]
        first = max(x0 - channel_left, 0) - STUB
        last = min(x1 - channel_left, channel.width) - STUB
        across = self._across(level, y, lit)
        left = channel_left + STUB
        at = first
        if at < 0 <= last and across.reach >= 0 and not self._is_passing(level, y):
            yield Segment(left - STUB, STUB, arms=ACROSS, lit=across.lit_reach >= 0)
            at = 0
        for column, bus in channel.crossings(max(first, 0), min(last, channel.columns), y):
            if at < column:
                yield from across.runs(at, column, left)
            is_lit = bool(lit.spans) and _bus_is_lit(level, bus, y, lit)
            yield Segment(left + column, 1, -1, _line_bits(bus, y, column < across.reach), is_lit)
            at = column + 1
        yield from across.runs(at, last, left)

    def _across(self, level: int, y: int, lit: EdgeHighlight) -> _Across:
        channel = self._channels[level]
        entering = channel.entering.get(y)
        start = channel.width if entering is None else _target_column(entering, channel)
        return _Across(
            reach=max([_bend_column(bus, channel) for bus in channel.leaving.get(y, ())], default=-1),
            start=start,
            lit_reach=lit.leaving.get((level, y), -1),
            lit_start=start if (level, y) in lit.entering else channel.width,
        )

    def _is_passing(self, level: int, y: int) -> bool:
        vertex = self._rows[level].get(y)
        return vertex is not None and not self._is_task(vertex)

    # --- Highlighted edges -----------------------------------------------------------------------------------------

    def highlight(self, edges: Iterable[tuple[str, str]]) -> EdgeHighlight:
        """Highlight edges (parent, child)."""
        passing: set[int] = set()
        reach: dict[tuple[int, int], int] = {}
        entering: set[tuple[int, int]] = set()
        rows: dict[tuple[int, int], tuple[int, int]] = {}
        taps: set[tuple[int, int, int]] = set()
        for level, left, right in self._hops(edges):
            channel = self._channels[level]
            y_left, y_right = self._layers.row[left], self._layers.row[right]
            bus = channel.entering[y_right]
            bend = _bend_column(bus, channel)
            reach[level, y_left] = max(reach.get((level, y_left), -1), bend)
            entering.add((level, y_right))
            top, bottom = rows.get((level, bus.number), (y_left, y_left))
            rows[level, bus.number] = min(top, y_left, y_right), max(bottom, y_left, y_right)
            taps.update(((level, bus.number, y_left), (level, bus.number, y_right)))
            passing.update(vertex for vertex in (left, right) if not self._is_task(vertex))
        return EdgeHighlight(frozenset(passing), reach, frozenset(entering), rows, frozenset(taps))

    def _hops(self, edges: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int, int]]:
        """Yield each edge as steps (channel, vertex on its left, vertex on its right)."""
        layers = self._layers
        for parent, child in edges:
            source, right = self.dag.number[parent], self.dag.number[child]
            while right != source:
                left = next(vertex for vertex in layers.above[right] if layers.source[vertex] == source)
                yield layers.level[left], left, right
                right = left


def _bend_column(bus: Bus, channel: Channel) -> int:
    """Return the column of the vertical part; a straight line counts as behind all columns."""
    return channel.columns if bus.is_straight else bus.column


def _split(first: int, last: int, border: int, left: int, lit_first: bool) -> Iterator[Segment]:
    """Yield one line, split where the highlight ends."""
    border = min(max(border, first), last)
    for low, high, lit in ((first, border, lit_first), (border, last, not lit_first)):
        if low < high:
            yield Segment(left + low, high - low, arms=ACROSS, lit=lit)


def _target_column(bus: Bus, channel: Channel) -> int:
    """Return the column behind which the line to a target starts."""
    return channel.columns - 1 if bus.is_straight else bus.column


def _line_bits(bus: Bus, y: int, continues: bool) -> int:
    """Return the line bits of a cell of a vertical part; a line to the right shows only if it is alone."""
    arms = (UP if y > bus.top else 0) | (DOWN if y < bus.bottom else 0)
    taps = y in bus.source_rows
    if taps:
        arms |= LEFT
    if y in bus.target_rows or (taps and continues and bus.is_single):
        arms |= RIGHT
    return arms


def _bus_is_lit(level: int, bus: Bus, y: int, lit: EdgeHighlight) -> bool:
    span = lit.spans.get((level, bus.number))
    if span is None or not span[0] <= y <= span[1]:
        return False
    inside = span[0] < y < span[1]
    return inside or (level, bus.number, y) in lit.taps


def _channel(layers: Layers, level: int) -> Channel:
    wired = rows_of(families(layers.ranks[level], layers.above), layers.row)
    channel = Channel(buses_of(wired))
    columns = assign_columns(channel.buses, order_of_tracks(wired))
    step = 2 if columns <= _APART_MAX else 1  # else lines that turn beside each other read as one
    for bus in channel.buses:
        bus.column *= step
    channel.columns = (columns - 1) * step + 1 if columns else 0
    channel.tracks = [([], []) for _ in range(channel.columns)]
    for bus in sorted(channel.buses, key=lambda bus: bus.top):
        if not bus.is_straight:
            tops, buses = channel.tracks[bus.column]
            tops.append(bus.top)
            buses.append(bus)
        for row in bus.source_rows:
            channel.leaving.setdefault(row, []).append(bus)
        for row in bus.target_rows:
            channel.entering[row] = bus
    return channel


# --- The drawing of a graph, laid out at first use -------------------------------------------------------------------


WHOLE_TASKS_MAX, WHOLE_EDGES_MAX = 3_000, 12_000  # drawn completely: the layout takes 0.15 s


def fits_whole(dag: Dag) -> bool:
    """Whether the whole graph can be drawn."""
    return len(dag) <= WHOLE_TASKS_MAX and sum(map(len, dag.parent_numbers)) <= WHOLE_EDGES_MAX


def is_chain(dag: Dag) -> bool:
    """Whether the tasks follow each other one by one."""
    return len(dag) == dag.depth


class LabelSize(NamedTuple):
    """The most cells of a name in the drawing, 0 for the sign alone, and what has room beside or below it.

    ``has_time``: a time beside the name; ``rows``: text rows of each task; ``fact_cells``: of the facts in those below.
    """

    name_cells: int
    has_time: bool = True
    rows: int = 1
    fact_cells: int = 0


#: From the most to the least room; a drawing above the rows takes the first that fits.
LABEL_SIZES = (LabelSize(32), LabelSize(20), *(LabelSize(cells, has_time=False) for cells in (20, 16, 12)))
_FACT_CELLS = (48, 40, 32, 28, 24)
#: With a fact below each name, for large terminals; and with more facts and space.
TALL_SIZES = tuple(LabelSize(32, rows=2, fact_cells=cells) for cells in _FACT_CELLS)
SPREAD_SIZES = tuple(LabelSize(32, rows=rows, fact_cells=cells) for rows in (4, 3) for cells in _FACT_CELLS)
SIGNS_ALONE = LabelSize(0, has_time=False)
WHOLE_NAME = 48  # cells of a name for which a level has room
#: For a drawing that has the whole screen; where the last does not fit, a part is in sight.
WHOLE_SCREEN_SIZES = (*SPREAD_SIZES, *TALL_SIZES, *LABEL_SIZES, LabelSize(10, has_time=False))


class Ribbon(Drawing):
    """A chain of tasks as lines of text that go on below each other, of at most ``columns`` cells."""

    def __init__(self, dag: Dag, widths: Sequence[int], columns: int) -> None:
        self.dag = dag
        self._widths = widths
        self._columns = columns
        self._cell = max(widths, default=1)
        room, step = columns - 2 * TAIL, self._cell + (STUB if self._cell == 1 else TAIL)
        self.height = -(-len(dag) // max(room // step, 1))
        self._per_row = -(-len(dag) // self.height)
        widest = step if self._cell == 1 else room if self.height > 1 else step + STUB
        self._step = max(min(room // self._per_row, widest), step)
        self.width = 2 * TAIL + min(self._per_row, len(dag)) * self._step
        self.spans = [(0, self.width)] * self.height
        self._place_of = {number: place for place, number in enumerate(dag.topological)}

    def resized(self, widths: Sequence[int]) -> Drawing:
        return Ribbon(self.dag, widths, self._columns)

    def place(self, name: str) -> tuple[int, int, int]:
        number = self.dag.number[name]
        y, x = divmod(self._place_of[number], self._per_row)
        return TAIL + x * self._step, y, self._widths[number]

    def at(self, x: int, y: int) -> str | None:
        column, inside = divmod(x - TAIL, self._step)
        place = y * self._per_row + column
        if not (0 <= column < self._per_row and 0 <= place < len(self.dag)):
            return None
        number = self.dag.topological[place]
        return self.dag.names[number] if inside < self._widths[number] else None

    def column_of(self, name: str) -> list[str]:
        first = self._place_of[self.dag.number[name]] % self._per_row
        return list(self.dag.names_of(self.dag.topological[first :: self._per_row]))

    def segments(self, y: int, x0: int, x1: int, lit: EdgeHighlight = _NO_HIGHLIGHT) -> list[Segment]:
        first = y * self._per_row
        row = self.dag.topological[first : first + self._per_row]
        found = [Segment(0, 1, arms=UP | RIGHT), Segment(1, TAIL - 1, arms=ACROSS)] if y else []
        for place, number in enumerate(row, first):
            left = TAIL + (place - first) * self._step
            is_last = place == len(self.dag) - 1
            found.append(Segment(left, self._widths[number], number, 0 if is_last else ACROSS))
            right = left + self._widths[number]
            if not is_last:
                found.append(Segment(right, left + self._step - right, arms=ACROSS))
        if first + len(row) < len(self.dag):
            right = TAIL + len(row) * self._step
            found += [Segment(right, TAIL - 1, arms=ACROSS), Segment(right + TAIL - 1, 1, arms=LEFT | DOWN)]
        return [one for one in found if one.x < x1 and one.x + one.width > x0]

    def below(self, y: int, x0: int, x1: int, lit: EdgeHighlight = _NO_HIGHLIGHT) -> list[Segment]:
        """Return the tasks alone: lines run along the names."""
        return [one._replace(arms=0) for one in self.segments(y, x0, x1, lit) if one.task >= 0]

    def highlight(self, edges: Iterable[tuple[str, str]]) -> EdgeHighlight:
        """Return nothing: all tasks are related."""
        return _NO_HIGHLIGHT


class TaskDrawings:
    """The drawing of one graph. ``label_width`` returns the cells of a task's text, including its sign."""

    def __init__(self, dag: Dag, label_width: Callable[[str], int]) -> None:
        self.dag = dag
        self.label_size = LABEL_SIZES[0]
        self._ribbon_columns = 0  # a chain is drawn in lines of so many cells; 0: in one line
        self._label_width = label_width
        self._drawing: Drawing | None = None

    @property
    def current(self) -> Drawing:
        """The drawing from left to right."""
        if self._drawing is None:
            widths, columns = self._label_widths(), self._ribbon_columns
            is_ribbon = columns > 0 and is_chain(self.dag)
            self._drawing = Ribbon(self.dag, widths, columns) if is_ribbon else Drawing(self.dag, widths)
        return self._drawing

    def set_ribbon_columns(self, columns: int) -> None:
        """Draw a chain in lines of so many cells."""
        if columns != self._ribbon_columns:
            self._ribbon_columns = columns
            self._drawing = None

    def set_label_size(self, size: LabelSize) -> None:
        """Draw with more or less room for names, the same in all levels."""
        self.label_size, drawn = size, self._drawing
        self._drawing = drawn.resized(self._label_widths()) if drawn is not None else None

    def widen(self, columns: int) -> None:
        """Give the cells that the drawing leaves free of ``columns`` to levels with cut names, first where few lack."""
        drawn = self._drawing
        if drawn is None or not self.label_size.name_cells:
            return
        size, widths = self.label_size, self._label_widths()
        self.label_size = size._replace(name_cells=WHOLE_NAME)
        whole, self.label_size = self._label_widths(), size
        room, wanted = _widest(drawn.dag, widths), _widest(drawn.dag, whole)
        spare = max(columns - 1 - drawn.width, 0)
        for missing, level in sorted((wanted[level] - cells, level) for level, cells in room.items()):
            room[level] += min(missing, spare)
            spare -= min(missing, spare)
        fitted = [min(width, room[level]) for level, width in zip(drawn.dag.levels, whole, strict=True)]
        self._drawing = drawn.resized(fitted)

    def _label_widths(self) -> list[int]:
        return [self._label_width(name) for name in self.dag.names]
