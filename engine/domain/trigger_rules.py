"""May a task start, and what becomes of it when a parent ends: the table of trigger rules, and what follows from it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``VERDICTS`` is the whole rule. The ready queue, the guards in SQL, the propagation in a state file, the console's
preview of an act and the what-if read it, and hold no table of their own.
"""

from collections import deque
from enum import Enum
from typing import Collection, Deque, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .states import ABOUT_TO_START, OPEN, WAITING, SkipCause, TaskState


class Standing(Enum):
    """What a task is to its children."""

    SUCCEEDED = "succeeded"
    PERMITTED = "permitted"  # an operator skipped the task: the children may go on without its result
    NOT_TAKEN = "not taken"  # the task is on a branch that is not taken
    FAILED = "failed"  # the task failed, was cancelled, or was stopped by a task above
    OPEN = "open"  # the task still moves, or is a dead letter that waits for a human


class Verdict(Enum):
    """What one parent means for a child that has not started."""

    ALLOW = "allow"
    ALLOW_UNLESS_ALL = "allow, but skip the child when every parent stands so"
    WAIT = "wait"
    STOP = "stop"  # the child becomes UPSTREAM_FAILED
    SKIP = "skip"  # the child becomes SKIPPED, because its branch is not taken


ALL_SUCCESS = "all_success"
ALL_SUCCESS_STRICT = "all_success_strict"
NONE_FAILED = "none_failed"
ALL_DONE = "all_done"

_V = Verdict
_STANDINGS = (Standing.SUCCEEDED, Standing.PERMITTED, Standing.NOT_TAKEN, Standing.FAILED, Standing.OPEN)
_TABLE = (
    # rule of the child    parent: SUCCEEDED, PERMITTED, NOT_TAKEN, FAILED, OPEN
    (ALL_SUCCESS, (_V.ALLOW, _V.ALLOW, _V.SKIP, _V.STOP, _V.WAIT)),
    (ALL_SUCCESS_STRICT, (_V.ALLOW, _V.STOP, _V.SKIP, _V.STOP, _V.WAIT)),
    (NONE_FAILED, (_V.ALLOW, _V.ALLOW, _V.ALLOW_UNLESS_ALL, _V.STOP, _V.WAIT)),
    (ALL_DONE, (_V.ALLOW, _V.ALLOW, _V.ALLOW, _V.ALLOW, _V.WAIT)),
)

#: By rule of the child, then by standing of the parent.
VERDICTS: Dict[str, Dict[Standing, Verdict]] = {rule: dict(zip(_STANDINGS, row)) for rule, row in _TABLE}

#: The rules that a flow may name; the first is the default.
RULES: Tuple[str, ...] = tuple(VERDICTS)

_ALLOWS = frozenset([Verdict.ALLOW, Verdict.ALLOW_UNLESS_ALL])

#: The states of each standing. SKIPPED has two standings, by who skipped the task.
STATES_OF: Dict[Standing, FrozenSet[TaskState]] = {
    Standing.SUCCEEDED: frozenset([TaskState.SUCCESS]),
    Standing.PERMITTED: frozenset([TaskState.SKIPPED]),
    Standing.NOT_TAKEN: frozenset([TaskState.SKIPPED]),
    Standing.FAILED: frozenset([TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED]),
    Standing.OPEN: OPEN,
}
_STANDING_OF: Dict[str, Standing] = {state: standing for standing, states in STATES_OF.items() for state in states}

#: Tasks that are in these states because of a task above them; of SKIPPED, those that are skipped by CASCADE.
DERIVED = frozenset([TaskState.UPSTREAM_FAILED, TaskState.SKIPPED])


def standing_of(state: str, skip_cause: Optional[str]) -> Standing:
    """What a task in ``state`` is to its children. ``skip_cause`` counts in SKIPPED alone."""
    if state == TaskState.SKIPPED:
        return Standing.PERMITTED if skip_cause == SkipCause.OPERATOR else Standing.NOT_TAKEN
    return _STANDING_OF[state]


def verdict(rule: str, state: str, skip_cause: Optional[str]) -> Verdict:
    """What a parent in ``state`` means for a child with ``rule``."""
    return VERDICTS[rule][standing_of(state, skip_cause)]


def rules_with(standing: Standing, verdicts: Collection[Verdict] = _ALLOWS) -> FrozenSet[str]:
    """The rules under which a parent of ``standing`` means one of ``verdicts``; by default those that it satisfies."""
    return frozenset(rule for rule, row in VERDICTS.items() if row[standing] in verdicts)


_SATISFIED = {standing: rules_with(standing) for standing in Standing}


def satisfied_rules(state: str, skip_cause: Optional[str]) -> FrozenSet[str]:
    """The rules of children that a parent in ``state`` satisfies."""
    return _SATISFIED[standing_of(state, skip_cause)]


class Task(NamedTuple):
    """What of a task these rules read."""

    name: str
    state: str
    generation: int
    rule: str
    skip_cause: Optional[str]
    blocked_by: Optional[str]

    @property
    def is_derived(self) -> bool:
        """True for a task whose state follows from a task above it."""
        return self.state in DERIVED and (self.state != TaskState.SKIPPED or self.skip_cause == SkipCause.CASCADE)


class Fate(NamedTuple):
    """What a task without an end of its own is: PENDING, UPSTREAM_FAILED with ``blocked_by``, or SKIPPED."""

    state: TaskState
    skip_cause: Optional[str] = None
    blocked_by: Optional[str] = None


def is_satisfied(rule: str, parents: Iterable[Task]) -> bool:
    """True if every parent allows a child with ``rule`` to start."""
    return all(rule in satisfied_rules(parent.state, parent.skip_cause) for parent in parents)


def fate(rule: str, parents: Sequence[Task], blocked_by: Optional[str] = None) -> Fate:
    """What its parents make of a task that has not started.

    ``blocked_by``: who stops the task so far. That task stays the one to name while it is still a cause.
    """
    verdicts = [verdict(rule, parent.state, parent.skip_cause) for parent in parents]
    causes = [cause_of(parent) for parent, found in zip(parents, verdicts) if found is Verdict.STOP]
    if causes:
        return Fate(TaskState.UPSTREAM_FAILED, None, blocked_by if blocked_by in causes else causes[0])
    are_all_skipped = bool(verdicts) and all(found is Verdict.ALLOW_UNLESS_ALL for found in verdicts)
    if are_all_skipped or Verdict.SKIP in verdicts:
        return Fate(TaskState.SKIPPED, str(SkipCause.CASCADE))
    return Fate(TaskState.PENDING)


def cause_of(task: Task) -> str:
    """The task that is to be repaired where ``task`` stops its children: itself, or the one above that stopped it."""
    return task.blocked_by or task.name if task.state == TaskState.UPSTREAM_FAILED else task.name


# --- Over a graph --------------------------------------------------------------------------------------------------


class Graph(object):
    """What the functions below walk over and write to: a state file, a board under trial, or a replay.

    Every answer is of the present moment, with all that was written before.
    """

    def task(self, name: str) -> Task:
        """One task."""
        raise NotImplementedError

    def parents(self, name: str) -> Sequence[Task]:
        """The direct parents of a task, in the order of the flow."""
        raise NotImplementedError

    def children(self, name: str, states: Collection[str]) -> Sequence[Task]:
        """The direct children of a task that are in one of ``states``, in the order of the flow."""
        raise NotImplementedError

    def is_held(self, task: Task) -> bool:
        """True if a parent does not allow the task to start."""
        return not is_satisfied(task.rule, self.parents(task.name))

    def apply(self, task: Task, fate: Fate) -> None:
        """Write the fate of a task, which is another one than before."""
        raise NotImplementedError

    def hold(self, task: Task, parent: Optional[str]) -> None:
        """Make PENDING of a task that was about to start. ``parent``: who runs again; None where it is not told."""
        raise NotImplementedError


def propagate(graph: Graph, name: str) -> List[str]:
    """Hand the end of ``name`` down: stop or skip every waiting descendant that can no longer start.

    Returns the names of those descendants, nearest first. A dead letter, like all that is not over, changes nothing
    below it. Tasks that have started already keep their own end.
    """
    changed: List[str] = []
    queue: Deque[Task] = deque([graph.task(name)])
    while queue:
        parent = queue.popleft()
        for child in graph.children(parent.name, WAITING):
            found = _fate_below(graph, parent, child)
            if found.state != TaskState.PENDING:
                graph.apply(child, found)
                changed.append(child.name)
                queue.append(
                    child._replace(state=found.state, skip_cause=found.skip_cause, blocked_by=found.blocked_by)
                )
    return changed


def _fate_below(graph: Graph, parent: Task, child: Task) -> Fate:
    """What the end of one parent makes of a child; PENDING where it changes nothing."""
    found = verdict(child.rule, parent.state, parent.skip_cause)
    if found is Verdict.STOP:
        return Fate(TaskState.UPSTREAM_FAILED, None, cause_of(parent))
    if found in (Verdict.SKIP, Verdict.ALLOW_UNLESS_ALL):
        of_all = fate(child.rule, graph.parents(child.name))
        if of_all.state == TaskState.SKIPPED:
            return of_all
    return Fate(TaskState.PENDING)


def unpropagate(graph: Graph, names: Iterable[str]) -> List[str]:
    """Bring back the descendants of ``names`` that nothing stops any more; return their names.

    ``names`` have just left an end that stopped or skipped others. A diamond whose other side has failed stays
    UPSTREAM_FAILED, and ``blocked_by`` then names that side.
    """
    freed: List[str] = []
    for name in _parents_first(graph, *_derived_below(graph, names)):
        task = graph.task(name)
        found = fate(task.rule, graph.parents(name), task.blocked_by)
        _adopt(graph, task, found)
        if found.state == TaskState.PENDING:
            freed.append(name)
    return freed


def _derived_below(graph: Graph, names: Iterable[str]) -> Tuple[List[str], Dict[str, List[str]]]:
    """Derived descendants of ``names`` as far as they hang together, and the derived children of each task on the way.

    Of ``names`` themselves those that are derived: an undo puts such tasks back while their cause may be gone.
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


def _parents_first(graph: Graph, names: Sequence[str], below: Dict[str, List[str]]) -> Iterator[str]:
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


def hold_back(graph: Graph, names: Iterable[str]) -> List[str]:
    """Let the children of ``names`` that were about to start wait for them again; return the names of those children.

    A child that has meanwhile lost another parent for good is stopped instead.
    """
    children = ((child.name, name) for name in names for child in graph.children(name, ABOUT_TO_START))
    return [child for child, name in children if wait_again(graph, child, name)]


def wait_again(graph: Graph, name: str, parent: Optional[str] = None) -> bool:
    """Make a task that is about to start wait for its parents, or stop with them. False: all of them allow it.

    Without this, a task that ran while its parent was requeued, and failed, would wait in RETRYING for ever.
    """
    task = graph.task(name)
    if task.state not in ABOUT_TO_START or not graph.is_held(task):
        return False
    graph.hold(task, parent)
    reconsider(graph, name)
    return True


def reconsider(graph: Graph, name: str) -> str:
    """Give a waiting task the state that its parents leave it, and its descendants theirs; return that state."""
    task = graph.task(name)
    if task.state not in WAITING:
        return task.state
    found = fate(task.rule, graph.parents(name), task.blocked_by)
    if found.state == TaskState.PENDING and task.state == TaskState.READY and not graph.is_held(task):
        return task.state
    _adopt(graph, task, found)
    if found.state != TaskState.PENDING:
        propagate(graph, name)
    return found.state


def _adopt(graph: Graph, task: Task, found: Fate) -> None:
    if (found.state, found.blocked_by) != (task.state, task.blocked_by):
        graph.apply(task, found)
