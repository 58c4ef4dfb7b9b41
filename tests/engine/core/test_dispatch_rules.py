"""Capacity besides slots, rejected tasks, and outages that last too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from redrive.engine.core.causes import LONG_OUTAGE_SECONDS
from redrive.engine.core.downstreams import END_WHEN_OPEN, Capacity, DownstreamStates, LongOutages
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState
from support.marks import for_each

SECOND = 1_000_000
HELD = round(LONG_OUTAGE_SECONDS * SECOND)
REFUSED = Outcome(OutcomeKind.ERROR, Failure("E", "503", FailureClass.TRANSIENT, Fingerprint("a", "a")))


class Stage:
    """Tasks ``t0`` .. of one spec, their ledger and their downstream; ``now`` is set by hand."""

    def __init__(self, tasks: int, pools: Mapping[str, int], on_open: Any = "hold", **spec: Any) -> None:
        self.now = 0
        specs = [TaskSpec(f"t{number}", **spec) for number in range(tasks)]
        self.projection = RunProjection(RunRow("r"), {one.name: TaskRow(one.name, spec=one) for one in specs})
        downstream = DownstreamSpec("api", minimum_calls=2, open_seconds=60, on_open=on_open)
        flow = FlowSpec("f", tuple(specs), downstreams=(downstream,) if "downstream" in spec else ())
        self.downstreams = DownstreamStates(flow, lambda: self.now, lambda _: None)
        self.ledger = ReadyQueue(self.projection, {})
        self.asked: list[tuple[str, int]] = []
        self.room = Capacity(self.ledger, self.downstreams, pools, lambda *asked: self.asked.append(asked))

    def admits(self, row: TaskRow) -> bool:
        return self.room.has_pool_slots(row) and self.room.may_call(row)

    def open(self) -> None:
        for name in ("t0", "t1"):
            self.downstreams.admit(name, "api", is_retry=False)
            self.downstreams.record(name, REFUSED, 0, 3)
        assert self.downstreams.is_down("api")

    def close(self) -> None:
        self.downstreams.operate("api", "close")

    def probe(self, at: int) -> None:
        """A task asks at an instant, and fails."""
        self.now = at
        assert self.downstreams.admit("t2", "api", is_retry=False).call is not None
        self.downstreams.record("t2", REFUSED, 0, 3)


@for_each("pools, picked", [({"db": 3}, 1), ({"db": 4}, 2), ({"db": 1}, 0), ({}, 0)])
def test_a_task_needs_the_slots_of_its_pool(pools: Mapping[str, int], picked: int) -> None:
    stage = Stage(3, pools, pool="db", pool_slots=2)
    assert len(stage.ledger.pop_startable(9, stage.admits)) == picked


def test_a_downstream_that_is_open_admits_nobody_and_says_when_it_may() -> None:
    stage = Stage(3, {}, downstream="api")
    assert stage.admits(stage.projection.tasks["t2"])
    stage.open()
    assert not stage.admits(stage.projection.tasks["t2"])
    ((name, instant),) = stage.asked
    assert name == "api" and instant > 0


@pytest.mark.parametrize("on_open", END_WHEN_OPEN)
def test_only_who_may_not_wait_is_turned_away_and_only_while_it_is_open(on_open: str) -> None:
    stage = Stage(3, {}, on_open, downstream="api")
    assert list(stage.room.rejected()) == []
    stage.open()
    waits = END_WHEN_OPEN[on_open] is None
    assert dict(stage.room.rejected()) == ({} if waits else dict.fromkeys(("t0", "t1", "t2"), on_open))


def test_an_end_while_open_is_a_state_that_the_flow_names() -> None:
    assert END_WHEN_OPEN == {"hold": None, "fail": TaskState.FAILED, "dead_letter": TaskState.DEAD_LETTER}


def test_a_long_outage_is_found_once_and_again_after_it_was_over() -> None:
    stage = Stage(3, {}, downstream="api")
    outages = LongOutages(stage.ledger, stage.downstreams)
    assert outages.update(0) == []
    stage.now = 5
    stage.open()
    stage.probe(5 + HELD // 2)
    assert outages.update(stage.now) == []
    assert outages.update(4 + HELD) == []
    (found,) = outages.update(5 + HELD)
    assert (found.downstream, sorted(found.tasks), found.lasts_us) == ("api", ["t0", "t1", "t2"], HELD)
    assert outages.update(6 + HELD) == []
    assert stage.downstreams.admit("t2", "api", is_retry=False).call is not None
    stage.downstreams.record("t2", Outcome(OutcomeKind.SUCCESS), 0, 3)
    assert outages.update(7 + HELD) == []
    begun = stage.now = 10_000 * SECOND
    stage.open()
    stage.probe(begun + HELD // 2)
    assert outages.update(stage.now) == []


def test_nobody_knows_how_a_downstream_is_that_nobody_asks() -> None:
    """An outage of 20 s before a pause of an hour is no outage of an hour."""
    stage = Stage(3, {}, downstream="api")
    outages = LongOutages(stage.ledger, stage.downstreams)
    stage.open()
    assert outages.update(6 * HELD) == []
    stage.probe(6 * HELD)
    assert outages.update(6 * HELD) == []
    stage.probe(6 * HELD + HELD // 2)
    assert outages.update(7 * HELD - 1) == []
    assert [outage.lasts_us for outage in outages.update(7 * HELD)] == [HELD]


def test_an_outage_that_holds_nobody_is_found_when_it_holds_somebody() -> None:
    stage = Stage(2, {}, downstream="api")
    stage.open()
    outages = LongOutages(stage.ledger, stage.downstreams)
    stage.probe(HELD // 2)
    stage.ledger.pop_startable(2, lambda row: True)
    assert outages.update(0) == outages.update(HELD) == []
    stage.ledger.release_claims(["t0"])
    assert [outage.tasks for outage in outages.update(HELD + 1)] == [["t0"]]
