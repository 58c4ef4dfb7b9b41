"""The executor, end to end: real forks, a real state file, and what the file says afterwards."""

import json
import os
import re
import sqlite3
import time
from pathlib import Path

import pytest
from redrive.engine import (
    Executor,
    Flow,
    NotReady,
    PermanentError,
    RetryPolicy,
    RunOptions,
    SkipTask,
    TaskDef,
    TransientError,
)
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.rows import RunRow
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import runs

QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.05)


def run(tmp_path: Path, flow: Flow, run_id: str = "r", **options):
    executor = Executor(run_id=run_id, flow=flow, state=tmp_path / "state.db", options=RunOptions(**options))
    return executor.run_result()


def table(tmp_path: Path, columns: str = "state", run_id: str = "r") -> dict:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        rows = connection.execute(f"SELECT name, {columns} FROM task WHERE run_id = ? ORDER BY position", (run_id,))
        return {name: values[0] if len(values) == 1 else tuple(values) for name, *values in rows}


def ask(tmp_path: Path, sql: str, *values):
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql, values).fetchall()


def test_a_dag_runs_in_order(tmp_path):
    flow = Flow("f")
    flow.task(lambda: 1, name="a")
    flow.task(lambda a: a + 1, name="b", after="a")
    flow.task(lambda a, b: a + b, name="c", after=["a", "b"])
    assert "SUCCESS" == run(tmp_path, flow).state
    assert {"a": ("SUCCESS", "1"), "b": ("SUCCESS", "2"), "c": ("SUCCESS", "3")} == table(tmp_path, "state, result")
    order = ask(
        tmp_path, "SELECT task, new FROM event WHERE kind = 'task' AND new IN ('RUNNING','SUCCESS') ORDER BY seq"
    )
    assert [(name, state) for name in "abc" for state in ("RUNNING", "SUCCESS")] == order


def test_a_child_is_ready_in_the_commit_of_its_last_parents_success(tmp_path):
    """SPEC 4.5: what proves that the parents are satisfied, and what follows from it, are one transaction."""
    flow = Flow("f")
    flow.task(lambda: 1, name="a")
    flow.task(lambda: 2, name="b", after="a")
    flow.task(lambda: 3, name="c", after=["a", "b"])
    assert "SUCCESS" == run(tmp_path, flow).state
    instants = dict(ask(tmp_path, "SELECT task || ' ' || new, at FROM event WHERE kind = 'task'"))
    assert (instants["b READY"], instants["c READY"]) == (instants["a SUCCESS"], instants["b SUCCESS"])


def test_who_takes_the_slot_of_an_attempt_that_ended_shares_its_commit(tmp_path):
    """One commit between two attempts, not two; and never more of them at a time than there are slots."""
    flow = Flow("f")
    for number in range(20):
        flow.task(lambda: None, name=f"t{number}")
    assert "SUCCESS" == run(tmp_path, flow, max_parallel=1).state
    instants = dict(ask(tmp_path, "SELECT task || ' ' || new, at FROM event WHERE kind = 'task'"))
    shared = [number for number in range(19) if instants[f"t{number} SUCCESS"] == instants[f"t{number + 1} RUNNING"]]
    assert len(shared) > 9, "a heartbeat may come between now and then"
    moves = ask(tmp_path, "SELECT old, new FROM event WHERE kind = 'task' AND 'RUNNING' IN (old, new) ORDER BY seq")
    assert [new for _, new in moves] == ["RUNNING", "SUCCESS"] * 20


def test_a_transient_failure_heals_and_every_delay_is_stored_beside_its_ceiling(tmp_path):
    """SPEC part 0: document 003's first retry hangs the run for ever."""
    flow = Flow("f")

    @flow.task(retry=RetryPolicy(max_attempts=5, base=0.02, cap=10))
    def flaky(ctx):
        if ctx.attempt < 4:
            raise TransientError("not yet")

    assert "SUCCESS" == run(tmp_path, flow).state
    rows = ask(tmp_path, "SELECT attempt, outcome, delay_us, ceiling_us FROM attempt ORDER BY attempt")
    assert ["error", "error", "error", "success"] == [outcome for _, outcome, _, _ in rows]
    assert [20_000, 40_000, 80_000] == [ceiling for _, _, _, ceiling in rows[:3]]
    assert all(0 <= delay <= ceiling for _, _, delay, ceiling in rows[:3])


def test_max_attempts_is_the_number_of_starts(tmp_path):
    """SPEC part 0: with document 003's hang repaired, max_attempts=3 ran the task 12 times in 40 s."""
    flow = Flow("f")

    @flow.task(retry=QUICK)
    def doomed():
        raise TransientError("never")

    flow.task(lambda: None, name="child", after=doomed)
    assert "FAILED" == run(tmp_path, flow).state
    assert {"doomed": ("FAILED", 3, None), "child": ("UPSTREAM_FAILED", 0, "doomed")} == table(
        tmp_path, "state, attempt, blocked_by"
    )


def test_the_same_failure_twice_is_dead_lettered_and_holds_its_children(tmp_path):
    """000.35; SPEC part 0: a run whose leaf is DEAD_LETTER ended SUCCESS, one with children never ended."""
    flow = Flow("f")

    @flow.task(retry=QUICK)
    def poisoned():
        return 1 / 0

    flow.task(lambda: None, name="child", after=poisoned)
    result = run(tmp_path, flow)
    assert result.blocked and result.state == "BLOCKED"
    assert {"poisoned": ("DEAD_LETTER", 2, "poison"), "child": ("PENDING", 0, None)} == table(
        tmp_path, "state, attempt, dead_letter_kind"
    )
    assert [(None, 1)] == ask(tmp_path, "SELECT ended_at, blocked_since IS NOT NULL FROM run")


def test_two_failures_have_two_fingerprints(tmp_path):
    """SPEC part 0: through document 000's subprocess every exception had one fingerprint."""
    flow = Flow("f")

    @flow.task(retry=RetryPolicy(max_attempts=2, base=0.01, poison_after=None))
    def changing(ctx):
        if ctx.attempt == 1:
            return 1 / 0
        return dict[str, int]()["missing"]

    run(tmp_path, flow)
    fingerprints = [mark for (mark,) in ask(tmp_path, "SELECT fingerprint FROM attempt ORDER BY attempt")]
    assert 2 == len(set(fingerprints))


def test_a_permanent_failure_is_dead_lettered_at_once(tmp_path):
    flow = Flow("f")

    @flow.task
    def refused():
        raise PermanentError("403", diagnostic="scope is missing")

    run(tmp_path, flow)
    assert {"refused": ("DEAD_LETTER", 1, "permanent")} == table(tmp_path, "state, attempt, dead_letter_kind")
    assert [("scope is missing",)] == ask(tmp_path, "SELECT diagnostic FROM attempt")


def test_a_diamond_fails_only_below_the_failure(tmp_path):
    flow = Flow("f")
    flow.task(lambda: None, name="top")

    @flow.task(after="top", retry=RetryPolicy(max_attempts=1))
    def left():
        raise TransientError("no")

    flow.task(lambda: None, name="right", after="top")
    flow.task(lambda: None, name="bottom", after=["left", "right"])
    flow.task(lambda: None, name="beside", after="right")
    assert "FAILED" == run(tmp_path, flow).state
    states = table(tmp_path, "state, blocked_by")
    assert ("UPSTREAM_FAILED", "left") == states["bottom"]
    assert ("SUCCESS", None) == states["beside"]


def test_a_failure_confined_to_optional_tasks_makes_the_run_partial(tmp_path):
    """SPEC 4.8, 003.07: document 003 allows PARTIAL and never sets it."""
    flow = Flow("f")

    @flow.task(optional=True, retry=RetryPolicy(max_attempts=1))
    def nice_to_have():
        raise TransientError("no")

    flow.task(lambda: None, name="needed")
    assert "PARTIAL" == run(tmp_path, flow).state


def test_a_branch_that_is_not_taken_is_skipped_and_the_run_succeeds(tmp_path):
    flow = Flow("f")

    @flow.task
    def decide():
        raise SkipTask("nothing to do on Sundays")

    flow.task(lambda: None, name="only_then", after="decide")
    flow.task(lambda: None, name="join", after=["decide", "other"], rule="none_failed")
    flow.task(lambda: None, name="other")
    assert "SUCCESS" == run(tmp_path, flow).state
    assert "nothing to do on Sundays" == table(tmp_path, "error")["decide"]
    assert {"decide": "SKIPPED", "only_then": "SKIPPED", "join": "SUCCESS", "other": "SUCCESS"} == table(tmp_path)


def test_a_sensor_polls_again_and_holds_no_slot(tmp_path):
    """000.48."""
    flow = Flow("f", max_parallel=1)

    @flow.sensor(every=0.2)
    def file_is_there(ctx):
        return ctx.attempt >= 3

    @flow.sensor(every=0.2)
    def other_file(ctx):
        if ctx.attempt < 2:
            raise NotReady("no")
        return True

    @flow.task(after=file_is_there)
    def load():
        return None

    assert "SUCCESS" == run(tmp_path, flow).state
    columns = "state, attempt, deferrals, failures"
    assert {
        "file_is_there": ("SUCCESS", 3, 2, 0),
        "other_file": ("SUCCESS", 2, 1, 0),
        "load": ("SUCCESS", 1, 0, 0),
    } == table(tmp_path, columns)


def test_a_sensor_that_waits_in_vain_says_for_what_and_how_long(tmp_path):
    """In the row, in the attempt and in the page; two sensors are two causes."""
    flow = Flow("f", max_parallel=2)
    soon = RetryPolicy(max_elapsed=0.2)

    @flow.sensor(every=0.1, retry=soon)
    def file_there():
        return False

    @flow.sensor(every=0.1, retry=soon)
    def export_there():
        raise NotReady("no export of 22 November yet")

    assert "FAILED" == run(tmp_path, flow).state
    waited = r"what it waits for did not come within 0\.2 s, in \d checks?"
    rows = table(tmp_path, "state, error, failure_class")
    assert re.fullmatch(waited, rows["file_there"][1]) and ("FAILED", "transient") == rows["file_there"][::2]
    assert re.fullmatch(waited + ": no export of 22 November yet", rows["export_there"][1])
    causes = dict(ask(tmp_path, "SELECT name, explain FROM attempt WHERE explain IS NOT NULL"))
    assert {
        "file_there": "file_there waited in vain",
        "export_there": "export_there waited in vain: no export of 22 November yet",
    } == causes
    assert 2 == ask(tmp_path, "SELECT count(DISTINCT cause) FROM page")[0][0]
    errors = {json.loads(body)["error"] for (body,) in ask(tmp_path, "SELECT body FROM page")}
    assert errors == {error for _, error, _ in rows.values()}


def test_numbers_that_nothing_can_hold_end_nobodys_run(tmp_path):
    flow = Flow("f")

    @flow.sensor(every=0.2)
    def file_is_there(ctx):
        if ctx.attempt < 2:
            raise NotReady("no", recheck_seconds=float("nan"))
        return True

    @flow.task
    def counts(ctx):
        ctx.progress(2**64, 2**65)

    assert "SUCCESS" == run(tmp_path, flow).state
    largest = 2**63 - 1
    assert {"file_is_there": (None, None), "counts": (largest, largest)} == table(
        tmp_path, "progress_done, progress_total"
    )


def test_pools_and_max_parallel_bound_what_runs_at_a_time(tmp_path):
    flow = Flow("f", pools={"db": 1})
    for number in range(3):
        flow.task(lambda: time.sleep(0.1), name=f"pooled{number}", pool="db")
        flow.task(lambda: time.sleep(0.1), name=f"free{number}")
    assert "SUCCESS" == run(tmp_path, flow, max_parallel=3).state
    events = ask(
        tmp_path, "SELECT task, new FROM event WHERE kind = 'task' AND new IN ('RUNNING','SUCCESS') ORDER BY seq"
    )
    running, most, most_pooled = set(), 0, 0
    for name, state in events:
        (running.add if state == "RUNNING" else running.discard)(name)
        most = max(most, len(running))
        most_pooled = max(most_pooled, sum(1 for one in running if one.startswith("pooled")))  # type: ignore[misc]
    assert (3, 1) == (most, most_pooled)


def test_a_hang_is_killed_and_reports_where_it_was(tmp_path):
    """It runs until its deadline finds it in its loop, and it has answered in time: not so where the machine stalls."""
    flow, tries = Flow("f"), 40

    @flow.task(timeout=0.3, grace_seconds=0.2, retry=RetryPolicy(max_attempts=1))
    def hangs():
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass

    ladder = ["attempt.deadline", "attempt.stack", "attempt.sigterm", "attempt.sigkill"]
    for run_id in map(str, range(tries)):
        assert "FAILED" == run(tmp_path, flow, run_id).state
        sql = "SELECT kind FROM event WHERE kind LIKE 'attempt.%' AND run_id = ? ORDER BY seq"
        steps = [kind for (kind,) in ask(tmp_path, sql, run_id) if kind in ladder]
        ((outcome, stack, error),) = ask(tmp_path, "SELECT outcome, stack, error FROM attempt WHERE run_id = ?", run_id)
        assert "timed_out" == outcome
        assert error.startswith("task exceeded 0.3s")
        if steps == ladder and "in hangs" in str(stack):
            return
    raise AssertionError(f"not once in {tries} times: {steps} {stack}")


def test_output_of_a_task_is_kept_also_without_a_newline_or_valid_text(tmp_path):
    flow = Flow("f")

    @flow.task
    def talks():
        print("first")
        os.write(2, b"caf\xc3\xa9 \xff end")

    run(tmp_path, flow)
    text = "".join(text for (text,) in ask(tmp_path, "SELECT text FROM log ORDER BY id"))
    assert "first\ncafé � end" == text
    sql = "SELECT json_extract(data, '$.attempt.output_bytes') FROM event WHERE new = 'SUCCESS' AND task = 'talks'"
    assert ask(tmp_path, sql) == ask(tmp_path, "SELECT output_bytes FROM attempt")


def test_parameters_and_results_reach_the_tasks(tmp_path):
    flow = Flow("f", params={"day": "2026-04-25"})
    flow.task(lambda day: {"rows": 3, "day": day}, name="extract")
    flow.task(lambda extract: extract["rows"] * 2, name="load", after="extract")
    run(tmp_path, flow)
    assert {"extract": '{"rows":3,"day":"2026-04-25"}', "load": "6"} == {
        name: text.replace(" ", "") for name, text in table(tmp_path, "result").items()
    }


def test_a_command_fails_by_its_exit_code(tmp_path):
    flow = Flow("f")
    flow.command("good", "echo hello")
    flow.command("busy", "test $REDRIVE_ATTEMPT -ge 2 || exit 75", retry=QUICK)
    flow.command("bad", "exit 3", retry=RetryPolicy(max_attempts=1))
    assert "FAILED" == run(tmp_path, flow).state
    assert {"good": ("SUCCESS", 1), "busy": ("SUCCESS", 2), "bad": ("FAILED", 1)} == table(tmp_path, "state, attempt")


def test_finished_work_is_not_run_again(tmp_path):
    flow = Flow("f")
    flow.task(lambda: os.write(os.open(tmp_path / "ran", os.O_CREAT | os.O_APPEND | os.O_WRONLY), b"x"), name="once")
    run(tmp_path, flow)
    assert "SUCCESS" == run(tmp_path, flow).state
    assert b"x" == (tmp_path / "ran").read_bytes()


def test_only_retries_pending_is_no_reason_to_sleep_for_ever(tmp_path):
    """003.26: nothing else wakes the loop."""
    flow = Flow("f")

    @flow.task(retry=RetryPolicy(base=0.3, cap=0.3, jitter="none"))
    def flaky(ctx):
        if ctx.attempt < 3:
            raise TransientError("later")

    started = time.monotonic()
    assert "SUCCESS" == run(tmp_path, flow).state
    assert 0.6 <= time.monotonic() - started < 60


def test_folding_the_events_gives_the_task_table_again(tmp_path):
    """DESIGN 4."""
    flow = Flow("f")
    flow.task(lambda: 1 / 0, name="poisoned", retry=QUICK)
    flow.task(lambda: None, name="fine")
    flow.task(lambda: None, name="held", after=["poisoned", "fine"])

    @flow.task(retry=QUICK)
    def doomed():
        raise TransientError("never")

    flow.task(lambda: None, name="below", after="doomed")
    run(tmp_path, flow)
    assert_projection_is_table(tmp_path / "state.db", "r")


def assert_projection_is_table(state: Path, run_id: str) -> None:
    connection = sqlite3.connect(state)
    now = runs.load_run(connection, run_id)
    projection = RunProjection(RunRow(run_id))
    for name, row in now.tasks.items():
        projection.tasks[name] = TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
    for event in map(event_of, connection.execute(*events_query(0, 1_000_000))):
        projection.apply(event)
    assert now.tasks == projection.tasks
    assert now.run == projection.run


def test_the_documents_own_form_works_with_closures(tmp_path):
    """003.14-28."""
    secret = "closure"

    def fake(seconds):
        def body():
            time.sleep(seconds)
            assert secret == "closure"

        return body

    tasks = [TaskDef("a", fake(0.01)), TaskDef("b", fake(0.01), parents=["a"], max_attempts=2, timeout_seconds=5)]
    assert "SUCCESS" == Executor("doc", "run-1", tasks, max_parallel=2, state=tmp_path / "state.db").run()


def test_a_run_can_be_asked_which_tasks_are_ready_in_sql(tmp_path):
    flow = Flow("f")
    flow.task(lambda: 1 / 0, name="poisoned", retry=QUICK)
    flow.task(lambda: None, name="held", after="poisoned")
    run(tmp_path, flow)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert [] == runs.ready_audit(connection, "r")


@pytest.mark.parametrize("sql", ["UPDATE task SET state = 'WHATEVER'", "INSERT INTO run VALUES ('x','y',1,1,'NO')"])
def test_the_file_itself_refuses_a_state_that_does_not_exist(tmp_path, sql):
    flow = Flow("f")
    flow.task(lambda: None, name="a")
    run(tmp_path, flow)
    with pytest.raises(sqlite3.Error), sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute(sql)
