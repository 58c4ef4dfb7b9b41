"""One run as the screen shows it: the projection, updated by each event, with counts of its tasks.

``apply`` costs the same for ten tasks and ten thousand: it returns exactly what an event changed, so that a widget
repaints cells and not the screen. ``seek`` shows another snapshot of the same run. No clock is read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ...engine.core.dag import Dag, bits_of
from ...engine.core.explain import blocking_chain, explain_task
from ...engine.core.projection import RunProjection, TaskRow
from ...engine.core.ready_queue import is_approval
from ...engine.core.spec import collector_paused
from ...engine.core.views import CountedState, OperatorPrompt, TaskView, counted_state, task_view
from ...engine.core.waiting import (
    ALIVE,
    ExplainContext,
    RunnerStatus,
    WaitReason,
    needs_human,
    wait_of,
    waits_for_approval,
)
from ...engine.domain import states
from ...engine.domain.events import Event, EventKind
from ...engine.domain.liveness import TaskUsage
from ...engine.domain.rows import BreakerRow, PageRow, RunSummary
from ...engine.statefile.durations import DurationStats
from .snapshot import RunSnapshot

#: An instant at which every timer is due: a retry that is held by a breaker is held also before it is due.
_ANY_TIME_US = 2**62


class Delta(msgspec.Struct):
    """The changes by a batch of events. ``moves``: (task, counted before as, counted now as), in order."""

    tasks: set[str] = set()
    moves: list[tuple[str, CountedState, CountedState]] = []
    is_run_changed: bool = False
    is_graph_changed: bool = False  # tasks were added
    are_problems_changed: bool = False  # the set of tasks that need a human changed
    other_kinds: set[str] = set()  # kinds of events without a task: breaker, page, ...

    def __bool__(self) -> bool:
        return bool(self.tasks or self.is_run_changed or self.other_kinds)


class BoardUpdate(msgspec.Struct, frozen=True):
    """The events of all runs of the file since the last update, and the changes of this board by them."""

    delta: Delta
    events: Sequence[Event]


class Board:
    """The state of one run."""

    def __init__(self, projection: RunProjection, before: Board | None = None) -> None:
        """``before``: the board of an older projection; if the graph is the same, its layout stays valid."""
        self.snapshot: RunSnapshot = (
            RunSnapshot(projection) if before is None else before.snapshot.with_projection(projection)
        )
        self.projection = projection
        same = before is not None and _same_graph(before.projection, projection)
        self.dag: Dag = before.dag if before is not None and same else _dag_of(projection)
        self.duration_stats: Mapping[str, DurationStats] = {}  # of earlier runs, by task
        self._count_all()

    def _count_all(self) -> None:
        self._clear_found()
        self._approvals = dict.fromkeys(row.name for row in self.projection.tasks.values() if is_approval(row))
        self.counts: Counter[CountedState] = Counter()
        self.active: set[str] = set()
        self.timed: set[str] = set()  # tasks whose words may change without an event
        self._problems: set[int] = set()
        self._dead: list[str] | None = None  # until a task moves: a frame asks for them for each of its lists
        self.noticed: set[str] = set()  # open tasks that are later than expected
        self.usage: Mapping[str, TaskUsage] = {}  # by running task; empty while no screen shows it
        for row in self.projection.tasks.values():
            self._count(row)
        waiting = (row.name for row in self.projection.tasks.values() if row.state in states.NOT_STARTED)
        self._waiting_bits = bits_of(map(self.dag.number.__getitem__, waiting), len(self.dag))

    def _clear_found(self) -> None:
        """Clear what was found of an earlier state of the run."""
        self._holders: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, WaitReason] | None = None  # a frame asks for it for the inbox and for its badge

    # --- Updates by the session ------------------------------------------------------------------------------------

    def apply(self, events: Iterable[Event]) -> Delta:
        """Apply events in order; events that the projection contains already are skipped."""
        delta = Delta()
        self._clear_found()
        for event in events:
            if event.seq > self.projection.seq:
                self._apply(event, delta)
        return delta

    def update_lists(self, breakers: Iterable[BreakerRow] = (), pages: Iterable[PageRow] = ()) -> None:
        """Update breakers and pages from rows of their tables; their events came before the projection was loaded."""
        self._clear_found()
        self.snapshot.update_lists(breakers, pages)

    def seek(self, snapshot: RunSnapshot) -> Delta:
        """Show another snapshot of the same run. The board takes ownership of it and its rows."""
        before, self.snapshot, self.projection = self.snapshot, snapshot, snapshot.projection
        self._clear_found()
        delta = Delta(is_run_changed=before.projection.run != snapshot.projection.run)
        if before.breakers != snapshot.breakers:
            delta.other_kinds.add(EventKind.BREAKER)
        if before.page_notes != snapshot.page_notes:
            delta.other_kinds.add(EventKind.PAGE)
        if before.projection.tasks.keys() != snapshot.projection.tasks.keys():
            self._use_graph(delta)
            return delta
        for name, row in snapshot.projection.tasks.items():
            was = before.projection.tasks[name]
            if was is not row and was != row:
                delta.tasks.add(name)
                self._update_noticed(row)
                if was.state is not row.state:
                    self._apply_move(row, was.state, delta)
        return delta

    def _apply(self, event: Event, delta: Delta) -> None:
        row = self.projection.tasks.get(event.task) if event.task is not None else None
        before = row.state if row is not None else None
        touched = self.snapshot.apply(event)
        if touched is not None and event.kind == EventKind.MAPPED:
            self._use_graph(delta)
        if event.kind == EventKind.RUN and event.run_id == self.projection.run.run_id:
            delta.is_run_changed = True
        elif touched is not None and before is not None:
            delta.tasks.add(touched.name)
            self._update_noticed(touched)
            if touched.state is not before:
                self._apply_move(touched, before, delta)
        if event.kind in _KINDS_WITHOUT_TASK:
            delta.other_kinds.add(event.kind)

    def _use_graph(self, delta: Delta) -> None:
        """Use the tasks and edges that the projection has now."""
        delta.is_graph_changed = delta.are_problems_changed = True
        self.dag = _dag_of(self.projection)
        self._count_all()

    def _apply_move(self, row: TaskRow, before: states.TaskState, delta: Delta) -> None:
        is_asked = before is states.TaskState.READY and row.name in self._approvals
        counted: CountedState = OperatorPrompt.APPROVAL if is_asked else before
        delta.moves.append((row.name, counted, counted_state(row)))
        delta.are_problems_changed |= (before in states.NEEDS_HUMAN) != (row.state in states.NEEDS_HUMAN)
        self.counts[counted] -= 1
        number = self.dag.number[row.name]
        self._problems.discard(number)
        self._dead = None
        self.active.discard(row.name)
        self.timed.discard(row.name)
        self._waiting_bits &= ~(1 << number)
        if row.state in states.NOT_STARTED:
            self._waiting_bits |= 1 << number
        self._count(row)

    def _count(self, row: TaskRow) -> None:
        self.counts[counted_state(row)] += 1
        if row.state in states.UNDER_WAY:
            self.active.add(row.name)
        has_time = row.state is states.TaskState.PENDING and row.next_retry_at is not None
        if row.state in states.UNDER_WAY or row.state is states.TaskState.READY or has_time:
            self.timed.add(row.name)
        if row.state in states.NEEDS_HUMAN:
            self._problems.add(self.dag.number[row.name])
        if row.notice is not None:
            self._update_noticed(row)

    def _update_noticed(self, row: TaskRow) -> None:
        if row.notice is not None and row.state in states.MOVING:
            self.noticed.add(row.name)
        else:
            self.noticed.discard(row.name)

    # --- Queries by the screen -------------------------------------------------------------------------------------

    def row(self, name: str) -> TaskRow:
        """The row of a task."""
        return self.projection.tasks[name]

    @property
    def summary(self) -> RunSummary:
        """The run as lists have it."""
        stored: Counter[str] = Counter()
        for state, count in self.counts.items():
            stored[str(states.TaskState.READY if state is OperatorPrompt.APPROVAL else state)] += count
        return RunSummary(self.projection.run, stored, self.counts[OperatorPrompt.APPROVAL])

    @property
    def total(self) -> int:
        """The number of tasks."""
        return len(self.projection.tasks)

    @property
    def finished(self) -> int:
        """The number of tasks that succeeded or were skipped."""
        return sum(self.counts[state] for state in states.FINISHED)

    @property
    def dead_letters(self) -> int:
        """The number of tasks that wait for a human's decision."""
        return self.counts[states.TaskState.DEAD_LETTER]

    @property
    def problems(self) -> list[str]:
        """The tasks that need a human, parents first."""
        return list(self.dag.names_of(sorted(self._problems, key=self.dag.topological_index.__getitem__)))

    @property
    def asked(self) -> list[str]:
        """The tasks that wait for an approval now."""
        if self.projection.run.ended_at is not None:
            return []
        return [name for name in self._approvals if waits_for_approval(self.projection.tasks[name])]

    @property
    def undecided(self) -> list[str]:
        """The tasks that wait for a decision: dead letters, then approvals."""
        if self._dead is None:
            failed = map(self.row, self.dag.names_of(self._problems))
            self._dead = [row.name for row in failed if row.state is states.TaskState.DEAD_LETTER]
        return [*self._dead, *self.asked]

    def held_tasks(self) -> Mapping[str, WaitReason]:
        """Return the tasks that could start if a human ended their wait, and those that nothing will start."""
        if self._held is None:
            self._held = self._find_held()
        return self._held

    def _find_held(self) -> dict[str, WaitReason]:
        run, now_us = self.projection.run, _ANY_TIME_US
        tasks = self.projection.tasks.items() if self.counts[states.TaskState.CANCELLED] else ()
        late = {name: WaitReason.DEADLINE for name, row in tasks if row.is_ended_by_deadline}
        shut = any(one.breaker.needs_operator for one in self.snapshot.breakers.values())
        late.update(dict.fromkeys(self.asked, WaitReason.APPROVAL))
        is_blocked = run.blocked_since is not None
        # a pause that nothing outlasts: also before the engine pages for it, and after a requeue in it
        is_held_by_pause = run.paused_since is not None and (is_blocked or not self.counts[states.TaskState.RUNNING])
        is_stranded = is_blocked and not self.dead_letters  # held by a breaker, by a pause, or by nothing
        if run.ended_at is not None or not (shut or is_held_by_pause or is_stranded):
            return late
        context, found = self._explain_context(ALIVE), late
        for name, row in self.projection.tasks.items():
            can_start = row.state in states.ABOUT_TO_START or row.state in states.WAITING
            reason = wait_of(self.projection, name, now_us, context) if can_start else None
            if reason is not None and needs_human(reason) and (reason is not WaitReason.PAUSE or is_held_by_pause):
                found[name] = reason
        return found

    def next_problem(self, after: str | None, step: int = 1) -> str | None:
        """Return the next task in topological order that needs a human, cyclically; None if there is none.

        ``step`` -1 searches backwards. Returns ``after`` only if it is the one problem.
        """
        place = self.dag.topological_index
        found = sorted(self._problems, key=place.__getitem__, reverse=step < 0)
        if not found:
            return None
        if after is not None:
            here = place[self.dag.number[after]]
            found.sort(key=lambda number: (place[number] - here) * step <= 0)
        return self.dag.names[found[0]]

    def starting_task(self) -> str | None:
        """Return the task that the screens start on: of the dead letters, else of the failed tasks, the first with the
        most frequent failure; else what asks for an approval; else what runs; else what is held; else what failed most,
        or the first."""
        problems = [self.row(name) for name in self.problems]
        dead = [row for row in problems if row.state is states.TaskState.DEAD_LETTER]
        if problems:
            failures = Counter(row.failure_fingerprint for row in dead or problems)
            return max(dead or problems, key=lambda row: failures[row.failure_fingerprint]).name
        for names in (self.asked, filter(None, [self.current_task()]), self.held_tasks()):
            if (name := next(iter(names), None)) is not None:
                return name
        return max(self.dag.order, key=lambda name: self.row(name).failures, default=None)

    def current_task(self) -> str | None:
        """Return the running task that started last, or else the task that is due next."""
        rows = [self.row(name) for name in self.active]
        running = [row for row in rows if row.state is states.TaskState.RUNNING]
        if running:
            return max(running, key=lambda row: (row.started_at or 0, row.position)).name
        due = [row for row in rows if row.next_retry_at is not None]
        return min(due, key=lambda row: (row.next_retry_at or 0, row.position)).name if due else None

    def waiting_below(self, *names: str) -> int:
        """Return the number of distinct descendants that have not started."""
        numbers = [self.dag.number[name] for name in names]
        own = 0
        for name, number in zip(names, numbers, strict=True):
            if self.row(name).state in states.NOT_STARTED:
                own |= 1 << number
        return (self.dag.bits_below(*numbers) & ~own & self._waiting_bits).bit_count()

    def names_waiting_below(self, *names: str) -> tuple[str, ...]:
        """Return the descendants that have not started, in the order of the flow."""
        return tuple(name for name in self.dag.descendants(*names) if self.row(name).state in states.NOT_STARTED)

    def related_edges(self, name: str) -> set[tuple[str, str]]:
        """Return the edges (parent, child) between a task and its ancestors and descendants."""
        edges: set[tuple[str, str]] = set()
        for side in ((*self.dag.ancestors(name), name), (name, *self.dag.descendants(name))):
            inside = set(side)
            edges.update((parent, child) for child in side for parent in self.dag.parents(child) if parent in inside)
        return edges

    def explain(self, name: str, now_us: int, runner: RunnerStatus) -> str:
        """Explain in one sentence why a task is not running."""
        return explain_task(self.projection, name, now_us, self._explain_context(runner))

    def view(self, name: str, now_us: int, runner: RunnerStatus) -> TaskView:
        """The task at an instant."""
        return task_view(self.projection, name, now_us, self._explain_context(runner))

    def blocking_chain(self, name: str, now_us: int, runner: RunnerStatus) -> tuple[tuple[str, str], ...]:
        """Return (task, sentence) from the task up to the task that blocks it in the end."""
        return blocking_chain(self.projection, name, now_us, self._explain_context(runner))

    def waits(self, names: Iterable[str], now_us: int) -> dict[str, WaitReason | None]:
        """The waits of tasks, by name."""
        context = self._explain_context(ALIVE)
        return {name: wait_of(self.projection, name, now_us, context) for name in names}

    def _explain_context(self, runner: RunnerStatus) -> ExplainContext:
        known = self.active, self.undecided, self._holders
        return ExplainContext(self.snapshot.breakers, runner, self.snapshot.page_notes, *known)


def _dag_of(projection: RunProjection) -> Dag:
    with collector_paused():
        return Dag((name, projection.parents.get(name, ())) for name in projection.tasks)


def _same_graph(one: RunProjection, other: RunProjection) -> bool:
    return list(one.tasks) == list(other.tasks) and one.parents == other.parents


_KINDS_WITHOUT_TASK = frozenset(
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
