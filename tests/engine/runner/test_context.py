"""What a task may ask of the engine: rows that are set aside, progress, its token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.core.failures.failure import failure_of_error
from redrive.engine.core.spec import TaskSpec
from redrive.engine.errors import AuthError, TaskTerminated, TooManyBadRows, TransientError
from redrive.engine.runner import protocol
from redrive.engine.runner.context import Context
from support.marks import for_each


class Sent(list[protocol.Frame]):
    """The frames that a context sent."""

    def context(self, *, cancelled: bool = False, **spec: Any) -> Context:
        order = protocol.AttemptOrder("run", "task", 1, 0, TaskSpec("task", **spec))
        return Context(order, {}, {}, send=self.append, is_cancelled=lambda: cancelled, make_failure=failure_of_error)

    @property
    def rows(self) -> list[protocol.BadRow]:
        return [frame.row for frame in self if isinstance(frame, protocol.Quarantined)]


def parse(text: str) -> int:
    return int(text)


def test_a_bad_row_is_set_aside_and_the_others_go_on() -> None:
    sent, good = Sent(), []
    for scope in sent.context().rows(["1", "x", "3"]):
        with scope as text:
            good.append(parse(text))
    assert good == [1, 3]
    (row,) = sent.rows
    assert (row["row_key"], json.loads(row["payload"])) == ("1", "x")
    assert "invalid literal" in row["error"]
    assert row["fingerprint"]


def test_rows_that_fail_alike_share_a_fingerprint() -> None:
    sent = Sent()
    for scope in sent.context().rows(["x", "y", None]):
        with scope as text:
            parse(text)  # type: ignore[arg-type]
    first, second, third = (row["fingerprint"] for row in sent.rows)
    assert first == second != third


@for_each(
    "key, expected",
    [("id", "a-7"), (lambda row: row["id"].upper(), "A-7"), (None, "0"), ("missing", "0"), (lambda row: 1 / 0, "0")],
)
def test_a_row_is_named_by_its_key(key: Any, expected: str) -> None:
    sent = Sent()
    for scope in sent.context().rows([{"id": "a-7"}], key=key):
        with scope:
            raise ValueError("bad")
    assert sent.rows[0]["row_key"] == expected


@for_each("error", [TransientError("503"), AuthError("401"), ConnectionResetError(), KeyboardInterrupt()])
def test_what_is_not_the_rows_fault_fails_the_attempt(error: BaseException) -> None:
    sent = Sent()
    with pytest.raises(type(error)):
        for scope in sent.context().rows([1]):
            with scope:
                raise error
    assert sent.rows == []


def test_too_many_bad_rows_fail_the_attempt_as_soon_as_they_are() -> None:
    sent, seen = Sent(), []
    with pytest.raises(TooManyBadRows, match="3 rows are quarantined, max_bad_rows is 2"):
        for scope in sent.context(max_bad_rows=2).rows(range(100)):
            with scope as number:
                seen.append(number)
                raise ValueError("bad")
    assert seen == [0, 1, 2]


def test_a_ratio_is_judged_at_the_end() -> None:
    def run(bad: int) -> None:
        for scope in Sent().context(max_bad_ratio=0.1).rows(range(100)):
            with scope as number:
                if number < bad:
                    raise ValueError("bad")

    run(10)
    with pytest.raises(TooManyBadRows, match="11 of 100"):
        run(11)


def test_a_row_that_is_no_json_or_huge_still_fits() -> None:
    sent = Sent()
    sent.context().quarantine("k\udcff" * 1000, {"object": object(), "text": "x" * 1_000_000}, "too\udcff large")
    (row,) = sent.rows
    assert len(protocol.encode(protocol.Quarantined(row))) < 100_000
    assert row["error"] == "too\\udcff large"


def test_the_token_is_asked_each_time() -> None:
    Sent().context().check()
    context = Sent().context(cancelled=True)
    assert context.cancelled
    with pytest.raises(TaskTerminated):
        context.check()


# --- Rows that all fail alike ---------------------------------------------------------------------------------------

ROWS = [{"id": number, "price": str(number)} for number in range(29)]


def take_all(ctx: Context, rows: Any, column: str = "amount") -> None:
    for scope in ctx.rows(rows):
        with scope as row:
            row[column]


@for_each("rows", [ROWS, ROWS[:3], iter(ROWS), (row for row in ROWS)])
def test_a_column_that_no_row_has_is_no_fault_of_the_rows(rows: Any) -> None:
    ctx = Sent().context()
    take_all(ctx, rows)
    with pytest.raises(
        TooManyBadRows, match=r"rows failed alike and none was good \(KeyError: 'amount'\): the code is"
    ):
        ctx.finish()


def test_rows_of_which_some_are_good_are_held() -> None:
    ctx = Sent().context()
    take_all(ctx, [*ROWS, {"amount": 1}])
    ctx.finish()


def test_two_bad_rows_are_too_few() -> None:
    ctx = Sent().context()
    take_all(ctx, ROWS[:2])
    ctx.finish()


def test_each_list_is_judged_for_itself_also_through_a_helper() -> None:
    ctx = Sent().context()
    take_all(ctx, ROWS, "price")
    take_all(ctx, ROWS, "amount")
    with pytest.raises(TooManyBadRows, match="all 29 rows"):
        ctx.finish()


def test_the_lists_of_one_line_are_judged_together() -> None:
    ctx = Sent().context()
    for order in ([{"amount": 1}], ROWS[:5], [{"amount": 2}]):  # one order is bad, and the code is not
        take_all(ctx, order)
    ctx.finish()


def test_a_row_is_good_although_rows_inside_of_it_are_not() -> None:
    ctx = Sent().context()
    for order in ctx.rows(range(5)):
        with order:
            for line in ctx.rows([{"amount": 1}, {}]):
                with line as row:
                    row["amount"]
    ctx.finish()


def test_two_kinds_of_errors_are_judged_by_the_more_frequent() -> None:
    def run(first: int, second: int) -> None:
        ctx = Sent().context()
        for scope in ctx.rows([{"amount": "x"}] * first + [{}] * second):
            with scope as row:
                parse(row["amount"])
        ctx.finish()

    run(2, 2)
    with pytest.raises(TooManyBadRows, match="3 of 5 rows failed alike"):
        run(3, 2)


def test_a_row_that_its_own_block_sets_aside_is_not_good() -> None:
    ctx = Sent().context()
    for scope in ctx.rows(ROWS):
        with scope as row:
            ctx.quarantine(row["id"], row, "no amount")
    with pytest.raises(TooManyBadRows, match=r"all 29 rows failed alike and none was good \(no amount\)"):
        ctx.finish()


def test_rows_that_were_sent_back_may_all_fail() -> None:
    sent = Sent()
    order = protocol.AttemptOrder("r", "t", 1, 0, TaskSpec("t"), only_rows=tuple((str(i), "{}") for i in range(9)))
    ctx = Context(order, {}, {}, send=sent.append, is_cancelled=lambda: False, make_failure=failure_of_error)
    take_all(ctx, [{}] * 9)
    ctx.finish()
    assert len(sent.rows) == 9


def test_a_task_may_accept_that_all_its_rows_are_bad() -> None:
    ctx = Sent().context(max_bad_ratio=1.0)
    take_all(ctx, ROWS)
    ctx.finish()
