"""Why a task is not running: one sentence for every state and every reason (SPEC part 4, 9)."""

import json
from typing import Any

import pytest
from redrive.engine.core.explain import blocking_chain, explain_task
from redrive.engine.core.projection import AttemptRow, RunProjection, TaskRow
from redrive.engine.core.spec import DaskOptions, TaskSpec
from redrive.engine.core.views import task_view
from redrive.engine.core.waiting import ExplainContext, RunnerKind, RunnerStatus, long_wait, unmet_parents
from redrive.engine.domain.rows import ExecutorState, RunRow
from redrive.engine.domain.states import TaskState
from redrive.engine.domain.text import format_clock
from support.breakers import status_of
from support.marks import for_each

S = 1_000_000
MINUTE = 60 * S
NOW = 10_000 * S


def projection_of(*tasks, **run):
    """tasks: (name, parents, state, columns)."""
    projection = RunProjection(RunRow("run", "flow", **run))
    for position, (name, parents, state, columns) in enumerate(tasks):
        spec = TaskSpec(name, tuple(parents), **columns.pop("spec", {}))
        projection.tasks[name] = TaskRow(name, TaskState(state), spec=spec, position=position, **columns)
        projection.parents[name] = tuple(parents)
    for name in projection.tasks:
        projection.children[name] = tuple(child for child, parents in projection.parents.items() if name in parents)
    return projection


def sentence(projection, name="task", **around):
    return explain_task(projection, name, NOW, ExplainContext(**around))


def one(state, **columns):
    return projection_of(("task", [], state, columns))


def test_a_retry_reports_its_number_its_time_and_the_dice():
    projection = one(
        "RETRYING", failures=3, max_attempts=5, next_retry_at=NOW + 41 * S, delay_us=41 * S, ceiling_us=64 * S
    )
    projection.tasks["task"].attempt = 3
    projection.tasks["task"].attempts[3] = AttemptRow(3, error_type="httpx.ConnectTimeout")
    assert sentence(projection) == "retry 4/5 due in 41s (drew 41s of ceiling 1m04), after ConnectTimeout"


def test_a_wait_that_the_deadline_shortened_says_from_what_and_why():
    drawn = {"delay_us": 31 * S, "ceiling_us": 60 * S, "shortened_us": 240 * S}
    projection = one("RETRYING", failures=3, max_attempts=5, next_retry_at=NOW + 20 * S, **drawn)
    projection.run = projection.run._replace(deadline_at=NOW + 840 * S)
    dice = "drew 31s of ceiling 1m00; shortened from 4m00 to 31s: the run is due in 14m00"
    assert sentence(projection) == f"retry 4/5 due in 20s ({dice})"


def test_long_waits_for_things_of_one_name_are_several_causes():
    day = {"first_started_at": NOW - 86_400 * S, "next_retry_at": NOW + 86_400 * S}
    projection = projection_of(
        ("start", [], "SENSING", day),
        ("forks", [], "RETRYING", {**day, "failure_fingerprint": "start:11"}),
        ("api", [], "RETRYING", day),
        ("calls", [], "RETRYING", {**day, "spec": {"downstream": "api"}}),
    )
    waits = [long_wait(projection.run, row, NOW) for row in projection.tasks.values()]
    assert len({wait.cause for wait in waits}) == 4


def test_a_retry_that_is_overdue_says_so():
    assert sentence(one("RETRYING", failures=1, next_retry_at=NOW - 4 * S)) == "retry 2/3 due 4s ago"


def test_a_task_that_no_worker_of_a_cluster_takes_says_why():
    why = "the Dask cluster has 0 workers"
    projection = projection_of(("task", [], "READY", {}), pool_waits=json.dumps({"workers": {"GPU=1": why}}))
    projection.tasks["task"].spec = TaskSpec("task", isolation="dask", dask=DaskOptions((("GPU", 1),)))
    assert sentence(projection) == f"waits for a Dask worker: {why}"
    assert task_view(projection, "task", NOW).fact == f"waits for a Dask worker: {why}"
    projection.tasks["task"].spec = TaskSpec("task", isolation="dask")
    assert sentence(projection) == "ready; the executor starts it next"


def test_an_attempt_without_a_process_on_its_worker_starts():
    projection = one("RUNNING", started_at=NOW - 39 * S, attempt=1, spec={"isolation": "dask"})
    attempt = projection.tasks["task"].attempts[1] = AttemptRow(1, timeout_us=5 * S)
    assert sentence(projection) == "its process starts on a Dask worker, for 39s: attempt 1"
    attempt.pid = 4711
    assert sentence(projection) == "attempt 1 runs for 39s of 5s"


def test_a_task_waits_for_its_parents_by_name():
    projection = projection_of(
        ("a", [], "SUCCESS", {}),
        ("b", [], "RUNNING", {"started_at": NOW - 41 * S}),
        ("task", ["a", "b"], "PENDING", {}),
    )
    assert sentence(projection) == "waits for b, running for 41s"


def test_a_task_below_one_whose_end_is_not_written_does_not_say_that_it_runs():
    projection = projection_of(
        ("a", [], "RUNNING", {"started_at": NOW - 41 * S}),
        ("task", ["a"], "PENDING", {}),
        ("below", ["task"], "PENDING", {}),
    )
    ended = "attempt has ended; the outcome is in memory until the state file can be written"
    runner = RunnerStatus(unsaved={"a": NOW})
    assert sentence(projection, "a", runner=runner) == f"its {ended}"
    assert sentence(projection, runner=runner) == f"waits for a, whose {ended}"
    assert sentence(projection, "below", runner=runner) == f"waits for task; held by a, whose {ended}"


def test_the_dead_letter_that_holds_a_task_from_afar_is_named_with_its_page():
    projection = projection_of(
        ("bad", [], "DEAD_LETTER", {"dead_letter_kind": "poison", "ended_at": NOW - 14 * MINUTE, "attempt": 2}),
        ("slow", [], "RUNNING", {"started_at": NOW - 5 * S}),
        ("middle", ["bad"], "PENDING", {}),
        ("task", ["slow", "middle"], "PENDING", {}),
    )
    projection.tasks["bad"].attempts[2] = AttemptRow(2, fingerprint_loose="f00d")
    assert sentence(projection, page_notes={"f00d": "page acked by ana"}) == (
        "waits for slow and middle; bad dead-lettered (poison) for 14m00, page acked by ana"
    )
    assert [name for name, _ in blocking_chain(projection, "task", NOW)] == ["task", "bad"]


def test_many_parents_are_counted_and_names_with_spaces_are_quoted():
    projection = projection_of(
        *((f"{n}: part", [], "READY", {}) for n in range(5)),
        ("task", [f"{n}: part" for n in range(5)], "PENDING", {}),
    )
    assert sentence(projection) == "waits for '0: part', '1: part' and 3 more; '0: part' ready"


@pytest.mark.long
def test_a_chain_of_twenty_thousand_waiting_tasks_names_its_root():
    tasks: list[tuple[str, list[str], str, dict[str, Any]]] = [("t0", [], "RUNNING", {"started_at": NOW - S})]
    tasks += [(f"t{n}", [f"t{n - 1}"], "PENDING", {}) for n in range(1, 20_000)]
    projection = RunProjection(RunRow("run"))
    for name, parents, state, columns in tasks:
        projection.tasks[name] = TaskRow(name, TaskState(state), **columns)
        projection.parents[name] = tuple(parents)
    assert sentence(projection, "t19999") == "waits for t19998; t0 running for 1s"


def test_a_full_pool_names_who_holds_it_for_how_long():
    pool = {"spec": {"pool": "db"}}
    projection = projection_of(
        ("x", [], "RUNNING", {"started_at": NOW - 14 * MINUTE, **pool}),
        ("y", [], "RUNNING", {"started_at": NOW - 3 * S, **pool}),
        ("task", [], "READY", {**pool}),
        options=json.dumps({"pools": {"db": 2}}),
        max_parallel=9,
    )
    for name in projection.tasks:
        projection.tasks[name].spec = TaskSpec(name, pool="db")
    assert sentence(projection) == "waits for pool db: 2 of 2 slots held by x for 14m00 and 1 more"


def test_without_a_free_slot_the_longest_runner_is_named():
    projection = projection_of(
        ("short", [], "RUNNING", {"started_at": NOW - S}),
        ("long", [], "RUNNING", {"started_at": NOW - 3 * MINUTE}),
        ("task", [], "READY", {}),
        max_parallel=2,
    )
    assert sentence(projection) == "waits for a slot: all 2 are in use, the longest by long for 3m00"


@for_each(
    "breaker, expected",
    [
        (status_of("OPEN", NOW + 12 * S), "breaker api is open and lets a probe through in 12s"),
        (status_of("OPEN", NOW - S), "breaker api is open and is about to let a probe through"),
        (status_of("HALF_OPEN"), "breaker api is letting probes through; this task waits for their answer"),
        (status_of("FORCED_OPEN"), "breaker api is held open by an operator"),
        (status_of("OPEN"), "breaker api is open until an operator closes it: a credential was refused"),
        (status_of("CLOSED"), "ready; the executor starts it next"),
        (status_of("METRICS_ONLY"), "ready; the executor starts it next"),
    ],
)
def test_a_breaker_that_holds_a_task_is_named(breaker, expected):
    projection = projection_of(("task", [], "READY", {"spec": {"downstream": "api"}}))
    assert sentence(projection, breakers={"api": breaker}) == expected


def test_a_retry_that_a_breaker_holds_is_not_due():
    api = {"spec": {"downstream": "api"}, "next_retry_at": NOW - 23 * S, "failures": 1, "max_attempts": 5}
    projection = projection_of(("get", [], "RETRYING", api), ("task", ["get"], "PENDING", {}))
    breakers = {"api": status_of("OPEN", NOW + 12 * S)}
    assert sentence(projection, breakers=breakers) == "waits for get, held by the breaker of api"


def test_a_row_says_as_the_sentence_that_an_operator_holds_the_breaker():
    projection = projection_of(("task", [], "READY", {"spec": {"downstream": "api"}}))
    context = ExplainContext({"api": status_of("FORCED_OPEN")})
    assert task_view(projection, "task", NOW, context).fact == explain_task(projection, "task", NOW, context)


def test_a_paused_run_names_who_paused_it():
    projection = projection_of(("task", [], "READY", {}), paused_since=NOW - 3 * MINUTE, paused_by="ana@host")
    assert sentence(projection) == "the run is paused for 3m00 by ana@host"


def test_a_time_before_which_a_task_must_not_start_is_reported():
    assert sentence(one("PENDING", next_retry_at=NOW + 20 * MINUTE)) == "not before its time, in 20m00"


def test_a_task_below_a_failure_names_the_ancestor_and_its_error():
    projection = projection_of(
        ("extract", [], "FAILED", {"attempt": 3}),
        ("task", ["extract"], "UPSTREAM_FAILED", {"blocked_by": "extract"}),
    )
    projection.tasks["extract"].attempts[3] = AttemptRow(3, error_type="builtins.KeyError")
    assert sentence(projection) == "stopped, because extract failed by KeyError"
    assert [name for name, _ in blocking_chain(projection, "task", NOW)] == ["task", "extract"]


def test_a_sensor_reports_its_polls_and_the_next_one():
    assert sentence(one("SENSING", deferrals=3, next_retry_at=NOW + 22 * S)) == (
        "not there yet after 3 checks; next check in 22s"
    )
    said = one("SENSING", deferrals=3, next_retry_at=NOW + 22 * S, error="no export of 25 April")
    assert sentence(said) == "not there yet after 3 checks: no export of 25 April; next check in 22s"


def test_a_running_task_reports_its_attempt_and_its_bound():
    projection = one("RUNNING", attempt=2, started_at=NOW - 41 * S)
    projection.tasks["task"].attempts[2] = AttemptRow(2, timeout_us=5 * MINUTE)
    assert sentence(projection) == "attempt 2 runs for 41s of 5m00"
    projection.tasks["task"].attempts[2].sigterm_at = NOW - 3 * S
    assert sentence(projection) == "attempt 2 runs for 41s of 5m00; SIGTERM sent 3s ago"
    projection.tasks["task"].attempts[2].sigkill_at = NOW - S
    assert sentence(projection).endswith("; killed, not gone yet")
    projection.tasks["task"].attempts[2].pid = 4711
    assert sentence(projection).endswith("; killed, waiting for pid 4711 to be gone"), "SPEC 4.9"


def test_without_an_executor_nothing_moves_and_the_sentence_says_it():
    gone = {"runner": RunnerStatus(RunnerKind.GONE, ExecutorState(gone_at=NOW - 12 * MINUTE))}
    assert sentence(one("READY"), **gone) == "queued; no executor runs it: resume starts an executor"
    assert sentence(one("RUNNING", attempt=2), **gone).startswith("its executor ended 12m00 ago; no executor runs it")
    assert sentence(one("SUCCESS", attempt=1, ended_at=NOW - S), **gone) == "finished 1s ago, in attempt 1"


def test_a_dead_letter_says_what_to_decide():
    assert sentence(one("DEAD_LETTER", dead_letter_kind="poison", ended_at=NOW - 72 * S)) == (
        "needs a decision for 1m12: the same failure again and nothing changed between;"
        " requeue it after a fix, or skip it"
    )


def test_a_task_that_may_have_happened_says_how_to_find_out_and_what_follows():
    dead = {"dead_letter_kind": "indeterminate", "ended_at": NOW - 72 * S}
    assert sentence(one("DEAD_LETTER", spec={"effect": True}, **dead)) == (
        "needs a decision for 1m12: first look for the key run/task/0 in the other system: task may have happened;"
        " skip it if it did, else requeue it"
    )
    assert sentence(one("DEAD_LETTER", **dead)) == (
        "needs a decision for 1m12: first find out whether task happened; skip it if it did, else requeue it"
    )


@for_each("state", list(TaskState))
def test_every_state_has_a_sentence_in_one_line_without_a_full_stop(state):
    text = sentence(one(str(state)))
    assert text
    assert "\n" not in text
    assert not text.endswith(".")


def test_a_skip_satisfies_a_child_only_if_an_operator_made_it():
    projection = projection_of(
        ("permitted", [], "SKIPPED", {"skip_cause": "operator"}),
        ("not_taken", [], "SKIPPED", {"skip_cause": "condition"}),
        ("task", ["permitted", "not_taken"], "PENDING", {}),
    )
    assert unmet_parents(projection, "task") == ("not_taken",)


def test_options_that_nobody_can_read_hide_the_pools_and_nothing_else():
    projection = projection_of(("task", [], "READY", {"spec": {"pool": "db"}}), options="[broken")
    assert sentence(projection) == "ready; the executor starts it next"


def test_a_pool_of_the_machine_names_who_holds_it():
    waits = json.dumps({"pools": {"warehouse": "load of revenue (pid 77)"}})
    projection = projection_of(("task", [], "READY", {}), pool_waits=waits)
    projection.tasks["task"].spec = TaskSpec("task", pool="warehouse")
    assert sentence(projection) == "waits for pool warehouse of this machine, held by load of revenue (pid 77)"


def test_an_approval_whose_time_is_over_asks_for_no_answer_that_would_be_refused():
    projection = one("READY", started_at=NOW - MINUTE, expires_at=NOW + 30 * S)
    projection.tasks["task"].spec = TaskSpec("task", kind="approval")
    waits = "waits for an approval for 1m00: approve or reject task; without an answer it fails in 30s"
    assert sentence(projection) == waits
    projection.tasks["task"].expires_at = NOW - S
    late = f"nobody has approved it by {format_clock(NOW - S)}"
    gone = RunnerStatus(RunnerKind.GONE, ExecutorState(gone_at=NOW - MINUTE))
    assert sentence(projection, runner=gone) == f"{late}: the next executor fails it; requeue task to be asked again"


# --- Who holds a task -------------------------------------------------------------------------------------------------


DEAD = {"dead_letter_kind": "poison", "ended_at": NOW - MINUTE}


def held_run(*dead: str, rule: str = "all_success"):
    """a, b, c, d, e -> join -> report; some of the first are dead letters."""
    first = [
        (name, [], "DEAD_LETTER" if name in dead else "RUNNING", dict(DEAD) if name in dead else {}) for name in "abcde"
    ]
    return projection_of(
        *first, ("join", list("abcde"), "PENDING", {"spec": {"rule": rule}}), ("report", ["join"], "PENDING", {})
    )


@for_each(
    "dead, words",
    [
        ("b", "held by b"),
        ("db", "held by b and d"),
        ("edb", "held by b, d and e"),
        ("edcb", "held by b, c and more"),
        ("edcba", "held by a, b and more"),
    ],
)
def test_row_and_sentence_name_the_same_holders_in_the_order_of_the_flow(dead: str, words: str):
    projection = held_run(*dead)
    for name in ("join", "report"):
        fact = task_view(projection, name, NOW).fact
        assert fact.endswith(words)
        if len(dead) > 1:
            assert words in sentence(projection, name)
    chain = [name for name, _ in blocking_chain(projection, "report", NOW)]
    assert chain == ["report", *sorted(dead)[:3]]


def test_an_approval_holds_as_a_dead_letter_does_and_what_runs_does_not():
    gate = {"spec": {"kind": "approval"}, "started_at": NOW - MINUTE}
    projection = projection_of(
        ("go", [], "READY", gate),
        ("bad", [], "DEAD_LETTER", dict(DEAD)),
        ("x", [], "RUNNING", {}),
        ("report", ["go", "bad", "x"], "PENDING", {}),
    )
    assert task_view(projection, "report", NOW).fact == "after 3 tasks, held by go and bad"
    assert sentence(projection, "report") == "waits for go, bad and x; held by go and bad"
    projection.tasks["x"].state = TaskState.SUCCESS
    assert task_view(projection, "report", NOW).fact == "held by go and bad", "each is named once"


def test_what_a_rule_lets_start_holds_nothing():
    """D is above, but another parent has let the task between start: only what still waits is held."""
    projection = projection_of(
        ("bad", [], "DEAD_LETTER", dict(DEAD)),
        ("good", [], "SUCCESS", {}),
        ("either", ["bad", "good"], "SUCCESS", {"spec": {"rule": "one_success"}}),
        ("slow", [], "RUNNING", {}),
        ("report", ["either", "slow"], "PENDING", {}),
    )
    assert task_view(projection, "report", NOW).fact == "after slow"


def test_what_was_found_for_one_task_serves_the_others():
    projection = projection_of(
        ("bad", [], "DEAD_LETTER", dict(DEAD)),
        *((f"t{n:03}", [f"t{n - 1:03}" if n else "bad"], "PENDING", {}) for n in range(500)),
    )
    context = ExplainContext(undecided=["bad"], holders={})
    assert task_view(projection, "t499", NOW, context).fact == "held by bad"
    assert len(context.holders or ()) == 500
    assert task_view(projection, "t250", NOW, context).fact == "held by bad"
    assert task_view(projection, "t250", NOW, ExplainContext(undecided=[])).fact == "after t249"
