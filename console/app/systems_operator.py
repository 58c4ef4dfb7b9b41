"""The acts of operators on circuit breakers, pages and quarantined rows, for keys and for the palette.

Acts that hold many tasks or cannot be undone are confirmed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...engine.core.breaker import BreakerStatus
from ...engine.core.causes import DEFAULT_REASON
from ...engine.domain.acts import Answer, Command, act_refusal
from ...engine.domain.rows import PageRow
from ...engine.domain.states import breaker_refusal
from ...engine.statefile import lists
from ..model.inbox import targets_of
from ..model.preview import preview_requeue
from ..model.systems import ChosenRows, RowsAct, Systems
from ..present.inbox import answer_line
from ..present.systems import breaker_style
from ..screens.console import run_latest
from ..screens.dialogs import ChoiceOption, choose
from ..text.text import one_line
from ..widgets.dialog import Reply
from . import confirmations
from .operator import ANSWER_SECONDS, OperatorActions
from .views import ViewConsole


class BreakerAct(NamedTuple):
    """An act on a breaker: the action whose key asks for it, its title, and what it does."""

    action: str
    title: str
    help: str


BREAKER_ACTS: Mapping[str, BreakerAct] = {
    "probe": BreakerAct("probe", "Probe now", "let one call through: its result decides"),
    "close": BreakerAct("close_breaker", "Close", "let calls through, and forget past failures"),
    "open": BreakerAct("force_open", "Force open", "let no call through until it is closed by hand"),
    "disable": BreakerAct("disable_breaker", "Disable", "let every call through, also after failures"),
}
_NO_PAGE = "select a page first"


class SystemsActions:
    """The controller of what the view of systems shows; each console has one."""

    def __init__(self, console: ViewConsole, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions

    # --- Breakers -------------------------------------------------------------------------------------------------

    def set_breaker(self, breaker: object, how: str) -> None:
        """Set a circuit breaker by hand; ``how`` is a key of ``BREAKER_ACTS``. A probe needs no confirmation."""
        actions = self._actions
        if not isinstance(breaker, BreakerStatus):
            actions.show_warning("select a breaker first")
            return
        if actions.actionable_board(None) is None:
            return
        reason = self._refusal(breaker, how)
        if reason is not None:
            actions.show_warning(reason)
        elif how == "probe":
            self._send_breaker(breaker, how, DEFAULT_REASON)
        else:
            action, title, _ = BREAKER_ACTS[how]
            question = confirmations.breaker_question(breaker, how, title)
            send = self._send_breaker
            actions.confirm(action, question, lambda reply: send(breaker, how, reply.reason or DEFAULT_REASON))

    def _refusal(self, breaker: BreakerStatus, how: str) -> str | None:
        return breaker_refusal(breaker.name, how, breaker.state, not self._console.live.status.executor.alive)

    def _send_breaker(self, breaker: BreakerStatus, how: str, reason: str) -> None:
        self._actions.send("breaker", (), reason, {"downstream": breaker.name, "how": how})

    def reset_breaker(self, subject: object) -> None:
        """Ask what to do with the breaker under the cursor; if there is none, let the operator choose one first."""
        if isinstance(subject, BreakerStatus):
            self.choose_act(subject)
        else:
            run_latest(self._console, self._choose_breaker, "breakers")

    async def _choose_breaker(self) -> None:
        console, board = self._console, self._console.live.board
        assert board is not None
        systems = Systems(board)
        systems.load_breakers(await console.live.session.query(lists.BREAKERS), console.live.now_us)
        breakers = list(systems.breakers.values())
        if not breakers:
            self._actions.show_warning("this flow has no circuit breakers")
        elif len(breakers) == 1:
            self.choose_act(breakers[0])
        else:
            options = [
                ChoiceOption(breaker.name, one_line(breaker.name), breaker_style(breaker).word) for breaker in breakers
            ]
            choose(console, "Which circuit breaker?", options, lambda name: self.choose_act(systems.breakers[name]))

    def choose_act(self, breaker: BreakerStatus) -> None:
        """Let the operator choose an act on a breaker."""
        title = f"Breaker {breaker.name}: {breaker_style(breaker).word}"
        offered = (how for how in BREAKER_ACTS if self._refusal(breaker, how) is None)
        options = [ChoiceOption(how, BREAKER_ACTS[how].title, BREAKER_ACTS[how].help) for how in offered]
        choose(self._console, title, options, lambda how: self.set_breaker(breaker, how))

    # --- Pages ----------------------------------------------------------------------------------------------------

    def acknowledge(self, page: object) -> None:
        """Acknowledge a page: stop paging for its cause."""
        if (found := self._actionable_page(page, "ack")) is not None:
            self._actions.send("ack", (), "", {"pages": [found.id]})

    def snooze(self, page: object) -> None:
        """Page again later."""
        if (found := self._actionable_page(page, "snooze")) is not None:
            title, pages = f"Page again: {found.title}", [found.id]
            send = self._actions.send
            self._actions.choose_time(title, lambda late: send("snooze", (), "", {"pages": pages, "seconds": late}))

    def _actionable_page(self, page: object, act: str) -> PageRow | None:
        """Return the page if an act can change it; else say why not."""
        if not isinstance(page, PageRow):
            self._actions.show_warning(_NO_PAGE)
        elif self._actions.actionable_board(None) is not None:
            refused = act_refusal(act, page.state)
            if refused is None:
                return page
            self._actions.show_warning(refused)
        return None

    # --- Quarantined rows -----------------------------------------------------------------------------------------

    def decide_rows(self, chosen: ChosenRows, act: RowsAct) -> None:
        """Run the task again over these rows only, or discard the rows."""
        (self._requeue_rows if act == "requeue" else self._discard_rows)(chosen)

    def _requeue_rows(self, chosen: ChosenRows) -> None:
        actions = self._actions
        board = actions.actionable_board((chosen.task,))
        if board is None:
            return
        if chosen.task not in board.projection.tasks:
            actions.show_warning(f"{chosen.task} is not a task of this run")
            return
        targets = targets_of(board, (chosen.task,))
        preview = preview_requeue(board, (chosen.task,), of_rows=True)
        question = confirmations.requeue_rows_question(chosen.task, chosen.count, chosen.lines, preview)

        def send(reply: Reply) -> None:
            actions.send("requeue-rows", targets, reply.reason or DEFAULT_REASON, chosen.options, self._show_row_count)

        actions.confirm("requeue_rows", question, send)

    def _show_row_count(self, command: Command, answer: Answer) -> None:
        """Show the sentence on the task, which has the number of rows; the message has only the number of tasks."""
        task, _, sentence = answer.results[0]
        self._console.show_line(answer_line(True, f"{task} {sentence}", (), self._console.glyphs), ANSWER_SECONDS)

    def _discard_rows(self, chosen: ChosenRows) -> None:
        actions = self._actions
        if actions.actionable_board((chosen.task,)) is None:
            return
        question = confirmations.discard_rows_question(chosen.task, chosen.count, chosen.lines)

        def send(reply: Reply) -> None:
            actions.send("discard-rows", (), reply.reason, chosen.options)

        actions.confirm("discard_rows", question, send)
