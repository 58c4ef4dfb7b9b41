"""The acts of operators on the schedules of this machine, for keys and for the palette."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from ...engine.clock import Clock
from ...engine.errors import RefusedError, StateFileError
from ...engine.statefile import flow_times, supervisor_file
from ...engine.statefile.start_requests import write_request
from ...engine.statefile.supervisor_file import ServedSchedule
from ..keys.keymap import shown_key
from ..model.session_status import OPENED_READ_ONLY
from ..present.schedules import ScheduleAct, decision_sentence, missed_times, pause_ends, require_acts
from ..screens.dialogs import ChoiceOption, choose
from ..screens.schedules import SchedulesScreen
from ..sessions.session import current_actor
from ..text.pieces import Line, Piece
from ..text.text import one_line
from ..widgets.dialog import Dialog, Question, ask
from .views import ViewConsole


class ScheduleActions:
    """The controller of acts on schedules; the list of state files has one. ``is_read_only``: acts are refused."""

    def __init__(self, console: ViewConsole, clock: Clock, *, is_read_only: bool) -> None:
        self._console = console
        self._clock = clock
        self._is_read_only = is_read_only

    def open_schedules(self, flow: str | None) -> None:
        """Show the schedules of this machine, that of ``flow`` first."""
        self._console.push_screen(SchedulesScreen(flow))

    def act(self, action: str) -> None:
        """Let the operator do what an action means for the schedule under the cursor."""
        screen = self._console.console_screen
        row = screen.row if isinstance(screen, SchedulesScreen) else None
        if self._is_read_only or row is None:
            self._console.show_warning(OPENED_READ_ONLY if self._is_read_only else "nothing is selected")
            return
        try:
            acts = require_acts(row, action, self._clock.now_us())
        except RefusedError as error:
            self._console.show_warning(str(error))
            return
        if len(acts) > 1:
            options = [ChoiceOption(str(place), act.label, one_line(act.help)) for place, act in enumerate(acts)]
            choose(self._console, f"Start {row.flow}", options, lambda place: self._act(row, acts[int(place)]))
        else:
            self._act(row, acts[0])

    def _act(self, row: ServedSchedule, act: ScheduleAct) -> None:
        if act.name == "pause":
            self._choose_pause(row, act)
            return
        change = _change_of(row, act, self._clock.now_us())
        if act.name == "acknowledge":
            self._decide(row, act, change)
        else:
            self._confirm(row, act, lambda reason: change())

    def _confirm(
        self, row: ServedSchedule, act: ScheduleAct, change: Callable[[str], object], until: str = "", at_us: int = 0
    ) -> None:
        """Ask about an act with what it will do, and write it. ``change``: gets the reason.

        ``until``: the end of a pause, for which a reason may be given; ``at_us``: the same as an instant.
        """
        missed: list[Line] = [[Piece(time)] for time in missed_times(row)] if act.name == "dismiss" else []
        question = Question(
            f"{act.label.capitalize()}: {row.flow}",
            act.label,
            trigger=shown_key(act.action),
            facts=[*filter(None, [until]), act.help],
            preview=missed,
            reason="optional" if until else "none",
        )
        ask(self._console, Dialog(question), lambda reply: self._decide(row, act, partial(change, reply.reason), at_us))

    def _decide(self, row: ServedSchedule, act: ScheduleAct, change: Callable[[], object], at_us: int = 0) -> None:
        """Write what the operator decided, and say what holds now. ``at_us``: the end of a pause."""

        async def write() -> None:
            try:
                await asyncio.to_thread(change)
            except StateFileError as error:
                self._console.show_warning(str(error))
                return
            name = "start-now" if act.name == "start" and act.logical is None else act.name
            self._console.show_message(decision_sentence(row, name, at_us or act.logical or 0, row.missed_times))
            if isinstance(screen := self._console.console_screen, SchedulesScreen):
                await screen.read_rows()

        self._console.run_worker(write())

    def _choose_pause(self, row: ServedSchedule, act: ScheduleAct) -> None:
        ends, who = pause_ends(self._clock.now_us()), current_actor()

        def pause(until: str) -> None:
            def change(reason: str) -> None:
                supervisor_file.pause([row.id], ends[until], reason, who)

            self._confirm(row, act, change, until, ends[until])

        choose(self._console, f"Start no runs of {row.flow}", [ChoiceOption(until, until) for until in ends], pause)


def _change_of(row: ServedSchedule, act: ScheduleAct, now_us: int) -> Callable[[], object]:
    """The change by an act that needs no further word."""
    who = current_actor()
    skip = partial(supervisor_file.skip, row.id, act.logical, who)
    changes: Mapping[str, Callable[[], object]] = {
        "start": partial(write_request, row.flow, row.state_path or "", act.logical, {}, who, now_us),
        "unpause": partial(supervisor_file.unpause, [row.id], now_us),
        "skip": skip,
        "unskip": skip,
        "dismiss": partial(supervisor_file.dismiss, row.id, None, now_us, who),
        "acknowledge": partial(supervisor_file.acknowledge, row.id, now_us),
        "forget": partial(flow_times.forget, row),
    }
    return changes[act.name]
