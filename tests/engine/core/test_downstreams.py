"""Breakers and retry buckets inside a run: tasks wait without spending attempts, and succeed."""

import json
import sqlite3
import time
from typing import Any

import pytest
from redrive.engine import AuthError, Executor, Flow, RetryPolicy, RunOptions, TransientError
from redrive.engine.clock import SystemClock
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec
from redrive.engine.errors import RefusedError
from redrive.engine.executor.opening import Machine

QUICK = RetryPolicy(max_attempts=3, base=0.05, cap=0.1)


def run(tmp_path, flow, **options):
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db", options=RunOptions(**options)).run_result()


def ask(tmp_path, sql):
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def outage(tmp_path, flow: Flow, calls: int) -> None:
    """Twelve tasks against an API that fails its first ``calls`` calls, whoever makes them."""
    counter = tmp_path / "calls"

    def call():
        with counter.open("ab") as file:
            file.write(b"x")
        if counter.stat().st_size <= calls:
            raise TransientError("503")

    for number in range(12):
        flow.task(call, name=f"t{number:02}", downstream="api", retry=QUICK)


def test_an_open_breaker_holds_without_spending_attempts_and_lets_all_through_when_it_closes(tmp_path):
    """000.51-53, SPEC 4.12: with max_attempts=3 alone, tasks would have failed for good in this outage."""
    flow = Flow("f", max_parallel=1)
    flow.downstream("api", minimum_calls=3, open_seconds=0.3, release_per_second=200, bucket_capacity=100)
    outage(tmp_path, flow, calls=9)
    assert "SUCCESS" == run(tmp_path, flow).state
    states = [
        state for (state,) in ask(tmp_path, "SELECT json_extract(data, '$.state') FROM event WHERE kind = 'breaker'")
    ]
    assert ["OPEN", "HALF_OPEN"] == states[:2]
    assert "CLOSED" == states[-1]
    assert [("CLOSED",)] == ask(tmp_path, "SELECT state FROM breaker")


def test_a_credential_refused_to_two_tasks_opens_their_downstream_for_all(tmp_path):
    """004.32: the third task must not try the same credential."""
    flow = Flow("f", max_parallel=1)

    def refused():
        raise AuthError("401")

    for number in range(3):
        flow.task(refused, name=f"t{number}", downstream="bank")
    flow.downstream("bank", on_open="dead_letter")
    result = run(tmp_path, flow)
    assert result.blocked
    rows = ask(tmp_path, "SELECT name, attempt, dead_letter_kind FROM task ORDER BY name")
    assert [("t0", 1, "auth"), ("t1", 1, "auth"), ("t2", 0, "breaker")] == rows


def test_a_flow_may_want_its_tasks_to_fail_at_once_instead(tmp_path):
    """000.51, the document's first reading."""
    flow = Flow("f", max_parallel=1)
    flow.downstream("api", minimum_calls=2, open_seconds=60, on_open="fail")
    outage(tmp_path, flow, calls=100)
    assert "FAILED" == run(tmp_path, flow).state
    assert [(2,)] == ask(tmp_path, "SELECT count(*) FROM attempt")


def test_the_cheapest_idempotent_task_finds_out_whether_a_downstream_is_back(tmp_path):
    """SPEC 4.12: not the most urgent one, which may well fail and be gone."""
    flow = Flow("f", max_parallel=4)
    flow.downstream("api", minimum_calls=2, open_seconds=0.5, release_per_second=200)

    def refused():
        raise TransientError("503")

    for name in ("first", "second"):
        flow.task(refused, name=name, downstream="api", retry=RetryPolicy(max_attempts=1), optional=True)
    later: dict[str, Any] = {"downstream": "api", "after": ["first", "second"], "rule": "all_done"}
    flow.task(lambda: None, name="pay", idempotent=False, **later)
    flow.command("report", "true", after="pay")
    flow.task(lambda: None, name="ping", **later)
    flow.task(lambda: None, name="pay_again", idempotent=False, **later)
    assert "PARTIAL" == run(tmp_path, flow).state
    calls = ask(tmp_path, "SELECT name FROM attempt WHERE name LIKE 'p%' ORDER BY started_at")
    assert ("ping",) == calls[0]


def test_the_retry_bucket_throttles_retries_and_never_first_tries(tmp_path):
    """SPEC 4.12: one token, so the second retry waits; the task that was never tried does not."""
    flow = Flow("f", max_parallel=1)
    flow.downstream("api", minimum_calls=1000, bucket_capacity=1, bucket_refund=0, bucket_per_second=1)
    outage(tmp_path, flow, calls=2)
    assert "SUCCESS" == run(tmp_path, flow).state
    first_tries = ask(tmp_path, "SELECT max(started_at) FROM attempt WHERE attempt = 1")
    retries = ask(tmp_path, "SELECT started_at FROM attempt WHERE attempt > 1 ORDER BY started_at")
    assert 2 == len(retries)
    assert retries[1][0] - retries[0][0] >= 900_000
    assert retries[1][0] > first_tries[0][0]


def test_a_run_held_by_a_refused_credential_is_blocked_and_does_not_wait_for_ever(tmp_path):
    """SPEC 4.8: nothing can move and a human is waited for."""
    flow = Flow("f", max_parallel=1)

    def refused():
        raise AuthError("401")

    for number in range(3):
        flow.task(refused, name=f"t{number}", downstream="bank")
    assert run(tmp_path, flow).blocked
    assert [("DEAD_LETTER", 1), ("DEAD_LETTER", 1), ("READY", 0)] == ask(
        tmp_path, "SELECT state, attempt FROM task ORDER BY name"
    )
    assert [("credential:bank", 2)] == ask(tmp_path, "SELECT cause, count FROM page"), "one page, and no second one"


def test_a_forbidden_url_of_one_task_does_not_close_its_downstream(tmp_path):
    flow = Flow("f", max_parallel=1)

    @flow.task(downstream="bank")
    def forbidden():
        raise AuthError("403")

    for number in range(3):
        flow.task(lambda: None, name=f"t{number}", downstream="bank", after=[])
    assert run(tmp_path, flow).blocked
    states = ask(tmp_path, "SELECT state FROM task ORDER BY name")
    assert [("DEAD_LETTER",), ("SUCCESS",), ("SUCCESS",), ("SUCCESS",)] == states
    assert [("CLOSED",)] == ask(tmp_path, "SELECT state FROM breaker")


def test_a_breaker_reports_since_when_and_by_whom_it_is_held():
    """What it only counts meanwhile is no new beginning."""
    now = [1_000_000]
    tasks = (TaskSpec("t", downstream="api"), TaskSpec("u", downstream="mail"))
    downstreams = DownstreamStates(FlowSpec("f", tasks), lambda: now[0], lambda name: None)
    downstreams.operate("api", "open", "ana@ops-1")
    now[0] = 9_000_000
    downstreams.operate("mail", "disable", "bob@ops-2")
    api, mail = downstreams.drain_dirty_rows()
    assert [("FORCED_OPEN", 1_000_000), ("DISABLED", 9_000_000)] == [(row.state, row.changed_at) for row in (api, mail)]
    assert ["held by ana@ops-1", "disabled by bob@ops-2"] == [row.detail["why"] for row in (api, mail)]
    again = DownstreamStates(FlowSpec("f", tasks), lambda: now[0], lambda name: None)
    again.load([api])
    again.admit("t", "api", is_retry=True)
    again.operate("mail", "open")
    assert 1_000_000 == again.change_event("api").since


def test_a_probe_by_hand_never_holds_calls_that_passed():
    """One of a closed breaker would; and the breaker of a flow that counts alone is a real one never."""
    specs = (DownstreamSpec("api"), DownstreamSpec("mail", metrics_only=True))
    downstreams = DownstreamStates(FlowSpec("f", (TaskSpec("t"),), downstreams=specs), lambda: 0, lambda name: None)
    for name in ("api", "mail"):
        with pytest.raises(RefusedError, match=f"{name} lets every call through"):
            downstreams.operate(name, "probe")
    downstreams.operate("mail", "open")
    assert downstreams.operate("mail", "probe") == "mail is METRICS_ONLY now"
    assert all(downstreams.would_admit(name) for name in ("api", "mail"))


class JumpingClock(SystemClock):
    """The machine's own, until somebody sets the wall clock."""

    jump_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.jump_us


def test_a_clock_that_is_set_ahead_does_not_reopen_a_breaker_before_its_time(tmp_path):
    """SPEC 4.10: what counts is how long it was to stay open, not what a wall clock says in between."""
    flow, clock, begun = Flow("f", max_parallel=1), JumpingClock(), tmp_path / "begun"
    flow.downstream("api", minimum_calls=1, failure_rate=0.1, open_seconds=0.5)

    @flow.task(downstream="api", retry=RetryPolicy(max_attempts=3, base=0.01, cap=0.01))
    def call(ctx):
        with begun.open("a") as file:
            file.write(f"{time.monotonic()}\n")
        if ctx.attempt == 1:
            raise TransientError("503")

    def listen(events):
        if any(event.kind == "breaker" and event.payload.state == "OPEN" for event in events):
            clock.jump_us = 3_600_000_000

    executor = Executor(
        run_id="r", flow=flow, state=tmp_path / "state.db", machine=Machine(clock=clock), on_events=listen
    )
    assert "SUCCESS" == executor.run()
    first, second = map(float, begun.read_text().split())
    assert second - first > 0.45
    ((data,),) = ask(tmp_path, "SELECT data FROM event WHERE kind = 'clock'")
    assert abs(json.loads(data)["moved_us"] - 3_600_000_000) < 1_000_000


def test_whatever_a_downstream_waits_for_moves_with_the_clock():
    now = [1_000_000]
    spec = DownstreamSpec("api", minimum_calls=1, open_seconds=30, bucket_capacity=1)
    flow = FlowSpec("f", (TaskSpec("t", downstream="api"),), downstreams=(spec,))
    downstreams = DownstreamStates(flow, lambda: now[0], lambda name: None)
    assert downstreams.admit("t", "api", is_retry=True).call is not None
    failure = Failure("Boom", "boom", FailureClass.TRANSIENT, Fingerprint("strict", "loose"))
    downstreams.record("t", Outcome(OutcomeKind.ERROR, failure), 0, 3)
    assert downstreams.is_open("api")
    (before,) = downstreams.drain_dirty_rows()
    for jump in (3_600_000_000, -7_200_000_000):
        now[0] += jump
        downstreams.shift_clock(jump)
        (after,) = downstreams.drain_dirty_rows()
        assert after.reopens_at is not None and before.reopens_at is not None
        assert after.reopens_at - before.reopens_at == after.changed_at - before.changed_at == jump
        assert downstreams.admit("t", "api", is_retry=False).call is None
        before = after
