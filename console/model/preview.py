"""What a requeue or a skip would do, task by task, before the key is pressed.

The rules are those of SPEC 4.4 to 4.6 (``engine/domain/trigger_rules.py``), on the picture alone: no question crosses
the wire, and the preview is there at once at any latency. A test does the same acts to real state files and compares.
The engine decides again when the act arrives, and its answer is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...engine.core.ready_queue import spec_of
from ...engine.domain import trigger_rules
from ...engine.domain.acts import cannot
from ...engine.domain.liveness import LOST_HALFWAY
from ...engine.domain.states import (
    ENDED_BADLY,
    NEEDS_NO_RESULT,
    NOT_STARTED,
    RAN,
    REQUEUE_FROM,
    SKIP_FROM,
    SkipCause,
    TaskState,
)
from ...engine.domain.trigger_rules import Fate, Graph, Standing, Task, rules_with
from .board import Board


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


@dataclass(slots=True)
class _Trial(Graph):
    """The board with changes laid over it; the board itself is never touched."""

    board: Board
    changed: dict[str, Fate] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def at(self, name: str) -> Fate:
        row = self.board.row(name)
        return self.changed.get(name) or Fate(row.state, row.skip_cause, row.blocked_by)

    def put(self, name: str, fate: Fate) -> None:
        self.changed[name] = fate

    def rule(self, name: str) -> str:
        return spec_of(self.board.row(name)).rule

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(names), key=lambda name: (self.board.row(name).position, name)))

    def task(self, name: str) -> Task:
        fate, generation = self.at(name), self.board.row(name).generation
        return Task(name, fate.state, generation, self.rule(name), fate.skip_cause, fate.blocked_by)

    def parents(self, name: str) -> list[Task]:
        return [self.task(parent) for parent in self.board.dag.parents(name)]

    def children(self, name: str, states: Collection[str]) -> list[Task]:
        return [self.task(child) for child in self.board.dag.children(name) if self.at(child).state in states]

    def apply(self, task: Task, fate: Fate) -> None:
        self.put(task.name, fate)

    def hold(self, task: Task, parent: str | None) -> None:
        self.put(task.name, Fate(TaskState.PENDING))


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
            trial.put(name, Fate(TaskState.PENDING))
            again.append(name)
        else:
            trial.refused[name] = cannot("requeue", state)
    if cascade:
        again += _requeue_successes(trial, again)
    trigger_rules.unpropagate(trial, again)
    trigger_rules.hold_back(trial, again)
    stale = _stale(trial, again)
    for name in again:
        trigger_rules.reconsider(trial, name)
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
            trial.put(name, Fate(TaskState.SKIPPED, SkipCause.OPERATOR))
            skipped.append(name)
        else:
            trial.refused[name] = cannot("skip", state)
    needed_by = tuple(_needs(trial, skipped))
    for name in skipped:
        trigger_rules.propagate(trial, name)
    trigger_rules.unpropagate(trial, skipped)
    return _summed_up("skip", trial, skipped, (), needed_by)


_GOES_ON_WITHOUT = rules_with(Standing.PERMITTED)


def _needs(trial: _Trial, skipped: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Where the engine wants a substitute (SPEC 4.6)."""
    for name in skipped:
        for child in trial.board.dag.children(name):
            spec = spec_of(trial.board.row(child))
            asks = trial.at(child).state not in NEEDS_NO_RESULT and spec.rule in _GOES_ON_WITHOUT
            if asks and child not in skipped and name in spec.requires:
                yield name, child
                break


def _requeue_successes(trial: _Trial, names: Sequence[str]) -> list[str]:
    below = trial.board.dag.descendants(*names) if names else ()
    found = [name for name in below if trial.at(name).state is TaskState.SUCCESS]
    for name in found:
        trial.put(name, Fate(TaskState.PENDING))
    return found


def _stale(trial: _Trial, names: Sequence[str]) -> list[str]:
    """What ran, or runs, below: it did so before they ran again."""
    below = trial.board.dag.descendants(*names) if names else ()
    return [name for name in below if trial.at(name).state in RAN and not trial.board.row(name).stale]


PREVIEWS: dict[str, Callable[..., Preview]] = {"requeue": preview_requeue, "skip": preview_skip}


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
    waiting = {name for name in below if name not in asked and trial.at(name).state in NOT_STARTED}
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
    yield from (name for name in trial.board.problems if trial.at(name).state in ENDED_BADLY)
    yield from (name for name in trial.board.dag.names if trial.at(name).state is TaskState.CANCELLED)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
