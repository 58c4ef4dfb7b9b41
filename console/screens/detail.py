"""Everything about the selected task: a pane beside the graph where there is room, else a screen of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ...engine.errors import RedriveError
from ..actions import Place
from ..live import News
from ..model.board import Board
from ..present.detail import Texts, page
from ..present.pieces import Line
from ..present.tasks import Scene
from ..sessions.session import LogChunk, Session
from ..widgets.bindings import bindings_of
from ..widgets.lines import LinesView
from .base import ConsoleScreen, run_latest

_LOG_CHUNKS = 20

Key = tuple[str, int, str, bool]  # task, attempt, its outcome, whether in the past: what the long texts belong to


class DetailView(LinesView):
    """The page of one task, kept up to date without losing the reader's place."""

    def __init__(self, scene: Callable[[], Scene], *, id: str | None = None) -> None:
        self._written: list[Line] = []
        super().__init__(self._written, wrap=True, id=id)
        self._scene = scene
        self.task_name: str | None = None
        self._texts: Texts | None = None
        self._texts_of: Key | None = None

    def show_task(self, name: str | None) -> None:
        """Another task, from its first line."""
        if name != self.task_name:
            self.task_name = name
            self._texts = None
            self._texts_of = None
            self.action_top()
        self.update_page()

    def update_page(self) -> None:
        """The same task as of now."""
        scene = self._scene()
        row = scene.board.fold.tasks.get(self.task_name) if self.task_name is not None else None
        lines = page(row, scene, self._texts, None, self.columns) if row is not None and self.columns else []
        if lines == self._written:
            return
        before = [self.line(y) for y in range(self.rows)]
        self._written[:] = lines
        self._rows_in_view = None
        self._top = max(min(self._top, self._last_page()), (0, 0))
        for y, line in enumerate(before):
            if self.line(y) != line:
                self.refresh_rows(y)

    def wanted(self) -> Key | None:
        """The attempt whose texts are still to be read; None if there is nothing to read."""
        board = self._scene().board
        row = board.fold.tasks.get(self.task_name) if self.task_name is not None else None
        attempt = row.attempts.get(row.attempt) if row is not None else None
        if row is None or attempt is None:
            return None
        key = (row.name, attempt.attempt, attempt.outcome, board.moment.is_past)
        return None if key == self._texts_of else key

    async def read_texts(self, session: Session, run_id: str) -> None:
        """Read what ``wanted`` says, and show it if it is still wanted then."""
        key = self.wanted()
        if key is None:
            return
        name, number, outcome, is_past = key
        try:
            texts = await session.attempt_text(run_id, name, number)
            chunks = await session.log(run_id, name, number, after=-1, limit=_LOG_CHUNKS)
        except RedriveError:
            return  # the header says what is wrong with the door; the texts are asked for again with the next event
        if self.wanted() == key:
            self._texts_of = key
            self._texts = Texts(number, texts.traceback, texts.stack, texts.diagnostic, _lines_of(chunks))
            if is_past and outcome == "running":
                self._texts = Texts(number)  # they tell how it ended
            self.update_page()

    def on_resize(self) -> None:
        """Sentences are folded to the width."""
        self.update_page()
        super().on_resize()


def _lines_of(chunks: Sequence[LogChunk]) -> list[str]:
    return "".join(chunk.text for chunk in chunks).splitlines()


class DetailScreen(ConsoleScreen):
    """The page over whatever screen asked for it."""

    PLACE = Place.DETAIL
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.DETAIL)

    def __init__(self, view: Place) -> None:
        super().__init__()
        self._view = view
        self.page = DetailView(self.scene)

    @property
    def view(self) -> Place:
        """The tab of the screen below."""
        return self._view

    def scene(self) -> Scene:
        """What the page needs."""
        return Scene(self.board, self.console.live.now_us, self.console.glyphs)

    def content(self) -> Iterable[Widget]:
        """The page."""
        yield self.page

    def shown(self) -> None:
        """The selected task."""
        self.page.focus()
        self.page.show_task(self.console.selected)
        self._read()

    def board_replaced(self, board: Board) -> None:
        """The same task of a new picture."""
        self.page.show_task(self.console.selected)
        self._read()

    def take(self, news: News) -> None:
        """The task, its relatives or what holds it may have moved."""
        self.page.update_page()
        self._read()

    def tick(self, now_us: int) -> None:
        """Ages."""
        self.page.update_page()

    def _read(self) -> None:
        if self.page.wanted() is not None:
            session, run_id = self.console.live.session, self.board.fold.run.run_id
            run_latest(self, partial(self.page.read_texts, session, run_id), "texts")

    def filter_changed(self, text: str) -> None:
        """Search in the page."""
        self.page.search(text)
        self.page.find_next()

    def action_next(self) -> None:
        """The next match."""
        self.page.find_next()

    def action_previous(self) -> None:
        """The previous match."""
        self.page.find_next(forward=False)

    def action_open(self) -> None:
        """Enter goes back to where one came from."""
        self.back()
