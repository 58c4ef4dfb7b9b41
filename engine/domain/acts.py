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
        verb: the imperative, as in "there is nothing to requeue".
        past: the participle, as in "3 requeued".
        scope: the kind of its targets.
        states: task states in which the act can be applied to the state file alone.
        awaited: words for running targets, which only their executor can change: "to be ended"; None if the act refuses
            running tasks.
        needs_reason: True if the act is refused without a reason, because colleagues will find its result later.
        starts_work: True if tasks may start after the act, so that a file without an executor needs one.
        is_undoable: True if ``undo`` can revert the act.
        needs_executor: True if only a living executor can apply the act.
        shell: the shell command that sends the act; None if there is none, for the reason in ``no_shell``.
    """

    name: str
    verb: str
    past: str
    scope: Scope
    states: FrozenSet[TaskState] = frozenset()
    awaited: Optional[str] = None
    needs_reason: bool = False
    starts_work: bool = False
    is_undoable: bool = False
    needs_executor: bool = False
    shell: Optional[str] = None
    no_shell: str = ""


_CANCEL_FROM = OPEN - frozenset([TaskState.RUNNING])
_ROWS_FROM = REQUEUE_FROM - ABOUT_TO_START  # rows can only be requeued through a task that is at rest

ACTS: Tuple[Act, ...] = (
    Act(
        "requeue",
        verb="requeue",
        past="requeued",
        scope=Scope.TASKS,
        states=REQUEUE_FROM,
        needs_reason=True,
        starts_work=True,
        is_undoable=True,
        shell="requeue",
    ),
    Act(
        "requeue-rows",
        verb="requeue",
        past="requeued",
        scope=Scope.ROWS,
        states=_ROWS_FROM,
        needs_reason=True,
        starts_work=True,
        is_undoable=True,
        shell="quarantine --requeue",
    ),
    Act(
        "discard-rows",
        verb="discard",
        past="discarded",
        scope=Scope.ROWS,
        needs_reason=True,
        is_undoable=True,
        shell="quarantine --discard",
    ),
    Act(
        "skip",
        verb="skip",
        past="skipped",
        scope=Scope.TASKS,
        states=SKIP_FROM,
        needs_reason=True,
        starts_work=True,
        is_undoable=True,
        shell="skip",
    ),
    Act(
        "cancel",
        verb="cancel",
        past="cancelled",
        scope=Scope.TASKS,
        states=_CANCEL_FROM,
        awaited="to be ended",
        needs_reason=True,
        is_undoable=True,
        shell="cancel",
    ),
    Act("extend", verb="extend", past="extended", scope=Scope.TASKS, awaited="to be extended", shell="extend"),
    Act(
        "hurry",
        verb="bring forward",
        past="brought forward",
        scope=Scope.TASKS,
        states=WITH_INSTANT,
        starts_work=True,
        is_undoable=True,
        no_shell="the wait that it ends is over in minutes, and only the console counts it down",
    ),
    Act("pause", verb="pause", past="paused", scope=Scope.RUN, is_undoable=True, shell="pause"),
    Act(
        "unpause", verb="unpause", past="unpaused", scope=Scope.RUN, starts_work=True, is_undoable=True, shell="unpause"
    ),
    Act("abandon", verb="abandon", past="abandoned", scope=Scope.RUN, is_undoable=True, shell="abandon"),
    Act(
        "undo",
        verb="undo",
        past="changed back",
        scope=Scope.EARLIER_ACT,
        starts_work=True,
        is_undoable=True,
        no_shell="it names an earlier act by its id, which the console finds in the journal; the shell has --dry-run",
    ),
    Act("ack", verb="acknowledge", past="acknowledged", scope=Scope.PAGES, shell="pages --ack"),
    Act("snooze", verb="snooze", past="snoozed", scope=Scope.PAGES, shell="pages --snooze"),
    Act("note", verb="note", past="noted", scope=Scope.CAUSE, shell="note"),
    Act("prune", verb="prune", past="pruned", scope=Scope.FILE, shell="prune"),
    Act("breaker", verb="set", past="set", scope=Scope.BREAKER, shell="breakers"),
    Act("stop", verb="stop", past="stopped", scope=Scope.RUN, needs_executor=True, shell="stop"),
    Act("reload", verb="reload", past="reloaded", scope=Scope.RUN, needs_executor=True, shell="reload"),
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
