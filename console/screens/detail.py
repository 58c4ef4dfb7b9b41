"""Details of the selected task: a pane next to the graph, or a screen on narrow terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.core.projection import TaskRow
from ...engine.statefile.changes.log_rows import LogChunk
from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.board import Board
from ..present.detail import AttemptTexts, detail_page, summary_lines
from ..present.tasks import Scene
from ..sessions.session import Session
from ..text.pieces import Line
from ..widgets.bars import Bar
from ..widgets.split import STRIP_ROWS
from .page import PageScreen, PageView

_LOG_CHUNKS = 20

AttemptKey = tuple[
    str, int, str, bool
]  # task, attempt, its outcome, whether in the past: what the long texts belong to


class DetailView(PageView[AttemptKey, AttemptTexts]):
    """The page of one task."""

    def __init__(self, scene: Callable[[], Scene], *, id: str | None = None) -> None:
        super().__init__(scene, id=id)
        self.task_name: str | None = None

    def show_task(self, name: str | None) -> None:
        """Show another task from its first line, or update the same task."""
        if name != self.task_name:
            self.task_name = name
            self.reset()
        self.update_page()

    def _task_row(self) -> TaskRow | None:
        return self.scene().board.projection.tasks.get(self.task_name) if self.task_name is not None else None

    def render_page(self) -> list[Line]:
        """Render the page of the task."""
        row = self._task_row()
        return detail_page(row, self.scene(), self.texts, self.columns, self.rows) if row is not None else []

    def text_key(self) -> AttemptKey | None:
        """The key of the texts: the latest attempt and its outcome."""
        row = self._task_row()
        attempt = row.attempts.get(row.attempt) if row is not None else None
        if row is None or attempt is None:
            return None
        return row.name, attempt.attempt, attempt.outcome, self.scene().board.snapshot.is_past

    async def fetch(self, session: Session, run_id: str, wanted: AttemptKey) -> AttemptTexts:
        """Read the texts of the attempt and the end of its log; in the past nothing of an attempt that still runs."""
        name, number, outcome, is_past = wanted
        if is_past and outcome == "running":
            return AttemptTexts(number)
        texts = await session.attempt_text(run_id, name, number)
        chunks = await session.log(run_id, name, number, after=-1, limit=_LOG_CHUNKS)
        return AttemptTexts(number, texts.traceback, texts.stack, texts.diagnostic, _lines_of(chunks))


def _lines_of(chunks: Sequence[LogChunk]) -> list[str]:
    return "".join(chunk.text for chunk in chunks).splitlines()


class DetailScreen(PageScreen):
    """The page of the selected task, over the screen that opened it."""

    page: DetailView

    def __init__(self, view: ScreenName) -> None:
        super().__init__(view)
        self.page = DetailView(self.scene)

    def on_shown(self) -> None:
        """Show the selected task."""
        self.page.focus()
        self._show_selected()

    def board_replaced(self, board: Board) -> None:
        """Show the same task of a new board."""
        self._show_selected()

    def on_news(self, news: BoardUpdate) -> None:
        """Refresh: the task, its relatives or its blockers may have changed."""
        self.refresh_page()

    def _show_selected(self) -> None:
        self.page.show_task(self.console.selected)
        self.refresh_page()


class StripView(Bar):
    """The strip below the graph of a narrow terminal: the selected task in a few rows."""

    def __init__(self, scene: Callable[[], Scene]) -> None:
        super().__init__(STRIP_ROWS)
        self._scene_of = scene
        self._name: str | None = None

    def show_task(self, name: str | None) -> None:
        """Update the rows and repaint changed ones."""
        self._name, scene = name, self._scene_of()
        row = scene.board.projection.tasks.get(name) if name is not None else None
        self.show_lines(summary_lines(row, scene, self.columns, STRIP_ROWS) if row is not None and self.columns else [])

    def on_resize(self) -> None:
        """Render the rows for another width."""
        self.show_task(self._name)
