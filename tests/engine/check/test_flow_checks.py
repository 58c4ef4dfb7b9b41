"""What ``redrive check`` knows before a run: one test for each thing that it finds (SPEC 003.37, 4.14)."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redrive.engine import Executor, Flow, FlowError, RetryPolicy
from redrive.engine.check.flow_checks import check_spec, checklist, worst_case_seconds, worst_case_sum
from redrive.engine.check.isolated import ProcessCost, check_in_subprocess
from redrive.engine.core.advice import DurationQuantiles, PastByTask, PastDuration
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.flow.loading import load_flow
from redrive.engine.flow.source import Finding
from redrive.engine.store.runs import past_by_task
from support.checks import check_flow
from support.marks import for_each


def quiet(**options: Any) -> Flow:
    """A flow that would page somebody."""
    flow = Flow("f", **options)
    flow.page("bell")
    return flow


def found(flow: Flow, durations: PastByTask | None = None) -> dict[str, Finding]:
    return {finding.rule: finding for finding in check_flow(flow, durations)}


def took(p50: float, p99: float, count: int) -> list[PastDuration]:
    """Earlier attempts of which one took far longer than the others."""
    return [*[PastDuration(0, p50)] * (count - 1), PastDuration(0, p99)]


def test_a_flow_without_a_flaw_has_no_findings():
    flow = quiet()
    flow.task(lambda: 1, name="a", timeout=30)
    flow.task(lambda a: a, name="b", after="a", timeout=30)
    assert {} == found(flow)


# --- The shape ------------------------------------------------------------------------------------------------------


def test_a_task_that_stands_alone_is_reported():
    flow = quiet()
    for name, after in (("a", ()), ("b", "a"), ("alone", ())):
        flow.task(lambda: None, name=name, after=after, timeout=1)
    assert "alone" == found(flow)["orphan"].task


def test_a_part_that_hangs_together_with_nothing_else_is_reported():
    flow = quiet()
    for name, after in (("a", ()), ("b", "a"), ("c", "b"), ("x", ()), ("y", "x")):
        flow.task(lambda: None, name=name, after=after, timeout=1)
    assert "x, y are connected to each other, and to no other task" == found(flow)["unconnected"].message


def test_what_could_never_start_is_refused():
    """003.37, unreachable: in a graph without rings only a pool without room can keep a task from ever starting."""
    flow = quiet(pools={"db": 1})
    with pytest.raises(FlowError, match="wants 2 slots of pool 'db', which has 1"):
        flow.task(lambda: None, name="a", pool="db", pool_slots=2, timeout=1)


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ({"a": "b", "b": "a"}, "a -> b -> a"),
        ({"a": "nowhere"}, "'nowhere'"),
    ],
)
def test_rings_and_unknown_parents_are_refused_by_name(edges, why):
    flow = quiet()
    for name, after in edges.items():
        flow.task(lambda: None, name=name, after=after)
    with pytest.raises(FlowError, match=why):
        check_flow(flow)


def test_double_names_are_refused():
    flow = quiet()
    flow.task(lambda: None, name="twice")
    with pytest.raises(FlowError, match=r"two tasks are named 'twice', the first at .*test_flow_checks\.py:\d+"):
        flow.task(lambda: None, name="twice")


# --- Time -----------------------------------------------------------------------------------------------------------


def test_the_worst_case_has_the_exact_sum_of_the_waits():
    """000.41, SPEC 4.14: 6 s for base 2 and three starts, not 20 minutes."""
    task = TaskSpec("a", timeout=30.0, grace_seconds=5.0)
    assert 3 * (30 + 5) + 6 == worst_case_seconds(task)
    assert "3 x (30 + 5) + 6 = 111 s" == worst_case_sum(task)


@for_each("starts, waits", [(3, 6), (5, 30), (8, 254), (10, 1022), (12, 2222)])
def test_the_sums_of_the_spec(starts, waits):
    """SPEC 4.14."""
    task = TaskSpec("a", timeout=1.0, grace_seconds=0.0, retry=RetryPolicy(max_attempts=starts, base=2, cap=600))
    assert starts + waits == worst_case_seconds(task)


def test_the_deadline_is_held_against_the_worst_path():
    flow = quiet(deadline="5m")
    for name, after, timeout in (("a", (), 30), ("long", "a", 90), ("short", "a", 10), ("end", ["long", "short"], 30)):
        flow.task(lambda: None, name=name, after=after, timeout=timeout, grace_seconds=5)
    finding = found(flow)["deadline"]
    assert (3 * 35 + 6) + (3 * 95 + 6) + (3 * 35 + 6) == 8 * 60 + 33
    assert "warning" == finding.level
    assert "at the worst 8m33 along a -> long -> end" in finding.message
    assert "of it 18s waiting to retry (9s on average)" in finding.message
    assert "3m33 over the deadline of 5m00" in finding.message


def test_a_deadline_that_holds_is_a_note_with_what_is_left():
    flow = quiet(deadline="3h")
    flow.task(lambda: None, name="a", timeout=30)
    assert "note" == found(flow)["deadline"].level
    assert "2h58 before the deadline of 3h00" in found(flow)["deadline"].message


def test_what_nothing_bounds_is_named_beside_the_sum():
    flow = quiet(deadline="3h")
    flow.task(lambda: None, name="a")
    assert "not counted, because nothing bounds them: a" in found(flow)["deadline"].message


def test_a_task_without_a_timeout_is_taken_to_need_its_p99():
    assert 3 * 40 + 6 == worst_case_seconds(TaskSpec("a"), DurationQuantiles(10, 30, 40, 99))


# --- The schedule ---------------------------------------------------------------------------------------------------


def scheduled(**options: Any) -> dict[str, Finding]:
    flow = quiet(**options)
    flow.task(lambda: 1, name="a", timeout=30)
    flow.task(lambda a: a, name="b", after="a", timeout=30)
    return found(flow)


def test_a_schedule_that_fits_has_no_findings():
    """003.35: on the hour, spread over five minutes, done before the next."""
    findings = scheduled(schedule="0 * * * *", splay="5m", start_within="10m", deadline="1h")
    assert {"deadline"} == set(findings) and "note" == findings["deadline"].level


def test_runs_that_wait_for_one_another_and_a_splay_over_the_interval_are_warnings():
    findings = scheduled(schedule="*/10 * * * *", splay="10m", start_within="1m", deadline="11m")
    assert "between two runs" in findings["splay"].message
    assert "the next one is due after 600 s" in findings["overlap"].message


def test_a_schedule_that_promises_no_start_is_reported():
    assert "start_within" in scheduled(schedule="every 15m")["start"].message


@for_each(
    "options, why",
    [
        ({"schedule": "0 25 * * *"}, "bad hour"),
        ({"misfire": "all"}, "nothing without a schedule"),
        ({"timezone": "Asia/Nowhere"}, "no time zone"),
        ({"schedule": "0 2 * * *", "timezone": "Europe"}, "no time zone"),
        ({"schedule": "0 2 * * *", "misfire": "never"}, "misfire is one of"),
        ({"schedule": "0 2 * * *", "start_within": "-1s"}, "start_within is a duration"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(options, why):
    with pytest.raises(FlowError, match=why):
        Flow("f", **options)


def test_no_timeout_is_a_warning():
    flow = quiet()
    flow.task(lambda: None, name="a")
    assert ("warning", "a") == (found(flow)["no-timeout"].level, found(flow)["no-timeout"].task)


def test_a_timeout_under_the_observed_p99_is_a_warning():
    """000.42: the timeout is the bug, not the task."""
    flow = quiet()
    flow.task(lambda: None, name="a", timeout=600)
    finding = found(flow, {"a": took(400, 720, 40)})["tight-timeout"]
    assert "its timeout of 600 s is under what it takes: p50 400 s, p99 720 s in 40 attempts" in finding.message
    assert "tight-timeout" not in found(flow, {"a": took(400, 599, 40)})


def test_a_timeout_that_has_killed_what_usually_ends_is_a_warning_with_a_number():
    """What ended took less than the timeout, of course: only those that were killed say that it is too tight."""
    flow = Flow("f")
    flow.command("a", "true", timeout="10m")
    past = (*(PastDuration(day, 540.0 + day) for day in range(7)), PastDuration(0, 600.0, succeeded=False))
    finding = found(flow, {"a": past})["tight-timeout"]
    assert finding.message == (
        "its timeout of 600 s has killed it once, and it takes p50 543 s, p99 546 s in 7 attempts; "
        "7 of 8 attempts took about 9m00: timeout=12m would have let all but one end for certain"
    )


def test_a_timeout_that_only_ever_killed_hangs_is_no_finding():
    flow = Flow("f")
    flow.command("a", "true", timeout="10m")
    past = (*(PastDuration(day, 40.0) for day in range(7)), PastDuration(0, 600.0, succeeded=False))
    assert "tight-timeout" not in found(flow, {"a": past})


def test_tasks_that_are_shorter_than_the_fork_of_their_process_are_named_once_with_its_cost():
    flow = quiet()
    for name in ("a", "b", "long"):
        flow.task(lambda: None, name=name, timeout=600)
    flow.task(lambda: None, name="warm", timeout=600, isolation="worker")
    flow.command("program", "true", timeout=600)
    past = {name: took(0.003, 0.004, 40) for name in ("a", "b", "warm", "program")} | {"long": took(1, 2, 40)}
    dear, cheap = ProcessCost(0.0071, ["pandas", "boto3"]), ProcessCost(0.0006, [])
    (finding,) = (one for one in check_spec(flow.spec(), past, dear) if one.rule == "process-cost")
    assert finding.message == (
        "a, b: shorter than the fork of a process with what the flow imports (pandas, boto3), 7.1 ms of a processor by"
        ' trial; isolation="worker" forks one for many attempts'
    )
    assert not [one for one in check_spec(flow.spec(), past, cheap) if one.rule == "process-cost"]


def test_the_cost_of_a_process_is_measured_with_the_imports_of_the_flow(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("__init__", "part"):
        (tmp_path / "pack" / f"{name}.py").touch()
    source = "import pack.part\nfrom redrive.engine import Flow\nflow = Flow('f')\nflow.command('a', 'true')\n"
    (tmp_path / "f.py").write_text(source)
    cost = check_in_subprocess(str(tmp_path / "f.py"), {})[1].cost
    assert cost is not None and 0 < cost.seconds < 10 and "pack" in cost.packages
    (tmp_path / "f.py").write_text(f"{source}import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")
    assert check_in_subprocess(str(tmp_path / "f.py"), {})[1].cost is None


def test_a_first_wait_under_the_observed_median_of_a_call_is_a_warning():
    """004.29; a batch of ten minutes may well be tried again after two seconds."""
    flow = quiet()
    flow.task(lambda: None, name="a", timeout=6000, retry=RetryPolicy(base=1))
    assert "shorter than one round trip" in found(flow, {"a": took(3, 5, 9)})["policy"].message
    assert {} == found(flow, {"a": took(600, 800, 9)})


def test_more_than_ten_attempts_need_a_redesign():
    """004.27."""
    flow = quiet()
    flow.task(lambda: None, name="a", timeout=1, max_attempts=11)
    assert "needs a redesign" in found(flow)["policy"].message


def test_a_sensor_without_an_end_is_a_warning():
    """000.47."""
    flow = quiet()
    flow.sensor(lambda: True, name="a")
    assert "sensor-patience" in found(flow)


def test_the_usual_timeouts_of_document_000():
    """000.26: ETL 30 minutes, backfill six hours, a sensor's look its interval and a minute."""
    flow = quiet()
    flow.task(lambda: None, name="etl", kind="etl")
    flow.task(lambda: None, name="backfill", kind="backfill")
    flow.task(lambda: None, name="own", kind="etl", timeout="5m")
    flow.sensor(lambda: True, name="sensor", every="2m")
    assert [1800, 21600, 300, 180] == [task.timeout for task in flow.spec().tasks]
    with pytest.raises(FlowError, match="kind is one of etl, backfill, effect, not 'whatever'"):
        flow.task(lambda: None, name="other", kind="whatever")  # type: ignore[arg-type]


# --- Downstreams and pages ------------------------------------------------------------------------------------------


def test_variables_that_no_command_gets_are_reported():
    flow = quiet(env={"PGHOST": "db1"})
    with flow.group("mail", env={"SMTP": "m1"}):
        flow.task(lambda: 1, name="a", timeout=1)
    sentence = "env sets {} for commands, and none gets it: functions read variables of env_file"
    assert sentence.format("PGHOST, SMTP") == found(flow)["env"].message
    flow.command("b", "true", timeout=1)
    assert sentence.format("SMTP") == found(flow)["env"].message
    with flow.group("mail"):  # opened again, without the variables
        flow.command("c", "true", timeout=1)
    assert sentence.format("SMTP") == found(flow)["env"].message
    with flow.group("mail", env={"SMTP": "m1"}):
        flow.command("d", "true", timeout=1)
    assert "env" not in found(flow)


def test_a_downstream_that_nobody_names_and_one_that_nobody_declared_are_reported():
    flow = quiet()
    flow.task(lambda: None, name="a", timeout=1, downstream="api")
    flow.downstream("apy")
    messages = [finding.message for finding in check_flow(flow)]
    assert any("'api' is not declared" in message for message in messages)
    assert any("'apy' is declared and no task names it" in message for message in messages)


def test_a_rule_that_cannot_be_read_is_refused_where_it_is_declared():
    with pytest.raises(FlowError, match=r"downstream 'api': rule .*status is not a number"):
        quiet().downstream("api", rules=({"status": "409", "class": "transient"},))  # type: ignore[typeddict-item]


def test_a_flow_that_pages_nobody_is_reported():
    flow = Flow("f")
    flow.task(lambda: None, name="a", timeout=1)
    assert "no pages: flow.page" in found(flow)["pages"].message


# --- Functions ------------------------------------------------------------------------------------------------------


def test_an_argument_that_nobody_gives_is_an_error():
    """003.37: parameter-shape mismatch."""
    flow = quiet(params={"day": "today"})
    flow.task(lambda: 1, name="load-part", timeout=1)

    @flow.task(after="load-part", timeout=1)
    def fits(ctx: Any, load_part: int, day: str, extra: int = 1) -> None: ...

    @flow.task(after="load-part", timeout=1)
    def does_not(loadpart: int) -> None: ...

    finding = found(flow)["parameters"]
    assert ("error", "does_not") == (finding.level, finding.task)
    assert "asks for an argument 'loadpart'" in finding.message and "did you mean 'load_part'?" in finding.message


def test_an_argument_with_the_name_of_a_task_further_up_says_what_to_add():
    flow = quiet()
    flow.task(lambda: 1, name="load-part", timeout=1)
    flow.task(lambda: 1, name="sum", after="load-part", timeout=1)
    flow.task(lambda load_part: 1, name="mail", after="sum", timeout=1)
    assert found(flow)["parameters"].message.endswith("nor a parameter of the flow: name 'load-part' in after=")


def test_an_argument_by_position_only_and_a_generator_are_errors():
    flow = quiet()

    def by_position(ctx: Any, /) -> None: ...

    def yields() -> Any:
        yield 1

    flow.task(by_position, timeout=1)
    flow.task(yields, timeout=1)
    assert "by_position" == found(flow)["parameters"].task
    assert "yields" == found(flow)["generator"].task


@dataclass
class Total:
    amount: int


def returns_a_date() -> date: ...


def returns_a_total() -> Total: ...


def returns_a_number() -> int: ...


def returns_a_list() -> list[int]: ...


@for_each(
    "parent, wanted, returned",
    [
        (returns_a_date, str, "date"),
        (returns_a_total, dict, "Total"),
        (returns_a_number, str, "int"),
        (returns_a_list, tuple[int, ...], "list"),
    ],
)
def test_a_result_of_another_type_is_a_warning(parent, wanted, returned):
    """003.37: type-incompatible edges."""

    def child(parent: Any) -> None: ...

    child.__annotations__["parent"] = wanted
    flow = quiet()
    flow.task(parent, name="parent", timeout=1)
    flow.task(child, name="child", after="parent", timeout=1)
    finding = found(flow)["edge-types"]
    assert "child" == finding.task and returned in finding.message


@for_each(
    "parent, wanted",
    [
        (returns_a_number, float),
        (returns_a_number, int | None),
        (returns_a_list, list),
        (returns_a_date, Any),
        (returns_a_total, Total),
    ],
)
def test_a_result_that_fits_is_no_finding(parent, wanted):
    def child(parent: Any) -> None: ...

    child.__annotations__["parent"] = wanted
    flow = quiet()
    flow.task(parent, name="parent", timeout=1)
    flow.task(child, name="child", after="parent", timeout=1)
    assert {} == found(flow)


def test_a_connection_that_would_cross_the_fork_is_a_warning(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db")
    lock = threading.Lock()
    flow = quiet()
    flow.task(lambda: connection.execute("SELECT 1"), name="closure", timeout=1)
    flow.task(partial(print, connection), name="bound", timeout=1)
    flow.task(lambda held=lock: held, name="default", timeout=1)
    flow.task(lambda: 1, name="fine", timeout=1)
    messages = {finding.task: finding.message for finding in check_flow(flow) if finding.rule == "captured"}
    connection.close()
    assert {"closure", "bound", "default"} == set(messages)
    assert "sqlite3.Connection" in messages["closure"] and "open it inside the task" in messages["closure"]


def test_a_program_that_is_not_there_is_a_warning():
    """003.37: missing source."""
    flow = quiet()
    for number, line in enumerate(["no-such-program --now", "test -e x && echo y", "if true; then ls; fi", "A=1 x"]):
        flow.command(f"c{number}", line, timeout=1)
    assert [("c0", "program")] == [(one.task, one.rule) for one in check_flow(flow) if one.rule != "orphan"]


# --- Source ---------------------------------------------------------------------------------------------------------

SOURCE = """
import asyncio, time
from redrive.engine import Flow
from redrive.engine.toolkit.retry import retry

flow = Flow("f")
flow.page("bell")

@retry(retries=2)
def loose(): ...

@retry(exceptions=(TimeoutError,), jitter=abs, deadline=5)
def tight(): ...

@flow.task(timeout=1)
def endless():
    while True:
        try:
            loose()
            break
        except Exception:
            continue

@flow.task(timeout=1)
def bounded():
    for _ in range(3):
        try:
            return tight()
        except TimeoutError:
            time.sleep(1)

@flow.task(timeout=1)
def hides():
    try:
        tight()
    except Exception:
        pass

@flow.task(timeout=1)
async def blocks():
    time.sleep(1)
    await asyncio.sleep(1)
"""


def test_the_pitfalls_of_the_documents_are_found_in_the_source(tmp_path):
    """001.13, 004.14: the broken loop, errors that vanish, a wait that blocks, a retry that names nothing."""
    (tmp_path / "flow.py").write_text(f"# coding: latin-1\n# é\n{SOURCE}", "latin-1")
    findings = [one for one in check_flow(load_flow(str(tmp_path / "flow.py"))) if one.line is not None]
    lines = ["", "", *SOURCE.splitlines()]
    assert {
        "loose-retry": "@retry(retries=2)",
        "endless-retry": "    while True:",
        "swallowed": "    except Exception:",
        "sleep-in-async": "    time.sleep(1)",
    } == {finding.rule: lines[(finding.line or 0) - 1] for finding in findings}
    assert 4 == len(findings)
    assert "does not wait" in next(one.message for one in findings if one.rule == "endless-retry")


# --- History and the checklist --------------------------------------------------------------------------------------


def test_what_earlier_runs_took_is_read_from_their_state_file(tmp_path: Path):
    flow = Flow("nightly")
    flow.command("a", "sleep 0.05", timeout=30)
    for number in range(3):
        Executor(run_id=f"n{number}", flow=flow, state=tmp_path / "state.db").run()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        (past,) = past_by_task(connection, flow.spec()).values()
        assert {"a": []} == past_by_task(connection, FlowSpec("another flow", flow.spec().tasks))
    assert 3 == len(past) and all(0.05 <= one.seconds < 30 for one in past)


def test_the_checklist_of_document_001_is_answered_task_by_task():
    """001.21."""
    good = checklist(TaskSpec("a", timeout=30.0, retry=RetryPolicy(retry_on=("TimeoutError",), max_elapsed=60)))
    assert [True, True, True, True, None, None] == [check.passes for check in good]
    assert good[4].text.startswith("counts as idempotent"), "nobody has declared it"
    declared = checklist(TaskSpec("a", idempotent=False))
    assert (True, "not idempotent: never run twice without an operator") == (declared[4].passes, declared[4].text)
    assert "bounded: 3 starts, within 60 s" == good[0].text
    bad = checklist(TaskSpec("a", retry=RetryPolicy(retry_on=("builtins.Exception",), jitter="none")))
    assert [True, False, False, False, None, None] == [check.passes for check in bad]


# --- Map tasks --------------------------------------------------------------------------------------------------------


def test_a_child_of_a_map_task_gets_a_list_and_a_map_task_an_element() -> None:
    def names() -> list[str]: ...

    def size(names: str) -> int: ...

    def total(size: list[int]) -> int: ...

    def wrong(size: int) -> int: ...

    def nested(sizes: int) -> int: ...

    flow = quiet()
    flow.task(names, timeout=1)
    flow.map(over="names", timeout=1)(size)
    flow.task(total, after="size", timeout=1)
    flow.map(over="size", name="again", timeout=1)(nested)
    assert "edge-types" not in found(flow)
    flow.task(wrong, after="size", timeout=1)
    assert found(flow)["edge-types"].message == "wants 'size' to be int, and it is list[int]"


class Invoice(NamedTuple):
    number: str


def by_type(invoice: dict[str, Any]) -> None: ...


def by_object(invoice: Invoice) -> None: ...


def by_value(invoice) -> None:
    print(invoice)


def invoices() -> list[dict[str, int]]: ...


@for_each(
    "function, listed, is_refused",
    [
        (by_type, by_value, True),
        (by_object, by_value, True),
        (by_value, invoices, True),
        (by_value, by_value, False),
    ],
)
def test_an_effect_over_mappings_or_objects_wants_a_key(function: Any, listed: Any, is_refused: bool) -> None:
    flow = quiet()
    flow.task(listed, name="listed", timeout=1)
    flow.map(function, over="listed", name="pay", kind="effect", timeout=1)
    assert ("map-key" in found(flow)) is is_refused
    if is_refused:
        assert found(flow)["map-key"].level == "error"
    accepted: list[dict[str, Any]] = [{"kind": "effect", "key": str}, {}]
    for options in accepted:
        flow = quiet()
        flow.task(listed, name="listed", timeout=1)
        flow.map(function, over="listed", name="pay", timeout=1, **options)
        assert "map-key" not in found(flow)
