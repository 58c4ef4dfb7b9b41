"""Check the functions of a flow: their parameters, the types of their results, and captured objects.

Functions are inspected and never called: a check may run on a machine where the tasks must not run.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import io
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from ..core.spec import FlowSpec, TaskSpec
from ..flow.finding import Finding
from ..runner.call import plan_of
from ..runner.callable_check import check_calls, parameter_of

Function = Callable[..., object]


def check_functions(flow: FlowSpec, functions: Mapping[str, Function]) -> list[Finding]:
    """Check all functions: first their parameters, then task by task in the order of the flow."""
    findings = list(check_calls(flow, {name: plan_of(function) for name, function in functions.items()}))
    for task in flow.tasks:
        function = functions.get(task.name)
        if function is None:
            findings += _program(task)
            continue
        findings += _result(task, function, flow)
        findings += _edges(task, function, functions)
        findings += _captured(task, function)
    return findings


# --- Results along the edges ----------------------------------------------------------------------------------------

#: The type that a child receives, by the type that its parent returns: results are sent as JSON.
_ARRIVES_AS: tuple[tuple[tuple[type, ...], type], ...] = (
    ((datetime, date, time, timedelta, Decimal, bytes, bytearray, Path), str),
    ((tuple, set, frozenset), list),
)


#: Types that are stored as JSON, besides dataclasses. Results of other types are not stored.
_JSON_KINDS = (
    *(str, int, float, list, dict, tuple, set, frozenset, bytes, bytearray, memoryview, type(None)),
    *(datetime, date, time, timedelta, Decimal, UUID, enum.Enum, os.PathLike, msgspec.Struct),
)


def _result(task: TaskSpec, function: Function, flow: FlowSpec) -> Iterator[Finding]:
    """Find results that are not JSON: a warning if a child requires the result, otherwise a note."""
    given = _hints(function).get("return")
    given = typing.get_origin(given) or given
    if not isinstance(given, type) or given is object or inspect.isabstract(given) or is_dataclass(given):
        return
    if issubclass(given, _JSON_KINDS) or hasattr(given, "__attrs_attrs__") or given.__module__ == "typing":
        return
    asking = [child.name for child in flow.tasks if task.name in child.requires]
    message = f"returns a {given.__name__}, which is not JSON: it is not kept"
    if asking:
        yield Finding("warning", "result", f"{message}, and {asking[0]!r} asks for it", task.name)
    else:
        yield Finding("note", "result", message, task.name)


def _edges(task: TaskSpec, function: Function, functions: Mapping[str, Function]) -> Iterator[Finding]:
    hints = _hints(function)
    for parent in task.parents:
        given = _hints(functions[parent]).get("return") if parent in functions else None
        want = hints.get(parameter_of(parent))
        if given is None or want is None:
            continue
        arrives = arrival_of(given)
        if arrives is not None and not _accepts(want, arrives):
            name = _type_name(given)
            how = name if arrives is given else f"a {name}, which arrives as {arrives.__name__}"
            message = f"wants {parent!r} to be {_type_name(want)}, and it is {how}"
            yield Finding("warning", "edge-types", message, task.name)


def _hints(function: Function) -> dict[str, object]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that exist only for type checkers, or an error in an annotation
        return {}


def arrival_of(given: object) -> type | None:
    """Return the type that a child receives; None if it is unknown."""
    given = typing.get_origin(given) or given
    if not isinstance(given, type) or given is object:
        return None
    for kinds, arrives in _ARRIVES_AS:
        if issubclass(given, kinds):
            return arrives
    return dict if is_dataclass(given) else None if issubclass(given, enum.Enum) else given


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
    return want.__name__ if isinstance(want, type) else str(want)


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


# --- Commands -------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_./+-]+")


def _program(task: TaskSpec) -> Iterator[Finding]:
    """Check the first word of a command, if it is clearly the name of a program."""
    try:
        first = shlex.split(task.command or "", comments=True)[0]
    except (ValueError, IndexError):
        return
    if _NAME.fullmatch(first) and not _shell_knows(first):
        yield Finding("warning", "program", f"the program {first!r} is not on this machine", task.name)


@cache
def _shell_knows(word: str) -> bool:
    """True for programs, keywords and built-in commands of the shell."""
    return subprocess.run(["/bin/sh", "-c", 'command -v -- "$1" >/dev/null', "sh", word], check=False).returncode == 0
