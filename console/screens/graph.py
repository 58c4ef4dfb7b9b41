"""The graph of the run, with details of the selected task next to it or below it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace
from textual import events
from textual.containers import Grid, Vertical
from textual.widget import Widget

from ..keys.actions import ScreenName
from ..model.board import Board, BoardUpdate
from ..model.eta import critical_path
from ..model.graph import view as model
from ..model.graph.drawing import Drawing
from ..model.graph.groups import ZoomStep
from ..model.lists import parse_filter, searched_text
from ..present.detail import summary_lines
from ..present.graph import GroupDrawing, group_drawing, heading_line, label_width
from ..present.states import DONE
from ..present.tasks import RunContext, TaskNames
from ..text.glyphs import DOWN, LEFT, UP
from ..text.pieces import Role
from ..widgets.bars import STRIP_ROWS, Bar, DetailShare, Rule
from ..widgets.line_view import LineView
from .graph_view import GraphView, GroupMap, SilhouetteView
from .task_pages import TEXTS_ROWS_MIN, GraphGroupKey, TaskScreen

_FRAME_ROWS = 5  # header, tabs, two rules, keys
_WHOLE = (model.Overview.TASKS, model.Overview.BESIDE)  # all tasks are drawn
_DRAWN = (*_WHOLE, model.Overview.PART)


class GraphScreen(TaskScreen):
    """See the module."""

    PLACE = ScreenName.GRAPH
    DEFAULT_CSS = """
    GraphScreen #panes { height: 1fr; }
    GraphScreen #above { height: 100%; }
    """
    DETAIL_SHARE = DetailShare(37, 40, 80)

    def __init__(self) -> None:
        super().__init__()
        graph = self._make_graph(self.board)
        self._name_tasks(graph)
        self.map_view = GraphView(self._make_drawing(self.board), self.run_context, self._on_selected, id="map")
        self.map_view.can_focus = False
        self.group_map = GroupMap(self.run_context, self._on_group_clicked)
        self.silhouette_view = SilhouetteView(self.run_context, self._on_selected)
        for drawn in (self.map_view, self.group_map, self.silhouette_view):
            drawn.display = False  # a tick that comes before the size is known must not lay out thousands of tasks
        self.map_rule = Rule(self.console.glyphs.rule, id="map-rule")
        self._above = Vertical(id="above")
        self._grid = Grid(id="panes")
        self.heading = Bar(id="heading")
        self._overview = model.Overview.NOTHING
        self._group_drawing: GroupDrawing | None = None
        self._group_columns = 0  # for which it was laid out
        self._path_key: object = None  # what the critical path was computed from
        self.graph_view = GraphView(graph, self.run_context, self._on_selected, id="graph")
        self.main_pane = self.marked_view = self.graph_view
        self.strip_view = Bar(STRIP_ROWS)
        self._texts_rows: int | None = 0  # of the list above the texts; None: all, without texts
        self._has_chosen_step = False
        self._is_following = False
        self._is_filter_stale = False  # tasks have moved since

    # --- The frame ------------------------------------------------------------------------------------------------

    def content(self) -> Iterable[Widget]:
        """Yield the drawing, the list, and the details: beside both, or below the drawing beside the list."""
        with self._grid:
            with self._above:
                yield self.map_view
                yield self.group_map
                yield self.silhouette_view
                yield self.map_rule
            with Vertical():
                yield from self.main_widgets()
            yield self.divider
            yield self.detail_pane

    def _place_details(self, rows_above: int) -> None:
        """Arrange the panes. ``rows_above``: of the drawing with its rule."""
        grid, above, detail = self._grid, self._above, self.detail_pane
        above.display = rows_above > 0
        is_beside = self._overview is model.Overview.BESIDE
        grid.styles.grid_size_columns = 3 if self.is_wide else 1
        grid.styles.grid_columns = f"1fr 1 {self.detail_room.columns}" if self.is_wide else "1fr"
        grid.styles.grid_rows = f"{rows_above} 1fr" if rows_above else "1fr"
        above.styles.column_span = 3 if self.is_wide and not is_beside else 1
        self.divider.styles.row_span = detail.styles.row_span = 2 if is_beside else 1
        main = self.heading.parent
        if grid.children and isinstance(main, Widget):
            grid.move_child(main, after=detail) if is_beside else grid.move_child(main, before=self.divider)

    def widgets_below(self) -> Iterable[Widget]:
        """Yield the strip: the selected task in a few rows."""
        yield self.strip_view

    def on_resize(self, event: events.Resize) -> None:
        """Place the details next to the graph, below it, or on a separate screen."""
        self.strip_view.display = self.detail_room.rows > 0
        self._show_overview()

    def _show_overview(self) -> None:
        """Choose what is drawn above the rows, and show it with the heading."""
        graph, drawn = self.graph, self.map_view.graph
        self._choose_overview(graph, drawn)
        self._set_overview_height(graph, drawn)
        self.group_map.display = self._overview is model.Overview.GROUPS
        self._show_map()
        self._place_details(self._rows_above())
        self._update_details()
        self.call_after_refresh(self.show_frame)  # the rules need the new position of the divider
        self._show_heading()

    def _choose_overview(self, graph: model.Graph, drawn: model.Graph) -> None:
        """Draw above the list, else in the place of one that has no room, until the operator wants another step."""
        before, room = graph.zoom, model.OverviewRoom(self.app.size.width, self.main_columns, self._content_rows)
        if not self._has_chosen_step and graph.zoom is ZoomStep.DRAWING:
            graph.zoom = ZoomStep.ROWS
        self._overview = model.choose_overview(graph, drawn, self._draw_groups, room)
        is_cut = (
            graph.step is ZoomStep.ROWS and self._overview is model.Overview.NOTHING and len(graph.dag) >= room.rows
        )
        columns = room.list_columns - (room.list_columns < room.columns)  # a blank before the frame
        is_whole = (is_cut or graph.is_drawing) and model.fits_screen(graph, columns, room.rows - 1)
        if is_whole and not self._has_chosen_step:
            graph.zoom = ZoomStep.DRAWING
        if graph.zoom is not before:
            self.graph_view.step_changed()

    def _place_texts(self) -> None:
        """Give the rows that a short list leaves free to what the selected task wrote, or to the tasks of the group."""
        rows = 0 if self.graph.is_drawing else self.graph.height
        free = self._content_rows - self._rows_above() - rows - 2  # the heading, and the rule
        has_texts = rows > 0 and free >= TEXTS_ROWS_MIN
        shown = rows if has_texts else None
        if shown != self._texts_rows:
            self._texts_rows = shown
            self.divide_rows(shown)

    @property
    def _content_rows(self) -> int:
        """Rows between the frame and the strip."""
        return self.screen_rows - _FRAME_ROWS - (STRIP_ROWS if self.strip_view.display else 0)

    def _set_overview_height(self, graph: model.Graph, drawn: model.Graph) -> None:
        rows = self._content_rows
        if self._overview in _WHOLE:
            self.map_view.styles.height = drawn.drawing.height * drawn.drawings.label_size.rows
        elif self._overview is model.Overview.PART:
            self.map_view.styles.height = model.part_rows(rows)
            model.draw_part(drawn, model.part_rows(rows))
        elif self._overview is model.Overview.GROUPS and self._group_drawing is not None:
            self.group_map.styles.height = model.GROUP_ROWS * self._group_drawing.drawing.height
            self.group_map.show(graph, self._group_drawing)
        self.silhouette_view.set_row_count(max(self._silhouette_rows(graph, rows), 1))
        if graph.selected is not None:
            drawn.select(graph.selected)

    def _rows_above(self) -> int:
        """Rows of what is drawn above the list, with the rule below it."""
        if self._overview is model.Overview.NOTHING:
            return 0
        rows = 1
        for view in (self.map_view, self.group_map, self.silhouette_view):
            if view.display and view.styles.height is not None:
                rows += round(view.styles.height.value)
        return rows

    def _silhouette_rows(self, graph: model.Graph, rows: int) -> int:
        if self._overview is model.Overview.GROUPS and self._group_drawing is not None:
            return model.rows_below_groups(graph, self._group_drawing.drawing, rows)
        return model.silhouette_rows(
            rows, graph.groups.least_rows if self._overview is model.Overview.SILHOUETTE else None
        )

    def _show_map(self) -> None:
        """Show the tasks that are drawn; many as a silhouette."""
        graph = self.graph
        has_silhouette = self._overview is model.Overview.SILHOUETTE
        if self._overview is model.Overview.GROUPS:
            has_silhouette = self.silhouette_view.row_count > 1
        self.map_view.display = self._overview in _DRAWN
        self.silhouette_view.display = has_silhouette
        if self.map_view.display:
            self.map_view.step_changed()
        if has_silhouette:
            forecast = self.console.live.forecast
            left_us = forecast.left.low_us if forecast is not None else None
            self.silhouette_view.show_graph(graph, self._new_path(), left_us)

    def row_in(self, view: LineView, task: str) -> int | None:
        return self.graph.row_of(task) if view is self.graph_view else None

    def _new_path(self) -> tuple[str, ...] | None:
        """The critical path; None if it is the same as before."""
        board, forecast = self.board, self.console.live.forecast
        key = (board, forecast, None if forecast is not None else board.projection.seq)
        if key == self._path_key:
            return None
        self._path_key = key
        return critical_path(board, forecast, self.console.live.now_us, self.console.runner)

    def _draw_groups(self, columns: int) -> Drawing | None:
        if self._group_columns != columns:
            self._group_columns = columns
            self._group_drawing = group_drawing(self.graph, self.run_context(), columns)
        return self._group_drawing.drawing if self._group_drawing is not None else None

    def _show_heading(self) -> None:
        """Show the step, what the filter found, and what rows leave out."""
        marks = len(self.graph_view.marks), self._count_hidden_marks()
        self.heading.show(*heading_line(self.graph, self.run_context(), self.main_columns, self.filter_text, *marks))

    def _count_hidden_marks(self) -> int:
        """The number of marked tasks that the filter leaves out."""
        found = self.graph.found
        return 0 if found is None else len(self.graph_view.marks.keys() - set(found))

    def rule_marks(self, upper: bool) -> dict[int, str]:
        """The column at which the divider meets a rule; with a drawing that is the rule under the drawing."""
        marks = super().rule_marks(upper)
        is_beside = self._overview is model.Overview.BESIDE
        met = [self.map_rule] * is_beside + [self.texts_rule] * self.texts_rule.display
        joint = self.console.glyphs.lines[UP | DOWN | LEFT]
        self.divider.show_marks({one.region.y - self.divider.region.y: joint for one in met})
        if not upper or self._overview is model.Overview.NOTHING:
            return marks
        below = self.hidden_row_marks(self.map_rule)
        self.map_rule.show(self.console.glyphs.rule, below if is_beside else {**marks, **below})
        return marks if is_beside else {}

    # --- What is shown --------------------------------------------------------------------------------------------

    def run_context(self) -> RunContext:
        """The context for rendering rows, as of the last update."""
        return self._run_context

    def _refresh_context(self) -> None:
        self._run_context = replace(super().run_context(), titles=self._titles)

    @property
    def graph(self) -> model.Graph:
        return self.graph_view.graph

    def board_replaced(self, board: Board) -> None:
        """Replace the graph; keep zoom and selection where possible."""
        before, graph = self.graph, self._make_graph(board)
        if before.dag is board.dag:
            graph.zoom = before.zoom
        else:
            self._group_drawing, self._group_columns = None, 0
            self._name_tasks(graph)
        if self.console.selected is not None:
            graph.select(self.console.selected)
        self._refresh_context()
        self.map_view.set_graph(self._make_drawing(board))
        self.graph_view.set_graph(graph)
        self._selection_changed(graph.selected)
        self._filter(self.filter_text)
        self._show_overview()

    def _make_graph(self, board: Board, zoom: ZoomStep | None = None) -> model.Graph:
        graph = model.Graph(board, lambda name: label_width(name, self.run_context(), graph.drawings.label_size), zoom)
        return graph

    def _make_drawing(self, board: Board) -> model.Graph:
        return self._make_graph(board, ZoomStep.DRAWING)

    def _name_tasks(self, graph: model.Graph) -> None:
        """Shorten the names of tasks and groups among each other."""
        self.names = TaskNames(graph.board.projection.tasks)
        self._titles = TaskNames((group.title for group in graph.groups.groups if not group.is_single), prefix="")
        self._refresh_context()

    def on_shown(self) -> None:
        """Select the task selected on the other screens."""
        if self.focused is None:
            self.graph_view.focus()
        self._refresh_context()
        if self.console.selected is not None:
            self.graph_view.select(self.console.selected)
            self._show_on_overview(self.console.selected)
        self.graph_view.refresh()
        self._update_details()

    def on_news(self, news: BoardUpdate) -> None:
        """Repaint changed rows and those of their children, which show what they wait for."""
        graph, delta = self.graph, news.delta
        self._refresh_context()
        if self.map_view.display:
            self.map_view.tasks_changed(delta.tasks)
        if self.group_map.display:
            self.group_map.tasks_changed(name for name, _, _ in delta.moves)
        if graph.apply(delta):
            self.graph_view.step_changed()
        elif delta.are_problems_changed or delta.is_run_changed or delta.other_kinds:
            self.graph_view.refresh()
        else:
            children = {child for name, _, _ in delta.moves for child in graph.dag.children(name)}
            self.graph_view.tasks_changed(delta.tasks | children)
        self._is_filter_stale |= bool(news.delta.moves and self.filter_text)
        if self.silhouette_view.display and delta.moves:
            self.silhouette_view.show_graph(graph)
        if self._is_following:
            self._go_to_front()
        if self._affects_details(news):
            self._update_details()

    def tick(self, now_us: int) -> None:
        """Countdowns, elapsed times, ages."""
        if self._is_filter_stale:
            self._filter(self.filter_text)
            self._show_heading()
        self._refresh_context()
        self.graph_view.tick()
        if self.map_view.display:
            self.map_view.tick()
        if self.silhouette_view.display:
            self._show_map()
        self.page_of_texts.expire_running()
        self._update_details()

    def _affects_details(self, news: BoardUpdate) -> bool:
        """Whether the selected task, a parent or a child of it changed."""
        name, delta = self.console.selected, news.delta
        if name is None or delta.is_run_changed or delta.are_problems_changed or delta.other_kinds:
            return True
        return not delta.tasks.isdisjoint((name, *self.board.dag.parents(name), *self.board.dag.children(name)))

    def _update_details(self) -> None:
        self._place_texts()
        name, index = self.console.selected, self.graph.selected_group
        group = (self.graph, index) if index is not None else None
        if self.detail.display:
            self.detail.show_task(name, group)
        if self.texts.display:
            self.texts.group, self.texts.cursor = self._group_of_task(name), name
            self.texts.show_task(self.writer_of(name) if name is not None else None, group)
        self.request_texts()
        if self.strip_view.display and name is not None:
            row, columns = self.board.row(name), self.app.size.width
            self.strip_view.show_lines(summary_lines(row, self.run_context(), columns, STRIP_ROWS))

    def _group_of_task(self, name: str | None) -> GraphGroupKey | None:
        """The group of several tasks in which a task stands now; of one that is done, that of what runs."""
        graph = self.graph
        if name is None or graph.step is not ZoomStep.GROUPS:
            return None
        front = self.board.current_task() if self.board.row(name).state in DONE else None
        for one in filter(None, (name, front)):
            index = graph.groups.group_of[graph.dag.number[one]]
            if not graph.groups.groups[index].is_single:
                return graph, index
        return None

    def texts_read(self) -> None:
        self._update_details()

    # --- Selection and marks --------------------------------------------------------------------------------------

    def _selection_changed(self, name: str | None) -> None:
        self.console.selected = name
        if name is not None:
            self._show_on_overview(name)
        self._update_details()
        self._show_heading()

    def _on_selected(self, name: str | None) -> None:
        """The cursor moved, here or on the map; the other one follows."""
        if name is None or name == self.console.selected:
            self._update_details()  # of a group now, or of its first task
            return
        self._selection_changed(name)
        self.graph_view.select(name)

    def _show_on_overview(self, name: str) -> None:
        if self._overview in (model.Overview.SILHOUETTE, model.Overview.GROUPS):
            self._show_map()
        elif self.map_view.display:
            self.map_view.select(name)
        if self.group_map.display:
            self.group_map.refresh()

    def _on_group_clicked(self, index: int) -> None:
        self.graph_view.go_to_row(self.graph.groups.row_of_group(index))

    def on_graph_view_task_opened(self, message: GraphView.TaskOpened) -> None:
        self.show_details()

    def on_graph_view_task_marks_changed(self, message: GraphView.TaskMarksChanged) -> None:
        self._show_heading()

    def target_tasks(self) -> Sequence[str]:
        """The marked tasks; without marks those under the cursor: one, or all of a group or band that need a human."""
        if self.graph_view.marks:
            return tuple(self.graph_view.marks)
        if not self.graph.is_on_many:
            return super().target_tasks()
        return tuple(filter(self.graph.is_at_cursor, self.board.problems))

    def visible_tasks(self) -> Collection[str]:
        """The tasks of the rows or boxes in view."""
        return self.graph_view.visible_tasks()

    def task_at_cursor(self) -> str | None:
        """The selected task; None on a group, and where a filter or the mouse wheel has put the task out of sight."""
        graph = self.graph
        if graph.is_on_many or graph.selected not in self.visible_tasks():
            return None
        return graph.selected

    @property
    def acts_on_one(self) -> bool:
        """Whether nothing is marked and the row is no group or band."""
        return not self.graph_view.marks and not self.graph.is_on_many

    @property
    def selection_problem(self) -> str:
        """Why an act has no target: on a group or band it applies to tasks that need a human."""
        if self.graph.is_on_many:
            return "nothing in this row needs a human: open it and select a task"
        return super().selection_problem

    # --- Keys -----------------------------------------------------------------------------------------------------

    def show_details(self) -> None:
        """Show the details in the pane, or on a separate screen."""
        if self.is_wide:
            self.focus_details()
        else:
            super().show_details()

    def zoom(self, step: int) -> None:
        """Show one step more (1) or less (-1) detail; after the rows comes the drawing."""
        self._has_chosen_step = True
        if not self.graph.zoom_by(step):
            self.console.show_message(f"there is no step with {'more' if step > 0 else 'less'} detail")
            return
        self._show_overview()
        self.graph_view.step_changed()

    def toggle_follow(self) -> None:
        """Switch following the running tasks on or off."""
        self._is_following = not self._is_following
        self.console.show_message("follows what runs" if self._is_following else "stands still", Role.DIM, 2)
        if self._is_following:
            self._go_to_front()

    def _go_to_front(self) -> None:
        front = self.board.current_task()
        if front is not None:
            self.graph_view.select(front)

    def toggle_critical_path(self) -> None:
        """Show or hide the critical path."""
        self.graph_view.critical_path = () if self.graph_view.critical_path else self.find_critical_path()
        self.graph_view.step_changed()

    def filter_changed(self, text: str) -> None:
        """Show only what matches; the cursor goes to the first match."""
        self._filter(text)
        self._show_overview()
        if self.graph_view.matches and self.console.selected not in self.graph_view.matches:
            self.graph_view.select(next(iter(self.graph_view.matches)))

    def _filter(self, text: str) -> None:
        wanted, tasks = parse_filter(text), self.board.projection.tasks
        names = [name for name in self.board.dag.order if wanted and wanted.matches(searched_text(tasks[name]))]
        self._is_filter_stale = False
        self.graph_view.matches = dict.fromkeys(names)
        self.graph.show_only(names if wanted else None)
        self.graph_view.step_changed()

    def go_to_next(self, step: int) -> None:
        """Go to the next or previous match; without a filter, to a problem."""
        matches, before = list(self.graph_view.matches), self.console.selected
        if matches:
            here = matches.index(self.console.selected) if self.console.selected in matches else -step
            self.graph_view.select(matches[(here + step) % len(matches)])
        elif not self.graph_view.select_problem(step):
            self.console.show_message("nothing needs a human", Role.DIM, 3)
        elif self.console.selected == before:
            self.console.show_message("no other task needs a human", Role.DIM, 3)
