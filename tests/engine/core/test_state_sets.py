"""Sets of states and rules are written once: in ``states.py``, ``breakers.py`` and ``trigger_rules.py`` of ``domain``.

Neither Python nor SQL repeats them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from redrive.engine.core import breaker, spec
from redrive.engine.core.breaker import BreakerState
from redrive.engine.domain import states, trigger_rules
from redrive.engine.domain.states import TaskState
from support.marks import for_each

ROOT = Path(__file__).resolve().parents[3]
ROOMS = {f"engine/domain/{name}.py" for name in ("breakers", "states", "trigger_rules")} | {"engine/core/breaker.py"}
#: A type checker and an editor need the rules and the default written out.
PUBLIC = {"engine/core/spec.py", "engine/flow/flow.py", "engine/flow/task_def.py"}
SOURCES = sorted(
    name
    for folder in ("console", "engine")
    for path in (ROOT / folder).rglob("*.py")
    if (name := str(path.relative_to(ROOT))) not in ROOMS
)

STATES = {str(state) for state in TaskState}
BREAKER_STATES = {str(state) for state in BreakerState}
_ENUMS = {"TaskState": STATES, "BreakerState": BREAKER_STATES}
_ANY = re.compile("|".join(sorted(STATES | BREAKER_STATES | set(trigger_rules.RULES))))
_IN_SQL = re.compile(r"\bIN \(([^()]*)\)")


def named_sets() -> dict[frozenset[str], str]:
    """Every set of two states or more that has a name."""
    found: dict[frozenset[str], str] = {}
    for module in (states, trigger_rules, breaker):
        for name, value in vars(module).items():
            if isinstance(value, frozenset) and len(value) > 1 and not name.startswith("_"):
                found.setdefault(frozenset(map(str, value)), name)
    for standing, value in trigger_rules.STATES_OF.items():
        found.setdefault(frozenset(map(str, value)), f"STATES_OF[{standing}]")
    return {members: name for members, name in found.items() if len(members) > 1}


def state_of(node: ast.expr) -> str | None:
    """The state that an expression names: ``TaskState.READY``, ``str(TaskState.READY)``, ``"READY"``."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return state_of(node.args[0])
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.attr in _ENUMS.get(node.value.id, ()) else None
    if isinstance(node, ast.Constant) and node.value in STATES | BREAKER_STATES:
        return str(node.value)
    return None


def written_sets(tree: ast.AST) -> Iterator[tuple[int, frozenset[str]]]:
    """Sets of states that are written out: as a literal, as a pattern, as a chain of comparisons, as a list in SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield node.lineno, _members(node.elts)
        elif isinstance(node, ast.MatchOr):
            yield node.lineno, _members([one.value for one in node.patterns if isinstance(one, ast.MatchValue)])
        elif isinstance(node, ast.BoolOp):
            compared = [one for one in node.values if isinstance(one, ast.Compare)]
            for left in sorted({ast.dump(one.left) for one in compared}):
                same = [one.comparators[0] for one in compared if ast.dump(one.left) == left]
                yield node.lineno, _members(same)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for listed in _IN_SQL.findall(node.value):
                yield node.lineno, frozenset(re.findall(r"'([A-Z_]+)'", listed))


def _members(nodes: list[ast.expr]) -> frozenset[str]:
    found = [state_of(node) for node in nodes]
    return frozenset(state for state in found if state is not None)


def written_rules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Trigger rules that are written out: as a word of their own, or quoted in SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (
                (node.lineno, rule) for rule in trigger_rules.RULES if node.value == rule or f"'{rule}'" in node.value
            )


@pytest.mark.long
def test_no_other_module_writes_a_named_set_or_a_rule_again() -> None:
    named = named_sets()
    for source in SOURCES:
        text = (ROOT / source).read_text()
        if not _ANY.search(text):
            continue
        tree = ast.parse(text)
        again = [f"line {line}: {named[members]}" for line, members in written_sets(tree) if members in named]
        again += [f"line {line}: rule {rule}" for line, rule in written_rules(tree) if source not in PUBLIC]
        assert again == [], source


@for_each(
    "text",
    [
        "waits = (TaskState.READY, TaskState.PENDING)",
        "waits = frozenset([str(TaskState.PENDING), str(TaskState.READY)])",
        "waits = {'PENDING', 'READY'}",
        "row.state is TaskState.PENDING or row.state is TaskState.READY",
        "sql = \"SELECT 1 FROM task WHERE state IN ('PENDING', 'READY')\"",
        "match row.state:\n    case TaskState.PENDING | TaskState.READY:\n        pass",
    ],
)
def test_a_set_that_is_written_again_is_found_in_any_form(text: str) -> None:
    named = named_sets()
    assert "WAITING" in [named.get(members) for _, members in written_sets(ast.parse(text))]


def test_a_rule_that_is_written_again_is_found_in_any_form() -> None:
    text = "if rule == 'all_done':\n    sql = \"task.rule <> 'all_success_strict'\""
    assert [rule for _, rule in written_rules(ast.parse(text))] == ["all_done", "all_success_strict"]


def test_the_type_of_a_trigger_rule_names_every_rule() -> None:
    assert get_args(spec.TriggerRule) == trigger_rules.RULES


def test_no_two_sets_have_the_same_members() -> None:
    sets = [
        (name, frozenset(map(str, value)))
        for module in (states, trigger_rules)
        for name, value in vars(module).items()
        if isinstance(value, frozenset) and not name.startswith("_") and value <= STATES
    ]
    names = {name for name, _ in sets}
    assert len({members for _, members in sets}) == len(names)
