"""What each task costs before the first attempt, in counts that no other process changes.

Seconds and memory are measured by ``tests/bench/bench_opening.py``. A bound is raised only with a reason.
"""

from __future__ import annotations

import inspect
import sqlite3
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import pytest
from msgspec import structs
from redrive.engine import Executor, Flow, TaskDef
from redrive.engine.core import dag
from redrive.engine.core.secret_mask import SecretMask
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.executor.opening import Machine
from redrive.engine.flow.options import parse_options
from redrive.engine.flow.task_def import TaskSpecBuilder
from redrive.engine.runner.zygote import flow_import
from redrive.engine.store import database

TASKS = 1000


def make_flow(tasks: int = TASKS) -> Flow:
    """A flow of functions that a loop makes, each with two parents."""
    flow = Flow("large")
    for number in range(tasks):

        def work(number: int = number) -> None:
            """Do nothing."""

        flow.add(TaskDef(f"task_{number}", work, [f"task_{number - back}" for back in (1, 2) if number >= back]))
    return flow


def test_a_task_of_defaults_is_sent_and_stored_in_few_bytes() -> None:
    specs = make_flow().spec().tasks
    without_places = [msgspec.structs.replace(spec, source="") for spec in specs]
    assert len(msgspec.json.encode(without_places)) / TASKS < 150  # 900 with every default
    again = msgspec.json.decode(msgspec.json.encode(specs), type=tuple[TaskSpec, ...])
    assert again == specs
    assert len(msgspec.json.encode(again)) == len(msgspec.json.encode(specs))  # also after the executor has read it


def test_options_mean_the_same_in_a_definition_and_in_a_spec() -> None:
    def spec_of(task: TaskDef) -> TaskSpec:
        return TaskSpecBuilder({}, (), {}).build(task)

    assert spec_of(TaskDef("a", None, command="true", kind="command")) == TaskSpec("a", kind="command", command="true")
    every = TaskDef("a", print, grace_seconds=1, pool="p", pool_slots=2, optional=True, rule="all_done", owner="ana")
    expected = TaskSpec("a", grace_seconds=1, pool="p", pool_slots=2, optional=True, rule="all_done", owner="ana")
    assert spec_of(every) == structs.replace(expected, code=spec_of(every).code)


def test_options_are_checked_once_where_the_task_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(
        "redrive.engine.flow.task_def.parse_options",
        lambda owner, *given: (checked.append(owner), parse_options(owner, *given))[1],
    )
    flow = Flow("mixed", timeout=60)
    for number in range(TASKS):
        flow.task(print, name=f"extract_{number}", timeout=30, owner="ana")
        flow.task(print, name=f"load_{number}", after=f"extract_{number}", rule="all_done")
        flow.command(f"report_{number}", "true", after=f"load_{number}")
    specs = flow.spec().tasks
    assert len(checked) == 3 * TASKS
    assert [(spec.timeout, spec.owner, spec.rule) for spec in specs[-3:]] == [
        (30, "ana", "all_success"),
        (60, None, "all_done"),
        (60, None, "all_success"),
    ]


def test_a_graph_is_built_only_for_tasks_before_their_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []
    monkeypatch.setattr(dag, "Dag", lambda tasks: built.append(tasks))
    make_flow().spec()
    assert built == []
    dag.validate_graph([("a", ("b",)), ("b", ())])
    assert len(built) == 1


def test_functions_of_one_code_object_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    flow, signature = make_flow(), inspect.signature
    spec = flow.spec()
    monkeypatch.setattr(inspect, "signature", lambda function: (read.append(function), signature(function))[1])
    plans = flow_import._plans(flow, spec)
    assert len(plans) == TASKS and len(read) <= 1

    def wrapped(other: int) -> None:
        """Take an argument that no closure of the code object below takes."""

    closures = [FunctionType(wrapped.__code__, {}) for _ in range(2)]
    closures[0].__wrapped__ = print  # type: ignore[attr-defined]
    plans = flow_import._plans(Flows({"a": closures[0], "b": closures[1]}), FlowSpec("f", ()))
    assert [plans["a"].parameters, plans["b"].parameters][1] == (("other", False),)
    assert plans["a"].parameters != plans["b"].parameters


class Flows:
    """Functions by the name of their task."""

    def __init__(self, functions: dict[str, Any]) -> None:
        self.functions = functions
        self.key_functions: dict[str, Any] = {}

    def spec(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of an executor's writer."""
    found: list[str] = []
    open_for_writing = database.open_for_writing

    def opened(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = open_for_writing(*args, **options)
        connection.set_trace_callback(found.append)
        return connection

    monkeypatch.setattr(database, "open_for_writing", opened)
    return found


def open_run(flow: Flow, state: Path) -> None:
    machine = Machine(open_database=database.open_for_writing, heartbeat_seconds=60.0)  # as the fixture has patched it
    executor = Executor(flow=flow, run_id="r", state=state, machine=machine, on_open=lambda run_id: executor.stop())
    executor.run()


def reads_of_edges(statements: list[str]) -> int:
    return sum(one.startswith("SELECT child, group_concat(parent") for one in statements)


def test_a_run_is_written_in_few_statements_and_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: list[str]
) -> None:
    counts: Counter[str] = Counter()
    find = SecretMask.find

    def found(self: SecretMask, text: str) -> str | None:
        counts["masked"] += len(text)
        return find(self, text)

    monkeypatch.setattr(SecretMask, "find", found)
    flow = make_flow()
    open_run(flow, tmp_path / "state.db")
    assert len(statements) < 41  # 3,000 with one for each row; five read the last commit back at the end
    assert reads_of_edges(statements) == 0
    assert counts["masked"] < 1.5 * len(msgspec.json.encode(flow.spec().tasks))  # once


@pytest.mark.long
def test_a_run_that_has_not_changed_is_read_once_when_it_is_resumed(tmp_path: Path, statements: list[str]) -> None:
    open_run(make_flow(20), tmp_path / "state.db")
    statements.clear()
    open_run(make_flow(20), tmp_path / "state.db")
    assert reads_of_edges(statements) == 1
    statements.clear()
    open_run(make_flow(21), tmp_path / "state.db")
    assert reads_of_edges(statements) == 2
