"""From what was seen of an attempt to its outcome: every way to end is one row."""

from __future__ import annotations

import signal
from typing import Any

from redrive.engine.core.failures.attempt_end import AttemptEnd, KillReason, lost_outcome, outcome_of
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.errors import NotReady
from redrive.engine.runner.call import RECHECK_SECONDS_MAX, outcome_of_error
from support.marks import for_each

FAILURE = Failure("ValueError", "no", FailureClass.VALIDATION, Fingerprint("a", "b"))
SUCCESS = Outcome(OutcomeKind.SUCCESS, result="1")
ROWS: list[tuple[dict[str, Any], OutcomeKind, str | None]] = [
    # a frame stands, whatever happened to the process afterwards
    ({"reported": SUCCESS, "exit_code": 0}, OutcomeKind.SUCCESS, None),
    ({"reported": SUCCESS, "signal": 9}, OutcomeKind.SUCCESS, None),
    ({"reported": Outcome(OutcomeKind.ERROR, FAILURE), "exit_code": 1}, OutcomeKind.ERROR, "ValueError"),
    ({"reported": Outcome(OutcomeKind.DEFERRED, recheck_seconds=5)}, OutcomeKind.DEFERRED, None),
    ({"reported": Outcome(OutcomeKind.SKIPPED, skip_reason="no")}, OutcomeKind.SKIPPED, None),
    ({"reported": Outcome(OutcomeKind.CANCELLED), "exit_code": 1}, OutcomeKind.ERROR, "signal:15:unknown"),
    # what redrive ended is ours, whatever the exit status looks like
    ({"kill_reason": KillReason.DEADLINE, "exit_code": 0}, OutcomeKind.TIMED_OUT, "TimeoutError"),
    ({"kill_reason": KillReason.DEADLINE, "signal": 9}, OutcomeKind.TIMED_OUT, "TimeoutError"),
    ({"kill_reason": KillReason.DEADLINE, "exit_code": 0, "command": "x"}, OutcomeKind.TIMED_OUT, "TimeoutError"),
    ({"kill_reason": KillReason.CANCEL, "signal": 15}, OutcomeKind.CANCELLED, None),
    # no frame, and redrive did not end it: the exit status decides
    ({"exit_code": 0, "command": "x"}, OutcomeKind.SUCCESS, None),
    ({"exit_code": 3, "command": "x"}, OutcomeKind.ERROR, "exit:3"),
    ({"exit_code": 0}, OutcomeKind.ERROR, "exit:0"),
    ({"exit_code": 3}, OutcomeKind.ERROR, "exit:3"),
    ({"signal": 11}, OutcomeKind.ERROR, "signal:11:unknown"),
    ({"signal": 9}, OutcomeKind.LOST, "lost"),  # nothing says that the task did it
    ({"signal": 9, "out_of_memory": True}, OutcomeKind.ERROR, "signal:9:oom"),
    ({"exit_code": 137, "command": "x", "out_of_memory": True}, OutcomeKind.ERROR, "signal:9:oom"),
    ({"exit_code": 137, "command": "x"}, OutcomeKind.ERROR, "exit:137"),
]


@for_each("exit_facts, kind, error_type", ROWS)
def test_every_way_to_end(exit_facts: dict[str, Any], kind: OutcomeKind, error_type: str | None) -> None:
    outcome = outcome_of(AttemptEnd(timeout=10, usage={"exit_code": exit_facts.get("exit_code")}, **exit_facts))
    assert outcome.kind is kind
    assert (outcome.failure.error_type if outcome.failure else None) == error_type
    assert outcome.attempt_columns == {"exit_code": exit_facts.get("exit_code")}


@for_each("asked, granted", [(None, None), (12.0, 12.0), (float("nan"), None), (float("inf"), RECHECK_SECONDS_MAX)])
def test_a_sensor_is_asked_again_at_an_instant_that_comes(asked: float | None, granted: float | None) -> None:
    assert outcome_of_error(NotReady(recheck_seconds=asked), lambda error: FAILURE).recheck_seconds == granted


def test_the_words_of_a_timeout_are_those_of_document_000() -> None:
    failure = outcome_of(AttemptEnd(kill_reason=KillReason.DEADLINE, timeout=10)).failure
    assert failure is not None
    assert (failure.message, failure.failure_class) == ("task exceeded 10s", FailureClass.TIMEOUT)


def test_a_command_that_failed_says_its_last_line() -> None:
    failure = outcome_of(
        AttemptEnd(exit_code=1, command="psql -f x.sql", output_tail="working\nERROR: no table\n")
    ).failure
    assert failure is not None
    assert "ERROR: no table" in failure.message


def test_out_of_memory_is_a_class_of_its_own_with_the_figure() -> None:
    usage, bound = {"max_rss_kb": 2040 * 1024}, "2048 MiB that its cgroup may hold"
    end = AttemptEnd(signal=signal.SIGKILL, out_of_memory=True, usage=usage, memory_bound=bound)
    failure = outcome_of(end).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert failure.diagnostic == "it held at most 2040 MiB of the 2048 MiB that its cgroup may hold"


def test_what_is_lost_says_why() -> None:
    outcome = lost_outcome("the zygote died", {"duration_us": 5})
    assert outcome.kind is OutcomeKind.LOST
    assert outcome.failure is not None
    assert outcome.failure.message == "the zygote died"
    assert outcome.attempt_columns == {"duration_us": 5}
