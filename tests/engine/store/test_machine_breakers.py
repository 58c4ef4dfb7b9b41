"""Executors of one machine tell one another which downstreams are down, and believe their own calls first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from redrive import engine
from redrive.engine.core.downstreams import DownstreamFinding, DownstreamStates
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec
from redrive.engine.statefile.paths import default_folder
from redrive.engine.store.machine import MachineBreakers, flows_that_name

SECOND = 1_000_000
BLIP = Outcome(OutcomeKind.ERROR, Failure("E", "503", FailureClass.TRANSIENT, Fingerprint("s", "l")))
SUCCESS = Outcome(OutcomeKind.SUCCESS)


class Flow:
    """One executor with a downstream; ``clock[0]`` is the time of all."""

    def __init__(self, folder: Path, name: str, clock: list[int], shared: bool = True) -> None:
        tasks = tuple(TaskSpec(f"t{number}", downstream="bank") for number in range(10))
        spec = FlowSpec(name, tasks, downstreams=(DownstreamSpec("bank", shared=shared),))
        self.states = DownstreamStates(spec, lambda: clock[0], self.changed)
        self.breakers = MachineBreakers(str(folder / "breakers"), self.states.specs, name, f"executor of {name}")
        self.published: list[DownstreamFinding] = []

    def changed(self, downstream: str) -> None:
        finding = self.states.finding(downstream)
        if finding is not None:
            self.published.append(finding)
            self.breakers.publish(downstream, finding)

    def beat(self) -> None:
        for downstream, finding in self.breakers.read_new().items():
            self.states.consider(downstream, finding)

    def call(self, outcome: Outcome, times: int = 1) -> None:
        for number in range(times):
            assert self.states.admit(f"t{number}", "bank", is_retry=False).call is not None
            self.states.record(f"t{number}", outcome, 0, 3)

    @property
    def state(self) -> str:
        return self.states.statuses["bank"].state


@pytest.fixture
def clock() -> list[int]:
    return [1_700_000_000 * SECOND]


def test_a_flow_that_starts_in_an_outage_of_another_asks_once_itself_before_it_waits(tmp_path, clock):
    """Two flows may call different systems by one name: one was held for 148 s without a call of its own."""
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock)
    first.call(BLIP, times=10)
    second.beat()
    assert second.state == "CLOSED"
    second.call(BLIP)
    assert second.state == "OPEN" and second.states.statuses["bank"].why.endswith("(flow revenue)")
    assert not second.published, "what it was told is not told again"
    clock[0] += 4 * SECOND
    first.states.operate("bank", "probe")
    first.call(SUCCESS)
    assert first.state == "CLOSED"
    second.beat()
    assert second.states.is_probe_due("bank"), "a recovery of another is asked for, not believed"
    second.call(SUCCESS)
    assert second.state == "CLOSED"


@pytest.mark.parametrize("is_before", [True, False])
def test_a_flow_whose_own_calls_succeed_does_not_believe_in_the_outage(tmp_path, clock, is_before):
    """A shared breaker took out services that were healthy (DoorDash, May 2022)."""
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock)
    second.call(SUCCESS, times=is_before)
    first.call(BLIP, times=10)
    second.beat()
    second.call(SUCCESS)
    second.call(BLIP)
    assert second.state == "CLOSED", "one failed call after a good one is a failure of its own"


def test_an_outage_of_another_system_moves_no_probe(tmp_path, clock):
    """Each finding of another flow put off the probes: a healthy flow was held as long as the other's outage."""
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock)
    first.call(BLIP, times=10)
    second.beat()
    second.call(BLIP)
    due = second.states.statuses["bank"].breaker.reopens_at
    assert due == clock[0] + 5 * SECOND
    clock[0] = due
    first.call(BLIP, times=2)
    second.beat()
    assert second.states.is_probe_due("bank")
    second.call(SUCCESS)
    assert second.state == "CLOSED"


def test_a_finding_whose_time_is_over_confirms_nothing(tmp_path, clock):
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock)
    first.call(BLIP, times=10)
    second.beat()
    clock[0] += 60 * SECOND
    second.call(BLIP)
    assert second.state == "CLOSED"


def test_a_downstream_that_only_has_the_name_of_another_is_declared_apart(tmp_path, clock):
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock, shared=False)
    first.call(BLIP, times=10)
    second.beat()
    second.call(BLIP)
    assert second.state == "CLOSED"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"at": "x"}', "\x00", '{"at": 1, "reopens_at": [], "flow": "f"}'])
def test_a_file_that_holds_something_else_is_no_finding(tmp_path, clock, text):
    flow = Flow(tmp_path, "revenue", clock)
    (tmp_path / "breakers").mkdir()
    (tmp_path / "breakers" / "bank").write_text(text)
    flow.beat()
    assert flow.state == "CLOSED"


def test_a_link_is_not_followed_and_a_folder_that_cannot_be_written_only_misses_a_hint(tmp_path, clock):
    first, second = Flow(tmp_path, "revenue", clock), Flow(tmp_path, "ledger", clock)
    first.call(BLIP, times=10)
    os.rename(tmp_path / "breakers" / "bank", tmp_path / "elsewhere")
    (tmp_path / "breakers" / "bank").symlink_to(tmp_path / "elsewhere")
    second.beat()
    assert second.state == "CLOSED"
    (tmp_path / "file").write_text("")
    third = Flow(tmp_path / "file", "audit", clock)
    third.call(BLIP, times=10)
    third.beat()
    assert third.state == "OPEN"


def test_flows_that_share_a_name_are_known_by_their_names(tmp_path, clock):
    folder = str(tmp_path / "breakers")
    for name in ("revenue", "led/ger"):
        flow = Flow(tmp_path, name, clock)
        flow.breakers.register(flow.states.specs)
    assert flows_that_name("bank", folder) == ["led/ger", "revenue"]
    assert flows_that_name("other", folder) == []
    os.utime(tmp_path / "breakers" / ".flows" / "bank" / "revenue", (0, 0))
    assert flows_that_name("bank", folder) == ["led/ger"], "it has not run for a month"


def test_a_real_run_is_not_held_by_the_outage_of_another_system_of_the_same_name(tmp_path, monkeypatch):
    """40 tasks were held for 148 s with no call of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = os.path.join(default_folder(), "breakers")
    other = MachineBreakers(folder, ["bank"], "test-copy", "another executor")
    now = time.time_ns() // 1000
    other.register(["bank"])
    other.publish("bank", DownstreamFinding(now, now + 3600 * SECOND, "10 of the last 10 calls failed"))
    flow = engine.Flow("revenue")
    for number in range(4):
        flow.task(int, name=f"t{number}", downstream="bank")
    assert engine.Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run() == "SUCCESS"
    assert flows_that_name("bank") == ["revenue", "test-copy"]
