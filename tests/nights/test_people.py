"""What people do in a night: they mend code, send tasks back, hold and release, and sometimes the wrong way."""

from __future__ import annotations

import pytest
from redrive.engine import Flow, RetryPolicy
from redrive.engine.testing import crash, down, error, hang, play
from redrive.engine.testing.faults import Fault
from support.marks import parametrize_mostly_long

from .flows import done, siblings


def parser(body, children: int = 0) -> Flow:
    flow = Flow("parser")
    flow.task(name="parse")(body)
    for number in range(children):
        flow.task(name=f"load{number}", after="parse")(lambda parse=None: parse)
    return flow


def broken() -> int:
    return {"date": 1}["amount"]


def mended() -> int:
    return 7


def test_code_is_mended_in_the_middle() -> None:
    """The fixed file is loaded with the requeue, and what waited below goes on."""
    acts = [("+10m", "change", parser(mended, 3)), ("+12m", "requeue", "parse")]
    night = play(parser(broken, 3), acts=acts)
    assert night.state == "SUCCESS" and [night.result(f"load{number}") for number in range(3)] == [7, 7, 7]
    assert len(night.pages) == 1 and night.pages[0].state == "resolved"


def test_code_is_mended_while_other_tasks_run() -> None:
    """The answer to the requeue says which code runs from now on."""
    flow, fixed = parser(broken), parser(mended)
    for one in (flow, fixed):
        one.task(name="other")(int)
    acts = [("+10m", "change", fixed), ("+12m", "requeue", "parse")]
    night = play(flow, durations={"other": "1h"}, acts=acts)
    assert night.state == "SUCCESS" and night.result("parse") == 7 and night.starts("other") == 1
    assert "runs the code of" in night.answers[0][2]


def test_a_flow_file_is_half_saved(tmp_path) -> None:
    """The old code stays in use, the answer says why, and the whole file is taken at the next requeue."""
    text = "from redrive.engine import Flow\nflow = Flow('parser')\n@flow.task\ndef parse():\n    return {}['amount']\n"
    text += "@flow.task\ndef other():\n    return 1\n"
    first, half, whole = (tmp_path / f"{name}.py" for name in ("first", "half", "whole"))
    first.write_text(text)
    half.write_text(text[: text.index("['amount']")] + "[")
    whole.write_text(text.replace("{}['amount']", "7"))
    acts = [
        ("+10m", "change", half),
        ("+11m", "requeue", "parse"),
        ("+20m", "change", whole),
        ("+21m", "requeue", "parse"),
    ]
    night = play(first, durations={"other": "1h"}, acts=acts)
    assert "cannot be used" in night.answers[0][2]
    assert night.state == "SUCCESS" and night.result("parse") == 7 and night.starts("other") == 1


def test_a_bad_content_file_hits_everybody_and_is_replaced() -> None:
    """CrowdStrike, 19 July 2024, in small: one canary shows that the new file is good, then all follow."""
    faults: list[Fault] = [error("*", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), lasts="80m")]
    night = play(siblings(40), faults=faults, acts=[("+90m", "requeue", "*", {"canary": True})])
    assert night.state == "SUCCESS" and done(night) == 40 and len(night.pages) == 1


def test_a_redrive_of_everything_keeps_its_rate() -> None:
    """SQS: a redrive of a whole dead-letter queue at once is the next outage."""
    faults: list[Fault] = [error("*", ZeroDivisionError, lasts="5m")]
    night = play(siblings(60), faults=faults, acts=[("+10m", "requeue", "*", {"rate_per_second": 2})])
    again = [at for at in night.start_seconds() if at >= 600]
    assert night.state == "SUCCESS" and len(again) == 60 and again[-1] - again[0] >= 29


def test_a_skip_lets_the_rest_go_on() -> None:
    night = play(parser(broken, 2), acts=[("+5m", "skip", "parse")])
    assert night.state == "PARTIAL" and night.exit_code == 3 and night.states["parse"] == "SKIPPED"


def test_a_wrong_cancel_is_undone() -> None:
    night = play(
        siblings(3),
        durations={f"t{number}": "20m" for number in range(3)},
        max_parallel=1,
        acts=[("+5m", "cancel", "t2"), ("+6m", "undo", {"command": "act-0"})],
    )
    assert night.state == "SUCCESS" and done(night) == 3


def test_a_pause_that_everybody_forgot_is_paged() -> None:
    night = play(siblings(5), acts=[("+0.005s", "pause")], max_parallel=1, until="2h")
    assert night.state == "BLOCKED" and len(night.pages) == 1 and "paused" in night.pages[0].title


def test_a_breaker_that_an_operator_holds_open_waits_for_him() -> None:
    flow = siblings(3, downstream="bank")
    flow.task(name="first")(int)
    for number in range(3):
        flow.task(name=f"u{number}", after="first", downstream="bank")(int)
    acts = [("+1m", "breaker", "bank", "open"), ("+30m", "breaker", "bank", "close"), ("+31m", "resume")]
    night = play(flow, durations={"first": "10m"}, acts=acts)
    assert night.state == "SUCCESS"
    assert min(night.start_seconds("u0")) >= 1800


@pytest.mark.long
def test_an_operator_closes_a_breaker_too_early() -> None:
    """It opens again at once, and no task is lost."""
    night = play(
        siblings(30, downstream="bank", max_attempts=6),
        faults=[down("bank", lasts="20m")],
        acts=[("+5m", "breaker", "bank", "close"), ("+10m", "breaker", "bank", "close")],
    )
    assert night.state == "SUCCESS" and night.healed_within("2m", after="bank")
    assert len([at for at in night.calls("bank") if at < 1200]) < 130


def test_a_run_is_stopped_for_an_upgrade_and_resumed() -> None:
    night = play(
        siblings(8),
        durations={f"t{number}": "10m" for number in range(8)},
        acts=[("+15m", "stop", "drain"), ("+1h", "resume")],
    )
    assert night.state == "SUCCESS" and night.starts() == 8


def test_a_run_is_stopped_at_once_and_nobody_is_blamed() -> None:
    night = play(
        siblings(4),
        durations={f"t{number}": "10m" for number in range(4)},
        acts=[("+5m", "stop", "now"), ("+1h", "resume")],
    )
    assert night.state == "SUCCESS" and night.starts() == 8 and night.pages == []


def test_more_time_is_given_to_a_running_task() -> None:
    night = play(siblings(1, timeout="10m"), durations={"t0": "15m"}, acts=[("+5m", "extend", "t0", {"seconds": 600})])
    assert night.state == "SUCCESS" and night.starts() == 1


def test_no_more_time_is_given_to_a_task_that_was_told_to_end() -> None:
    flow = siblings(1, timeout="10m", grace_seconds=60, retry=RetryPolicy(max_attempts=1))
    night = play(flow, faults=[hang("t0", ignores_sigterm=True)], acts=[("+10m30s", "extend", "t0", {"seconds": 600})])
    assert night.state == "FAILED" and "SIGTERM was sent to it" in night.answers[0][2]


def test_the_executor_is_killed_between_an_act_and_its_work() -> None:
    faults: list[Fault] = [error("t1", ZeroDivisionError, lasts="5m"), crash(at="601s", lasts="1m")]
    flow = siblings(3)
    night = play(flow, durations={"t0": "1h", "t1": "5m"}, faults=faults, acts=[("+10m", "requeue", "t1")])
    assert night.state == "SUCCESS" and len(night.answers) == 1


@parametrize_mostly_long("seed", range(3), quick=1)
def test_the_same_night_is_the_same_journal(seed: int) -> None:
    def journal():
        faults: list[Fault] = [down("bank", lasts="3m", share=0.6), crash(at="70s")]
        return play(siblings(20, downstream="bank"), faults=faults, seed=seed).journal

    assert journal() == journal()
