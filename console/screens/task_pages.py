"""Details of a task, of a group or of a cause: a pane next to a list, or a screen on narrow terminals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from textual.widget import Widget

from ...engine.core.causes import CauseHistory
from ...engine.core.projection import TaskRow
from ...engine.domain.events import EventKind
from ...engine.domain.states import NEEDS_HUMAN
from ..keys.actions import ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.graph.view import Graph
from ..model.inbox import AttemptTexts, EvidenceData, InboxCause, entry_of, failures_of
from ..model.log import LogLine
from ..present import detail
from ..present.evidence import cause_page, text_lines
from ..present.group import group_page, group_state, members_page
from ..present.tasks import RunContext
from ..sessions.attempt_log import AttemptLog
from ..sessions.evidence import TEXTS_OF, past_answers, past_attempts, read_evidence
from ..sessions.session import Session
from ..text.figures import age
from ..text.pieces import Line, Piece, Role, count_rows
from ..widgets.bars import Bar, Rule
from .base import ConsoleScreen
from .console import run_latest
from .panes import LastNights, PageView, SplitScreen

TEXTS_ROWS_MIN = 5  # of what a task wrote, below a list
LOG_LINES_MAX = 200  # of the end of a log: no page has more rows
_BELOW_TEXTS_MIN = 7  # rows
_ASKED = "asked"  # in place of an outcome: it waits for an answer
_LOGS_MAX = 3  # of the tasks above it


class TextsKey(NamedTuple):
    """The attempts to which the texts of a page belong.

    Attributes:
        outcome: of the latest of the ``attempts``.
        is_judged: whether somebody has to decide about the task: its rows in quarantine are read as well.
        is_past: whether they are shown as of an instant of the past.
    """

    task: str
    attempts: tuple[int, ...]
    outcome: str = ""
    is_judged: bool = False
    is_past: bool = False


GraphGroupKey = tuple[Graph, int]  # the graph, and the index of the group
Subject = InboxCause | GraphGroupKey | str  # a task by its name


class DetailView(PageView):
    """The page of one task, of a group of tasks, or of a cause. ``texts_view``: has the long texts in another place."""

    texts_view: DetailView | None = None
    fill: Callable[[int, int], list[Line]] = staticmethod(lambda columns, rows: [])  # what free rows have

    def __init__(
        self,
        context: Callable[[], RunContext],
        cause_history: Callable[[str], CauseHistory | None] = lambda key: None,
        nothing: Callable[[int], list[Line]] = lambda columns: [],
        *,
        id: str = "detail",
    ) -> None:
        super().__init__(context, id=id)
        self.texts: EvidenceData | None = None
        self._texts_key: TextsKey | None = None
        self._is_outdated = False
        self._cause_history = cause_history
        self._nothing = nothing  # what is said for a width if there is no subject
        self.subject: Subject | None = None
        self._log: AttemptLog | None = None  # of the attempt whose texts are shown
        self._painted_age = ""
        self._group_state: object = None  # of the lines below
        self._group_lines: list[Line] = []

    def reset(self) -> None:
        self.texts = self._texts_key = None
        super().reset()

    def lines_of_group(self, page: Callable[..., list[Line]], group: GraphGroupKey, rows: int) -> list[Line]:
        """A page of a group in ``rows`` rows, computed again only where one of its lines may have changed."""
        context = self.run_context()
        state = (page, group, self.columns, rows, group_state(*group, context))
        if state != self._group_state:
            self._group_state, self._group_lines = state, page(*group, context, self.columns, rows)
        return self._group_lines

    def show_task(self, name: str | None, group: GraphGroupKey | None = None) -> None:
        """Show another task, or the group in which it is, from the first line; or update what is shown."""
        self.show_subject(group or name)

    def show_subject(self, subject: Subject | None) -> None:
        """Show another subject from its first line, or update the same one."""
        is_another = _identity(subject) != _identity(self.subject)
        self.subject = subject
        if is_another:
            self.reset()
        self.update_page()

    def _task_row(self) -> TaskRow | None:
        """The task whose texts are read: of a cause the first one."""
        name = self.subject.tasks[0] if isinstance(self.subject, InboxCause) else self.subject
        return self.run_context().board.projection.tasks.get(name) if isinstance(name, str) else None

    @property
    def _is_shown_elsewhere(self) -> bool:
        """Whether the other place has the long texts of this subject."""
        return self.texts_view is not None and _identity(self.texts_view.subject) == _identity(self.subject)

    def render_page(self) -> list[Line]:
        context, subject, row = self.run_context(), self.subject, self._task_row()
        source = self.texts_view if self._is_shown_elsewhere and self.texts_view is not None else self
        found = source.texts or EvidenceData()
        if self._is_shown_elsewhere:
            short = [AttemptTexts(one.attempt, output_bytes=one.output_bytes) for one in found.texts]
            found = replace(found, texts=short, answers=(), logs={})
        if isinstance(subject, tuple):
            return self.lines_of_group(group_page, subject, self.rows)
        if isinstance(subject, InboxCause):
            found = replace(found, cause_history=self._cause_history(subject.key))
            return self._filled(cause_page(subject, context, found, self.columns))
        if row is None:
            return self._filled(self._nothing(self.columns))
        history = self._cause_history(entry_of(row).key) if row.state in NEEDS_HUMAN else None
        has_past, fill = self.texts_view is None, partial(self.fill, self.columns)
        return detail.detail_page(
            row, context, replace(found, cause_history=history), self.columns, self.rows, has_past=has_past, fill=fill
        )

    def _filled(self, lines: list[Line]) -> list[Line]:
        used = sum(count_rows(line, self.columns) for line in lines)
        return [*lines, *self.fill(self.columns, self.rows - used)]

    def tick(self) -> None:
        """Update ages; those of a cause of many tasks only where one has changed."""
        shown = age(self.run_context().now_us - self.subject.oldest) if isinstance(self.subject, InboxCause) else ""
        if not shown or shown != self._painted_age:
            self._painted_age = shown
            self.update_page()

    def text_key(self) -> TextsKey | None:
        """The key of the texts: the latest attempt; of a judged task, or if it wrote nothing, also what failed."""
        row = self._task_row()
        if row is None or self._is_shown_elsewhere:
            return None
        failed = [one.attempt for one in failures_of(row)[-TEXTS_OF:]]
        if isinstance(self.subject, InboxCause) and (failed or row.latest is None):
            return TextsKey(row.name, tuple(failed))
        if row.name in self.run_context().board.asked:
            return TextsKey(row.name, (), _ASKED)
        is_judged, is_past = row.state in NEEDS_HUMAN, self.run_context().board.snapshot.is_past
        if row.latest is None:
            return None
        has_text = row.latest.outcome == "running" or row.latest.output_bytes > 0
        attempts = sorted({*(failed if is_judged or not has_text else ()), row.latest.attempt})
        return TextsKey(row.name, tuple(attempts), row.latest.outcome, is_judged, is_past)

    def expire(self) -> None:
        """Let the texts be read again: they may have changed although their key has not."""
        self._is_outdated, self._log = True, None

    def expire_running(self) -> None:
        """Let the log of an attempt that runs be read again; once a second."""
        key = self.text_key()
        if key is not None and key.outcome == "running" and not key.is_past:
            self._is_outdated = True

    @property
    def needs_reading(self) -> bool:
        """Whether texts of the page are missing or outdated."""
        return self.text_key() is not None and (self._is_outdated or self.text_key() != self._texts_key)

    async def read(self, session: Session, run_id: str) -> None:
        """Read missing and outdated texts, and show them if the page still needs them then. Raises RedriveError."""
        wanted = self.text_key()
        if wanted is None or not self.needs_reading:
            return
        texts = await self._fetch(session, run_id, wanted)
        if self.text_key() == wanted:
            self.texts, self._texts_key, self._is_outdated = texts, wanted, False
            self.update_page()

    async def _fetch(self, session: Session, run_id: str, wanted: TextsKey) -> EvidenceData:
        """Read the texts of the attempts, the end of the log of the latest, and the history of the task.

        Of an attempt that still runs in the past only its log, which has what was written until then and more.
        """
        if not wanted.outcome:
            return await read_evidence(session, run_id, wanted.task, wanted.attempts)
        if wanted.outcome == _ASKED:
            logs = await self._logs_above(session, run_id, wanted.task)
            return EvidenceData(answers=await past_answers(session, wanted.task), logs=logs)
        latest = wanted.attempts[-1]
        has_ended_since = wanted.is_past and wanted.outcome == "running"
        log, shown = self._log, self.texts
        if wanted != self._texts_key or log is None or log.run_id != run_id or shown is None:
            log, shown = AttemptLog(session, run_id, wanted.task, latest), None
        if shown is None or await log.has_grown():
            await log.read_new()
        if shown is None and (wanted.is_judged or len(wanted.attempts) > 1):
            shown = await read_evidence(session, run_id, wanted.task, wanted.attempts)
        elif shown is None and has_ended_since:
            shown = EvidenceData([AttemptTexts(latest)])
        elif shown is None:
            texts = [AttemptTexts(latest, await session.attempt_text(run_id, wanted.task, latest))]
            shown = EvidenceData(texts, await past_attempts(session, wanted.task))
        self._log = log
        *before, last = shown.texts
        written = None if has_ended_since else log.output_bytes
        last = last._replace(log=log.text.lines[-LOG_LINES_MAX:], output_bytes=written)
        return replace(shown, texts=[*before, last])

    async def _logs_above(self, session: Session, run_id: str, name: str) -> Mapping[str, Sequence[LogLine]]:
        """The output of the tasks above an approval: somebody is asked about it."""
        board, found = self.run_context().board, dict[str, Sequence[LogLine]]()
        for parent in board.dag.parents(name)[:_LOGS_MAX]:
            latest = board.row(parent).latest
            if latest is not None:
                log = AttemptLog(session, run_id, parent, latest.attempt)
                await log.read_new()
                found[parent] = log.text.lines[-LOG_LINES_MAX:]
        return found


def _identity(subject: Subject | None) -> object:
    return ("cause", subject.fingerprint) if isinstance(subject, InboxCause) else subject


class TextsView(DetailView):
    """The output of an attempt of a task, live, and the texts of its failure: for rows that a list leaves free.

    Of a group, its members. What they leave free has the other members of the ``group`` of a task, or what no details
    beside it say. Another task than the one of the ``cursor`` has its name above, and before it what is said where no
    task is selected if ``has_nothing_above``.
    """

    group: GraphGroupKey | None = None
    cursor: str | None = None
    details: DetailView | None = None
    has_nothing_above = False

    @property
    def is_blank(self) -> bool:
        """Whether the task is known to have written nothing."""
        found = self.texts
        return self._has_written_nothing and found is not None and not found.answers and not found.logs

    @property
    def _has_written_nothing(self) -> bool:
        """Whether the texts of the task are known, and there are none; in the past it may have written some later."""
        return self.texts is not None and not self._lines(1) and not any(one.log for one in self.texts.texts)

    def _lines(self, log_lines: int) -> list[Line]:
        if self.texts is None:
            return []
        return [*text_lines(self.texts.texts, log_lines, self.run_context(), self.columns)]

    def render_page(self) -> list[Line]:
        if isinstance(self.subject, tuple):
            return self.lines_of_group(members_page, self.subject, self.rows)
        if self.subject is None:
            return self._nothing(self.columns)
        row, found, context = self._task_row(), self.texts or EvidenceData(), self.run_context()
        is_another = row is not None and self.cursor not in (None, row.name)
        title = self._nothing(self.columns) if self.has_nothing_above else []
        title += [detail.title_line(row, context, self.columns)] if row is not None and is_another else []
        if row is not None and row.name in context.board.asked:
            return detail.asked_lines(row, context, found, self.columns, self.rows)
        lines = self._lines(max(self.rows - 1 - len(title), 1))[1:]  # without the blank above the first
        lines = [*title, *lines, *([[Piece(" it wrote nothing", Role.DIM)]] * self._has_written_nothing)]
        free, details = self.rows - len(lines) - 1, self.details
        is_beside = details is not None and details.display and isinstance(details.subject, str)
        if row is None:
            return lines
        if free >= _BELOW_TEXTS_MIN and self.group is not None:
            return [*lines, [], *self.lines_of_group(members_page, self.group, free)]
        if free >= _BELOW_TEXTS_MIN and not (is_beside and detail.has_room_for_past(row, free)):
            lines += detail.past_chart(row, context, found, self.columns, free)
        if is_beside:
            return self._filled(lines)
        used = sum(count_rows(line, self.columns) for line in lines)
        return [*lines, *detail.static_lines(row, context, self.rows - used)]


class TaskScreen(SplitScreen):
    """A list of tasks with the details of the selected one and, where the list leaves rows, what it wrote."""

    heading: Bar

    def __init__(self, nothing: Callable[[int], list[Line]] = lambda columns: []) -> None:
        """``nothing``: what stands in place of the texts, for a width, where no task is selected."""
        super().__init__()
        self.detail_pane = self.detail = DetailView(self.run_context, id="beside")
        self.texts = TextsView(self.run_context, nothing=nothing, id="texts")
        self.texts.details = self.detail
        self.texts.can_focus = False
        self.texts.styles.height = "1fr"
        self.texts_rule = Rule(self.console.glyphs.rule, id="texts-rule")
        self.texts.display = self.texts_rule.display = False
        self.nights = LastNights(self)
        self.texts.fill = self.nights.lines

    def main_widgets(self) -> Iterable[Widget]:
        yield self.heading
        yield self.main_pane
        yield self.texts_rule
        yield self.texts

    def divide_rows(self, rows: int | None) -> None:
        """Give the list so many rows, and the texts what it leaves; None: the list has all."""
        self.texts.display = self.texts_rule.display = rows is not None
        self.detail.texts_view = None if rows is None else self.texts
        self.main_pane.styles.height = "1fr" if rows is None else rows
        self.call_after_refresh(self.show_frame)

    @abstractmethod
    def texts_read(self) -> None:
        """Show what was read."""

    def writer_of(self, name: str) -> str:
        """The task, or of one that has not run the first that has, of what it waits for and of its parents."""
        if self.board.row(name).latest is not None:
            return name
        links = self.board.blocking_chain(name, self.console.live.now_us, self.console.runner)
        found = *(one for one, _ in links), *self.board.dag.parents(name)
        return next((one for one in found if self.board.row(one).latest is not None), name)

    @property
    def page_of_texts(self) -> DetailView:
        """The page that reads the texts of the selected task."""
        return self.texts if self.texts.display else self.detail

    def request_texts(self) -> None:
        """Read missing and outdated texts once the cursor rests."""
        if self.page_of_texts.display and self.page_of_texts.needs_reading:
            self.rest_timer.start()

    def on_cursor_rest(self) -> None:
        self.read_texts()

    def read_texts(self) -> None:
        """Read the texts of the selected task, and its history."""
        run_latest(self, self._read_texts, "texts", shows_errors=False)

    async def _read_texts(self) -> None:
        for page in (self.page_of_texts, self.detail):  # which needs none where the other has them
            await page.read(self.console.live.session, self.board.projection.run.run_id)
        await self.nights.read()
        self.texts_read()


def read_page(screen: ConsoleScreen, page: DetailView) -> None:
    """Read the missing and outdated texts of a page in the background."""
    if page.needs_reading:
        session, run_id = screen.console.live.session, screen.board.projection.run.run_id
        # the header shows an error; the next event reads again
        run_latest(screen, partial(page.read, session, run_id), "texts", shows_errors=False)


class DetailScreen(ConsoleScreen):
    """The page of one task, over the screen that opened it. ``view``: its tab."""

    PLACE = ScreenName.DETAIL

    def __init__(self, view: ScreenName, task: str) -> None:
        super().__init__()
        self._view = view
        self._task_name = task
        self.page = DetailView(self.run_context, self.console.cause_histories.get)

    @property
    def view(self) -> ScreenName:
        """The tab of the screen below."""
        return self._view

    def content(self) -> Iterable[Widget]:
        yield self.page

    def on_shown(self) -> None:
        self.page.focus()
        self.page.show_task(self._task_name)
        self._refresh_page()

    def _refresh_page(self) -> None:
        self.page.update_page()
        read_page(self, self.page)

    def target_tasks(self) -> Sequence[str]:
        """The task of the page, also if another task is selected now."""
        return (self._task_name,)

    def board_replaced(self, board: Board) -> None:
        """Show the same task again; close if the new run lacks it."""
        if self._task_name in board.projection.tasks:
            self._refresh_page()
        else:
            self.dismiss()

    def on_news(self, news: BoardUpdate) -> None:
        """Refresh: the task, its relatives, its blockers or its rows in quarantine may have changed."""
        if EventKind.QUARANTINE in news.delta.other_kinds:
            self.page.expire()
        self._refresh_page()

    def tick(self, now_us: int) -> None:
        """Update ages, and read what the attempt has written."""
        self.page.tick()
        self.page.expire_running()
        read_page(self, self.page)

    def filter_changed(self, text: str) -> None:
        self.page.search(text)
        self.page.find_next()

    def go_to_next(self, step: int) -> None:
        """Go to the next match, or the previous one."""
        if not self.filter_text:
            self.console.show_message(f"{shown_key('filter')} searches this page")
        elif self.page.find_next(forward=step > 0) is None:
            self.console.show_message("no line of this page matches")

    def drill_in(self) -> None:
        """Return to the previous screen."""
        self.back()
