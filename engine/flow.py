"""How people write a DAG, and how a flow file is loaded.

A ``Flow`` collects ``TaskDef``s (functions, commands, sensors) and turns them into a ``FlowSpec``: plain values for the
executor. The functions stay in the process that imported the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from .checking.signatures import asked_for, source_of
from .checking.validation import check_task, is_text
from .core.dag import Dag
from .core.durations import parse_duration
from .core.overrides import convert
from .core.paging import check_sender
from .core.policy import RetryPolicy
from .core.rules import parse_rules
from .core.spec import LOGICAL_TIME, DownstreamSpec, FlowSpec, Isolation, Kind, Misfire, ScheduleSpec, TaskSpec
from .errors import FlowError, FlowImportError
from .zones import open_schedule

Function = TypeVar("Function", bound=Callable[..., Any])
After = str | Callable[..., Any]

Params = Mapping[str, Any]

MISFIRES = ("skip", "one", "all")

#: For the flow that is being imported: what its run remembers of its parameters, and what was given now.
_params: ContextVar[tuple[Params, Params]] = ContextVar("_params", default=({}, {}))


@dataclass(slots=True)
class TaskDef:
    """One task, as document 003 writes it, with what this engine adds.

    ``max_attempts`` counts all starts, the first included; ``timeout_seconds=None`` means no deadline. ``requires``
    names the parents whose results it cannot do without, so that no operator skips one of them unless with a
    substitute; left out, it is those that the function asks for by a parameter without a default.
    """

    name: str
    fn: Callable[..., Any] | None
    parents: Sequence[After] = field(default_factory=list)
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    retry: RetryPolicy | None = None
    grace_seconds: float = 5.0
    kind: Kind = "python"
    command: str | None = None
    isolation: Isolation = "process"
    downstream: str | None = None
    pool: str | None = None
    pool_slots: int = 1
    max_active: int | None = None
    idempotent: bool = True
    optional: bool = False
    recheck_seconds: float = 30.0
    rule: str = "all_success"
    owner: str | None = None
    requires: Sequence[After] | None = None
    max_losses: int = 3
    max_bad_rows: int | None = None
    max_bad_ratio: float | None = None
    strict_rows: bool = False

    def policy(self) -> RetryPolicy:
        """The retry policy; ``max_attempts`` given beside it wins."""
        policy = self.retry or RetryPolicy()
        if self.max_attempts is None or self.max_attempts == policy.max_attempts:
            return policy
        return replace(policy, max_attempts=self.max_attempts)


class Flow:
    """A DAG of tasks under construction.

    ``deadline`` is a duration from the start of a run ("3h"); ``pools`` maps names to slots; ``params`` maps names to
    defaults, which ``--param name=value`` overrides. ``dead_letter_ttl`` ("8h"): what nobody has decided about for so
    long, or until the deadline, becomes FAILED, so that the run ends.

    ``schedule``: when ``redrive serve`` starts a run, as the five fields of cron or "every 15m", in ``timezone``; the
    run's parameter ``logical_time`` says for which instant it stands, and its deadline counts from there. ``misfire``:
    of those that passed meanwhile, run none that is late ("skip"), the latest ("one") or "all". ``splay`` ("5m"): start
    later, by a share of it that is this flow's own. ``start_within``: page when a run has not started so long after it
    was due. Raises FlowError for what cannot be.
    """

    def __init__(
        self,
        name: str,
        *,
        deadline: float | str | None = None,
        dead_letter_ttl: float | str | None = None,
        max_parallel: int | None = None,
        pools: Mapping[str, int] | None = None,
        params: Mapping[str, Any] | None = None,
        schedule: str | None = None,
        timezone: str = "UTC",
        misfire: Misfire = "one",
        splay: float | str = 0,
        start_within: float | str | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or not is_text(name):
            raise FlowError(f"a flow needs a name, which is a text: not {name!r}")
        if max_parallel is not None and not (isinstance(max_parallel, int) and max_parallel >= 1):
            raise FlowError(f"flow {name!r}: max_parallel is a whole number of at least 1, not {max_parallel!r}")
        self.name = name
        self.deadline_seconds = None if deadline is None else _duration(deadline, "deadline", name)
        self.dead_letter_ttl = None if dead_letter_ttl is None else _duration(dead_letter_ttl, "dead_letter_ttl", name)
        if self.dead_letter_ttl == 0:
            raise FlowError(f"flow {name!r}: a dead_letter_ttl of 0 leaves nobody time to decide; give more, or None")
        self.max_parallel = max_parallel
        self.pools = dict(pools or {})
        self.schedule = None if schedule is None else _schedule(name, schedule, timezone, misfire, splay, start_within)
        declared = {} if schedule is None else {LOGICAL_TIME: ""}
        self.params = _merge_params(name, {**declared, **(params or {})}, *_params.get())
        self.tasks: list[TaskDef] = []
        self.downstreams: list[DownstreamSpec] = []
        self.pages: list[dict[str, Any]] = []
        self.path: str | None = None
        self.code_hash: str | None = None
        self._names: dict[int, str] = {}

    # --- Writing a flow --------------------------------------------------------------------------------------------

    def task(
        self,
        fn: Function | None = None,
        *,
        name: str | None = None,
        after: After | Iterable[After] = (),
        timeout: float | str | None = None,
        **options: Any,
    ) -> Any:
        """Decorate a function as a task; its name is the function's unless given. The function itself is returned.

        ``after``: task functions or names, also of tasks defined later. ``options``: the other fields of TaskDef
        (retry, max_attempts, grace_seconds, downstream, pool, isolation, idempotent, ...), and ``kind``: "etl" or
        "backfill" give the timeout that document 000 finds sensible, unless there is one.
        """

        def register(function: Function) -> Function:
            self._add("python", name or function.__name__, function, after, timeout, options)
            return function

        return register if fn is None else register(fn)

    def sensor(
        self,
        fn: Function | None = None,
        *,
        name: str | None = None,
        after: After | Iterable[After] = (),
        every: float | str = 30.0,
        timeout: float | str | None = None,
        **options: Any,
    ) -> Any:
        """Decorate a function that looks whether something is there: a true answer ends it, a false one looks again.

        Between two looks (``every``) the task is SENSING and holds no slot. ``timeout`` bounds one look, by default
        ``every`` + 60 s (document 000); the whole wait is bounded by ``retry=RetryPolicy(max_elapsed=...)``.
        """
        recheck_seconds = _duration(every, "every", name or str(getattr(fn, "__name__", "sensor")))
        bound = recheck_seconds + 60 if timeout is None else timeout
        options = {"recheck_seconds": recheck_seconds, **options}

        def register(function: Function) -> Function:
            self._add("sensor", name or function.__name__, function, after, bound, options)
            return function

        return register if fn is None else register(fn)

    def command(
        self,
        name: str,
        line: str,
        *,
        after: After | Iterable[After] = (),
        timeout: float | str | None = None,
        **options: Any,
    ) -> str:
        """Add a shell line as a task and return its name. Exit code 0 is success, 75 a transient failure."""
        if not line.strip():
            raise FlowError(f"task {name!r}: the command is empty")
        self._add("command", name, None, after, timeout, {"command": line, **options})
        return name

    def add(self, definition: TaskDef) -> TaskDef:
        """Add a task in the documents' own form."""
        self.tasks.append(definition)
        if definition.fn is not None:
            self._names.setdefault(id(definition.fn), definition.name)
        return definition

    def downstream(self, name: str, **options: Any) -> str:
        """Declare a system that tasks call: its breaker, its retry bucket, its classification rules."""
        try:
            parse_rules(options.get("rules", ()))
            self.downstreams.append(DownstreamSpec(name, **options))
        except (AttributeError, TypeError, ValueError) as error:
            raise FlowError(f"downstream {name!r}: {error}") from None
        return name

    def page(self, sender: str, **options: Any) -> None:
        """Say where pages go: ``command`` (line= or argv=), ``webhook`` (url=), ``bell``, or ``apprise`` (url=).

        ``timeout``: seconds that the sender may take, 10 unless given; ``headers``: for a webhook.
        """
        try:
            check_sender(sender, options)
        except ValueError as error:
            raise FlowError(f"flow {self.name!r}: {error}") from None
        self.pages.append({"sender": sender, **options})

    def _add(
        self,
        kind: Kind,
        name: str,
        function: Callable[..., Any] | None,
        after: After | Iterable[After],
        timeout: float | str | None,
        options: Mapping[str, Any],
    ) -> None:
        parents = [after] if isinstance(after, str) or callable(after) else list(after)
        options = dict(options)
        usual = _usual_timeout(options.pop("kind", None), name)
        seconds = usual if timeout is None else _duration(timeout, "timeout", name)
        try:
            definition = TaskDef(name, function, parents, timeout_seconds=seconds, kind=kind, **options)
        except TypeError as error:
            raise FlowError(f"task {name!r}: {str(error).replace('TaskDef.__init__()', 'a task')}") from None
        self.add(definition)

    # --- Reading it ------------------------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """What to call, by task name; commands have none."""
        return {task.name: task.fn for task in self.tasks if task.fn is not None}

    def spec(self) -> FlowSpec:
        """The flow as plain values. Raises FlowError (CycleError) for an unknown parent, a double name, a ring."""
        if not self.tasks:
            raise FlowError(f"flow {self.name!r} has no tasks")
        specs = tuple(self._task_spec(task) for task in self.tasks)
        Dag((spec.name, spec.parents) for spec in specs)
        return FlowSpec(
            name=self.name,
            tasks=specs,
            deadline_seconds=self.deadline_seconds,
            dead_letter_ttl=self.dead_letter_ttl,
            max_parallel=self.max_parallel,
            pools=self.pools,
            downstreams=tuple(self.downstreams),
            pages=tuple(self.pages),
            params=self.params,
            schedule=self.schedule,
            code_hash=self.code_hash,
            path=self.path,
        )

    def _task_spec(self, task: TaskDef) -> TaskSpec:
        check_task(task, self.pools)
        parents = tuple(dict.fromkeys(self._parent_name(task, parent) for parent in task.parents))
        return TaskSpec(
            name=task.name,
            parents=parents,
            kind=task.kind,
            command=task.command,
            retry=task.policy(),
            timeout=task.timeout_seconds,
            grace_seconds=task.grace_seconds,
            isolation=task.isolation,
            downstream=task.downstream,
            pool=task.pool,
            pool_slots=task.pool_slots,
            max_active=task.max_active,
            idempotent=task.idempotent,
            optional=task.optional,
            recheck_seconds=task.recheck_seconds,
            rule=task.rule,
            owner=task.owner,
            requires=self._requires(task, parents),
            max_losses=task.max_losses,
            max_bad_rows=task.max_bad_rows,
            max_bad_ratio=task.max_bad_ratio,
            strict_rows=task.strict_rows,
            source=source_of(task.fn),
        )

    def _requires(self, task: TaskDef, parents: tuple[str, ...]) -> tuple[str, ...]:
        if task.requires is None:
            return asked_for(task.fn, parents)
        names = tuple(dict.fromkeys(self._parent_name(task, parent) for parent in task.requires))
        strangers = [name for name in names if name not in parents]
        if strangers:
            raise FlowError(f"task {task.name!r} requires the result of {strangers[0]!r}, which it does not come after")
        return names

    def _parent_name(self, task: TaskDef, parent: After) -> str:
        if isinstance(parent, str):
            return parent
        name = self._names.get(id(parent))
        if name is None:
            called = getattr(parent, "__name__", repr(parent))
            raise FlowError(f"task {task.name!r} comes after {called!r}, which is not a task of this flow")
        return name


#: Seconds that kinds of work may take (document 000). A sensor's look has its own rule: ``Flow.sensor``.
USUAL_TIMEOUTS = {"etl": 30 * 60.0, "backfill": 6 * 3600.0}


def _usual_timeout(kind: str | None, name: str) -> float | None:
    if kind is not None and kind not in USUAL_TIMEOUTS:
        raise FlowError(f"task {name!r}: its kind is {kind!r}; choose one of {', '.join(USUAL_TIMEOUTS)}")
    return None if kind is None else USUAL_TIMEOUTS[kind]


def _duration(value: float | str, what: str, name: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise FlowError(f"{name!r}: {what}: {error}") from None


def _schedule(
    flow: str, expression: str, timezone: str, misfire: Misfire, splay: float | str, start_within: float | str | None
) -> ScheduleSpec:
    if not isinstance(expression, str):
        raise FlowError(f"flow {flow!r}: a schedule is a text like '0 2 * * *' or 'every 15m', not {expression!r}")
    if misfire not in MISFIRES:
        raise FlowError(f"flow {flow!r}: misfire is one of {', '.join(MISFIRES)}, not {misfire!r}")
    within = None if start_within is None else _duration(start_within, "start_within", flow)
    spec = ScheduleSpec(expression, timezone, misfire, _duration(splay, "splay", flow), within)
    open_schedule(spec, flow)  # what cannot be is refused here
    return spec


def _merge_params(flow: str, declared: dict[str, Any], remembered: Params, given: Params) -> dict[str, Any]:
    """Given values over remembered ones over declared defaults; a text is turned into the type of the default.

    What the run remembers and the flow no longer declares, or wants in another type, is left out: flows are repaired.
    """
    for name in declared.keys() & remembered.keys() - given.keys():
        with suppress(ValueError):
            declared[name] = convert(remembered[name], declared[name])
    for name, value in given.items():
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise FlowError(f"flow {flow!r} has no parameter {name!r}; it declares: {known}")
        declared[name] = _convert_param(flow, name, value, declared[name])
    return declared


def _convert_param(flow: str, name: str, value: Any, default: Any) -> Any:
    try:
        return convert(value, default)
    except ValueError as error:
        raise FlowError(f"flow {flow!r}: parameter {name!r} {error}") from None


# --- Loading a file ------------------------------------------------------------------------------------------------


def split_target(target: str) -> tuple[str, str | None]:
    """``file.py:name`` -> (file, name); a plain path has no name."""
    path, colon, name = target.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (target, None)


def load_flow(target: str, params: Params | None = None, remembered: Params | None = None) -> Flow:
    """Import a flow file and return its Flow.

    ``target`` is a path, optionally ``file.py:name``; ``remembered``: the parameters that its run had until now.
    Raises FlowImportError where its code raises, FlowError where it cannot be found or holds no flow, or several.
    """
    path, name = split_target(target)
    source = Path(path)
    if not source.is_file():
        raise FlowError(f"there is no flow file {path!r}")
    code = source.read_bytes()
    token = _params.set((dict(remembered or {}), dict(params or {})))
    try:
        module = _import_file(source.resolve())
        flow = _pick_flow(module, path, name)
    finally:
        _params.reset(token)
    flow.path = str(source.resolve()) + (f":{name}" if name else "")
    flow.code_hash = hashlib.sha256(code).hexdigest()[:16]
    return flow


def _import_file(path: Path) -> ModuleType:
    module_name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "redrive_flow"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise FlowError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(type(error), error, _from_file(error.__traceback__, str(path))))
        raise FlowImportError(f"importing {str(path)!r} failed: {type(error).__name__}: {error}", text) from error
    return module


def _from_file(frames: TracebackType | None, path: str) -> TracebackType | None:
    """The part of a traceback that is the flow's own."""
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    return frames


def _pick_flow(module: ModuleType, path: str, name: str | None) -> Flow:
    if name is not None:
        found = getattr(module, name, None)
        if callable(found) and not isinstance(found, Flow):
            found = found()
        if not isinstance(found, Flow):
            raise FlowError(f"{path!r} has no flow named {name!r}")
        return found
    flows = {id(value): (key, value) for key, value in vars(module).items() if isinstance(value, Flow)}
    if len(flows) == 1:
        return next(iter(flows.values()))[1]
    if not flows:
        raise FlowError(f"{path!r} defines no Flow; write: flow = Flow('name')")
    names = ", ".join(f"{path}:{key}" for key, _ in flows.values())
    raise FlowError(f"{path!r} defines {len(flows)} flows; name one: {names}")
