"""A preview of a requeue or a skip, task by task, before the command is sent.

The rules are those of SPEC 4.4 to 4.6 (``engine/domain/trigger_rules.py``), applied to the board: the preview needs no
request and is immediate at any latency. A dry run (``engine/statefile/dry_run.py``) takes 7 to 40 times the processor
time, up to seconds, on the run's host, and an agent sends no event meanwhile: too much for each rest of the cursor. A
test compares both on real state files. The engine decides again when the command arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...engine.core.dag import bits_of
from ...engine.core.deadline import passed_reason
from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import is_approval, spec_of
from ...engine.core.spec import rule_of_edge
from ...engine.core.waiting import HOLDERS_MAX
from ...engine.domain import acts, trigger_rules
from ...engine.domain.elements import FOLLOWING, GONE, describe_following
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.states import (
    LOST_HALFWAY,
    MOVING,
    NEEDS_HUMAN,
    NEEDS_NO_RESULT,
    PAUSED_NOTE,
    RAN,
    WAITING,
    SkipCause,
    TaskState,
    describe_blocked,
    describe_doubts,
    effect_key,
    may_have_happened,
)
from ...engine.domain.trigger_rules import DerivedState, ParentStatus, TaskGraph, TaskNode, rules_with
from .board import Board


@dataclass(slots=True)
class _Overlay(TaskGraph):
    """The board with changes on top; the board itself does not change."""

    board: Board
    changed: dict[str, DerivedState] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def at(self, name: str) -> DerivedState:
        row = self.board.row(name)
        return self.changed.get(name) or DerivedState(row.state, row.skip_cause, row.blocked_by)

    def put(self, name: str, derived: DerivedState) -> None:
        self.changed[name] = derived

    def rule(self, name: str) -> str:
        return spec_of(self.board.row(name)).rule

    def in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(set(names), key=lambda name: (self.board.row(name).position, name)))

    def task(self, name: str) -> TaskNode:
        derived, generation = self.at(name), self.board.row(name).generation
        return TaskNode(name, derived.state, generation, self.rule(name), derived.skip_cause, derived.blocked_by)

    def parents(self, name: str) -> list[TaskNode]:
        return [self._over_edge(parent, name, parent) for parent in self.board.dag.parents(name)]

    def children(self, name: str, states: Collection[str]) -> list[TaskNode]:
        children = [child for child in self.board.dag.children(name) if self.at(child).state in states]
        return [self._over_edge(child, child, name) for child in children]

    def _over_edge(self, name: str, child: str, parent: str) -> TaskNode:
        return self.task(name)._replace(edge_rule=rule_of_edge(spec_of(self.board.row(child)), parent))

    def apply(self, task: TaskNode, derived: DerivedState) -> None:
        self.put(task.name, derived)

    def hold(self, task: TaskNode) -> None:
        self.put(task.name, DerivedState(TaskState.PENDING))


def preview_requeue(
    board: Board, names: Iterable[str], *, is_abandoned: bool = False, of_rows: bool = False
) -> acts.ActPreview:
    """Preview a new generation of each task. Raises KeyError for an unknown task.

    ``is_abandoned``: no executor lives, so tasks in RUNNING were lost and may be requeued. ``of_rows``: each task runs
    over quarantined rows alone.
    """
    overlay, act = _Overlay(board), "requeue-rows" if of_rows else "requeue"
    again, blocked = [], []
    for name in dict.fromkeys(names):
        state = overlay.at(name).state
        if state is TaskState.UPSTREAM_FAILED:
            blocked.append(name)
        elif state is TaskState.RUNNING and is_abandoned and not spec_of(board.row(name)).idempotent:
            overlay.refused[name] = f"{LOST_HALFWAY}, once the run is resumed"
        elif (why := refusal_of(board, act, name, is_abandoned=is_abandoned)) is not None:
            overlay.refused[name] = why
        else:
            overlay.put(name, DerivedState(TaskState.PENDING))
            again.append(name)
    maps = list(dict.fromkeys(follower for name in again for follower in _followers(board, name)))
    follow = [name for name in maps if overlay.at(name).state in FOLLOWING]
    for name in follow:
        overlay.put(name, DerivedState(TaskState.PENDING))
    again += follow
    _restart_cancelled(overlay, again)
    trigger_rules.unpropagate(overlay, again)
    trigger_rules.hold_children(overlay, again)
    stale = _stale_descendants(overlay, again)
    for name in again:
        trigger_rules.reevaluate(overlay, name)
    for name in blocked:
        if overlay.at(name).state is TaskState.UPSTREAM_FAILED:
            overlay.refused[name] = describe_blocked(overlay.at(name).blocked_by)
    targets = [*again, *(name for name in blocked if name not in overlay.refused)]
    notes = [
        *_doubts(board, again),
        *_lifted_deadline(board, bool(targets)),
        *(_note_of_list(overlay, name) for name in maps),
    ]
    return _summarize(overlay, targets, notes, stale)


def _followers(board: Board, name: str) -> Iterator[str]:
    """Yield the map tasks over a task, and those over these (``statefile/map_tasks.py``)."""
    for task in board.dag.children(name):
        mapping = spec_of(board.row(task)).map
        is_over = mapping is not None and mapping.over == name
        if is_over and (_children_of(board, task) or board.row(task).state in FOLLOWING):
            yield task
            yield from _followers(board, task)


def _children_of(board: Board, task: str) -> list[TaskRow]:
    """Return the children that a map task has had, also of elements that are gone."""
    over = spec_of(board.row(task)).map
    names = () if over is None else board.dag.children(over.over)
    return [row for name in names if (item := spec_of(row := board.row(name)).item) and item.task == task]


def _note_of_list(overlay: _Overlay, task: str) -> str:
    board = overlay.board
    happened = [row for row in _children_of(board, task) if row.state is TaskState.SUCCESS and spec_of(row).effect]
    below = [name for name in board.dag.descendants(task) if not spec_of(board.row(name)).effect]
    later = sum(overlay.at(name).state is TaskState.SUCCESS for name in below)
    return describe_following(task, len(happened), later)


def preview_skip(board: Board, names: Iterable[str], *, is_abandoned: bool = False) -> acts.ActPreview:
    """Preview the permission of a failure: children may start. Raises KeyError for an unknown task."""
    overlay = _Overlay(board)
    skipped = []
    for name in dict.fromkeys(names):
        if (why := refusal_of(board, "skip", name, is_abandoned=is_abandoned)) is not None:
            overlay.refused[name] = why
        else:
            overlay.put(name, DerivedState(TaskState.SKIPPED, SkipCause.OPERATOR))
            skipped.append(name)
    needed_by = tuple(_children_needing_result(overlay, skipped))
    for name in skipped:
        trigger_rules.propagate(overlay, name)
    _restart_cancelled(overlay, skipped)
    trigger_rules.unpropagate(overlay, skipped)
    return _summarize(overlay, skipped, _lifted_deadline(board, bool(skipped)))._replace(needed_by=needed_by)


#: The acts that have one.
PREVIEWS: Mapping[str, Callable[..., acts.ActPreview]] = {"requeue": preview_requeue, "skip": preview_skip}


def refusal_of(board: Board, act: str, name: str, *, is_abandoned: bool = False) -> str | None:
    """Why an act is not offered for the state of a task, in the words of the engine; None if it is."""
    row, run, spec = board.row(name), board.projection.run, spec_of(board.row(name))
    is_settled = row.state is TaskState.RUNNING and is_abandoned and act in ("requeue", "skip")
    is_repeated = row.state is TaskState.SUCCESS and spec.effect
    facts = acts.TaskFacts(
        state=TaskState.RETRYING if is_settled else row.state,
        has_run=bool(row.attempt),
        has_instant=row.next_retry_at is not None,
        is_approval=is_approval(row),
        is_gone=spec.item is not None and spec.item.index == GONE,
        is_ending=row.cancel_requested_at is not None,
        is_lost=is_abandoned,
        is_paused=run.paused_since is not None,
        timeout_us=None if row.latest is None else row.latest.timeout_us,
        repeated_key=effect_key(run.run_id, name, row.key_generation) if is_repeated else None,
        requeued=" before" if row.generation else "",
    )
    return acts.task_refusal(act, facts)


def refusal(
    preview: acts.ActPreview | None, board: Board, act: str, names: Sequence[str], **options: bool
) -> str | None:
    """Why an act would change none of these tasks: the first reason; None if it would change one.

    ``preview``: of a requeue or a skip; ``options``: of ``refusal_of``.
    """
    if preview is not None:
        found = [(one.task, one.sentence) for one in preview.refused]
        return f"{found[0][0]}: {found[0][1]}" if found and not preview.ok else None
    whys = [(name, refusal_of(board, act, name, **options)) for name in names]
    return None if any(why is None for _, why in whys) else f"{whys[0][0]}: {whys[0][1]}"


_RULES_PERMITTING_FAILURE = rules_with(ParentStatus.PERMITTED)


def _children_needing_result(overlay: _Overlay, skipped: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (task, child) where the child needs the result of a skipped task (SPEC 4.6)."""
    for name in skipped:
        for child in overlay.board.dag.children(name):
            spec = spec_of(overlay.board.row(child))
            is_permitted = rule_of_edge(spec, name) in _RULES_PERMITTING_FAILURE
            needs_result = overlay.at(child).state not in NEEDS_NO_RESULT and is_permitted
            if needs_result and child not in skipped and name in spec.requires:
                yield name, child
                break


def _restart_cancelled(overlay: _Overlay, names: Sequence[str]) -> None:
    """Run the descendants again that the deadline of the run has cancelled (``statefile/requeue.py``)."""
    below = overlay.board.dag.descendants(*names) if names else ()
    late = [name for name in below if overlay.board.row(name).is_ended_by_deadline]
    late = [name for name in late if name not in overlay.changed]
    for name in late:
        overlay.put(name, DerivedState(TaskState.PENDING))
    for name in late:
        trigger_rules.reevaluate(overlay, name)


def _lifted_deadline(board: Board, is_acted: bool) -> tuple[str, ...]:
    passed = passed_reason(board.projection.run)
    return (f"{passed}: it goes on without one",) if passed is not None and is_acted else ()


def _stale_descendants(overlay: _Overlay, names: Sequence[str]) -> list[str]:
    """Return the descendants that ran or run with the old results."""
    below = overlay.board.dag.descendants(*names) if names else ()
    return [name for name in below if overlay.at(name).state in RAN and not overlay.board.row(name).stale]


def _doubts(board: Board, names: Iterable[str]) -> tuple[str, ...]:
    doubts = doubtful_tasks(board, names)
    return (describe_doubts(doubts),) if doubts else ()


def doubtful_tasks(board: Board, names: Iterable[str]) -> list[tuple[str, str | None]]:
    """The tasks of ``names`` that may have happened, each with the key of its effect."""
    doubts: list[tuple[str, str | None]] = []
    for name in names:
        row = board.row(name)
        if may_have_happened(row.state, row.dead_letter_kind):
            key = effect_key(board.projection.run.run_id, name, row.key_generation)
            doubts.append((name, key if spec_of(row).effect else None))
    return doubts


def lost_tasks(board: Board) -> tuple[list[str], list[str]]:
    """The tasks that ran when their executor was lost: those that run again, and those that may have happened."""
    running = [row for row in board.projection.tasks.values() if row.state is TaskState.RUNNING]
    is_safe = {row.name: spec_of(row).idempotent for row in running}
    return [name for name in is_safe if is_safe[name]], [name for name in is_safe if not is_safe[name]]


# --- Lists --------------------------------------------------------------------------------------------------------


def _summarize(
    overlay: _Overlay, targets: Sequence[str], notes: Sequence[str], stale: Iterable[str] = ()
) -> acts.ActPreview:
    chosen = set(targets)
    if targets and overlay.board.projection.run.paused_since is not None:
        notes = [*notes, PAUSED_NOTE]
    lists: dict[str, list[str]] = {}
    for name, derived in overlay.changed.items():
        before = overlay.board.row(name).state
        if derived.state is not before:
            lists.setdefault(trigger_rules.change_kind(before, derived.state, name in chosen), []).append(name)
    below = overlay.board.dag.descendants(*targets) if targets else ()
    in_order: dict[str, Any] = {kind: overlay.in_order(names) for kind, names in lists.items()}
    results = [acts.TargetResult(name, acts.REFUSED, sentence) for name, sentence in overlay.refused.items()]
    stopped = (name for name in below if overlay.at(name).state is TaskState.UPSTREAM_FAILED)
    blocked = [(name, overlay.at(name).blocked_by) for name in stopped]
    waiting = {name for name in (*targets, *below) if overlay.at(name).state in WAITING}
    stopped_too = [name for name in targets if overlay.at(name).state is TaskState.UPSTREAM_FAILED]
    held = _holders(overlay, waiting)
    held += tuple((name, (overlay.at(name).blocked_by or "a task above it",)) for name in stopped_too)
    released = waiting.difference(chosen, dict(held))
    return acts.ActPreview(
        bool(targets),
        "",
        results,
        stay_blocked=blocked,
        stale=overlay.in_order(stale),
        held=held,
        notes=notes,
        released=overlay.in_order(released),
        **in_order,
    )


def _holders(overlay: _Overlay, names: set[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return those of ``names`` that cannot start before a human decides about dead letters, each with the first such.

    Each rule waits for a dead letter, so what waits below one waits for it, over any number of waiting tasks.
    """
    dag = overlay.board.dag
    wanted = bits_of(map(dag.number.__getitem__, names), len(dag))
    held: dict[str, tuple[str, ...]] = {}
    for holder in overlay.in_order(overlay.board.problems if wanted else ()):
        if overlay.at(holder).state is TaskState.DEAD_LETTER and dag.bits_below(dag.number[holder]) & wanted:
            queue = [holder]
            while queue:
                for name in dag.children(queue.pop()):
                    holders = held.get(name, ())
                    is_new = holder not in holders and len(holders) < HOLDERS_MAX
                    if is_new and overlay.at(name).state in WAITING:
                        held[name] = (*holders, holder)
                        queue.append(name)
    return tuple(sorted((name, holders) for name, holders in held.items() if name in names))


# --- The progress of a requeue of many tasks, from the event of the act and the present rows of its tasks ------------


class RedriveProgress(NamedTuple):
    """The progress of a redrive. ``unstarted``: tasks that can still be taken back; ``last_at``: the last instant."""

    total: int
    started: int
    under_way: int
    failed_again: int
    unstarted: tuple[str, ...]
    rate: float  # starts per second; 0: no limit
    last_at: int | None  # microseconds UTC; None if no task waits for an instant

    @property
    def is_over(self) -> bool:
        """Whether all its tasks have ended, or moved on."""
        return not self.unstarted and not self.under_way


def latest_redrive(events: Iterable[Event]) -> Event | None:
    """The last event of a requeue of several tasks; None if there is none."""
    found = None
    for event in events:
        acted = event.payload
        if isinstance(acted, OperatorActed) and acted.act == "requeue" and len(list(requeued_names(acted))) > 1:
            found = event
    return found


def requeued_names(acted: OperatorActed) -> Iterator[str]:
    """The tasks that an act requeued, without those that it only unblocked."""
    for task, outcome, _ in acted.answer.get("results") or ():
        before = acted.was.get(task)
        if outcome == acts.DONE and before is not None:
            yield task


def progress_of(acted: OperatorActed, board: Board) -> RedriveProgress:
    """The progress of a requeue on the board. A task that was requeued again, or taken back, is not counted."""
    unstarted: list[str] = []
    total = started = under_way = failed = 0
    last_at: int | None = None
    for name in requeued_names(acted):
        row = board.projection.tasks.get(name)
        if row is None or row.generation != int(acted.was[name]["generation"]) + 1:
            continue
        total += 1
        latest = row.latest
        has_started = latest is not None and latest.generation == row.generation
        started += has_started
        if not has_started and row.state in WAITING:
            unstarted.append(name)
            last_at = max(last_at or 0, row.next_retry_at or 0) or None
        elif has_started:
            under_way += row.state in MOVING
            failed += row.state in NEEDS_HUMAN
    rate = acted.options.get("rate_per_second")
    return RedriveProgress(
        total,
        started,
        under_way,
        failed,
        tuple(unstarted),
        float(rate) if isinstance(rate, int | float) else 0.0,
        last_at,
    )
