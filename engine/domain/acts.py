"""Operator acts: one table of everything that the engine, the console and the shell know of each act.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``operator_actions.py`` and ``executor/server.py`` register the handlers of the acts by the names of this table.
"""

from enum import Enum
from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple

from .states import ABOUT_TO_START, OPEN, REQUEUE_FROM, SKIP_FROM, WITH_INSTANT, TaskState


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
    """One operator act.

    Attributes:
        name: ``Command.act``.
        past: the participle, as in "3 requeued".
        scope: the kind of its targets.
        states: task states in which the act can be applied to the state file alone.
        verb: the imperative, as in "there is nothing to requeue"; the name, unless the table says otherwise.
        awaited: words for running targets, which only their executor can change: "to be ended"; None if the act refuses
            running tasks.
        needs_reason: True if the act is refused without a reason, because colleagues will find its result later.
        starts_work: True if tasks may start after the act, so that a file without an executor needs one.
        is_undoable: True if ``undo`` can revert the act.
        needs_executor: True if only a living executor can apply the act.
        shell: the shell command that sends the act; the name, unless the table says otherwise. None if there is none,
            for the reason in ``no_shell``.
    """

    name: str
    past: str
    scope: Scope
    states: FrozenSet[TaskState] = frozenset()
    verb: str = ""
    awaited: Optional[str] = None
    needs_reason: bool = False
    starts_work: bool = False
    is_undoable: bool = False
    needs_executor: bool = False
    shell: Optional[str] = None
    no_shell: str = ""


_CANCEL_FROM = OPEN - frozenset([TaskState.RUNNING])
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
        shell="quarantine --requeue",
    ),
    Act(
        "discard-rows",
        "discarded",
        Scope.ROWS,
        verb="discard",
        needs_reason=True,
        is_undoable=True,
        shell="quarantine --discard",
    ),
    Act("skip", "skipped", Scope.TASKS, SKIP_FROM, needs_reason=True, starts_work=True, is_undoable=True),
    Act("cancel", "cancelled", Scope.TASKS, _CANCEL_FROM, awaited="to be ended", needs_reason=True, is_undoable=True),
    Act("extend", "extended", Scope.TASKS, awaited="to be extended"),
    Act(
        "hurry",
        "brought forward",
        Scope.TASKS,
        WITH_INSTANT,
        verb="bring forward",
        starts_work=True,
        is_undoable=True,
        no_shell="the wait that it ends is over in minutes, and only the console counts it down",
    ),
    Act("pause", "paused", Scope.RUN, is_undoable=True),
    Act("unpause", "unpaused", Scope.RUN, starts_work=True, is_undoable=True),
    Act("postpone", "postponed", Scope.RUN, starts_work=True, is_undoable=True),
    Act("abandon", "abandoned", Scope.RUN, is_undoable=True),
    Act(
        "undo",
        "changed back",
        Scope.EARLIER_ACT,
        starts_work=True,
        is_undoable=True,
        no_shell="it names an earlier act by its id, which the console finds in the journal; the shell has --dry-run",
    ),
    Act("ack", "acknowledged", Scope.PAGES, verb="acknowledge", shell="pages --ack"),
    Act("snooze", "snoozed", Scope.PAGES, shell="pages --snooze"),
    Act("note", "noted", Scope.CAUSE),
    Act("prune", "pruned", Scope.FILE),
    Act("breaker", "set", Scope.BREAKER, verb="set", shell="breakers"),
    Act("stop", "stopped", Scope.RUN, needs_executor=True),
    Act("reload", "reloaded", Scope.RUN, needs_executor=True),
)
ACTS: Tuple[Act, ...] = tuple(
    act._replace(verb=act.verb or act.name, shell=act.shell or (None if act.no_shell else act.name)) for act in _TABLE
)
BY_NAME: Dict[str, Act] = {act.name: act for act in ACTS}

NEEDS_REASON = frozenset(act.name for act in ACTS if act.needs_reason)
STARTS_WORK = frozenset(act.name for act in ACTS if act.starts_work)
UNDOABLE = frozenset(act.name for act in ACTS if act.is_undoable)

#: States in which a task can be cancelled.
STOPPABLE = BY_NAME["cancel"].states | frozenset([TaskState.RUNNING])


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
    """Why an act cannot change a task in this state; None if it can."""
    return None if state in BY_NAME[name].states else refusal_sentence(name, state)


def refusal_sentence(name: str, state: str) -> str:
    """The sentence that refuses an act for a task in a state outside the act's ``states``."""
    act = BY_NAME[name]
    if state == TaskState.RUNNING:
        return "it runs: cancel it first, then {} it".format(act.verb)
    if state == TaskState.PENDING:
        return "it has not run yet: there is nothing to {}".format(act.verb)
    return "a task in {} cannot be {}".format(state, act.past)
