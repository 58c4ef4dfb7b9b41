"""Reads the name and the interpreter of a flow from the source of its file, without importing it.

The state file is named after the flow, and is locked before the process that imports the flow exists.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator

from ..errors import FlowError
from .flow_file_source import read_source, split_target

_PACKAGE = __package__.rpartition(".")[0]
_MODULES = (_PACKAGE, f"{__package__}.flow")


def declared_name(target: str) -> str | None:
    """Return the name if the source has one ``flow = Flow("name")`` at the top level and nothing that changes it.

    ``target`` is a path, optionally ``local.py:name``. None: only an import can find the name, or the file cannot be
    read.
    """
    tree = _parse(target)
    call = None if tree is None or _assigns_a_name(tree) else _declaration(tree, split_target(target)[1])
    return None if call is None else _literal_name(call)


def declared_python(target: str) -> str | None:
    """Return the interpreter if the flow is declared as for ``declared_name``, with ``python="..."``."""
    tree = _parse(target)
    call = None if tree is None else _declaration(tree, split_target(target)[1])
    return (
        None if call is None else _literal(next((word.value for word in call.keywords if word.arg == "python"), None))
    )


def _parse(target: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # the import shows them
            return ast.parse(read_source(split_target(target)[0]))
    except (FlowError, ValueError, SyntaxError, RecursionError):
        return None


def _declaration(tree: ast.Module, variable: str | None) -> ast.Call | None:
    bound = Counter(_bindings(tree))
    classes = {name for name in _flow_class_names(tree) if bound[name.partition(".")[0]] == 1}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in classes]
    flows = {name: call for name, call in _assignments(tree) if call in calls and bound[name] == 1}
    if variable is None and (len(calls) != 1 or len(flows) != 1):
        return None
    return flows.get(variable) if variable is not None else next(iter(flows.values()))


def _flow_class_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the class in this file: ``Flow``, ``F``, ``engine.Flow``, ``redrive.engine.Flow``."""
    parent, _, package = _PACKAGE.rpartition(".")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            yield from (alias.asname or alias.name for alias in node.names if alias.name == "Flow")
        elif isinstance(node, ast.ImportFrom) and node.module == parent:
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name == package)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name in _MODULES)


def _bindings(tree: ast.Module) -> Iterator[str]:
    """Yield each name once for every binding of it, in any scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _assigns_a_name(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "name" and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _literal_name(call: ast.Call) -> str | None:
    return _literal(
        call.args[0] if call.args else next((word.value for word in call.keywords if word.arg == "name"), None)
    )


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
