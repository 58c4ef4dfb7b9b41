"""A rule is made of what was recorded, and tried on what has happened by the rules that decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from redrive.engine.analysis.trials import (
    DecisionChange,
    RuleEffect,
    describe_effect,
    describe_rule,
    evaluate_rule,
    flow_text,
    propose_rule,
)
from redrive.engine.core.failures.classify import classify, parse_rules
from redrive.engine.core.failures.failure import describe_error, describe_exit
from redrive.engine.core.outcome import FailureClass
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.states import FailedAttempt, FailedTask
from redrive.engine.errors import PermanentError

TRANSIENT = FailureClass.TRANSIENT
S = 1_000_000


def failed(number: int = 1, generation: int = 0, **more: Any) -> FailedAttempt:
    """A conflict that was taken as permanent."""
    columns: dict[str, Any] = {"error_type": "vendor.Conflict", "error": "order 17 is locked", "facts": {"status": 409}}
    marks = {"failure_class": "permanent", "fingerprint": "s1", "fingerprint_loose": "l1", "explain": "Conflict"}
    at = number * S
    return FailedAttempt(number, generation, "error", at, at + 1, **{**columns, **marks, **more})


def good(number: int = 1, generation: int = 0) -> FailedAttempt:
    return FailedAttempt(number, generation, "success", number * S, number * S + 1)


def task(
    *attempts: FailedAttempt, state: str = "SUCCESS", policy: RetryPolicy | None = None, **more: Any
) -> FailedTask:
    spec = TaskSpec("load", retry=policy or RetryPolicy(max_attempts=3), downstream="shop")
    generation = more.pop("generation", attempts[-1].generation)
    return FailedTask(more.pop("run_id", "r1"), "load", state, generation, msgspec.to_builtins(spec), list(attempts))


def tried(*tasks: FailedTask, loose: str | None = None, mapping: Mapping[str, object] | None = None) -> RuleEffect:
    (rule,) = parse_rules([mapping or {"status": 409, "class": "transient"}])
    return evaluate_rule(rule, tasks, loose)


# --- The rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "rule"),
    [
        ([failed(), failed(error="other")], {"status": 409}),
        ([failed(facts={"grpc": "ABORTED", "types": ["grpc.RpcError"]})], {"grpc": "ABORTED"}),
        ([failed(facts={"sqlstate": "40P01"})], {"sqlstate": "40P01"}),
        ([failed(facts={"exit_code": 75}, error_type="exit:75")], {"exit_code": 75}),
        ([failed(facts={"signal": 9}, error_type="signal:9:unknown")], {"signal": 9}),
        ([failed(facts={"types": ["vendor.Conflict"]})], {"error": "vendor.Conflict"}),
        ([failed(), failed(facts={"status": 410})], {"error": "vendor.Conflict"}),
    ],
)
def test_what_the_other_side_answered_comes_before_the_type(failures: Any, rule: dict[str, Any]) -> None:
    assert propose_rule(failures, TRANSIENT) == {**rule, "class": "transient"}


def test_a_type_that_anybody_raises_gets_the_part_of_the_message_that_does_not_vary() -> None:
    failures = [
        failed(error_type="ValueError", facts={}, error=f"order {number}: the ledger of 'x{number}' is locked today")
        for number in (17, 3942)
    ]
    assert propose_rule(failures, TRANSIENT) == {
        "error": "ValueError",
        "message": "is locked today",
        "class": "transient",
    }


def test_a_program_that_exits_with_1_is_known_by_what_it_wrote() -> None:
    failures = [failed(error_type="exit:1", facts={"exit_code": 1}, diagnostic=f"x\nlock 0x{n}f held") for n in (1, 2)]
    rule = propose_rule(failures, TRANSIENT)
    assert (rule["exit_code"], rule["message"]) == (1, "lock")


def test_where_nothing_is_shared_there_is_no_rule() -> None:
    failures = [failed(error_type="exit:3", facts={}), failed(error_type="signal:9:oom", facts={}, error="")]
    with pytest.raises(ValueError, match="these failures have nothing in common that a rule could match"):
        propose_rule(failures, TRANSIENT)


class Conflict(Exception):
    """As libraries raise them."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} on /orders/17")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


@pytest.mark.parametrize(
    "error", [Conflict(409), ValueError("order 17 is locked"), PermanentError("no such order: 17"), OSError(5, "disk")]
)
def test_a_proposed_rule_holds_for_the_very_error_that_it_was_made_of(error: Exception) -> None:
    """From the exception through what is recorded to the rule and back."""
    failure = describe_error(error)
    past = failed(error_type=failure.error_type, error=failure.message, facts=failure.facts)
    rules = parse_rules([propose_rule([past], TRANSIENT)])
    assert classify(error, rules=rules).failure_class is TRANSIENT
    assert tried(task(past, state="DEAD_LETTER"), mapping=propose_rule([past], TRANSIENT)).fits == 1


def test_a_proposed_rule_holds_for_the_very_program_that_it_was_made_of() -> None:
    failure = describe_exit(1, stderr="loading\npsql: lock timeout on orders\n")
    past = failed(
        error_type=failure.error_type, error=failure.message, facts=failure.facts, diagnostic=failure.diagnostic
    )
    rule = propose_rule([past], TRANSIENT)
    assert describe_exit(1, stderr="psql: lock timeout on orders", rules=[rule]).failure_class is TRANSIENT


def program(code: int, output: str, command: str) -> FailedAttempt:
    """A recorded failure of a shell line."""
    failure = describe_exit(code, stderr=output, command=command)
    mark = failure.fingerprint
    columns = {"error_type": failure.error_type, "error": failure.message, "diagnostic": failure.diagnostic}
    fields: dict[str, Any] = {**columns, "fingerprint_loose": mark.loose, "explain": mark.explain}
    return failed(facts=dict(failure.facts), failure_class=str(failure.failure_class), **fields)


def test_a_rule_that_would_swallow_another_class_gets_more_conditions() -> None:
    """128 is the exit code of git for everything."""
    odd = program(128, "fatal: refusing to merge unrelated histories", "git pull")
    denied = program(128, "git@x: Permission denied (publickey).", "git pull")
    assert propose_rule([odd], TRANSIENT) == {"exit_code": 128, "class": "transient"}
    assert propose_rule([odd], TRANSIENT, [denied]) == {
        "exit_code": 128,
        "message": "fatal: refusing to merge unrelated histories",
        "class": "transient",
    }


def test_where_each_rule_would_swallow_another_class_there_is_none() -> None:
    odd, twin = program(128, "fatal: no", "git pull"), program(128, "fatal: no", "git push")
    with pytest.raises(ValueError, match="would also fit a failure that is auth: exit status 128: fatal: no"):
        propose_rule([odd], TRANSIENT, [twin._replace(failure_class="auth")])


def test_the_sqlstate_comes_before_the_exit_code_of_psql() -> None:
    syntax = program(3, 'psql:x.sql:1: ERROR:  syntax error at or near "x"', "psql -f x.sql")
    assert propose_rule([syntax], TRANSIENT) == {"sqlstate": "42601", "class": "transient"}


# --- Tried on what has happened --------------------------------------------------------------------------------------


def test_dead_letters_that_a_requeue_healed_would_have_been_retried() -> None:
    healed = [task(failed(1), good(2, 1), run_id=f"r{number}") for number in range(12)]
    again = [task(failed(1), failed(2, 1), state="DEAD_LETTER", generation=1, run_id="r1")]
    waits = task(failed(1), state="DEAD_LETTER")
    found = tried(*healed, *again, waits)
    assert found.changes == (
        DecisionChange(12, "dead-lettered", "retried", "healed when requeued"),
        DecisionChange(2, "dead-lettered", "retried", "not decided yet"),
        DecisionChange(1, "dead-lettered", "retried", "failed again when requeued"),
    )
    assert list(describe_effect(found)) == [
        "it fits 15 failures of 15, in 12 runs",
        "it would have changed 15 past decisions:",
        "  12 dead-lettered -> retried: healed when requeued",
        "  2 dead-lettered -> retried: not decided yet",
        "  1 dead-lettered -> retried: failed again when requeued",
    ]


def test_what_was_retried_in_vain_would_have_been_stopped_at_once_and_what_healed_is_said_as_well() -> None:
    transient: dict[str, Any] = {"failure_class": "transient", "delay_us": S}
    vain = task(failed(1, **transient), failed(2, **transient), failed(3, failure_class="transient"), state="FAILED")
    healed = task(failed(1, **transient), good(2))
    found = tried(vain, healed, mapping={"status": 409, "class": "permanent"})
    assert set(found.changes) == {
        DecisionChange(1, "retried", "dead-lettered", "the retries failed as well"),
        DecisionChange(1, "retried", "dead-lettered", "a retry healed it"),
    }
    assert found.saved == 3
    assert "3 attempts would not have been made" in list(describe_effect(found))


def test_a_spent_budget_stays_spent_and_a_poisoned_one_is_failed_instead_of_held() -> None:
    unclassified: dict[str, Any] = {"failure_class": "unclassified", "facts": {"status": 409}}
    poisoned = task(failed(1, delay_us=S, **unclassified), failed(2, **unclassified), state="DEAD_LETTER")
    spent = task(failed(1, failure_class="transient"), state="FAILED", policy=RetryPolicy(max_attempts=1))
    assert [(one.before, one.after) for one in tried(poisoned).changes] == [("dead-lettered", "retried")]
    tight = task(*poisoned.attempts, state="DEAD_LETTER", policy=RetryPolicy(max_attempts=2))
    assert [(one.before, one.after) for one in tried(tight).changes] == [("dead-lettered", "failed")]
    assert tried(spent).changes == ()


def test_what_the_rule_does_not_fit_is_counted_and_left_alone() -> None:
    timeout = FailedAttempt(1, 0, "timed_out", S, 2 * S, failure_class="timeout", facts={"status": 409})
    named = task(failed(), state="DEAD_LETTER", policy=RetryPolicy(retry_on=("vendor.Conflict",)))
    never = task(failed(), state="DEAD_LETTER", policy=RetryPolicy(never_retry=("Conflict",)))
    found = tried(task(timeout, state="DEAD_LETTER"), task(failed(facts={"status": 500}), state="FAILED"), named, never)
    assert (found.failures, found.changed_count) == (4, 0)
    assert list(describe_effect(found))[1:] == ["it would have changed no past decision"]


def test_a_rule_that_meets_another_cause_says_which() -> None:
    other = failed(fingerprint_loose="l2", explain="Conflict ship.py:3 in ship")
    found = tried(task(failed(), state="DEAD_LETTER"), task(other, state="DEAD_LETTER"), loose="l1")
    assert found.others == (("Conflict ship.py:3 in ship", "l2", 1),)


def test_what_may_happen_once_only_is_never_retried_whatever_a_rule_says() -> None:
    spec = TaskSpec("pay", idempotent=False)
    once = FailedTask("r1", "pay", "DEAD_LETTER", 0, msgspec.to_builtins(spec), [failed()])
    assert tried(once).changes == ()


# --- In words --------------------------------------------------------------------------------------------------------


def test_the_text_of_the_flow_is_python_and_puts_the_new_rule_first() -> None:
    existing = [{"error": "it's", "class": "permanent"}]
    text = flow_text({"status": 409, "class": "transient"}, existing, "shop")
    called: list[Any] = []

    class Flow:
        def downstream(self, name: str, rules: Any) -> None:
            called.append((name, rules))

    eval(text, {"flow": Flow()})
    assert called == [("shop", [{"status": 409, "class": "transient"}, *existing])]
    assert describe_rule({"status": 409, "class": "transient"}, "shop") == "status 409 on shop is transient"
