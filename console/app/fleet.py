"""The console on all state files of a machine: a list from which one is opened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from textual import events
from textual.app import ComposeResult

from ...engine.clock import Clock, SystemClock
from ...engine.core.spec import LOGICAL_TIME, FlowSpec, ParamSpec
from ...engine.domain.task_options import convert_param, describe_type
from ...engine.errors import RedriveError, StateFileError
from ...engine.statefile import supervisor_file
from ...engine.statefile.start_requests import write_request
from ...engine.statefile.state_files import Offer
from ...engine.statefile.supervisor_file import ServedSchedule
from ..keys.actions import action_named
from ..keys.keymap import DEFAULT_KEYS, KeyMap
from ..model.lists import next_order
from ..model.runs import FleetEntry, FleetOrder, fleet_entries
from ..present.runs import FLEET_COLUMNS, fleet_columns, fleet_heading, fleet_row
from ..present.schedules import ScheduleAct, decision_sentence, pause_ends, schedule_acts, schedule_state
from ..present.states import Look, legend_lines
from ..screens.dialogs import (
    ChoiceOption,
    FormDialog,
    FormField,
    TextDialog,
    choose,
    help_lines,
)
from ..sessions.address import Endpoint
from ..sessions.open import open_session
from ..sessions.session import current_actor
from ..sessions.target import is_remote
from ..terminal.tty import Tty
from ..text.columns import Columns, screen_titles
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line
from ..widgets.bars import Bar, KeyBar, Rule, bindings
from ..widgets.table import VirtualTable
from .base_app import ConsoleBase
from .theme import DEFAULT, Theme, load_theme

MESSAGE_SECONDS = 5.0
S = 1_000_000  # microseconds
_HELP_ACTIONS = tuple(map(action_named, ("open", "schedule", "sort", "redraw", "help", "quit")))

FleetWatch = Callable[[], AsyncIterator[Sequence[Offer]]]


class FleetApp(ConsoleBase):
    """The list. ``chosen`` is the path or address of the opened state file; None: the operator left.

    Args:
        watch: yields the state files, again after each change.
        place: the machine, for people.
        before: the file under the cursor at first.
        message: shown at first, as why a file could not be opened.
        is_read_only: whether acts on schedules are refused.
    """

    TITLE = "redrive"
    CSS = "Screen, LineView { background: $ground; color: $ink; }"
    BINDINGS = bindings("quit", "how_to_leave", "redraw", "sort", "schedule", "help")

    def __init__(
        self,
        watch: FleetWatch,
        place: str,
        *,
        tty: Tty | None = None,
        keymap: KeyMap = DEFAULT_KEYS,
        theme: Theme | None = None,
        clock: Clock | None = None,
        before: str | None = None,
        message: str = "",
        is_read_only: bool = False,
    ) -> None:
        self._console_theme = theme or load_theme(DEFAULT)
        super().__init__(tty, keymap, self._console_theme.palette())
        self.chosen: str | None = None
        self._glyphs = UTF8 if self.capabilities.has_unicode else ASCII
        self._watch = watch
        self._place = place
        self._clock = clock or SystemClock()
        self._before = before
        self._message = message
        self._is_read_only = is_read_only
        self._problem = ""
        self._offers: Sequence[Offer] = ()
        self._order = FleetOrder.ATTENTION
        self._entries: dict[str, FleetEntry] = {}
        self._columns: Columns[FleetEntry, Look] = FLEET_COLUMNS
        self._schedules: dict[str, ServedSchedule] = {}  # by state file; by flow file if it could never be read
        self.heading = Bar(id="heading")
        self.titles = Bar()
        self.table: VirtualTable[str] = VirtualTable(self._row)
        self.path_bar = Bar()  # the file under the cursor
        self.key_bar = KeyBar(more=(keymap.label("quit"), "leave"))

    def get_css_variables(self) -> dict[str, str]:
        """The colours of Textual's own backgrounds."""
        ground = {"ground": self._console_theme.background, "ink": self._console_theme.foreground}
        return {**super().get_css_variables(), **ground}

    def compose(self) -> ComposeResult:
        """Yield heading, list, the path of a file, and keys."""
        yield self.heading
        yield Rule(self._glyphs.rule)
        yield self.titles
        yield self.table
        yield Rule(self._glyphs.rule)
        yield self.path_bar
        yield self.key_bar

    def on_mount(self) -> None:
        """Start to read the list."""
        self.table.focus()
        keys = ("open", "schedule", "sort", "help")
        self.key_bar.show([(self.keymap.label(name), action_named(name).label) for name in keys])
        self.heading.show([Piece(" reading ...")])
        if self._message:
            self._warn(self._message)
        self.set_interval(1.0, self.tick)
        self.run_worker(self._follow(), name="follow", exclusive=True)

    async def _follow(self) -> None:
        try:
            async for offers in self._watch():
                self._offers = offers
                self._show()
                await self._read_schedules()
                self._show_path()
        except RedriveError as error:
            self._problem = str(error)
            self._show()

    def _show(self) -> None:
        entries = fleet_entries(self._offers, self._clock.now_us(), self._order)
        self._entries = {entry.offer.path: entry for entry in entries}
        self._columns = fleet_columns(entries)
        self._show_titles()
        self.table.set_order([*self._entries])
        if self._before in self._entries:
            self.table.move_to([*self._entries].index(self._before))
            self._before = None
        self.heading.show(*fleet_heading(entries, self._place, self._problem, self._order, self._glyphs))
        self._show_path()
        self.table.refresh()

    def _show_titles(self) -> None:
        self.titles.show(screen_titles(self._columns, self.size.width))

    def on_resize(self, event: events.Resize) -> None:
        """Fit the titles."""
        self._show_titles()

    def _show_path(self) -> None:
        row = self._schedules.get(path := self.table.cursor_key or "")
        state = schedule_state(row, self._clock.now_us()) if row is not None else ""
        self.path_bar.show([Piece(f" {state}" if state else ""), Piece(f" {one_line(path)}", Role.DIM)])

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Show the path of the file under the cursor."""
        self._show_path()

    def tick(self) -> None:
        """Update countdowns, once a second."""
        if not self.is_output_busy:
            self.table.rows_changed([*self._entries])

    def _row(self, path: str, columns: int) -> Line:
        look = Look(self._clock.now_us(), self._glyphs)
        return fleet_row(self._entries[path], self._columns, look, columns)

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open the file under the cursor."""
        entry = self._entries[str(message.key)]
        if entry.offer.problem is not None or not entry.offer.has_file:
            self._warn(entry.offer.problem or "connecting ...")
            return
        self.chosen = entry.offer.path
        self.exit(0)

    def _warn(self, sentence: str) -> None:
        self.key_bar.show_message([Piece(one_line(sentence), Role.WARNING)], MESSAGE_SECONDS)

    # --- Schedules --------------------------------------------------------------------------------------------------

    async def _read_schedules(self) -> None:
        with suppress(StateFileError):  # redrive schedule says what is wrong with it
            rows = (await asyncio.to_thread(supervisor_file.read_schedules)).schedules
            self._schedules = {row.state_path or row.file: row for row in rows}

    def choose_schedule_act(self) -> None:
        """Let the operator choose what to do about the schedule of the file under the cursor."""
        path = self.table.cursor_key or ""
        row = self._schedules.get(path)
        if self._is_read_only:
            self._warn("opened read-only")
        elif row is None:
            where = "on its own machine" if is_remote(path) else "here: redrive serve FOLDER serves one"
            self._warn(f"no schedule of this file is known {where}")
        else:
            self._offer_acts(row)

    def _offer_acts(self, row: ServedSchedule) -> None:
        acts = list(schedule_acts(row, self._clock.now_us()))
        options = [ChoiceOption(str(place), act.label, one_line(act.help)) for place, act in enumerate(acts)]
        choose(self, f"Schedule of {row.flow}", options, lambda place: self._act(row, acts[int(place)]))

    def _act(self, row: ServedSchedule, act: ScheduleAct) -> None:
        now_us, logical = self._clock.now_us(), act.logical
        match act.name:
            case "pause":
                self._choose_pause(row)
            case "start":
                self.run_worker(self._prompt_for_params(row, logical))
            case "unpause":
                self._decide(row, "unpause", partial(supervisor_file.unpause, [row.id], now_us))
            case "skip" | "unskip":
                self._decide(
                    row, act.name, partial(supervisor_file.skip, row.id, logical, current_actor()), logical or 0
                )
            case "dismiss":
                dismiss = partial(supervisor_file.dismiss, row.id, None, now_us, current_actor())
                self._decide(row, "dismiss", dismiss, count=row.missed_times)
            case "acknowledge":
                self._decide(row, "acknowledge", partial(supervisor_file.acknowledge, row.id, now_us))
            case "forget":
                self._decide(row, "forget", partial(supervisor_file.forget, row.id))

    def _decide(
        self, row: ServedSchedule, act: str, change: Callable[[], object], at_us: int = 0, *, count: int = 0
    ) -> None:
        """Write what the operator decided, and say what holds now."""

        async def write() -> None:
            try:
                await asyncio.to_thread(change)
            except StateFileError as error:
                self._warn(str(error))
                return
            self.key_bar.show_message([Piece(decision_sentence(row, act, at_us, count))], MESSAGE_SECONDS)
            await self._read_schedules()
            self._show_path()

        self.run_worker(write())

    def _choose_pause(self, row: ServedSchedule) -> None:
        ends = pause_ends(self._clock.now_us())

        def pause(words: str) -> None:
            self._decide(
                row, "pause", partial(supervisor_file.pause, [row.id], ends[words], "", current_actor()), ends[words]
            )

        choose(self, f"Start no runs of {row.flow}", [ChoiceOption(words, words) for words in ends], pause)

    async def _prompt_for_params(self, row: ServedSchedule, logical: int | None) -> None:
        """Ask for the parameters of a run, and start it."""
        try:
            fields = await read_param_fields(row)
        except RedriveError as error:
            self._warn(str(error))
            return

        def start(params: Mapping[str, str] | None) -> None:
            if params is not None:
                asked = row.flow, row.state_path or "", logical, params, current_actor(), self._clock.now_us()
                act = "start-now" if logical is None else "start"
                self._decide(row, act, partial(write_request, *asked), logical or 0)

        if fields:
            facts: list[Line] = [[Piece("Empty: as the flow says.")]]
            self.push_screen(FormDialog(f"Start {row.flow}", facts, fields), start)
        else:
            start({})

    # --- Order ------------------------------------------------------------------------------------------

    def change_order(self) -> None:
        """Change to the next order."""
        self._order = next_order(self._order)
        self._show()

    def on_bar_cell_clicked(self, message: Bar.CellClicked) -> None:
        """A click above the list, on the right, is the key of its order."""
        if message.bar is self.heading and message.on_right:
            self.change_order()

    # --- Keys -----------------------------------------------------------------------------------------------------

    def console_handler(self, name: str) -> Callable[[], object] | None:
        """The methods of this app for the actions that it has a key for."""
        own = {
            "sort": self.change_order,
            "schedule": self.choose_schedule_act,
            "help": self.show_help,
            "quit": self.quit_view,
            "how_to_leave": self.show_exit_hint,
            "redraw": self.reload,
        }
        return own.get(name) or super().console_handler(name)

    def show_help(self) -> None:
        """Show what the signs mean, and the keys of the list."""
        notices: Line = [Piece("(1)", Role.DIM), Piece(" so many notices, which can wait")]

        def lines(columns: int) -> Sequence[Line]:
            legend = legend_lines(self._glyphs, columns, [notices])
            return [*legend, [], *help_lines(_HELP_ACTIONS, self.keymap, columns)]

        self.push_screen(TextDialog([Piece("Signs, and the keys that work here", Role.TITLE)], lines))

    def quit_view(self) -> None:
        self.exit(0)

    def show_exit_hint(self) -> None:
        self.key_bar.show_message([Piece(f"{self.keymap.label('quit')} leaves")], MESSAGE_SECONDS)

    def reload(self) -> None:
        """Draw everything again."""
        self.redraw()


# --- The parameters of a run that is started by hand -----------------------------------------------------------------


async def read_param_fields(row: ServedSchedule) -> list[FormField]:
    """A line for each parameter of a flow, with its value in the latest run.

    Secrets and the logical time have none. Raises RedriveError.
    """
    text = await asyncio.to_thread(supervisor_file.read_spec, row.id)
    try:
        spec = msgspec.json.decode(text, type=FlowSpec)
    except msgspec.DecodeError:
        raise StateFileError(
            f"the parameters of {row.flow} are not known: redrive schedule start takes --param"
        ) from None
    previous = await _previous_params(row)
    return [
        param_field(name, default, spec.param_types.get(name), previous.get(name))
        for name, default in spec.params.items()
        if name not in (*spec.secrets, LOGICAL_TIME)
    ]


async def _previous_params(row: ServedSchedule) -> Mapping[str, object]:
    """The parameters of the latest run; none without a run."""
    session = await open_session(Endpoint(row.state_path or ""), read_only=True, is_console=False)
    try:
        runs = [one.run for one in await session.runs() if one.run.dag_name == row.flow]
    finally:
        await session.close()
    latest = max(runs, key=lambda run: run.started_at, default=None)
    return {} if latest is None else json.loads(latest.params)


def param_field(name: str, default: object, declared: ParamSpec | None, previous: object) -> FormField:
    """The line of one parameter. ``declared``: its type and choices; without, it has the type of its default."""
    kind = declared.type if declared is not None else "str" if default is None else type(default).__name__
    wanted = describe_type(kind)
    if declared is not None and declared.choices:
        wanted = f"one of {', '.join(map(_param_text, declared.choices))}"
    hint = wanted if default is None else f"{wanted}; default: {_param_text(default)}"
    types = None if declared is None else {"type": declared.type, "choices": declared.choices}

    def problem(text: str) -> str | None:
        try:
            convert_param(text or default, default, types)
        except ValueError as error:
            return str(error)
        return None

    return FormField(name, "" if previous in (None, default) else _param_text(previous), hint, problem)


def _param_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
