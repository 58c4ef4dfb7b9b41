"""Pools of the machine: slots of several executors, freed by the kernel, given in the order of the waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.console.cli.group import ExitCode
from redrive.engine import Executor, Flow
from redrive.engine.errors import OptionError
from redrive.engine.executor.dispatch import describe_pool_holders
from redrive.engine.store import machine
from redrive.engine.store.machine import MachinePools, read_pools
from support.commands import invoke_redrive, start_redrive
from support.pools import hold_slot
from support.waiting import wait_until

Make = Any


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes what an executor has: ``make("alpha", db=2)``. On a slow machine nobody is taken for gone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "STALE_SECONDS", 3600.0)
    made: list[MachinePools] = []

    def make_pools(flow: str, **sizes: int) -> MachinePools:
        made.append(MachinePools(sizes, flow, "r", str(tmp_path / f"{flow}.db")))
        return made[-1]

    yield make_pools
    for pools in made:
        pools.close()


def test_a_holder_whose_state_file_has_bytes_that_are_no_text_is_listed(make: Make) -> None:
    pools = make("alpha\udcff", db=1)
    assert pools.acquire("a", "db", 1)
    assert [entry.flow for entry in read_pools()] == ["alpha\udcff"]


def test_slots_are_counted_over_all_executors_and_free_after_a_task(make: Make) -> None:
    alpha, beta = make("alpha", db=3), make("beta", db=3)
    assert alpha.acquire("a", "db", 2) and not beta.acquire("b", "db", 2)
    assert alpha.holders("db")[0].flow == "alpha"
    alpha.release("a")
    assert beta.acquire("b", "db", 2) and beta.acquire("c", "db", 1)
    assert [(entry.slot, entry.task) for entry in read_pools()] == [(0, "b"), (1, "b"), (2, "c")]


def test_a_flow_that_names_a_smaller_pool_takes_only_the_slots_up_to_there(make: Make) -> None:
    large, small = make("large", db=2), make("small", db=1)
    assert large.acquire("a", "db", 1) and not small.acquire("b", "db", 1)
    small.end_wait("db")
    assert large.acquire("c", "db", 1)


def test_who_waits_longest_is_next_also_if_it_wants_more(make: Make) -> None:
    alpha, beta, gamma = make("alpha", db=2), make("beta", db=2), make("gamma", db=2)
    assert alpha.acquire("a", "db", 1)
    assert not beta.acquire("b", "db", 2)
    assert not gamma.acquire("c", "db", 1), "there is a slot, but beta waits for two"
    assert not alpha.acquire("again", "db", 1), "who has just run does not come first again"
    alpha.release("a")
    assert beta.acquire("b", "db", 2)
    beta.release("b")
    assert not alpha.acquire("again", "db", 1)
    assert gamma.acquire("c", "db", 1) and alpha.acquire("again", "db", 1)


def test_who_stopped_asking_is_passed_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, beta = make("alpha", db=2), make("beta", db=2)
    assert alpha.acquire("a", "db", 1) and not beta.acquire("b", "db", 2)
    monkeypatch.setattr(machine, "STALE_SECONDS", -1.0)
    assert alpha.acquire("again", "db", 1)


def test_the_kernel_frees_the_slots_of_a_killed_executor(make: Make, tmp_path: Path) -> None:
    process = hold_slot("db", "doomed")
    pools = make("next", db=1)
    assert not pools.acquire("b", "db", 1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert pools.acquire("b", "db", 1)


def test_a_page_of_slots_in_words(make: Make) -> None:
    alpha = make("alpha", db=3)
    assert describe_pool_holders(alpha.holders("db")) == "others who wait longer"
    assert alpha.acquire("a", "db", 2)
    assert describe_pool_holders(alpha.holders("db")) == f"a of alpha (pid {os.getpid()})"
    assert alpha.acquire("b", "db", 1)
    assert describe_pool_holders(alpha.holders("db")).endswith(" and 1 more")
    listed = invoke_redrive("systems", "pools")
    assert listed.exit_code == ExitCode.SUCCESS and listed.output.count(" alpha ") == 3


@pytest.mark.long
def test_the_tasks_of_two_flows_share_a_slot(make: Make, tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        lines = "".join(
            f"flow.command('{name}{n}', 'echo + >> log; sleep 0.2; echo - >> log', pool='db')\n" for n in "12"
        )
        text = f"from redrive.engine import Flow\nflow = Flow('{name}', machine_pools={{'db': 1}}, timeout=60)\n{lines}"
        (tmp_path / f"{name}.py").write_text(text)
    runs = [start_redrive("run", tmp_path / f"{name}.py", "--plain") for name in ("alpha", "beta")]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert (tmp_path / "log").read_text() == "+\n-\n" * 4
    wait_until(lambda: not read_pools())


def test_a_task_without_success_frees_its_slot_too(make: Make, tmp_path: Path) -> None:
    flow = Flow("f", machine_pools={"db": 1}, timeout=30)
    for name in ("a", "b"):
        flow.command(name, "exit 3", pool="db", max_attempts=1)
    assert Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run() == "FAILED"
    assert make("next", db=1).acquire("c", "db", 1)


def test_a_pool_is_of_the_flow_or_of_the_machine() -> None:
    with pytest.raises(OptionError, match="pool 'db' is of the flow or of the machine"):
        Flow("f", pools={"db": 1}, machine_pools={"db": 1})
