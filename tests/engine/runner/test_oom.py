"""Whether memory was the reason: by the count of our own cgroup, in files as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from redrive.engine.runner.out_of_memory import OutOfMemoryWatch

GIB = 1 << 30
V2_EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill {kills}\noom_group_kill 0\n"
V1_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """One in which the kernel has killed elsewhere, for want of memory."""
    write(tmp_path, "proc/vmstat", "pgfault 1\noom_kill 40\noom_kill_x 99\n")
    return tmp_path


def test_the_bound_is_the_tightest_of_our_cgroup_and_those_above_it(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/system.slice/redrive.service\n")
    write(machine, "sys/fs/cgroup/system.slice/redrive.service/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/system.slice/memory.max", f"{2 * GIB}\n")
    write(machine, "sys/fs/cgroup/other.slice/memory.max", "1024\n")
    watch = OutOfMemoryWatch(str(machine))
    assert watch.bound == "2048 MiB that its cgroup may hold"
    assert watch.explains(watch.mark(), 2040 * 1024)
    assert not watch.explains(watch.mark(), 1024)


def test_a_kill_in_our_cgroup_explains_and_one_elsewhere_does_not(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/a\n")
    write(machine, "sys/fs/cgroup/a/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/a/memory.events", V2_EVENTS.format(kills=1))
    watch = OutOfMemoryWatch(str(machine))
    mark = watch.mark()
    write(machine, "proc/vmstat", "oom_kill 41\n")
    assert not watch.explains(mark, 1024)
    write(machine, "sys/fs/cgroup/a/memory.events", V2_EVENTS.format(kills=2))
    assert watch.explains(mark, 1024)


def test_cgroups_of_version_1_are_read_too_also_where_a_container_shows_only_its_own(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/0695fd50\n0::/\n")
    write(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    write(machine, "sys/fs/cgroup/memory/memory.oom_control", V1_CONTROL.format(kills=0))
    watch = OutOfMemoryWatch(str(machine))
    mark = watch.mark()
    assert watch.bound == "1024 MiB that its cgroup may hold"
    write(machine, "sys/fs/cgroup/memory/memory.oom_control", V1_CONTROL.format(kills=1))
    assert watch.explains(mark, 1024)


def test_without_a_cgroup_the_count_of_the_machine_must_do(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/\n")
    watch = OutOfMemoryWatch(str(machine))
    mark = watch.mark()
    assert mark == 40
    assert watch.bound.endswith("MiB that this machine has")
    write(machine, "proc/vmstat", "oom_kill 41\n")
    assert watch.explains(mark, 1024)


def test_a_machine_that_says_nothing_explains_nothing(tmp_path: Path) -> None:
    watch = OutOfMemoryWatch(str(tmp_path))
    assert not watch.explains(watch.mark(), 1 << 40)
