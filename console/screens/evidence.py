"""The evidence for a decision: beside the inbox where there is room, else on a screen of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...engine.core.cause_history import Memory
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.statefile import queries
from ..feed.live_run import News
from ..keys.actions import Place
from ..model.board import Board
from ..model.evidence import failures_of
from ..model.inbox import Cause, entry_of
from ..present.evidence import Found, LongTexts, cause_page, evidence_page
from ..present.inbox import age
from ..present.tasks import Scene
from ..sessions.session import Session
from ..text.pieces import Line
from .page import PageScreen, PageView

_TEXTS_OF = 2  # attempts whose long texts are laid side by side
_HISTORY_ATTEMPTS = 200
_ROWS = 50

Subject = Cause | str  # a cause, or a task by its name
Wanted = tuple[str, tuple[int, ...]]  # a task, and the attempts whose texts are needed


class EvidenceView(PageView[Wanted, Found]):
    """The page of one task or of one cause."""

    def __init__(
        self, scene: Callable[[], Scene], memory: Callable[[str], Memory | None], *, id: str | None = None
    ) -> None:
        super().__init__(scene, id=id)
        self._memory = memory
        self.subject: Subject | None = None
        self._age = ""

    def show_subject(self, subject: Subject | None) -> None:
        """Another task or cause, from its first line; or the same one as of now."""
        is_another = _name_of(subject) != _name_of(self.subject)
        self.subject = subject
        if is_another:
            self.begin()
        self.update_page()

    def tick(self) -> None:
        """Write the page again when its ages have moved on."""
        row = self.scene().board.fold.tasks.get(self._task_name or "")
        since = row.ended_at or row.changed_at if row is not None else 0
        shown = age(self.scene().now_us - since)
        if shown != self._age:
            self._age = shown
            self.update_page()

    def write(self) -> list[Line]:
        """What speaks for and against another try."""
        scene, subject, found = self.scene(), self.subject, self.texts or Found()
        if isinstance(subject, Cause):
            return cause_page(subject, scene, replace(found, memory=self._memory(subject.key)), self.columns)
        row = scene.board.fold.tasks.get(subject) if subject is not None else None
        if row is None:
            return []
        memory = self._memory(entry_of(row).cause) if row.state in NEEDS_HUMAN else None
        return evidence_page(row, scene, replace(found, memory=memory), self.columns)

    @property
    def _task_name(self) -> str | None:
        """The task that texts are read of: of a cause, the first."""
        return self.subject.tasks[0] if isinstance(self.subject, Cause) else self.subject

    def needs(self) -> Wanted | None:
        """Its latest failures."""
        row = self.scene().board.fold.tasks.get(self._task_name or "")
        if row is None:
            return None
        return row.name, tuple(one.attempt for one in failures_of(row)[-_TEXTS_OF:])

    async def fetch(self, session: Session, run_id: str, wanted: Wanted) -> Found:
        """What they left behind, the task in other runs, and its rows that were set aside."""
        name, attempts = wanted
        texts = [await _texts(session, run_id, name, attempt) for attempt in attempts]
        history = await session.query(queries.HISTORY, task=name, limit=_HISTORY_ATTEMPTS)
        rows = await session.query(queries.QUARANTINE, run_id=run_id, task=name, limit=_ROWS)
        return Found(texts, history, rows)


async def _texts(session: Session, run_id: str, name: str, attempt: int) -> LongTexts:
    read = await session.attempt_text(run_id, name, attempt)
    return LongTexts(attempt, read.traceback, read.stack, read.diagnostic)


def _name_of(subject: Subject | None) -> str | None:
    return f"cause {subject.fingerprint}" if isinstance(subject, Cause) else subject and f"task {subject}"


class EvidenceScreen(PageScreen):
    """The page of one task over the inbox."""

    page: EvidenceView

    def __init__(self, name: str) -> None:
        super().__init__(Place.INBOX)
        self._task_name = name
        self.page = EvidenceView(self.scene, self.console.memory.of)

    def shown(self) -> None:
        """The task that was opened."""
        self.page.focus()
        self.page.show_subject(self._task_name)
        self.renew()

    def chosen(self) -> Sequence[str]:
        """The task of the page, wherever the selection has gone."""
        return (self._task_name,)

    def board_replaced(self, board: Board) -> None:
        """The same task of a new picture; of another run there is nothing to show."""
        if self._task_name in board.fold.tasks:
            self.renew()
        else:
            self.dismiss()

    def take(self, news: News) -> None:
        """The task or those that it holds may have moved."""
        if news.delta.tasks:
            self.renew()
