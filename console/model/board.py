"""One run as the screen needs it: the fold, brought forward event by event, and what is counted along the way.

``apply`` costs the same for a flow of ten tasks and one of ten thousand: it touches what the event touched and answers
with what changed, so that a widget repaints a cell and not a screen. ``turn`` shows another moment of the same run, at
the cost of what is another one then. Nothing here asks for the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...engine.core.dag import Dag
from ...engine.core.explain import Surroundings, chain, pool_sizes, why
from ...engine.core.projection import RunFold, TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import FINISHED, NEEDS_HUMAN, NOT_STARTED, UNDER_WAY, TaskState
from ...engine.statefile.duration_stats import Usual
from ...engine.statefile.queries import BreakerRow, PageHead, PageRow
from .run_snapshot import Moment


@dataclass(slots=True)
class Delta:
    """What a batch of events changed. ``moves``: (task, state before, state after), in order."""

    tasks: set[str] = field(default_factory=set)
    moves: list[tuple[str, TaskState, TaskState]] = field(default_factory=list)
    run: bool = False
    problems: bool = False  # a task came to need a human, or no longer does
    beside: set[str] = field(default_factory=set)  # kinds of events that belong to no task: breaker, page, ...

    def __bool__(self) -> bool:
        return bool(self.tasks or self.run or self.beside)


class Board:
    """The picture of one run."""

    def __init__(self, fold: RunFold, before: Board | None = None) -> None:
        """``before``: the board of an older snapshot; if the graph is the same, what was laid out stays valid."""
        self.moment: Moment = Moment(fold) if before is None else before.moment.beside(fold)
        self.fold = fold
        same = before is not None and _same_graph(before.fold, fold)
        self.dag: Dag = before.dag if before is not None and same else _dag_of(fold)
        self.usual: Mapping[str, Usual] = {}  # how long tasks took in earlier runs, where that is known
        self.counts: Counter[TaskState] = Counter()
        self.ticking: set[str] = set()
        self._problems: set[int] = set()
        self._waiting = 0  # the tasks that wait, as bits
        for row in fold.tasks.values():
            self._enter(row)

    # --- Told by the session ---------------------------------------------------------------------------------------

    def apply(self, events: Iterable[Event]) -> Delta:
        """Take what came after the snapshot, in order; events that are in it already change nothing."""
        delta = Delta()
        for event in events:
            if event.seq > self.fold.seq:
                self._apply(event, delta)
        return delta

    def learn(self, breakers: Iterable[BreakerRow] = (), pages: Iterable[PageRow | PageHead] = ()) -> None:
        """Take what stands beside the run as rows of the tables: events told it before the snapshot was made."""
        self.moment.learn(breakers, pages)

    def turn(self, moment: Moment) -> Delta:
        """Show another moment of the same run; ``moment`` and its rows may be shown and changed by nobody else."""
        before, self.moment, self.fold = self.moment, moment, moment.fold
        delta = Delta(run=before.fold.run != moment.fold.run)
        if before.breakers != moment.breakers:
            delta.beside.add(EventKind.BREAKER)
        if before.page_notes != moment.page_notes:
            delta.beside.add(EventKind.PAGE)
        for name, row in moment.fold.tasks.items():
            was = before.fold.tasks[name]
            if was is not row and was != row:
                delta.tasks.add(name)
                if was.state is not row.state:
                    self._moved(row, was.state, delta)
        return delta

    def _apply(self, event: Event, delta: Delta) -> None:
        row = self.fold.tasks.get(event.task) if event.task is not None else None
        before = row.state if row is not None else None
        touched = self.moment.apply(event)
        if event.kind == EventKind.RUN and event.run_id == self.fold.run.run_id:
            delta.run = True
        elif touched is not None and before is not None:
            delta.tasks.add(touched.name)
            if touched.state is not before:
                self._moved(touched, before, delta)
        if event.kind in _BESIDE:
            delta.beside.add(event.kind)

    def _moved(self, row: TaskRow, before: TaskState, delta: Delta) -> None:
        delta.moves.append((row.name, before, row.state))
        delta.problems |= (before in NEEDS_HUMAN) != (row.state in NEEDS_HUMAN)
        self.counts[before] -= 1
        number = self.dag.number[row.name]
        self._problems.discard(number)
        self.ticking.discard(row.name)
        self._waiting &= ~(1 << number)
        self._enter(row)

    def _enter(self, row: TaskRow) -> None:
        self.counts[row.state] += 1
        if row.state in UNDER_WAY:
            self.ticking.add(row.name)
        if row.state in NEEDS_HUMAN:
            self._problems.add(self.dag.number[row.name])
        if row.state in NOT_STARTED:
            self._waiting |= 1 << self.dag.number[row.name]

    # --- Asked by the screen ---------------------------------------------------------------------------------------

    def row(self, name: str) -> TaskRow:
        """One task."""
        return self.fold.tasks[name]

    def state(self, number: int) -> TaskState:
        """The state of a task by its number in ``dag``."""
        return self.fold.tasks[self.dag.names[number]].state

    @property
    def total(self) -> int:
        """How many tasks the run has."""
        return len(self.fold.tasks)

    @property
    def finished(self) -> int:
        """How many have done what they should, or need not."""
        return sum(self.counts[state] for state in FINISHED)

    @property
    def dead_letters(self) -> int:
        """How many wait for a human's decision."""
        return self.counts[TaskState.DEAD_LETTER]

    @property
    def problems(self) -> list[str]:
        """Tasks that need a human, parents first."""
        return list(self.dag.named(sorted(self._problems, key=self.dag.places.__getitem__)))

    def next_problem(self, after: str | None, step: int = 1) -> str | None:
        """The next task in topological order that needs a human, round and round; None if there is none.

        ``step`` -1 goes backwards. ``after`` itself is the answer only if it is the one problem.
        """
        place = self.dag.places
        found = sorted(self._problems, key=place.__getitem__, reverse=step < 0)
        if not found:
            return None
        if after is not None:
            here = place[self.dag.number[after]]
            found.sort(key=lambda number: (place[number] - here) * step <= 0)
        return self.dag.names[found[0]]

    def front(self) -> str | None:
        """Where the run is now: the task that started last among those running, else the one due next."""
        rows = [self.row(name) for name in self.ticking]
        running = [row for row in rows if row.state is TaskState.RUNNING]
        if running:
            return max(running, key=lambda row: (row.started_at or 0, row.position)).name
        due = [row for row in rows if row.next_retry_at is not None]
        return min(due, key=lambda row: (row.next_retry_at or 0, row.position)).name if due else None

    def held_by(self, *names: str) -> int:
        """How many distinct tasks wait below these."""
        below, own = 0, 0
        for name in names:
            number = self.dag.number[name]
            below |= self.dag.below[number]
            if self.row(name).state in NOT_STARTED:
                own |= 1 << number
        return (below & ~own & self._waiting).bit_count()

    def held_names(self, *names: str) -> tuple[str, ...]:
        """The tasks that wait below these, in the order of the flow."""
        return tuple(name for name in self.dag.descendants(*names) if self.row(name).state in NOT_STARTED)

    def related(self, name: str) -> set[tuple[str, str]]:
        """The edges above and below a task: (parent, child)."""
        edges: set[tuple[str, str]] = set()
        for side in ((*self.dag.ancestors(name), name), (name, *self.dag.descendants(name))):
            inside = set(side)
            edges.update((parent, child) for child in side for parent in self.dag.parents(child) if parent in inside)
        return edges

    def pools(self) -> dict[str, PoolUse]:
        """What each pool is used for, by whom."""
        uses = {name: PoolUse(name, slots) for name, slots in pool_sizes(self.fold).items()}
        for name in self.ticking:
            row = self.row(name)
            spec = spec_of(row)
            if row.state is TaskState.RUNNING and spec.pool in uses:
                uses[spec.pool].holders.append((name, spec.pool_slots, row.started_at or 0))
        for use in uses.values():
            use.holders.sort(key=lambda holder: holder[2])
        return uses

    def why(self, name: str, now_us: int, executor_gone_at: int | None = None) -> str:
        """Why this task is not running, in one sentence."""
        return why(self.fold, name, now_us, self._surroundings(executor_gone_at))

    def chain(self, name: str, now_us: int, executor_gone_at: int | None = None) -> tuple[tuple[str, str], ...]:
        """(task, sentence) from the task to what really holds it."""
        return chain(self.fold, name, now_us, self._surroundings(executor_gone_at))

    def _surroundings(self, executor_gone_at: int | None) -> Surroundings:
        return Surroundings(self.moment.breakers, executor_gone_at, self.moment.page_notes)


def _dag_of(fold: RunFold) -> Dag:
    return Dag((name, fold.parents.get(name, ())) for name in fold.tasks)


def _same_graph(one: RunFold, other: RunFold) -> bool:
    return list(one.tasks) == list(other.tasks) and one.parents == other.parents


@dataclass(slots=True)
class PoolUse:
    """``holders``: (task, slots, since when), the longest first."""

    name: str
    slots: int
    holders: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def used(self) -> int:
        """Slots in use."""
        return sum(slots for _, slots, _ in self.holders)


_BESIDE = frozenset(
    [
        EventKind.EXECUTOR,
        EventKind.BREAKER,
        EventKind.PAGE,
        EventKind.QUARANTINE,
        EventKind.STORAGE,
        EventKind.CLOCK,
        EventKind.OPERATOR,
    ]
)
