"""The state of a run as a projection of its events; the executor, the console and the tests share it.

``RunProjection`` starts from the rows of a new run or of a snapshot; ``RunProjection.apply`` applies each later event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from ..domain import event_payloads as payloads
from ..domain.elements import GONE
from ..domain.events import KILL_STEPS, Event, EventKind
from ..domain.rows import RunRow
from ..domain.states import DEADLINE_MODE, RunState, TaskState
from ..domain.task_options import child_position
from .dag import distinct
from .outcome import reason_of_unstored, unstored_reason
from .spec import TaskSpec, child_spec, positions_of

#: What is read of the tasks that succeeded, most of a large run: all; or their state and counts alone.
Successes = Literal["all", "states"]


class AttemptRow(Struct, gc=False):
    """An attempt. Long texts (traceback, stack, output) stay in the state file and are read on demand."""

    attempt: int
    generation: int = 0
    started_at: int = 0
    ended_at: int | None = None
    duration_us: int | None = None
    timeout_us: int | None = None
    grace_us: int | None = None
    outcome: str = "running"
    error_type: str | None = None
    error: str | None = None
    diagnostic: str | None = None
    failure_class: str | None = None
    failure_mode: str | None = None
    fingerprint: str | None = None
    fingerprint_loose: str | None = None
    explain: str | None = None  # the failure in a few words: "ZeroDivisionError settle.py:87 in settle"
    exit_code: int | None = None
    signal: int | None = None
    delay_us: int | None = None
    ceiling_us: int | None = None
    shortened_us: int | None = None  # the delay before the deadline of the run shortened it
    max_rss_kb: int | None = None
    cpu_user_us: int | None = None
    cpu_system_us: int | None = None
    output_bytes: int = 0
    output_dropped_bytes: int = 0
    pid: int | None = None
    host: str | None = None
    code_hash: str | None = None
    input_hash: str | None = None
    params_hash: str | None = None
    image_hash: str | None = None  # interpreter and packages
    late: int = 0
    where: str | None = None  # the place of the hang, by the captured stack
    deadline_at: int | None = None  # this and the next two: the steps of the kill, by their events
    sigterm_at: int | None = None
    sigkill_at: int | None = None


class TaskRow(Struct, gc=False):
    """A task: the columns of the ``task`` table that change, and its spec.

    The collector passes over the rows, which refer to nothing that refers to them: a run may have 100,000.
    """

    name: str
    state: TaskState = TaskState.PENDING
    attempt: int = 0
    max_attempts: int = 3
    started_at: int | None = None
    ended_at: int | None = None
    next_retry_at: int | None = None
    error: str | None = None
    failure_fingerprint: str | None = None
    generation: int = 0
    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    refusals: int = 0
    failure_class: str | None = None
    failure_mode: str | None = None
    dead_letter_kind: str | None = None
    delay_us: int | None = None
    ceiling_us: int | None = None
    shortened_us: int | None = None  # the delay before the deadline of the run shortened it
    first_started_at: int | None = None
    blocked_by: str | None = None
    skip_cause: str | None = None
    result: str | None = None
    progress_done: int | None = None
    progress_total: int | None = None
    last_heartbeat_at: int | None = None
    stale: int = 0
    notice: str | None = None  # that it is later than expected, or waits long
    bad_rows: int = 0  # held in quarantine
    cancel_requested_at: int | None = None  # RUNNING: when an operator cancelled it
    expires_at: int | None = None  # DEAD_LETTER: when it becomes FAILED by itself
    overrides: str | None = None  # JSON: changes by a requeue, for this generation (``domain/task_options.py``)
    key_generation: int = 0  # the generation of its idempotency key
    canary: str | None = None  # the canary: a task of the same cause that runs before this one
    position: int = 0
    changed_seq: int = 0  # seq of the latest event that touched the row
    changed_at: int = 0
    spec: TaskSpec | None = None
    attempts: dict[int, AttemptRow] = msgspec.field(default_factory=dict)

    @property
    def is_ended_by_deadline(self) -> bool:
        """Whether the deadline of the run has cancelled the task."""
        return self.state is TaskState.CANCELLED and self.failure_mode == DEADLINE_MODE

    @property
    def latest(self) -> AttemptRow | None:
        """The latest attempt; None before the first."""
        return self.attempts.get(self.attempt)


class RunProjection(msgspec.Struct):
    """A run, its tasks and their attempts, updated by each event."""

    run: RunRow
    tasks: dict[str, TaskRow] = {}
    parents: dict[str, tuple[str, ...]] = {}
    children: dict[str, tuple[str, ...]] = {}
    seq: int = 0  # of the latest event applied
    has_attempts: bool = True  # False: of the attempts nothing is kept, for an executor

    def apply(self, event: Event) -> TaskRow | None:
        """Apply one event; return the task that changed. An event that was applied before changes nothing."""
        if event.seq <= self.seq:
            return None
        self.seq = event.seq
        if event.run_id != self.run.run_id:
            return None
        payload = event.payload
        if isinstance(payload, payloads.RunChanged):
            self.run = self.run.with_columns(payload.set)
            RunState(self.run.state)  # raises ValueError for what no redrive has written
            return None
        row = self.tasks.get(event.task) if event.task is not None else None
        if row is None:
            return None
        if event.kind == EventKind.TASK:
            row.state = STATES.get(event.new) or TaskState(event.new)
        if isinstance(payload, _SETTING_TASKS):
            set_columns(row, payload.set)
        elif isinstance(payload, payloads.TaskMapped):
            self._apply_mapping(row, payload)
        row.changed_seq = event.seq
        row.changed_at = event.at
        if event.attempt is not None and self.has_attempts:
            self._apply_attempt(row, event)
        return row

    def _apply_mapping(self, task: TaskRow, payload: payloads.TaskMapped) -> None:
        """Add the children of a map task, and its edges to them. Projections that share the graph keep the old one."""
        if task.spec is None or task.spec.map is None:
            return
        places = {name: index for index, name in enumerate(payload.names)} | dict.fromkeys(payload.gone, GONE)
        specs, tasks = {name: child_spec(task.spec, name, index) for name, index in places.items()}, dict(self.tasks)
        for name, spec in specs.items():
            _place_child(tasks, task, task.spec.map.max_size, name, spec)
        parents = {*self.parents.get(task.name, ()), *specs} - set(payload.gone)
        self.tasks = dict(sorted(tasks.items(), key=lambda item: (item[1].position, item[0])))
        self.parents = self.parents | {name: spec.parents for name, spec in specs.items() if name not in self.parents}
        self.parents[task.name] = order_parents(task.spec, parents)
        self.children = children_of(self.tasks, self.parents)

    def _apply_attempt(self, row: TaskRow, event: Event) -> None:
        assert event.attempt is not None
        attempt = row.attempts.get(event.attempt)
        if attempt is None:
            attempt = row.attempts[event.attempt] = AttemptRow(event.attempt, started_at=event.at)
        payload = event.payload
        if isinstance(payload, _SETTING_ATTEMPTS):
            set_columns(attempt, payload.attempt_set)
        step = KILL_STEPS.get(event.kind)
        if isinstance(payload, payloads.AttemptStack):
            attempt.where = payload.where or attempt.where
        elif step is not None:
            setattr(attempt, step, event.at)


def _place_child(tasks: dict[str, TaskRow], task: TaskRow, max_size: int, name: str, spec: TaskSpec) -> None:
    """Add a child of a map task, or move a known one to the place that its element has in the list."""
    assert spec.item is not None
    position = child_position(task.position, spec.item.index, max_size)
    row = tasks.get(name)
    if row is None:
        tasks[name] = TaskRow(name, max_attempts=spec.retry.max_attempts, position=position, spec=spec)
    elif row.spec is not None:
        row.position, row.spec = position, msgspec.structs.replace(row.spec, item=spec.item)


def new_projection(run: RunRow, specs: Sequence[TaskSpec], *, has_attempts: bool = True) -> RunProjection:
    """Return a run as it is created: no task has moved."""
    tasks = {
        spec.name: TaskRow(spec.name, max_attempts=spec.retry.max_attempts, position=position, spec=spec)
        for position, spec in zip(positions_of(specs), specs, strict=True)
    }
    parents = {spec.name: distinct(spec.parents) for spec in specs}
    return RunProjection(run, tasks, parents, children_of(tasks, parents), has_attempts=has_attempts)


def order_parents(spec: TaskSpec | None, found: Iterable[str]) -> tuple[str, ...]:
    """Return the parents of a task in the order of its declaration, or by name if there are others among them."""
    parents = sorted(found)
    if spec is not None and len(parents) > 1 and set(parents) <= set(spec.parents):
        parents.sort(key=spec.parents.index)
    return tuple(parents)


def children_of(names: Iterable[str], parents: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the children of each task, in the order of ``names``."""
    children: dict[str, list[str]] = {name: [] for name in names}
    for name in children:
        for parent in parents.get(name, ()):
            children[parent].append(name)
    return {name: tuple(found) for name, found in children.items()}


def missing_inputs(projection: RunProjection, name: str) -> dict[str, str]:
    """Return the parents without a result, with the reason."""
    whys = {parent: missing_result(projection.tasks[parent]) for parent in projection.parents.get(name, ())}
    return {parent: why for parent, why in whys.items() if why is not None}


def missing_result(row: TaskRow) -> str | None:
    """Return why a task has no result: no success, or a result that cannot be stored; None if it has one."""
    why = reason_of_unstored(row.result)
    if why is not None:
        return unstored_reason(why)
    return state_text(row) if row.state is not TaskState.SUCCESS and row.result is None else None


def state_text(row: TaskRow) -> str:
    """Return the state in words: ``skipped by operator``, ``upstream failed``."""
    by = f" by {row.skip_cause}" if row.state is TaskState.SKIPPED and row.skip_cause else ""
    return str(row.state).lower().replace("_", " ") + by


_SETTING_TASKS = (payloads.TaskMoved, payloads.TaskChanged, payloads.UnknownPayload)
_SETTING_ATTEMPTS = (
    payloads.TaskMoved,
    payloads.TaskChanged,
    payloads.AttemptStarted,
    payloads.AttemptExtended,
    payloads.AttemptLate,
    payloads.UnknownPayload,
)
#: By their texts: faster than to call the enum.
STATES: dict[str | None, TaskState] = {str(state): state for state in TaskState}
_COLUMNS = {row: frozenset(row.__struct_fields__) for row in (TaskRow, AttemptRow)}


def set_columns(row: TaskRow | AttemptRow, columns: Mapping[str, object]) -> None:
    """Set the columns that the row has. Columns of the table alone (token, texts) are not kept in memory."""
    known = _COLUMNS[type(row)]
    for column, value in columns.items():
        if column in known:
            setattr(row, column, value)


def is_operator_act(event: Event) -> bool:
    """Whether the event records an act of an operator, not a consequence of one."""
    return isinstance(event.payload, payloads.OperatorActed) and event.payload.act is not None
