"""Operator acts: one table of everything that the engine, the console and the shell know of each act.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``operator_actions.py`` and ``executor/server.py`` register the handlers of the acts by the names of this table.
"""

import json
import re
from enum import Enum
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .elements import VANISHED_CHILD
from .event_payloads import AnswerFields
from .states import (
    ABOUT_TO_START,
    ACKED_FROM,
    OPEN,
    REQUEUE_FROM,
    SKIP_FROM,
    SNOOZED_FROM,
    WITH_INSTANT,
    RunState,
    TaskState,
    describe_repetition,
    describe_unanswered,
)


class Scope(Enum):
    """The kind of an act's targets."""

    TASKS = "tasks"
    RUN = "run"
    FILE = "state file"
    ROWS = "rows"
    PAGES = "pages"
    CAUSE = "cause"
    BREAKER = "breaker"
    EARLIER_ACT = "earlier act"


class Act(NamedTuple):
    """An operator act.

    Attributes:
        name: ``Command.act``.
        past: the participle, as in "3 requeued".
        scope: the kind of its targets.
        states: of its targets (tasks, a run, pages) in which the act is offered, and can be applied to the state file
            alone; empty if it depends on no state.
        verb: the imperative, as in "there is nothing to requeue"; the name, unless the table says otherwise.
        refusal: why the act is refused in other states; empty: a sentence that names the state.
        awaited: words for running targets, which only their executor can change: "to be ended"; None if the act refuses
            running tasks.
        needs_reason: True if the act is refused without a reason, because colleagues will find its result later.
        starts_work: True if tasks may start after the act, so that a file without an executor needs one.
        is_undoable: True if ``undo`` can revert the act.
        shell: the shell command that sends the act; the name, unless the table says otherwise. None if there is none,
            for the reason in ``no_shell``.
    """

    name: str
    past: str
    scope: Scope
    states: FrozenSet[str] = frozenset()
    verb: str = ""
    refusal: str = ""
    awaited: Optional[str] = None
    needs_reason: bool = False
    starts_work: bool = False
    is_undoable: bool = False
    shell: Optional[str] = None
    no_shell: str = ""


_CANCEL_FROM = OPEN - frozenset([TaskState.RUNNING])
_APPROVAL_FROM = frozenset([TaskState.READY])
_GOES_ON = frozenset([RunState.RUNNING])
_HAS_ENDED = frozenset(RunState) - _GOES_ON
_ROWS_FROM = REQUEUE_FROM - ABOUT_TO_START  # rows can only be requeued through a task that is at rest

_TABLE = (
    Act("requeue", "requeued", Scope.TASKS, REQUEUE_FROM, needs_reason=True, starts_work=True, is_undoable=True),
    Act(
        "requeue-rows",
        "requeued",
        Scope.ROWS,
        _ROWS_FROM,
        verb="requeue",
        needs_reason=True,
        starts_work=True,
        is_undoable=True,
        shell="systems rows --requeue",
    ),
    Act(
        "discard-rows",
        "discarded",
        Scope.ROWS,
        verb="discard",
        needs_reason=True,
        is_undoable=True,
        shell="systems rows --discard",
    ),
    Act("skip", "skipped", Scope.TASKS, SKIP_FROM, needs_reason=True, starts_work=True, is_undoable=True),
    Act("approve", "approved", Scope.TASKS, _APPROVAL_FROM, needs_reason=True, starts_work=True, is_undoable=True),
    Act("reject", "rejected", Scope.TASKS, _APPROVAL_FROM, needs_reason=True, starts_work=True, is_undoable=True),
    Act("cancel", "cancelled", Scope.TASKS, _CANCEL_FROM, awaited="to be ended", needs_reason=True, is_undoable=True),
    Act("extend", "extended", Scope.TASKS, refusal="it does not run", awaited="to be extended"),
    Act(
        "hurry",
        "brought forward",
        Scope.TASKS,
        WITH_INSTANT,
        verb="bring forward",
        refusal="it waits for no instant",
        starts_work=True,
        is_undoable=True,
        no_shell="the wait that it ends is over in minutes, and only the console counts it down",
    ),
    Act("pause", "paused", Scope.RUN, _GOES_ON, is_undoable=True),
    Act("unpause", "unpaused", Scope.RUN, starts_work=True, is_undoable=True),
    Act("postpone", "postponed", Scope.RUN, _GOES_ON, starts_work=True, is_undoable=True),
    Act("abandon", "abandoned", Scope.RUN, _GOES_ON, is_undoable=True),
    Act(
        "ack-run",
        "acknowledged",
        Scope.RUN,
        _HAS_ENDED,
        verb="acknowledge",
        refusal="the run has not ended: decide about its tasks, or abandon it",
        is_undoable=True,
        shell="ack",
    ),
    Act("undo", "changed back", Scope.EARLIER_ACT, starts_work=True, is_undoable=True),
    Act("ack", "acknowledged", Scope.PAGES, ACKED_FROM, verb="acknowledge", shell="systems pages --ack"),
    Act("snooze", "snoozed", Scope.PAGES, SNOOZED_FROM, shell="systems pages --snooze"),
    Act("note", "noted", Scope.CAUSE),
    Act("prune", "pruned", Scope.FILE),
    Act("breaker", "set", Scope.BREAKER, verb="set", shell="systems breakers"),
    Act("stop", "stopped", Scope.RUN),
    Act("reload", "reloaded", Scope.RUN),
)
ACTS: Tuple[Act, ...] = tuple(
    act._replace(verb=act.verb or act.name, shell=act.shell or (None if act.no_shell else act.name)) for act in _TABLE
)
BY_NAME: Dict[str, Act] = {act.name: act for act in ACTS}

NEEDS_REASON = frozenset(act.name for act in ACTS if act.needs_reason)
STARTS_WORK = frozenset(act.name for act in ACTS if act.starts_work)
UNDOABLE = frozenset(act.name for act in ACTS if act.is_undoable)

#: States in which a task can be cancelled.
STOPPABLE = _CANCEL_FROM | frozenset([TaskState.RUNNING])


def past_of(name: str) -> str:
    """The participle of an act, for a sentence; "changed" for an act of a later version."""
    act = BY_NAME.get(name)
    return "changed" if act is None else act.past


_RELEASE = "/release"


def release_id(command_id: str) -> str:
    """The id of the act that releases the followers of a canary. ``command_id``: of the requeue with the canary."""
    return command_id + _RELEASE


def sender_command_id(command_id: str) -> str:
    """The id of the command that an operator sent; for a release, that of its canary."""
    return command_id[: -len(_RELEASE)] if command_id.endswith(_RELEASE) else command_id


def act_refusal(name: str, state: str) -> Optional[str]:
    """Why an act cannot change a run or a page in this state; None if it can."""
    act = BY_NAME[name]
    if state in act.states or not act.states:
        return None
    if act.scope is Scope.PAGES:
        return f"this page is {state} already"
    return act.refusal or f"the run has ended: {state}"


class TaskFacts(NamedTuple):
    """The facts by which an act on a task is refused, from a state file or from a board.

    Attributes:
        has_run: it has had an attempt.
        has_instant: it waits for an instant.
        is_gone: it is the child of a map task whose element is not in the list now.
        is_ending: its running attempt was cancelled.
        is_lost: no executor lives, so that its running attempt gets no answer.
        is_paused: its run is paused.
        expired_at: microseconds UTC; when the answer to its approval was due, if that has passed.
        timeout_us: of its latest attempt.
        repeated_key: the key of its effect, if that has happened and a requeue would repeat it.
        requeued: by whom and when it was requeued, if it has not started since; begins with a space.
    """

    state: str
    has_run: bool
    has_instant: bool
    is_approval: bool
    is_gone: bool
    is_ending: bool
    is_lost: bool
    is_paused: bool
    expired_at: Optional[int] = None
    timeout_us: Optional[int] = None
    repeated_key: Optional[str] = None
    requeued: str = ""


def task_refusal(name: str, task: TaskFacts) -> Optional[str]:
    """Why an act cannot change a task; None if it can."""
    act, is_running = BY_NAME[name], task.state == TaskState.RUNNING
    if name in ("approve", "reject") and not task.is_approval:
        return "it waits for no approval: flow.approval makes a task that does"
    if name == "requeue" and task.state == TaskState.READY and not task.has_run and task.is_paused:
        return "nothing failed: the run is paused: unpause it"
    if name == "extend" and is_running:
        return _extension_refusal(task)
    if name == "cancel" and is_running:
        return None
    if task.state not in act.states or (name == "hurry" and not task.has_instant and task.state == TaskState.PENDING):
        return _state_refusal(act, task)
    if task.expired_at is not None:
        return f"{describe_unanswered(task.expired_at)}: requeue it to be asked again"
    if act.past == "requeued" and task.is_gone:
        return VANISHED_CHILD
    if name == "requeue" and task.repeated_key is not None:
        return describe_repetition(task.repeated_key)
    return None


def _extension_refusal(task: TaskFacts) -> Optional[str]:
    if task.is_lost:
        return "its executor is dead: nothing of it runs any more"
    if task.is_ending:
        return "an operator has asked for its end"
    return "it has no timeout" if task.timeout_us is None else None


def _state_refusal(act: Act, task: TaskFacts) -> str:
    if act.refusal:
        return act.refusal
    if task.state == TaskState.RUNNING and task.is_ending:
        return f"its attempt was cancelled and still runs: {act.verb} it when the attempt has ended"
    if task.state == TaskState.RUNNING:
        return f"it runs: cancel it first, then {act.verb} it"
    if task.state == TaskState.PENDING and task.requeued:
        return f"already requeued{task.requeued}: it has not started since"
    if task.state == TaskState.PENDING:
        return f"it has not run yet: there is nothing to {act.verb}"
    return f"a task in {task.state} cannot be {act.past}"


# --- The types of the options of acts: one table, checked before an act reads them -----------------------------------
#
# Options come from a socket, so every JSON value is possible; the handlers may rely on these types. What an act
# refuses beyond them (a downstream that the flow lacks, a timeout of 0) is refused where the act is applied.


WHOLE_MAX = 2**63 - 1  # what SQLite stores
NUMBER_MAX = 1e9  # seconds: about 32 years, so that no instant leaves the range of dates


class OptionCheck(NamedTuple):
    """``allows``: whether a value has the type; ``name``: the type in words, with its article."""

    allows: Callable[[object], bool]
    name: str


def is_whole(value: object) -> bool:
    """True for a whole number that SQLite can store."""
    return isinstance(value, int) and -WHOLE_MAX <= value <= WHOLE_MAX


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= NUMBER_MAX


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_group(value: object) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return False
    task, fingerprint, last = value
    return _is_text(task) and (fingerprint is None or _is_text(fingerprint)) and is_whole(last)


def _is_list(of: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(of(item) for item in value)


_TEXT = OptionCheck(_is_text, "a text")
_FLAG = OptionCheck(lambda value: isinstance(value, bool), "true or false")
_NUMBER = OptionCheck(_is_number, f"a number from 0 to {NUMBER_MAX:,.0f}")
_WHOLE_NUMBERS = OptionCheck(_is_list(is_whole), "a list of whole numbers")

OPTION_TYPES: Dict[str, OptionCheck] = {
    "canary": _FLAG,
    "cascade": _FLAG,
    "cause": _TEXT,
    "command": _TEXT,
    "downstream": _TEXT,
    "fingerprint": _TEXT,
    "groups": OptionCheck(_is_list(_is_group), "a list of (task, fingerprint, last row)"),
    "how": _TEXT,
    "max_attempts": OptionCheck(is_whole, "a whole number"),
    "new_key": _FLAG,
    "not_before": _NUMBER,
    "pages": _WHOLE_NUMBERS,
    "params": OptionCheck(lambda value: isinstance(value, dict), "an object of named values"),
    "rate_per_second": _NUMBER,
    "reset_count": _FLAG,
    "rollout": _TEXT,
    "rows": _WHOLE_NUMBERS,
    "runs": OptionCheck(is_whole, "a whole number"),
    "same_key": _FLAG,
    "seconds": _NUMBER,
    "is_time": _FLAG,
    "single_shot": _FLAG,
    "text": _TEXT,
    "verifies": _TEXT,
    "whole_flow": _FLAG,
}


#: Options of a requeue that are given or not; the command has a flag of the same name for each.
REQUEUE_FLAGS = ("canary", "single_shot", "new_key", "same_key", "cascade")


def option_type_refusal(options: Mapping[str, Any]) -> Optional[str]:
    """One sentence about the first option whose value has another type; None if all have theirs. null is allowed."""
    for name, value in options.items():
        expected = OPTION_TYPES.get(name)
        if expected is not None and value is not None and not expected.allows(value):
            return f"{name} is {expected.name}, not {_shown(value)}"
    return None


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:59] + "…"


# --- An operator's command and its answer, with their JSON form on the wire and in the event of the act --------------


DONE = "done"
REFUSED = "refused"
RUNNING = "running"  # the task runs: its executor has to apply the act
HELD = "held"  # the task is requeued after its canary has succeeded

ACTOR_CHARACTERS_MAX = 200
TEXT_CHARACTERS_MAX = 10000
DEPTH_MAX = 20  # of lists and objects in the options

_NO_NAME = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and bytes that were not UTF-8


class Target(NamedTuple):
    """A task with the state and the generation that the operator saw."""

    task: str
    state: str
    generation: int


class Author(NamedTuple):
    """The author of a change, as its events say; without an actor, the executor itself."""

    actor: Optional[str] = None
    reason: Optional[str] = None
    command_id: Optional[str] = None


BY_EXECUTOR = Author()


class Command(NamedTuple):
    """An act of an operator, as it is sent.

    Attributes:
        id: chosen by the sender; a command that arrives twice is applied once.
        act: the name of an act of ``acts.py``.
        run_id: None if the act concerns no run.
        actor: the sender, as user@host.
        options: JSON values; the handlers in ``operator_actions.py`` name those that they read.
    """

    id: str
    act: str
    run_id: Optional[str]
    targets: Tuple[Target, ...] = ()
    actor: str = ""
    reason: str = ""
    options: Mapping[str, Any] = {}

    @property
    def author(self) -> Author:
        """The author that its events name."""
        return Author(self.actor, self.reason or None, self.id or None)

    def as_json(self) -> Dict[str, object]:
        """The object that ``parse_command`` reads."""
        return dict(self._asdict(), targets=[list(target) for target in self.targets], options=dict(self.options))


class TargetResult(NamedTuple):
    """The result for one target. ``outcome``: DONE, REFUSED, RUNNING or HELD; ``sentence`` may be empty."""

    task: str
    outcome: str
    sentence: str = ""


class Answer(NamedTuple):
    """The answer to a command. ``ok``: at least one change was made; ``message``: one sentence."""

    ok: bool
    message: str
    results: Tuple[TargetResult, ...] = ()

    def as_json(self) -> AnswerFields:
        """The object that ``parse_answer`` reads."""
        return {"ok": self.ok, "message": self.message, "results": [list(result) for result in self.results]}


class ActPreview(NamedTuple):
    """The answer that an act would get, and the tasks that it would change, by what becomes of them."""

    ok: bool
    message: str
    results: Sequence[TargetResult] = ()
    run_again: Sequence[str] = ()
    unblocked: Sequence[str] = ()
    stay_blocked: Sequence[Tuple[str, Optional[str]]] = ()  # with the task that still stops it
    stopped: Sequence[str] = ()
    skipped: Sequence[str] = ()
    cancelled: Sequence[str] = ()
    held_back: Sequence[str] = ()  # were about to start, and wait for a parent again
    stale: Sequence[str] = ()  # ran before a parent that runs again
    answered: Sequence[str] = ()
    held: Sequence[Tuple[str, Tuple[str, ...]]] = ()  # do not start, with their holders, where the whole run is known
    notes: Sequence[str] = ()  # what the operator should know of its consequences
    released: Sequence[str] = ()  # wait below, and nobody holds them then, where the whole run is known
    needed_by: Sequence[Tuple[str, str]] = ()  # skipped tasks, each with a child that needs its result

    @property
    def holders(self) -> Dict[str, Tuple[str, ...]]:
        """The tasks that do not start afterwards, each with the tasks that hold or stop it."""
        stopped = {name: (by or "a task above it",) for name, by in self.stay_blocked}
        return dict(self.held, **stopped)

    @property
    def startable(self) -> List[str]:
        """The tasks that run again, without those that a dead letter or a failure keeps."""
        holders = self.holders
        return [name for name in self.run_again if name not in holders]

    @property
    def refused(self) -> List[TargetResult]:
        """The targets that it would not change, with the reasons."""
        return [one for one in self.results if one.outcome == REFUSED]


def clean_actor(name: str) -> str:
    """The name of an operator as it can be sent, stored and shown: a login name need not be UTF-8, and may be long."""
    return _NO_NAME.sub("\ufffd", name[:ACTOR_CHARACTERS_MAX])


def storage_refusal(command: Command) -> Optional[str]:
    """Why a command cannot be an event; None if it can."""
    try:
        text = json.dumps(command.as_json(), ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return "a command is text that can be stored: no lone surrogates, no objects, no NaN or infinity"
    return None if _depth(command.options) <= DEPTH_MAX else "the options of a command are nested too deep"


def _depth(value: object) -> int:
    """The depth of nested lists and objects; deeper levels than DEPTH_MAX + 1 are not counted."""
    depth, level = 0, [value]
    while level and depth <= DEPTH_MAX:
        level = [item for value in level for item in _items(value)]
        depth += 1
    return depth


def _items(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def parse_command(value: object) -> Command:
    """Parse the JSON form of a command. Raises ValueError with one sentence if it is not valid."""
    if not isinstance(value, dict) or not isinstance(value.get("act"), str):
        raise ValueError("a command is an object whose 'act' is a text")
    options = value.get("options") or {}
    if not isinstance(options, dict):
        raise ValueError("the options of a command are an object of named values")
    return Command(
        id=_text_of(value, "id"),
        act=value["act"],
        run_id=None if value.get("run_id") is None else _text_of(value, "run_id"),
        targets=tuple(_target_of(target) for target in _list_of(value.get("targets"))),
        actor=clean_actor(_text_of(value, "actor")),
        reason=_text_of(value, "reason"),
        options=options,
    )


def parse_answer(value: Mapping[str, Any]) -> Answer:
    """Parse the JSON form of an answer."""
    results = [TargetResult(str(task), str(word), str(sentence)) for task, word, sentence in value.get("results") or ()]
    return Answer(bool(value["ok"]), str(value["message"]), tuple(results))


def _text_of(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name) or ""
    if not isinstance(text, str) or len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"the {name} of a command is a text of at most {TEXT_CHARACTERS_MAX:,} characters")
    return text


def _list_of(value: Any) -> Any:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError("the targets of a command are a list")
    return value or ()


def _target_of(value: Any) -> Target:
    is_one = isinstance(value, (list, tuple)) and len(value) == 3
    if not is_one or not (isinstance(value[0], str) and isinstance(value[1], str) and is_whole(value[2])):
        raise ValueError("a target is (task, state seen, generation seen)")
    return Target(*value)


NOTE_CHARACTERS_MAX = 1000
