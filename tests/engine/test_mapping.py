"""Map tasks with real processes: what the function gets, what the children return, and kill -9 in between."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.answers import decode_projection
from redrive.engine import Executor, Flow, FlowError, SkipTask, TaskDef
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.spec import ItemSpec
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import RunState
from redrive.engine.statefile import snapshot
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import database, runs
from support.checks import check_flow
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long

FLOW = """
from pathlib import Path
from redrive.engine import Context, Flow, RetryPolicy

flow = Flow("orders", max_parallel=2, retry=RetryPolicy(base=0.01))
HERE = Path(__file__).parent

@flow.task
def list_orders():
    return [{"id": number} for number in range(6)]

@flow.map(over=list_orders, timeout="1m", max_attempts=1)
def load(order, ctx: Context):
    if order["id"] == 3 and not (HERE / "repaired").exists():
        raise ValueError("order 3 has no customer")
    return order["id"] * 10

@flow.task(after=load)
def report(load):
    return {"sum": sum(load), "of": len(load)}
"""


def results(state: str | Path) -> dict[str, Any]:
    with sqlite3.connect(state) as connection:
        return {
            name: result and json.loads(result) for name, result in connection.execute("SELECT name, result FROM task")
        }


def states(state: str | Path) -> dict[str, str]:
    with sqlite3.connect(state) as connection:
        return dict(connection.execute("SELECT name, state FROM task"))


def run(flow: Flow, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    state = tmp_path / "state.db"
    return Executor(flow=flow, state=str(state)).run(), results(state)


def mapped(value: object, function: Any, **options: Any) -> Flow:
    flow = Flow("orders")
    flow.task(lambda: value, name="listed")
    flow.map(function, name="load", over="listed", max_attempts=1, **options)
    return flow


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_the_function_gets_each_element_and_the_map_task_all_results(tmp_path: Path, isolation: Any) -> None:
    def load(ctx: Any, item: Any, listed: Any) -> Any:
        return [ctx.task, ctx.item, item, len(listed)]

    verdict, found = run(mapped(("a", {"b": 1}), load, isolation=isolation), tmp_path)
    assert verdict == RunState.SUCCESS
    assert found["load"] == [["load[0]", "a", "a", 2], ["load[1]", {"b": 1}, {"b": 1}, 2]]


def test_an_empty_list_gives_an_empty_list(tmp_path: Path) -> None:
    assert run(mapped([], print_item), tmp_path) == (RunState.SUCCESS, {"listed": [], "load": []})


def print_item(item: object) -> None:
    print(item)


@parametrize_mostly_long(
    ("value", "sentence"),
    [
        ({"a": 1}, "task 'load' maps over the result of 'listed', which is not a list: dict"),
        ([1, 2, 3], "'listed' returned a list of 3, and 'load' maps over at most 2: return fewer, or raise max_size"),
        ([object()], "task 'load' maps over the result of 'listed', and there is none: its result was not stored"),
    ],
)
def test_what_cannot_be_mapped_is_a_dead_letter_with_the_reason(tmp_path: Path, value: object, sentence: str) -> None:
    assert run(mapped(value, print_item, max_size=2), tmp_path)[0] == "BLOCKED"
    with sqlite3.connect(tmp_path / "state.db") as connection:
        found = connection.execute("SELECT state, attempt, error FROM task WHERE name LIKE 'load%'").fetchall()
    assert found[0][:2] == ("DEAD_LETTER", 1) and len(found) == 1
    assert sentence in found[0][2]


@pytest.mark.long
def test_results_that_are_too_large_together_fail_only_who_needs_them(tmp_path: Path) -> None:
    def load(item: int) -> str:
        return "x" * 9_000_000

    verdict, found = run(mapped([1, 2], load), tmp_path)
    assert verdict == RunState.SUCCESS
    assert "MiB of JSON" in found["load"]["redrive:not-stored"]


def test_all_done_collects_what_there_is(tmp_path: Path) -> None:
    def load(item: int) -> float:
        return 6 / item

    flow = Flow("orders")
    flow.task(lambda: [1, 0, 2], name="listed")
    flow.map(load, over="listed", rule="all_done", max_attempts=1)
    verdict, found = run(flow, tmp_path)
    assert (verdict, found["load"]) == (RunState.FAILED, [6.0, None, 3.0])


def test_one_child_that_skips_itself_is_none_in_the_list(tmp_path: Path) -> None:
    def load(item: int) -> int:
        if item == 2:
            raise SkipTask("cancelled order")
        return item * 10

    flow = mapped([1, 2, 3], load)
    flow.task(lambda load: load, name="report", after=["load"])
    verdict, found = run(flow, tmp_path)
    assert (verdict, found["report"]) == (RunState.SUCCESS, [10, None, 30])


@pytest.mark.parametrize(("rule", "report"), [("all_success", "SKIPPED"), ("all_done", "SUCCESS")])
def test_a_list_whose_children_are_all_skipped_skips_what_follows(tmp_path: Path, rule: Any, report: str) -> None:
    def load(item: int) -> None:
        raise SkipTask("not today")

    flow = mapped([1, 2], load, rule=rule)
    flow.task(print, name="report", after=["load"])
    result = Executor(flow=flow, state=str(tmp_path / "state.db")).run_result()
    assert (result.state, result.states["report"]) == ("SUCCESS", report)


@parametrize_mostly_long(
    ("options", "states"),
    [
        ({}, ["UPSTREAM_FAILED", "UPSTREAM_FAILED"]),
        ({"rule": "all_done"}, ["SUCCESS", "SUCCESS"]),
        ({"rule": "all_done", "collect": "all_success"}, ["SUCCESS", "SUCCESS"]),
        ({"collect": "all_done"}, ["UPSTREAM_FAILED", "UPSTREAM_FAILED"]),
    ],
    quick=1,
)
def test_the_rule_is_of_the_parents_of_the_children(tmp_path: Path, options: Any, states: list[str]) -> None:
    """``collect`` is of the children."""
    flow = Flow("orders")
    flow.task(lambda: [1], name="listed")
    flow.task(lambda: 1 / 0, name="before", max_attempts=1)
    flow.map(lambda item: item, name="load", over="listed", after=["before"], **options)
    flow.task(print, name="report", after=["load"], rule="all_done")
    found = Executor(flow=flow, state=str(tmp_path / "state.db")).run_result().states
    assert [found["load[0]"], found["load"], found["report"]] == [*states, "SUCCESS"]


@pytest.mark.parametrize("rule", ["none_failed", "all_done"])
def test_a_map_without_its_list_is_stopped_by_any_rule(tmp_path: Path, rule: Any) -> None:
    flow = Flow("orders")
    flow.task(lambda: 1 / 0, name="listed", max_attempts=1)
    flow.map(lambda item: item, name="load", over="listed", rule=rule)
    result = Executor(flow=flow, state=str(tmp_path / "state.db")).run_result()
    assert (result.state, result.states["load"]) == ("FAILED", "UPSTREAM_FAILED")


def test_maps_follow_each_other(tmp_path: Path) -> None:
    flow = mapped([1, 2], lambda item: item + 1)
    flow.map(lambda item: item * 2, name="double", over="load")
    assert run(flow, tmp_path)[1]["double"] == [4, 6]


# --- Files, commands, kill -9 ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(FLOW)
    return tmp_path


def start(folder: Path) -> int:
    return run_redrive("run", folder / "orders.py", "--state", folder / "s.db", "--run-id", "r", "--plain").returncode


@pytest.mark.long
def test_one_child_is_requeued_by_its_name(folder: Path) -> None:
    assert start(folder) == 1
    listed = run_redrive("tasks", folder / "s.db").stdout
    assert [line.split()[:2] for line in listed.splitlines()[2:]] == [
        ["list_orders", "SUCCESS"],
        ["load", "UPSTREAM_FAILED"],
        *[[f"load[{index}]", "FAILED" if index == 3 else "SUCCESS"] for index in range(6)],
        ["report", "UPSTREAM_FAILED"],
    ]
    (folder / "repaired").touch()
    assert run_redrive("requeue", folder / "s.db", "load[3]", "--reason", "mended").returncode == 0
    assert run_redrive("resume", folder / "s.db", "--plain").returncode == 0
    assert results(folder / "s.db")["report"] == {"sum": 150, "of": 6}
    with sqlite3.connect(folder / "s.db") as connection:
        attempts = dict(connection.execute("SELECT name, attempt FROM task"))
    assert attempts["load[3]"] == 2 and attempts["load[2]"] == attempts["list_orders"] == 1


@parametrize_mostly_long("moment", ["load has 6", "list_orders RUNNING", "load[2] RUNNING"])
def test_after_kill_9_the_children_go_on(folder: Path, moment: str) -> None:
    (folder / "repaired").touch()
    state = folder / "s.db"
    first = start_redrive("run", folder / "orders.py", "--state", state, "--run-id", "r", "--plain")
    assert first.stdout is not None
    assert any(moment in line for line in first.stdout)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    before = {name for name, now in states(state).items() if now == "SUCCESS"}
    assert ("list_orders" in before) is ("load[0]" in states(state)), "the result and the children are one commit"

    output = run_redrive("resume", state, "--plain")
    assert output.returncode == 0, output.stdout + output.stderr
    assert "removed" not in output.stdout + output.stderr
    assert results(state)["report"] == {"sum": 150, "of": 6}
    with sqlite3.connect(state) as connection:
        again = {name for (name,) in connection.execute("SELECT name FROM attempt GROUP BY name HAVING count(*) > 1")}
    assert not again & before
    check_projection(state)


def check_projection(state: Path) -> None:
    """The events, applied to the tasks with which the run was created, give the tables."""
    with database.reading(str(state)) as connection:
        now = runs.load_run(connection, "r")
        events = [event_of(row) for row in connection.execute(*events_query(0, 1_000_000))]
    specs = [row.spec for row in now.tasks.values() if row.spec is not None and row.spec.item is None]
    tasks = {spec.name: TaskRow(spec.name, position=now.tasks[spec.name].position, spec=spec) for spec in specs}
    projection = RunProjection(RunRow("r"), tasks, {spec.name: spec.parents for spec in specs})
    for event in events:
        projection.apply(event)
    assert (list(now.tasks), now.tasks) == (list(projection.tasks), projection.tasks)
    assert (now.parents, now.children) == (projection.parents, projection.children)


@pytest.mark.long
def test_a_changed_flow_keeps_the_children(folder: Path) -> None:
    assert start(folder) == 1
    (folder / "repaired").touch()
    (folder / "orders.py").write_text("# a line more\n" + FLOW.replace("max_attempts=1", "max_attempts=3"))
    run_redrive("requeue", folder / "s.db", "load[3]", "--reason", "mended")
    output = run_redrive("resume", folder / "s.db", "--plain")
    assert output.returncode == 0, output.stdout + output.stderr
    assert "removed" not in output.stdout + output.stderr
    with sqlite3.connect(folder / "s.db") as connection:
        rows = connection.execute("SELECT max_attempts FROM task WHERE name = 'load[3]'").fetchall()
        edges = connection.execute("SELECT count(*) FROM edge WHERE child = 'load'").fetchone()
    assert (rows, edges) == ([(3,)], (7,))
    assert results(folder / "s.db")["report"] == {"sum": 150, "of": 6}


@pytest.mark.long
def test_a_map_task_that_is_added_later_gets_its_children(folder: Path) -> None:
    text = FLOW[: FLOW.index("@flow.map")]
    (folder / "orders.py").write_text(
        text + "\n@flow.task(after=list_orders, max_attempts=1)\ndef stop():\n    raise ValueError\n"
    )
    assert start(folder) == 1
    (folder / "orders.py").write_text(FLOW + "\nflow.command('stop', 'true', after=list_orders)\n")
    (folder / "repaired").touch()
    run_redrive("requeue", folder / "s.db", "stop", "--reason", "mended")
    assert run_redrive("resume", folder / "s.db", "--plain").returncode == 0
    assert results(folder / "s.db")["report"] == {"sum": 150, "of": 6}


def test_a_snapshot_for_ssh_has_the_children(folder: Path) -> None:
    start(folder)
    with database.reading(str(folder / "s.db")) as connection:
        here = runs.load_run(connection, "r")
        there = decode_projection(snapshot.board(connection, "r"))
    assert list(there.tasks) == list(here.tasks)
    assert (there.parents, there.children) == (here.parents, here.children)
    row = there.tasks["load[4]"]
    assert row.spec is not None and row.spec.item == ItemSpec("load", "list_orders", 4)
    assert row.spec.group == "load"


# --- What is refused -------------------------------------------------------------------------------------------------


def test_a_flow_with_a_wrong_map_is_refused() -> None:
    with pytest.raises(FlowError, match="task 'load' waits for 'nobody', which is not a task of this flow"):
        mapped_over = Flow("orders")
        mapped_over.map(print_item, name="load", over="nobody")
        mapped_over.spec()
    ring = Flow("orders")
    ring.map(print_item, name="a", over="b")
    ring.map(print_item, name="b", over="a")
    with pytest.raises(FlowError, match="in a ring"):
        ring.spec()
    with pytest.raises(FlowError, match="max_size is a whole number"):
        mapped([], print_item, max_size=0)
    taken = mapped([], print_item)
    taken.add(TaskDef("load[0]", print))
    with pytest.raises(FlowError, match="has the name of a child of the map task 'load'"):
        taken.spec()
    with pytest.raises(FlowError, match="only a function can be mapped"):
        Flow("orders").add(TaskDef("load", None, kind="command", command="true", map_over="listed"))


def test_check_reads_a_map_task_as_its_children() -> None:
    found = check_flow(mapped([], lambda: None, timeout=5, downstream="erp"))
    output = {finding.rule: finding.message for finding in found}
    assert output["parameters"].startswith("is called with each element of a list, and takes no argument for it")
    assert "erp" in output["downstream"]
    assert not [finding for finding in found if finding.task == "load" and "timeout" in finding.message]


def test_children_for_workers_are_refused_where_no_cluster_is_named(tmp_path: Path) -> None:
    flow = Flow("elsewhere", timeout=30)
    flow.task(lambda: [1], name="listed")
    flow.map(lambda part: part, name="load", over="listed", isolation="dask")
    with pytest.raises(FlowError, match="task 'load' runs on Dask: say where with --dask"):
        Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run()


PAYMENTS = """
import json
from pathlib import Path
from redrive.engine import Flow
flow = Flow("pay")
HERE = Path(__file__).parent
@flow.task(timeout=30)
def invoices():
    return json.loads((HERE / "list.json").read_text())
@flow.map(over=invoices, kind="effect", timeout=30)
def pay(invoice, ctx):
    with open(HERE / "bank.log", "a") as bank:
        bank.write(f"{invoice} {ctx.idempotency_key}\\n")
    return invoice
@flow.task(after=[pay], timeout=30)
def report(pay):
    return pay
"""
KEYED = PAYMENTS.replace("over=invoices,", 'over=invoices, key=lambda invoice: invoice["id"],')


class Bank:
    """A flow that pays, with real processes: its list, and what the bank has got."""

    def __init__(self, folder: Path, flow: str) -> None:
        self.folder = folder
        self.write(flow)

    def write(self, flow: str) -> None:
        (self.folder / "pay.py").write_text(flow)

    def redrive(self, *words: str, code: int = 0) -> str:
        done = run_redrive(*words, cwd=self.folder)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def set_list(self, elements: object) -> None:
        (self.folder / "list.json").write_text(json.dumps(elements))

    def start(self, elements: object, code: int = 0) -> str:
        self.set_list(elements)
        return self.redrive("run", "pay.py", "--plain", "--state", "s.db", "--run-id", "r", code=code)

    def change(self, elements: object, code: int = 0) -> str:
        self.set_list(elements)
        said = self.redrive("requeue", "s.db", "invoices", "--reason", "a late invoice")
        return said + self.redrive("resume", "s.db", "--plain", code=code)

    def payments(self) -> list[str]:
        log = self.folder / "bank.log"
        return sorted(log.read_text().splitlines()) if log.exists() else []


@pytest.mark.long
def test_a_late_invoice_is_paid_under_its_own_key_and_no_other_one_again(tmp_path: Path) -> None:
    bank = Bank(tmp_path, PAYMENTS)
    bank.start(["A", "B"])
    said = bank.change(["Z", "A", "B"])
    assert bank.payments() == ["A r/pay[0]/0", "B r/pay[1]/0", "Z r/pay[2]/0"]
    assert (
        "2 effects have happened and stay; 1 task after it keeps the result of the old list: --cascade runs it again"
        in said
    )
    found = results(tmp_path / "s.db")
    assert (found["pay"], found["report"]) == (["Z", "A", "B"], ["A", "B"])


def test_a_key_names_the_child_and_the_idempotency_key(tmp_path: Path) -> None:
    bank = Bank(tmp_path, KEYED)
    bank.start([{"id": "INV-17", "amount": 1}, {"id": "Köln\n[2]", "amount": 2}])
    bank.change([{"id": 5, "amount": 1}, {"id": "Köln\n[2]", "amount": 2}, {"id": "INV-17", "amount": 9}])
    keys = ["r/pay[5]/0", "r/pay[INV-17]/0", "r/pay[K%C3%B6ln%0A%5B2%5D]/0"]
    assert sorted(line.split("} ")[1] for line in bank.payments()) == keys
    assert "pay[Köln%0A%5B2%5D]" in states(tmp_path / "s.db")
    assert "its element has changed since its effect happened" in bank.redrive("tasks", "s.db")
    assert "1 effect happened for an element that has changed since" in bank.redrive("inbox", "s.db")
    bank.redrive("ack", "s.db@r")
    assert "nothing needs a human" in bank.redrive("inbox", "s.db")


@parametrize_mostly_long(
    ("key", "elements", "words"),
    [
        ('invoice["number"]', [{"id": 1}], "the key of element 0 of its list, {'id': 1}, raised KeyError: 'number'"),
        ('invoice["id"]', [{"id": 1}, {"id": 1.0}], "elements 0 and 1 of its list have the same key '1'"),
        (
            'invoice["id"]',
            [{"id": 2}, {"id": None}],
            "element 1 of its list, {'id': None}, is None, which is no text, number or date",
        ),
        ('invoice["id"]', [{"id": True}], "is True, which is no text, number or date"),
        ('invoice["id"]', [{"id": ""}], "is an empty text"),
    ],
    quick=1,
)
def test_a_key_that_names_no_element_is_a_dead_letter_before_any_child_starts(
    tmp_path: Path, key: str, elements: object, words: str
) -> None:
    bank = Bank(tmp_path, KEYED.replace('invoice["id"]', key))
    said = bank.start(elements, code=3)
    assert words in said and ": mend key= or the list, then requeue" in said
    assert bank.payments() == [] and set(states(tmp_path / "s.db")) == {"invoices", "pay", "report"}
    bank.write(KEYED)
    bank.change([{"id": 1}])
    assert bank.payments() == ["{'id': 1} r/pay[1]/0"]


def test_an_effect_over_mappings_wants_a_key(tmp_path: Path) -> None:
    bank = Bank(tmp_path, PAYMENTS)
    assert 'key=lambda element: element["id"]' in bank.start([{"id": 1}], code=3)
    assert bank.payments() == []


@pytest.mark.long
def test_a_substitute_for_the_list_gets_keys_as_well(tmp_path: Path) -> None:
    bank = Bank(tmp_path, KEYED)
    bank.start("no list", code=3)
    (tmp_path / "list.json").write_text("{")
    bank.redrive("requeue", "s.db", "invoices", "--reason", "again")
    bank.redrive("resume", "s.db", "--plain", code=3)
    bank.redrive("skip", "s.db", "invoices", "--substitute", '[{"id": "A"}]', "--reason", "by hand")
    bank.redrive("resume", "s.db", "--plain", code=3)  # PARTIAL: its list is not that of its task
    assert bank.payments() == ["{'id': 'A'} r/pay[A]/0"]


@parametrize_mostly_long("after", [PAYMENTS, KEYED.replace('invoice["id"]', 'invoice["amount"]')])
def test_a_run_keeps_the_names_that_it_has_given_when_the_key_changes(tmp_path: Path, after: str) -> None:
    bank = Bank(tmp_path, KEYED)
    invoices = [{"id": "A", "amount": 1}, {"id": "B", "amount": 2}]
    bank.start(invoices)
    bank.write(after)
    bank.set_list(invoices[::-1])
    bank.redrive("requeue", "s.db", "invoices", "--reason", "late")
    is_without = after == PAYMENTS
    said = bank.redrive("resume", "s.db", "--plain", "--accept-changes", code=3 if is_without else 0)
    assert [line.split("} ")[1] for line in bank.payments()] == ["r/pay[A]/0", "r/pay[B]/0"]
    assert ("the flow has no key= for it any more" in said) is is_without


@pytest.mark.long
def test_a_run_that_began_without_a_key_goes_on_without_one(tmp_path: Path) -> None:
    bank = Bank(tmp_path, PAYMENTS)
    bank.start(["A", "B"])
    bank.write(KEYED.replace('invoice["id"]', "invoice"))
    bank.change(["B", "C", "A"])
    assert bank.payments() == ["A r/pay[0]/0", "B r/pay[1]/0", "C r/pay[2]/0"]


@pytest.mark.long
def test_the_event_of_a_list_says_what_came_went_and_stayed(tmp_path: Path) -> None:
    bank = Bank(tmp_path, PAYMENTS)
    assert "pay has 3 more children, for a list of 3" in bank.start(["A", "B", "C"])
    assert "pay has 1 more child, 1 element is gone, 2 stay, for a list of 3" in bank.change(["Z", "A", "B"])
    assert "pay has its children in another order, for a list of 3" in bank.change(["B", "A", "Z"])
