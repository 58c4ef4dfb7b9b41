"""Nights in virtual time: what a played flow does is what a real run does, hours in milliseconds."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from redrive.engine import Flow, NotReady
from redrive.engine.testing import (
    StageError,
    clock_step,
    context,
    crash,
    disk_full,
    down,
    error,
    exits,
    hang,
    in_turn,
    killed,
    play,
    play_schedule,
    slow,
)

pytest_plugins = ["pytester"]


def two_steps() -> Flow:
    flow = Flow("revenue")

    @flow.task(timeout=60)
    def extract():
        time.sleep(40)
        print("extracted")
        return [5, 7]

    @flow.task(after=extract, downstream="bank")
    def load(extract):
        return sum(extract)

    return flow


def test_bodies_run_and_their_sleep_takes_no_time() -> None:
    started = time.monotonic()
    night = play(two_steps())
    assert night.state == "SUCCESS" and night.exit_code == 0
    assert night.result("load") == 12
    assert 40 <= night.seconds < 41 and time.monotonic() - started < 20
    assert night.pages == [] and night.inbox == []


def test_a_seed_is_one_night() -> None:
    def journal(seed: int):
        night = play(two_steps(), faults=[down("bank", lasts="1m", share=0.5), crash(at="20s")], seed=seed)
        return [event for event in night.events if event.kind != "executor"]

    assert journal(3) == journal(3)
    assert journal(3) != journal(4)


def test_a_downstream_is_down_and_well_again() -> None:
    flow = Flow("many")
    for number in range(30):
        flow.task(name=f"t{number}", downstream="bank")(lambda: 1)
    night = play(flow, faults=[down("bank", lasts="2m")])
    assert night.state == "SUCCESS"
    assert night.healed_within("1m", after="bank") and 0 < night.healed_after("bank") < 60
    assert len(night.calls("bank")) == night.starts() >= 30
    assert "breaker bank is open" in night.why("t29", "1m")
    assert "running 0/30" in night.header("1m")


def test_an_error_is_classified_by_the_product() -> None:
    night = play(two_steps(), faults=[error("load", KeyError("amount"))])
    assert night.state == "BLOCKED" and night.exit_code == 3
    (cause,) = night.inbox
    assert cause.tasks == ("load",) and re.fullmatch(r"KeyError test_testing.py:\d+ in load", cause.title)
    assert [attempt.failure_class for attempt in night.attempts("load")] == ["unclassified"] * night.starts("load")


def test_faults_by_attempt_and_by_times() -> None:
    night = play(two_steps(), faults=[error("load", TimeoutError, attempt=1), error("load", ConnectionError, times=1)])
    assert night.state == "SUCCESS" and night.starts("load") == 3
    assert [attempt.error_type for attempt in night.attempts("load")] == ["TimeoutError", "ConnectionError", None]
    assert all(wait > 0 for wait in night.waits("load"))


def test_a_hang_ends_by_the_kill_ladder() -> None:
    night = play(two_steps(), faults=[hang("extract", attempt=1, ignores_sigterm=True)])
    first, second = night.attempts("extract")
    assert first.outcome == "timed_out" and second.outcome == "success"
    assert (first.ended_at or 0) - first.started_at == pytest.approx(65e6, abs=1e6)  # the timeout and the grace
    kinds = [event.kind for event in night.events if event.task == "extract"]
    assert ["attempt.deadline", "attempt.stack", "attempt.sigterm", "attempt.sigkill"] == [
        kind for kind in kinds if kind.startswith("attempt.") and kind != "attempt.started"
    ]


def test_a_body_that_is_too_slow_is_ended_where_it_waits_and_its_checkpoint_counts() -> None:
    flow, ended = Flow("steps"), []

    @flow.task(timeout=4, max_attempts=5)
    def count(ctx):
        try:
            for step in range(ctx.checkpointed or 0, 60):
                time.sleep(0.1)
                ctx.progress(step + 1, 60)
                ctx.checkpoint(step + 1)
        finally:
            ended.append(ctx.attempt)
        return "done"

    night = play(flow)
    assert night.state == "SUCCESS" and ended == [1, 2]
    first, second = night.attempts("count")
    assert first.outcome == "timed_out" and first.diagnostic is not None and "65 % done" in first.diagnostic
    assert ((second.ended_at or 0) - second.started_at) / 1e6 == pytest.approx(2, abs=0.5)


def test_coroutines_sensors_and_output() -> None:
    flow = Flow("kinds")

    @flow.sensor(every="10s")
    def wait_for_file(ctx):
        if ctx.attempt < 3:
            raise NotReady("not yet")
        return True

    @flow.task(after=wait_for_file)
    async def fetch():
        await asyncio.sleep(3600)
        return await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(1, "b"))

    night = play(flow)
    assert night.state == "SUCCESS" and night.result("fetch") == ["a", "b"]
    assert night.seconds == pytest.approx(3621, abs=2)


def test_a_killed_executor_is_replaced_and_the_run_goes_on() -> None:
    night = play(two_steps(), faults=[crash("executor", at="20s", lasts="30s")])
    assert night.state == "SUCCESS"
    assert [attempt.outcome for attempt in night.attempts("extract")] == ["lost", "success"]
    assert night.start_seconds("extract")[1] >= 50


def test_a_killed_executor_leaves_nothing_open() -> None:
    """A process of a test plays thousands of them, and may have a thousand descriptors."""
    before = files_of_nights()
    play(two_steps(), faults=[crash("executor", at=f"{second}s", lasts="1s") for second in (5, 15, 25)])
    assert files_of_nights() <= before


def files_of_nights() -> set[str]:
    """What this process has open of played nights."""
    gc.collect()
    names = (f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd"))
    opened = [os.readlink(name) for name in names if os.path.lexists(name)]
    return {path for path in opened if "redrive-night-" in path}


def test_a_killed_zygote_takes_its_attempts_along() -> None:
    night = play(two_steps(), faults=[crash("zygote", at="20s")])
    assert night.state == "SUCCESS" and night.starts("extract") == 2


def test_a_full_disk_is_waited_for() -> None:
    night = play(two_steps(), faults=[disk_full(at="30s", lasts="2m")])
    assert night.state == "SUCCESS" and night.starts("extract") == 1
    assert night.seconds >= 150


def test_a_step_of_the_clock_changes_no_wait() -> None:
    night = play(two_steps(), faults=[error("load", TimeoutError, times=1), clock_step("10s", 3600)])
    assert night.state == "SUCCESS" and night.starts("load") == 2


def test_commands_exit_as_they_are_told() -> None:
    flow = Flow("shell")
    flow.command("fetch", "curl https://bank.example.com", max_attempts=3)
    flow.command("load", "psql -f load.sql", after="fetch")
    night = play(
        flow,
        results={"fetch": None, "load": {"rows": 3}},
        durations={"load": "10m"},
        faults=[exits("fetch", 22, stderr="curl: (22) The requested URL returned error: 503\n", times=1)],
    )
    assert night.state == "SUCCESS" and night.result("load") == {"rows": 3}
    assert [attempt.exit_code for attempt in night.attempts("fetch")] == [22, 0]
    assert night.seconds > 600


def test_signals_and_slow_work() -> None:
    night = play(two_steps(), faults=[killed("extract", 6, attempt=1), slow("extract", seconds="5s")])
    assert [attempt.signal for attempt in night.attempts("extract")] == [6, None]
    assert night.attempts("extract")[1].duration_us == 45_000_000
    night = play(two_steps(), faults=[slow("extract", 2, attempt=1)])
    assert [attempt.outcome for attempt in night.attempts("extract")] == ["timed_out", "success"]
    night = play(two_steps(), durations={"extract": in_turn("70s", "10s")})
    assert [attempt.outcome for attempt in night.attempts("extract")] == ["timed_out", "success"]


def test_acts_of_operators_while_an_executor_lives_and_afterwards() -> None:
    faults = [error("load", PermissionError("no"), lasts="5m")]
    night = play(two_steps(), faults=faults, acts=[("+10m", "requeue", "load")])
    assert night.state == "SUCCESS" and night.answers == (("requeue", True, night.answers[0][2]),)
    night = play(two_steps(), acts=[("+10s", "pause"), ("+20m", "unpause")])
    assert night.state == "SUCCESS" and night.start_seconds("load")[0] >= 1200


def test_code_is_mended_in_the_middle() -> None:
    broken, mended = Flow("parse"), Flow("parse")

    @broken.task(name="parse")
    def parse_badly():
        raise KeyError("amount")

    @mended.task(name="parse")
    def parse_well():
        return 7

    night = play(broken, acts=[("+5m", "change", mended), ("+6m", "requeue", "parse")])
    assert night.state == "SUCCESS" and night.result("parse") == 7


def test_a_map_task_and_its_children() -> None:
    flow = Flow("pages")

    @flow.task
    def pages():
        return list(range(50))

    @flow.map(over=pages)
    def fetch(page):
        return page * 2

    night = play(flow, faults=[error("fetch[7]", ConnectionError, times=1), error("fetch", TimeoutError, share=0.1)])
    assert night.state == "SUCCESS" and night.result("fetch")[7] == 14
    assert night.starts("fetch") > 50


def test_several_runs_share_a_state_file() -> None:
    night = play(two_steps(), runs=3, every="1h", faults=[error("load", ValueError("x"), at="1h", lasts="30m")])
    assert [run.state for run in night.runs] == ["SUCCESS", "BLOCKED", "SUCCESS"]


def test_a_flow_file_is_played(tmp_path) -> None:
    path = tmp_path / "revenue.py"
    path.write_text(
        "import time\nfrom redrive.engine import Flow\nflow = Flow('revenue', params={'day': ''})\n"
        "@flow.task\ndef extract(day):\n    time.sleep(5)\n    return day\n"
    )
    night = play(str(path), params={"day": "2026-01-01"}, keep=tmp_path / "kept.db")
    assert night.state == "SUCCESS" and night.result("extract") == "2026-01-01"
    assert (tmp_path / "kept.db").exists()


@pytest.mark.parametrize(
    ("flow", "given", "sentence"),
    [
        (lambda flow: flow.command("load", "true"), {}, "is a command, which cannot run in virtual time"),
        (lambda flow: flow.task(name="a")(lambda: 1), {"faults": [hang("a")]}, "has no timeout"),
        (lambda flow: flow.task(name="a")(lambda: 1), {"acts": [("+1s", "fly", "a")]}, "there is no act 'fly'"),
        (
            lambda flow: flow.task(name="a")(lambda: 1),
            {"acts": [("+1h", "requeue", "a")] * 1, "until": "1m"},
            "is over",
        ),
        (lambda flow: flow.task(name="a")(lambda: 1), {"faults": [down("x", at="soon")]}, "is not a duration"),
        (lambda flow: flow.task(name="a")(lambda: 1), {"faults": [down("x", lasts="03:00")]}, "is not a duration"),
        (lambda flow: flow.task(name="a")(lambda: 1), {"faults": ["down"]}, "is no fault"),
        (lambda flow: flow.task(name="a")(lambda: 1), {"params": {"day": "x"}}, "no parameter 'day'"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_sentence(flow, given, sentence) -> None:
    declared = Flow("refused")
    flow(declared)
    with pytest.raises(StageError, match=sentence):
        play(declared, **given)


def test_retry_inside_a_body_waits_in_virtual_time() -> None:
    from redrive.engine import retry

    flow, calls = Flow("inner"), []

    @retry(retries=4, base=10, max_delay=100)
    def call():
        calls.append(time.monotonic())
        if len(calls) < 4:
            raise ConnectionError("refused")
        return "ok"

    @flow.task
    def fetch():
        return call()

    night = play(flow)
    assert night.state == "SUCCESS" and [later - one for one, later in pairwise(calls)] == [10, 20, 40]
    assert night.attempts("fetch")[0].outcome == "success"


def test_a_schedule_is_served_through_the_night_in_which_the_clock_is_set_forward() -> None:
    flow = Flow("hourly", schedule="0 * * * *", timezone="Europe/Berlin")

    @flow.task
    def load(ctx):
        time.sleep(60)
        return ctx.logical_time.isoformat()

    faults = [error("load", ValueError("x"), at="02:00", lasts="30m")]
    night = play_schedule(flow, at="2026-03-28T22:30+01:00", lasts="6h", faults=faults)
    assert [run.state for run in night.runs] == ["SUCCESS"] * 3 + ["BLOCKED"] + ["SUCCESS"] * 2
    assert [run.run_id[11:16] for run in night.runs] == ["23:00", "00:00", "01:00", "03:00", "04:00", "05:00"]


def test_a_machine_is_off_for_two_days() -> None:
    flow = Flow("hourly", schedule="0 * * * *", misfire="one")
    flow.task(name="load")(lambda: 1)
    night = play_schedule(flow, at="2026-01-05T22:30+00:00", lasts="2d4h", faults=[crash(at="2h", lasts="2d")])
    assert len(night.runs) == 2 + 1 + 2  # of the 48 that were missed the latest is made up for


def test_the_context_of_one_body() -> None:
    def settle(ctx):
        for row in ctx.rows([{"id": 1, "amount": 5}, {"id": 2}], key="id"):
            with row as order:
                ctx.progress(order["amount"])
        ctx.checkpoint({"settled": 1})
        return ctx.params["day"], ctx.attempt, ctx.earlier_result, ctx.checkpointed

    ctx = context(attempt=2, params={"day": "monday"}, earlier_result=[3], checkpointed=(1, 2))
    assert settle(ctx) == ("monday", 2, [3], (1, 2))
    assert ctx.progress_reports == [(5, None)] and ctx.checkpoints == [{"settled": 1}]
    assert ctx.bad_rows == [("2", "KeyError: 'amount'")]


def test_the_fixture_keeps_the_state_file_and_shows_the_night_of_a_failed_test(play, tmp_path, pytester) -> None:
    assert play(two_steps()).state == "SUCCESS" and (tmp_path / "night-1.db").exists()
    pytester.makepyfile("""
        from redrive.engine import Flow

        def test_it_heals(play):
            flow = Flow("f")
            flow.task(name="load")(lambda: 1)
            assert play(flow).state == "FAILED"
    """)
    plugins = ("cacheprovider", "hypothesispytest", "syrupy", "textual-snapshot", "xdist")
    result = pytester.runpytest_subprocess(*(word for plugin in plugins for word in ("-p", f"no:{plugin}")))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*night: <run 'night': SUCCESS*", "*✓ load*"])


async def test_a_night_is_not_played_in_a_coroutine() -> None:
    with pytest.raises(StageError, match="plain function"):
        play(two_steps())


def test_a_body_that_waits_in_real_time_is_refused() -> None:
    flow, wait = Flow("waits"), time.sleep
    flow.task(name="a")(lambda: wait(1.2))
    with pytest.raises(StageError, match="real time"):
        play(flow)


@pytest.fixture
def crowded_processor() -> Iterator[None]:
    """Four processes compute on the processor of the test."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    others = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(4)]
    yield
    for other in others:
        other.kill()
        other.wait()
    os.sched_setaffinity(0, processors)


@pytest.mark.long
@pytest.mark.usefixtures("crowded_processor")
def test_a_body_that_computes_beside_others_does_not_wait() -> None:
    flow, read_clock = Flow("computes"), time.process_time

    @flow.task
    def computes():
        end = read_clock() + 0.4
        while read_clock() < end:
            pass

    assert play(flow).state == "SUCCESS"


def test_a_name_that_the_flow_does_not_have_is_refused() -> None:
    with pytest.raises(StageError, match="no task 'lod'; it has extract, load") as caught:
        play(two_steps(), durations={"lod": "1s"})
    assert [entry.path for entry in caught.traceback if not entry.ishidden(caught)] == [Path(__file__)]
    with pytest.raises(StageError, match="no task names the downstream 'bink'; the flow has: bank"):
        play(two_steps(), faults=[down("bink")])


def test_a_coroutine_is_slow_and_ended_at_its_timeout() -> None:
    flow = Flow("loops")

    @flow.task(timeout=30)
    async def fetch():
        await asyncio.sleep(20)

    night = play(flow, faults=[slow("fetch", 2, attempt=1)])
    first, second = night.attempts("fetch")
    assert (first.outcome, second.outcome) == ("timed_out", "success") and second.duration_us == 20_000_000


def test_keys_name_the_children_of_a_played_map() -> None:
    flow = Flow("keyed", timeout=30)
    flow.task(lambda: [], name="listed")
    flow.map(lambda one: one, over="listed", name="pay", key=lambda one: one["id"], kind="effect")
    played = play(flow, results={"listed": [{"id": "INV-17"}, {"id": "INV-18"}]})
    assert (played.state, played.starts("pay"), played.starts("pay[INV-17]")) == ("SUCCESS", 2, 1)
    assert play(flow, results={"listed": [{"id": 1}, {"id": 1}]}).state == "BLOCKED"
    assert play(flow, results={"listed": [0, 1]}).state == "SUCCESS"  # as of a rehearsal, which has no elements
