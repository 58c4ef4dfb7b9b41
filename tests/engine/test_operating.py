"""Operators' acts on a living executor and on a file that nobody owns: the same rules, the same answers."""

import os
import signal
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import ExecutorBusyError, FlowError, RedriveError
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import parse_command
from redrive.engine.executor import host
from redrive.engine.statefile import lock_file
from support.marks import parametrize_mostly_long
from support.processes import wait_for_end
from support.waiting import LIMIT_SECONDS, wait_until

FLOW = """
import time
from redrive.engine import Flow, PermanentError, RetryPolicy, TransientError

flow = Flow("operated")

@flow.task
def broken(ctx):
    if ctx.generation == 0:
        raise PermanentError("no")

@flow.task(after=broken, downstream="warehouse")
def held(): ...

@flow.task(retry=RetryPolicy(base=600, cap=600, jitter="none"))
def waits(ctx):
    if ctx.attempt == 1:
        raise TransientError("later")

@flow.task(timeout=600, grace_seconds=0.2)
def long():
    time.sleep(600)
"""


@pytest.fixture
def state(tmp_path):
    """A living executor that stays, and the state file it owns."""
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(FLOW)
    pid = host.spawn(flow=str(flow), state=path, run_id="r", options={"stay": True})
    wait_for(path, "broken", "DEAD_LETTER")
    wait_for(path, "waits", "RETRYING")
    wait_for(path, "long", "RUNNING")
    yield path
    try:
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
    except (ProcessLookupError, ChildProcessError):
        pass


def row(path: str, task: str, columns: str = "state"):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM task WHERE name = ?", (task,)).fetchone()


def wait_for(path: str, task: str, state: str, seconds: float = LIMIT_SECONDS) -> None:
    wait_until(
        lambda: row(path, task) == (state,), seconds, describe=lambda: f"{task} is {row(path, task)}, not {state}"
    )


def wait_for_row(path: str, question: str) -> None:
    with sqlite3.connect(path) as connection:
        wait_until(lambda: connection.execute(question).fetchone(), describe=lambda: question)


def act(path: str, act: str, *targets, **more):
    command = {"id": uuid.uuid4().hex, "act": act, "run_id": "r", "targets": [list(target) for target in targets]}
    sent = parse_command({**command, "actor": "ana@host", "reason": "because", **more})
    return command_client.send_blocking(path, sent).as_json()


def test_a_requeue_runs_again_with_a_new_generation_and_frees_what_was_held(state):
    answer = act(state, "requeue", ("broken", "DEAD_LETTER", 0))
    assert answer["ok"], answer
    wait_for(state, "held", "SUCCESS")
    assert ("SUCCESS", 1, 2) == row(state, "broken", "state, generation, attempt")


@pytest.mark.spawns
def test_the_list_of_processes_names_the_flow_and_the_state_file(tmp_path):
    (tmp_path / "operated.py").write_text(FLOW)
    flow, path = str(tmp_path / "operated.py"), str(tmp_path / "state.db")
    pid = host.spawn(flow=flow, state=path, run_id="r", options={"stay": True})
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    os.kill(pid, signal.SIGTERM)
    wait_for_end(pid)
    assert words[-3:-1] == [path, flow]


def test_of_two_operators_the_first_wins_and_the_second_gets_an_answer(state):
    assert act(state, "skip", ("broken", "DEAD_LETTER", 0))["ok"]
    second = act(state, "requeue", ("broken", "DEAD_LETTER", 0), actor="bob@host")
    assert not second["ok"]
    ((_, result, sentence),) = second["results"]
    assert "refused" == result
    assert "ana@host" in sentence


def test_a_breaker_that_is_set_by_one_command_twice_is_set_once(state):
    """Also where the executor has died in between, and the second one is applied under its lock."""
    how = {"options": {"downstream": "warehouse", "how": "open"}, "id": "same"}
    first = act(state, "breaker", **how)
    assert first["ok"] and first == act(state, "breaker", **how)
    with sqlite3.connect(state) as connection:
        assert [(1,)] == connection.execute("SELECT count(*) FROM event WHERE kind = 'operator'").fetchall()
    act(state, "stop", options={"how": "now"})
    assert first == act(state, "breaker", **how)


@pytest.mark.parametrize(("name", "options"), [("stop", {"how": "drain"}), ("reload", {})])
def test_an_act_on_the_executor_that_arrives_twice_is_in_the_journal_once(state, name, options):
    for _ in range(2):
        assert act(state, name, options=options, id="same")["ok"]
    act(state, "note", options={"fingerprint": "f", "text": "written after both"})
    with sqlite3.connect(state) as connection:
        counted = connection.execute("SELECT count(*) FROM event WHERE command_id = 'same'").fetchall()
    assert [(1,)] == counted


def test_a_command_that_arrives_twice_is_done_once(state):
    first = act(state, "requeue", ("broken", "DEAD_LETTER", 0), id="same")
    wait_for(state, "broken", "SUCCESS")
    assert first == act(state, "requeue", ("broken", "DEAD_LETTER", 0), id="same")
    assert (1,) == row(state, "broken", "generation")


def test_a_retry_can_be_brought_forward(state):
    assert act(state, "hurry", ("waits", "RETRYING", 0))["ok"]
    wait_for(state, "waits", "SUCCESS")


def test_a_running_task_can_be_cancelled(state):
    assert act(state, "cancel", ("long", "RUNNING", 0))["ok"]
    wait_for(state, "long", "CANCELLED")
    with sqlite3.connect(state) as connection:
        event = "SELECT actor, reason FROM event WHERE task = 'long' AND new = 'CANCELLED'"
        assert [("ana@host", "because")] == connection.execute(event).fetchall()


STUBBORN = """
import signal, time
from redrive.engine import Flow

flow = Flow("stubborn")

@flow.task(timeout=600, grace_seconds=300)
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf now", flush=True)
    time.sleep(600)

@flow.task(after=deaf)
def below(): ...
"""


@pytest.mark.long
def test_a_cancel_outlives_the_executor_that_took_it(tmp_path):
    """kill -9 within the grace: the next executor finds what this one was asked for, and does not run it again."""
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(STUBBORN)
    settings: dict[str, Any] = {"flow": str(flow), "state": path, "options": {"stay": True}}
    pid = host.spawn(run_id="r", **settings)
    wait_for(path, "deaf", "RUNNING")
    wait_for_row(path, "SELECT 1 FROM log WHERE text LIKE '%deaf now%'")
    assert act(path, "cancel", ("deaf", "RUNNING", 0))["ok"]
    wait_for_row(path, "SELECT 1 FROM event WHERE kind = 'attempt.sigterm'")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert ("RUNNING",) == row(path, "deaf")
    wait_for_end(host.spawn(run_id="r", **settings))
    assert ("CANCELLED", 1, 0, None) == row(path, "deaf", "state, attempt, losses, cancel_requested_at")
    assert ("UPSTREAM_FAILED", "deaf") == row(path, "below", "state, blocked_by")
    with sqlite3.connect(path) as connection:
        event = "SELECT actor, reason FROM event WHERE task = 'deaf' AND new = 'CANCELLED'"
        assert [("ana@host", "because")] == connection.execute(event).fetchall()


@pytest.mark.long
def test_a_cancel_without_any_executor_is_done_at_once(tmp_path):
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(STUBBORN)
    settings: dict[str, Any] = {"flow": str(flow), "state": path, "options": {"stay": True}}
    pid = host.spawn(run_id="r", **settings)
    wait_for(path, "deaf", "RUNNING")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    answer = act(path, "cancel", ("deaf", "RUNNING", 0))
    assert answer["results"] == [["deaf", "done", "cancelled"]]
    assert ("CANCELLED", 1) == row(path, "deaf", "state, attempt")
    wait_for_end(host.spawn(run_id="r", **settings))
    assert ("CANCELLED", 1, 1) == row(path, "deaf", "state, attempt, losses")


SLOW = """
import pathlib, time
from redrive.engine import Flow, RetryPolicy

flow = Flow("slow")

@flow.task(timeout=6, grace_seconds=0.2, retry=RetryPolicy(max_attempts=1))
def nearly_done():
    while not pathlib.Path(__file__).with_name("go-on").exists():
        time.sleep(0.02)
"""


@pytest.mark.long
def test_an_attempt_that_is_given_more_time_outlives_its_timeout(tmp_path):
    """Once, however often the same command arrives; and whoever reads the file later sees who gave it."""
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(SLOW)
    pid = host.spawn(run_id="r", flow=str(flow), state=path, options={})
    wait_for_row(path, "SELECT 1 FROM event WHERE kind = 'attempt.started'")
    for _ in range(2):
        answer = act(path, "extend", ("nearly_done", "RUNNING", 0), id="same", options={"seconds": 600})
        assert answer["ok"], answer
    wait_for_row(path, "SELECT 1 FROM attempt WHERE started_at + 6500000 < (julianday('now') - 2440587.5) * 86400e6")
    (tmp_path / "go-on").touch()
    wait_for_end(pid)
    assert ("SUCCESS",) == row(path, "nearly_done")
    with sqlite3.connect(path) as connection:
        assert [(606_000_000,)] == connection.execute("SELECT timeout_us FROM attempt").fetchall()
        sql = "SELECT actor, reason, json_extract(data, '$.seconds') FROM event WHERE kind = 'attempt.extended'"
        assert [("ana@host", "because", 600)] == connection.execute(sql).fetchall()


def test_nothing_can_be_given_more_time_without_an_executor(state):
    os.kill(lock_file.current_holder(state).pid, signal.SIGKILL)
    answer = act(state, "extend", ("long", "RUNNING", 0), options={"seconds": 600})
    assert not answer["ok"] and "its executor is dead" in answer["results"][0][2]


@pytest.mark.long
def test_what_ran_when_its_executor_died_can_be_requeued_and_resumed(state):
    """Lost with the evidence, then requeued: nobody has to resume first in order to decide."""
    os.kill(lock_file.current_holder(state).pid, signal.SIGKILL)
    answer = act(state, "requeue", ("long", "RUNNING", 0))
    assert answer["ok"], answer
    assert ("PENDING", 1, 1) == row(state, "long", "state, attempt, generation")
    with sqlite3.connect(state) as connection:
        lost = "SELECT outcome, ended_at IS NOT NULL FROM attempt WHERE name = 'long'"
        assert [("lost", 1)] == connection.execute(lost).fetchall()
        sql = "SELECT json_extract(data, '$.process') FROM event WHERE kind = 'attempt.reclaimed'"
        assert [("gone",)] == connection.execute(sql).fetchall()
    pid = host.spawn(flow=None, state=state, run_id="r", options={"stay": True, "resume": True})
    wait_for(state, "long", "RUNNING")
    assert (2, 1) == row(state, "long", "attempt, generation")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


LOCKED_OUT = """
import pathlib
from redrive.engine import AuthError, Flow

flow = Flow("locked-out")
renewed = pathlib.Path(__file__).with_name("renewed")

@flow.task(downstream="vault")
def first():
    if not renewed.exists():
        raise AuthError("no")

@flow.task(downstream="vault")
def other():
    first()

@flow.task(after=first, downstream="vault")
def second(): ...
"""


@parametrize_mostly_long("alive", [True, False], quick=1)
def test_a_requeue_after_a_renewed_credential_needs_no_second_lever(tmp_path, alive):
    """The breaker that waits for an operator takes the requeue for his word, with an executor alive or without."""
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(LOCKED_OUT)
    settings: dict[str, Any] = {"flow": str(flow), "state": path, "run_id": "r"}
    pid = host.spawn(**settings, options={"stay": alive})
    wait_for_row(path, "SELECT 1 FROM run WHERE blocked_since IS NOT NULL")
    if not alive:
        wait_for_end(pid)
    (tmp_path / "renewed").touch()
    answer = act(path, "requeue", ("first", "DEAD_LETTER", 0), ("other", "DEAD_LETTER", 0))
    assert "vault is asked with one call" in answer["message"]
    if not alive:
        pid = host.spawn(**settings, options={})
    wait_for(path, "second", "SUCCESS")
    wait_for_end(pid)


CHANGED = """
import pathlib, time
from redrive.engine import Flow, PermanentError, RetryPolicy, TransientError

flow = Flow("changed", params={"day": 1})

@flow.task(timeout=100, grace_seconds=0.1, retry=RetryPolicy(max_attempts=3, base=0.01))
def tells(ctx, day):
    line = f"{ctx.generation} {ctx.attempt} {day} {ctx.idempotency_key}\\n"
    with pathlib.Path(__file__).with_name("told").open("a") as file:
        file.write(line)
    if ctx.generation == 0:
        raise PermanentError("no")
    if ctx.generation == 1:
        raise TransientError("not yet")
    time.sleep(1)
"""


def test_a_requeue_changes_timeout_parameters_and_tries_for_one_generation(tmp_path):
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(CHANGED)
    settings: dict[str, Any] = {
        "run_id": "r",
        "flow": str(flow),
        "state": path,
        "options": {"stay": True, "params": {"day": 2}},
    }
    pid = host.spawn(**settings)
    wait_for(path, "tells", "DEAD_LETTER")
    changed = {"params": {"day": "7"}, "single_shot": True, "new_key": True}
    assert act(path, "requeue", ("tells", "DEAD_LETTER", 0), options=changed)["ok"]
    wait_for_end(pid)
    assert ("FAILED", 2, 1) == row(path, "tells", "state, attempt, max_attempts")
    flow.write_text(CHANGED.replace("timeout=100", "timeout=0.3"))
    assert act(path, "requeue", ("tells", "FAILED", 1), options={"timeout": 60})["ok"]
    wait_for_end(host.spawn(**settings))
    assert ("SUCCESS", 3) == row(path, "tells", "state, attempt")
    sql = (tmp_path / "told").read_text().splitlines()
    assert sql == ["0 1 2 r/tells/0", "1 2 7 r/tells/1", "2 3 2 r/tells/1"]


CLUSTER = """
import pathlib
from redrive.engine import Flow, PermanentError, RetryPolicy

flow = Flow("cluster", max_parallel=2)

def load():
    if not pathlib.Path(__file__).with_name("fixed").exists():
        raise PermanentError("the schema has changed")

for number in range(1, 6):
    flow.task(load, name=f"load_{number}")
"""


def test_a_fix_is_tried_on_one_task_and_then_on_the_others(tmp_path):
    """Twice: first it is not a fix, and the others have not been touched; then it is one."""
    flow, path = tmp_path / "flow.py", str(tmp_path / "state.db")
    flow.write_text(CLUSTER)
    pid = host.spawn(run_id="r", flow=str(flow), state=path, options={"stay": True})
    names = [f"load_{number}" for number in range(1, 6)]
    for name in names:
        wait_for(path, name, "DEAD_LETTER")
    seen = [(name, "DEAD_LETTER", 0) for name in names]
    assert act(path, "requeue", *seen, options={"canary": True})["ok"]
    wait_for_row(path, "SELECT 1 FROM event WHERE kind = 'canary' AND data LIKE '%not-fixed%'")
    assert {(0,), (1,)} == {row(path, name, "generation") for name in names}
    assert ("DEAD_LETTER", 2) == row(path, "load_1", "state, attempt")
    assert ("DEAD_LETTER", 1, None) == row(path, "load_5", "state, attempt, canary")
    (tmp_path / "fixed").touch()
    seen[0] = ("load_1", "DEAD_LETTER", 1)
    assert act(path, "requeue", *seen, options={"canary": True, "rate_per_second": 20})["ok"]
    wait_for_end(pid)
    assert {("SUCCESS",)} == {row(path, name) for name in names}
    with sqlite3.connect(path) as connection:
        first, *others = connection.execute("SELECT task FROM event WHERE new = 'SUCCESS' ORDER BY seq").fetchall()
    assert first == ("load_1",) and len(others) == 5  # the four, and the run


def test_a_paused_run_starts_nothing_until_it_is_unpaused(state):
    assert act(state, "pause")["ok"]
    assert act(state, "hurry", ("waits", "RETRYING", 0))["ok"]
    assert act(state, "requeue", ("broken", "DEAD_LETTER", 0))["ok"]
    wait_for(state, "broken", "READY")
    assert ("READY",) == row(state, "waits")
    assert act(state, "unpause")["ok"]
    wait_for(state, "waits", "SUCCESS")


def test_an_undone_requeue_leaves_no_trace_but_its_events(state):
    before = row(state, "broken", "state, generation, failures, error, dead_letter_kind")
    assert act(state, "requeue", ("broken", "DEAD_LETTER", 0), id="act-1", options={"not_before": 600})["ok"]
    assert ("PENDING",) == row(state, "broken")
    undone = act(state, "undo", options={"command": "act-1"})
    assert undone["ok"], undone
    assert before == row(state, "broken", "state, generation, failures, error, dead_letter_kind")


def test_a_requeue_that_waits_can_be_brought_forward(state):
    act(state, "requeue", ("broken", "DEAD_LETTER", 0), options={"not_before": 600})
    assert act(state, "hurry", ("broken", "PENDING", 1))["ok"]
    wait_for(state, "broken", "SUCCESS")


def test_a_second_executor_is_refused_with_the_identity_of_the_first(state, tmp_path):
    with pytest.raises(ExecutorBusyError) as caught:
        host.spawn(flow=str(tmp_path / "flow.py"), state=state, run_id="r", options={})
    assert str(lock_file.current_holder(state).pid) in str(caught.value)


def test_an_executor_that_is_asked_to_stop_leaves_a_run_that_can_be_resumed(state):
    assert act(state, "stop", options={"how": "now"})["ok"]
    wait_until(lambda: lock_file.current_holder(state) is None)
    assert ("RETRYING", 0, 0) == row(state, "long", "state, failures, losses")


def test_with_no_executor_alive_the_act_is_applied_under_the_lock(state):
    os.kill(lock_file.current_holder(state).pid, signal.SIGKILL)
    answer = act(state, "skip", ("broken", "DEAD_LETTER", 0))
    assert answer["ok"], answer
    assert ("SKIPPED", "operator") == row(state, "broken", "state, skip_cause")


def test_a_flow_that_cannot_be_imported_leaves_no_state_file(tmp_path):
    flow = tmp_path / "flow.py"
    flow.write_text("1 / 0")
    with pytest.raises(FlowError, match="ZeroDivisionError"):
        host.spawn(flow=str(flow), state=str(tmp_path / "state.db"), run_id="r", options={})
    assert not (tmp_path / "state.db").exists()


def test_resuming_what_is_not_there_says_so(tmp_path):
    with pytest.raises(RedriveError, match="no state file"):
        host.spawn(flow=None, state=str(tmp_path / "none.db"), run_id=None, options={"resume": True})
