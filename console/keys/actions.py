"""The table of actions: ``ACTIONS`` has the keys of each action.

Bindings, footer, help and palette are derived from it. To follow a key, find its action in ``ACTIONS`` by the key and
the screen, then by the action's name the method in ``VIEW_CALLS``, else the one in ``ConsoleApp.calls``;
``app/base_app.py`` calls it, for keys and for the palette.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from ...engine.domain.acts import ACTS, REQUEUE_FLAGS, Scope
from ...engine.domain.text import place_words, shell_command


class ScreenName(Enum):
    """A screen of the console; a key can mean something else on each."""

    FLEET = "fleet"
    SCHEDULES = "schedules"
    RUNS = "runs"
    GRAPH = "graph"
    TIMELINE = "timeline"
    INBOX = "inbox"
    LOG = "log"
    JOURNAL = "journal"
    SYSTEMS = "systems"
    ROWS = "rows"
    DETAIL = "detail"


class ActionEffect(IntEnum):
    """The most that a key press can change."""

    NONE = 0  # only the view changes
    CONFIRM = 1  # a question opens that the same key cannot confirm, or another program gets the keys
    CHANGE = 2  # the run changes


class Action(msgspec.Struct, frozen=True):
    """A thing that an operator can do.

    Attributes:
        name: also the name in the palette.
        key_words: its keys as people write them, the displayed key first; empty: only in the palette.
        label: one or two words for the footer.
        help: one sentence.
        screens: where the action applies.
        effect: the most that a key press can change.
        act: the ``Command.act`` that the action sends.
    """

    name: str
    key_words: str
    label: str
    help: str
    screens: frozenset[ScreenName]
    effect: ActionEffect = ActionEffect.NONE
    act: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys as people write them, the displayed key first."""
        return tuple(self.key_words.split())

    @property
    def needs_stable_cursor(self) -> bool:
        """Whether its key is ignored if the row under the cursor has just changed."""
        return self.name in _ON_ROWS_THAT_LEAVE


#: What acts at once on the row under the cursor, in lists that rows leave.
_ON_ROWS_THAT_LEAVE = frozenset({"requeue", "hurry", "acknowledge", "acknowledge_page", "acknowledge_start"})
EVERYWHERE = frozenset(ScreenName)
#: The top levels, in the order of their keys and tabs.
_BESIDE_VIEWS = (ScreenName.FLEET, ScreenName.SCHEDULES, ScreenName.ROWS, ScreenName.DETAIL)
VIEWS = tuple(name for name in ScreenName if name not in _BESIDE_VIEWS)
_SCHEDULES = frozenset({ScreenName.SCHEDULES})
_OF_RUNS = EVERYWHERE - _SCHEDULES
_RUN = _OF_RUNS - {ScreenName.RUNS}
_FLEET = frozenset({ScreenName.FLEET})  # the list of state files, with the run of the row under the cursor
_TASKS = frozenset({ScreenName.GRAPH, ScreenName.TIMELINE, ScreenName.INBOX, ScreenName.DETAIL})
_CAUSES = _TASKS | _FLEET
_SORTED = _FLEET | {ScreenName.RUNS, ScreenName.INBOX}
_MARKING = frozenset({ScreenName.GRAPH, ScreenName.INBOX, ScreenName.ROWS})
_FOLDING = frozenset({ScreenName.GRAPH, ScreenName.INBOX})
_BESIDE_DETAIL = _RUN - {ScreenName.DETAIL}
_RUNS = frozenset({ScreenName.RUNS})
_LISTED_RUNS = _RUNS | _FLEET
_NOTED = _FLEET | {ScreenName.INBOX, ScreenName.DETAIL}
_LOG = frozenset({ScreenName.LOG})
_GRAPH = frozenset({ScreenName.GRAPH})
_JOURNAL = frozenset({ScreenName.JOURNAL})
_RECORDED = _TASKS | {ScreenName.JOURNAL, ScreenName.SYSTEMS}
_TIMELINE = frozenset({ScreenName.TIMELINE})
_SYSTEMS = frozenset({ScreenName.SYSTEMS})
_ZOOMED = _FOLDING | _TIMELINE | _RUNS
_QUARANTINE = frozenset({ScreenName.SYSTEMS, ScreenName.ROWS})
_SEARCHED = EVERYWHERE - {ScreenName.ROWS}  # the rows screen reads only the rows in view
_CONFIRM, _CHANGE = ActionEffect.CONFIRM, ActionEffect.CHANGE


def _act(name: str, keys: str, label: str, help: str, screens: frozenset[ScreenName], effect: ActionEffect) -> Action:
    """Return the row of an action that sends the act of its name."""
    return Action(name, keys, label, help, screens, effect, name)


_CHANGING = (
    _act("requeue", "r", "requeue", "Run again in 5s, unless taken back; several after a preview.", _CAUSES, _CHANGE),
    _act("skip", "s", "skip…", "Accept a failure, with a reason: the children run.", _CAUSES, _CONFIRM),
    _act("approve", "", "approve…", "Approve what waits for it, with a reason.", _TASKS, _CONFIRM),
    _act("reject", "", "reject…", "Reject what waits for it, with a reason: it fails for good.", _TASKS, _CONFIRM),
    _act("note", "w", "note…", "Write a note on a cause for the next operator who is paged.", _NOTED, _CONFIRM),
    _act("undo", "z", "undo…", "Take back the last act that can be taken back.", _RUN, _CONFIRM),
    Action("stop_task", "x", "stop…", "Stop the running attempt; the task is cancelled.", _TASKS, _CONFIRM, "cancel"),
    _act("extend", "", "more time…", "Give the running attempt more time before its timeout.", _TASKS, _CONFIRM),
    _act("hurry", "b", "retry now", "Start the next attempt now, without the rest of its backoff.", _TASKS, _CHANGE),
    _act("pause", "p", "pause", "Pause or unpause the run; running tasks continue.", _RUN, _CHANGE),
    _act(
        "postpone",
        "T",
        "deadline…",
        "A later deadline, or none; what the old one cancelled runs again.",
        _RUN,
        _CONFIRM,
    ),
    Action("resume_here", "R", "resume…", "Start an executor here if the last one is gone.", _OF_RUNS, _CONFIRM),
    Action("acknowledge", "", "acknowledge", "No more pages for this dead letter.", _TASKS, _CHANGE, "ack"),
    _act("snooze", "", "snooze…", "Page again later.", _TASKS, _CONFIRM),
    _act("reload", "", "reload", "Load changed source files; running tasks continue.", _RUN, _CHANGE),
    Action("abandon_run", "x", "abandon…", "End an unfinished run for good.", _LISTED_RUNS, _CONFIRM, "abandon"),
    Action("ack_run", "a", "acknowledge", "The inbox no longer lists how it ended.", _LISTED_RUNS, _CHANGE, "ack-run"),
    Action("stop_run", "", "stop run…", "End the run: after the running tasks, or now.", _RUN, _CONFIRM, "stop"),
)

_OF_SYSTEMS = (
    Action("force_open", "f", "force open…", "Hold all tasks that would call it.", _SYSTEMS, _CONFIRM, "breaker"),
    Action("close_breaker", "c", "close…", "Let calls through; forget past failures.", _SYSTEMS, _CONFIRM, "breaker"),
    Action("probe", "b", "probe now", "Let one call through; its result decides.", _SYSTEMS, _CHANGE, "breaker"),
    Action("disable_breaker", "u", "disable…", "Let every call through.", _SYSTEMS, _CONFIRM, "breaker"),
    Action("acknowledge_page", "a", "acknowledge", "No more pages for this cause.", _SYSTEMS, _CHANGE, "ack"),
    Action("snooze_page", "s", "snooze…", "Page again later.", _SYSTEMS, _CONFIRM, "snooze"),
    Action(
        "requeue_rows", "r", "requeue…", "Run the task again over held rows.", _QUARANTINE, _CONFIRM, "requeue-rows"
    ),
    Action("discard_rows", "x", "discard…", "Drop held rows, with a reason.", _QUARANTINE, _CONFIRM, "discard-rows"),
)

_OF_SCHEDULES = (
    Action("pause_schedule", "p", "pause…", "Start no runs, with a reason; or end that.", _SCHEDULES, _CONFIRM),
    Action("skip_next", "s", "skip next…", "Leave out the next run; or take that back.", _SCHEDULES, _CONFIRM),
    Action("start_run", "r", "start…", "Start a run now, or one that was missed.", _SCHEDULES, _CONFIRM),
    Action("dismiss_missed", "x", "dismiss…", "Drop the missed runs: none of them starts.", _SCHEDULES, _CONFIRM),
    Action("acknowledge_start", "a", "acknowledge", "A failed start, or a warning, is known.", _SCHEDULES, _CHANGE),
    Action("forget_flow", "f", "forget…", "Remove the schedule of a flow that is gone.", _SCHEDULES, _CONFIRM),
)

_VIEWS = (
    Action("view_runs", "1", "Runs", "Every run of this state file, and each task in the last ones.", EVERYWHERE),
    Action("view_graph", "2", "Graph", "The tasks and what they wait for.", EVERYWHERE),
    Action("view_timeline", "3", "Timeline", "Attempts, backoffs and kills along the clock.", EVERYWHERE),
    Action("view_inbox", "4", "Inbox", "What needs a decision, by cause.", EVERYWHERE),
    Action("view_log", "5", "Log", "The output of the selected task.", EVERYWHERE),
    Action("view_journal", "6", "Journal", "Everything that happened, and who did what.", EVERYWHERE),
    Action("view_systems", "7", "Systems", "Breakers, pages and quarantined rows.", EVERYWHERE),
    Action("open", "enter", "open", "Drill in; fold or unfold a group.", EVERYWHERE - {ScreenName.LOG}),
    Action("back", "escape", "back", "Back; clear the filter; return to the present.", EVERYWHERE),
    Action("quit", "q", "quit", "Back; at the top level leave the console: the run goes on.", EVERYWHERE, _CONFIRM),
    Action("details", "d", "details", "Attempts, errors and relatives of the selected task.", _BESIDE_DETAIL),
    Action("output", "o", "log", "Output of the selected attempt; again: in $PAGER.", _RUN, _CONFIRM),
    Action("why", "i", "why", "Why is it not running?", _CAUSES | {ScreenName.LOG, ScreenName.JOURNAL}),
    Action("next_pane", "tab", "pane", "Next pane.", _OF_RUNS),
    Action("previous_pane", "shift+tab", "", "Previous pane.", _OF_RUNS),
)

_FINDING = (
    Action("filter", "/", "filter", "Show only what matches; !text shows the others.", _SEARCHED),
    Action(
        "filter_states",
        "m",
        "only",
        "Show only failures and acts; again: everything.",
        _JOURNAL,
    ),
    Action("next", "n", "next", "Next match; without a filter, the next problem.", _SEARCHED),
    Action("previous", "N", "", "Previous match or problem.", _SEARCHED),
    Action("palette", ": ctrl+p", "commands", "Run any command by its name.", EVERYWHERE),
    Action("help", "? f1", "keys", "The keys that work here.", EVERYWHERE),
    Action("sort", "e", "sort", "Change the order.", _SORTED),
    Action("copy", "y", "copy…", "Copy an error, a command line or a summary.", _OF_RUNS),
)

_MARKS = (
    Action("mark", "space", "mark", "Mark or unmark for an act on many.", _MARKING),
    Action("mark_all", "a", "all", "Mark all that match; in the graph without a filter, every problem.", _MARKING),
)

_SHOWING = (
    Action("fold", "-", "less", "One step less detail; on the timeline, a longer span.", _ZOOMED),
    Action("unfold", "= +", "more", "One step more detail; on the timeline, a shorter span.", _ZOOMED),
    Action("follow", "f", "follow", "Follow the end of the log, or what runs.", _GRAPH | _TIMELINE | _LOG),
    Action("show_all", "0", "all", "The whole run over the whole width.", _TIMELINE),
    Action("critical_path", "c", "critical path", "Show what decides when the run ends.", _GRAPH | _TIMELINE),
    Action("times", "t", "times", "When each line was written; events by the clock or the run.", _LOG | _JOURNAL),
    Action("wrap", "w", "wrap", "Fold long lines, or cut them.", _LOG),
    Action("first_error", "e", "first error", "Jump to the first line that shows an error.", _LOG),
    Action("older_attempt", "[", "attempt", "The output of the attempt before.", _LOG),
    Action("newer_attempt", "]", "", "The output of the attempt after it.", _LOG),
    Action("schedule", "S", "schedules", "Every schedule: what comes, what was missed, and its keys.", _FLEET),
    Action("redraw", "ctrl+l", "redraw", "Draw the screen again and read everything again.", EVERYWHERE),
    Action("mouse", "", "mouse", "Take the mouse, or leave it to the terminal, to select text.", EVERYWHERE),
    Action("tour", "X", "tour", "In the demo: hide or show the line that guides through it.", EVERYWHERE),
)

TIME_TRAVEL_ACTIONS = (
    Action("step_back", "[", "", "One event back in time; Esc returns to the present.", _RECORDED),
    Action("step_forward", "]", "", "One event forward in time.", _RECORDED),
    Action("problem_back", "{", "", "Go back to the previous failure, hang or act.", _RECORDED),
    Action("problem_forward", "}", "", "Go on to the next failure, hang or act.", _RECORDED),
    Action("first_problem", "(", "", "Back to the first failure, hang or act of the run.", _RECORDED),
    Action("faster", ">", "", "Play from here, or from the beginning; again: 10 and 60 times as fast.", _RECORDED),
    Action("slower", "<", "", "Play slower, in the end not at all.", _RECORDED),
    Action("at_time", "@", "", "Show the run as it was at a time.", _RECORDED - _JOURNAL),
    Action("at_event", "@", "", "Show the run as it was after this event.", _JOURNAL),
)

MOVE_ACTIONS = (
    Action("down", "j down", "", "Down.", EVERYWHERE),
    Action("up", "k up", "", "Up.", EVERYWHERE),
    Action("left", "h left", "", "To a predecessor, or left.", EVERYWHERE),
    Action("right", "l right", "", "To a successor, or right.", EVERYWHERE),
    Action("top", "g home", "", "To the first row.", EVERYWHERE),
    Action("bottom", "G end", "", "To the last row.", EVERYWHERE),
    Action("page_down", "pagedown", "", "One page down.", EVERYWHERE),
    Action("page_up", "pageup", "", "One page up.", EVERYWHERE),
    Action("half_page_down", "ctrl+d", "", "Half a page down.", EVERYWHERE),
    Action("half_page_up", "ctrl+u", "", "Half a page up.", EVERYWHERE),
)

#: All of them, under the headings of help.
BY_HEADING: Mapping[str, tuple[Action, ...]] = {
    "Change the run": (*_CHANGING, *_OF_SYSTEMS, *_OF_SCHEDULES),
    "Go": _VIEWS,
    "Find": _FINDING,
    "Show": (*_MARKS, *_SHOWING, *TIME_TRAVEL_ACTIONS),
    "Move": MOVE_ACTIONS,
}
ACTIONS: tuple[Action, ...] = tuple(chain.from_iterable(BY_HEADING.values()))
#: What the keys of these actions, y and n, do instead while the task under the cursor waits for an approval.
ANSWERS: Mapping[str, str] = {"copy": "approve", "next": "reject"}
#: Keys that belong to the terminal, or to dialogs, which show their own keys.
_NOWHERE: frozenset[ScreenName] = frozenset()
FIXED: tuple[Action, ...] = (
    Action("suspend", "ctrl+z", "", "Suspend the console; `fg` returns to it.", _NOWHERE, _CONFIRM),
    Action("how_to_leave", "ctrl+c", "", "Show which key leaves the console.", _NOWHERE),
    Action("cancel", "escape q", "", "Close the box; nothing is done.", _NOWHERE),
    Action("close_reading", "?", "", "Close the box, by the key that opens help.", _NOWHERE),
    Action("search", "/", "", "Show only the lines of the box that match.", _NOWHERE),
    Action("scroll", "space", "", "One page down in a text.", _NOWHERE),
    Action("previous_answer", "left h", "", "To the answer on the left.", _NOWHERE),
    Action("next_answer", "right l", "", "To the answer on the right.", _NOWHERE),
)
BY_NAME: Mapping[str, Action] = {action.name: action for action in (*ACTIONS, *FIXED)}
SUSPEND_KEY = BY_NAME["suspend"].keys[0]


#: The actions of each footer, with blanks between.
_FOOTERS: Mapping[ScreenName, str] = {
    ScreenName.FLEET: (
        "open requeue skip resume_here pause ack_run postpone why schedule filter next sort palette help quit"
    ),
    ScreenName.SCHEDULES: (
        "pause_schedule skip_next start_run dismiss_missed acknowledge_start forget_flow open filter next help quit"
    ),
    ScreenName.RUNS: "open abandon_run unfold next_pane next filter sort help quit",
    ScreenName.GRAPH: "requeue skip details output why next filter help quit",
    ScreenName.TIMELINE: "requeue skip details fold unfold follow next help quit",
    ScreenName.INBOX: "requeue skip mark open undo note details help quit",
    ScreenName.LOG: "filter next first_error older_attempt wrap follow output help quit",
    ScreenName.JOURNAL: "open filter filter_states next times copy help quit",
    ScreenName.SYSTEMS: (
        "force_open close_breaker probe acknowledge_page snooze_page requeue_rows discard_rows open next help quit"
    ),
    ScreenName.ROWS: "requeue_rows discard_rows mark mark_all open undo help quit",
    ScreenName.DETAIL: "requeue skip output why copy help quit",
}


def actions_of(screen: ScreenName) -> Iterator[Action]:
    """The actions of a screen, in the order of the table."""
    return (action for action in ACTIONS if screen in action.screens)


def footer_of(screen: ScreenName) -> list[Action]:
    """The actions in the footer of a screen, the most used first."""
    return [BY_NAME[name] for name in _FOOTERS[screen].split()]


# --- The methods of views that actions call ---------------------------------------------------------------------------


class ViewCall(NamedTuple):
    """The name of a method of focused widgets and screens, which each class has where it means something, and what it
    is given. A test holds that the classes which have it take that."""

    method: str
    arguments: tuple[object, ...] = ()

    def bound_to(self, node: object) -> Callable[[], object] | None:
        """The call of the method of ``node``; None if it has none."""
        method = getattr(node, self.method, None)
        return None if method is None else partial(method, *self.arguments)


#: Name of an action -> the method of a view that its key calls; the console calls its others itself (``app/app.py``).
VIEW_CALLS: Mapping[str, ViewCall] = {
    "requeue_rows": ViewCall("decide_rows", ("requeue",)),
    "discard_rows": ViewCall("decide_rows", ("discard",)),
    "open": ViewCall("drill_in"),
    "back": ViewCall("go_back"),
    "details": ViewCall("show_details"),
    "output": ViewCall("show_output"),
    "why": ViewCall("show_explanation"),
    "next_pane": ViewCall("next_pane"),
    "previous_pane": ViewCall("next_pane"),  # there are two
    "filter": ViewCall("open_filter_input"),
    "filter_states": ViewCall("cycle_state_filter"),
    "search": ViewCall("open_search_input"),
    "next": ViewCall("go_to_next", (1,)),
    "previous": ViewCall("go_to_next", (-1,)),
    "first_error": ViewCall("go_to_first_error"),
    "sort": ViewCall("change_order"),
    "mark": ViewCall("mark"),
    "mark_all": ViewCall("mark_all"),
    "fold": ViewCall("zoom", (-1,)),
    "unfold": ViewCall("zoom", (1,)),
    "follow": ViewCall("toggle_follow"),
    "wrap": ViewCall("toggle_wrap"),
    "critical_path": ViewCall("toggle_critical_path"),
    "show_all": ViewCall("show_all"),
    "older_attempt": ViewCall("go_to_attempt", (-1,)),
    "newer_attempt": ViewCall("go_to_attempt", (1,)),
    "down": ViewCall("move_rows", (1,)),
    "up": ViewCall("move_rows", (-1,)),
    "left": ViewCall("move_columns", (-1,)),
    "right": ViewCall("move_columns", (1,)),
    "page_down": ViewCall("move_pages", (1,)),
    "page_up": ViewCall("move_pages", (-1,)),
    "half_page_down": ViewCall("move_pages", (0.5,)),
    "half_page_up": ViewCall("move_pages", (-0.5,)),
    "top": ViewCall("move_to_edge", (-1,)),
    "bottom": ViewCall("move_to_edge", (1,)),
    "scroll": ViewCall("move_pages", (1,)),
    "cancel": ViewCall("cancel"),
    "close_reading": ViewCall("cancel"),
    "previous_answer": ViewCall("move_answer", (-1,)),
    "next_answer": ViewCall("move_answer", (1,)),
}


# --- The same act from a shell: the command lines of the journal, of ``copy`` and of answers -------------------------


#: Acts that have a shell command of the same name -> whether the command takes task names.
_SHELL_COMMANDS: Mapping[str, bool] = {
    act.name: act.scope is Scope.TASKS
    for act in ACTS
    if act.shell == act.name and act.scope in (Scope.TASKS, Scope.RUN)
}
_OF_EXECUTOR = frozenset(["stop", "reload"])  # an executor has one run
_SHELL_NAMES_MAX = 50


def shell_line(
    act: str,
    target: str,
    run: str | None = None,
    tasks: Sequence[str] = (),
    reason: str = "",
    options: Mapping[str, Any] | None = None,
    ssh_arguments: Sequence[str] = (),
) -> str | None:
    """The shell command line for a ``Command``, safe to paste; None if the command line has no such command.

    Args:
        act: ``Command.act``.
        target: state file or ssh address.
        tasks: names; of more than 50 the rest is a count in a comment, unless ``options`` has a ``fingerprint``.
        options: ``fingerprint``, the options of a requeue, ``seconds`` of ``extend`` and ``postpone``.
        ssh_arguments: what reaches the target.
    """
    if act not in _SHELL_COMMANDS:
        return None
    options = options or {}
    words = ["redrive", act]
    fingerprint = options.get("fingerprint")
    words += [*place_words(target, None if act in _OF_EXECUTOR else run), *ssh_arguments]
    words += ["--fingerprint", str(fingerprint)] if fingerprint else []
    words += _requeue_arguments(options) if act == "requeue" else []
    words += ["--resume"] if options.get("resume") else []
    words += ["--substitute", json.dumps(options["substitute"])] if "substitute" in options else []
    words += ["--reason", reason] if reason else []
    if _SHELL_COMMANDS[act] and not fingerprint:
        words += ["--", *tasks[:_SHELL_NAMES_MAX]]
    words += [f"{options['seconds']:g}s"] if act in ("extend", "postpone") and "seconds" in options else []
    words += ["never"] if act == "postpone" and "seconds" not in options else []
    line = shell_command(words)
    unnamed = 0 if fingerprint else len(tasks) - _SHELL_NAMES_MAX
    return f"{line}  # and {unnamed} more" if unnamed > 0 else line


def _requeue_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    for flag in REQUEUE_FLAGS:
        if options.get(flag):
            yield f"--{flag.replace('_', '-')}"
    if options.get("reset_count") is False:
        yield "--keep-count"
    for option, name, unit in (
        ("--rate", "rate_per_second", "/s"),
        ("--not-before", "not_before", "s"),
        ("--timeout", "timeout", "s"),
    ):
        if options.get(name):
            yield from (option, f"{options[name]:g}{unit}")
    for name, value in sorted((options.get("params") or {}).items()):
        yield from ("--param", f"{name}={value}")
