"""What a run can wait for: each row of the table, with an executor, and where it is shown."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs
from redrive.console.cli.group import ExitCode
from redrive.engine import Context, Executor, Flow, NotReady, RetryPolicy, RunOptions, TransientError
from redrive.engine.core import explain, waiting
from redrive.engine.core.breaker import decode
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.ready_queue import declared_downstreams
from redrive.engine.core.views import run_style
from redrive.engine.core.waiting import ALIVE, HUMAN_WAITS, ExplainContext, WaitReason, wait_of
from redrive.engine.domain.event_payloads import RunChange, RunChanged
from redrive.engine.domain.events import Event
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.lists import BREAKERS, query
from redrive.engine.store import runs
from support.commands import invoke_redrive, run_redrive
from support.marks import parametrize_mostly_long
from support.pools import hold_slot
from support.waiting import wait_until

SLOW = RetryPolicy(max_attempts=1000, base=0.5, cap=0.5, jitter="none")
QUICK = RetryPolicy(max_attempts=1000, base=0.1, cap=0.1, jitter="none")


def test_each_reason_has_its_sentence():
    assert set(WaitReason) == explain._WAITS.keys()
    reasons = {*waiting._STATE_REASONS.values(), *waiting._INSTANT_REASONS.values()}
    reasons |= {reason for reason, _ in waiting._CAPACITY_REASONS}
    rest = {WaitReason.PARENTS, WaitReason.DISPATCH, WaitReason.CANARY, WaitReason.DEADLINE, WaitReason.NOTHING}
    assert set(WaitReason) == reasons | rest
    states = {*waiting._STATE_REASONS, *waiting._INSTANT_REASONS, TaskState.READY}
    assert set(TaskState) == states | explain._ENDED.keys()


# --- What ends by itself --------------------------------------------------------------------------------------------


def load(state: Path) -> tuple[RunProjection, ExplainContext]:
    with sqlite3.connect(state) as connection:
        projection = runs.load_run(connection, "r")
        specs = {spec.name: spec for spec in declared_downstreams(projection.run.options)}
        rows = query(connection, BREAKERS, {})
        return projection, ExplainContext({row.downstream: decode(row, specs[row.downstream]) for row in rows})


def until_seen(seen: Path) -> None:
    wait_until(seen.exists)


def fail_until_seen(seen: Path) -> None:
    if not seen.exists():
        raise TransientError("503")


def parents(flow: Flow, seen: Path) -> None:
    flow.task(lambda: until_seen(seen), name="above")
    flow.task(lambda above: None, name="below", after="above")


def retry(flow: Flow, seen: Path) -> None:
    flow.task(lambda: fail_until_seen(seen), retry=SLOW, name="flaky")


def sensor(flow: Flow, seen: Path) -> None:
    @flow.sensor(every=0.5)
    def file_there():
        if not seen.exists():
            raise NotReady("no file yet")
        return True


def slot(flow: Flow, seen: Path) -> None:
    flow.declared = structs.replace(flow.declared, max_parallel=1)
    for name in ("one", "two"):
        flow.task(lambda: until_seen(seen), name=name)


def pool(flow: Flow, seen: Path) -> None:
    for name in ("one", "two"):
        flow.task(lambda: until_seen(seen), name=name, pool="db")


def machine_pool(flow: Flow, seen: Path) -> None:
    """Another flow holds the slot."""
    flow.pools["shared"] = 1
    flow.declared = structs.replace(flow.declared, machine_pools=("shared",))
    flow.task(lambda: None, name="one", pool="shared")
    other = hold_slot("shared", "other")

    def release() -> None:
        try:
            until_seen(seen)
        finally:
            other.kill()

    threading.Thread(target=release).start()


def outage(flow: Flow, seen: Path) -> None:
    flow.downstream("api", minimum_calls=1, open_seconds=1, probes=1)
    for name in ("first", "second"):
        flow.task(lambda: fail_until_seen(seen), name=name, downstream="api", retry=QUICK)


def probe(flow: Flow, seen: Path) -> None:
    """Each task fails once, and its second call is under way until the wait is seen."""
    flow.downstream("api", minimum_calls=1, open_seconds=1, probes=1)

    def call(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TransientError("503")
        until_seen(seen)

    for name in ("first", "second"):
        flow.task(call, name=name, downstream="api", retry=QUICK)


def budget(flow: Flow, seen: Path) -> None:
    flow.downstream("api", bucket_capacity=1, minimum_calls=100, bucket_refund=0, bucket_per_second=1)
    flow.task(lambda: fail_until_seen(seen), name="flaky", downstream="api", retry=QUICK)


#: Makes tasks of which one waits for this reason until there is a file: the wait was seen.
BY_ITSELF: dict[WaitReason, Callable[[Flow, Path], None]] = {
    WaitReason.PARENTS: parents,
    WaitReason.ATTEMPT: parents,
    WaitReason.RETRY: retry,
    WaitReason.SENSOR: sensor,
    WaitReason.SLOT: slot,
    WaitReason.POOL: pool,
    WaitReason.MACHINE_POOL: machine_pool,
    WaitReason.OUTAGE: outage,
    WaitReason.PROBE: probe,
    WaitReason.RETRY_BUDGET: budget,
}


@parametrize_mostly_long("reason", BY_ITSELF, quick=2)
def test_a_wait_that_ends_by_itself_blocks_nothing(tmp_path, reason):
    state, waits, is_over = tmp_path / "state.db", set(), threading.Event()

    def poll() -> None:
        while not is_over.wait(0.05):
            projection, context = load(state)
            waits.update(wait_of(projection, name, time.time_ns() // 1000, context) for name in projection.tasks)
            if reason in waits:
                seen.touch()

    flow, reading, seen = Flow("f", pools={"db": 1}), threading.Thread(target=poll), tmp_path / "seen"
    BY_ITSELF[reason](flow, seen)
    try:
        result = Executor(run_id="r", flow=flow, state=state, on_open=lambda run_id: reading.start()).run_result()
    finally:
        is_over.set()
        reading.join()
    assert ("SUCCESS", False) == (result.state, result.blocked)
    assert reason in waits
    assert reason not in HUMAN_WAITS


# --- What a human ends ----------------------------------------------------------------------------------------------

REFUSED = """
from redrive.engine import AuthError, Flow
flow = Flow("f", max_parallel=1)
flow.page("command", line="true")
def refused():
    raise AuthError("401")
for number in range(3):
    flow.task(refused, name=f"t{number}", downstream="bank")
"""
FINE = """
from redrive.engine import Flow
flow = Flow("f")
flow.page("command", line="true")
@flow.task(downstream="bank")
def pull(): pass
"""
POISONED = FINE.replace("pass", "raise ZeroDivisionError('bad')")


def run_flow(folder: Path, flow: str, run_id: str) -> tuple[int, str]:
    (folder / "f.py").write_text(flow)
    done = run_redrive("run", "f.py", "--plain", "--state", "s.db", "--run-id", run_id, cwd=folder, timeout=60)
    return done.returncode, done.stdout


def shown(folder: Path, run_id: str) -> tuple[str, str, list[str], list[str]]:
    """The state in the header, the inbox, the notes of ``redrive tasks``, and the titles of the pages."""
    inbox = invoke_redrive("inbox", folder / "s.db", "--run", run_id).output
    notes = invoke_redrive("tasks", folder / "s.db", "--run", run_id).output.splitlines()
    with sqlite3.connect(folder / "s.db") as connection:
        header = run_style(runs.load_run(connection, run_id).run, ALIVE).word
        pages = connection.execute("SELECT title FROM page WHERE run_id = ? AND sent_at IS NOT NULL", (run_id,))
        return header, inbox, notes, [title for (title,) in pages]


def assert_shown(reason: WaitReason, folder: Path, run_id: str, code: int, printed: str, title: str) -> str:
    header, inbox, notes, pages = shown(folder, run_id)
    assert ("BLOCKED", ExitCode.PARTIAL_OR_BLOCKED) == (header, code)
    assert HUMAN_WAITS[reason].inbox in inbox
    assert f"run {run_id} BLOCKED: " in printed
    assert [title] == pages
    assert not [line for line in notes if "retry due" in line]
    return inbox


def test_a_run_held_by_a_dead_letter_is_shown(tmp_path):
    code, printed = run_flow(tmp_path, POISONED, "r")
    assert_shown(WaitReason.DECISION, tmp_path, "r", code, printed, "poison-pill on pull")


def test_a_run_held_by_an_approval_is_shown(tmp_path):
    asking = FINE.replace("@flow", 'flow.approval("ok")\n@flow').replace('downstream="bank"', 'after="ok"')
    code, printed = run_flow(tmp_path, asking, "r")
    inbox = assert_shown(WaitReason.APPROVAL, tmp_path, "r", code, printed, "approval on ok")
    assert "approve or reject" in inbox and "holds 1" in inbox


@pytest.mark.long
def test_a_later_run_asks_once_and_is_blocked_if_the_credential_is_refused_again(tmp_path):
    code, _ = run_flow(tmp_path, REFUSED, "first")
    assert ExitCode.PARTIAL_OR_BLOCKED == code
    with sqlite3.connect(tmp_path / "s.db") as connection:  # as if it were the next night: the cause pages again
        connection.execute("UPDATE page SET updated_at = updated_at - 86400000000")
    code, printed = run_flow(tmp_path, REFUSED, "second")
    inbox = assert_shown(WaitReason.CREDENTIAL, tmp_path, "second", code, printed, "auth on t0")
    assert "credential refused to t0 and t1: waits for an operator; probe it: systems breakers --probe bank" in inbox
    with sqlite3.connect(tmp_path / "s.db") as connection:
        attempts = connection.execute("SELECT count(*) FROM attempt WHERE run_id = 'second'").fetchone()
        (body,) = connection.execute("SELECT body FROM page WHERE run_id = 'second'").fetchone()
    assert (1,) == attempts, "one probe for each run"
    assert "waits for an operator" in json.loads(body)["breaker"]
    code, _ = run_flow(tmp_path, FINE, "third")
    assert ExitCode.SUCCESS == code, "the probe of the third run is accepted"


@pytest.mark.long
def test_a_run_held_by_a_breaker_that_an_operator_holds_open_is_blocked(tmp_path):
    run_flow(tmp_path, FINE, "first")
    invoke_redrive("breakers", "--state", tmp_path / "s.db", "--open", "bank", "--reason", "maintenance")
    code, printed = run_flow(tmp_path, FINE, "second")
    assert_shown(WaitReason.FORCED_OPEN, tmp_path, "second", code, printed, "bank is held open on pull")
    invoke_redrive("breakers", "--state", tmp_path / "s.db", "--close", "bank", "--reason", "over")
    with sqlite3.connect(tmp_path / "s.db") as connection:
        blocked = connection.execute("SELECT blocked_since FROM run WHERE run_id = 'second'").fetchone()
    assert (None,) == blocked, "redrive serve takes it up"
    done = run_redrive("resume", "s.db", "--run", "second", "--plain", cwd=tmp_path)
    assert ExitCode.SUCCESS == done.returncode, done.stdout


def test_a_run_whose_pause_was_forgotten_is_blocked(tmp_path):
    flow, state = Flow("f"), tmp_path / "s.db"
    flow.page("command", line="true")
    flow.task(lambda: None, name="a")
    lines: list[str] = []

    def pause(events: Sequence[Event]) -> None:
        if not lines:
            lines.append("paused")
            run_loop = executor._run_loop
            assert run_loop is not None
            paused = RunChanged(RunChange.PAUSED, {"paused_since": 1, "paused_by": "ana@host"})
            run_loop.submit(lambda transaction: transaction.change_run("r", paused))

    executor = Executor(run_id="r", flow=flow, state=state, options=RunOptions(), on_events=pause, max_parallel=None)
    flow.task(lambda: time.sleep(0.5), name="b")
    flow.task(lambda: None, name="c", after="b")
    result = executor.run_result()
    assert result.blocked
    header, inbox, _, pages = shown(tmp_path, "r")
    assert header == "BLOCKED" and HUMAN_WAITS[WaitReason.PAUSE].inbox in inbox
    assert ["paused on c"] == pages
    invoke_redrive("unpause", state, "--reason", "over")
    assert "SUCCESS" == Executor(run_id="r", flow=flow, state=state).run()


FAILS = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("f")
flow.page("command", line="true")
@flow.task(retry=RetryPolicy(1))
def above(): raise OSError("once")
@flow.task(after=above)
def below(above): pass
@flow.task(after=below)
def last(below): pass
"""


def lose(folder: Path, run_state: str = "RUNNING") -> None:
    """Put what was stopped back to PENDING, as no redrive does: the task above it has ended."""
    with sqlite3.connect(folder / "s.db") as connection:
        lost = "UPDATE task SET state = 'PENDING', ended_at = NULL, blocked_by = NULL WHERE name IN ('below', 'last')"
        connection.execute(lost)
        if run_state == "RUNNING":
            connection.execute("UPDATE run SET state = 'RUNNING', ended_at = NULL")


def test_a_run_never_ends_with_a_task_that_nothing_will_start(tmp_path):
    code, _ = run_flow(tmp_path, FAILS, "r")
    assert ExitCode.FAILED == code
    lose(tmp_path)
    done = run_redrive("resume", "s.db", "--plain", cwd=tmp_path, timeout=60)
    wait = HUMAN_WAITS[WaitReason.NOTHING]
    assert ExitCode.PARTIAL_OR_BLOCKED == done.returncode
    assert "2 tasks are unfinished with nothing left to wait for (below, last): a fault of redrive" in done.stdout
    header, inbox, notes, pages = shown(tmp_path, "r")
    assert header == "BLOCKED" and wait.inbox in inbox
    assert f"{wait.page} on below" in pages
    assert any("a fault of redrive; requeue or skip it" in note for note in notes if "below" in note)
    invoke_redrive("requeue", "--state", tmp_path / "s.db", "above", "--reason", "as it says")
    done = run_redrive("resume", "s.db", "--plain", cwd=tmp_path, timeout=60)
    assert ExitCode.FAILED == done.returncode
    assert {"FAILED", "UPSTREAM_FAILED"} == {str(row.state) for row in load(tmp_path / "s.db")[0].tasks.values()}


def test_doctor_reports_a_run_that_has_ended_although_a_task_never_did(tmp_path):
    run_flow(tmp_path, FAILS, "r")
    assert "never did" not in invoke_redrive("doctor", tmp_path / "s.db").output
    lose(tmp_path, "FAILED")
    doctor = invoke_redrive("doctor", tmp_path / "s.db")
    assert "r: FAILED, 3 tasks; it has ended, and 2 tasks never did (below, last): requeue or skip" in doctor.output
