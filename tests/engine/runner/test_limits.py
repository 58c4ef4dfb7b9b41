"""Limits of a task, with real processes: what is above its memory is ended, whichever of its processes holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from redrive.engine.core.outcome import FailureClass, OutcomeKind
from redrive.engine.core.spec import TaskSpec
from redrive.engine.errors import FlowError
from redrive.engine.runner import autopsy, cgroups
from redrive.engine.runner.protocol import AttemptOrder
from redrive.engine.runner.usage import UsageSubject, own_memory, sample
from support.marks import parametrize_mostly_long
from support.waiting import wait_until_async

LIMIT = 90_000_000

FLOW = f"""
import subprocess, sys

GREEDY = "import time; held = bytes([1]) * {{}}; time.sleep(600)"
LINE = "{sys.executable} -S -c '" + GREEDY.format({2 * LIMIT}) + "'"
HALF = "{sys.executable} -S -c '" + GREEDY.format({LIMIT // 2}) + "'"
OPTIONS = dict(memory={LIMIT}, timeout=300, max_attempts=5, grace_seconds=1)

@flow.task(**OPTIONS)
def function():
    held = bytes([1]) * {2 * LIMIT}
    time.sleep(600)

@flow.task(**OPTIONS)
def child_of_function():
    subprocess.run([sys.executable, "-S", "-c", GREEDY.format({2 * LIMIT})])

@flow.task(isolation="worker", **OPTIONS)
def worker():
    held = bytes([1]) * {2 * LIMIT}
    time.sleep(600)

flow.command("command", "exec " + LINE, **OPTIONS)
flow.command("child_of_command", LINE + "; true", **OPTIONS)
flow.command("orphan_of_command", "(" + LINE + " &); sleep 600", **OPTIONS)
flow.command("three_together", " & ".join([HALF, HALF, HALF]) + "; wait", **OPTIONS)
flow.command("stubborn", "trap '' TERM; " + LINE + "; sleep 600", **OPTIONS)

@flow.task(memory="2GB", timeout=300)
def modest():
    held = bytes([1]) * 1_000_000
    return len(held)
"""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample often, so that no test waits for a second to pass."""
    monkeypatch.setattr(autopsy, "INTERVAL_SECONDS", 0.05)


@parametrize_mostly_long(
    "name", ["function", "child_of_function", "worker", "command", "child_of_command", "orphan_of_command"], quick=2
)
async def test_what_holds_too_much_is_ended_in_steps_and_says_how_much(bench: Any, name: str) -> None:
    await bench.open(FLOW)
    outcome, recorder = await bench.run(name)
    failure = outcome.failure
    assert (outcome.kind, failure.error_type) == (OutcomeKind.ERROR, "MemoryLimit")
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    used, allowed = failure.message.removeprefix("used ").removesuffix(" allowed").split(" of ")
    assert allowed == "90 MB"
    assert 90 <= float(used.removesuffix(" MB")) < 400
    assert recorder.payload_of("sigterm").reason == "memory limit"
    assert outcome.attempt_columns["max_rss_kb"] >= LIMIT // 1024
    if name == "function":
        assert "over its limit of memory at flow_under_test.py:" in failure.fingerprint.explain


async def test_several_processes_count_together(bench: Any) -> None:
    await bench.open(FLOW)
    outcome, _ = await bench.run("three_together")
    assert outcome.failure.error_type == "MemoryLimit"


async def test_what_ignores_sigterm_is_killed(bench: Any) -> None:
    await bench.open(FLOW)
    outcome, recorder = await bench.run("stubborn")
    assert outcome.failure.error_type == "MemoryLimit"
    assert "sigkill" in recorder.kinds


async def test_below_its_limit_a_task_is_left_alone(bench: Any) -> None:
    await bench.open(FLOW)
    outcome, recorder = await bench.run("modest")
    assert (outcome.result, recorder.kinds) == ("1000000", [])


@pytest.mark.long
async def test_what_the_flow_has_imported_counts_for_no_attempt(bench: Any) -> None:
    """The zygote holds it once: two attempts at a time with a limit that is a third of it."""
    await bench.open(f"""
        held = bytearray({3 * LIMIT})
        for place in range(0, len(held), 4096):
            held[place] = 1

        @flow.task(memory={LIMIT}, timeout=300)
        def small(path):
            open(path, "w").close()
            while os.path.exists(path):
                time.sleep(0.01)
            return sum(held[::4096])

        @flow.task(memory={LIMIT}, timeout=300, grace_seconds=1)
        def writes():
            for place in range(0, len(held), 4096):
                held[place] = 2  # a page of its own
            time.sleep(600)
    """)
    paths = [str(bench.folder / name) for name in "ab"]
    attempts = [await bench.start("small", params={"path": path}) for path in paths]
    watched = attempts[0].attempt
    await wait_until_async(lambda: all(map(os.path.exists, paths)) and len(watched._samples) > 4)
    resident = sample(UsageSubject(attempts[0].pid)).memory
    assert resident > 3 * LIMIT
    assert 0 < watched._memory_used < LIMIT
    for path in paths:
        os.remove(path)
    for one in attempts:
        assert (await one.outcome()).kind is OutcomeKind.SUCCESS
    outcome, _ = await bench.run("writes")
    assert outcome.failure.error_type == "MemoryLimit"


@pytest.fixture
def family() -> Iterator[int]:
    """A process that allocates, and forks: both hold the same pages."""
    program = f"""
import os, time
held = bytes([1]) * {LIMIT}
child = os.fork()
print(flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, start_new_session=True) as one:
        assert one.stdout is not None
        assert [one.stdout.readline() for _ in range(2)] == [b"\n", b"\n"]
        yield one.pid
        os.killpg(one.pid, 9)


def test_a_page_of_a_family_counts_once(family: int) -> None:
    seen = sample(UsageSubject(family))
    assert len(seen.own) == 2
    assert seen.memory > 2 * LIMIT
    assert LIMIT < own_memory(seen.own, os.getpid()) < 1.5 * LIMIT


# --- By the kernel --------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The files of a container whose root cgroup may be written to."""
    root = tmp_path / "sys/fs/cgroup"
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    files = {"cgroup.controllers": "cpuset cpu io memory pids", "cgroup.type": "domain", "cgroup.subtree_control": ""}
    for name, text in {**files, "cgroup.procs": "1\n17\n"}.items():
        write(root / name, text)
    return tmp_path


def test_a_cgroup_is_delegated_if_it_is_ours_to_divide(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = container / "sys/fs/cgroup"
    assert cgroups.delegated(container) == root
    write(container / "proc/self/cgroup", "0::/redrive\n")  # another executor has moved us into its leaf
    assert cgroups.delegated(container) == root
    write(container / "proc/self/cgroup", "0::/redrive-17-1\n")  # in an attempt with limits
    assert cgroups.delegated(container) is None
    unit = root / "system.slice/etl.service"
    for name in ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs"):
        write(unit / name, "cpu memory")
    marked: list[Path] = []
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1" if path in marked else b"0")
    write(container / "proc/self/cgroup", "0::/system.slice/etl.service/supervisor\n")  # DelegateSubgroup=supervisor
    assert cgroups.delegated(container) is None  # systemd has not marked the unit
    marked.append(unit)
    assert cgroups.delegated(container) == unit
    write(container / "proc/self/cgroup", "0::/system.slice/etl.service\n")  # systemd starts its process there again
    assert cgroups.delegated(container) is None
    write(container / "proc/self/cgroup", "4:memory:/a\n0::/\n")  # version 1 has the memory
    write(root / "cgroup.controllers", "hugetlb")
    assert cgroups.delegated(container) is None
    assert cgroups.delegated(container / "nowhere") is None


def test_each_attempt_gets_a_cgroup_with_its_limits(container: Path) -> None:
    root = container / "sys/fs/cgroup"
    write(root / "redrive-4194305-1/none", "")  # of an executor that was killed: its pid is no process
    (root / "redrive-4194305-1/none").unlink()
    groups = cgroups.Cgroups(root)
    assert not (root / "redrive-4194305-1").exists()
    assert (root / "redrive/cgroup.procs").read_text() == "17"  # the last that was moved
    assert (root / "cgroup.subtree_control").read_text() == "+cpu +memory"
    spec = TaskSpec("load", memory=2_000_000_000, cpus=0.5)
    order = AttemptOrder("run-1", "load", 1, 0, spec)
    folder = Path(groups.bound(order, 7).cgroup)
    assert folder == root / f"redrive-{os.getpid()}-7"
    limits = {"memory.max": "2000000000", "memory.oom.group": "1", "memory.swap.max": "0", "cpu.max": "50000 100000"}
    assert {path.name: path.read_text() for path in folder.iterdir()} == limits
    assert groups.bound(replace(order, spec=TaskSpec("other")), 8).cgroup == ""
    write(folder / "memory.peak", "1999998976\n")
    write(folder / "memory.events", "low 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert cgroups.remove(str(folder)) == (1_999_998_976, True)


async def test_an_attempt_enters_its_cgroup_and_says_what_the_kernel_counted(bench: Any, tmp_path: Path) -> None:
    """The folder is a plain one: what the kernel would do with it is written by the attempt itself."""
    folder = tmp_path / "redrive-1-1"
    folder.mkdir()
    write(folder / "cgroup.procs", "")
    write(tmp_path / "redrive/cgroup.procs", "")
    await bench.open(f"""
        flow.command("killed", "kill -9 $$", memory={LIMIT}, timeout=300)
        flow.command("fails", "exit 3", memory={LIMIT}, timeout=300)
    """)
    write(folder / "memory.peak", str(LIMIT))
    write(folder / "memory.events", "oom_kill 1\n")
    outcome, _ = await bench.run("killed", cgroup=str(folder))
    assert (folder / "cgroup.procs").read_text() == (tmp_path / "redrive/cgroup.procs").read_text() == "0"
    assert (outcome.failure.error_type, outcome.failure.message) == ("MemoryLimit", "used 90 MB of 90 MB allowed")
    assert (await bench.run("fails", cgroup=str(folder)))[0].failure.error_type == "exit:3"


@pytest.mark.long
async def test_the_lane_that_this_machine_has(bench: Any) -> None:
    """With a delegated cgroup the kernel holds both limits; without one CPUs are refused."""
    flow = f"""
        flow.command("greedy", {f"{sys.executable} -S -c 'bytes([1]) * {2 * LIMIT}'"!r}, memory={LIMIT}, timeout=300)
        flow.command("busy", "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpu.max", cpus=0.5, timeout=300)
    """
    if cgroups.delegated() is None:
        with pytest.raises(FlowError, match=r"^task 'busy': cpus= needs a cgroup that is delegated to redrive"):
            await bench.open(flow)
        return
    await bench.open(flow)
    outcome, recorder = await bench.run("greedy")
    assert (outcome.failure.error_type, recorder.kinds) == ("MemoryLimit", [])
    assert (await bench.run("busy"))[1].text == b"50000 100000\n"
    base = cgroups.delegated()
    assert base is not None
    assert not list(base.glob(f"redrive-{os.getpid()}-*"))
