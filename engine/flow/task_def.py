"""The definition of a task as a value, and the checks of its fields."""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, MethodType
from typing import Any, Unpack

from msgspec import structs

from ..core.dag import distinct
from ..core.option_types import Duration, short_repr
from ..core.spec import DEFAULT_RETRY, CommandOptions, TaskSpec, TriggerRule, map_task
from ..domain.task_options import child_prefix
from ..domain.text import sha256_hex
from ..errors import FlowError
from .options import TASK, Parent, TaskDefOptions, parse_options


class TaskDef:
    """A task as a value, for ``Flow.add`` and ``Executor(tasks=[...])``. ``@flow.task`` makes one of a function.

    Parameters:
        name: text, not empty, no NUL character; each task of a flow has another.
        fn: the function, which is called in a process of its own; None for kind "command".
        parents: task functions or names, after which it comes; ``rule`` says when it may start.
        max_attempts: starts in all, the first included: a whole number of at least 1. None: those of ``retry``, which
            it overrules where both are given.
        timeout_seconds: seconds above 0 that one attempt may take; then it is killed. None: no bound.
        memory: bytes that all processes of one attempt may hold together, or a text as "2GB"; one that holds more is
            ended, and the task is a dead letter. None: no bound.
        cpus: how many CPUs they may use together, as 1 or 0.5: by a cgroup, without which it is refused. None: no
            bound.
        retry: how often and after which waits a failure is tried again; None: ``RetryPolicy()``.
        grace_seconds: seconds of 0 or more from SIGTERM, at which ``finally`` blocks run, to SIGKILL.
        kind: "python", "command" (a line of the shell), "sensor" (checks until something is there) or "approval" (waits
            for an operator: ``Flow.approval``).
        command: of kind "command": a line of the shell, or a list of a program and its arguments.
        map_over: the task whose result is a list: ``fn`` is called for each element of it, as ``Flow.map`` describes.
        map_key: with ``map_over``: a function that returns the key of an element: a text, a number or a date.
        max_size: with ``map_over``: a whole number of at least 1; a longer list makes a dead letter.
        collect: with ``map_over``: the rule by which the children count, as ``Flow.map`` describes it.
        shell, cwd, env, stdin, result: of kind "command": as ``Flow.command`` describes them.
        isolation: "process" (a new process, killed at its timeout; if the import of the flow leaves threads running, as
            "worker", because no process can be forked beside them), "worker" (killed as well; a process that runs
            other attempts of the flow before and after, so that modules, globals and caches are shared: it is replaced
            after anything but a success, and if an attempt changed or left something else in it, as a working
            directory, a variable of the environment, a descriptor, a thread or a child process), "thread" (no fork; it
            is only cancelled, by ``ctx.cancelled``) or "dask" (a process on a worker of the Dask cluster that
            ``RunOptions.dask`` names).
        dask: with ``isolation="dask"``: a mapping that Dask reads: "resources" (amounts by name, of which the worker
            must have so much free), "workers" (addresses, hosts or names of those that may run it), "priority" (a whole
            number; tasks of a higher one get a worker first).
        downstream: the system that it calls, declared by ``Flow.downstream``: an open breaker holds the task.
        pool: a pool of the flow or of the machine, of whose slots it takes ``pool_slots`` (at least 1) while it runs.
        idempotent: False: if the progress of an attempt is unknown, the task is a dead letter and is not run again.
        effect: True for what is done to the world (a payment, a mail): at most once. Its idempotency key is on the
            disk before it starts, and it is not idempotent.
        optional: True: when it fails, the run ends PARTIAL, not FAILED.
        recheck_seconds: seconds above 0 between two checks of a sensor.
        rule: when it may start. "all_success": every parent succeeded, or an operator skipped it;
            "all_success_strict": every parent succeeded; "none_failed": no parent failed, and not all
            have skipped themselves; "all_done": every parent has ended, however. A parent that is a dead letter holds
            it; with "all_done" only until the deadline of the run.
        owner: the person or team in charge, whom pages name.
        requires: the parents whose results it cannot do without: an operator can skip one of them only with a
            substitute result. None: those for which ``fn`` has a parameter without a default.
        expect_by: a page, and a notice beside the task, unless it has succeeded by then: a time of day as "03:00" in
            the ``timezone`` of the flow, the first one after the start of the run, or a duration after that start, as
            "2h". The start of a scheduled run is its logical time.
        max_losses: so many attempts, at least 1, lost together with their executor or host make a dead letter.
        max_bad_rows: a whole number of 0 or more: more rows in quarantine fail the attempt. None: 10,000.
        max_bad_ratio: the same as a share of all rows, from 0 to 1. None: no bound, but at ``ctx.rows``, where three
            rows or more that fail alike and none that is good fail the attempt as well; 1 accepts that.
        strict_rows: True: rows in quarantine make the run PARTIAL.

    Raises:
        OptionError: (a ValueError) an option is not what it must be, or there is none of that name.
        FlowError: options contradict each other. The sentences of both name the task.

    Example:
        >>> TaskDef("load", print, ["clean"], max_attempts=5, timeout_seconds=600).spec.timeout
        600.0
        >>> TaskDef("load", print, max_attempts=0)
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: task 'load': max_attempts is a whole number of at least 1 (the first start \
counts too), or None, not 0
    """

    __slots__ = ("collect", "fn", "map_key", "map_over", "max_size", "parents", "requires", "spec")

    def __init__(
        self,
        name: str,
        fn: Callable[..., object] | None,
        parents: Parent | Iterable[Parent] = (),
        max_attempts: int | None = None,
        timeout_seconds: Duration | None = None,
        **options: Unpack[TaskDefOptions],
    ) -> None:
        bounds = {"max_attempts": max_attempts, "timeout_seconds": timeout_seconds}
        first = {"name": name, "parents": parents, **{key: bound for key, bound in bounds.items() if bound is not None}}
        given = parse_options(f"task {short_repr(name)}", TASK, {**first, **options})
        self.fn = fn
        self.parents: tuple[Parent, ...] = tuple(given["parents"])
        self.requires: list[Parent] | None = given.get("requires")
        self.map_over: Parent | None = given.get("map_over")
        self.map_key: Callable[[Any], object] | None = given.get("map_key")
        self.max_size: int = given.get("max_size", 1000)
        self.collect: TriggerRule | None = given.get("collect")
        #: Its options as the engine stores them, without what follows from the other tasks of its flow.
        self.spec = _spec_of(given)
        if problem := _problem_of(self, given):
            raise FlowError(f"task {name!r}: {problem}", task=name)

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.spec.name


#: The options that a TaskSpec holds by the same name and in the same form.
_COPIED = (TaskSpec.__struct_fields__ & TASK.keys()) - {"parents", "requires", "retry", "command", "idempotent"}


def _spec_of(given: Mapping[str, Any]) -> TaskSpec:
    command, retry, starts = given.get("command"), given.get("retry") or DEFAULT_RETRY, given.get("max_attempts")
    return TaskSpec(
        command=command if command is None or isinstance(command, str) else shlex.join(command),
        command_options=_command_options(given),
        retry=retry if starts in (None, retry.max_attempts) else replace(retry, max_attempts=starts),
        timeout=given.get("timeout_seconds"),
        idempotent=given.get("idempotent", True) and not given.get("effect"),
        **{name: given[name] for name in _COPIED if name in given},
    )


_OF_COMMANDS = frozenset(["command", "shell", "cwd", "env", "stdin", "result"])


def _command_options(given: Mapping[str, Any]) -> CommandOptions | None:
    """Return how the command runs; None for a line with the default of each option."""
    if _OF_COMMANDS.isdisjoint(given):
        return None  # fast: most tasks of a large flow stop here
    command, stdin = given.get("command"), given.get("stdin")
    options = CommandOptions(
        argv=() if isinstance(command, str | None) else tuple(command),
        shell=given.get("shell") or "sh",
        cwd=given.get("cwd"),
        env=given.get("env") or {},
        stdin=stdin if isinstance(stdin, str) else None,
        stdin_path=os.fspath(stdin) if isinstance(stdin, os.PathLike) else None,
        result=given.get("result", "file"),
    )
    return None if options == CommandOptions() else options


#: Options that contradict each other: when they do, and the sentence for the user.
_CONTRADICTIONS: tuple[tuple[Callable[[TaskSpec], bool], str], ...] = (
    (lambda task: task.kind == "command" and not (task.command or "").strip(), "the command is empty"),
    (
        lambda task: task.kind != "command" and task.command_options is not None,
        "cwd, env, stdin and result are options of flow.command(name, line)",
    ),
    (
        lambda task: task.kind != "command" and task.command is not None,
        "it has a function and a command: use flow.command(name, line) for a shell line",
    ),
    (
        lambda task: task.kind == "sensor" and task.effect,
        "a sensor checks again and again: what is done at most once is a task of its own behind it",
    ),
    (
        lambda task: task.dask is not None and task.isolation != "dask",
        "dask= says which workers of a cluster run it: add isolation='dask'",
    ),
    (lambda task: task.kind == "command" and task.isolation == "thread", "a command cannot run in a thread"),
    (
        lambda task: task.kind == "command" and task.isolation == "worker",
        "a command cannot run in a worker: it is a program of its own; give it isolation='process'",
    ),
    (
        lambda task: task.memory is not None and task.isolation in ("thread", "dask"),
        "memory= bounds a process of this machine: give it isolation='process' or 'worker'",
    ),
    (
        lambda task: task.cpus is not None and task.isolation != "process",
        "cpus= bounds a process that is its own: give it isolation='process'",
    ),
)


def _problem_of(task: TaskDef, given: Mapping[str, Any]) -> str | None:
    kind = task.spec.kind
    if kind not in ("command", "approval") and not callable(task.fn):
        return f"its function is {short_repr(task.fn)}, which cannot be called"
    if given.get("shell") is not None and not isinstance(given.get("command"), str):
        return "a list runs without a shell: leave shell= out, or write the command as one text"
    if kind != "python" and task.map_over is not None:
        return "only a function can be mapped over a list"
    return next((sentence for applies, sentence in _CONTRADICTIONS if applies(task.spec)), None)


def check_pool(task: TaskSpec, pools: Mapping[str, int]) -> None:
    """Raise FlowError if the flow has no such pool, or one with fewer slots than the task takes."""
    pool, slots, problem = task.pool, task.pool_slots, ""
    if pool is None:
        problem = "" if slots == 1 else f"it wants {slots} slots and names no pool; add pool=..."
    elif pool not in pools:
        problem = f"its pool {pool!r} is not declared; add it to Flow(pools={{{pool!r}: 2}})"
    elif slots > pools[pool]:
        problem = f"it wants {slots} slots of pool {pool!r}, which has {pools[pool]}"
    if problem:
        raise FlowError(f"task {task.name!r}: {problem}", task=task.name)


# --- Reads a task function: where it is defined, and which results it requires ---------------------------------------


WRAPPERS_MAX = 50  # of one function, in case that they form a ring


def required_parents(function: Callable[..., object] | None, parents: Sequence[str]) -> tuple[str, ...]:
    """Return parents for which ``function`` has a parameter without a default, by the rule of ``runner/call.py``."""
    code = getattr(function, "__code__", None)
    has_no_parameters = isinstance(code, CodeType) and not code.co_argcount + code.co_kwonlyargcount
    if function is None or not parents or (has_no_parameters and not hasattr(function, "__wrapped__")):
        return ()  # reading a signature is slow, and most of a large flow stops here
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    return tuple(parent for parent in parents if parameter_of(parent) in required)


def parameter_of(parent: str) -> str:
    """Return the name of the parameter that receives the result of a parent."""
    return parent if parent.isidentifier() else re.sub(r"\W", "_", parent)


def definition_site(function: Callable[..., object] | None) -> str | None:
    """Return "file:line" for people; None for a callable that is not written in Python."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def code_digest(function: Callable[..., object] | None) -> str | None:
    """Return a digest of the function's own code, without its place in the file; None if there is no Python code.

    It begins with the version of Python, because another version compiles the same text to other code.
    """
    code = getattr(_innermost(function), "__code__", None)
    return _digest(code) if isinstance(code, CodeType) else None


def _innermost(function: object) -> object:
    """Return the function that wrappers, partial objects and callable objects call in the end."""
    for _ in range(WRAPPERS_MAX):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if not callable(inner):
            break
        function = inner
    return function if hasattr(function, "__code__") else inspect.getattr_static(type(function), "__call__", None)


@functools.cache  # a loop makes many functions of one code object
def _digest(code: CodeType) -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}:{sha256_hex(_text_of(code).encode())[:12]}"


def _text_of(value: object) -> str:
    """Return a text that is equal for equal code, wherever it is defined."""
    if isinstance(value, CodeType):
        constants = [_text_of(constant) for constant in value.co_consts]
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_kwonlyargcount)
        return repr((value.co_code, constants, names))
    if isinstance(value, frozenset):
        return repr(sorted(map(repr, value)))
    return repr(value)


# --- Builds the ``TaskSpec`` of each ``TaskDef`` of a flow -----------------------------------------------------------


class TaskSpecBuilder:
    """Adds to the specs of the tasks of one flow what follows from the other tasks.

    ``names``: the tasks by the identity of their functions; ``declared``: the names of all tasks; ``group_of``: the
    group of a task.
    """

    def __init__(
        self, names: Mapping[tuple[int, int], str], declared: Collection[str], group_of: Mapping[str, str]
    ) -> None:
        self._names = names
        self._declared = declared
        self._group_of = group_of

    def build(self, task: TaskDef) -> TaskSpec:
        """Return the whole spec of a task. Raises FlowError."""
        parents = self._parents(task)
        spec = structs.replace(
            task.spec,
            parents=parents,
            requires=self._requires(task, parents),
            group=self._group_of.get(task.name),
            source=definition_site(task.fn),
            code=code_digest(task.fn),
        )
        if task.map_over is None:
            return spec
        self._check_names_of_children(task.name)
        return map_task(spec, parents[0], task.max_size, "value" if task.map_key is None else "key", task.collect)

    def _parents(self, task: TaskDef) -> tuple[str, ...]:
        written = task.parents if task.map_over is None else (task.map_over, *task.parents)
        return distinct(tuple([one if type(one) is str else self._name_of(task, one) for one in written]))

    def _requires(self, task: TaskDef, parents: tuple[str, ...]) -> tuple[str, ...]:
        if task.requires is None:
            return required_parents(task.fn, parents)
        names = tuple(dict.fromkeys(self._name_of(task, parent) for parent in task.requires))
        unrelated = [name for name in names if name not in parents]
        if unrelated:
            why = f"requires the result of {unrelated[0]!r}, which it does not come after"
            raise FlowError(f"task {task.name!r} {why}", task=task.name)
        return names

    def _name_of(self, task: TaskDef, parent: Parent) -> str:
        if isinstance(parent, str):
            return parent
        name = self._names.get(identity_of(parent))
        if name is None:
            called = getattr(parent, "__name__", repr(parent))
            why = f"which is not a task of this flow; say flow.task({called}) first"
            if called in self._declared:
                why = f"a function that is not the one of task {called!r}; name that task: after={called!r}"
            raise FlowError(f"task {task.name!r} comes after {called!r}, {why}", task=task.name)
        return name

    def _check_names_of_children(self, task: str) -> None:
        prefix = child_prefix(task)
        for name in self._declared:
            if name.startswith(prefix):
                raise FlowError(f"task {name!r} has the name of a child of the map task {task!r}: rename it", task=name)


def identity_of(function: Callable[..., object]) -> tuple[int, int]:
    """Return the identity of a function. A method is a new object each time that it is read from its object."""
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return 0, id(function)
