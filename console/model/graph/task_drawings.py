"""The drawings of a graph or of what surrounds the selected task, laid out at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....engine.core.dag import Dag
from .components import PART_MAX, around, fits_whole, neighbourhood, with_siblings
from .drawing import Drawing, least_size

NEIGHBOURHOOD_MAX = 60  # tasks of the drawing around one of them


class LabelSize(NamedTuple):
    """The most cells of a name in the drawing, and whether a time has room beside it."""

    name_cells: int
    has_time: bool = True


#: From the most to the least room; a drawing above the rows takes the first that fits.
LABEL_SIZES = (LabelSize(32), LabelSize(20), *(LabelSize(cells, has_time=False) for cells in (20, 16, 12)))


class TaskDrawings:
    """Drawings of one graph; each method gets the selected task.

    ``label_width`` returns the cells of a task's text, including its sign.
    """

    def __init__(self, dag: Dag, label_width: Callable[[str], int]) -> None:
        self.dag = dag
        self.depth: int | None = None  # draw only what is so many edges away from the selected task
        self.label_size = LABEL_SIZES[0]
        self._label_width = label_width
        self._has_siblings = False  # with ``depth``: also the other parents and children of what is drawn
        self._drawing: Drawing | None = None
        self._center: str | None = None  # the task that was selected when ``_drawing`` was laid out
        self._around: dict[tuple[int, bool], tuple[LabelSize, Drawing]] = {}  # by depth, with siblings or not
        self._parts: dict[tuple[int, bool], Dag] = {}  # the same: what is drawn
        self._around_task: str | None = None

    def current(self, selected: str | None) -> Drawing:
        """The drawing from left to right; of a large graph, the tasks around the selected one."""
        if self._drawing is None or not self._has_whole(self._drawing.dag, selected):
            known = self.around(selected, self.depth, siblings=self._has_siblings) if self.depth is not None else None
            self._drawing = known or self._lay_out(self._part_to_draw(selected))
            self._center = selected
        return self._drawing

    def center(self, selected: str | None) -> str | None:
        """The task whose surroundings are drawn; None if the whole graph is drawn."""
        return None if len(self.current(selected).dag) == len(self.dag) else self._center

    def set_depth(self, depth: int | None, *, siblings: bool = False) -> None:
        """Draw only what is at most ``depth`` edges from the selected task; None: as much as possible.

        ``siblings``: also the other parents and children of what is drawn.
        """
        if (depth, siblings) != (self.depth, self._has_siblings):
            self.depth, self._has_siblings = depth, siblings
            self._drawing = None

    def set_label_size(self, size: LabelSize) -> None:
        """Draw with more or less room for names."""
        if size != self.label_size:
            self.label_size = size
            self._drawing = None

    def around(self, selected: str | None, depth: int, *, siblings: bool = False) -> Drawing | None:
        """The drawing of what is at most ``depth`` edges from the selected task; None if that is too much to draw."""
        part = self._part_around(selected, depth, siblings)
        if part is None:
            return None
        size, drawn = self._around.get((depth, siblings), (None, None))
        if drawn is None:
            drawn = self._lay_out(part)
        elif size != self.label_size:
            drawn = drawn.resized(self._label_widths(part))
        self._around[depth, siblings] = self.label_size, drawn
        return drawn

    def may_fit_around(
        self, selected: str | None, depth: int, columns: int, rows: int, *, siblings: bool = False
    ) -> bool:
        """Whether ``around`` may fit, by its texts alone: most drawings that are too large are not laid out."""
        part = self._part_around(selected, depth, siblings)
        if part is None:
            return False
        width, height = least_size(part, self._label_widths(part))
        return width < columns and height <= rows

    def _part_to_draw(self, selected: str | None) -> Dag:
        if self.depth is not None and selected is not None:
            return self._neighbourhood(selected, self.depth, self._has_siblings)
        return around(self.dag, selected, len(self.dag) if fits_whole(self.dag) else PART_MAX)

    def _part_around(self, selected: str | None, depth: int, siblings: bool) -> Dag | None:
        if selected is None:
            return None
        if self._around_task != selected:
            self._around_task, self._around, self._parts = selected, {}, {}
        if (depth, siblings) not in self._parts:
            self._parts[depth, siblings] = self._neighbourhood(selected, depth, siblings)
        part = self._parts[depth, siblings]
        return part if len(part) < NEIGHBOURHOOD_MAX else None

    def _lay_out(self, part: Dag) -> Drawing:
        return Drawing(part, self._label_widths(part))

    def _label_widths(self, part: Dag) -> list[int]:
        return [self._label_width(name) for name in part.names]

    def _neighbourhood(self, name: str, depth: int, siblings: bool) -> Dag:
        part = neighbourhood(self.dag, name, depth, NEIGHBOURHOOD_MAX)
        return with_siblings(self.dag, part, NEIGHBOURHOOD_MAX) if siblings else part

    def _has_whole(self, drawn: Dag, name: str | None) -> bool:
        """Whether the selected task is drawn with all of its parents and children, as far as possible."""
        if self.depth is not None:
            return name == self._center
        if len(drawn) == len(self.dag) or name is None or name == self._center:
            return True
        if name not in drawn:
            return False
        shown = len(drawn.parents(name)) + len(drawn.children(name))
        return shown == len(self.dag.parents(name)) + len(self.dag.children(name))
