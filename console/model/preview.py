"""What a requeue or a skip would do, task by task, before the key is pressed.

The rules are those of SPEC 4.4 to 4.6 and of ``engine/store/operator.py``, on the picture alone: no question crosses
the wire, and the preview is there at once at any latency. A test does the same acts to real state files and compares.
The engine decides again when the act arrives, and its answer is what counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...engine.core.ledger import RULE_BITS, satisfied_bits, spec_of
from ...engine.core.liveness import LOST_HALFWAY
from ...engine.core.states import REQUEUE_FROM, SKIP_FROM, SkipCause, TaskState
from ...engine.store.acts import cannot
from .board import WAITS, Board


@dataclass(frozen=True, slots=True)
class Preview:
    """The exact lists, each in the order of the flow. The act itself touches the first seven; the others follow.

    ``may_go_on``: tasks that wait below and are held by nothing else once this is done. ``still_held``: (task, by whom)
    for those that are.
    """

    act: str
    run_again: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unblocked: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()  # about to start, and wait for a parent again
    stopped: tuple[str, ...] = ()
    stay_blocked: tuple[tuple[str, str | None], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    stale: tuple[str, ...] = ()  # ran before a parent that now runs again
    needed_by: tuple[tuple[str, str], ...] = ()  # (task, a child that cannot do without its result)
    may_go_on: tuple[str, ...] = ()
    still_held: tuple[tuple[str, str], ...] = ()


_FAILED = frozenset([TaskState.FAILED, TaskState.CANCELLED])
_ABOUT_TO_START = frozenset([TaskState.READY, TaskState.RETRYING, TaskState.SENSING])
_RAN = frozenset([TaskState.SUCCESS, TaskState.RUNNING])
_HOLDS = frozenset([TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.CANCELLED])


class _Fate(NamedTuple):
    state: TaskState
    skip_cause: str | None = None
    blocked_by: str | None = None


@dataclass(slots=True)
class _Trial:
    """The board with changes laid over it; the board itself is never touched."""

    board: Board
    changed: dict[str, _Fate] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def at(self, name: str) -> _Fate:
        row = self.board.row(name)
        return self.changed.get(name) or _Fate(row.state, row.skip_cause, row.blocked_by)

    def put(self, name: str, fate: _Fate) -> None:
        self.changed[name] = fate

    def children(self, name: str) -> Sequence[str]:
        return self.board.dag.children(name)

    def rule(self, name: str) -> str:
        return spec_of(self.board.row(name)).rule

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(names), key=lambda name: (self.board.row(name).position, name)))


def preview_requeue(
    board: Board, names: Iterable[str], cascade: bool = False, *, is_abandoned: bool = False
) -> Preview:
    """A new generation of each task; ``cascade``: also of what succeeded below. Raises KeyError for an unknown one.

    ``is_abandoned``: no executor lives, so what says RUNNING was lost and can be decided about.
    """
    trial = _Trial(board)
    again, blocked = [], []
    for name in dict.fromkeys(names):
        state = trial.at(name).state
        if state is TaskState.UPSTREAM_FAILED:
            blocked.append(name)
        elif state is TaskState.RUNNING and is_abandoned and not spec_of(board.row(name)).idempotent:
            trial.refused[name] = f"{LOST_HALFWAY}, once the run is resumed"
        elif state in REQUEUE_FROM or (state is TaskState.RUNNING and is_abandoned):
            trial.put(name, _Fate(TaskState.PENDING))
            again.append(name)
        else:
            trial.refused[name] = cannot("requeue", state)
    if cascade:
        again += _requeue_successes(trial, again)
    _unpropagate(trial, again)
    _hold_back(trial, again)
    stale = _stale(trial, again)
    for name in again:
        _reconsider(trial, name)
    for name in blocked:
        if trial.at(name).state is TaskState.UPSTREAM_FAILED:
            trial.refused[name] = f"blocked by {trial.at(name).blocked_by or 'a task above it'}: requeue or skip that"
    done = [*again, *(name for name in blocked if name not in trial.refused)]
    return _summed_up("requeue", trial, done, stale)


def preview_skip(board: Board, names: Iterable[str], *, is_abandoned: bool = False) -> Preview:
    """Permit the failure of each task: children may start. Raises KeyError for an unknown one."""
    trial = _Trial(board)
    skipped = []
    for name in dict.fromkeys(names):
        state = trial.at(name).state
        if state in SKIP_FROM or (state is TaskState.RUNNING and is_abandoned):
            trial.put(name, _Fate(TaskState.SKIPPED, SkipCause.OPERATOR))
            skipped.append(name)
        else:
            trial.refused[name] = cannot("skip", state)
    needed_by = tuple(_needs(trial, skipped))
    for name in skipped:
        _stop_strict_children(trial, name)
    _unpropagate(trial, skipped)
    return _summed_up("skip", trial, skipped, (), needed_by)


#: A child in one of these will not ask for the result of a parent.
_ASKS_NO_MORE = frozenset([TaskState.SUCCESS, TaskState.RUNNING, TaskState.SKIPPED, TaskState.CANCELLED])


def _needs(trial: _Trial, skipped: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Where the engine wants a substitute (SPEC 4.6)."""
    for name in skipped:
        for child in trial.children(name):
            spec = spec_of(trial.board.row(child))
            asks = trial.at(child).state not in _ASKS_NO_MORE and spec.rule != "all_success_strict"
            if asks and child not in skipped and name in spec.requires:
                yield name, child
                break


def _requeue_successes(trial: _Trial, names: Sequence[str]) -> list[str]:
    below = trial.board.dag.descendants(*names) if names else ()
    found = [name for name in below if trial.at(name).state is TaskState.SUCCESS]
    for name in found:
        trial.put(name, _Fate(TaskState.PENDING))
    return found


PREVIEWS: dict[str, Callable[..., Preview]] = {"requeue": preview_requeue, "skip": preview_skip}


# --- The rules -----------------------------------------------------------------------------------------------------


def _unpropagate(trial: _Trial, names: Iterable[str]) -> None:
    """Bring back what nothing stops any more; a diamond whose other side has failed stays."""
    places = trial.board.dag.places
    number = trial.board.dag.number
    for name in sorted(_derived_below(trial, names), key=lambda name: places[number[name]]):
        trial.put(name, _fate(trial, name))


def _derived_below(trial: _Trial, names: Iterable[str]) -> set[str]:
    """Descendants that are what they are because of somebody above, as far as they hang together."""
    found: set[str] = set()
    queue = deque(names)
    while queue:
        for child in trial.children(queue.popleft()):
            if child not in found and _is_derived(trial.at(child)):
                found.add(child)
                queue.append(child)
    return found


def _is_derived(fate: _Fate) -> bool:
    cascaded = fate.state is TaskState.SKIPPED and fate.skip_cause == SkipCause.CASCADE
    return cascaded or fate.state is TaskState.UPSTREAM_FAILED


def _fate(trial: _Trial, name: str) -> _Fate:
    """What its parents make of a task that has not started."""
    rule = trial.rule(name)
    if rule == "all_done":
        return _Fate(TaskState.PENDING)
    parents = [(parent, trial.at(parent)) for parent in trial.board.dag.parents(name)]
    causes = [cause for cause in (_cause(rule, parent, fate) for parent, fate in parents) if cause is not None]
    if causes:
        before = trial.at(name).blocked_by
        return _Fate(TaskState.UPSTREAM_FAILED, None, before if before in causes else causes[0])
    not_taken = [f for _, f in parents if f.state is TaskState.SKIPPED and f.skip_cause != SkipCause.OPERATOR]
    skipped = bool(parents) and len(not_taken) == len(parents) if rule == "none_failed" else bool(not_taken)
    return _Fate(TaskState.SKIPPED, SkipCause.CASCADE) if skipped else _Fate(TaskState.PENDING)


def _cause(rule: str, parent: str, fate: _Fate) -> str | None:
    """The failed ancestor that a parent stands for; None where it stops nothing."""
    if fate.state in _FAILED:
        return parent
    if fate.state is TaskState.UPSTREAM_FAILED:
        return fate.blocked_by or parent
    by_operator = fate.state is TaskState.SKIPPED and fate.skip_cause == SkipCause.OPERATOR
    return parent if by_operator and rule == "all_success_strict" else None


def _propagate_failure(trial: _Trial, name: str, cause: str) -> None:
    """Fail every waiting descendant whose rule can no longer be met."""
    queue = deque([name])
    while queue:
        for child in trial.children(queue.popleft()):
            waiting = trial.at(child).state in (TaskState.PENDING, TaskState.READY)
            if waiting and trial.rule(child) != "all_done":
                trial.put(child, _Fate(TaskState.UPSTREAM_FAILED, None, cause))
                queue.append(child)


def _stop_strict_children(trial: _Trial, name: str) -> None:
    for child in trial.children(name):
        waiting = trial.at(child).state in (TaskState.PENDING, TaskState.READY)
        if waiting and trial.rule(child) == "all_success_strict":
            trial.put(child, _Fate(TaskState.UPSTREAM_FAILED, None, name))
            _propagate_failure(trial, child, name)


def _hold_back(trial: _Trial, names: Iterable[str]) -> None:
    """Children that were about to start wait for their parent again, or are stopped if they lost another for good."""
    for name in names:
        for child in trial.children(name):
            if trial.at(child).state in _ABOUT_TO_START and _unmet(trial, child):
                trial.put(child, _Fate(TaskState.PENDING))
                _reconsider(trial, child)


def _unmet(trial: _Trial, name: str) -> bool:
    bit = RULE_BITS[trial.rule(name)]
    fates = [trial.at(parent) for parent in trial.board.dag.parents(name)]
    return any(not satisfied_bits(fate.state, fate.skip_cause) & bit for fate in fates)


def _stale(trial: _Trial, names: Sequence[str]) -> list[str]:
    """What ran, or runs, below: it did so before they ran again."""
    below = trial.board.dag.descendants(*names) if names else ()
    return [name for name in below if trial.at(name).state in _RAN and not trial.board.row(name).stale]


def _reconsider(trial: _Trial, name: str) -> None:
    """A waiting task gets the fate that its parents leave it, and hands it down."""
    state = trial.at(name).state
    if state not in (TaskState.PENDING, TaskState.READY):
        return
    fate = _fate(trial, name)
    if fate.state is TaskState.PENDING and state is TaskState.READY and not _unmet(trial, name):
        return
    trial.put(name, fate)
    if fate.state is TaskState.UPSTREAM_FAILED:
        _propagate_failure(trial, name, fate.blocked_by or name)
    elif fate.state is TaskState.SKIPPED:
        _cascade_skip(trial, name)


def _cascade_skip(trial: _Trial, name: str) -> None:
    queue = deque([name])
    while queue:
        for child in trial.children(queue.popleft()):
            if trial.at(child).state in (TaskState.PENDING, TaskState.READY):
                fate = _fate(trial, child)
                if fate.state is TaskState.SKIPPED:
                    trial.put(child, fate)
                    queue.append(child)


# --- The lists -----------------------------------------------------------------------------------------------------


_KINDS = ("run_again", "skipped", "unblocked", "held_back", "stopped")


def _summed_up(
    act: str, trial: _Trial, done: Sequence[str], stale: Iterable[str], needed_by: tuple[tuple[str, str], ...] = ()
) -> Preview:
    asked = set(done)
    lists: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for name, kind in _kinds(trial, asked):
        lists[kind].append(name)
    below = trial.board.dag.descendants(*done) if done else ()
    blocked = [(name, trial.at(name).blocked_by) for name in below if trial.at(name).state is TaskState.UPSTREAM_FAILED]
    go_on, still = _release(trial, below, asked)
    return Preview(
        act=act,
        **{kind: trial.in_order(names) for kind, names in lists.items()},
        stay_blocked=tuple(blocked),
        refused=tuple(trial.refused.items()),
        stale=trial.in_order(stale),
        needed_by=needed_by,
        may_go_on=go_on,
        still_held=still,
    )


def _kinds(trial: _Trial, asked: set[str]) -> Iterator[tuple[str, str]]:
    for name, fate in trial.changed.items():
        before = trial.board.row(name)
        if fate.state is before.state:
            continue
        if fate.state is TaskState.UPSTREAM_FAILED:
            yield name, "stopped"
        elif fate.state is TaskState.SKIPPED:
            yield name, "skipped"
        elif before.state is TaskState.UPSTREAM_FAILED or (before.state is TaskState.SKIPPED and name not in asked):
            yield name, "unblocked"
        else:
            yield name, "run_again" if name in asked else "held_back"


def _release(
    trial: _Trial, below: Sequence[str], asked: set[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Of what waits below: what nothing else holds, and what something else still does, with its name."""
    dag = trial.board.dag
    waiting = {name for name in below if name not in asked and trial.at(name).state in WAITS}
    left = sum(1 << dag.number[name] for name in waiting)
    held: dict[str, str] = {}
    for holder in _holders(trial) if left else ():
        below_holder = dag.below[dag.number[holder]] & left
        left ^= below_holder
        held.update((dag.names[number], holder) for number in _bits(below_holder))
        if not left:
            break
    return tuple(name for name in below if name in waiting and name not in held), tuple(sorted(held.items()))


def _holders(trial: _Trial) -> Iterator[str]:
    """What would hold others then; made one by one, as the first of ten thousand may hold all that is looked for."""
    yield from (name for name in trial.board.problems if trial.at(name).state in _HOLDS)
    yield from (name for name in trial.board.dag.names if trial.at(name).state is TaskState.CANCELLED)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
