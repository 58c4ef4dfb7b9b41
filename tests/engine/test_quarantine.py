"""Rows that are bad while their task is good: 000.31, 004.38, SPEC 4.15. Real attempts, and the file afterwards."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, PermanentError, RetryPolicy, TransientError
from redrive.engine.agent.command_client import send_blocking
from redrive.engine.core.decide import TOO_MANY_BAD_ROWS
from redrive.engine.core.failures.facts import type_name
from redrive.engine.domain.acts import parse_command
from redrive.engine.domain.event_payloads import AnswerFields
from redrive.engine.errors import TooManyBadRows
from redrive.engine.statefile.lists import QUARANTINE, QuarantineRow, query

QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)
ORDERS = [{"id": f"o-{number}", "amount": number} for number in range(10)]
BAD = {"o-3", "o-7"}

_ids = itertools.count()


def run(tmp_path: Path, flow: Flow) -> str:
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def task(tmp_path: Path, columns: str = "state, bad_rows") -> tuple[Any, ...]:
    (row,) = ask(tmp_path, f"SELECT {columns} FROM task WHERE name = 'settle'")
    return tuple(row)


def rows(tmp_path: Path, columns: str = "row_key, state") -> list[Any]:
    return ask(tmp_path, f"SELECT {columns} FROM quarantine ORDER BY id")


def act(tmp_path: Path, act: str, **options: Any) -> AnswerFields:
    found = ask(tmp_path, "SELECT name, state, generation FROM task WHERE name = 'settle'")
    command = {
        "id": f"command-{next(_ids)}",
        "act": act,
        "run_id": "r",
        "targets": [list(row) for row in found],
        "actor": "ana@ops",
        "reason": "the producer has sent them again",
        "options": options,
    }
    return send_blocking(str(tmp_path / "state.db"), parse_command(command)).as_json()


def settling(tmp_path: Path, bad: Callable[[dict[str, Any]], bool], **options: Any) -> Flow:
    """A task over ten orders that writes down each order which it has settled."""
    flow = Flow("f")

    @flow.task(timeout=30, **options)
    def settle(ctx: Any) -> int:
        done = 0
        for scope in ctx.rows(ORDERS, key="id"):
            with scope as order:
                if bad(order):
                    raise ValueError(f"amount {order['amount']} is none")
                with (tmp_path / "settled").open("a") as file:
                    file.write(order["id"] + "\n")
                done += 1
        return done

    return flow


def settled(tmp_path: Path) -> list[str]:
    return (tmp_path / "settled").read_text().split()


def is_bad(order: dict[str, Any]) -> bool:
    return order["id"] in BAD


def test_a_bad_row_is_set_aside_and_the_task_succeeds(tmp_path):
    """000.31, layer 2; 004.37: quarantine the row, continue with the rest."""
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, is_bad))
    assert ("SUCCESS", 2) == task(tmp_path)
    assert [("o-3", "held"), ("o-7", "held")] == rows(tmp_path)
    ((payload, error, fingerprint),) = rows(tmp_path, "payload, error, fingerprint")[:1]
    assert {"id": "o-3", "amount": 3} == json.loads(payload)
    assert "amount 3 is none" in error and fingerprint
    assert 8 == len(settled(tmp_path))


def test_a_retried_attempt_does_not_double_its_rows(tmp_path):
    """SPEC 4.15: provisional until the attempt succeeds."""
    flow = Flow("f")

    @flow.task(retry=QUICK, timeout=30)
    def settle(ctx: Any) -> None:
        for scope in ctx.rows(ORDERS, key="id"):
            with scope as order:
                if is_bad(order):
                    raise ValueError("none")
        if ctx.attempt == 1:
            raise TransientError("connection reset")

    assert "SUCCESS" == run(tmp_path, flow)
    assert [(1, "dropped"), (1, "dropped"), (2, "held"), (2, "held")] == rows(tmp_path, "attempt, state")
    assert ("SUCCESS", 2) == task(tmp_path)


def test_errors_that_say_something_about_the_world_are_not_the_rows_fault(tmp_path):
    flow = Flow("f")

    @flow.task(retry=RetryPolicy(max_attempts=1), timeout=30)
    def settle(ctx: Any) -> None:
        for scope in ctx.rows(ORDERS, key="id"):
            with scope:
                raise TransientError("503")

    assert "FAILED" == run(tmp_path, flow)
    assert [] == rows(tmp_path)


class UndefinedTable(Exception):
    """As psycopg raises it."""

    sqlstate = "42P01"


class InFailedSqlTransaction(Exception):
    sqlstate = "25P02"


def failing_with(*errors: Exception, **options: Any) -> Flow:
    """A task whose rows raise these errors, the last one again and again."""
    flow, left = Flow("f"), list(errors)

    @flow.task(retry=RetryPolicy(max_attempts=1), timeout=30, isolation="thread", **options)
    def settle(ctx: Any) -> None:
        for scope in ctx.rows(ORDERS, key="id"):
            with scope:
                raise left.pop(0) if len(left) > 1 else left[0]

    return flow


def explained(tmp_path: Path) -> tuple[str, str]:
    ((explain, diagnostic),) = ask(tmp_path, "SELECT explain, diagnostic FROM attempt")
    return explain, diagnostic


def test_a_missing_table_is_no_bad_row(tmp_path):
    assert "BLOCKED" == run(tmp_path, failing_with(UndefinedTable('relation "orders" does not exist')))
    assert [] == rows(tmp_path)
    assert explained(tmp_path)[0].startswith("UndefinedTable")


def test_a_missing_table_of_sqlite_is_no_bad_row(tmp_path):
    run(tmp_path, failing_with(sqlite3.OperationalError("no such table: orders")))
    assert [] == rows(tmp_path)


def test_a_transaction_that_a_row_has_ended_is_because_of_that_row(tmp_path):
    """Each further row fails by the state of the transaction, which says nothing of the row."""
    error = ValueError("amount is none")
    run(tmp_path, failing_with(error, InFailedSqlTransaction("current transaction is aborted")))
    assert [("o-0", "dropped")] == rows(tmp_path)
    assert explained(tmp_path)[0].startswith("ValueError")
    assert explained(tmp_path)[0].endswith("which led to InFailedSqlTransaction")


def test_too_many_bad_rows_are_because_of_the_most_frequent_error_and_not_of_the_last(tmp_path):
    errors = (ValueError("no amount"), ValueError("no amount"), ValueError("no amount"), KeyError("id"))
    assert "BLOCKED" == run(tmp_path, failing_with(*errors, max_bad_rows=3))
    explain, diagnostic = explained(tmp_path)
    assert explain.startswith("ValueError") and diagnostic == "ValueError: no amount"


def test_held_rows_make_the_run_partial_where_the_task_says_so(tmp_path):
    """SPEC 4.8."""
    assert "PARTIAL" == run(tmp_path, settling(tmp_path, is_bad, strict_rows=True))
    act(tmp_path, "requeue-rows", rows=[1, 2])
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, lambda order: False, strict_rows=True))


# --- Limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"max_bad_rows": 1}, {"max_bad_ratio": 0.1}])
def test_too_many_bad_rows_are_a_broken_parser_and_need_a_human(tmp_path, limit):
    """SPEC 4.15: unlimited quarantine turns a broken parser into a green task."""
    assert "BLOCKED" == run(tmp_path, settling(tmp_path, is_bad, retry=QUICK, **limit))
    assert ("DEAD_LETTER", "quarantine", 1, 0) == task(tmp_path, "state, dead_letter_kind, attempt, bad_rows")
    assert {"dropped"} == {state for _, state in rows(tmp_path)}
    assert [("quarantine on settle", "high")] == ask(tmp_path, "SELECT title, severity FROM page")


def test_a_limit_is_passed_early_where_the_number_of_rows_is_known(tmp_path):
    """Nine of ten rows would be settled without looking before the end."""
    run(tmp_path, settling(tmp_path, lambda order: order["amount"] < 3, max_bad_ratio=0.2))
    assert 3 == len(rows(tmp_path))
    assert not (tmp_path / "settled").exists()


def test_a_task_that_swallows_the_error_gets_it_again_at_its_end(tmp_path):
    flow = Flow("f")

    @flow.task(max_bad_rows=1, timeout=30)
    def settle(ctx: Any) -> str:
        for number in range(5):
            try:
                ctx.quarantine(number, {"n": number}, "no good")
            except Exception:
                continue
        return "all is well"

    run(tmp_path, flow)
    assert ("DEAD_LETTER", "quarantine") == task(tmp_path, "state, dead_letter_kind")


def test_a_ratio_is_examined_although_the_task_left_its_loop(tmp_path):
    flow = Flow("f")

    @flow.task(max_bad_ratio=0.5, timeout=30)
    def settle(ctx: Any) -> None:
        for scope in ctx.rows(iter(ORDERS), key="id"):
            with scope:
                raise ValueError("none")
            break

    run(tmp_path, flow)
    assert ("DEAD_LETTER", "quarantine") == task(tmp_path, "state, dead_letter_kind")


def test_rows_within_the_limit_are_no_dead_letter(tmp_path):
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, is_bad, max_bad_rows=2, max_bad_ratio=0.2))


def test_the_decision_knows_the_error_by_the_name_that_attempts_report():
    assert TOO_MANY_BAD_ROWS == type_name(TooManyBadRows())


# --- What an operator does ------------------------------------------------------------------------------------------


def test_rows_that_are_sent_back_run_through_the_same_task_and_no_others_do(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    (tmp_path / "settled").unlink()
    ids = [row.id for row in rows_listed(tmp_path)]
    answer = act(tmp_path, "requeue-rows", rows=ids)
    assert answer["ok"], answer
    assert {"requeued"} == {state for _, state in rows(tmp_path)}
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, lambda order: False))
    assert ["o-3", "o-7"] == settled(tmp_path)
    assert {"resolved"} == {state for _, state in rows(tmp_path)}
    assert ("SUCCESS", 0) == task(tmp_path)


def rows_listed(tmp_path: Path) -> list[QuarantineRow]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return query(connection, QUARANTINE, {"run_id": "r"})


def test_a_row_that_is_still_bad_is_held_again_and_the_one_beside_it_is_not(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    act(tmp_path, "requeue-rows", rows=[1, 2])
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, lambda order: order["id"] == "o-7", max_bad_ratio=0.2))
    assert [("o-3", "resolved"), ("o-7", "resolved"), ("o-7", "held")] == rows(tmp_path)
    assert ("SUCCESS", 1) == task(tmp_path)


def test_rows_of_a_generation_that_fails_are_held_as_before(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    act(tmp_path, "requeue-rows", rows=[1])
    flow = Flow("f")

    @flow.task(timeout=30)
    def settle(ctx: Any) -> None:
        raise PermanentError("the ledger is closed")

    run(tmp_path, flow)
    assert [("o-3", "held"), ("o-7", "held")] == rows(tmp_path)
    assert ("DEAD_LETTER", 2) == task(tmp_path)


def test_a_task_can_ask_what_it_was_sent(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    act(tmp_path, "requeue-rows", rows=[2])
    flow = Flow("f")
    flow.task(lambda ctx: ctx.only_rows, name="settle", timeout=30)
    run(tmp_path, flow)
    assert {"o-7": {"id": "o-7", "amount": 7}} == json.loads(task(tmp_path, "result")[0])


def test_a_task_adds_to_what_it_returned_before_its_rows_were_sent_back(tmp_path):
    flow, mended = Flow("f"), tmp_path / "mended"

    def settle(ctx: Any) -> list[str]:
        kept = list(ctx.earlier_result or [])
        for scope in ctx.rows(ORDERS, key="id"):
            with scope as order:
                if order["id"] in BAD and not mended.exists():
                    raise ValueError("no amount")
                kept.append(order["id"])
        return kept

    flow.task(settle, name="settle", timeout=30)
    flow.task(lambda settle: len(settle), name="load", after="settle", timeout=30)
    assert run(tmp_path, flow) == "SUCCESS"
    mended.touch()
    assert act(tmp_path, "requeue-rows", rows=[id_ for (id_,) in rows(tmp_path, "id")], cascade=True)["ok"]
    assert run(tmp_path, flow) == "SUCCESS"
    assert ask(tmp_path, "SELECT result FROM task WHERE name = 'load'") == [(str(len(ORDERS)),)]


def test_a_full_requeue_is_about_all_rows_and_settles_what_was_held(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    act(tmp_path, "requeue")
    (tmp_path / "settled").unlink()
    assert "SUCCESS" == run(tmp_path, settling(tmp_path, lambda order: order["id"] == "o-7"))
    assert 9 == len(settled(tmp_path))
    assert [("o-3", "resolved"), ("o-7", "resolved"), ("o-7", "held")] == rows(tmp_path)


def test_rows_are_discarded_by_an_act_that_can_be_taken_back(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    answer = act(tmp_path, "discard-rows", rows=[1])
    assert answer["ok"] and "1 row discarded" == answer["message"]
    assert (["discarded", "held"], 1) == ([state for _, state in rows(tmp_path)], task(tmp_path)[1])
    last = ask(tmp_path, "SELECT command_id FROM event WHERE command_id IS NOT NULL ORDER BY seq DESC LIMIT 1")[0][0]
    assert act(tmp_path, "undo", command=last)["ok"]
    assert (["held", "held"], 2) == ([state for _, state in rows(tmp_path)], task(tmp_path)[1])


def test_sending_back_can_be_taken_back_until_it_runs(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    before = ask(tmp_path, "SELECT * FROM task")
    act(tmp_path, "requeue-rows", rows=[1, 2])
    last = ask(tmp_path, "SELECT command_id FROM event WHERE command_id IS NOT NULL ORDER BY seq DESC LIMIT 1")[0][0]
    assert act(tmp_path, "undo", command=last)["ok"]
    assert before == ask(tmp_path, "SELECT * FROM task")
    assert {"held"} == {state for _, state in rows(tmp_path)}


def test_a_row_that_somebody_has_decided_about_is_refused(tmp_path):
    """SPEC 4.9: the first one wins, the second is told."""
    run(tmp_path, settling(tmp_path, is_bad))
    act(tmp_path, "discard-rows", rows=[1])
    answer = act(tmp_path, "requeue-rows", rows=[1])
    assert not answer["ok"] and "none of these rows is held" in answer["message"]
    assert "SUCCESS" == task(tmp_path)[0]


def test_rows_need_a_reason(tmp_path):
    run(tmp_path, settling(tmp_path, is_bad))
    command = {"id": "x", "act": "discard-rows", "run_id": "r", "actor": "ana", "options": {"rows": [1]}}
    assert not send_blocking(str(tmp_path / "state.db"), parse_command(command)).ok
    assert "held" == rows(tmp_path)[0][1]


# --- The code is poisoned, not the rows ------------------------------------------------------------------------------


def test_a_column_that_no_row_has_is_a_dead_letter_that_holds_its_children(tmp_path):
    flow = Flow("f", retry=QUICK)

    @flow.task(timeout=30)
    def settle(ctx: Any) -> int:
        total = 0
        for scope in ctx.rows(ORDERS, key="id"):
            with scope as order:
                total += order["no such column"]
        return total

    @flow.task(after=[settle], timeout=30)
    def publish(settle: int) -> int:
        return settle

    assert run(tmp_path, flow) == "BLOCKED"
    state, kind, error, attempts = task(tmp_path, "state, dead_letter_kind, error, attempt")
    assert (state, kind, attempts) == ("DEAD_LETTER", "quarantine", 1)
    assert "all 10 rows failed alike and none was good (KeyError: 'no such column')" in error
    assert ask(tmp_path, "SELECT state FROM task WHERE name = 'publish'") == [("PENDING",)]
    assert {state for _, state in rows(tmp_path)} == {"dropped"}


def test_a_child_of_a_map_whose_rows_all_fail_is_one_dead_letter(tmp_path):
    flow = Flow("f", retry=QUICK)

    @flow.task(timeout=30)
    def days() -> list[int]:
        return [1, 2]

    @flow.map(over=days, timeout=30)
    def load(day: int, ctx: Any) -> None:
        for scope in ctx.rows(ORDERS):
            with scope as order:
                order["amount" if day == 1 else "sum"]

    run(tmp_path, flow)
    states = ask(tmp_path, "SELECT state FROM task WHERE name LIKE 'load[%'")
    assert sorted(states) == [("DEAD_LETTER",), ("SUCCESS",)]
