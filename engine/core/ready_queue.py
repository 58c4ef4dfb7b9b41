"""Who may start next: kept up to date move by move, so that a finished task costs its children and nothing more.

The ledger is a cache of what SQL can prove at any time (``store/runs.py: ready_audit``); the promotion to READY is
guarded in SQL once more. Ready tasks start longest-remaining-path first, so that the run's critical path never waits
behind short work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from ..domain.states import TIMED, TaskState
from ..domain.trigger_rules import satisfied_rules
from .projection import RunProjection, TaskRow
from .spec import TaskSpec

#: (pool, downstream, retry of a downstream's task, name where max_active is set): who waits for the same shares a lane.
Lane = tuple[str | None, str | None, bool, str | None]
Admits = Callable[[TaskRow], bool]


class ReadyQueue:
    """Counts, readiness and order of one run.

    A task is *startable* when nothing but capacity keeps it from being claimed: it is READY, or PENDING with all of its
    parents satisfied, or its instant (retry, next look, not-before) has come.
    """

    def __init__(self, fold: RunProjection, remaining_seconds: Mapping[str, float]) -> None:
        self._fold = fold
        self._remaining = remaining_seconds
        self.counts: Counter[TaskState] = Counter()
        self.unmet_counts: dict[str, int] = {}
        self.promotable: set[str] = set()
        self.due: set[str] = set()  # RETRYING or SENSING, and their instant has come
        self.claiming: set[str] = set()  # picked, and the claim is not committed yet
        self.pool_used: Counter[str] = Counter()
        self._not_yet: set[str] = set()  # PENDING with a not-before that has not come
        self._satisfied: dict[str, frozenset[str]] = {}  # the rules of children that each task satisfies
        self._lanes: dict[Lane, list[tuple[float, int, str]]] = {}
        self._offered: set[str] = set()
        self._rebuild()

    def _rebuild(self) -> None:
        tasks = self._fold.tasks
        for name, row in tasks.items():
            self._satisfied[name] = satisfied_rules(row.state, row.skip_cause)
        for name, row in tasks.items():
            rule = spec_of(row).rule
            parents = self._fold.parents.get(name, ())
            self.unmet_counts[name] = sum(1 for parent in parents if rule not in self._satisfied[parent])
        for row in tasks.values():
            self._enter(row)

    # --- Told by the executor --------------------------------------------------------------------------------------

    def apply_move(self, row: TaskRow, old: TaskState) -> None:
        """Take one move that is already in the fold."""
        self._leave(row, old)
        self._enter(row)
        before, now = self._satisfied[row.name], satisfied_rules(row.state, row.skip_cause)
        if before != now:
            self._satisfied[row.name] = now
            for child_name in self._fold.children.get(row.name, ()):
                self._recount(self._fold.tasks[child_name], before, now)

    def defer(self, name: str) -> None:
        """A PENDING task has an instant that must come first."""
        self._not_yet.add(name)
        self._consider(self._fold.tasks[name])

    def mark_due(self, name: str) -> None:
        """The instant of a task has come."""
        self._not_yet.discard(name)
        row = self._fold.tasks[name]
        if row.state in TIMED:
            self.due.add(name)
        self._consider(row)

    def release_claims(self, names: Iterable[str]) -> None:
        """The claims of these are settled, one way or the other: offer again what is still startable."""
        for name in names:
            row = self._fold.tasks[name]
            if name in self.claiming:
                self.claiming.discard(name)
                self._use_pool(row, -1)
            self._consider(row)

    # --- Asked by the executor -------------------------------------------------------------------------------------

    def pop_startable(self, count: int, admits: Admits) -> list[str]:
        """Up to ``count`` startable tasks in the order in which they should start; they are being claimed from now on.

        ``admits`` is asked before each pick; a lane that it refuses once is left alone for this time.
        """
        picked: list[str] = []
        lanes = set(self._lanes)
        while len(picked) < count and lanes:
            best = self._best_lane(lanes)
            if best is None:
                break
            name = self._lanes[best][0][2]
            if not admits(self._fold.tasks[name]):
                lanes.discard(best)
                continue
            heappop(self._lanes[best])
            self._offered.discard(name)
            self.claim(name)
            picked.append(name)
        return picked

    def claim(self, name: str) -> None:
        """Pick this one out of its turn: it is startable, and is being claimed from now on."""
        self.claiming.add(name)
        self._use_pool(self._fold.tasks[name], +1)

    def _best_lane(self, lanes: set[Lane]) -> Lane | None:
        best: Lane | None = None
        for lane in lanes:
            entries = self._lanes[lane]
            while entries and not self._is_startable(self._fold.tasks[entries[0][2]]):
                self._offered.discard(heappop(entries)[2])
            if entries and (best is None or entries[0] < self._lanes[best][0]):
                best = lane
        return best

    def startable_for(self, downstream: str) -> list[str]:
        """Everybody who would call a downstream now if it could."""
        lanes = (entries for lane, entries in self._lanes.items() if lane[1] == downstream)
        names = (name for entries in lanes for _, _, name in entries)
        return [name for name in names if self._is_startable(self._fold.tasks[name])]

    def unblocked_by(self, name: str) -> dict[str, int]:
        """The children that wait for nothing but this running parent, with their generations: READY if it succeeds."""
        children = (self._fold.tasks[child] for child in self._fold.children.get(name, ()))
        return {row.name: row.generation for row in children if self.unmet_counts[row.name] == 1 and self._is_free(row)}

    def _is_free(self, row: TaskRow) -> bool:
        return row.state is TaskState.PENDING and row.name not in self._not_yet

    @property
    def has_startable(self) -> bool:
        """Somebody waits for a slot; perhaps for a pool or a breaker besides."""
        return self._best_lane(set(self._lanes)) is not None

    @property
    def active_count(self) -> int:
        """Tasks that will do something without an operator: running, ready, waiting for an instant, promotable."""
        counts = self.counts
        timed = sum(counts[state] for state in TIMED) + len(self._not_yet)
        return counts[TaskState.RUNNING] + counts[TaskState.READY] + timed + len(self.promotable)

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _recount(self, child: TaskRow, before: frozenset[str], now: frozenset[str]) -> None:
        rule = spec_of(child).rule
        if (rule in before) is not (rule in now):
            self.unmet_counts[child.name] += -1 if rule in now else 1
            self._consider(child)

    def _enter(self, row: TaskRow) -> None:
        self.counts[row.state] += 1
        if row.state is TaskState.RUNNING:
            self._use_pool(row, +1)
        if row.state is not TaskState.PENDING:
            self._not_yet.discard(row.name)
        self.due.discard(row.name)
        self._consider(row)

    def _leave(self, row: TaskRow, old: TaskState) -> None:
        self.counts[old] -= 1
        if old is TaskState.RUNNING:
            self._use_pool(row, -1)

    def _use_pool(self, row: TaskRow, sign: int) -> None:
        spec = spec_of(row)
        if spec.pool is not None:
            self.pool_used[spec.pool] += sign * spec.pool_slots

    def _consider(self, row: TaskRow) -> None:
        """Keep ``promotable`` right, and offer the task in its lane if it is startable and not there yet."""
        name = row.name
        if self.unmet_counts[name] == 0 and self._is_free(row):
            self.promotable.add(name)
        else:
            self.promotable.discard(name)
        if self._is_startable(row) and name not in self._offered:
            self._offered.add(name)
            entry = (-self._remaining.get(name, 0.0), row.position, name)
            heappush(self._lanes.setdefault(lane_of(row), []), entry)

    def _is_startable(self, row: TaskRow) -> bool:
        if row.name in self.claiming or self.unmet_counts[row.name]:
            return False
        return row.state is TaskState.READY or row.name in self.promotable or row.name in self.due


def spec_of(row: TaskRow) -> TaskSpec:
    """The spec of a row, or a plain one where the file holds none."""
    if row.spec is None:
        row.spec = TaskSpec(row.name)
    return row.spec


def lane_of(row: TaskRow) -> Lane:
    """What a startable task may have to wait for besides a slot."""
    spec = spec_of(row)
    is_retry = spec.downstream is not None and row.failures > 0
    return (spec.pool, spec.downstream, is_retry, spec.name if spec.max_active is not None else None)
