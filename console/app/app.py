"""The console app: connects a session, the board that follows it, the screens and the controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from ...engine.clock import Clock, SystemClock
from ...engine.core.views import run_style
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.event_payloads import PageChange, PageChanged
from ...engine.domain.rows import RunRow
from ...engine.domain.states import TaskState
from ...engine.domain.text import counted, format_duration, shell_command
from ...engine.errors import RedriveError
from ...engine.statefile.needs import Need
from ..keys.actions import ANSWERS, VIEWS, Action, ScreenName
from ..keys.keymap import shown_key
from ..model.board import Board, BoardUpdate
from ..model.launch_context import LaunchContext
from ..model.runs import needs_of_board
from ..model.systems import BadgeCounts
from ..present.header import lock_reason
from ..present.runs import deadline_note
from ..screens.console import run_latest
from ..sessions.live_run import LiveRun
from ..sessions.session import LiveSession, Session
from ..terminal.capabilities import detect_capabilities
from ..terminal.tty import Tty
from ..text.pieces import Line
from ..text.text import one_line
from ..widgets.bars import bindings
from .commands import CommandMenu, Copying
from .confirmations import named
from .operator import TASK_ACTS, TIMED_ACTS, OperatorActions
from .run_control import RunControl
from .systems_operator import BREAKER_ACTIONS, SystemsActions
from .theme import DEFAULT, Theme, load_theme
from .time_travel import TimeTravel
from .tour import Tour
from .views import REFUSAL_SECONDS, ViewConsole

GONE_SECONDS = 60.0  # the message that another run is shown than before
_SHOWING_USAGE = frozenset({ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.DETAIL})

#: Actions that the app handles on every screen.
_COMMANDS = (
    *("quit", "redraw", "undo", "pause", "postpone", "resume_here", "reload", "stop_run"),
    *("help", "palette", "copy", "mouse", "how_to_leave", "tour"),
)


class ConsoleApp(ViewConsole):
    """The console on one session. ``run_id`` None: the latest run of the file; ``view``: what of it is shown first."""

    TITLE = "redrive"
    BINDINGS = bindings(*(f"view_{view.value}" for view in VIEWS), *_COMMANDS)

    def __init__(
        self,
        session: LiveSession,
        run_id: str | None = None,
        *,
        tty: Tty | None = None,
        theme: Theme | None = None,
        clock: Clock | None = None,
        launch: LaunchContext | None = None,
        view: ScreenName = ScreenName.GRAPH,
    ) -> None:
        super().__init__(tty or Tty(detect_capabilities()), theme or load_theme(DEFAULT), launch)
        self.clock = clock or SystemClock()
        self.live = LiveRun(session, self.clock, self)
        self.operator_actions = OperatorActions(self, self.clock.monotonic)
        self.systems_actions = SystemsActions(self, self.operator_actions)
        self.time_travel = TimeTravel(self)
        self.run_control = RunControl(self, self.operator_actions)
        self.copying = Copying(self)
        self.tour = Tour(self)
        self.commands = CommandMenu(self, self.time_travel.to_time)
        self._badge_counts: BadgeCounts | None = None
        self._shown_runner: RunnerStatus | None = None
        self._run_id = run_id
        self._first_view = view
        self._missed_frames = False  # the terminal was busy: draw everything when it is ready

    # --- For screens ----------------------------------------------------------------------------------------------

    @property
    def redrive_line(self) -> Line:
        """The progress of a redrive that is under way; empty if there is none."""
        return self.operator_actions.redrive_line()

    @property
    def can_undo(self) -> bool:
        """Whether an act of the run can be taken back."""
        return self.operator_actions.can_undo

    @property
    def tour_line(self) -> Line:
        """The line of the demo's tour; empty if it is hidden or there is none."""
        return self.tour.line

    @property
    def needs_of_run(self) -> Sequence[Need]:
        """The needs of the followed run."""
        board, status = self.live.board, self.live.status
        is_unknown = self.live.is_past or status.is_late or self.operator_actions.executor.is_expected
        known = None if is_unknown else status
        return [] if board is None else needs_of_board(board, known, self.live.now_us)

    @property
    def attention_count(self) -> int:
        """The number of breakers, pages and groups of rows that need a human."""
        return self._badge_counts.count if self._badge_counts is not None else 0

    @property
    def lock_reason(self) -> str | None:
        """The reason why changes are not allowed; None if they are."""
        if self.live.is_past:
            return self.time_travel.lock_reason
        return lock_reason(self.live.status)

    # --- The run ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.start()

    def start(self) -> None:
        """Follow the run that was named."""
        self.live.follow(self._run_id)

    def on_board_replaced(self, board: Board) -> None:
        """Give the board to every screen; show the graph for the first board of a run."""
        if not self.is_running or not self.screen_stack:
            return  # the console ends: its views close one after the other
        self.time_travel.reset()
        self._badge_counts = BadgeCounts(board)
        self.operator_actions.on_board_replaced(board)
        if self.selected not in board.projection.tasks:
            self.selected = None
        self.tour.start(board)
        for screen in self._mounted_screens():
            screen.board_replaced(board)
        if self._is_new_run:
            self._is_new_run = False
            self.history.clear()
            (self.open_view if self.current_mode == ScreenName.RUNS.value else self._switch_to)(self._first_view)
        self._refresh_other_runs()
        self.show_frames()
        self.freeze_gc()

    def on_board_update(self, update: BoardUpdate) -> None:
        """Update every screen, and redraw the visible one."""
        if not self.is_running:
            return
        payloads = [event.payload for event in update.events]
        if any(isinstance(one, PageChanged) and one.what == PageChange.BELL for one in payloads):
            self.bell()
        self.operator_actions.on_events(update.events)
        if self._badge_counts is not None:
            self._badge_counts.update(update.delta.tasks)
        if self.live.board is not None:
            self.other_runs.on_events(update.events, self.live.board.projection.run.run_id)
            self._refresh_other_runs()
        for screen in self._mounted_screens():
            screen.on_news(update)
        if self.is_untouched and update.delta.are_problems_changed and self.tour.board is None:
            self._select_problem()
        if self.tour.go_on():
            self.console_screen.on_row_removed()  # a key that is pressed now was meant for the row before
        self.show_frames()

    def _select_problem(self) -> None:
        """Select a task that needs a human, unless one is selected; only for an operator who has touched nothing."""
        board = self.live.board
        if board is not None and board.problems and self.selected not in board.problems:
            self.selected = board.starting_task()
            self.console_screen.on_shown()

    def tick(self, now_us: int) -> None:
        """Update countdowns and ages, once a second."""
        if self.is_output_busy:
            self._missed_frames = True
            return
        if not self.live.is_past:
            self.operator_actions.tick(now_us)
        screens = self._stacked_screens()
        for screen in screens:
            screen.tick(now_us)
            screen.update_explanation()
        self.show_frames()
        if screens:
            self._refresh_usage()

    def _refresh_usage(self) -> None:
        """Ask the executor what running tasks use, while a screen shows them."""
        board, screen = self.live.board, self.console_screen
        if board is None or self.live.is_past or screen.PLACE not in _SHOWING_USAGE or self.live.status.is_stale:
            return
        if board.counts[TaskState.RUNNING] and self.runner.is_alive:
            run_latest(screen, partial(self._read_usage, board, self.live.session), "usage")
        else:
            board.usage = {}

    async def _read_usage(self, board: Board, session: Session) -> None:
        try:
            board.usage = {one.task: one for one in await session.usage()}
        except RedriveError:
            board.usage = {}  # the frame shows what is wrong with the connection

    def on_status(self) -> None:
        """Redraw the header; leave if the operator stopped the executor and it is gone."""
        if self.is_stopping and not self.live.status.executor.alive:
            self.exit(0)
        if not self.runner.absence:
            self.operator_actions.executor.expected_run_id = None
        self._refresh_other_runs()
        if not self.live.is_past and self.runner != self._shown_runner:  # what each task waits for depends on it
            self._shown_runner = self.runner
            self.tick(self.live.now_us)
            for screen in self._stacked_screens():
                for view in screen.query("LineView"):
                    view.refresh()
        self.show_frames()

    def _refresh_other_runs(self) -> None:
        """Read the other runs that need a human, if they may have changed."""
        board = self.live.board
        if board is not None and self.other_runs.is_due(board.projection.run.run_id, self.live.status):
            # the header shows a broken connection; the next event reads again
            read = partial(self._read_other_runs, board, self.live.session)
            run_latest(self, read, "other runs", shows_errors=False)

    async def _read_other_runs(self, board: Board, session: Session) -> None:
        if await self.other_runs.refresh(session, board.projection.run.run_id):
            for screen in self._mounted_screens():
                screen.on_other_runs()
            self.show_frames()

    def on_run_gone(self, sentence: str) -> None:
        """Say that another run is shown than before, until a key is pressed or the next message comes."""
        self.show_warning(one_line(sentence), GONE_SECONDS)

    def on_error(self, error: Exception) -> None:
        """End the console with a crash report."""
        self.crash(error)

    def output_drained(self) -> None:
        """Draw what was skipped while the terminal was busy."""
        if self._missed_frames:
            self._missed_frames = False
            self.tick(self.live.now_us)

    # --- Keys ------------------------------------------------------------------------------------------------------

    def quit_view(self) -> None:
        """Go back; at the top level return to the present, else quit."""
        if not self.go_back() and not self.time_travel.return_to_present():
            self.run_control.quit()

    def return_to_fleet(self) -> None:
        """Leave for the list of state files, as ``quit`` leaves."""
        self.run_control.leave(super().return_to_fleet)

    def reload(self) -> None:
        """Load and draw everything again."""
        self.live.reload()
        self.redraw()

    def show_exit_hint(self) -> None:
        """Show the key that leaves: people press Ctrl-C by reflex, and here it ends nothing."""
        self.show_message(f"{shown_key('quit')} leaves; the run goes on", seconds=REFUSAL_SECONDS)

    def meaning_of(self, name: str) -> str:
        """On a task that waits for an approval, ``y`` and ``n`` answer it."""
        is_asked = name in ANSWERS and self.screen is self.console_screen and self.console_screen.awaits_answer
        return ANSWERS[name] if is_asked else name

    def console_handler(self, name: str) -> Callable[[], object] | None:
        return self.calls.get(name) or super().console_handler(name)

    @cached_property
    def calls(self) -> Mapping[str, Callable[[], object]]:
        """Name of an action -> what its key calls; for the others, ``VIEW_CALLS`` has a method of a view."""
        operator, run, systems = self.operator_actions, self.run_control, self.systems_actions
        commands, time_travel = self.commands, self.time_travel
        on_tasks, on_run, on_item = self._on_tasks, self._on_run, self._on_item
        return {
            # the run
            "requeue": on_tasks(operator.requeue),
            "skip": on_tasks(operator.skip),
            "note": on_tasks(operator.note),
            **{action: on_tasks(partial(operator.act, action)) for action in TASK_ACTS},
            **{action: on_tasks(partial(operator.act_for_seconds, action)) for action in TIMED_ACTS},
            "undo": on_run(operator.undo),
            "pause": on_run(operator.pause),
            "postpone": on_run(operator.postpone),
            "reload": on_run(operator.reload_code),
            "resume_here": run.resume,
            "stop_run": run.stop_run,
            "abandon_run": on_item(run.abandon),
            "ack_run": on_item(run.acknowledge),
            # breakers and pages
            **{action: on_item(partial(systems.set_breaker, how=how)) for how, action in BREAKER_ACTIONS.items()},
            "acknowledge_page": on_item(systems.acknowledge),
            "snooze_page": on_item(systems.snooze),
            # views and menus
            **{f"view_{view.value}": partial(self.switch_view, view) for view in VIEWS},
            "quit": self.quit_view,
            "how_to_leave": self.show_exit_hint,
            "redraw": self.reload,
            "times": self.toggle_times,
            "tour": self.tour.toggle,
            "copy": lambda: self.copying.copy(self.console_screen.subject(), self.console_screen.target_tasks()),
            "palette": commands.palette,
            "help": commands.help,
            "mouse": self.toggle_mouse,
            # time travel
            "step_back": partial(time_travel.step, -1),
            "step_forward": partial(time_travel.step, 1),
            "problem_back": partial(time_travel.to_problem, -1),
            "problem_forward": partial(time_travel.to_problem, 1),
            "first_problem": time_travel.to_first_problem,
            "faster": time_travel.faster,
            "slower": time_travel.slower,
            "at_time": partial(commands.palette, "at "),
            "at_event": on_item(time_travel.to_cursor_event),
        }

    def _on_tasks(self, act: Callable[[Board, Sequence[str]], None]) -> Callable[[], object]:
        return partial(self.operator_actions.act_on_tasks, act)

    def _on_run(self, act: Callable[[Board], None]) -> Callable[[], object]:
        return partial(self.operator_actions.act_on_run, act)

    def _on_item(self, act: Callable[[object], object]) -> Callable[[], object]:
        return lambda: act(self.console_screen.subject())

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Call a handler, unless the row under the cursor has just changed and the action acts on it."""
        if action.needs_stable_cursor and self.console_screen.has_cursor_jumped():
            names = self.console_screen.target_tasks()
            there = named(names) if names else "another row"
            words = f"nothing was done: the cursor has just moved to {there}; press again"
            self.show_warning(words, REFUSAL_SECONDS)
        else:
            is_answer = self.tour.is_answered_by(action)
            await super().handle(action, handler)
            if self.launch.has_tour and self.is_running:
                self.tour.go_on(action if is_answer else None)
                self.show_frames()


# --- The end of a console: its result, and a few lines about the run for the terminal --------------------------------


class ConsoleEnd(NamedTuple):
    """The result of a console.

    Attributes:
        return_code: 128 + the number of the signal that ended it, or ``launch.CRASHED``; 0: the operator left.
        started_run: the run that this console started; None if it started no run.
        stopping: whether the operator stopped the executor.
        returns_to_fleet: whether the operator went back to the list of state files.
    """

    return_code: int = 0
    started_run: RunRow | None = None
    is_stopping: bool = False
    returns_to_fleet: bool = False


def console_end(app: ConsoleApp, return_code: int | None = None) -> ConsoleEnd:
    """The result of a console that was left."""
    board = app.live.board
    started_run = board.projection.run if board is not None and app.launch.started_here else None
    return ConsoleEnd(return_code or 0, started_run, app.is_stopping)


def exit_lines(board: Board | None, runner: RunnerStatus, target: str, ssh_arguments: Sequence[str] = ()) -> list[str]:
    """The lines about the run that are printed after the console has closed.

    ``target``: the state file; ``ssh_arguments``: with which a command reaches it.
    """
    if board is None:
        return []
    run = board.projection.run
    elapsed = format_duration(max((run.ended_at or run.started_at) - run.started_at - run.waited_us, 0))
    state = run_style(run, runner).word
    lines = [f"{one_line(run.dag_name)} {one_line(run.run_id)}: {state}, {board.finished} of {board.total} done"]
    if run.ended_at is not None:
        lines[0] += f" in {elapsed}"
    lines[0] += deadline_note(run)
    if board.dead_letters:
        letters = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
        lines.append(f"{counted(len(letters), 'dead letter')} to decide: {named(letters)}")
    if run.ended_at is None:
        goes_on = "the run goes on" if run.blocked_since is None else "the run waits for a decision"
        attach = shell_command(["redrive", "attach", target, *ssh_arguments])
        lines.append(f"{goes_on if runner.is_alive else 'no executor runs it now'}; come back with: {attach}")
        if runner.is_alive:
            lines.append(f"stop its executor with: {shell_command(['redrive', 'stop', target, *ssh_arguments])}")
    return lines
