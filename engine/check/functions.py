"""Check the functions of a flow: their parameters, the types of their results, and captured objects.

Functions are inspected and never called: a check may run on a machine where the tasks must not run.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import socket
import sqlite3
import threading
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..core.result_codec import is_storable, name_of
from ..core.spec import FlowSpec, TaskSpec
from ..flow.finding import Finding
from ..flow.introspect import parameter_of
from ..runner.call import check_calls, plan_of

Function = Callable[..., object]


def check_functions(flow: FlowSpec, functions: Mapping[str, Function]) -> list[Finding]:
    """Check all functions: first their parameters, then task by task in the order of the flow."""
    findings = list(check_calls(flow, {name: plan_of(function) for name, function in functions.items()}))
    map_tasks = frozenset(task.name for task in flow.tasks if task.map is not None)
    for task in flow.tasks:
        function = functions.get(task.name)
        if function is None:
            continue
        findings += _result(task, function, flow)
        findings += _edges(task, function, functions, map_tasks)
        findings += _captured(task, function)
    return findings


# --- Results along the edges ----------------------------------------------------------------------------------------


def _result(task: TaskSpec, function: Function, flow: FlowSpec) -> Iterator[Finding]:
    """Find results that cannot be stored: a warning if a child requires the result, otherwise a note."""
    given = _hints(function).get("return")
    given = typing.get_origin(given) or given
    if not isinstance(given, type) or given is object or inspect.isabstract(given) or given.__module__ == "typing":
        return
    if is_storable(given):
        return
    asking = [child.name for child in flow.tasks if task.name in child.requires]
    message = f"returns {name_of(given)}, which cannot be stored as a result"
    if asking:
        yield Finding("warning", "result", f"{message}, and {asking[0]!r} asks for it", task.name)
    else:
        yield Finding("note", "result", message, task.name)


def _edges(
    task: TaskSpec, function: Function, functions: Mapping[str, Function], map_tasks: Collection[str]
) -> Iterator[Finding]:
    """Find parameters whose type is not that of the parent's result: of a map task, a list of those of its function."""
    hints = _hints(function)
    if task.name in map_tasks:
        hints.pop(plan_of(function).item_parameter or "", None)  # it gets an element, whatever its name
    for parent in task.parents:
        given = _hints(functions[parent]).get("return") if parent in functions else None
        given = types.GenericAlias(list, (given,)) if parent in map_tasks and given is not None else given
        want = hints.get(parameter_of(parent))
        if given is None or want is None:
            continue
        kind = typing.get_origin(given) or given
        if (
            isinstance(kind, type)
            and kind not in (object, Any)
            and kind.__module__ != "numpy"
            and not _accepts(want, kind)
        ):
            message = f"wants {parent!r} to be {_type_name(want)}, and it is {_type_name(given)}"
            yield Finding("warning", "edge-types", message, task.name)


def _hints(function: Function) -> dict[str, object]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that exist only for type checkers, or an error in an annotation
        return {}


def _accepts(want: object, arrives: type) -> bool:
    if want is Any or want is object:
        return True
    origin = typing.get_origin(want)
    if origin is typing.Union or origin is types.UnionType:
        return any(_accepts(part, arrives) for part in typing.get_args(want))
    want = origin or want
    if not isinstance(want, type):
        return True  # a type variable or a literal: unknown
    return issubclass(arrives, want) or (want is float and arrives is int)


def _type_name(want: object) -> str:
    return want.__name__ if isinstance(want, type) and not typing.get_args(want) else str(want)


# --- Captured objects -----------------------------------------------------------------------------------------------

#: Objects of one process. An attempt is a fork: it would share the connection with every other attempt.
_UNSHAREABLE: tuple[type, ...] = (
    sqlite3.Connection,
    sqlite3.Cursor,
    socket.socket,
    io.IOBase,
    threading.Thread,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    asyncio.AbstractEventLoop,
    asyncio.Future,
    types.GeneratorType,
)
_UNSHAREABLE_MODULES = (
    "psycopg",
    "psycopg2",
    "asyncpg",
    "pymysql",
    "MySQLdb",
    "oracledb",
    "snowflake",
    "redis",
    "kafka",
)


def _captured(task: TaskSpec, function: Function) -> Iterator[Finding]:
    for where, value in _captured_values(function):
        kind = type(value)
        if isinstance(value, _UNSHAREABLE) or kind.__module__.partition(".")[0] in _UNSHAREABLE_MODULES:
            message = (
                f"captures {where}, a {kind.__module__}.{kind.__qualname__}: attempts would share it after the fork"
            )
            yield Finding("warning", "captured", f"{message}; open it inside the task", task.name)


def _captured_values(function: Function) -> Iterator[tuple[str, object]]:
    """Yield the values bound to a function: closure cells, defaults, arguments of a partial, globals that it uses."""
    bare = inspect.unwrap(getattr(function, "func", function))
    for place, value in enumerate(getattr(function, "args", ()) if hasattr(function, "func") else ()):
        yield f"argument {place}", value
    yield from (getattr(function, "keywords", None) or {}).items()
    code = getattr(bare, "__code__", None)
    if not isinstance(code, types.CodeType):
        return
    for name, cell in zip(code.co_freevars, bare.__closure__ or (), strict=False):
        try:
            yield repr(name), cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (("a default", value) for value in bare.__defaults__ or ())
    yield from ((repr(name), bare.__globals__[name]) for name in code.co_names if name in bare.__globals__)
