"""The inbox: one row per cause, ordered by what it holds; ten thousand rows are filtered and sorted at once."""

import time

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.inbox import (
    SHOWN_AT_FIRST,
    Inbox,
    InboxOrder,
    InboxRow,
    compare,
    failures_of,
    targets_of,
    verdict,
)
from redrive.console.model.lists import Filter, parse_filter
from redrive.engine.core.projection import AttemptRow
from redrive.engine.domain.states import TaskState
from support.breakers import status_of
from support.marks import for_each

from .runs import MINUTE, START, EventBuilder, S, failed_task, projection_of

PARTS = [(f"load_{n}", []) for n in range(30)]
FLOW = [*PARTS, ("join", [name for name, _ in PARTS]), ("report", ["join"]), ("invoice", []), ("mail", ["invoice"])]


def inbox_of(*failed, flow=FLOW):
    """failed: (task, state, error)."""
    projection = projection_of(flow)
    for number, (name, state, error) in enumerate(failed):
        failed_task(projection, name, state, error, at=START + number * S)
    return Inbox(Board(projection))


def test_tasks_that_failed_alike_are_one_cause():
    inbox = inbox_of(
        ("load_1", "DEAD_LETTER", "Broken"), ("invoice", "FAILED", "Denied"), ("load_0", "DEAD_LETTER", "Broken")
    )
    first, second = inbox.causes()
    assert (first.tasks, first.title, first.dead) == (("load_0", "load_1"), "Broken settle.py:87 in settle", 2)
    assert (second.tasks, second.dead) == (("invoice",), 0)
    assert (inbox.total, inbox.dead_letters) == (3, 2)


def test_what_waits_below_several_tasks_is_counted_once():
    inbox = inbox_of(*((f"load_{n}", "DEAD_LETTER", "Broken") for n in range(30)))
    assert inbox.causes()[0].held == 2


def test_a_cause_knows_since_when():
    inbox = inbox_of(("load_1", "DEAD_LETTER", "Broken"), ("load_2", "DEAD_LETTER", "Broken"))
    cause = inbox.causes()[0]
    assert (cause.oldest, cause.last_seen, cause.first_seen) == (START, START + S, START)


def test_the_first_sight_of_a_failure_is_that_of_the_first_attempt_that_had_it():
    projection = projection_of(FLOW)
    row = failed_task(projection, "invoice", at=START + MINUTE)
    row.attempts[2] = row.attempts.pop(1)
    row.attempts[2].attempt = row.attempt = 2
    row.attempts[1] = AttemptRow(1, ended_at=START + S, outcome="error", fingerprint_loose="loose-ValueError")
    assert Inbox(Board(projection)).causes()[0].first_seen == START + S


@for_each(
    "sort, order",
    [
        (InboxOrder.HELD, ["Wide", "Many", "Late"]),
        (InboxOrder.COUNT, ["Many", "Wide", "Late"]),
        (InboxOrder.OLDEST, ["Many", "Wide", "Late"]),
        (InboxOrder.LATEST, ["Late", "Wide", "Many"]),
    ],
)
def test_causes_are_ordered_by_what_is_asked_for(sort, order):
    flow = [("m1", []), ("m2", []), ("w", []), ("x", ["w"]), ("y", ["x"]), ("l", [])]
    inbox = inbox_of(
        ("m1", "FAILED", "Many"), ("m2", "FAILED", "Many"), ("w", "FAILED", "Wide"), ("l", "FAILED", "Late"), flow=flow
    )
    inbox.order_by(sort)
    assert [cause.title.split()[0] for cause in inbox.causes()] == order


def test_a_requeued_task_leaves_and_a_new_failure_comes():
    projection = projection_of(FLOW)
    board = Board(projection)
    inbox, builder = Inbox(board), EventBuilder(projection)
    assert inbox.causes() == []
    assert inbox.apply(board.apply([*builder.start("invoice"), *builder.fail("invoice", "DEAD_LETTER")]))
    assert [cause.tasks for cause in inbox.causes()] == [("invoice",)]
    assert not inbox.apply(board.apply(builder.start("load_1")))
    assert inbox.apply(board.apply([builder.move("invoice", "PENDING", generation=1)]))
    assert inbox.causes() == []


def test_what_is_held_is_counted_again_when_asked():
    flow = [("a", []), ("b", ["a"]), ("c", ["a"])]
    projection = projection_of(flow)
    failed_task(projection, "a")
    board = Board(projection)
    inbox, builder = Inbox(board), EventBuilder(projection)
    assert inbox.causes()[0].held == 2
    inbox.apply(board.apply([builder.move("b", "SKIPPED", skip_cause="operator")]))
    inbox.refresh()
    assert inbox.causes()[0].held == 1


def test_a_failure_without_a_fingerprint_is_not_thrown_together_with_others():
    projection = projection_of(FLOW)
    for name, kind in (("load_1", "indeterminate"), ("load_2", "crash-loop")):
        row = failed_task(projection, name)
        row.dead_letter_kind, row.failure_fingerprint = kind, None
        row.attempts.clear()
    assert len(Inbox(Board(projection)).causes()) == 2


# --- Folding and filters -------------------------------------------------------------------------------------------


def test_an_open_cause_shows_some_tasks_and_then_all():
    inbox = inbox_of(*((f"load_{n}", "DEAD_LETTER", "Broken") for n in range(30)))
    assert inbox.rows() == [InboxRow("loose-Broken")]
    inbox.toggle(inbox.rows()[0])
    assert len(inbox.rows()) == 1 + SHOWN_AT_FIRST + 1
    assert inbox.rows()[-1].hidden == 30 - SHOWN_AT_FIRST
    inbox.toggle(inbox.rows()[-1])
    assert [row.task for row in inbox.rows()[1:]] == [f"load_{n}" for n in range(30)]
    inbox.toggle(inbox.rows()[0])
    assert len(inbox.rows()) == 1


def test_a_filter_matches_name_error_state_and_fingerprint():
    inbox = inbox_of(
        ("load_1", "DEAD_LETTER", "Broken"), ("load_2", "FAILED", "Denied"), ("invoice", "FAILED", "Broken")
    )
    for typed, kept in {
        "broken": {"load_1", "invoice"},
        "load !broken": {"load_2"},
        "failed loose-b": {"invoice"},
        '"settle.py:87 in"': {"load_1", "load_2", "invoice"},
        "!": {"load_1", "load_2", "invoice"},
        "nothing like it": set(),
    }.items():
        inbox.set_filter(parse_filter(typed))
        assert set(inbox.matching()) == kept, typed


@given(st.text(max_size=40), st.text(max_size=40))
def test_whatever_is_typed_is_a_filter(typed, text):
    chosen = parse_filter(typed)
    assert isinstance(chosen, Filter)
    assert chosen.matches(text.casefold()) in (True, False)


def test_targets_carry_what_was_seen():
    inbox = inbox_of(("load_1", "DEAD_LETTER", "Broken"))
    assert targets_of(inbox.board, ["load_1", "join"]) == (("load_1", "DEAD_LETTER", 0), ("join", "PENDING", 0))


def test_ten_thousand_rows_are_filtered_and_sorted_at_once():
    """About 15 ms of CPU; the bar is 30 ms on a quiet machine, the bound here is generous."""
    flow = [*((f"load_{n:05}", []) for n in range(10_000)), ("join", [f"load_{n:05}" for n in range(10_000)])]
    projection = projection_of(flow)
    for number in range(10_000):
        failed_task(projection, f"load_{number:05}", "DEAD_LETTER", f"Error{number % 200}", at=START + number)
    inbox = Inbox(Board(projection))
    inbox.causes()
    started = time.process_time()
    inbox.set_filter(parse_filter("error1 !load_000"))
    inbox.order_by(InboxOrder.COUNT)
    causes = inbox.causes()
    assert time.process_time() - started < 10
    assert sum(cause.count for cause in causes) > 5_000


# --- Evidence ------------------------------------------------------------------------------------------------------


def attempts(*changes):
    same = {"outcome": "error", "error_type": "ValueError", "fingerprint": "f", "code_hash": "c1", "input_hash": "i1"}
    return [AttemptRow(number, **{**same, "host": "h1", **change}) for number, change in enumerate(changes, 1)]


def test_the_same_failure_with_nothing_changed_between_is_deterministic():
    comparison = compare(attempts({}, {}))
    assert comparison.is_deterministic
    assert verdict(comparison) == "same failure twice; nothing changed between (code, input, host)"


def test_a_change_between_attempts_is_named_with_both_values():
    comparison = compare(attempts({}, {"code_hash": "c2"}, {"code_hash": "c2"}))
    assert comparison.environment == ("code",)
    assert verdict(comparison) == "the same failure although the code changed between"
    assert not comparison.is_deterministic


def test_what_was_not_recorded_is_not_claimed_to_be_the_same():
    comparison = compare(attempts({"input_hash": None}, {"input_hash": None}))
    assert comparison.unknown == ("input", "parameters", "packages")
    assert verdict(comparison) == "same failure twice; nothing changed between (code, host)"


def test_different_failures_are_not_called_the_same():
    comparison = compare(attempts({}, {"fingerprint": "g", "error_type": "KeyError"}, {}))
    assert not comparison.is_same_failure
    assert verdict(comparison) == "3 different failures; nothing changed between"


def test_one_failure_has_nothing_to_be_compared_with():
    assert verdict(compare(attempts({}))) == "one failure so far: nothing to compare it with"


def test_only_failures_of_the_current_generation_count_and_lost_attempts_do_not():
    projection = projection_of(FLOW)
    row = projection.tasks["invoice"]
    row.generation = 1
    row.attempts = {
        1: AttemptRow(1, generation=0, outcome="error"),
        2: AttemptRow(2, generation=1, outcome="lost"),
        3: AttemptRow(3, generation=1, outcome="timed_out"),
        4: AttemptRow(4, generation=1, outcome="error", late=1),
        5: AttemptRow(5, generation=1, outcome="error"),
    }
    assert [one.attempt for one in failures_of(row)] == [3, 5]


def test_a_command_to_type_quotes_the_name_of_a_downstream():
    projection = projection_of([("load", [])], {"load": {"downstream": "api; rm -rf ~"}})
    projection.tasks["load"].state = TaskState.READY
    board = Board(projection)
    board.snapshot.breakers["api; rm -rf ~"] = status_of("FORCED_OPEN")
    (cause,) = Inbox(board).causes()
    assert cause.message.endswith("close it: systems breakers --close 'api; rm -rf ~'")
