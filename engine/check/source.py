"""Check the source of a flow for endless retries, swallowed errors, blocking waits and late binding.

These are the pitfalls of documents 001 and 004. Only the flow file itself is read; no code in it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..core.spec import FlowSpec
from ..flow.finding import Finding
from ..flow.flow_file_source import split_target
from .late_binding import late_binding

_BROAD = frozenset(["Exception", "BaseException"])
_RETRY_NAMES = frozenset(["retry", "retrying", "aretrying"])
_WAITS = frozenset(["sleep", "wait"])


def check_source(flow: FlowSpec) -> list[Finding]:
    """Return findings with lines of the flow file; none if the file cannot be read."""
    if flow.path is None:
        return []
    try:
        with open(split_target(flow.path)[0], encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    findings = [finding for node in ast.walk(tree) for rule in RULES for finding in rule(node)]
    return sorted(findings, key=lambda finding: finding.line or 0)


def _endless_retry(node: ast.AST) -> Iterator[Finding]:
    """A loop that catches every error, without a bound and without a wait (004.14)."""
    if not isinstance(node, ast.While) or not _is_true(node.test):
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


def _key_twice(node: ast.AST) -> Iterator[Finding]:
    """A pool or a parameter that is written twice: Python silently uses the last."""
    if not isinstance(node, ast.Call) or _name_of(node.func) != "Flow":
        return
    for keyword in node.keywords:
        keys = keyword.value.keys if isinstance(keyword.value, ast.Dict) else []
        names = [key.value for key in keys if isinstance(key, ast.Constant)]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            message = f"{keyword.arg} names {name!r} {names.count(name)} times, and only the last counts"
            yield Finding("warning", "key-twice", message, line=keyword.value.lineno)


RULES: tuple[Callable[[ast.AST], Iterator[Finding]], ...] = (
    _endless_retry,
    _swallowed_errors,
    _sleep_in_a_coroutine,
    _loose_decorator,
    _key_twice,
    late_binding,
)


# --- Syntax nodes ---------------------------------------------------------------------------------------------------


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


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
