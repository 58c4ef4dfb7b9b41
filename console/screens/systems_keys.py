"""The keys that act on breakers, pages and quarantined rows: each on what is under the cursor, if it is of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..model.guards import Guard
from ..model.systems import Group, Page
from ..present.pieces import Piece, Role
from ..present.text import one_line
from ..systems_acts import ChosenRows, chosen_group
from .base import ConsoleScreen

JUMP_SECONDS = 0.7  # after a row left from under the cursor: what is typed was meant for it
SAID_SECONDS = 5.0


class SystemsKeys(ConsoleScreen):
    """A screen that says what is under its cursor."""

    jumped_at = float("-inf")  # when a row left from under the cursor, on the loop's clock

    def thing(self) -> Guard | Page | Group | None:
        """What is under the cursor."""
        raise NotImplementedError  # the screen has the list

    def action_force_open(self) -> None:
        """Hold everybody."""
        self._with_guard(lambda guard: self.console.systems_acts.set_breaker(guard, "open"))

    def action_close_breaker(self) -> None:
        """Let calls through."""
        self._with_guard(lambda guard: self.console.systems_acts.set_breaker(guard, "close"))

    def action_probe(self) -> None:
        """Let one call through."""
        self._with_guard(lambda guard: self.console.systems_acts.set_breaker(guard, "probe"))

    def action_disable_breaker(self) -> None:
        """Let every call through."""
        self._with_guard(lambda guard: self.console.systems_acts.set_breaker(guard, "disable"))

    def action_reset_breaker(self) -> None:
        """Choose what to do with the breaker under the cursor; elsewhere, with which."""
        guard = self.thing()
        if isinstance(guard, Guard):
            self.console.systems_acts.choose_act(guard)
        else:
            self.console.action_reset_breaker()

    def _with_guard(self, act: Callable[[Guard], None]) -> None:
        guard = self.thing()
        if isinstance(guard, Guard):
            act(guard)
        else:
            self.complain("that is for a breaker: no breaker is selected")

    def action_acknowledge_page(self) -> None:
        """Somebody looks after it; but not after what has just come under the cursor."""
        if asyncio.get_running_loop().time() - self.jumped_at < JUMP_SECONDS:
            self.complain("the row under the cursor has just left: nothing was done, look and press again")
        else:
            self._with_page(self.console.systems_acts.acknowledge)

    def action_snooze_page(self) -> None:
        """Page again later."""
        self._with_page(self.console.systems_acts.snooze)

    def _with_page(self, act: Callable[[Page], None]) -> None:
        page = self.thing()
        if isinstance(page, Page):
            act(page)
        else:
            self.complain("that is for a page: no page is selected")

    def action_requeue_rows(self) -> None:
        """Run the task again over the rows of the group."""
        self._with_group(self.console.systems_acts.requeue_rows)

    def action_discard_rows(self) -> None:
        """Drop the rows of the group."""
        self._with_group(self.console.systems_acts.discard_rows)

    def _with_group(self, act: Callable[[ChosenRows], None]) -> None:
        group = self.thing()
        if not isinstance(group, Group):
            self.complain("that is for quarantined rows: none are selected")
        elif not group.held:
            self.complain("none of these rows is held any more")
        else:
            act(chosen_group(group))

    def complain(self, sentence: str) -> None:
        """Say why nothing was done."""
        self.console.say([Piece(one_line(sentence), Role.WARNING)], SAID_SECONDS)
