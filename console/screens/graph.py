"""The graph of the run, with details of the selected task next to it or below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.board import Board
from ..model.eta import critical_path
from ..model.filters import parse_filter
from ..model.graph.view import GRAPH_MAX, Graph, GraphForm, GraphOrder, Zoom
from ..present.detail import summary_lines
from ..present.graph import drawing_status, label_width
from ..present.tasks import Scene
from ..present.timeline import describe_path
from ..text.pieces import Line, Piece, Role
from ..text.text import cells, one_line
from ..widgets.bars import Bar, Rule
from ..widgets.bindings import bindings_of
from ..widgets.line_view import LineView
from ..widgets.split import STRIP_ROWS, has_room_for_strip
from .detail import DetailView
from .graph_view import GraphView
from .page import read_page
from .panes import PaneWidth, SplitScreen

_MAP_SPARE_ROWS = 4  # so that the map does not look squeezed in
_READING_DELAY_SECONDS = 0.15  # the cursor may be moving on

_ZOOM_LABELS = {
    (Zoom.BANDS, GraphForm.RAILS): "bands of levels",
    (Zoom.GROUPS, GraphForm.RAILS): "groups",
    (Zoom.MATRIX, GraphForm.RAILS): "one sign per task",
    (Zoom.GRAPH, GraphForm.RAILS): "one row per task",
    (Zoom.GRAPH, GraphForm.DRAWING): "drawing",
}


class StripView(LineView):
    """The selected task in a few rows."""

    def __init__(self, screen: GraphScreen) -> None:
        super().__init__()
        self._graph_screen = screen
        self.styles.height = STRIP_ROWS
        self.lines: list[Line] = []

    def show_task(self, name: str | None) -> None:
        """Update the rows and repaint changed ones."""
        scene = self._graph_screen.scene()
        row = scene.board.fold.tasks.get(name) if name is not None else None
        lines = summary_lines(row, scene, self.columns, STRIP_ROWS) if row is not None and self.columns else []
        for y in range(STRIP_ROWS):
            if lines[y : y + 1] != self.lines[y : y + 1]:
                self.refresh_rows(y)
        self.lines = lines

    def line(self, y: int) -> Line:
        """One of them."""
        return self.lines[y] if y < len(self.lines) else []

    def on_resize(self) -> None:
        """Another width."""
        self.show_task(self._graph_screen.console.selected)


class GraphScreen(SplitScreen):
    """See the module."""

    PLACE = ScreenName.GRAPH
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.GRAPH)
    DETAIL_WIDTH = PaneWidth(37, 40, 80)

    def __init__(self) -> None:
        super().__init__()
        self.map_view = GraphView(self.scene, self._on_selected, id="map")
        self.map_view.can_focus = False
        self.map_rule = Rule(self.console.glyphs.rule, id="map-rule")
        self.drawing_bar = Bar(id="part")
        self.drawing_bar.display = False
        self.main_pane = self.graph_view = GraphView(self.scene, self._on_selected, id="graph")
        self.detail_pane = self.detail = DetailView(self.scene, id="beside")
        self.strip_view = StripView(self)
        self._scene: Scene | None = None
        self._is_following = False
        self._read_timer: Timer | None = None

    # --- The frame ------------------------------------------------------------------------------------------------

    def main_widgets(self) -> Iterable[Widget]:
        """Map, drawing title and graph."""
        yield self.map_view
        yield self.map_rule
        yield self.drawing_bar
        yield self.graph_view

    def widgets_below(self) -> Iterable[Widget]:
        """The selected task in a few rows."""
        yield self.strip_view

    def on_resize(self, event: events.Resize) -> None:
        """Place the details next to the graph, below it, or on a separate screen."""
        self.strip_view.display = not self.is_wide and has_room_for_strip(event.size.height)
        super().on_resize(event)
        self.call_after_refresh(self._show_map)

    def _show_map(self) -> None:
        """Show the drawing above the rows if both fit entirely."""
        graph, drawn = self.graph, self.map_view.graph
        if graph is None or drawn is None or drawn.board is not graph.board:
            self.map_view.display = self.map_rule.display = False
            self.divider.set_tee_row(None)
            self._show_drawing_bar()
            return
        width = self.graph_view.region.width - 1
        spare = self.graph_view.region.height + (self.map_view.region.height + 1 if self.map_view.display else 0)
        fits = graph.zoom is Zoom.GRAPH and graph.form is GraphForm.RAILS
        fits = fits and drawn.drawing.width <= width and drawn.drawing.height + graph.height + _MAP_SPARE_ROWS <= spare
        self.map_view.display = self.map_rule.display = fits
        self.map_view.styles.height = drawn.drawing.height
        if fits and graph.selected is not None:
            self.map_view.select(graph.selected)
        self.divider.set_tee_row(drawn.drawing.height if fits else None)
        self._show_drawing_bar()

    def _show_drawing_bar(self) -> None:
        """Show whether the drawing is complete."""
        fold = self.console.keymap.label("fold")
        left, right = drawing_status(self.graph, fold, self.console.glyphs) if self.graph is not None else ([], [])
        self.drawing_bar.show(left, right)
        self.drawing_bar.display = bool(left)

    # --- What is shown --------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The context for rendering rows, as of the last update."""
        if self._scene is None:
            self._refresh_scene()
        assert self._scene is not None
        return self._scene

    def _refresh_scene(self) -> None:
        board, live = self.board, self.console.live
        cells_max = self._scene.name_cells if self._scene is not None and self._scene.board.dag is board.dag else 0
        if not cells_max:
            cells_max = max((cells(one_line(name)) for name in board.fold.tasks), default=0)
        self._scene = Scene(
            board, live.now_us, self.console.glyphs, self.console.absolute_times, cells_max, board.pools()
        )
        self._scene.runner = self.console.runner

    @property
    def graph(self) -> Graph | None:
        """The graph of the run."""
        return self.graph_view.graph

    def board_replaced(self, board: Board) -> None:
        """Replace the graph; keep zoom and selection where possible."""
        before = self.graph
        self._refresh_scene()
        graph = Graph(board, label_width)
        if before is not None and before.dag is board.dag:
            graph.zoom, graph.form = before.zoom, before.form
            graph.order_by(before.order)
        if self.console.selected is not None:
            graph.select(self.console.selected)
        if len(graph.dag) <= GRAPH_MAX:
            drawn = Graph(board, label_width)
            drawn.zoom, drawn.form = Zoom.GRAPH, GraphForm.DRAWING
            self.map_view.set_graph(drawn)
        self.graph_view.set_graph(graph)
        self._selection_changed(graph.selected)
        self._show_map()

    def on_shown(self) -> None:
        """Select the task selected on the other screens."""
        if self.focused is None:
            self.graph_view.focus()
        if self.graph is not None:
            self._refresh_scene()
            if self.console.selected is not None:
                self.graph_view.select(self.console.selected)
            self.graph_view.refresh()
            self._update_details()

    def on_news(self, news: BoardUpdate) -> None:
        """Repaint changed rows and those of their children, which show what they wait for."""
        graph, delta = self.graph, news.delta
        if graph is None:
            return
        self._refresh_scene()
        if self.map_view.display:
            self.map_view.tasks_changed(delta.tasks)
        if graph.apply(delta):
            self.graph_view.step_changed()
        elif delta.are_problems_changed or delta.is_run_changed or delta.other_kinds:
            self.graph_view.refresh()
        else:
            children = {child for name, _, _ in delta.moves for child in graph.dag.children(name)}
            self.graph_view.tasks_changed(delta.tasks | children)
        if self._is_following:
            self._go_to_front()
        if self._affects_details(news):
            self._update_details()

    def tick(self, now_us: int) -> None:
        """Countdowns, elapsed times, ages."""
        if self.graph is not None:
            self._refresh_scene()
            self.graph_view.tick()
            if self.map_view.display:
                self.map_view.tick()
            self._update_details()

    def _affects_details(self, news: BoardUpdate) -> bool:
        """Whether the selected task, a parent or a child of it changed."""
        name, delta = self.console.selected, news.delta
        if name is None or delta.is_run_changed or delta.are_problems_changed or delta.other_kinds:
            return True
        return not delta.tasks.isdisjoint((name, *self.board.dag.parents(name), *self.board.dag.children(name)))

    def _update_details(self) -> None:
        name = self.console.selected
        if self.detail.display:
            self.detail.show_task(name)
            if self.detail.missing_text_key() is not None and self._read_timer is None:
                self._read_timer = self.set_timer(_READING_DELAY_SECONDS, self._read_texts)
        if self.strip_view.display:
            self.strip_view.show_task(name)

    @property
    def is_settled(self) -> bool:
        """Whether the detail pane waits for no texts."""
        return self._read_timer is None

    def _read_texts(self) -> None:
        self._read_timer = None
        read_page(self, self.detail)

    # --- Selection and marks --------------------------------------------------------------------------------------

    def _selection_changed(self, name: str | None) -> None:
        self.console.selected = name
        self._update_details()
        self._show_drawing_bar()

    def _on_selected(self, name: str | None) -> None:
        """The cursor moved, here or on the map; the other one follows."""
        if name is None or name == self.console.selected:
            return
        self._selection_changed(name)
        self.graph_view.select(name)
        if self.map_view.display:
            self.map_view.select(name)

    def on_graph_view_opened(self, message: GraphView.Opened) -> None:
        """Enter on a task."""
        self.show_details()

    def target_tasks(self) -> Sequence[str]:
        """The marked tasks; without marks the selected one, or all of the selected group that need a human."""
        if self.graph_view.marks:
            return tuple(self.graph_view.marks)
        graph = self.graph
        group = graph.selected_group if graph is not None else None
        if graph is None or group is None:
            return super().target_tasks()
        names = {graph.dag.names[number] for number in graph.groups.groups[group].members}
        return tuple(name for name in self.board.problems if name in names)

    def on_task_acted(self, name: str) -> None:
        """Remove the mark."""
        self.graph_view.unmark(name)

    # --- Keys -----------------------------------------------------------------------------------------------------

    def show_details(self) -> None:
        """Into the pane beside, or onto a screen of their own."""
        if self.is_wide:
            self.detail.focus()
        else:
            super().show_details()

    def back(self) -> None:
        """From the details to the graph; then marks, filter."""
        if self.graph_view.marks and not self.detail.has_focus:
            self.graph_view.unmark(*self.graph_view.marks)
        else:
            super().back()

    def zoom(self, step: int) -> None:
        """With -1 one step farther away, with 1 one step nearer; from the rails on, as a drawing."""
        graph = self.graph
        if graph is None:
            return
        if graph.zoom is Zoom.GRAPH and (graph.form is GraphForm.RAILS) == (step > 0):
            graph.form = GraphForm.DRAWING if step > 0 else GraphForm.RAILS
        elif not graph.zoom_by(step):
            return
        self.graph_view.step_changed()
        self.graph_view.refresh()
        self._show_map()
        self.console.show_line([Piece(_ZOOM_LABELS[graph.zoom, graph.form], Role.DIM)], 2)

    def change_order(self) -> None:
        """Switch the order, if this zoom step has one."""
        graph = self.graph
        if graph is None:
            return
        if not graph.is_ordered:
            self.console.show_line(
                [Piece("this step follows the levels of the flow; rows and groups can be sorted")], 3
            )
            return
        graph.order_by(GraphOrder.PROBLEMS if graph.order is GraphOrder.FLOW else GraphOrder.FLOW)
        self.graph_view.step_changed()
        self.console.show_line([Piece(str(graph.order), Role.DIM)], 2)

    def toggle_follow(self) -> None:
        """Switch following the running tasks on or off."""
        self._is_following = not self._is_following
        self.console.show_line([Piece("follows what runs" if self._is_following else "stands still", Role.DIM)], 2)
        if self._is_following:
            self._go_to_front()

    def _go_to_front(self) -> None:
        front = self.board.current_task()
        if front is not None:
            self.graph_view.select(front)

    def toggle_critical_path(self) -> None:
        """Show or hide the critical path."""
        live, is_shown = self.console.live, bool(self.graph_view.critical_path)
        path = () if is_shown else critical_path(self.board, live.forecast)
        if not is_shown:
            self.console.show_line([Piece(describe_path(self.board, path, live.now_us), Role.DIM)], 6)
        self.graph_view.critical_path = path
        self.graph_view.step_changed()
        self.graph_view.refresh()

    def filter_changed(self, text: str) -> None:
        """Find: the cursor goes to the first match."""
        wanted = parse_filter(text)
        names = [name for name in self.board.dag.order if wanted and wanted.matches(name.casefold())]
        self.graph_view.matches = dict.fromkeys(names)
        self.graph_view.step_changed()
        self.graph_view.refresh()
        if names and self.console.selected not in self.graph_view.matches:
            self.graph_view.select(names[0])

    def go_to_next(self, step: int) -> None:
        """To the next match or the one before; without a filter, to a problem."""
        matches = list(self.graph_view.matches)
        if matches:
            here = matches.index(self.console.selected) if self.console.selected in matches else -step
            self.graph_view.select(matches[(here + step) % len(matches)])
        elif not self.graph_view.select_problem(step):
            self.console.show_line([Piece("nothing needs a human", Role.DIM)], 3)
