"""The table of calls: ``CALLS`` has the method that each action calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from .actions import VIEWS, ScreenName


class Receiver(Enum):
    """The object that handles an action. The value is the attribute of the app that holds the object."""

    VIEW = "view"  # no attribute: the first with the method among the focused widget and its ancestors up to the screen
    CONSOLE = "console"  # the app itself
    OPERATOR_ACTIONS = "operator_actions"
    DOWNSTREAM_ACTIONS = "downstream_actions"
    TIME_TRAVEL = "time_travel"
    RUN_CONTROL = "run_control"
    COMMANDS = "commands"
    COPYING = "copying"
    ANALYSIS = "analysis"
    PREFERENCES = "preferences"


class ScreenArgument(Enum):
    """What the screen passes to the receiver, before the arguments in ``CALLS``."""

    NONE = 0
    TASKS = 1  # the names of the marked tasks, else of the tasks under the cursor
    CURSOR_ITEM = 2  # the breaker, page, group of rows or event under the cursor; None for other items
    ITEM_AND_TASKS = 3  # both, as two arguments


Argument = int | float | str | ScreenName


class ActionCall(NamedTuple):
    """The method that an action calls."""

    receiver: Receiver
    method: str
    arguments: tuple[Argument, ...] = ()
    screen_argument: ScreenArgument = ScreenArgument.NONE


def _view(method: str, *arguments: Argument) -> ActionCall:
    return ActionCall(Receiver.VIEW, method, arguments)


def _console(method: str, *arguments: Argument) -> ActionCall:
    return ActionCall(Receiver.CONSOLE, method, arguments)


def _on_tasks(method: str) -> ActionCall:
    return ActionCall(Receiver.OPERATOR_ACTIONS, method, screen_argument=ScreenArgument.TASKS)


def _on_downstream(method: str, *arguments: Argument) -> ActionCall:
    return ActionCall(Receiver.DOWNSTREAM_ACTIONS, method, arguments, ScreenArgument.CURSOR_ITEM)


def _time_travel(method: str, *arguments: Argument) -> ActionCall:
    return ActionCall(Receiver.TIME_TRAVEL, method, arguments)


#: Name of an action -> the method that it calls.
CALLS: Mapping[str, ActionCall] = {
    # the run
    "requeue": _on_tasks("requeue"),
    "skip": _on_tasks("skip"),
    "note": _on_tasks("note"),
    "stop_task": _on_tasks("stop"),
    "extend": _on_tasks("extend"),
    "hurry": _on_tasks("hurry"),
    "acknowledge": _on_tasks("acknowledge"),
    "snooze": _on_tasks("snooze"),
    "undo": ActionCall(Receiver.OPERATOR_ACTIONS, "undo"),
    "pause": ActionCall(Receiver.OPERATOR_ACTIONS, "pause"),
    "postpone": ActionCall(Receiver.OPERATOR_ACTIONS, "postpone"),
    "resume_here": ActionCall(Receiver.RUN_CONTROL, "resume"),
    "arm": ActionCall(Receiver.RUN_CONTROL, "arm"),
    "reload": ActionCall(Receiver.OPERATOR_ACTIONS, "reload_code"),
    "stop_run": ActionCall(Receiver.RUN_CONTROL, "stop_run"),
    "abandon_run": ActionCall(Receiver.RUN_CONTROL, "abandon", screen_argument=ScreenArgument.CURSOR_ITEM),
    # breakers, pages, rows
    "reset_breaker": _on_downstream("reset_breaker"),
    "force_open": _on_downstream("set_breaker", "open"),
    "close_breaker": _on_downstream("set_breaker", "close"),
    "probe": _on_downstream("set_breaker", "probe"),
    "disable_breaker": _on_downstream("set_breaker", "disable"),
    "acknowledge_page": _on_downstream("acknowledge"),
    "snooze_page": _on_downstream("snooze"),
    "requeue_rows": _view("decide_rows", "requeue"),
    "discard_rows": _view("decide_rows", "discard"),
    # views
    **{f"view_{view.value}": _console("switch_view", view) for view in VIEWS},
    "open": _view("drill_in"),
    "back": _view("go_back"),
    "quit": _console("quit_view"),
    "details": _view("show_details"),
    "output": _view("show_output"),
    "why": _view("show_explanation"),
    "classify": ActionCall(Receiver.ANALYSIS, "classify", screen_argument=ScreenArgument.TASKS),
    "next_pane": _view("next_pane"),
    "previous_pane": _view("next_pane"),  # there are two
    # finding
    "filter": _view("open_filter_input"),
    "filter_states": _view("cycle_state_filter"),
    "filters": ActionCall(Receiver.PREFERENCES, "choose_filter"),
    "only": _view("open_match_input"),
    "search": _view("open_search_input"),
    "next": _view("go_to_next", 1),
    "previous": _view("go_to_next", -1),
    "first_error": _view("go_to_first_error"),
    "sort": _view("change_order"),
    "columns": ActionCall(Receiver.PREFERENCES, "choose_columns"),
    "copy": ActionCall(Receiver.COPYING, "copy", screen_argument=ScreenArgument.ITEM_AND_TASKS),
    "palette": ActionCall(Receiver.COMMANDS, "palette"),
    "help": ActionCall(Receiver.COMMANDS, "help"),
    "manual": ActionCall(Receiver.COMMANDS, "manual"),
    "keys": ActionCall(Receiver.COMMANDS, "list_keys"),
    # marks
    "mark": _view("mark"),
    "mark_range": _view("mark_range"),
    "mark_all": _view("mark_all"),
    # display
    "fold": _view("zoom", -1),
    "unfold": _view("zoom", 1),
    "follow": _view("toggle_follow"),
    "wrap": _view("toggle_wrap"),
    "farther": _view("change_depth", 1),
    "nearer": _view("change_depth", -1),
    "critical_path": _view("toggle_critical_path"),
    "show_all": _view("show_all"),
    "older_attempt": _view("go_to_attempt", -1),
    "newer_attempt": _view("go_to_attempt", 1),
    "compare_attempts": _view("compare_attempts"),
    "tails": _view("show_tails"),
    "times": _console("toggle_times"),
    "redraw": _console("reload"),
    "theme": ActionCall(Receiver.PREFERENCES, "choose_theme"),
    "mouse": ActionCall(Receiver.PREFERENCES, "toggle_mouse"),
    "bell": ActionCall(Receiver.PREFERENCES, "toggle_bell"),
    # time travel
    "step_back": _time_travel("step", -1),
    "step_forward": _time_travel("step", 1),
    "problem_back": _time_travel("to_problem", -1),
    "problem_forward": _time_travel("to_problem", 1),
    "first_problem": _time_travel("to_first_problem"),
    "faster": _time_travel("faster"),
    "slower": _time_travel("slower"),
    "at_time": ActionCall(Receiver.COMMANDS, "palette", ("at ",)),
    "at_event": ActionCall(Receiver.TIME_TRAVEL, "to_cursor_event", screen_argument=ScreenArgument.CURSOR_ITEM),
    # moves
    "down": _view("move_rows", 1),
    "up": _view("move_rows", -1),
    "left": _view("move_columns", -1),
    "right": _view("move_columns", 1),
    "page_down": _view("move_pages", 1),
    "page_up": _view("move_pages", -1),
    "half_page_down": _view("move_pages", 0.5),
    "half_page_up": _view("move_pages", -0.5),
    "top": _view("move_to_edge", -1),
    "bottom": _view("move_to_edge", 1),
    "scroll": _view("move_pages", 1),
    # dialogs and the terminal
    "cancel": _view("cancel"),
    "close_reading": _view("cancel"),
    "previous_answer": _view("move_answer", -1),
    "next_answer": _view("move_answer", 1),
    "suspend": _console("action_suspend_process"),
    "how_to_leave": _console("show_exit_hint"),
}
