"""Executor and zygote killed in the same moment: nobody of the run is alive seconds later."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redrive.engine.executor import host
from redrive.engine.statefile import lock_file
from redrive.engine.statefile.processes import EXECUTOR_VARIABLE
from support.marks import parametrize_mostly_long, scaled
from support.processes import read_stalled_seconds
from support.waiting import LIMIT_SECONDS, wait_until

SURVIVORS_SECONDS = 10.0  # an end takes a tenth of it; the machine may do much else
FLOW = """
import subprocess, time
from redrive.engine import Flow
flow = Flow("f", max_parallel=4)
flow.command("shell", '(setsid sleep 97 &); sleep 96')
@flow.task
def python():
    subprocess.Popen(["sleep", "95"], start_new_session=True)
    time.sleep(600)
@flow.task(isolation="worker")
def worker():
    subprocess.Popen(["sleep", "94"], start_new_session=True)
    time.sleep(600)
"""


class Storm:
    """A detached executor with a zygote, three attempts, and children in sessions of their own."""

    def __init__(self, folder: Path, flow: str = FLOW, sleepers: int = 4) -> None:
        (folder / "flow.py").write_text(flow)
        state = str(folder / "state.db")
        options = {"durability": "normal"}
        self.executor = psutil.Process(
            host.spawn(flow=str(folder / "flow.py"), state=state, run_id="r", options=options)
        )
        holder = lock_file.last_holder(state)
        assert holder is not None
        self.executor_id = holder.executor_id
        wait_until(lambda: len(self.programs("sleep")) == sleepers)
        (self.zygote,) = (child for child in self.executor.children() if child.children())

    def programs(self, *names: str) -> list[psutil.Process]:
        found = []
        for process in self.executor.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if process.name() in names:
                    found.append(process)
        return found

    def bearers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(EXECUTOR_VARIABLE) == self.executor_id and process.name():
                    found.append(process)  # with its name, which is read once
            except psutil.Error:
                continue
        return found

    def survivors(self, seconds: float) -> list[psutil.Process]:
        """Who lives after ``seconds`` in which a processor was free; an empty list as soon as nobody does."""
        began, stalled = time.monotonic(), read_stalled_seconds()
        while alive := self.bearers():
            elapsed = time.monotonic() - began
            if elapsed - (read_stalled_seconds() - stalled) > seconds or elapsed > LIMIT_SECONDS:
                break
            time.sleep(0.01)
        return alive


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    storm = Storm(tmp_path)
    yield storm
    for process in [*storm.bearers(), storm.executor]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    storm.executor.wait(30)


#: Who is killed, in which order: signals of one process follow each other within microseconds.
ORDERS = [("executor", "zygote"), ("zygote", "executor"), ("executor",), ("shell", "zygote", "executor")]
ORDERS += [("executor", "zygote", "shell"), ("executor", "shell", "zygote"), ("worker", "zygote", "executor")]


@pytest.mark.spawns  # processes are found by the token in the environment of their program
@parametrize_mostly_long("number", range(scaled(18)), daily=4)
def test_nobody_survives(storm: Storm, number: int) -> None:
    order = next(itertools.islice(itertools.cycle(ORDERS), number, None))
    shells = storm.programs("sh")
    victims = {"executor": [storm.executor], "zygote": [storm.zygote], "shell": shells}
    victims["worker"] = [process for shell in shells if (process := shell.parent())]
    for victim in itertools.chain.from_iterable(victims[name] for name in order):
        with contextlib.suppress(ProcessLookupError):  # the death of the one before may have ended it already
            os.kill(victim.pid, signal.SIGKILL)
    assert storm.survivors(SURVIVORS_SECONDS) == []


@pytest.mark.long
@pytest.mark.parametrize("how", [pytest.param("spawned", marks=pytest.mark.spawns), "forked, as in served runs"])
def test_a_stopped_zygote_is_no_refuge(storm: Storm, how: str) -> None:
    below = [storm.zygote, *storm.zygote.children(recursive=True)]
    storm.zygote.suspend()
    storm.executor.kill()
    assert storm.survivors(SURVIVORS_SECONDS + 2) == []
    assert psutil.wait_procs(below, SURVIVORS_SECONDS)[1] == []


@pytest.mark.spawns
def test_the_reaper_ends_with_an_executor_that_ends_in_order(storm: Storm) -> None:
    children = storm.executor.children()
    assert len(children) == 2  # the reaper and the zygote
    storm.executor.terminate()
    _, alive = psutil.wait_procs([storm.executor, *children], timeout=30)
    assert not alive


STUBBORN = """
import os
from redrive.engine import Flow
flow = Flow("f", max_parallel=4)
flow.command("deaf", "trap '' TERM HUP INT; while :; do sleep 93; done")
flow.command("bare", ["env", "-i", "sleep", "92"])
flow.command("left", "setsid env -i sleep 91 & wait")
"""
FAMILY = ("workers", "zygote", "executor", "reaper")
DEATHS = [FAMILY, *itertools.combinations(FAMILY, 3), *itertools.combinations(FAMILY, 2), *zip(FAMILY[:-1])]


@pytest.mark.spawns
@parametrize_mostly_long("dead", DEATHS, quick=1, daily=5, ids=".".join)
def test_no_program_outlives_those_above_it(tmp_path: Path, dead: tuple[str, ...]) -> None:
    """Also one without a token, which only its worker can end; one that left its group as well needs the zygote."""
    storm = Storm(tmp_path, STUBBORN, sleepers=3)
    programs = storm.programs("sh", "sleep")
    family = {"executor": [storm.executor], "zygote": [storm.zygote], "workers": storm.zygote.children()}
    family["reaper"] = [child for child in storm.executor.children() if child != storm.zygote]
    bound = [each for each in programs if "zygote" not in dead or "91" not in each.cmdline()]
    try:
        for victim in itertools.chain.from_iterable(family[name] for name in dead):
            victim.kill()
        assert psutil.wait_procs(bound, SURVIVORS_SECONDS)[1] == []
    finally:
        for process in [storm.executor, *programs]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        storm.executor.wait(30)
        assert storm.survivors(SURVIVORS_SECONDS) == []
