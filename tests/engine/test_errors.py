"""The errors of the package: a handler that reads the tree in the module may rely on it."""

from __future__ import annotations

import inspect
import re

from redrive.engine import errors

_NODE = re.compile(r"^    (?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:  |$)", re.MULTILINE)


def test_the_tree_that_is_drawn_is_the_tree_of_the_classes() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for node in _NODE.finditer(str(errors.__doc__)):
        depth = len(node["branches"]) // 4
        drawn[node["name"]] = above[depth - 1] if depth else None
        above[depth:] = [node["name"]]
    classes = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    ours = {
        name: next((base.__name__ for base in kind.__bases__ if base.__module__ == errors.__name__), None)
        for name, kind in classes.items()
        if kind.__module__ == errors.__name__
    }
    assert drawn == ours
