"""How a flow file declares tasks: functions, lines of the shell and sensors, alone or in groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, Unpack, cast

from ..core.durations import Duration
from ..core.option_types import NAME, choice, is_text, short_repr
from ..core.spec import Kind, ResultSource, Shell
from ..errors import FlowError, OptionError
from .groups import GroupDefaults, TaskGroup
from .options import (
    ABOVE_ZERO,
    AFTER,
    COMMAND,
    DEFAULTS,
    ENVIRONMENT,
    TASK_OPTIONS,
    After,
    DefaultOptions,
    TaskOptions,
    WorkKind,
    parse_named_option,
    parse_options,
    reject_unknown_options,
)
from .source_location import Place, caller_place, location_of
from .task_def import TaskDef, check_consistency
from .task_spec_builder import identity_of

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
        self._places: dict[str, Place | None] = {}  # where each task is declared
        self._scopes = [
            GroupDefaults(defaults, dict.fromkeys(defaults, "the flow"))
        ]  # the open groups, the innermost last
        self._group_of: dict[str, str] = {}

    def task(
        self,
        fn: Returned | None = None,
        /,
        *,
        name: str | None = None,
        after: After | Iterable[After] = (),
        kind: WorkKind | None = None,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a task: ``@flow.task`` or ``@flow.task(...)``. The function is returned as it is.

        The function runs in a process of its own. Its parameters are matched by name: ``ctx`` is the ``Context``, the
        name of a parent its result, the name of a parameter of the flow the value of that.

        The result is stored as JSON, and a child gets exactly the value that was returned: texts, numbers (of numpy as
        well), Decimal, dates and times, timedelta, bytes, UUID, Path, members of an enum, dataclasses, named tuples,
        and lists, tuples, sets and mappings of these. A value of another type is not stored: the task succeeds and
        says so, and a child that asks for the result fails. More than 64 KiB of JSON fail the attempt.

        Parameters:
            name: of the task; the name of the function unless given.
            after: a task function, the name of a task (which may be defined later), or a list of these.
            kind: "etl" or "backfill": a timeout of 30 minutes or 6 hours, unless there is one. "effect": it does
                something to the world (a payment, a mail) at most once: its idempotency key is on the disk before it
                starts, and if its progress is unknown, only an operator runs it again.
            options: timeout: duration above 0 that one attempt may take (30, "10m"); then it is killed. None: no
                bound. retry, max_attempts, grace_seconds, python, isolation, downstream, pool, pool_slots, max_active,
                idempotent, effect, optional, rule, owner, requires, expect_by, warn_if_slower, max_losses,
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
            redrive.engine.errors.OptionError: task '<lambda>': there is no option 'tmeout'; there are name, ...
        """

        def register(function: Function) -> Function:
            self._add("python", _name_of(name, function), function, after, options, kind)
            return function

        return cast("Returned", register if fn is None else register(fn))

    def map(
        self,
        fn: Returned | None = None,
        /,
        *,
        over: After,
        max_size: int = 1000,
        name: str | None = None,
        after: After | Iterable[After] = (),
        kind: WorkKind | None = None,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a map task: ``@flow.map(over=list_orders)`` calls it once for each element of a list.

        The list is the result of the task ``over``. As soon as that succeeds, the map task ``load`` gets one child for
        each element: ``load[0]``, ``load[1]``, ... A child is a task like any other: it has attempts, retries and a
        timeout, is seen in the console, and is requeued or skipped by its name. Its function gets the element as its
        first argument (``ctx`` does not count) and as ``ctx.item``.

        When the children have ended, the map task succeeds. Its result is the list of their results in the order of
        the elements, with None for a child that an operator skipped; over 64 KiB of JSON it is not stored. With the
        rule "all_done" the children may fail; None stands for each of them then.

        After a requeue of ``over``, children whose elements are as before keep their results, those with another
        element run again, and those whose elements are gone are skipped.

        Parameters:
            over: the task that returns a list or a tuple: its function or its name.
            max_size: at least 1. A longer list, or a result that is not a list, makes the map task a dead letter.
            name, after, kind: as for ``task``; of ``after``, all results can be arguments as well.
            options: as for ``task``; they hold for each child, but ``rule`` and ``owner`` for the map task as well.
                A ``pool`` bounds how many children run at a time; ``max_active`` is refused.

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

        def register(function: Function) -> Function:
            called = _name_of(name, function)
            self._add("python", called, function, after, options, kind, map_over=over, max_size=max_size)
            return function

        return cast("Returned", register if fn is None else register(fn))

    def sensor(
        self,
        fn: Returned | None = None,
        /,
        *,
        name: str | None = None,
        after: After | Iterable[After] = (),
        every: Duration = 30.0,
        **options: Unpack[TaskOptions],
    ) -> Returned:
        """Make a function a sensor: a true answer ends the task, a false one calls the function again later.

        Between two calls the task is SENSING and holds no slot. A false answer spends no attempt;
        ``retry=RetryPolicy(max_elapsed="2h")`` bounds the whole wait.

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
        called = f"task {short_repr(getattr(fn, '__name__', 'sensor') if name is None else name)}"
        recheck_seconds = parse_named_option(called, "every", ABOVE_ZERO, every)
        options = {"timeout": recheck_seconds + 60, **options}

        def register(function: Function) -> Function:
            called = _name_of(name, function)
            self._add("sensor", called, function, after, options, recheck_seconds=recheck_seconds)
            return function

        return cast("Returned", register if fn is None else register(fn))

    def command(
        self,
        name: str,
        line: str | Sequence[str],
        *,
        after: After | Iterable[After] = (),
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
                Those of the flow and of the group come first.
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
        check_consistency(definition, self.pools)
        if definition.name in self._places:
            first = self._location_of(definition.name) or "an unknown place"
            raise FlowError(f"two tasks are named {definition.name!r}, the first at {first}: give one another name")
        self._places[definition.name] = caller_place()
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
            retry, timeout, downstream, env: for the tasks of the group that do not say otherwise, as those of ``Flow``.

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
        scope = self._scopes[-1].open_group(name, parse_options(f"group {short_repr(name)}", DEFAULTS, options))
        self._scopes.append(scope)
        try:
            yield scope.groups[-1]
        finally:
            self._scopes.pop()

    def _add(
        self,
        kind: Kind,
        name: str,
        function: Callable[..., object] | None,
        after: After | Iterable[After],
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
        reject_unknown_options(called, options, (*KEYWORDS[kind], *TASK_OPTIONS))
        parents = parse_named_option(called, "after", AFTER, after)
        given = {**_timeout_of_work(work, called), **options, **({"effect": True} if work == EFFECT else {})}
        inherited = scope.inherited_by(kind, given)
        if "env" in inherited:
            own["env"] = {**inherited["env"], **parse_named_option(called, "env", ENVIRONMENT, own["env"] or {})}
        fields = {**inherited, **given, **own}
        seconds = parse_options(called, DEFAULTS, {"timeout": fields.pop("timeout", None)})["timeout"]
        self.add(TaskDef(name, function, parents, timeout_seconds=seconds, kind=kind, **fields))
        self.inherited[name] = {option: scope.origins[option] for option in inherited}
        for group in scope.groups:
            group.tasks.append(name)
            self._group_of[name] = group.name
        return name

    def _location_of(self, task: str) -> str | None:
        place = self._places.get(task)
        return None if place is None else location_of(place)


#: The keywords that stand in the signatures of ``Flow.task``, ``Flow.sensor`` and ``Flow.command``.
KEYWORDS: dict[Kind, tuple[str, ...]] = {
    "python": ("name", "after", "kind"),
    "sensor": ("name", "after", "every"),
    "command": ("after", "kind", "shell", "cwd", "env", "stdin", "result"),
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
