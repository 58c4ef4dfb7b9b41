"""What operators do to what stands between tasks and the world: breakers, pages, quarantined rows.

One path for the keys of the screen and for the commands of the palette. What holds many or cannot be taken back is
asked about first; an act on a breaker needs an executor that lives, because nobody else calls anybody.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.core.cause_history import BY_KEY
from ...engine.domain.command import Answer, Command
from ...engine.errors import RedriveError
from ...engine.statefile import queries
from ..model.breaker_view import Guard, why_not
from ..model.downstreams import ChosenRows, Page, RowsAct, Systems
from ..model.inbox import targets_of
from ..model.preview import preview_requeue
from ..present.answers import answer_line
from ..present.downstreams import guard_look
from ..screens.choice_dialog import Option
from ..screens.console import ConsoleHost
from ..text.text import one_line
from ..widgets.dialog import Reply
from . import confirmations
from .operator import ANSWER_SECONDS, Acts

#: What may be done to a breaker, and which key asks for it.
BREAKER_ACTS: Mapping[str, str] = {
    "probe": "probe",
    "close": "close_breaker",
    "open": "force_open",
    "disable": "disable_breaker",
}
_BREAKER_OPTIONS = (
    Option("probe", "Probe now", "let one call through and go by its answer"),
    Option("close", "Close", "let calls through, and forget what failed"),
    Option("open", "Force open", "let no call through until it is closed by hand"),
    Option("disable", "Disable", "let every call through, whatever comes"),
)


_NO_PAGE = "that is for a page: no page is selected"


class SystemsActs:
    """One for each console."""

    def __init__(self, console: ConsoleHost, acts: Acts) -> None:
        self._console = console
        self._acts = acts

    # --- Breakers -------------------------------------------------------------------------------------------------

    def set_breaker(self, guard: object, how: str) -> None:
        """Set a circuit breaker by hand; ``how`` as the engine names it. A probe needs no question."""
        acts = self._acts
        if not isinstance(guard, Guard):
            acts.complain("that is for a breaker: no breaker is selected")
            return
        if acts.ready_for(None) is None:
            return
        refused = why_not(guard, how)
        if not self._console.health.executor_alive:
            refused = f"no executor lives, so nobody calls {guard.name}: resume the run first"
        if refused is not None:
            acts.complain(refused)
        elif how == "probe":
            self._send_breaker(guard, how, BY_KEY)
        else:
            question = confirmations.of_breaker(guard, how, acts.key_of(BREAKER_ACTS[how]))
            acts.ask(question, lambda reply: self._send_breaker(guard, how, reply.reason or BY_KEY))

    def _send_breaker(self, guard: Guard, how: str, reason: str) -> None:
        self._acts.send("breaker", (), reason, {"downstream": guard.name, "how": how})

    def reset_breaker(self, subject: object) -> None:
        """Ask what to do with the breaker under the cursor; elsewhere, first with which."""
        if isinstance(subject, Guard):
            self.choose_act(subject)
        else:
            self._console.run_worker(self._choose_breaker, group="breakers", exclusive=True)

    async def _choose_breaker(self) -> None:
        console, board = self._console, self._console.live.board
        assert board is not None
        systems = Systems(board)
        try:
            systems.learn_breakers(await console.live.session.query(queries.BREAKERS), console.live.now_us)
        except RedriveError as error:
            self._acts.complain(str(error))
            return
        guards = list(systems.guards.values())
        if not guards:
            self._acts.complain("this flow has no circuit breakers")
        elif len(guards) == 1:
            self.choose_act(guards[0])
        else:
            options = [Option(guard.name, one_line(guard.name), guard_look(guard).word) for guard in guards]
            self._acts.choose("Which circuit breaker?", options, lambda name: self.choose_act(systems.guards[name]))

    def choose_act(self, guard: Guard) -> None:
        """Ask what to do with a breaker."""
        title = f"Breaker {guard.name}: {guard_look(guard).word}"
        self._acts.choose(title, _BREAKER_OPTIONS, lambda how: self.set_breaker(guard, how))

    # --- Pages ----------------------------------------------------------------------------------------------------

    def acknowledge(self, page: object) -> None:
        """Somebody looks after it: page no more for this cause."""
        acts = self._acts
        if not isinstance(page, Page):
            acts.complain(_NO_PAGE)
            return
        if acts.ready_for(None) is None:
            return
        if page.state in ("open", "snoozed"):
            acts.send("ack", (), "", {"pages": [page.id]})
        else:
            acts.complain(f"this page is {page.state} already")

    def snooze(self, page: object) -> None:
        """Page again later."""
        acts = self._acts
        if not isinstance(page, Page):
            acts.complain(_NO_PAGE)
            return
        if acts.ready_for(None) is None:
            return
        if page.is_quiet:
            acts.complain("this page is resolved already")
            return
        options = {"pages": [page.id]}
        acts.choose_time(
            f"Page again: {page.title}", lambda seconds: acts.send("snooze", (), "", {**options, "seconds": seconds})
        )

    # --- Quarantined rows -----------------------------------------------------------------------------------------

    def decide_rows(self, chosen: ChosenRows, act: RowsAct) -> None:
        """Run the task again over these rows alone, or drop them: nobody wants them any more."""
        (self._requeue_rows if act == "requeue" else self._discard_rows)(chosen)

    def _requeue_rows(self, chosen: ChosenRows) -> None:
        acts = self._acts
        board = acts.ready_for((chosen.task,))
        if board is None:
            return
        if chosen.task not in board.fold.tasks:
            acts.complain(f"{chosen.task} is no task of this run")
            return
        targets = targets_of(board, (chosen.task,))
        preview = preview_requeue(board, (chosen.task,))
        key = acts.key_of("requeue_rows")
        question = confirmations.of_requeued_rows(chosen.task, chosen.count, chosen.lines, preview, key)

        def send(reply: Reply) -> None:
            acts.send("requeue-rows", targets, reply.reason or BY_KEY, chosen.options, self._tell_how_many)

        acts.ask(question, send)

    def _tell_how_many(self, command: Command, answer: Answer) -> None:
        """The sentence on the task says how many of its rows; the message only that it was one task."""
        task, _, sentence = answer.results[0]
        self._console.say(answer_line(True, f"{task} {sentence}", (), self._console.glyphs), ANSWER_SECONDS)

    def _discard_rows(self, chosen: ChosenRows) -> None:
        acts = self._acts
        if acts.ready_for((chosen.task,)) is None:
            return
        question = confirmations.of_discarded_rows(chosen.task, chosen.count, chosen.lines, acts.key_of("discard_rows"))
        acts.ask(question, lambda reply: acts.send("discard-rows", (), reply.reason, chosen.options))
