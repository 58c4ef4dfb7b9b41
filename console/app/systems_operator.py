"""The acts of operators on circuit breakers, pages and quarantined rows, for keys and for the palette.

Acts that hold many tasks or cannot be undone are confirmed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...engine.core.breaker import BreakerStatus
from ...engine.core.causes import DEFAULT_REASON
from ...engine.domain.acts import Answer, Command, act_refusal
from ...engine.domain.breakers import breaker_refusal
from ...engine.domain.rows import PageRow
from ..model.inbox import targets_of
from ..model.preview import preview_requeue
from ..model.systems import ChosenRows, RowsAct
from ..present.act_results import answer_line
from ..screens.dialogs import choose
from . import confirmations
from .operator import ANSWER_SECONDS, SNOOZES, OperatorActions
from .views import ViewConsole

#: Act on a breaker -> the action whose key asks for it.
BREAKER_ACTIONS: Mapping[str, str] = {
    "probe": "probe",
    "close": "close_breaker",
    "open": "force_open",
    "disable": "disable_breaker",
}


class SystemsActions:
    """The controller of what the view of systems shows; each console has one."""

    def __init__(self, console: ViewConsole, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions

    # --- Breakers -------------------------------------------------------------------------------------------------

    def set_breaker(self, breaker: object, how: str) -> None:
        """Set a circuit breaker by hand; ``how`` is a key of ``BREAKER_ACTIONS``. A probe needs no confirmation."""
        actions = self._actions
        found = actions.actionable_item(
            breaker,
            BreakerStatus,
            "breaker",
            lambda one: breaker_refusal(one.name, how, one.state, actions.is_abandoned),
        )
        if found is None:
            return
        if how == "probe":
            self._send_breaker(found, how)
        else:
            question = confirmations.breaker_question(found, how)
            actions.confirm(BREAKER_ACTIONS[how], question, lambda reply: self._send_breaker(found, how, reply.reason))

    def _send_breaker(self, breaker: BreakerStatus, how: str, reason: str = "") -> None:
        self._actions.send("breaker", (), reason or DEFAULT_REASON, {"downstream": breaker.name, "how": how})

    # --- Pages ----------------------------------------------------------------------------------------------------

    def acknowledge(self, page: object) -> None:
        """Acknowledge a page: stop paging for its cause."""
        if (found := self._actionable_page(page, "ack")) is not None:
            self._actions.send("ack", (), "", {"pages": [found.id]})

    def snooze(self, page: object) -> None:
        """Page again later."""
        if (found := self._actionable_page(page, "snooze")) is not None:
            title, pages, send = f"Page again: {found.title}", [found.id], self._actions.send
            choose(
                self._console,
                title,
                SNOOZES,
                lambda late: send("snooze", (), "", {"pages": pages, "seconds": int(late)}),
            )

    def _actionable_page(self, page: object, act: str) -> PageRow | None:
        return self._actions.actionable_item(page, PageRow, "page", lambda one: act_refusal(act, one.state))

    # --- Quarantined rows -----------------------------------------------------------------------------------------

    def decide_rows(self, chosen: ChosenRows, act: RowsAct) -> None:
        """Run the task again over these rows only, or discard the rows."""
        actions, tasks = self._actions, (chosen.task,)
        board = actions.actionable_board(tasks)
        if board is None:
            return
        if act == "discard":
            question = confirmations.discard_rows_question(chosen.task, chosen.count, chosen.lines)
            send = partial(actions.send, "discard-rows", ())
        elif chosen.task in board.projection.tasks:
            preview = preview_requeue(board, tasks, of_rows=True)
            question = confirmations.requeue_rows_question(chosen.task, chosen.count, chosen.lines, preview)
            send = partial(actions.send, "requeue-rows", targets_of(board, tasks), on_done=self._show_row_count)
        else:
            actions.show_warning(f"{chosen.task} is not a task of this run")
            return
        actions.confirm(
            f"{act}_rows", question, lambda reply: send(reason=reply.reason or DEFAULT_REASON, options=chosen.options)
        )

    def _show_row_count(self, command: Command, answer: Answer) -> None:
        """Show the sentence on the task, which has the number of rows; the message has only the number of tasks."""
        task, _, sentence = answer.results[0]
        self._console.show_line(answer_line(True, f"{task} {sentence}", (), self._console.glyphs), ANSWER_SECONDS)
