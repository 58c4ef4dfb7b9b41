"""The name of the flow in a flow file, read from its text: who runs the file needs it before anything is imported.

The state file has the flow's name, and its lock is taken before the process is made that imports the flow.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator

from ..errors import FlowError
from .loading import read_source, split_target

_PACKAGE = __package__.rpartition(".")[0]
_MODULES = (_PACKAGE, f"{__package__}.flow")


def declared_name(target: str) -> str | None:
    """The name where the text leaves no doubt: ``flow = Flow("name")`` at the top level, and nothing that changes it.

    ``target`` is a path, optionally ``local.py:name``. None: the file has to be imported to know, or cannot be.
    """
    path, variable = split_target(target)
    try:
        with warnings.catch_warnings(action="ignore"):  # whoever imports the file gives them
            tree = ast.parse(read_source(path))
    except (FlowError, ValueError, SyntaxError, RecursionError):
        return None
    return _name_in(tree, variable)


def _name_in(tree: ast.Module, variable: str | None) -> str | None:
    bound = Counter(_bound_names(tree))
    makers = {name for name in _names_of_flow(tree) if bound[name.partition(".")[0]] == 1}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in makers]
    made = {name: call for name, call in _assigned(tree) if call in calls and bound[name] == 1}
    if variable is None and (len(calls) != 1 or len(made) != 1):
        return None
    call = made.get(variable) if variable is not None else next(iter(made.values()))
    return None if call is None or _is_renamed(tree) else _literal_name(call)


def _names_of_flow(tree: ast.Module) -> Iterator[str]:
    """What the file calls the class: ``Flow``, ``F``, ``engine.Flow``, ``redrive.engine.Flow``."""
    parent, _, package = _PACKAGE.rpartition(".")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            yield from (alias.asname or alias.name for alias in node.names if alias.name == "Flow")
        elif isinstance(node, ast.ImportFrom) and node.module == parent:
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name == package)
        elif isinstance(node, ast.Import):
            yield from (f"{alias.asname or alias.name}.Flow" for alias in node.names if alias.name in _MODULES)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Every name as often as something gives it a value, in whatever scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _is_renamed(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "name" and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _literal_name(call: ast.Call) -> str | None:
    given = call.args[0] if call.args else next((word.value for word in call.keywords if word.arg == "name"), None)
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
