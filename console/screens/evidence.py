"""The evidence for a decision: beside the inbox where there is room, else on a screen of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from ...engine.errors import RedriveError
from ..actions import Place
from ..live import News
from ..model.board import Board
from ..model.evidence import failures_of
from ..model.inbox import Cause
from ..present.evidence import Found, LongTexts, cause_page, evidence_page
from ..present.inbox import age
from ..present.pieces import Line
from ..present.tasks import Scene
from ..sessions.session import Session
from ..widgets.bindings import bindings_of
from ..widgets.lines import LinesView
from .base import ConsoleScreen

_TEXTS_OF = 2  # attempts whose long texts are laid side by side
_HISTORY_ATTEMPTS = 200
_ROWS = 50

Subject = Cause | str  # a cause, or a task by its name
Wanted = tuple[str, tuple[int, ...]]  # a task, and the attempts whose texts are needed


class EvidenceView(LinesView):
    """The page of one task or of one cause, kept up to date without losing the reader's place."""

    def __init__(self, scene: Callable[[], Scene], *, id: str | None = None) -> None:
        self._written: list[Line] = []
        super().__init__(self._written, wrap=True, id=id)
        self._scene = scene
        self.subject: Subject | None = None
        self._read_texts = Found()
        self._read_for: Wanted | None = None
        self._age = ""

    def show_subject(self, subject: Subject | None) -> None:
        """Another task or cause, from its first line; or the same one as of now."""
        if _name_of(subject) != _name_of(self.subject):
            self._read_texts, self._read_for = Found(), None
            self.action_top()
        self.subject = subject
        self.update_page()

    def update_page(self) -> None:
        """Write the page again, if it is another one."""
        lines = self._page_of(self.subject) if self.columns else []
        if lines != self._written:
            self._written[:] = lines
            self.lines_changed()
            self.refresh()

    def tick(self) -> None:
        """Write the page again when its ages have moved on."""
        row = self._scene().board.fold.tasks.get(self._task_name or "")
        since = row.ended_at or row.changed_at if row is not None else 0
        shown = age(self._scene().now_us - since)
        if shown != self._age:
            self._age = shown
            self.update_page()

    def _page_of(self, subject: Subject | None) -> list[Line]:
        scene = self._scene()
        if isinstance(subject, Cause):
            return cause_page(subject, scene, self._read_texts, self.columns)
        row = scene.board.fold.tasks.get(subject) if subject is not None else None
        return evidence_page(row, scene, self._read_texts, self.columns) if row is not None else []

    @property
    def _task_name(self) -> str | None:
        """The task that texts are read of: of a cause, the first."""
        return self.subject.tasks[0] if isinstance(self.subject, Cause) else self.subject

    def wanted(self) -> Wanted | None:
        """What is still to be read; None if there is nothing."""
        row = self._scene().board.fold.tasks.get(self._task_name or "")
        if row is None:
            return None
        wanted = (row.name, tuple(one.attempt for one in failures_of(row)[-_TEXTS_OF:]))
        return None if wanted == self._read_for else wanted

    async def read(self, session: Session, run_id: str) -> None:
        """Read what ``wanted`` says, and show it if it is still wanted then."""
        wanted = self.wanted()
        if wanted is None:
            return
        name, attempts = wanted
        try:
            texts = [await _texts(session, run_id, name, attempt) for attempt in attempts]
            history = await session.query("history", task=name, limit=_HISTORY_ATTEMPTS)
            rows = await session.query("quarantine", run_id=run_id, task=name, limit=_ROWS)
        except RedriveError:
            return  # the header says what is wrong with the door; the next event asks again
        if self.wanted() == wanted:
            self._read_texts, self._read_for = Found(texts, history, rows), wanted
            self.update_page()

    def on_resize(self) -> None:
        """As many attempts as fit."""
        self.update_page()
        super().on_resize()


async def _texts(session: Session, run_id: str, name: str, attempt: int) -> LongTexts:
    read = await session.attempt_text(run_id, name, attempt)
    return LongTexts(attempt, read.traceback, read.stack, read.diagnostic)


def _name_of(subject: Subject | None) -> str | None:
    return f"cause {subject.fingerprint}" if isinstance(subject, Cause) else subject and f"task {subject}"


class EvidenceScreen(ConsoleScreen):
    """The page over the inbox."""

    PLACE = Place.DETAIL
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(Place.DETAIL)

    def __init__(self, name: str) -> None:
        super().__init__()
        self._task_name = name
        self.page = EvidenceView(self.scene)

    @property
    def view(self) -> Place:
        """The tab of the screen below."""
        return Place.INBOX

    def scene(self) -> Scene:
        """What the page needs."""
        console = self.console
        return Scene(self.board, console.live.now_us, console.glyphs, console.absolute_times)

    def content(self) -> Iterable[Widget]:
        """The page."""
        yield self.page

    def shown(self) -> None:
        """The task that was opened."""
        self.page.focus()
        self.page.show_subject(self._task_name)
        self._read()

    def chosen(self) -> Sequence[str]:
        """The task of the page, wherever the selection has gone."""
        return (self._task_name,)

    def board_replaced(self, board: Board) -> None:
        """The same task of a new picture; of another run there is nothing to show."""
        if self._task_name in board.fold.tasks:
            self.page.update_page()
            self._read()
        else:
            self.dismiss()

    def take(self, news: News) -> None:
        """The task or those that it holds may have moved."""
        if news.delta.tasks:
            self.page.update_page()
            self._read()

    def tick(self, now_us: int) -> None:
        """Ages."""
        self.page.tick()

    def _read(self) -> None:
        if self.page.wanted() is not None:
            reading = self.page.read(self.console.live.session, self.board.fold.run.run_id)
            self.run_worker(reading, group="evidence", exclusive=True)

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
