"""Two maps over one list, the second after the first: a child belongs to its element, whatever that returns."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine import Flow
from redrive.engine.testing import Night, play


def invoices(*, cascade: bool = False, changed: bool = False, **options: Any) -> Night:
    """A list of two that is made again with a third element; ``changed``: and with another value of the second."""
    lists = iter([[(1, "a"), (2, "b")], [(1, "a"), (2, "c" if changed else "b"), (3, "d")]])
    flow = Flow("invoices")
    flow.task(name="listed")(lambda: next(lists))
    flow.map(lambda one: one[1], name="checked", over="listed", key=lambda one: one[0])
    flow.map(lambda one: one[1], name="paid", over="listed", key=lambda one: one[0], after="checked", **options)
    return play(flow, acts=[("+5m", "requeue", "listed", {"cascade": cascade}), ("+6m", "resume")])


def notices(night: Night) -> list[tuple[str, int]]:
    rows = night.query("SELECT name, notice FROM task WHERE name LIKE 'paid[%' AND notice IS NOT NULL")
    return [(name, notice.count("its element has changed")) for name, notice in rows]


@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_an_effect_is_named_as_changed_only_if_its_element_is(cascade: bool, changed: bool) -> None:
    night = invoices(cascade=cascade, changed=changed, kind="effect")
    assert notices(night) == ([("paid[2]", 1)] if changed else [])
    assert [night.starts(f"paid[{number}]") for number in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(("cascade", "changed", "starts"), [(False, False, 1), (False, True, 2), (True, False, 2)])
def test_a_child_whose_element_is_as_before_keeps_its_result(cascade: bool, changed: bool, starts: int) -> None:
    """The other map ran again, so each child seemed to have other inputs, and started again without a cascade."""
    night = invoices(cascade=cascade, changed=changed)
    assert night.starts("paid[1]") == (2 if cascade else 1) and night.starts("paid[2]") == starts
    assert night.state == "SUCCESS" and night.starts("paid[3]") == 1


def test_the_answer_to_a_cascade_names_no_effect_as_a_task_that_a_cascade_runs_again() -> None:
    ((_, _, with_cascade),) = invoices(cascade=True, kind="effect").answers
    ((_, _, without),) = invoices(kind="effect").answers
    assert "of the old list" not in with_cascade and "of the old list" not in without
    assert "2 effects have happened and stay" in with_cascade and "2 effects have happened and stay" in without
    ((_, _, of_no_effect),) = invoices(cascade=True).answers
    assert "follows its list" not in of_no_effect, "each child runs again"
