"""Rows that are set aside without anything that says how many were good."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine import Flow
from support.checks import check_flow


@pytest.mark.parametrize(("options", "found"), [({}, True), ({"max_bad_rows": 5}, False)])
def test_rows_that_are_set_aside_one_by_one_need_a_bound(options: dict[str, Any], found: bool) -> None:
    flow = Flow("f", timeout=30)

    @flow.task(**options)
    def load(ctx: Any) -> None:
        for number, row in enumerate([{}]):
            ctx.quarantine(number, row, "no amount")

    assert ("rows" in [finding.rule for finding in check_flow(flow)]) is found


def test_scopes_count_what_was_good() -> None:
    flow = Flow("f", timeout=30)

    @flow.task
    def load(ctx: Any) -> None:
        for scope in ctx.rows([{}]):
            with scope as row:
                ctx.quarantine(1, row, "no amount")

    assert "rows" not in [finding.rule for finding in check_flow(flow)]
