"""The trigger rules: whether a task may start, and which state it gets when a parent ends or runs again.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``VERDICTS`` is the only table of these rules: the ready queue, the SQL guards, the propagation in a state file and the
console's preview of an act read it. ``derive_state`` makes one verdict of those of all parents:

    the parents of a task                                   the task
    ----------------------------------------------------    ---------------------------------------
    one STOPs it                                            UPSTREAM_FAILED, at once
    none STOPs it, one is not finished                      PENDING
    all have ended, one SKIPs it                            SKIPPED
    all have ended and are OF_BRANCH                        SKIPPED
    all children of a map have ended and are OF_BRANCH      SKIPPED
    all have ended, none of these                           may start

So the state depends on how the parents ended, never on which ended first. It is derived again when a parent runs again,
is skipped or is restored.
"""

from abc import ABC, abstractmethod
from collections import deque
from enum import Enum
from typing import Collection, Deque, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .states import ABOUT_TO_START, OPEN, WAITING, SkipCause, TaskState
from .task_options import child_prefix


class ParentStatus(Enum):
    """The meaning of a task's state to its children."""

    SUCCEEDED = "succeeded"  # in this run, or in the earlier one whose result it has
    PERMITTED = "permitted"  # an operator skipped the task: its children may start without its result
    NOT_TAKEN = "not taken"  # the task is on a branch that was not taken
    FAILED = "failed"  # the task failed, was cancelled, or was stopped by a task above it
    OPEN = "open"  # the task is not finished, or is a dead letter that waits for a human


class Verdict(Enum):
    """The decision of one parent for a child that has not started."""

    ALLOW = "allow"
    OF_BRANCH = "allow, but skip the child if all are of a branch that is not taken"
    WAIT = "wait"
    STOP = "stop"  # the child becomes UPSTREAM_FAILED
    SKIP = "skip"  # the child becomes SKIPPED, because its branch is not taken


ALL_SUCCESS = "all_success"
ALL_SUCCESS_STRICT = "all_success_strict"
NONE_FAILED = "none_failed"
ALL_DONE = "all_done"
COLLECT = "collect"
COLLECT_STRICT = "collect_strict"

_V = Verdict
_STATUSES = tuple(ParentStatus)
_TABLE = (
    # rule of the child    parent: SUCCEEDED, PERMITTED, NOT_TAKEN, FAILED, OPEN
    (ALL_SUCCESS, (_V.ALLOW, _V.ALLOW, _V.SKIP, _V.STOP, _V.WAIT)),
    (ALL_SUCCESS_STRICT, (_V.ALLOW, _V.STOP, _V.SKIP, _V.STOP, _V.WAIT)),
    (NONE_FAILED, (_V.ALLOW, _V.ALLOW, _V.OF_BRANCH, _V.STOP, _V.WAIT)),
    (ALL_DONE, (_V.ALLOW, _V.ALLOW, _V.ALLOW, _V.ALLOW, _V.WAIT)),
    # rule of a map task   child of the map: the same
    (COLLECT, (_V.ALLOW, _V.ALLOW, _V.OF_BRANCH, _V.STOP, _V.WAIT)),
    (COLLECT_STRICT, (_V.ALLOW, _V.STOP, _V.OF_BRANCH, _V.STOP, _V.WAIT)),
)

#: Rule of the child -> status of the parent -> verdict.
VERDICTS: Dict[str, Dict[ParentStatus, Verdict]] = {rule: dict(zip(_STATUSES, row)) for rule, row in _TABLE}

#: Option ``collect`` of a map task -> the rule by which its children count.
COLLECTS: Dict[str, str] = {
    ALL_SUCCESS: COLLECT,
    ALL_SUCCESS_STRICT: COLLECT_STRICT,
    NONE_FAILED: COLLECT,
    ALL_DONE: ALL_DONE,
}
_OF_CHILDREN = frozenset([COLLECT, COLLECT_STRICT])

#: The rules that a flow may name; the first is the default.
RULES: Tuple[str, ...] = tuple(COLLECTS)


def edge_rule(name: str, rule: str, parent: str, over: Optional[str], collect: Optional[str]) -> str:
    """The rule by which ``parent`` counts for the task ``name``: ``rule``, unless a map task is one of the two.

    ``over``: the task that returns the list, of a map task and of each of its children, which cannot do without it.
    ``collect``: of a map task alone.
    """
    if parent == over:
        return ALL_SUCCESS_STRICT if rule == ALL_SUCCESS_STRICT else ALL_SUCCESS
    if collect is not None and parent.startswith(child_prefix(name)):
        return COLLECTS[collect]
    return rule


_ALLOWS = frozenset([Verdict.ALLOW, Verdict.OF_BRANCH])

#: The states of each status, besides SKIPPED.
STATES_OF: Dict[ParentStatus, FrozenSet[TaskState]] = {
    ParentStatus.SUCCEEDED: frozenset([TaskState.SUCCESS]),
    ParentStatus.FAILED: frozenset([TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED]),
    ParentStatus.OPEN: OPEN,
}
_STATUS_OF: Dict[str, ParentStatus] = {state: status for status, states in STATES_OF.items() for state in states}

#: States that follow from a task above; of SKIPPED, only with the cause CASCADE.
DERIVED = frozenset([TaskState.UPSTREAM_FAILED, TaskState.SKIPPED])


def parent_status(state: str, skip_cause: Optional[str], is_over: bool = False) -> ParentStatus:
    """The status of a task for its children. ``skip_cause`` is read only in state SKIPPED.

    ``is_over``: the run is over, so that clean-ups alone may start, and they wait for nobody's decision.
    """
    if is_over and state == TaskState.DEAD_LETTER:
        return ParentStatus.FAILED
    if state == TaskState.SKIPPED:
        return ParentStatus.PERMITTED if skip_cause == SkipCause.OPERATOR else ParentStatus.NOT_TAKEN
    return _STATUS_OF[state]


def verdict(rule: str, state: str, skip_cause: Optional[str]) -> Verdict:
    """The verdict of a parent in ``state`` on a child with ``rule``."""
    return VERDICTS[rule][parent_status(state, skip_cause)]


def rules_with(status: ParentStatus) -> FrozenSet[str]:
    """The rules that a parent of ``status`` satisfies."""
    return frozenset(rule for rule, row in VERDICTS.items() if row[status] in _ALLOWS)


_SATISFIED = {status: rules_with(status) for status in ParentStatus}


def satisfied_rules(state: str, skip_cause: Optional[str], is_over: bool = False) -> FrozenSet[str]:
    """The rules of children that a parent in ``state`` satisfies; ``is_over`` as for ``parent_status``."""
    return _SATISFIED[parent_status(state, skip_cause, is_over)]


class TaskNode(NamedTuple):
    """The columns of a task that these rules read."""

    name: str
    state: str
    generation: int
    rule: str
    skip_cause: Optional[str]
    blocked_by: Optional[str]
    edge_rule: Optional[str] = None  # of the edge over which it was found; None: the rule of the edge's child

    @property
    def is_derived(self) -> bool:
        """True if the state follows from a task above."""
        return self.state in DERIVED and (self.state != TaskState.SKIPPED or self.skip_cause == SkipCause.CASCADE)


class DerivedState(NamedTuple):
    """The state that a task gets from its parents: PENDING, UPSTREAM_FAILED with ``blocked_by``, or SKIPPED."""

    state: TaskState
    skip_cause: Optional[str] = None
    blocked_by: Optional[str] = None


def verdict_of(rule: str, parent: TaskNode) -> Verdict:
    """The verdict of a parent on a child with ``rule``."""
    return verdict(parent.edge_rule or rule, parent.state, parent.skip_cause)


def is_satisfied(rule: str, parents: Iterable[TaskNode]) -> bool:
    """True if every parent allows a child with ``rule`` to start."""
    return all(verdict_of(rule, parent) in _ALLOWS for parent in parents)


def derive_state(rule: str, parents: Sequence[TaskNode], blocked_by: Optional[str] = None) -> DerivedState:
    """The state that a task which has not started gets from its parents, by the table of this module.

    ``blocked_by``: the task that blocks it so far; it stays the one to name while it is still a cause.
    """
    verdicts = [verdict_of(rule, parent) for parent in parents]
    causes = [cause_of(parent) for parent, found in zip(parents, verdicts) if found is Verdict.STOP]
    if causes:
        return DerivedState(TaskState.UPSTREAM_FAILED, None, blocked_by if blocked_by in causes else causes[0])
    if Verdict.WAIT in verdicts:
        return DerivedState(TaskState.PENDING)
    of_map = [found for parent, found in zip(parents, verdicts) if parent.edge_rule in _OF_CHILDREN]
    if Verdict.SKIP in verdicts or _are_of_branch(verdicts) or _are_of_branch(of_map):
        return DerivedState(TaskState.SKIPPED, str(SkipCause.CASCADE))
    return DerivedState(TaskState.PENDING)


def _are_of_branch(verdicts: Sequence[Verdict]) -> bool:
    return bool(verdicts) and all(found is Verdict.OF_BRANCH for found in verdicts)


def cause_of(task: TaskNode) -> str:
    """The task to repair when ``task`` stops its children: itself, or the task above that stopped it."""
    return task.blocked_by or task.name if task.state == TaskState.UPSTREAM_FAILED else task.name


# --- Over a graph --------------------------------------------------------------------------------------------------


class TaskGraph(ABC):
    """The tasks that the functions below read and change, in a state file or in a preview.

    Every read returns the current state, including all changes made before.
    """

    @abstractmethod
    def task(self, name: str) -> TaskNode:
        """One task."""

    @abstractmethod
    def parents(self, name: str) -> Sequence[TaskNode]:
        """The direct parents of a task, in the order of the flow."""

    @abstractmethod
    def children(self, name: str, states: Collection[str]) -> Sequence[TaskNode]:
        """The direct children of a task that are in one of ``states``, in the order of the flow."""

    def is_held(self, task: TaskNode) -> bool:
        """True if a parent does not allow the task to start."""
        return not is_satisfied(task.rule, self.parents(task.name))

    def has_open_parent(self, name: str) -> bool:
        """True if a parent of the task has not ended."""
        return any(parent.state in OPEN for parent in self.parents(name))

    @abstractmethod
    def apply(self, task: TaskNode, derived: DerivedState) -> None:
        """Write a new derived state of a task."""

    @abstractmethod
    def hold(self, task: TaskNode) -> None:
        """Make a task PENDING that was about to start: a task above it runs again."""


def propagate(graph: TaskGraph, name: str) -> List[str]:
    """After the end of ``name``, however it has ended, stop or skip every waiting descendant that cannot start.

    Returns the names of those descendants, nearest first. A dead letter or an unfinished task changes nothing below it.
    Tasks that have started already are not changed.
    """
    changed: List[str] = []
    queue: Deque[TaskNode] = deque([graph.task(name)])
    while queue:
        parent = queue.popleft()
        for child in graph.children(parent.name, WAITING):
            found = _derive_below(graph, parent, child)
            if found.state != TaskState.PENDING:
                graph.apply(child, found)
                changed.append(child.name)
                queue.append(
                    child._replace(state=found.state, skip_cause=found.skip_cause, blocked_by=found.blocked_by)
                )
    return changed


def _derive_below(graph: TaskGraph, parent: TaskNode, child: TaskNode) -> DerivedState:
    """The state that a child gets from the end of one parent; PENDING if nothing changes.

    The other parents are read only if this one may have been the last to end: a map task has thousands.
    """
    found = verdict(child.edge_rule or child.rule, parent.state, parent.skip_cause)
    if found is Verdict.STOP:
        return DerivedState(TaskState.UPSTREAM_FAILED, None, cause_of(parent))
    if found is Verdict.WAIT or graph.has_open_parent(child.name):
        return DerivedState(TaskState.PENDING)
    return derive_state(child.rule, graph.parents(child.name))


def unpropagate(graph: TaskGraph, names: Iterable[str]) -> List[str]:
    """Recompute the states that follow from ``names``, which run again or have ended in another way.

    Returns the descendants that are PENDING now. If the other side of a diamond has failed, the lower task stays
    UPSTREAM_FAILED, and its ``blocked_by`` then names that side. A task that is stopped now instead of skipped stops
    those that wait below it. Children that were about to start wait for their parents again.
    """
    freed: List[str] = []
    changed: List[str] = []
    for name in _parents_first(graph, *_derived_below(graph, names)):
        task = graph.task(name)
        found = derive_state(task.rule, graph.parents(name), task.blocked_by)
        _adopt(graph, task, found)
        if found.state == TaskState.PENDING:
            freed.append(name)
        elif found.state != task.state:
            propagate(graph, name)
        if found.state != task.state:
            changed.append(name)
    hold_children(graph, changed)
    return [name for name in freed if graph.task(name).state == TaskState.PENDING]


def _derived_below(graph: TaskGraph, names: Iterable[str]) -> Tuple[List[str], Dict[str, List[str]]]:
    """The derived tasks reachable from ``names`` through derived tasks only, and the derived children of each task.

    Includes those of ``names`` that are derived: an undo restores such tasks although their cause may be gone.
    """
    queue = deque(names)
    found = [name for name in queue if graph.task(name).is_derived]
    seen = set(found)
    below: Dict[str, List[str]] = {}
    while queue:
        name = queue.popleft()
        below[name] = [child.name for child in graph.children(name, DERIVED) if child.is_derived]
        new = [child for child in below[name] if child not in seen]
        seen.update(new)
        found += new
        queue += new
    return found, below


def _parents_first(graph: TaskGraph, names: Sequence[str], below: Dict[str, List[str]]) -> Iterator[str]:
    waits = dict.fromkeys(names, 0)
    for name in names:
        for child in below[name]:
            waits[child] += 1
    queue = deque(name for name in names if not waits[name])
    while queue:
        name = queue.popleft()
        yield name
        for child in below[name]:
            waits[child] -= 1
            if not waits[child]:
                queue.append(child)


def hold_children(graph: TaskGraph, names: Iterable[str]) -> List[str]:
    """Make the children of ``names`` that were about to start wait for them again; return the names of those children.

    A child that another parent has meanwhile stopped becomes UPSTREAM_FAILED or SKIPPED instead.
    """
    children = (child.name for name in names for child in graph.children(name, ABOUT_TO_START))
    return [name for name in children if hold_if_blocked(graph, name)]


def hold_if_blocked(graph: TaskGraph, name: str) -> bool:
    """Make a task that is about to start wait for its parents, or stop it. Returns False if all parents allow it.

    Without this, a task that ran and failed while its parent was requeued would wait in RETRYING for ever.
    """
    task = graph.task(name)
    if task.state not in ABOUT_TO_START or not (graph.is_held(task) or _is_branch_skipped(graph, task)):
        return False
    graph.hold(task)
    reevaluate(graph, name)
    return True


def _is_branch_skipped(graph: TaskGraph, task: TaskNode) -> bool:
    """True if all parents have ended, and the task is of a branch that is not taken."""
    return derive_state(task.rule, graph.parents(task.name)).state == TaskState.SKIPPED


def reevaluate(graph: TaskGraph, name: str) -> str:
    """Recompute the state of a waiting task from its parents, then that of its descendants; return the task's state."""
    task = graph.task(name)
    if task.state not in WAITING:
        return task.state
    found = derive_state(task.rule, graph.parents(name), task.blocked_by)
    if found.state == TaskState.PENDING and task.state == TaskState.READY and not graph.is_held(task):
        return task.state
    _adopt(graph, task, found)
    if found.state != TaskState.PENDING:
        propagate(graph, name)
    return found.state


def _adopt(graph: TaskGraph, task: TaskNode, found: DerivedState) -> None:
    if (found.state, found.blocked_by) != (task.state, task.blocked_by):
        graph.apply(task, found)


# --- What an act makes of a task, for previews -----------------------------------------------------------------------

_ENDS = {
    str(TaskState.UPSTREAM_FAILED): "stopped",
    str(TaskState.SKIPPED): "skipped",
    str(TaskState.CANCELLED): "cancelled",
}
_ANSWERED = frozenset([TaskState.SUCCESS, TaskState.FAILED])  # of an approval
_BROUGHT_BACK = frozenset([TaskState.SKIPPED, TaskState.CANCELLED])  # by a task above

#: The kinds of change by an act, as ``change_kind`` returns them.
CHANGE_KINDS = ("run_again", "answered", "skipped", "cancelled", "unblocked", "held_back", "stopped")


def change_kind(before: str, after: str, is_target: bool) -> str:
    """The change of a task by an act: one of ``CHANGE_KINDS``. ``is_target``: the act named the task, and was done."""
    if after in _ENDS:
        return _ENDS[after]
    if before == TaskState.READY and after in _ANSWERED:
        return "answered"
    if before == TaskState.UPSTREAM_FAILED or (before in _BROUGHT_BACK and not is_target):
        return "unblocked"
    return "run_again" if is_target else "held_back"
