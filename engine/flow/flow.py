"""The ``Flow`` class, with which users define a DAG.

A ``Flow`` collects ``TaskDef``s (functions, commands, sensors) and turns them into a ``FlowSpec``: plain values for
the executor. The functions stay in the process that imported the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, Unpack, cast

import msgspec

from ..clock import SystemClock
from ..core.dag import validate_graph
from ..core.option_types import NAME, NAME_CHARACTERS_MAX, Duration, choice, is_text, short_repr
from ..core.spec import LOGICAL_TIME, DownstreamSpec, FlowSpec, ResultSource, ScheduleSpec, Shell, TaskKind, TriggerRule
from ..domain.states import END
from ..errors import FlowError, NotReady, OptionError
from . import source
from .options import (
    ABOVE_ZERO,
    AFTER,
    COMMAND,
    DEFAULTS,
    ENVIRONMENT,
    FLOW,
    MAP_KEY,
    MAP_OVER,
    TASK_OPTIONS,
    DefaultOptions,
    DownstreamOptions,
    FlowOptions,
    PageOptions,
    Parent,
    SenderKind,
    TaskDefOptions,
    TaskOptions,
    WorkKind,
    check_params,
    check_secret_params,
    parse_downstream,
    parse_named_option,
    parse_options,
    parse_page,
    parse_ping,
    read_params,
    reject_unknown_options,
)
from .task_def import TaskDef, TaskSpecBuilder, check_pool, identity_of

# --- Groups of tasks, and the options that tasks inherit from their flow and their groups ----------------------------


class TaskGroup(msgspec.Struct):
    """The tasks that are written in a block ``with flow.group("extract") as group``.

    Attributes:
        name: with the names of the groups around it: "warehouse.extract".
        tasks: the names of its tasks, as of now; ``after=group.tasks`` waits for all of them.
    """

    name: str
    tasks: list[str] = []


class GroupDefaults(msgspec.Struct, frozen=True):
    """The defaults of the place where tasks are written: directly in the flow, or in a group of it."""

    defaults: Mapping[str, Any]  # option -> value, also those of the scopes around this one
    origins: Mapping[str, str]  # option -> who sets it: "the flow", "group 'extract'"
    groups: tuple[TaskGroup, ...] = ()  # from the outermost to the innermost

    @property
    def group(self) -> str | None:
        """The name of the innermost group."""
        return self.groups[-1].name if self.groups else None

    def full_name(self, name: str) -> str:
        """Return a name with the prefix of the group."""
        return f"{self.group}.{name}" if self.groups else name

    def open_group(self, name: str, defaults: Mapping[str, Any]) -> GroupDefaults:
        """Return the scope of a group in this one, whose defaults win; variables are added."""
        group = TaskGroup(self.full_name(name))
        origins = dict.fromkeys(defaults, f"group {group.name!r}")
        merged = {**self.defaults, **defaults}
        if "env" in merged:
            merged["env"] = {**self.defaults.get("env", {}), **defaults.get("env", {})}
        return GroupDefaults(merged, {**self.origins, **origins}, (*self.groups, group))

    def inherited_by(self, kind: TaskKind, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults for a task with these options of its own, None included."""
        skipped = set(own) if kind == "command" else {*own, "env"}
        return {option: value for option, value in self.defaults.items() if option not in skipped}


# --- How a flow file declares tasks: functions, lines of the shell and sensors, alone or in groups -------------------


Function = TypeVar("Function", bound=Callable[..., object])


class Decorator(Protocol):
    """The result of ``@flow.task(...)``: it registers the function and returns it unchanged."""

    def __call__(self, function: Function, /) -> Function: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    #: The function itself for ``@flow.task``, a decorator for ``@flow.task(...)``. One signature for both: of overloads
    #: a type checker only says that none fits, not which option is wrong.
    Returned = DefaultingTypeVar("Returned", bound=Callable[..., object], default=Decorator)


class TaskDeclarations:
    """The tasks of a flow, in the order in which its file writes them."""

    def __init__(self, name: str, pools: dict[str, int], defaults: Mapping[str, Any]) -> None:
        self.name = name
        self.pools = pools
        self.tasks: list[TaskDef] = []
        self.inherited: dict[str, dict[str, str]] = {}  # by task: the options that it inherits, and from where
        self._names: dict[tuple[int, int], str] = {}  # the tasks by the identity of their functions
        self._places: dict[str, source.SourceLocation | None] = {}  # where each task is declared
        self._scopes = [
            GroupDefaults(defaults, dict.fromkeys(defaults, "the flow"))
        ]  # the open groups, the innermost last
        self._group_of: dict[str, str] = {}
        self._env_names = dict.fromkeys(defaults.get("env") or ())  # variables that the flow and its groups set

    def task(
        self,
        fn: Returned | None = None,
        /,
        *,
        name: str | None = None,
        after: Parent | Iterable[Parent] = (),
        kind: WorkKind | None = None,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a task: ``@flow.task`` or ``@flow.task(...)``. The function is returned as it is.

        The function runs in a process of its own. Its parameters are matched by name: ``ctx`` is the ``Context``, the
        name of a parent its result, the name of a parameter of the flow the value of that.

        The result is stored as JSON, and a child gets exactly the value that was returned: texts, numbers (of numpy as
        well), Decimal, dates and times, timedelta, bytes, UUID, Path, members of an enum, dataclasses, named tuples,
        and lists, tuples, sets and mappings of these. A value of another type is not stored: the task succeeds and
        says so, and a child that asks for the result fails. So is a result of more than 16 MiB of JSON.

        Parameters:
            name: of the task; the name of the function unless given.
            after: a task function, the name of a task (which may be defined later), or a list of these.
            kind: "etl" or "backfill": a timeout of 30 minutes or 6 hours, unless there is one. "effect": it does
                something to the world (a payment, a mail) at most once: its idempotency key is on the disk before it
                starts, and if its progress is unknown, only an operator runs it again.
            options: timeout: duration above 0 that one attempt may take (30, "10m"); then it is killed. None: no
                bound. memory, cpus, retry, max_attempts, grace_seconds, isolation, dask, downstream, pool,
                pool_slots, idempotent, effect, optional, rule, owner, requires, expect_by, max_losses,
                max_bad_rows, max_bad_ratio, strict_rows: as ``TaskDef`` describes them; durations may be texts here.

        Raises:
            FlowError: there is no such option, it is not what it must be, or the name is taken.

        Example:
            >>> flow = Flow("revenue")
            >>> @flow.task(timeout="5m", max_attempts=5, rule="all_done")
            ... def clean():
            ...     pass
            >>> flow.task(print, name="show", after=[clean]) is print
            True
            >>> flow.task(tmeout=3)(lambda: None)
            Traceback (most recent call last):
            ...
            redrive.engine.errors.OptionError: task '<lambda>': there is no option 'tmeout'; did you mean 'timeout'?
        """
        return self._add_function(fn, "python", name, after, options, kind)

    def map(
        self,
        fn: Returned | None = None,
        /,
        *,
        over: Parent,
        key: Callable[[Any], object] | None = None,
        max_size: int = 1000,
        collect: TriggerRule | None = None,
        name: str | None = None,
        after: Parent | Iterable[Parent] = (),
        kind: WorkKind | None = None,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a map task: ``@flow.map(over=list_orders)`` calls it once for each element of a list.

        The list is the result of the task ``over``. As soon as that succeeds, the map task ``load`` gets one child for
        each element: ``load[0]``, ``load[1]``, ..., or with a ``key`` ``load[INV-17]``. A child is a task like any
        other: it has attempts, retries and a timeout, is seen in the console, and is requeued or skipped by its name.
        Its function gets the element as its first argument (``ctx`` does not count) and as ``ctx.item``.

        When the children have ended, the map task succeeds. Its result is the list of their results in the order of
        the elements, with None for a child that was skipped, by itself or by an operator; over 16 MiB of JSON it is not
        stored. If all children have skipped themselves, so is the map task, unless ``collect`` is "all_done".

        A child belongs to its element, wherever that stands in the list after a requeue of ``over``: an element that
        is as before keeps its result, one whose value has changed runs again (but an effect that has happened does
        not), a new one gets a child of its own, and one that is gone is left out until it is back. Without a ``key``
        an element is known by its value, and equal ones by their number.

        Parameters:
            over: the task that returns a list or a tuple: its function or its name.
            key: a function that returns the key of an element, a text, a number or a date that no other element of
                the list has. An effect that is mapped over mappings or objects needs one.
            max_size: at least 1. A longer list, or a result that is not a list, makes the map task a dead letter.
            collect: how the children may end for the map task to succeed, in the words of ``rule``: with "all_done"
                some may fail, and None stands for each of them; with "all_success_strict" an operator's skip of one
                counts as its failure. None: as ``rule``.
            name, after, kind: as for ``task``; of ``after``, all results can be arguments as well.
            options: as for ``task``; they hold for each child, but ``owner`` for the map task as well. ``rule`` says
                when the children may start after ``after``; ``over`` must have succeeded, by any rule.
                A ``pool`` bounds how many children run at a time.

        Raises:
            FlowError: as ``task`` does.

        Example:
            >>> flow = Flow("orders", pools={"api": 4})
            >>> @flow.task
            ... def list_orders():
            ...     return [{"id": 1}, {"id": 2}]
            >>> @flow.map(over=list_orders, timeout="1m", pool="api")
            ... def load(order):
            ...     return order["id"]
            >>> @flow.task(after=load)
            ... def report(load):
            ...     print(sum(load))
            >>> [(task.name, task.parents) for task in flow.spec().tasks]
            [('list_orders', ()), ('load', ('list_orders',)), ('report', ('load',))]
        """
        parse_named_option("a map task", "over", MAP_OVER, over)
        if key is not None:
            parse_named_option("a map task", "key", MAP_KEY, key)
        own = {"map_over": over, "map_key": key, "max_size": max_size, "collect": collect}
        return self._add_function(fn, "python", name, after, options, kind, **own)

    def sensor(
        self,
        fn: Returned | None = None,
        /,
        *,
        name: str | None = None,
        after: Parent | Iterable[Parent] = (),
        every: Duration = 30.0,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a sensor: a true answer ends the task, a false one calls the function again later.

        Between two calls the task is SENSING and holds no slot. A false answer and a transient failure spend no
        attempt; ``retry=RetryPolicy(max_elapsed="2h")`` bounds the whole wait. Without it, a day of transient failures
        alone makes the sensor FAILED. With ``idempotent=False`` its first failure is a dead letter.

        Parameters:
            name, after: as for ``task``.
            every: duration above 0 between two calls; a tenth at most is added at random, so that sensors spread.
            options: timeout: duration above 0 that one call may take; ``every`` and 60 seconds unless given. Others
                as for ``task``.

        Raises:
            FlowError: as ``task`` does.

        Example:
            >>> from pathlib import Path
            >>> from redrive.engine import RetryPolicy
            >>> flow = Flow("revenue")
            >>> @flow.sensor(every="1m", retry=RetryPolicy(max_elapsed="2h"))
            ... def export_is_there():
            ...     return Path("/data/export.csv").exists()
            >>> flow.spec().tasks[0].timeout
            120.0
        """
        named = getattr(fn, "__name__", None) if name is None else name
        called = "a sensor" if named is None else f"task {short_repr(named)}"
        recheck_seconds = parse_named_option(called, "every", ABOVE_ZERO, every)
        options = {"timeout": recheck_seconds + 60, **options}
        return self._add_function(fn, "sensor", name, after, options, recheck_seconds=recheck_seconds)

    def run_of(
        self,
        flow: str,
        *,
        name: str | None = None,
        after: Parent | Iterable[Parent] = (),
        ended: bool = False,
        every: Duration = 30.0,
        **options: Unpack[TaskOptions],
    ) -> str:
        """Add a sensor that waits for the runs of another flow of this machine for the same day; return its name.

        It ends when all of them have succeeded: those that ``redrive serve`` starts on the day of ``ctx.date``, in the
        time zone of the other flow. A flow without a run on that day is not waited for.

        Parameters:
            flow: the name of the other flow.
            name: of the task; ``run_of_`` and the name of the flow unless given.
            ended: True: the runs may also have failed.
            after, every, options: as for ``sensor``.

        Raises:
            FlowError: as ``task`` does.

        Example:
            >>> flow = Flow("build")
            >>> flow.command("report", "make report", after=flow.run_of("load"))
            'report'
            >>> [(task.name, task.kind, task.parents) for task in flow.spec().tasks]
            [('run_of_load', 'sensor', ()), ('report', 'command', ('run_of_load',))]
        """
        task = f"run_of_{flow}" if name is None else name

        def is_done(ctx: Any) -> bool:
            from .predecessors import run_problem  # here: a flow that waits for none needs no state files

            if problem := run_problem(flow, ctx.date, ended=ended, now=SystemClock().now_us()):
                raise NotReady(f"{flow} {problem}")
            return True

        self.sensor(is_done, name=task, after=after, every=every, **options)
        return task

    def command(
        self,
        name: str,
        line: str | Sequence[str],
        *,
        after: Parent | Iterable[Parent] = (),
        kind: WorkKind | None = None,
        shell: Shell | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: str | os.PathLike[str] | None = None,
        result: ResultSource = "file",
        **options: Unpack[TaskOptions],
    ) -> str:
        """Add a line of the shell as a task, or a program with its arguments, and return the name of the task.

        It runs in the folder of the flow file, as every task, wherever ``redrive`` was started. It finds its run, its
        parameters and the results of its parents in variables (``$REDRIVE_PARAM_DAY``, ``$REDRIVE_RESULT_EXTRACT``,
        the file ``$REDRIVE_INPUTS``, ...), and it returns a result by writing JSON into the file ``$REDRIVE_RESULT``.

        Exit code 0 is success, 75 (EX_TEMPFAIL of sysexits.h) a failure that may heal. The messages and exit codes of
        well-known programs (curl, ssh, psql, git, ...) have a class; an unknown exit code is tried again until
        the attempts are spent. ``Flow.downstream(rules=...)`` says otherwise.

        Parameters:
            name: of the task.
            line: a line of the shell; or a list of a program and its arguments, which no shell reads.
            after, kind, options: as for ``task``; ``isolation`` is "process" or "dask".
            shell: "sh" (the default: ``/bin/sh -c``) or "bash" (``bash -o pipefail -c``: a pipe fails when one of its
                programs fails).
            cwd: the folder in which it runs, relative to that of the flow file.
            env: variables that are set beside those of the executor; None removes one: ``{"PGHOST": "db1"}``.
                Those of the flow and of the group come first. ``{"*": None}`` removes all of the executor, and leaves
                those of ``env_file`` and of redrive.
            stdin: a text that it reads from its standard input, or a ``Path`` (relative to the flow file) of a file.
            result: "file" (the default: JSON in the file ``$REDRIVE_RESULT``, if it wrote any) or "last-line" (the
                last line of its stdout is JSON).

        Raises:
            FlowError: as ``task`` does.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.command("load", "psql -v ON_ERROR_STOP=1 -f load.sql", timeout="10m", env={"PGHOST": "db1"})
            'load'
            >>> flow.command("count", "wc -l < clean.csv", after="load", result="last-line")
            'count'
        """
        parse_named_option(f"task {short_repr(name)}", "its command", COMMAND, line)
        own = {"command": line, "shell": shell, "cwd": cwd, "env": env, "stdin": stdin, "result": result}
        return self._add("command", name, None, after, options, kind, **own)

    def approval(
        self,
        name: str,
        *,
        after: Parent | Iterable[Parent] = (),
        timeout: Duration | None = None,
        owner: str | None = None,
        rule: TriggerRule = "all_success",
        optional: bool = False,
    ) -> str:
        """Add a task that an operator approves or rejects, and return its name.

        It waits in the inbox and runs nothing. ``redrive approve NAME --reason TEXT`` makes it a success, whose result
        is ``{"approved_by": "ana@db1", "reason": "..."}``; ``redrive reject`` makes it a failure.

        Parameters:
            name: of the task.
            after, rule, optional: as for ``task``.
            timeout: duration above 0 after which it fails if nobody has answered; None: it waits without a bound. The
                defaults of the flow and of groups do not count.
            owner: the person or team that decides, whom pages name.

        Raises:
            FlowError: as ``task`` does.

        Example:
            >>> flow = Flow("release")
            >>> flow.command("build", "make")
            'build'
            >>> flow.approval("approve", after="build", timeout="12h")
            'approve'
            >>> flow.command("publish", "make publish", after="approve")
            'publish'
        """
        own = {"owner": owner, "rule": rule, "optional": optional, "downstream": None, "max_attempts": 1}
        return self._add("approval", name, None, after, {"timeout": timeout, **own})

    def add(self, definition: TaskDef) -> TaskDef:
        """Add a task that is written as a ``TaskDef``, and return it.

        Raises:
            FlowError: its fields contradict each other or the flow, or the name is taken.

        Example:
            >>> Flow("revenue").add(TaskDef("extract", print, timeout_seconds=30)).name
            'extract'
        """
        if not isinstance(definition, TaskDef):
            raise OptionError(f"flow {self.name!r}: add takes a TaskDef, not {short_repr(definition)}")
        check_pool(definition.spec, self.pools)
        if definition.name in self._places:
            first = source.location_of(self._places[definition.name]) or "an unknown place"
            raise FlowError(f"two tasks are named {definition.name!r}, the first at {first}: give one another name")
        self._places[definition.name] = source.caller_place()
        self.tasks.append(definition)
        if definition.fn is not None:
            self._names.setdefault(identity_of(definition.fn), definition.name)
        return definition

    @contextmanager
    def group(self, name: str, **options: Unpack[DefaultOptions]) -> Iterator[TaskGroup]:
        """Write tasks that belong together: ``with flow.group("extract", timeout="10m") as extract:``.

        The name of the group and a dot come before the names of the tasks that are written in the block: the task
        ``orders`` becomes ``extract.orders``, and a function gets its result as ``extract_orders``. The console folds
        a group into one row. A group in a group adds to the name. What ``add`` takes stays as it is.

        Parameters:
            name: text that is not empty; two blocks of the same name are one group.
            retry, timeout, memory, cpus, downstream, env: for the tasks of the group that do not say otherwise, as
                those of ``Flow``.

        Raises:
            FlowError: there is no such option, or it is not what it must be.

        Example:
            >>> flow = Flow("revenue", timeout="10m")
            >>> with flow.group("extract", downstream="erp") as extract:
            ...     for table in ("orders", "lines"):
            ...         load = flow.command(table, f"dump {table}")
            >>> flow.command("report", "make report", after=extract.tasks)
            'report'
            >>> [(task.name, task.downstream, task.timeout) for task in flow.spec().tasks]
            [('extract.orders', 'erp', 600.0), ('extract.lines', 'erp', 600.0), ('report', None, 600.0)]
        """
        name = parse_named_option("a group", "its name", NAME, name)
        own = parse_options(f"group {short_repr(name)}", DEFAULTS, options)
        scope = self._scopes[-1].open_group(name, own)
        self._env_names.update(dict.fromkeys(own.get("env") or ()))
        self._scopes.append(scope)
        try:
            yield scope.groups[-1]
        finally:
            self._scopes.pop()

    def _add_function(
        self,
        fn: Returned | None,
        kind: TaskKind,
        name: str | None,
        after: Parent | Iterable[Parent],
        options: Mapping[str, object],
        work: WorkKind | None = None,
        **own: object,
    ) -> Returned:
        """Add a function as a task and return it; without one, return the decorator that does so."""

        def register(function: Function) -> Function:
            self._add(kind, _name_of(name, function), function, after, options, work, **own)
            return function

        return cast("Returned", register if fn is None else register(fn))

    def _add(
        self,
        kind: TaskKind,
        name: str,
        function: Callable[..., object] | None,
        after: Parent | Iterable[Parent],
        options: Mapping[str, object],
        work: WorkKind | None = None,
        **own: object,
    ) -> str:
        """Add a TaskDef from the arguments of a decorator and return its name.

        ``own``: fields that only this kind of task has.
        """
        scope = self._scopes[-1]
        name = scope.full_name(name) if is_text(name) else name
        called = f"task {short_repr(name)}"
        keywords = KEYWORDS["map" if "map_over" in own else kind]
        reject_unknown_options(called, options, (*keywords, *TASK_OPTIONS))
        parents = parse_named_option(called, "after", AFTER, after)
        given = {**_timeout_of_work(work, called), **options, **({"effect": True} if work == EFFECT else {})}
        inherited = scope.inherited_by(kind, given)
        if "env" in inherited:
            own["env"] = {**inherited["env"], **parse_named_option(called, "env", ENVIRONMENT, own["env"] or {})}
        fields = {"kind": kind, **inherited, **given, **own}
        seconds = parse_options(called, DEFAULTS, {"timeout": fields.pop("timeout", None)})["timeout"]
        self.add(TaskDef(name, function, parents, timeout_seconds=seconds, **cast("TaskDefOptions", fields)))
        self.inherited[name] = {option: scope.origins[option] for option in inherited}
        for group in scope.groups:
            group.tasks.append(name)
            self._group_of[name] = group.name
        return name


#: The keywords that stand in the signatures of ``Flow.task``, ``Flow.map``, ``Flow.sensor`` and ``Flow.command``.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "python": ("name", "after", "kind"),
    "map": ("over", "key", "max_size", "collect", "name", "after", "kind"),
    "sensor": ("name", "after", "every"),
    "command": ("after", "kind", "shell", "cwd", "env", "stdin", "result"),
    "approval": ("after",),
}

EFFECT: Final = "effect"  # changes an outside system, at most once

#: Default timeout in seconds of each kind of work; None: as without a kind. ``Flow.sensor`` has its own default.
DEFAULT_TIMEOUTS: dict[WorkKind, float | None] = {"etl": 30 * 60.0, "backfill": 6 * 3600.0, EFFECT: None}


def _timeout_of_work(kind: WorkKind | None, called: str) -> dict[str, float]:
    """Return the timeout that a kind of work has, as an option; empty: it has none of its own."""
    if kind is None:
        return {}
    seconds = DEFAULT_TIMEOUTS[parse_named_option(called, "kind", choice(*DEFAULT_TIMEOUTS), kind)]
    return {} if seconds is None else {"timeout": seconds}


def _name_of(name: str | None, function: object) -> str:
    """Return ``name``, else the name of the function. Raises OptionError for an object that is not a function."""
    if not callable(function):
        raise OptionError(f"a task is a function, not {short_repr(function)}")
    found: str | None = getattr(function, "__name__", None) if name is None else name
    if found is None:
        raise OptionError(f"{short_repr(function)} has no name of its own: say name=...")
    return found


# --- The flow --------------------------------------------------------------------------------------------------------


__all__ = ["DownstreamOptions", "Flow", "PageOptions", "TaskDef", "TaskOptions"]


class Flow(TaskDeclarations):
    """A DAG of tasks: functions, lines of the shell and sensors, and what holds for all of them.

    A duration is a number of seconds, or a text: "90s", "10m", "1h30m", "2d".

    Parameters:
        name: text, not empty. The state file has this name unless another is given.
        deadline: duration of 0 or more from the start of a run (of a scheduled run: from its logical time) until it
            has to be over. Until then tasks start as always. Then what has not started is CANCELLED, what runs is ended
            by SIGTERM, its grace and SIGKILL, and the run is FAILED, with one page. Clean-ups (tasks with the rule
            "all_done") still run, each for its ``timeout`` or ten minutes. Dead letters go on waiting for a human;
            tasks that an operator runs after that have no deadline. ``redrive postpone`` moves it.
        deadline_action: "end": as said. "page": the deadline pages once and changes nothing else.
        dead_letter_ttl: duration of 0 or more: a dead letter without a decision for so long, or until the
            deadline, becomes FAILED, so that tasks with the rule "all_done" run below it and the run ends. 0: at once.
            None: it waits for ever.
        page_after: how many runs in a row have to go wrong, at least 1, until failed tasks and a missed deadline page;
            1 unless given. What blocks a run, an effect in doubt, and an outage of ten minutes page at once.
        retention: which ended runs of the state file to keep: a duration as "30d", or how many of each flow. Older ones
            are deleted after each run; ``redrive prune --help`` says what stays. None: all are kept.
        log_limit_mb: how much output of tasks a run keeps in the state file, compressed, in megabytes of at least 1;
            64 unless given. Above this the oldest output of ended attempts goes first.
        max_parallel: attempts at a time, at least 1. None: 4, or what the run is started with.
        pools: names and how many slots each has, at least 1: ``{"database": 2}``.
        machine_pools: the same for slots that all flows of this user on this machine share, by the name of the pool:
            ``{"warehouse": 4}``. ``redrive systems pools`` lists who holds them. Flows that name different sizes take
            the slots up to the size that each names.
        params: names and their defaults, which are JSON, or a ``Param`` with a type, choices or no default; ``redrive
            run --param name=value`` sets others, in the type of the ``Param`` or of the default. A task reads them from
            ``flow.params``, ``ctx.params`` or a parameter of this name.
        secrets: names of variables of the environment, or of parameters in ``params`` (default ``None``), whose values
            are secret: ``["PGPASSWORD"]``. The values are masked in logs, errors, events and pages, and the state file
            never holds them; a run without one of them is refused. Give a secret parameter by ``--param name=@FILE`` or
            ``--param name=-`` (standard input), again with each ``resume``.
        python: the interpreter in which the flow is imported and its tasks run: a path (relative to the flow file) or
            a name in PATH, written as a literal text: ``"/opt/etl/bin/python"``. It needs Python 3.11 and the same
            version of redrive; the console and the executor stay in their own interpreter. Only for flows in files.
        env_file: a file of variables, as ".env", relative to the flow file, with lines ``NAME=value``. It is read for
            each run, by the line ``Flow(...)``: from there on its variables are in ``os.environ``, also in all tasks,
            and take the place of those that the process was started with. A line of another form is a FlowError.
        schedule: when ``redrive serve`` starts a run: the five fields of cron ("0 2 * * *"), a name of theirs
            ("@daily"), "every 15m", or ``after("load", "prices")``: once a day, after other flows. The parameter
            ``logical_time`` of the run is the instant that it stands for (of a day after other flows its begin); the
            deadline counts from there (after other flows, from the start).
        timezone: in which the schedule, and ``expect_by`` of a task, are read: a name of the IANA time zone database,
            as "Asia/Kolkata"; UTC unless given.
        misfire: which of the missed runs are started: "one" (the latest), "skip" (none that is
            late) or "all".
        splay: duration of 0 or more: runs start later by a share of it that is this flow's own.
        start_within: duration of 0 or more: page when a run has not started so long after it was due.
        holidays: a file of dates on which no run starts, relative to the flow file, with lines "2026-12-25 Christmas"
            or "2026-12-24 - 2026-12-27"; ``redrive serve`` reads it anew when it changes.
        retry, timeout, memory, cpus, downstream: for all tasks that do not say otherwise, also by None. Sensors and
            tasks with a ``kind`` have a timeout of their own; what ``add`` takes stays as it is.
        env: variables for all commands; those of a group and of the command itself are added to them.

    Raises:
        FlowError: an option is not what it must be, or they contradict each other; the sentence names them.

    Example:
        >>> flow = Flow("revenue", deadline="3h", pools={"database": 2}, params={"day": "2026-04-25"})
        >>> @flow.task(timeout=30)
        ... def extract(day):
        ...     return {"rows": 42}
        >>> @flow.task(after=extract, timeout="10m", pool="database")
        ... def load(extract):
        ...     print(extract["rows"], "rows")
        >>> [(task.name, task.parents) for task in flow.spec().tasks]
        [('extract', ()), ('load', ('extract',))]
    """

    def __init__(self, name: str, **given: Unpack[FlowOptions]) -> None:
        if not is_text(name) or len(name) > NAME_CHARACTERS_MAX:
            raise OptionError(
                f"a flow needs a name, which is a text of 1 to {NAME_CHARACTERS_MAX} characters: not {short_repr(name)}"
            )
        options = parse_options(f"flow {short_repr(name)}", FLOW, given)
        own_pools, machine_pools = _pools(name, options)
        defaults = {option: options[option] for option in DEFAULTS if option in options}
        super().__init__(name, {**own_pools, **machine_pools}, defaults)
        file = options.get("env_file")
        self._declared_at = source.caller_place()
        #: What was said when it was made; ``spec`` adds the rest.
        self.declared = FlowSpec(
            name,
            (),
            deadline_seconds=_deadline(name, options),
            machine_pools=tuple(machine_pools),
            schedule=_schedule(name, options, self._declared_at),
            env_file=None if file is None else source.use_env_file(name, file, self._declared_at),
            secrets=options.get("secrets") or (),
            **{f"retention_{unit}": bound for unit, bound in (options.get("retention") or {}).items()},
            **{option: options[option] for option in _OF_SPEC if option in options},
        )
        source.open_zone(self.declared.timezone, name)  # refuse an unknown one at once
        declared = {LOGICAL_TIME: ""} if self.declared.schedule else {}
        declared.update(options.get("params") or {})
        check_secret_params(name, declared, self.declared.secrets)
        self.params, self._refused_param = read_params(name, declared)
        self.downstreams: list[DownstreamSpec] = []
        self.pages: list[dict[str, object]] = []
        self.pings: list[str] = []
        self.path: str | None = None
        self.code_hash: str | None = None
        self.sources: Mapping[str, str] = {}

    # --- What holds for all tasks ----------------------------------------------------------------------------------

    def downstream(self, name: str, **options: Unpack[DownstreamOptions]) -> str:
        """Declare a system that tasks call (``task(downstream=name)``), and return its name.

        While the system fails, its circuit breaker (Nygard, "Release It!") holds the tasks that would call it. Its
        retry budget is a token bucket (Brooker, "Fixing retries with token buckets and circuit breakers", 2022): when
        it is empty, retries wait, and first tries do not. A task that waits spends no attempt. While calls of other
        tasks fail as well, a failed attempt is charged to the system: it spends no attempt of its task, at most
        ``max_attempts`` times; ten times if the breaker is not closed, and for a day if the failure is transient.

        Parameters:
            name: text, not empty.
            failure_rate, minimum_calls, window_seconds: the breaker opens after ``minimum_calls`` failures (at least 1;
                10) without a success between, or when the share of failed calls in the last ``window_seconds``
                (duration above 0; 60) is above ``failure_rate`` (above 0, at most 1; 0.5) by more than chance explains.
                Three tasks at least must have failed, or ``minimum_calls`` if that is less.
            open_seconds, open_seconds_max: durations of 0 or more. An open breaker sends its first probes after
                ``open_seconds`` (5), and after twice as long each time that they fail, up to ``open_seconds_max`` (30);
                not before a wait for which the system asks (Retry-After), up to 5 minutes.
            probes: up to so many probes, at least 1, ask one after another whether the system is back; most of them
                must succeed; 3.
            on_open: what becomes of tasks while it is open: "hold" (they wait), "fail" or "dead_letter"; "hold".
            release_per_second: tasks that start in the first second after it has closed; 5. While they succeed, twice
                as many start in each further second. 0: all at once.
            bucket_capacity, bucket_refund, bucket_per_second: the retry budget holds so many retries (0 or more; 10);
                a retry takes one, a success puts ``bucket_refund`` (0 or more; 0.5) back, and each second
                ``bucket_per_second`` (above 0; 5).
            metrics_only: True: count calls and failures, and never open.
            shared: True: the flows of this machine that name the system report to one another that it is down, and that
                it answers again; a flow holds its tasks after a failed call of its own. False: another system.
            rules: what failures of this system mean: a list of mappings with "class" ("transient", "permanent",
                "ambiguous", "validation", "auth", "timeout", "oom" or "unclassified") and at least one condition:
                "status", "error", "grpc", "sqlstate", "message", "exit_code" or "signal". The first that holds wins.

        Raises:
            FlowError: there is no such option, it is not what it must be, or the name is declared twice.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.downstream("payments-api", open_seconds="1m", rules=[{"status": 409, "class": "transient"}])
            'payments-api'
        """
        declared = parse_downstream(name, options)
        if any(other.name == name for other in self.downstreams):
            raise FlowError(f"downstream {name!r} is declared twice: say everything about it in one place")
        self.downstreams.append(declared)
        return name

    def page(self, sender: SenderKind, **options: Unpack[PageOptions]) -> None:
        """Declare a sender of pages, the messages that call a person to a run. Several senders may be declared.

        A sender that fails is tried again with growing waits, after the end of the run for up to 30 seconds more. A
        page that is still unsent then is sent by the next executor of the state file. The state file holds the kind of
        a sender, the host of a webhook and a hash; a resumed run takes its senders from the flow file.

        Parameters:
            sender: "command" (needs ``line`` or ``argv``; the page is on its standard input), "webhook" or "apprise"
                (need ``url``), or "bell" (the terminal's; takes nothing).
            line: of the shell.
            argv: a program and its arguments.
            url: https://... or http://... of a webhook, which must answer with a 2xx status: a redirect is an error; of
                Apprise, whatever that library reads.
            headers: of the webhook's request.
            timeout: duration above 0 that the sender may take; 10.

        Raises:
            FlowError: there is no such sender, or it does not take these options.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.page("bell")
            >>> flow.page("command", line="mail -s 'redrive' ops@example.com", timeout="30s")
            >>> flow.page("webhook", url="https://chat.example.com/hook/7")
        """
        self.pages.append(parse_page(self.name, sender, options))

    def ping(self, url: str) -> None:
        """Request a URL when a run starts and when it ends: a dead man's switch, which calls you if no run succeeds.

        The start requests ``url`` with "/start" after its path, an end with SUCCESS ``url`` itself, and any other end,
        or a run that waits for a human, "/fail": as healthchecks.io reads it. With ``{event}`` in the URL, that is
        "start", "success" or "fail" instead. A ping that fails is tried twice more; it never delays or fails a run.
        The URL is not stored.

        Parameters:
            url: https://... or http://...; a redirect is an error. Several may be given, each by a call of its own.

        Raises:
            FlowError: it is no such URL.

        Example:
            >>> flow = Flow("revenue")
            >>> flow.ping("https://hc-ping.com/5f1c2e0a")
            >>> flow.ping("https://uptime.example.com/api/push/k7?status={event}")
        """
        self.pings.append(parse_ping(self.name, url))

    # --- The specification -----------------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., object]]:
        """The functions of the tasks by task name; commands have none."""
        return {task.name: task.fn for task in self.tasks if task.fn is not None}

    @property
    def key_functions(self) -> dict[str, Callable[..., object]]:
        """The functions ``key`` of the map tasks that have one, by task name."""
        return {task.name: task.map_key for task in self.tasks if task.map_key is not None}

    def spec(self) -> FlowSpec:
        """Return the flow as plain values, checked as a whole.

        Raises:
            FlowError: the flow has no tasks, or a parent is unknown.
            CycleError: (a FlowError) tasks wait for each other in a ring.

        Example:
            >>> flow = Flow("ring")
            >>> first, second = flow.command("a", "true", after="b"), flow.command("b", "true", after="a")
            >>> flow.spec()
            Traceback (most recent call last):
            ...
            redrive.engine.errors.CycleError: the tasks wait for each other in a ring: a -> b -> a; remove one...
        """
        if not self.tasks:
            raise FlowError(f"flow {short_repr(self.name)} has no tasks")
        try:
            if self._refused_param is not None:
                raise FlowError(self._refused_param)
            self.params.check_complete()
        except FlowError as error:
            raise error.at(source.location_of(self._declared_at)) from None
        params = self.params.stored()
        check_params(self.name, params)  # again: user code may have changed them
        try:
            build = TaskSpecBuilder(self._names, self._places.keys(), self._group_of).build
            specs = tuple(map(build, self.tasks))
            validate_graph([(spec.name, spec.parents) for spec in specs])
        except FlowError as error:
            raise error.at(source.location_of(self._places.get(error.task or ""))) from None
        given = {name for task in specs if task.command_options is not None for name in task.command_options.env}
        return msgspec.structs.replace(
            self.declared,
            name=self.name,  # a program may compute it of a parameter
            tasks=specs,
            pools=self.pools,
            downstreams=tuple(self.downstreams),
            pages=tuple(self.pages),
            pings=tuple(self.pings),
            params=params,
            param_types={name: param.spec for name, param in self.params.declared.items()},
            unused_env=tuple(name for name in self._env_names if name not in given),
            code_hash=self.code_hash,
            path=self.path,
            sources=self.sources,
        )


#: The options that a FlowSpec holds by the same name and in the same form.
_OF_SPEC = ("deadline_action", "dead_letter_ttl", "page_after", "log_limit_mb", "max_parallel", "timezone", "python")


def _pools(flow: str, options: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the slots of the pools of the flow, and of those of the machine."""
    own, shared = options.get("pools") or {}, options.get("machine_pools") or {}
    for pool in own.keys() & shared.keys():
        raise OptionError(f"flow {flow!r}: pool {pool!r} is of the flow or of the machine: name it in one of the two")
    return own, shared


def _deadline(flow: str, options: Mapping[str, Any]) -> float | None:
    seconds: float | None = options.get("deadline")
    if seconds is None and options.get("deadline_action", END) != END:
        raise OptionError(f"flow {flow!r}: deadline_action says nothing without a deadline")
    return seconds


def after(*flows: str, ended: bool = False, by: str | None = None) -> str:
    """Return the schedule of a flow that starts once a day, after others: ``Flow("build", schedule=after("load"))``.

    It starts when all runs of those flows for the same day, each in its own time zone, have succeeded, or were PARTIAL
    because an operator has skipped tasks. A flow without a run on that day is not waited for; if none has one, nothing
    starts.

    Parameters:
        flows: names of flows that ``redrive serve`` starts by a schedule.
        ended: True: the runs may also have failed.
        by: a time of day, as "06:00", in the time zone of the flow: the first one after the last of those runs is due.
            From then on a run that has not started is late, and pages.

    Raises:
        FlowError: a name is none, or holds a comma or a semicolon; a time is none.

    Example:
        >>> after("load", "prices", by="06:00")
        'after load, prices; by 06:00'
    """
    if not flows or not all(is_text(flow) and flow.strip() == flow and not set(flow) & set(",;") for flow in flows):
        raise OptionError(f"after() takes names of flows, without a comma or a semicolon: not {short_repr(flows)}")
    expression = f"after {', '.join(flows)}{'; ended' if ended else ''}{f'; by {by}' if by is not None else ''}"
    source.open_schedule(ScheduleSpec(expression), flows[0])
    return expression


#: Option -> the field of a ScheduleSpec.
_OF_SCHEDULE = {"misfire": "misfire", "splay": "splay_seconds", "start_within": "start_within_seconds"}


def _schedule(flow: str, options: Mapping[str, Any], declared_at: source.SourceLocation | None) -> ScheduleSpec | None:
    expression, file = options.get("schedule"), options.get("holidays")
    spec = ScheduleSpec(
        expression or "",
        options.get("timezone", "UTC"),
        **{field: options[option] for option, field in _OF_SCHEDULE.items() if option in options},
    )
    if expression is None:
        if file is not None or spec != ScheduleSpec("", spec.timezone):
            raise OptionError(f"flow {flow!r}: {', '.join(_OF_SCHEDULE)}, holidays say nothing without a schedule")
        return None
    if file is not None:
        dates, path = source.read_holidays(flow, file, declared_at)
        spec = msgspec.structs.replace(spec, holidays=dates, holidays_path=path)
    follows = source.open_schedule(spec, flow).follows  # an invalid schedule is refused at once
    if follows and spec.splay_seconds:
        raise OptionError(f"flow {flow!r}: splay says nothing with after()")
    if flow in follows:
        from ..core.predecessors import cycle_sentence  # here: a flow without a schedule needs no cron

        raise OptionError(cycle_sentence(flow, {flow: [flow]}))
    return spec
