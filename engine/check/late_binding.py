"""Finds tasks made in a loop whose function reads a variable of the loop only when it runs.

Python looks such a variable up at the call, when the loop is over: every task would work on the last value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..flow.finding import Finding

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_REGISTERING = frozenset(["task", "sensor", "map", "TaskDef"])


def late_binding(node: ast.AST) -> Iterator[Finding]:
    """Yield a finding for each task function in this loop that reads variables of the loop."""
    if not isinstance(node, _LOOPS):
        return
    of_loop = set(_stored(_own_nodes(node)))
    for function in _task_functions(node):
        late = sorted(of_loop & _free_names(function))
        if late:
            bound = ", ".join(f"{name}={name}" for name in late)
            how = f"lambda {bound}: ..." if isinstance(function, ast.Lambda) else f"def {function.name}({bound})"
            message = (
                f"reads {' and '.join(map(repr, late))} when it runs, after the loop: every task of the loop gets the "
                f"last value; keep the value of each by a default: {how}"
            )
            yield Finding("warning", "late-binding", message, line=function.lineno)


def _own_nodes(loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a loop that are neither in a function nor in a loop inside of it."""
    for child in ast.iter_child_nodes(loop):
        if not isinstance(child, (*_FUNCTIONS, *_LOOPS, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    return (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _task_functions(loop: ast.AST) -> Iterator[_Function]:
    """Yield the functions in a loop that become tasks: by a decorator, or as an argument of a call."""
    given = [argument for node in ast.walk(loop) for argument in _registered(node)]
    names = {argument.id for argument in given if isinstance(argument, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Lambda):
            if node in given:
                yield node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.name in names or any(map(_registers, node.decorator_list))
        ):
            yield node


def _registered(node: ast.AST) -> list[ast.expr]:
    """Return the arguments of ``flow.task(function)``, ``flow.task(...)(function)`` and ``TaskDef(name, function)``."""
    if not isinstance(node, ast.Call) or not _registers(node):
        return []
    return [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "fn")]


def _registers(node: ast.expr) -> bool:
    while isinstance(node, ast.Call):
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in _REGISTERING


def _free_names(function: _Function) -> set[str]:
    """Return the names that the body reads and that neither it nor a function inside of it binds."""
    body = function.body if isinstance(function.body, list) else [function.body]
    nodes = [node for statement in body for node in ast.walk(statement)]
    arguments = [node for node in (function.args, *nodes) if isinstance(node, ast.arguments)]
    bound = {argument.arg for found in arguments for argument in _all_arguments(found)} | set(_stored(nodes))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} - bound


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]
