"""Decide which task starts next. Each move of a task updates its children alone, not the whole run.

The queue is a cache: ``store/runs.py: ready_audit`` computes the same from the state file, and the promotion to READY
is guarded in SQL once more. Tasks start longest-remaining-path first, so that the critical path of the run never waits
behind short work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from ..domain.events import EventKind
from ..domain.states import APPROVAL, MOVING, TIMED, TaskState
from ..domain.trigger_rules import satisfied_rules
from .projection import RunProjection, TaskRow
from .spec import DaskOptions, DownstreamSpec, TaskSpec, json_object, rule_of_edge

#: (pool, downstream, is a retry of a task with a downstream, ``worker_pool``).
#: Tasks that wait for the same capacity share a lane.
Lane = tuple[str | None, str | None, bool, str | None]

_NONE: frozenset[str] = frozenset()


class ReadyQueue:
    """The startable tasks of one run, by lane and priority, with the counts of its states.

    A task is *startable* if only capacity keeps it from starting: it is READY, or PENDING with all parents satisfied,
    or its timer (retry, recheck, not-before) is due. Once the run is over, a clean-up waits for all tasks above its
    parents as well: the deadline ends a parent that has not started before it ends the attempt above that parent.
    """

    def __init__(self, projection: RunProjection, remaining_seconds: Mapping[str, float]) -> None:
        self._projection = projection
        self._remaining_seconds = remaining_seconds
        self.counts: Counter[TaskState] = Counter()
        self.unmet_counts: dict[str, int] = {}
        self.promotable: set[str] = set()
        self.due: set[str] = set()  # RETRYING or SENSING with a timer that is due
        self.claiming: set[str] = set()  # popped, and the claim is not committed yet
        self.pool_used: Counter[str] = Counter()
        self._deferred: set[str] = set()  # PENDING until a not-before
        self._early: set[str] = set()  # clean-ups of a run that is over, above whose parents a task has not ended
        self._satisfied: dict[str, frozenset[str]] = {}  # by task: the rules of children that it satisfies, if any
        self._lanes: dict[Lane, list[tuple[float, int, str]]] = {}
        self._enqueued: set[str] = set()
        self._rebuild()

    def _rebuild(self) -> None:
        """Count the unmet parents, then add the tasks that may be startable: of a new run few are."""
        tasks, parents = self._projection.tasks, self._projection.parents
        self.unmet_counts = {name: len(parents.get(name, ())) for name in tasks}
        moved = [row for row in tasks.values() if row.state is not TaskState.PENDING]
        for row in moved:
            self._satisfy(row)
        self.counts[TaskState.PENDING] = len(tasks) - len(moved)
        for name, unmet in self.unmet_counts.items():
            if not unmet and tasks[name].state is TaskState.PENDING:
                self._refresh(tasks[name])
        for row in moved:
            self._add(row)

    def _satisfy(self, row: TaskRow) -> None:
        rules = self._satisfied[row.name] = self._rules_of(row)
        for child in self._projection.children.get(row.name, ()) if rules else ():
            self.unmet_counts[child] -= rule_of_edge(spec_of(self._projection.tasks[child]), row.name) in rules

    def _rules_of(self, row: TaskRow) -> frozenset[str]:
        """Return the rules of children that a task satisfies now."""
        return satisfied_rules(row.state, row.skip_cause, self._projection.run.is_over)

    def _count_unmet(self, row: TaskRow) -> None:
        spec, parents = spec_of(row), self._projection.parents.get(row.name, ())
        unmet = (parent for parent in parents if rule_of_edge(spec, parent) not in self._satisfied.get(parent, ()))
        self.unmet_counts[row.name] = sum(1 for _ in unmet)

    # --- Updates by the executor -----------------------------------------------------------------------------------

    def apply_event(self, kind: str, row: TaskRow, old: TaskState) -> None:
        """Update the queue after an event of a task that the projection holds already. ``old``: its state before."""
        if kind == EventKind.MAPPED:
            self.apply_mapping(row)
        elif kind == EventKind.TASK or row.state is not old or row.state is TaskState.SKIPPED:
            self.apply_move(row, old)  # of a skipped task, who skipped it may have changed

    def apply_mapping(self, task: TaskRow) -> None:
        """Update the queue after a map task got other children, which the projection holds already."""
        tasks = self._projection.tasks
        added = [tasks[name] for name in self._projection.parents[task.name] if name not in self.unmet_counts]
        for row in added:
            self._count_unmet(row)
            self._add(row)
        self._count_unmet(task)
        self._refresh(task)

    def apply_move(self, row: TaskRow, old: TaskState) -> None:
        """Update the queue after a move that the projection holds already."""
        self.counts[old] -= 1
        if old is TaskState.RUNNING:
            self._use_pool(row, -1)
        self._add(row)
        self._update_children(row)
        if self._early:
            self._refresh_all(self._early)

    def apply_over(self) -> None:
        """Update the queue after a change of whether the run is over: a dead letter counts as ended then."""
        for row in self._projection.tasks.values():
            if row.state is TaskState.DEAD_LETTER:
                self._update_children(row)
        self._refresh_all(self.promotable | self._early)

    def _refresh_all(self, names: Iterable[str]) -> None:
        for name in tuple(names):
            self._refresh(self._projection.tasks[name])

    def _update_children(self, row: TaskRow) -> None:
        before, now = self._satisfied.get(row.name, _NONE), self._rules_of(row)
        if before == now:
            return
        self._satisfied[row.name] = now
        for name in self._projection.children.get(row.name, ()):
            child = self._projection.tasks[name]
            rule = rule_of_edge(spec_of(child), row.name)
            if (rule in before) is not (rule in now):
                self.unmet_counts[name] += -1 if rule in now else 1
                self._refresh(child)

    def defer(self, name: str) -> None:
        """Keep a PENDING task out of the queue until ``mark_due``."""
        self._deferred.add(name)
        self._refresh(self._projection.tasks[name])

    def mark_due(self, name: str) -> None:
        """Make a task startable whose timer is due."""
        self._deferred.discard(name)
        row = self._projection.tasks[name]
        if row.state in TIMED:
            self.due.add(name)
        self._refresh(row)

    def release_claims(self, names: Iterable[str]) -> None:
        """End the claims of tasks after a commit or a failure. Tasks that are still startable return to the queue."""
        for name in names:
            row = self._projection.tasks[name]
            if name in self.claiming:
                self.claiming.discard(name)
                self._use_pool(row, -1)
            self._refresh(row)

    # --- Queries by the executor -----------------------------------------------------------------------------------

    def pop_startable(self, count: int, admits: Callable[[TaskRow], bool]) -> list[str]:
        """Claim and return up to ``count`` startable tasks in the order in which they should start.

        ``admits`` is called before each claim; a lane that it refuses once is skipped for the rest of the call.
        """
        picked: list[str] = []
        lanes = set(self._lanes)
        while len(picked) < count and lanes:
            best = self._best_lane(lanes)
            if best is None:
                break
            name = self._lanes[best][0][2]
            if not admits(self._projection.tasks[name]):
                lanes.discard(best)
                continue
            heappop(self._lanes[best])
            self._enqueued.discard(name)
            self.claim(name)
            picked.append(name)
        return picked

    def claim(self, name: str) -> None:
        """Claim a startable task out of order."""
        self.claiming.add(name)
        self._use_pool(self._projection.tasks[name], +1)

    def _best_lane(self, lanes: set[Lane]) -> Lane | None:
        best: Lane | None = None
        for lane in lanes:
            entries = self._lanes[lane]
            while entries and not self._is_startable(self._projection.tasks[entries[0][2]]):
                self._enqueued.discard(heappop(entries)[2])
            if entries and (best is None or entries[0] < self._lanes[best][0]):
                best = lane
        return best

    def startable_like(self, row: TaskRow, limit: int) -> int:
        """Count the startable tasks that wait for the same capacity as a task, at most up to ``limit``."""
        names = (name for _, _, name in self._lanes.get(lane_of(row), ()))
        startable = (name for name in names if self._is_startable(self._projection.tasks[name]))
        return sum(1 for _ in islice(startable, limit))

    def startable_for(self, downstream: str) -> list[str]:
        lanes = (entries for lane, entries in self._lanes.items() if lane[1] == downstream)
        names = (name for entries in lanes for _, _, name in entries)
        return [name for name in names if self._is_startable(self._projection.tasks[name])]

    def held_for(self, downstream: str) -> list[str]:
        """Return the tasks that wait for a downstream: those that could start, then those that wait for a retry."""
        startable = self.startable_for(downstream)
        waiting = (row for row in self._projection.tasks.values() if row.state is TaskState.RETRYING)
        others = [row.name for row in waiting if row.name not in self.due and spec_of(row).downstream == downstream]
        return [*startable, *others]

    def unblocked_by(self, name: str) -> dict[str, int]:
        """Return the children that are READY once this parent succeeds, with their generations."""
        if self._projection.run.is_over:
            return {}
        children = (self._projection.tasks[child] for child in self._projection.children.get(name, ()))
        return {
            row.name: row.generation for row in children if self.unmet_counts[row.name] == 1 and self._is_unstarted(row)
        }

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return tasks in the order in which they should start."""
        return sorted(names, key=lambda name: self._priority(self._projection.tasks[name]))

    def _priority(self, row: TaskRow) -> tuple[float, int, str]:
        return (-self._remaining_seconds.get(row.name, 0.0), row.position, row.name)

    def _is_unstarted(self, row: TaskRow) -> bool:
        return row.state is TaskState.PENDING and row.name not in self._deferred

    @property
    def has_startable(self) -> bool:
        """True if a task waits for a slot; the task may wait for a pool or a breaker as well."""
        return self._best_lane(set(self._lanes)) is not None

    @property
    def active_count(self) -> int:
        """Count the tasks that need no operator to continue: running, ready, waiting for a timer, promotable."""
        counts = self.counts
        timed = sum(counts[state] for state in TIMED) + len(self._deferred)
        return counts[TaskState.RUNNING] + counts[TaskState.READY] + timed + len(self.promotable)

    # --- Internals -------------------------------------------------------------------------------------------------

    def _add(self, row: TaskRow) -> None:
        self.counts[row.state] += 1
        if row.state is TaskState.RUNNING:
            self._use_pool(row, +1)
        if row.state is not TaskState.PENDING:
            self._deferred.discard(row.name)
        self.due.discard(row.name)
        self._refresh(row)

    def _use_pool(self, row: TaskRow, sign: int) -> None:
        spec = spec_of(row)
        if spec.pool is not None:
            self.pool_used[spec.pool] += sign * spec.pool_slots

    def _refresh(self, row: TaskRow) -> None:
        """Update ``promotable``, and push the task onto its lane if it is startable and not there yet."""
        name = row.name
        is_allowed = self.unmet_counts[name] == 0 and self._is_unstarted(row)
        is_early = is_allowed and unended_above(self._projection, name) is not None
        (self._early.add if is_early else self._early.discard)(name)
        if is_allowed and not is_early:
            self.promotable.add(name)
        elif name in self.promotable:
            self.promotable.remove(name)
            if not self.promotable:
                self.promotable = set()  # to iterate over an emptied set takes as long as over the full one
        if self._is_startable(row) and name not in self._enqueued:
            self._enqueued.add(name)
            heappush(self._lanes.setdefault(lane_of(row), []), self._priority(row))

    def _is_startable(self, row: TaskRow) -> bool:
        if row.name in self.claiming or self.unmet_counts[row.name] or is_approval(row):
            return False
        return row.state is TaskState.READY or row.name in self.promotable or row.name in self.due


def unended_above(projection: RunProjection, name: str) -> str | None:
    """Return a task above a clean-up that has not ended, once the run is over; None: it may start by its parents."""
    queue = [*projection.parents.get(name, ())] if projection.run.is_over else []
    seen = set(queue)
    while queue:
        above = queue.pop()
        if projection.tasks[above].state in MOVING:
            return above
        new = [parent for parent in projection.parents.get(above, ()) if parent not in seen]
        seen.update(new)
        queue += new
    return None


def spec_of(row: TaskRow) -> TaskSpec:
    """Return the spec of a row; a default spec if the file holds none."""
    if row.spec is None:
        row.spec = TaskSpec(row.name)
    return row.spec


def is_approval(row: TaskRow) -> bool:
    """Return whether an operator decides about the task: no executor starts it."""
    return row.spec is not None and row.spec.kind == APPROVAL


def lane_of(row: TaskRow) -> Lane:
    """Return the capacity, besides a slot, that a task waits for."""
    spec = spec_of(row)
    waits_for_budget = spec.downstream is not None and is_retry(row)
    return (spec.pool, spec.downstream, waits_for_budget, worker_pool(spec))


def worker_pool(spec: TaskSpec) -> str | None:
    """Return what the Dask workers that may run a task must have, in words; empty: any may. None: it runs here."""
    if spec.isolation != "dask":
        return None
    options = spec.dask or DaskOptions()
    needs = [f"{name}={amount:g}" for name, amount in options.resources]
    return " ".join([*needs, *options.workers, *([f"priority={options.priority}"] if options.priority else [])])


def is_retry(row: TaskRow) -> bool:
    """True if the next attempt repeats a failed one: the budget of its downstream pays for it."""
    return row.failures + row.refusals > 0


# --- Read the flow of a run from the state file: ``run.options`` and the spec of each task ---------------------------


_DOWNSTREAM_FIELDS = frozenset(DownstreamSpec.__struct_fields__) - {"rules"}


def declared_downstreams(options: str) -> Iterator[DownstreamSpec]:
    """Yield the downstreams that a flow declares. ``options``: JSON; unreadable options declare none."""
    for one in json_object(options).get("downstreams") or ():
        yield DownstreamSpec(**{name: value for name, value in one.items() if name in _DOWNSTREAM_FIELDS})


def downstreams_of(declared: Iterable[DownstreamSpec], tasks: Iterable[TaskSpec]) -> dict[str, DownstreamSpec]:
    """Return the downstreams of a run by name, as its flow declares them or its tasks name them."""
    found = {spec.name: spec for spec in declared}
    for name in map(downstream_of, tasks):
        if name is not None and name not in found:
            found[name] = DownstreamSpec(name)
    return found


def downstream_of(spec: TaskSpec) -> str | None:
    """Return the downstream that a task calls; of a map task, that its children call."""
    return spec.map.child.downstream if spec.map else spec.downstream
