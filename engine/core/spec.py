"""The specs of a flow and its tasks: plain values without functions, which can be sent between processes and stored.

``flow/flow.py`` builds them from flow files; the executor reads nothing else of a flow.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..domain.states import APPROVAL
from ..domain.task_options import GRACE_SECONDS, child_prefix, load_overrides, positions
from ..domain.text import format_seconds
from ..domain.trigger_rules import ALL_DONE, edge_rule
from .option_types import FLAG, choice, duration, number, whole_number
from .policy import RetryPolicy

TaskKind = Literal["python", "command", "sensor", "approval"]
Isolation = Literal["process", "worker", "thread", "dask"]
Durability = Literal["full", "normal"]
Misfire = Literal["skip", "one", "all"]
DeadlineAction = Literal["end", "page"]
OnOpen = Literal["hold", "fail", "dead_letter"]
Shell = Literal["sh", "bash"]
ResultSource = Literal["file", "last-line"]
TriggerRule = Literal["all_success", "all_success_strict", "none_failed", "all_done"]
Identity = Literal["value", "key"]

DEFAULT_RETRY = RetryPolicy()
RECHECK_SECONDS = 30.0
ROWS_LIMIT = 10_000  # bad rows that an attempt may set aside; a task can set a limit of its own
LOGICAL_TIME = "logical_time"  # parameter: the instant of the schedule that a run is for; else empty
EXEC_SUFFIX = ".exec.py"  # of the flow file that `redrive exec` writes for a command


class CommandOptions(msgspec.Struct, frozen=True):
    """The options of a command of a task."""

    argv: tuple[str, ...] = ()  # a program and its arguments; empty: the shell runs ``TaskSpec.command``
    shell: Shell = "sh"
    cwd: str | None = None  # relative to the folder of the flow
    env: Mapping[str, str | None] = {}  # None removes a variable
    stdin: str | None = None  # the text itself
    stdin_path: str | None = None  # a file, relative to the folder of the flow
    result: ResultSource = "file"  # the file in REDRIVE_RESULT, or the last line of stdout


class DaskOptions(msgspec.Struct, frozen=True):
    """The workers of a Dask cluster that may run a task, as Dask itself reads it."""

    resources: tuple[tuple[str, float], ...] = ()  # name and amount that the task needs of its worker
    workers: tuple[str, ...] = ()  # addresses, hosts or names; empty: any
    priority: int = 0  # tasks of a higher one get a worker first


class ExpectedBy(msgspec.Struct, frozen=True):
    """The bound of the success of a task: so long after the start of its run, or at the next such time of day."""

    seconds: float | None = None
    clock: str | None = None  # "03:00", in the time zone of the flow

    def __str__(self) -> str:
        return self.clock or f"{format_seconds(self.seconds or 0)} after the start of its run"


class MapSpec(msgspec.Struct, frozen=True):
    """The children that a map task gets at run time, and whose results it collects (``core/spec.py``)."""

    over: str  # the parent whose result is a list
    max_size: int  # a longer list is refused
    child: TaskSpec  # the spec of each child, except its name and its item
    identity: Identity  # what an element is known by (``domain/elements.py``); a run keeps that of its start
    collect: TriggerRule  # how its children may end


class ItemSpec(msgspec.Struct, frozen=True):
    """The element of a list for which a child of a map task runs."""

    task: str  # the map task, whose function it calls
    over: str  # the task that returned the list
    index: int  # its place in the list as it is now; -1: the list has it no more


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A task. Times are seconds; None means no bound.

    Its JSON leaves out each field that *is* the default, because a flow may have 100,000 tasks: a fifth of the bytes
    that are sent, masked, stored and read.
    """

    name: str
    parents: tuple[str, ...] = ()
    kind: TaskKind = "python"
    command: str | None = None  # the shell line of kind "command", or its words as a line
    command_options: CommandOptions | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: float | None = None  # seconds
    memory: int | None = None  # bytes that an attempt may hold
    cpus: float | None = None  # CPUs that an attempt may use
    grace_seconds: float = GRACE_SECONDS  # between SIGTERM and SIGKILL
    isolation: Isolation = "process"
    dask: DaskOptions | None = None  # with isolation "dask"
    downstream: str | None = None  # breaker and retry bucket
    pool: str | None = None
    pool_slots: int = 1
    idempotent: bool = True  # False: lost attempts are dead-lettered, never run again
    effect: bool = False  # has an external effect, at most once: its claim is on disk before it starts
    optional: bool = False  # a failure makes the run PARTIAL, not FAILED
    recheck_seconds: float = RECHECK_SECONDS  # sensors: between two checks
    rule: TriggerRule = "all_success"  # the states of its parents in which the task may start
    owner: str | None = None
    requires: tuple[str, ...] = ()  # parents whose results the task requires
    expect_by: ExpectedBy | None = None  # pages when it has not succeeded by then
    max_losses: int = 3
    max_bad_rows: int | None = None
    max_bad_ratio: float | None = None
    strict_rows: bool = False  # quarantined rows make the run PARTIAL
    params: Mapping[str, object] = msgspec.field(default_factory=dict)
    group: str | None = None  # the group of tasks in which it is written
    source: str | None = None  # file:line of the function, for messages
    code: str | None = None  # digest of the function's own code, to detect a change
    map: MapSpec | None = None  # of a map task
    item: ItemSpec | None = None  # of a child of a map task

    @property
    def declared_name(self) -> str:
        """The name of the task in its flow; of a child, that of its map task."""
        return self.name if self.item is None else self.item.task


def with_overrides(spec: TaskSpec, overrides: str | None) -> TaskSpec:
    """Return the spec with the changes of an operator for this generation (``task.overrides``, JSON)."""
    if overrides is None:
        return spec
    changed = load_overrides(overrides)
    return msgspec.structs.replace(
        spec,
        timeout=changed.get("timeout", spec.timeout),
        retry=replace(spec.retry, max_attempts=changed.get("max_attempts", spec.retry.max_attempts)),
        params={**spec.params, **changed.get("params", {})},
    )


class DownstreamSpec(msgspec.Struct, frozen=True):
    """A downstream: its circuit breaker, its retry bucket, its classification rules."""

    name: str
    failure_rate: Annotated[float, number(0, 1, above=True)] = 0.5
    minimum_calls: Annotated[int, whole_number(1)] = 10
    window_seconds: Annotated[float, duration(above_zero=True)] = 60.0
    open_seconds: Annotated[float, duration()] = 5.0
    open_seconds_max: Annotated[float, duration()] = 30.0
    probes: Annotated[int, whole_number(1)] = 3
    on_open: Annotated[OnOpen, choice(*get_args(OnOpen))] = "hold"
    release_per_second: Annotated[float, number(0)] = 5.0
    bucket_capacity: Annotated[float, number(0)] = 10.0
    bucket_refund: Annotated[float, number(0)] = 0.5
    bucket_per_second: Annotated[float, number(0, above=True)] = 5.0
    metrics_only: Annotated[bool, FLAG] = False
    shared: Annotated[bool, FLAG] = True  # other flows of this machine that name it are told when it is down
    rules: tuple[Mapping[str, object], ...] = ()


class ScheduleSpec(msgspec.Struct, frozen=True):
    """The schedule of a flow (``core/schedule.py``)."""

    expression: str  # five fields of cron, a name as "@daily", "every 15m", or "after load, prices; by 06:00"
    timezone: str = "UTC"
    misfire: Misfire = "one"  # of the missed logical times: run none, the latest, or all
    splay_seconds: float = 0.0  # a run starts later by up to this, constant for each flow
    start_within_seconds: float | None = None  # a run that starts later than this after it was due is late
    holidays: tuple[str, ...] = ()  # dates in the time zone, as "2026-12-25", on which no run starts
    holidays_path: str | None = None  # the absolute path of the file that lists them

    @property
    def follows(self) -> tuple[str, ...]:
        """The flows whose runs come before its own: its logical time is then a day, not when it is due."""
        word, *rest = self.expression.split(None, 1) or [""]
        names = "".join(rest).partition(";")[0].split(",")
        return tuple(name.strip() for name in names) if word == "after" else ()


class ParamSpec(msgspec.Struct, frozen=True):
    """The declared type of a parameter, as ``domain/task_options.py`` reads it."""

    type: str
    choices: tuple[object, ...] = ()


_JSON_TYPES = frozenset(["str", "int", "float", "bool", "list", "dict"])


class FlowSpec(msgspec.Struct, frozen=True):
    """A whole flow, in the order in which its tasks were written."""

    name: str
    tasks: tuple[TaskSpec, ...]
    deadline_seconds: float | None = None
    deadline_action: DeadlineAction = "end"  # at the deadline: end the run, or page alone
    dead_letter_ttl: float | None = None  # seconds until a dead letter becomes FAILED
    page_after: int = 1  # bad runs in a row until what holds up nothing pages
    retention_runs: int | None = None  # ended runs to keep
    retention_seconds: float | None = None  # how long to keep an ended run
    log_limit_mb: int = 64  # of output of one run, as it is stored
    max_parallel: int | None = None
    pools: Mapping[str, int] = {}
    machine_pools: tuple[str, ...] = ()  # those of ``pools`` whose slots other flows take as well
    downstreams: tuple[DownstreamSpec, ...] = ()
    pages: tuple[Mapping[str, object], ...] = ()  # senders, as the flow declares them
    pings: tuple[str, ...] = ()  # URLs that are requested at the start and the end of each run
    params: Mapping[str, object] = {}
    python: str | None = None  # the interpreter that runs the tasks; None: the one of the executor
    param_types: Mapping[str, ParamSpec] = {}  # of the parameters that declare one
    env_file: str | None = None  # the file with variables that was read when the flow was made: its absolute path
    secrets: tuple[str, ...] = ()  # names of parameters, else of variables of the environment
    unused_env: tuple[str, ...] = ()  # names of variables in ``env`` that no command of the flow gets
    schedule: ScheduleSpec | None = None
    timezone: str = "UTC"  # of times of day: of the schedule, and of ``expect_by`` of a task
    code_hash: str | None = None
    path: str | None = None
    sources: Mapping[str, str] = {}  # digest of each source file, by path

    @property
    def unused_env_sentence(self) -> str:
        """The sentence that ``env`` sets variables that no command gets; empty if each of them reaches one."""
        names = ", ".join(self.unused_env)
        return f"env sets {names} for commands, and none gets it: functions read variables of env_file" if names else ""

    @property
    def typed_params(self) -> dict[str, str]:
        """The parameters that are text in ``params`` and a value of another type for a function, each with the type."""
        return {name: declared.type for name, declared in self.param_types.items() if declared.type not in _JSON_TYPES}


#: Made here, not by threads that decode at once: msgspec (0.22) crashes the process if one thread prepares a struct,
#: at its first use, while another converts it.
decode_task_spec = msgspec.json.Decoder(TaskSpec).decode
decode_flow_spec = msgspec.json.Decoder(FlowSpec).decode


# --- The specs of map tasks and of their children --------------------------------------------------------------------
#
# A map task gets one child for each element of the list that another task returns. ``statefile/map_tasks.py`` creates
# the children in the state file, in the transaction in which that task succeeds. The map task waits for them, and its
# own attempt collects their results (``runner/call.py``).


COLLECT_SECONDS = 300.0  # for reading at most a few thousand small results


def map_task(
    child: TaskSpec, over: str, max_size: int, identity: Identity = "value", collect: TriggerRule | None = None
) -> TaskSpec:
    """Return the spec of a map task. ``child``: what its function and its options say, by the name of the map task.

    ``collect`` None: the children count by the rule of the parents.
    """
    return TaskSpec(
        child.name,
        child.parents,
        timeout=COLLECT_SECONDS,
        optional=child.optional,
        rule=child.rule,
        owner=child.owner,
        requires=(over,),
        group=child.group,
        source=child.source,
        map=MapSpec(over, max_size, msgspec.structs.replace(child, group=child.name), identity, collect or child.rule),
    )


def rule_of_edge(task: TaskSpec, parent: str) -> str:
    """Return the rule by which a parent counts for a task."""
    if task.map is not None:
        return edge_rule(task.name, task.rule, parent, task.map.over, task.map.collect)
    return task.rule if task.item is None else edge_rule(task.name, task.rule, parent, task.item.over, None)


def is_clean_up(task: TaskSpec) -> bool:
    """Return whether a task runs although its run is over, as ``statefile/clean_ups.py`` says."""
    return task.kind != APPROVAL and any(rule_of_edge(task, parent) == ALL_DONE for parent in task.parents)


def child_spec(task: TaskSpec, name: str, index: int) -> TaskSpec:
    assert task.map is not None
    return msgspec.structs.replace(task.map.child, name=name, item=ItemSpec(task.name, task.map.over, index))


def declared_task(tasks: Iterable[TaskSpec], name: str) -> TaskSpec | None:
    """Return the task of a flow that has a name, or whose child would have it."""
    for task in tasks:
        if name == task.name or (task.map is not None and name.startswith(child_prefix(task.name))):
            return task
    return None


def work_of(task: TaskSpec) -> TaskSpec:
    """Return the spec of what a task does; of a map task, that of its children under its own name."""
    return task if task.map is None else msgspec.structs.replace(task.map.child, group=task.group)


def positions_of(tasks: Sequence[TaskSpec]) -> Iterable[int]:
    """Return the position of each task of a flow; after a map task, there is room for its children."""
    if all(task.map is None for task in tasks):
        return range(len(tasks))
    return positions(None if task.map is None else task.map.max_size for task in tasks)


def json_object(text: str | None) -> dict[str, Any]:
    """Return the object of a JSON text, as of ``run.options``; an empty one of a text that is damaged or missing."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# --- Builds many objects at once without the garbage collector, which would traverse all of them many times ----------


@contextmanager
def collector_paused() -> Iterator[None]:
    """Start no collections in the block. For objects that all stay: a third of the time to load 100,000 tasks."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collector_slowed() -> Iterator[None]:
    """Start few collections in the block. For the import of a flow file: a sixth of the time for 100,000 tasks."""
    before, slowed = gc.get_threshold(), (10_000, 50, 100)
    gc.set_threshold(*slowed)
    try:
        yield
    finally:
        if gc.get_threshold() == slowed:  # else the file has set its own
            gc.set_threshold(*before)
