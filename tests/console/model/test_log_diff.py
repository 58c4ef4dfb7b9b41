"""Two outputs in one list: what only one of them has, and how much both have."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.log import LINES_MAX, DiffLine, Side, compare_output


def shown(lines: list[DiffLine]) -> list[str]:
    return [f"{line.side.value}{line.text or f'<{line.skipped}>'}" for line in lines]


def test_times_and_numbers_make_no_difference() -> None:
    before = ["03:10:51 connected to ledger", "03:10:52 batch 7 of 96", "03:10:53 timeout after 1.5 s"]
    after = ["04:00:01 connected to ledger", "04:00:02 batch 8 of 96", "04:00:02 403 forbidden"]
    assert shown(compare_output(before, after)) == [
        " 04:00:01 connected to ledger",
        " 04:00:02 batch 8 of 96",
        "-03:10:53 timeout after 1.5 s",
        "+04:00:02 403 forbidden",
    ]


def test_long_runs_of_equal_lines_are_shortened() -> None:
    same = [f"step {'x' * n}" for n in range(1, 51)]
    assert shown(compare_output([*same, "old"], [*same, "new"])) == [
        " <48>",
        f" {same[-2]}",
        f" {same[-1]}",
        "-old",
        "+new",
    ]
    assert shown(compare_output(same, same)) == [" <50>"]


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.lists(st.sampled_from("abcd"), max_size=30))
def test_no_line_is_lost(before: list[str], after: list[str]) -> None:
    lines = compare_output(before, after)
    both = sum(line.skipped or line.side is Side.BOTH for line in lines)
    assert both + sum(line.side is Side.BEFORE for line in lines) == len(before)
    assert both + sum(line.side is Side.AFTER for line in lines) == len(after)


def test_very_long_outputs_take_no_time() -> None:
    began = time.thread_time()
    compare_output(["same"] * 100_000, ["same", "other"] * 50_000)
    assert time.thread_time() - began < 10
    assert LINES_MAX <= 2_000
