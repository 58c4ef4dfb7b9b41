"""Evidence for a decision: a pane next to the inbox, or a screen on narrow terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...engine.core.cause_history import CauseHistory
from ...engine.domain.states import NEEDS_HUMAN
from ..feed.evidence import TEXTS_OF, read_evidence
from ..feed.live_run import BoardUpdate
from ..keys.actions import ScreenName
from ..model.board import Board
from ..model.evidence import failures_of
from ..model.inbox import InboxCause, entry_of
from ..present.evidence import EvidenceData, cause_page, evidence_page
from ..present.tasks import Scene
from ..sessions.session import Session
from ..text.durations import age
from ..text.pieces import Line
from .page import PageScreen, PageView

Subject = InboxCause | str  # a cause, or a task by its name
AttemptsKey = tuple[str, tuple[int, ...]]  # a task, and the attempts whose texts are needed


class EvidenceView(PageView[AttemptsKey, EvidenceData]):
    """The page of one task or of one cause."""

    def __init__(
        self, scene: Callable[[], Scene], memory: Callable[[str], CauseHistory | None], *, id: str | None = None
    ) -> None:
        super().__init__(scene, id=id)
        self._memory = memory
        self.subject: Subject | None = None
        self._painted_age = ""

    def show_subject(self, subject: Subject | None) -> None:
        """Show another task or cause from its first line, or update the same one."""
        is_another = _name_of(subject) != _name_of(self.subject)
        self.subject = subject
        if is_another:
            self.reset()
        self.update_page()

    def tick(self) -> None:
        """Render the page again if a displayed age changed."""
        row = self.scene().board.projection.tasks.get(self._task_name or "")
        since = row.ended_at or row.changed_at if row is not None else 0
        shown = age(self.scene().now_us - since)
        if shown != self._painted_age:
            self._painted_age = shown
            self.update_page()

    def render_page(self) -> list[Line]:
        """Render the evidence for and against a retry."""
        scene, subject, found = self.scene(), self.subject, self.texts or EvidenceData()
        if isinstance(subject, InboxCause):
            return cause_page(subject, scene, replace(found, memory=self._memory(subject.key)), self.columns)
        row = scene.board.projection.tasks.get(subject) if subject is not None else None
        if row is None:
            return []
        memory = self._memory(entry_of(row).cause) if row.state in NEEDS_HUMAN else None
        return evidence_page(row, scene, replace(found, memory=memory), self.columns)

    @property
    def _task_name(self) -> str | None:
        """The task whose texts are read: the first one of a cause."""
        return self.subject.tasks[0] if isinstance(self.subject, InboxCause) else self.subject

    def text_key(self) -> AttemptsKey | None:
        """The key of the texts: the latest failed attempts of the task."""
        row = self.scene().board.projection.tasks.get(self._task_name or "")
        if row is None:
            return None
        return row.name, tuple(one.attempt for one in failures_of(row)[-TEXTS_OF:])

    async def fetch(self, session: Session, run_id: str, wanted: AttemptsKey) -> EvidenceData:
        """Read the texts of the attempts, the history of the task and its quarantined rows."""
        return await read_evidence(session, run_id, *wanted)


def _name_of(subject: Subject | None) -> str | None:
    return f"cause {subject.fingerprint}" if isinstance(subject, InboxCause) else subject and f"task {subject}"


class EvidenceScreen(PageScreen):
    """The page of one task over the inbox."""

    page: EvidenceView

    def __init__(self, name: str) -> None:
        super().__init__(ScreenName.INBOX)
        self._task_name = name
        self.page = EvidenceView(self.scene, self.console.memory.get)

    def on_shown(self) -> None:
        """Show the task that was opened."""
        self.page.focus()
        self.page.show_subject(self._task_name)
        self.refresh_page()

    def target_tasks(self) -> Sequence[str]:
        """The task of the page, also if another task is selected now."""
        return (self._task_name,)

    def board_replaced(self, board: Board) -> None:
        """Show the same task again; close if the new run lacks it."""
        if self._task_name in board.projection.tasks:
            self.refresh_page()
        else:
            self.dismiss()

    def on_news(self, news: BoardUpdate) -> None:
        """Refresh: the task or its descendants may have changed."""
        if news.delta.tasks:
            self.refresh_page()
