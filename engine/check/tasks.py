"""Check each task: its function, the source of the function, its command.

Functions are inspected and never called, and commands are read and never executed: a check may run on a machine where
the tasks must not run.
"""

from __future__ import annotations

import ast
import asyncio
import dis
import inspect
import io
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import threading
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from ..core.result_codec import is_storable, name_of
from ..core.spec import FlowSpec, TaskSpec
from ..domain.elements import KEY, keyless_effect
from ..flow.source import Finding, parse_source, split_target
from ..flow.task_def import parameter_of
from ..runner.call import check_calls, plan_of
from ..runner.cgroups import cpus_problem, delegated
from ..runner.command import SHELLS, argv_of, line_problem, options_of, variable_name, working_folder

# --- Check the functions of a flow: their parameters, the types of their results, and captured objects ---------------


Function = Callable[..., object]


def check_tasks(flow: FlowSpec, functions: Mapping[str, Function]) -> list[Finding]:
    """Check the functions and the commands of a flow, and the source of its file."""
    of_tasks = [*check_functions(flow, functions), *check_commands(flow), *check_cpus(flow)]
    return [*of_tasks, *check_pagers(flow), *check_source(flow, functions.values())]


def check_cpus(flow: FlowSpec) -> Iterator[Finding]:
    """Find tasks whose CPUs cannot be bounded here."""
    base = delegated()
    for task in flow.tasks:
        problem = cpus_problem(task, base)
        if problem is not None:
            yield Finding("error", "cpus", problem, task.name)


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
        findings += _unbounded_rows(task, function)
        findings += _keyless_effect(task, function, functions)
    return findings


def _unbounded_rows(task: TaskSpec, function: Function) -> Iterator[Finding]:
    """Find rows that are set aside one by one: nothing says how many were good, so that all of them may be bad."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    names: tuple[str, ...] = code.co_names if isinstance(code, types.CodeType) else ()
    if "quarantine" in names and "rows" not in names and task.max_bad_rows is None:
        message = "sets rows aside by ctx.quarantine alone: where its code fails at every row, it is a success"
        yield Finding("warning", "rows", f"{message}; use ctx.rows, or give max_bad_rows", task.name)


def _keyless_effect(task: TaskSpec, function: Function, functions: Mapping[str, Function]) -> Iterator[Finding]:
    """Find effects for mappings or objects without a key: a changed field would make another element of the same."""
    if task.map is None or task.map.identity == KEY or not task.map.child.effect:
        return
    item, over = plan_of(function).item_parameter or "", functions.get(task.map.over)
    given = None if over is None else _hints(over).get("return")
    arguments = typing.get_args(given)
    kinds = [_hints(function).get(item), arguments[0] if arguments else None]
    if any(map(_has_fields, kinds)):
        yield Finding("error", "map-key", keyless_effect(task.name, task.map.over), task.name)


def _has_fields(kind: object) -> bool:
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return False
    return issubclass(kind, Mapping) or is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_fields")


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


# --- Finds tasks made in a loop whose function reads a variable of the loop only when it runs ------------------------
#
# Python looks such a variable up at the call, when the loop is over: every task would work on the last value.


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def late_binding(tree: ast.AST, file: str, functions: Iterable[Function]) -> Iterator[Finding]:
    """Find what several tasks share: one function of a loop in this file, which reads a variable of the loop."""
    alike: dict[types.CodeType, list[Function]] = {}
    for function in map(inspect.unwrap, functions):
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and os.path.realpath(code.co_filename) == os.path.realpath(file):
            alike.setdefault(code, []).append(function)
    for code, found in alike.items():
        line = code.co_firstlineno
        late = sorted(_loop_variables(tree, line) & _read_by_all(code, found)) if len(found) > 1 else []
        if late:
            bound = ", ".join(f"{name}={name}" for name in late)
            how = f"lambda {bound}: ..." if code.co_name == "<lambda>" else f"def {code.co_name}({bound})"
            message = (
                f"reads {' and '.join(map(repr, late))} when it runs, after the loop: every task of the loop gets the "
                f"last value; keep the value of each by a default: {how}"
            )
            yield Finding("warning", "late-binding", message, line=line)


def _loop_variables(tree: ast.AST, line: int) -> set[str]:
    """The names that the loops around a line bind."""
    loops = (node for node in ast.walk(tree) if isinstance(node, _LOOPS))
    nodes = (node for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0) for node in ast.walk(loop))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _read_by_all(code: types.CodeType, functions: Sequence[Function]) -> set[str]:
    """The variables outside of functions with the same code that are the same for all of them."""
    cells = zip(
        code.co_freevars, *(getattr(function, "__closure__", None) or () for function in functions), strict=True
    )
    return {name for name, first, *others in cells if all(one is first for one in others)} | _globals_of(code)


def _globals_of(code: types.CodeType) -> set[str]:
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return own.union(*(_globals_of(part) for part in code.co_consts if isinstance(part, types.CodeType)))


# --- Check the source of a flow for endless retries, swallowed errors, blocking waits and late binding ---------------
#
# These are the pitfalls of documents 001 and 004. Only the flow file itself is read; no code in it runs.


_BROAD = frozenset(["Exception", "BaseException"])
_RETRY_NAMES = frozenset(["retry", "retrying", "aretrying"])
_WAITS = frozenset(["sleep", "wait"])


def check_source(flow: FlowSpec, functions: Iterable[Function]) -> list[Finding]:
    """Return findings with lines of the flow file; none if the file cannot be read."""
    if flow.path is None or (tree := parse_source(flow.path)) is None:
        return []
    findings = [finding for node in ast.walk(tree) for rule in SOURCE_RULES for finding in rule(node)]
    findings += late_binding(tree, split_target(flow.path)[0], functions)
    return sorted(findings, key=lambda finding: finding.line or 0)


def _endless_retry(node: ast.AST) -> Iterator[Finding]:
    """A loop that catches every error, without a bound and without a wait (004.14)."""
    if not isinstance(node, ast.While) or not isinstance(node.test, ast.Constant) or not node.test.value:
        return
    for statement in ast.walk(node):
        if isinstance(statement, ast.ExceptHandler) and _is_broad(statement) and not _leaves(statement):
            pause = "" if _calls(node, _WAITS) else " and does not wait"
            message = f"this loop tries again after every error, without a bound{pause}: use retry(...) instead"
            yield Finding("warning", "endless-retry", message, line=node.lineno)
            return


def _swallowed_errors(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.ExceptHandler) and _is_broad(node) and all(isinstance(one, ast.Pass) for one in node.body):
        message = "this hides every error, and the task succeeds: name the errors that it may ignore"
        yield Finding("warning", "swallowed", message, line=node.lineno)


def _sleep_in_a_coroutine(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.AsyncFunctionDef) and (call := _time_sleep(node)) is not None:
        message = "time.sleep stops the whole event loop: await asyncio.sleep"
        yield Finding("warning", "sleep-in-async", message, line=call.lineno)


def _loose_decorator(node: ast.AST) -> Iterator[Finding]:
    """A retry decorator without named errors, deadline or jitter (001.13, 004.15)."""
    if not isinstance(node, ast.Call) or _name_of(node.func) not in _RETRY_NAMES or node.args:
        return
    given = {keyword.arg for keyword in node.keywords}
    if None in given:  # **options
        return
    missing = []
    exceptions = next((keyword.value for keyword in node.keywords if keyword.arg == "exceptions"), None)
    if exceptions is None or any(_name_of(one) in _BROAD for one in ast.walk(exceptions)):
        missing.append("exceptions=(...) that can heal")
    missing += ["jitter="] if "jitter" not in given else []
    missing += ["deadline="] if "deadline" not in given else []
    if missing:
        yield Finding("note", "loose-retry", f"this retry names no {', no '.join(missing)}", line=node.lineno)


SOURCE_RULES: tuple[Callable[[ast.AST], Iterator[Finding]], ...] = (
    _endless_retry,
    _swallowed_errors,
    _sleep_in_a_coroutine,
    _loose_decorator,
)


# --- Syntax nodes ---------------------------------------------------------------------------------------------------


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or _name_of(kind) in _BROAD for kind in kinds)


def _leaves(handler: ast.ExceptHandler) -> bool:
    """True if the handler leaves the loop: a raise, a break or a return in it."""
    return any(isinstance(node, ast.Raise | ast.Break | ast.Return) for node in ast.walk(handler))


def _calls(node: ast.AST, names: frozenset[str]) -> bool:
    return any(isinstance(one, ast.Call) and _name_of(one.func) in names for one in ast.walk(node))


def _time_sleep(node: ast.AST) -> ast.Call | None:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute))
    return next((call for call in calls if ast.unparse(call.func) == "time.sleep"), None)


def _name_of(node: ast.AST | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


# --- Check commands before a run: what is missing on this machine, what goes on after its end, and secrets ------------


_NAME = re.compile(r"[A-Za-z0-9_./+-]+")
_SECRET = re.compile(
    r"""(?ix) (?: pass(?:word|wd)? | secret | token | api[_-]?key ) ["']? \s* = \s* ["']? (?![\s"'$`]) .
    | ://[^\s/@:$]*:(?!\$)[^\s/@]+@ """
)
_SECRET_NAME = re.compile(r"(?i)(pass(word|wd)?|secret|token|api_?key)$")


def check_commands(flow: FlowSpec) -> list[Finding]:
    """Return the findings of all commands, task by task."""
    root = os.path.dirname(split_target(flow.path)[0]) if flow.path else os.curdir
    return [
        Finding("warning", name, message, task.name)
        for task in flow.tasks
        if task.kind == "command"
        for name, rule in COMMAND_RULES
        for message in rule(task, root)
    ]


# --- What is missing ------------------------------------------------------------------------------------------------


def _program(task: TaskSpec, root: str) -> Iterator[str]:
    """Check the shell, and the first word if it is clearly the name of a program."""
    options, first = options_of(task), argv_of(task)[0]
    path = options.env.get("PATH") or os.environ.get("PATH")
    if shutil.which(first, path=path) is None:
        yield f"the {'program' if options.argv else 'shell'} {first!r} is not on this machine"
        return
    word = None if options.argv else _first_word(task.command or "")
    if word is not None and not _is_known_to_shell(SHELLS[options.shell], word, path):
        yield f"the program {word!r} is not on this machine"


def _not_startable(task: TaskSpec, root: str) -> Iterator[str]:
    """Check the first line and the mode of a file that the command names by its path."""
    if (problem := line_problem(task, root)) is not None:
        yield problem


def _first_word(line: str) -> str | None:
    try:
        first = shlex.split(line, comments=True)[0]
    except (ValueError, IndexError):
        return None
    return first if _NAME.fullmatch(first) else None


@cache
def _is_known_to_shell(shell: tuple[str, ...], word: str, path: str | None) -> bool:
    """True for programs, keywords and built-in commands of the shell."""
    environment = os.environ if path is None else {**os.environ, "PATH": path}
    line = [*shell, 'command -v -- "$1" >/dev/null', shell[0], word]
    return subprocess.run(line, check=False, env=environment).returncode == 0


def _cwd(task: TaskSpec, root: str) -> Iterator[str]:
    options = options_of(task)
    if options.cwd is not None and not os.path.isdir(working_folder(options, root)):
        yield f"its folder {options.cwd!r} is not on this machine; cwd is relative to the folder of the flow file"


def _stdin(task: TaskSpec, root: str) -> Iterator[str]:
    path = options_of(task).stdin_path
    if path is not None and not os.path.exists(os.path.join(root, path)) and not task.parents:
        yield f"its input {path!r} is not on this machine; stdin is relative to the folder of the flow file"


def check_pagers(flow: FlowSpec) -> Iterator[Finding]:
    """Find senders of pages that would page nobody on this machine."""
    for options in flow.pages:
        match options:
            case {"sender": "apprise"} if find_spec("apprise") is None:
                why = "the sender apprise needs a library: pip install 'redrive[notify]'"
                yield Finding("warning", "pager", why)
            case {"sender": "command", "argv": [str(program), *_]} if shutil.which(program) is None:
                yield _missing_pager(program)
            case {"sender": "command", "line": str(line)}:
                word = _first_word(line)
                if word is not None and not _is_known_to_shell(SHELLS["sh"], word, os.environ.get("PATH")):
                    yield _missing_pager(word)


def _missing_pager(program: str) -> Finding:
    return Finding("warning", "pager", f"no page is sent by {program!r}: this program is not on this machine")


# --- What goes on ----------------------------------------------------------------------------------------------------


def _argv(task: TaskSpec) -> list[str]:
    """Return the words of a command, with operators of the shell as words of their own."""
    options = options_of(task)
    if options.argv:
        return list(options.argv)
    lexer = shlex.shlex(task.command or "", posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed, as in a here-document
        return []


def _left_behind(task: TaskSpec, root: str) -> Iterator[str]:
    """Find what is to go on when the command has ended, which an attempt does not allow."""
    words = _argv(task)
    detached = [word for word in words if os.path.basename(word) in ("nohup", "disown", "setsid", "daemonize")]
    is_in_background = "&" in words and "wait" not in words
    if detached or is_in_background:
        what = detached[0] if detached else "what & puts into the background"
        yield (
            f"{what} is killed when the command ends: an attempt leaves no process behind; "
            "use systemd-run or docker run -d for what is to go on"
        )


# --- What gives a secret away ---------------------------------------------------------------------------------------


def _secret(task: TaskSpec, root: str) -> Iterator[str]:
    if any(_SECRET.search(word) for word in (task.command or "", *options_of(task).argv)):
        yield (
            "a secret is written in its command line, which ps and the state file show: read it from a variable of "
            'the environment, and declare the variable: Flow(secrets=["PGPASSWORD"])'
        )
    for name, value in options_of(task).env.items():
        if value and _SECRET_NAME.search(name):
            yield (
                f"the value of {name} is written in the flow: set the variable where redrive is started, and declare "
                f"it: Flow(secrets=[{name!r}])"
            )


def _same_variable(task: TaskSpec, root: str) -> Iterator[str]:
    names = Counter(variable_name("REDRIVE_RESULT_", parent) for parent in task.parents)
    for name in (name for name, count in names.items() if count > 1):
        yield f"several of its parents share the variable {name}: read $REDRIVE_INPUTS"


COMMAND_RULES: tuple[tuple[str, Callable[[TaskSpec, str], Iterator[str]]], ...] = (
    ("program", _program),
    ("program", _not_startable),
    ("background", _left_behind),
    ("cwd", _cwd),
    ("stdin", _stdin),
    ("secret", _secret),
    ("variable", _same_variable),
)
