"""Everything an operator can do, each thing once: name, keys, words, where, what it calls and sends, the shell line.

Bindings, footer, help, palette and the journal's command lines are all derived from this table. A key leads to the
action that is bound to it where it is pressed, and the action to its row of ``CALLS``; ``app/base_app.py`` makes that
call, for keys and for the palette alike.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from ...engine.domain.acts import ACTS, Scope
from ..text.text import one_line


class Place(Enum):
    """Where a key can be pressed."""

    RUNS = "runs"
    GRAPH = "graph"
    TIMELINE = "timeline"
    INBOX = "inbox"
    LOG = "log"
    JOURNAL = "journal"
    SYSTEMS = "systems"
    ROWS = "rows"
    DETAIL = "detail"


class Effect(IntEnum):
    """What a press can do at worst."""

    LOOK = 0  # nothing changes but the view
    ASK = 1  # opens a question that the same key cannot answer, or hands the keys to another program
    CHANGE = 2  # the run changes


class Receiver(Enum):
    """What handles an action. The value is the attribute of the app that holds it."""

    VIEW = "view"  # no attribute: the focused widget, else the next one around it that has the method, up to the screen
    CONSOLE = "console"  # the app itself
    ACTS = "acts"
    SYSTEMS_ACTS = "systems_acts"
    REWIND = "rewind"
    RUN_CONTROL = "run_control"
    COMMANDS = "commands"
    COPYING = "copying"
    ANALYSIS = "analysis"
    PREFERENCES = "preferences"


class Passed(Enum):
    """What a receiver gets of the screen, before the arguments of the table."""

    NOTHING = 0
    CHOSEN = 1  # the names of the marked tasks, else of those under the cursor
    SUBJECT = 2  # what is under the cursor: a breaker, a page, a group of rows, an event; None: something else


class Call(NamedTuple):
    """What an action calls."""

    receiver: Receiver
    method: str
    arguments: tuple[Any, ...] = ()
    passes: Passed = Passed.NOTHING


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do.

    Attributes:
        name: also the id of its binding, its name in ``keys.toml`` and in the palette.
        keys: as people write them, the one to be shown first; none: in the palette alone.
        label: a word or two for the footer.
        help: one sentence.
        places: where it applies.
        effect: the worst that a press can do.
        act: the ``Command.act`` that it leads to.
        needs_rest: nothing is done while the row that was meant has just left from under the cursor.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    places: frozenset[Place]
    effect: Effect = Effect.LOOK
    act: str | None = None
    needs_rest: bool = False

    @property
    def call(self) -> Call:
        """What it calls."""
        return CALLS[self.name]


EVERYWHERE = frozenset(Place)
#: The top levels, in the order of their keys and tabs.
VIEWS = (Place.RUNS, Place.GRAPH, Place.TIMELINE, Place.INBOX, Place.LOG, Place.JOURNAL, Place.SYSTEMS)
_RUN = EVERYWHERE - {Place.RUNS}
_TASKS = frozenset({Place.GRAPH, Place.TIMELINE, Place.INBOX, Place.DETAIL})
_LISTS = frozenset({Place.RUNS, Place.GRAPH, Place.TIMELINE, Place.INBOX, Place.JOURNAL})
_MARKING = frozenset({Place.GRAPH, Place.INBOX, Place.ROWS})
_FOLDING = frozenset({Place.GRAPH, Place.INBOX})
_LOG = frozenset({Place.LOG})
_GRAPH = frozenset({Place.GRAPH})
_JOURNAL = frozenset({Place.JOURNAL})
_NIGHT = frozenset({Place.GRAPH, Place.TIMELINE, Place.INBOX, Place.JOURNAL, Place.SYSTEMS, Place.DETAIL})
_TIMELINE = frozenset({Place.TIMELINE})
_SYSTEMS = frozenset({Place.SYSTEMS})
_QUARANTINE = frozenset({Place.SYSTEMS, Place.ROWS})
_SEARCHED = EVERYWHERE - {Place.ROWS}  # of a hundred thousand rows only those in view are read
_LOOK, _ASK, _CHANGE = Effect.LOOK, Effect.ASK, Effect.CHANGE

_CHANGING = (
    Action(
        "requeue",
        ("r",),
        "requeue",
        "Run again: one at once, many after a look at the list.",
        _TASKS,
        _CHANGE,
        "requeue",
        needs_rest=True,
    ),
    Action(
        "skip",
        ("s",),
        "skip…",
        "Permit the failure, with a reason: the children go on without it.",
        _TASKS,
        _ASK,
        "skip",
    ),
    Action(
        "note",
        ("w",),
        "note…",
        "Write on a cause what the next one who is called for it should know.",
        frozenset({Place.INBOX, Place.DETAIL}),
        _ASK,
        "note",
    ),
    Action("undo", ("z",), "undo…", "Take back the last act that can be taken back.", _RUN, _ASK, "undo"),
    Action(
        "stop_task",
        ("x",),
        "stop…",
        "Stop the running attempt; the task counts as cancelled.",
        _TASKS,
        _ASK,
        "cancel",
    ),
    Action(
        "extend",
        (),
        "more time…",
        "Give the running attempt more time before its timeout.",
        _TASKS,
        _ASK,
        "extend",
    ),
    Action(
        "hurry",
        ("b",),
        "retry now",
        "Bring the next attempt forward: back off no longer.",
        _TASKS,
        _CHANGE,
        "hurry",
    ),
    Action(
        "pause",
        ("p",),
        "pause",
        "Start nothing more, or start tasks again; what runs goes on.",
        _RUN,
        _CHANGE,
        "pause",
    ),
    Action(
        "resume_here",
        ("R",),
        "resume…",
        "Start an executor here, when the one of this run is gone.",
        EVERYWHERE,
        _ASK,
        None,
    ),
    Action("arm", ("W",), "arm…", "Allow changes for ten minutes, when started read-only.", EVERYWHERE, _ASK, None),
    Action(
        "acknowledge", (), "acknowledge", "I have seen it: stop paging for this dead letter.", _TASKS, _CHANGE, "ack"
    ),
    Action("snooze", (), "snooze…", "Page again later.", _TASKS, _ASK, "snooze"),
    Action("reset_breaker", (), "breaker…", "Close or open a circuit breaker by hand.", _RUN, _ASK, "breaker"),
    Action("stop_run", (), "stop run…", "End the run: after the running tasks, or now.", _RUN, _ASK, "stop"),
)

_OF_SYSTEMS = (
    Action(
        "force_open",
        ("f",),
        "force open…",
        "Hold everybody who would call this downstream, until somebody closes its breaker.",
        _SYSTEMS,
        _ASK,
        "breaker",
    ),
    Action("close_breaker", ("c",), "close…", "Let calls through, and forget what failed.", _SYSTEMS, _ASK, "breaker"),
    Action(
        "probe", ("b",), "probe now", "Let one call through now, and go by its answer.", _SYSTEMS, _CHANGE, "breaker"
    ),
    Action("disable_breaker", ("u",), "disable…", "Let every call through, whatever comes.", _SYSTEMS, _ASK, "breaker"),
    Action(
        "acknowledge_page",
        ("a",),
        "acknowledge",
        "I look after it: page no more for this cause.",
        _SYSTEMS,
        _CHANGE,
        "ack",
        needs_rest=True,
    ),
    Action("snooze_page", ("s",), "snooze…", "Page again later.", _SYSTEMS, _ASK, "snooze"),
    Action(
        "requeue_rows",
        ("r",),
        "requeue…",
        "Run the task again over rows that are held, and over no others.",
        _QUARANTINE,
        _ASK,
        "requeue-rows",
    ),
    Action(
        "discard_rows",
        ("x",),
        "discard…",
        "Drop rows that are held, with a reason.",
        _QUARANTINE,
        _ASK,
        "discard-rows",
    ),
)

_VIEWS = (
    Action("view_runs", ("1",), "Runs", "Every run of this state file.", EVERYWHERE),
    Action("view_graph", ("2",), "Graph", "The tasks and what they wait for.", EVERYWHERE),
    Action("view_timeline", ("3",), "Timeline", "Attempts, backoffs and kills along the clock.", EVERYWHERE),
    Action("view_inbox", ("4",), "Inbox", "What needs a decision, by cause.", EVERYWHERE),
    Action("view_log", ("5",), "Log", "The output of the selected task.", EVERYWHERE),
    Action("view_journal", ("6",), "Journal", "Everything that happened, and who did what.", EVERYWHERE),
    Action("view_systems", ("7",), "Systems", "Breakers, pages and quarantined rows.", EVERYWHERE),
    Action("open", ("enter",), "open", "Drill in; fold or unfold a group.", EVERYWHERE),
    Action("back", ("escape",), "back", "Back; clear the filter; return to the present.", EVERYWHERE),
    Action("quit", ("q",), "quit", "Back; at the top level leave the console: the run goes on.", EVERYWHERE, _ASK),
    Action("details", ("d",), "details", "Attempts, errors and relatives of the selected task.", _RUN),
    Action("output", ("o",), "log", "Output of the selected attempt; again: in $PAGER.", _RUN, _ASK),
    Action(
        "classify",
        ("c",),
        "classify…",
        "Call the failure something else: the rule for the flow, and what it would have done.",
        frozenset({Place.INBOX}),
    ),
    Action("why", ("i",), "why", "Why is it not running?", _TASKS | {Place.LOG, Place.JOURNAL}),
    Action("next_pane", ("tab",), "pane", "Next pane.", EVERYWHERE),
    Action("previous_pane", ("shift+tab",), "", "Previous pane.", EVERYWHERE),
)

_FINDING = (
    Action("filter", ("/",), "filter", "Show only what matches; !text shows the others.", _SEARCHED),
    Action("next", ("n",), "next", "Next match; without a filter, the next problem.", _SEARCHED),
    Action("previous", ("N",), "", "Previous match or problem.", _SEARCHED),
    Action("palette", (":", "ctrl+p"), "commands", "Run any command by its name.", EVERYWHERE),
    Action("help", ("?", "f1"), "keys", "The keys that work here.", EVERYWHERE),
    Action("sort", ("e",), "sort", "Change the order.", _LISTS),
    Action("copy", ("y",), "copy…", "Copy a name, an error, a command line or a summary.", EVERYWHERE),
)

_MARKS = (
    Action("mark", ("space",), "mark", "Mark or unmark for an act on many.", _MARKING),
    Action("mark_range", ("v",), "range", "Mark from here on; again: end of the range.", _MARKING),
    Action("mark_all", ("a",), "all", "Mark all that match.", _MARKING),
)

_SHOWING = (
    Action("fold", ("-",), "less", "One step less detail; on the timeline, a longer span.", _FOLDING | _TIMELINE),
    Action(
        "unfold", ("=", "+"), "more", "One step more detail; on the timeline, a shorter span.", _FOLDING | _TIMELINE
    ),
    Action(
        "follow",
        ("f",),
        "follow",
        "Keep up with the end of the log, or with the running front.",
        _GRAPH | _TIMELINE | _LOG,
    ),
    Action("critical_path", ("c",), "critical path", "Show what decides when the run ends.", _GRAPH | _TIMELINE),
    Action("times", ("t",), "times", "Times as ages, or as clock times.", EVERYWHERE),
    Action("wrap", ("w",), "wrap", "Fold long lines, or cut them.", _LOG),
    Action("first_error", ("e",), "first error", "Jump to the first line that tells of an error.", _LOG),
    Action("only", ("&",), "only", "Show only the lines that match; !text shows the others.", _LOG),
    Action("older_attempt", ("[",), "attempt", "The output of the attempt before.", _LOG),
    Action("newer_attempt", ("]",), "", "The output of the attempt after it.", _LOG),
    Action("redraw", ("ctrl+l",), "redraw", "Draw the screen again and read everything again.", EVERYWHERE),
    Action("theme", (), "theme", "Change the colours.", EVERYWHERE),
    Action("mouse", (), "mouse", "Take the mouse, or leave it to the terminal, to select text.", EVERYWHERE),
    Action("bell", (), "bell", "Ring the terminal for new pages, or keep quiet.", EVERYWHERE),
    Action("keys", (), "keys", "List every key, and the file that changes them.", EVERYWHERE),
)

PAST = (
    Action("step_back", ("[",), "", "One event back in time; Esc returns to the present.", _NIGHT),
    Action("step_forward", ("]",), "", "One event forward in time.", _NIGHT),
    Action("trouble_back", ("{",), "", "Back to the last failure, hang or act before this.", _NIGHT),
    Action("trouble_forward", ("}",), "", "On to the next failure, hang or act.", _NIGHT),
    Action("faster", (">",), "", "Play from here, or from the beginning; again: 10 and 60 times as fast.", _NIGHT),
    Action("slower", ("<",), "", "Play slower, in the end not at all.", _NIGHT),
    Action("at_time", ("@",), "", "Show the run as it was at a time.", _NIGHT - _JOURNAL),
    Action("at_event", ("@",), "", "Show the run as it was after this event.", _JOURNAL),
)

MOVES = (
    Action("down", ("j", "down"), "", "Down.", EVERYWHERE),
    Action("up", ("k", "up"), "", "Up.", EVERYWHERE),
    Action("left", ("h", "left"), "", "To a predecessor, or left.", EVERYWHERE),
    Action("right", ("l", "right"), "", "To a successor, or right.", EVERYWHERE),
    Action("top", ("g", "home"), "", "To the first row.", EVERYWHERE),
    Action("bottom", ("G", "end"), "", "To the last row.", EVERYWHERE),
    Action("page_down", ("pagedown",), "", "One page down.", EVERYWHERE),
    Action("page_up", ("pageup",), "", "One page up.", EVERYWHERE),
    Action("half_page_down", ("ctrl+d",), "", "Half a page down.", EVERYWHERE),
    Action("half_page_up", ("ctrl+u",), "", "Half a page up.", EVERYWHERE),
)

ACTIONS: tuple[Action, ...] = (*_CHANGING, *_OF_SYSTEMS, *_VIEWS, *_FINDING, *_MARKS, *_SHOWING, *PAST, *MOVES)
BY_NAME: Mapping[str, Action] = {action.name: action for action in ACTIONS}

#: Keys that ``keys.toml`` does not move: they belong to the terminal, or to boxes, which say themselves what they do.
_NOWHERE: frozenset[Place] = frozenset()
FIXED: tuple[Action, ...] = (
    Action("suspend", ("ctrl+z",), "", "Suspend the console, as a shell does it.", _NOWHERE, _ASK),
    Action("how_to_leave", ("ctrl+c",), "", "Pressed by reflex: say which key leaves.", _NOWHERE),
    Action("cancel", ("escape", "q"), "", "Close the box; nothing is done.", _NOWHERE),
    Action("close_reading", ("?",), "", "Close the box, by the key that opens help.", _NOWHERE),
    Action("search", ("/",), "", "Show only the lines of the box that match.", _NOWHERE),
    Action("scroll", ("space",), "", "One page down in a text.", _NOWHERE),
    Action("previous_answer", ("left", "h"), "", "To the answer on the left.", _NOWHERE),
    Action("next_answer", ("right", "l"), "", "To the answer on the right.", _NOWHERE),
)
_BY_ANY_NAME: Mapping[str, Action] = {action.name: action for action in (*ACTIONS, *FIXED)}
SUSPEND_KEY = _BY_ANY_NAME["suspend"].keys[0]


def _view(method: str, *arguments: Any) -> Call:
    return Call(Receiver.VIEW, method, arguments)


def _console(method: str, *arguments: Any) -> Call:
    return Call(Receiver.CONSOLE, method, arguments)


def _on_tasks(method: str) -> Call:
    return Call(Receiver.ACTS, method, passes=Passed.CHOSEN)


def _on_system(method: str, *arguments: Any) -> Call:
    return Call(Receiver.SYSTEMS_ACTS, method, arguments, Passed.SUBJECT)


def _rewind(method: str, *arguments: Any) -> Call:
    return Call(Receiver.REWIND, method, arguments)


#: Name of an action -> what it calls.
CALLS: Mapping[str, Call] = {
    # the run
    "requeue": _on_tasks("requeue"),
    "skip": _on_tasks("skip"),
    "note": _on_tasks("note"),
    "stop_task": _on_tasks("stop"),
    "extend": _on_tasks("extend"),
    "hurry": _on_tasks("hurry"),
    "acknowledge": _on_tasks("acknowledge"),
    "snooze": _on_tasks("snooze"),
    "undo": Call(Receiver.ACTS, "undo"),
    "pause": Call(Receiver.ACTS, "pause"),
    "resume_here": Call(Receiver.RUN_CONTROL, "resume"),
    "arm": Call(Receiver.RUN_CONTROL, "arm"),
    "stop_run": Call(Receiver.RUN_CONTROL, "stop_run"),
    # breakers, pages, rows
    "reset_breaker": _on_system("reset_breaker"),
    "force_open": _on_system("set_breaker", "open"),
    "close_breaker": _on_system("set_breaker", "close"),
    "probe": _on_system("set_breaker", "probe"),
    "disable_breaker": _on_system("set_breaker", "disable"),
    "acknowledge_page": _on_system("acknowledge"),
    "snooze_page": _on_system("snooze"),
    "requeue_rows": _view("decide_rows", "requeue"),
    "discard_rows": _view("decide_rows", "discard"),
    # views
    **{f"view_{place.value}": _console("view", place) for place in VIEWS},
    "open": _view("drill_in"),
    "back": _view("go_back"),
    "quit": _console("leave"),
    "details": _view("show_details"),
    "output": _view("show_output"),
    "why": _view("show_why"),
    "classify": Call(Receiver.ANALYSIS, "classify", passes=Passed.CHOSEN),
    "next_pane": _view("next_pane"),
    "previous_pane": _view("next_pane"),  # there are two
    # finding
    "filter": _view("ask_filter"),
    "only": _view("ask_only"),
    "search": _view("ask_search"),
    "next": _view("go_on", 1),
    "previous": _view("go_on", -1),
    "first_error": _view("go_to_first_error"),
    "sort": _view("change_order"),
    "copy": Call(Receiver.COPYING, "copy", passes=Passed.SUBJECT),
    "palette": Call(Receiver.COMMANDS, "palette"),
    "help": Call(Receiver.COMMANDS, "help"),
    "keys": Call(Receiver.COMMANDS, "list_keys"),
    # marks
    "mark": _view("mark"),
    "mark_range": _view("mark_range"),
    "mark_all": _view("mark_all"),
    # how it is shown
    "fold": _view("zoom", -1),
    "unfold": _view("zoom", 1),
    "follow": _view("toggle_follow"),
    "wrap": _view("toggle_wrap"),
    "critical_path": _view("toggle_critical_path"),
    "older_attempt": _view("go_to_attempt", -1),
    "newer_attempt": _view("go_to_attempt", 1),
    "times": _console("toggle_times"),
    "redraw": _console("read_and_redraw"),
    "theme": Call(Receiver.PREFERENCES, "choose_theme"),
    "mouse": Call(Receiver.PREFERENCES, "toggle_mouse"),
    "bell": Call(Receiver.PREFERENCES, "toggle_bell"),
    # the past
    "step_back": _rewind("step", -1),
    "step_forward": _rewind("step", 1),
    "trouble_back": _rewind("to_trouble", -1),
    "trouble_forward": _rewind("to_trouble", 1),
    "faster": _rewind("faster"),
    "slower": _rewind("slower"),
    "at_time": Call(Receiver.COMMANDS, "palette", ("at ",)),
    "at_event": Call(Receiver.REWIND, "to_subject", passes=Passed.SUBJECT),
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
    # boxes and the terminal
    "cancel": _view("cancel"),
    "close_reading": _view("cancel"),
    "previous_answer": _view("move_answer", -1),
    "next_answer": _view("move_answer", 1),
    "suspend": _console("action_suspend_process"),
    "how_to_leave": _console("say_how_to_leave"),
}

_FOOTERS: Mapping[Place, tuple[str, ...]] = {
    Place.RUNS: ("open", "filter", "sort", "help", "quit"),
    Place.GRAPH: ("requeue", "skip", "details", "output", "why", "next", "filter", "help", "quit"),
    Place.TIMELINE: ("requeue", "skip", "details", "fold", "unfold", "follow", "sort", "help", "quit"),
    Place.INBOX: ("requeue", "skip", "mark", "open", "undo", "note", "details", "help", "quit"),
    Place.LOG: ("filter", "next", "first_error", "older_attempt", "wrap", "follow", "only", "output", "help", "quit"),
    Place.JOURNAL: ("open", "filter", "next", "times", "copy", "help", "quit"),
    Place.SYSTEMS: (
        *("force_open", "close_breaker", "probe", "acknowledge_page", "snooze_page", "requeue_rows", "discard_rows"),
        *("open", "next", "help", "quit"),
    ),
    Place.ROWS: ("requeue_rows", "discard_rows", "mark", "mark_all", "open", "undo", "help", "quit"),
    Place.DETAIL: ("requeue", "skip", "output", "why", "copy", "help", "quit"),
}

#: Acts with a shell command of their own name on tasks or on the run, and whether the command names tasks.
_SHELL_COMMANDS: Mapping[str, bool] = {
    act.name: act.scope is Scope.TASKS
    for act in ACTS
    if act.shell == act.name and act.scope in (Scope.TASKS, Scope.RUN)
}
_SHELL_NAMES_MAX = 50


def actions_of(place: Place) -> Iterator[Action]:
    """What can be done there, in the order of the table."""
    return (action for action in ACTIONS if place in action.places)


def action_named(name: str) -> Action:
    """An action that an operator can choose, or one that is on a fixed key."""
    return _BY_ANY_NAME[name]


def footer_of(place: Place) -> list[Action]:
    """What the footer shows there, the most wanted first."""
    return [BY_NAME[name] for name in _FOOTERS[place]]


def shell_line(
    act: str,
    target: str,
    run: str | None = None,
    tasks: Sequence[str] = (),
    reason: str = "",
    options: Mapping[str, Any] | None = None,
) -> str | None:
    """The command line that does the same as a ``Command``, safe to paste; None if the shell has no such command.

    Args:
        act: ``Command.act``.
        target: state file or ssh address.
        tasks: names; more than fifty are said by number, unless ``options`` holds their ``fingerprint``.
        options: ``fingerprint``, those of a requeue, ``seconds`` of ``extend``.
    """
    if act not in _SHELL_COMMANDS:
        return None
    options = options or {}
    words = ["redrive", act]
    fingerprint = options.get("fingerprint")
    words += ["--state", target]
    words += ["--run", run] if run else []
    words += ["--fingerprint", str(fingerprint)] if fingerprint else []
    words += _requeue_words(options) if act == "requeue" else []
    words += ["--substitute", json.dumps(options["substitute"])] if "substitute" in options else []
    words += ["--reason", reason] if reason else []
    if _SHELL_COMMANDS[act] and not fingerprint:
        words += ["--", *tasks[:_SHELL_NAMES_MAX]]
    words += [f"{options['seconds']:g}s"] if act == "extend" else []
    line = shlex.join(_shell_words(words))
    unnamed = 0 if fingerprint else len(tasks) - _SHELL_NAMES_MAX
    return f"{line}  # and {unnamed} more" if unnamed > 0 else line


def _requeue_words(options: Mapping[str, Any]) -> Iterator[str]:
    for flag in ("canary", "single_shot", "new_key", "cascade"):
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


def _shell_words(words: Iterable[str]) -> Iterator[str]:
    """Names come from flows, reasons from people: neither may bring a line break or a control character with it."""
    return (one_line(word) for word in words)
