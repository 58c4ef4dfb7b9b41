"""How people write a DAG.

A ``Flow`` collects ``TaskDef``s (functions, commands, sensors) and turns them into a ``FlowSpec``: plain values for the
executor. The functions stay in the process that imported the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from .checking.places import place_of_caller
from .checking.signatures import asked_for, source_of
from .checking.validation import (
    ABOVE_ZERO,
    AFTER,
    SETTABLE,
    check_fields,
    check_params,
    check_task,
    demand_known,
    flow_options,
    option,
    read_downstream,
    read_page,
)
from .core.dag import Dag
from .core.overrides import convert
from .core.policy import RetryPolicy
from .core.spec import LOGICAL_TIME, DownstreamSpec, FlowSpec, Isolation, Kind, Misfire, ScheduleSpec, TaskSpec
from .core.wanted import TEXT, choice, is_text, shown
from .errors import FlowError, OptionError
from .zones import open_schedule

Function = TypeVar("Function", bound=Callable[..., Any])
After = str | Callable[..., Any]

Params = Mapping[str, Any]

#: For the flow that is being imported: what its run remembers of its parameters, and what was given now.
_params: ContextVar[tuple[Params, Params]] = ContextVar("_params", default=({}, {}))


@contextmanager
def importing_with(remembered: Params, given: Params) -> Iterator[None]:
    """Hand parameters to the flows that are made meanwhile."""
    token = _params.set((dict(remembered), dict(given)))
    try:
        yield
    finally:
        _params.reset(token)


@dataclass(slots=True)
class TaskDef:
    """One task, as document 003 writes it, with what this engine adds.

    ``max_attempts`` counts all starts, the first included; ``timeout_seconds=None`` means no deadline. ``requires``
    names the parents whose results it cannot do without, so that no operator skips one of them unless with a
    substitute; left out, it is those that the function asks for by a parameter without a default. Durations are seconds
    or texts as "90s". Raises OptionError for what an option cannot be.
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
    effect: bool = False
    optional: bool = False
    recheck_seconds: float = 30.0
    rule: str = "all_success"
    owner: str | None = None
    requires: Sequence[After] | None = None
    max_losses: int = 3
    max_bad_rows: int | None = None
    max_bad_ratio: float | None = None
    strict_rows: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _DEFAULTS)

    def policy(self) -> RetryPolicy:
        """The retry policy; ``max_attempts`` given beside it wins."""
        policy = self.retry or RetryPolicy()
        if self.max_attempts is None or self.max_attempts == policy.max_attempts:
            return policy
        return replace(policy, max_attempts=self.max_attempts)


#: Fields that are their default are looked at by ``Flow.spec`` no more than by ``TaskDef``.
_DEFAULTS = {one.name: one.default for one in fields(TaskDef) if one.default is not MISSING}


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
        if not is_text(name):
            raise OptionError(f"a flow needs a name, which is a text that is not empty: not {shown(name)}")
        options = flow_options(
            name,
            {
                "deadline": deadline,
                "dead_letter_ttl": dead_letter_ttl,
                "max_parallel": max_parallel,
                "pools": pools,
                "params": params,
                "schedule": schedule,
                "timezone": timezone,
                "misfire": misfire,
                "splay": splay,
                "start_within": start_within,
            },
        )
        self.name = name
        self.deadline_seconds: float | None = options["deadline"]
        self.dead_letter_ttl: float | None = options["dead_letter_ttl"]
        self.max_parallel: int | None = options["max_parallel"]
        self.pools: dict[str, int] = options["pools"] or {}
        self.schedule = _schedule(name, options)
        declared = {} if schedule is None else {LOGICAL_TIME: ""}
        self.params = _merge_params(name, {**declared, **(options["params"] or {})}, *_params.get())
        check_params(name, self.params)
        self.tasks: list[TaskDef] = []
        self.downstreams: list[DownstreamSpec] = []
        self.pages: list[dict[str, Any]] = []
        self.path: str | None = None
        self.code_hash: str | None = None
        self._names: dict[int, str] = {}
        self._places: dict[str, str] = {}  # where each task was declared

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
        "backfill" give the timeout that document 000 finds sensible, unless there is one; "effect" is for what is done
        to the world (a payment, a mail): at most once, its key recorded on the disk before the call. What becomes
        unclear is a dead letter, and nobody but an operator runs it again.
        """

        def register(function: Function) -> Function:
            self._add("python", _name_of(name, function), function, after, timeout, options)
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
        called = f"task {shown(getattr(fn, '__name__', 'sensor') if name is None else name)}"
        recheck_seconds = option(called, "every", ABOVE_ZERO, every)
        bound = recheck_seconds + 60 if timeout is None else timeout
        options = {"recheck_seconds": recheck_seconds, **options}

        def register(function: Function) -> Function:
            self._add("sensor", _name_of(name, function), function, after, bound, options)
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
        option(f"task {shown(name)}", "its command", TEXT, line)
        self._add("command", name, None, after, timeout, {"command": line, **options})
        return name

    def add(self, definition: TaskDef) -> TaskDef:
        """Add a task in the documents' own form. Raises FlowError for what cannot be, and for a name that is taken."""
        if not isinstance(definition, TaskDef):
            raise OptionError(f"flow {self.name!r}: add takes a TaskDef, not {shown(definition)}")
        check_task(definition, self.pools)
        place = place_of_caller()
        if definition.name in self._places:
            first = self._places[definition.name]
            raise FlowError(f"two tasks are named {definition.name!r}, the first at {first}: give one another name")
        self._places[definition.name] = place or "an unknown place"
        self.tasks.append(definition)
        if definition.fn is not None:
            self._names.setdefault(id(definition.fn), definition.name)
        return definition

    def downstream(self, name: str, **options: Any) -> str:
        """Declare a system that tasks call: its breaker, its retry bucket, its classification rules."""
        declared = read_downstream(name, options)
        if any(other.name == name for other in self.downstreams):
            raise FlowError(f"downstream {name!r} is declared twice: say everything about it in one place")
        self.downstreams.append(declared)
        return name

    def page(self, sender: str, **options: Any) -> None:
        """Say where pages go: ``command`` (line= or argv=), ``webhook`` (url=), ``bell``, or ``apprise`` (url=).

        ``timeout``: seconds that the sender may take, 10 unless given; ``headers``: for a webhook.
        """
        self.pages.append(read_page(self.name, sender, options))

    def _add(
        self,
        kind: Kind,
        name: str,
        function: Callable[..., Any] | None,
        after: After | Iterable[After],
        timeout: float | str | None,
        options: Mapping[str, Any],
    ) -> None:
        called, options = f"task {shown(name)}", dict(options)
        work = options.pop("kind", None)
        if work == EFFECT:
            work, options["effect"] = None, True
        usual = _usual_timeout(work, called)
        seconds = usual if timeout is None else option(called, "timeout", ABOVE_ZERO, timeout)
        parents = option(called, "after", AFTER, after)
        demand_known(called, options, SETTABLE)
        self.add(TaskDef(name, function, parents, timeout_seconds=seconds, kind=kind, **options))

    # --- Reading it ------------------------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """What to call, by task name; commands have none."""
        return {task.name: task.fn for task in self.tasks if task.fn is not None}

    def spec(self) -> FlowSpec:
        """The flow as plain values. Raises FlowError (CycleError) for an unknown parent, a double name, a ring."""
        if not self.tasks:
            raise FlowError(f"flow {shown(self.name)} has no tasks")
        check_params(self.name, self.params)  # once more: they may have been changed since
        try:
            specs = tuple(self._task_spec(task) for task in self.tasks)
            Dag((spec.name, spec.parents) for spec in specs)
        except FlowError as error:
            raise error.at(self._places.get(error.task or "")) from None
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
        check_fields(task, _DEFAULTS)  # once more: it may have been changed since
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
            idempotent=task.idempotent and not task.effect,
            effect=task.effect,
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
            why = f"requires the result of {strangers[0]!r}, which it does not come after"
            raise FlowError(f"task {task.name!r} {why}", task=task.name)
        return names

    def _parent_name(self, task: TaskDef, parent: After) -> str:
        if isinstance(parent, str):
            return parent
        name = self._names.get(id(parent))
        if name is None:
            called = getattr(parent, "__name__", repr(parent))
            raise FlowError(
                f"task {task.name!r} comes after {called!r}, which is not a task of this flow", task=task.name
            )
        return name


EFFECT = "effect"  # the kind of work that is done to the world, at most once

#: Seconds that kinds of work may take (document 000). A sensor's look has its own rule: ``Flow.sensor``.
USUAL_TIMEOUTS = {"etl": 30 * 60.0, "backfill": 6 * 3600.0}


def _usual_timeout(kind: Any, called: str) -> float | None:
    return None if kind is None else USUAL_TIMEOUTS[option(called, "kind", choice(*USUAL_TIMEOUTS, EFFECT), kind)]


def _name_of(name: str | None, function: Any) -> str:
    """As given, else the function's own. Raises OptionError for what is no function."""
    if not callable(function):
        raise OptionError(f"a task is a function, not {shown(function)}")
    found: str | None = getattr(function, "__name__", None) if name is None else name
    if found is None:
        raise OptionError(f"{shown(function)} has no name of its own: say name=...")
    return found


_WITHOUT_SCHEDULE = {"timezone": "UTC", "misfire": "one", "splay": 0, "start_within": None}


def _schedule(flow: str, options: Mapping[str, Any]) -> ScheduleSpec | None:
    if options["schedule"] is None:
        if any(options[option] != usual for option, usual in _WITHOUT_SCHEDULE.items()):
            raise OptionError(f"flow {flow!r}: {', '.join(_WITHOUT_SCHEDULE)} say nothing without a schedule")
        return None
    spec = ScheduleSpec(*(options[name] for name in ("schedule", "timezone", "misfire", "splay", "start_within")))
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
