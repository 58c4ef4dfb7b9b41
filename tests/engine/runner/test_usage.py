"""What running tasks use: read from /proc, only when asked, once a second at most."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from redrive.engine.runner import usage
from redrive.engine.statefile.processes import start_ticks, stat_fields

#: A process with one child; both use the CPU, and the parent says so when it does.
BUSY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('busy', flush=True)\\nwhile True: pass"])
while True: pass
"""


@dataclass
class Supervisors:
    """Stands in for the running attempts of an executor."""

    running: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, pid: int | None, ticks: int | None = None, text: str = "") -> None:
        self.running[name] = SimpleNamespace(task=name, pid=pid, start_ticks=ticks, latest_output=text)


def test_cpu_memory_children_and_the_last_line_of_a_task_are_read() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"busy\n"
            supervisors, now = Supervisors(), [0.0]
            supervisors.add("load", process.pid, start_ticks(process.pid), "one\ntwo\r50 %\r60 %\n\n")
            reader = usage.UsageReader(supervisors.running, lambda: now[0])
            (first,) = reader.read()
            assert (first.task, first.children, first.last_line, first.cpu_percent) == ("load", 1, "60 %", None)
            assert first.memory_bytes is not None and 5_000_000 < first.memory_bytes < 500_000_000
            used = sum(os.times()[:4])
            assert reader.read() == [first] and sum(os.times()[:4]) >= used  # nothing is read again within a second
            spin_until_used(process.pid, ticks=20)
            now[0] = 1.0
            (second,) = reader.read()
            assert second.cpu_percent is not None and second.cpu_percent >= 20
        finally:
            os.killpg(process.pid, 9)


def spin_until_used(pid: int, ticks: int) -> None:
    """Wait until a process has used so much CPU time more."""

    def used() -> int:
        fields = stat_fields(pid)
        return int(fields[11]) + int(fields[12])

    end = used() + ticks
    while used() < end:
        pass


def test_a_pid_that_is_another_process_by_now_reports_nothing() -> None:
    supervisors = Supervisors()
    supervisors.add("gone", os.getpid(), start_ticks(os.getpid()) - 1)
    supervisors.add("not_started", None, text="said")
    found = {one.task: one for one in usage.UsageReader(supervisors.running, lambda: 0.0).read()}
    assert found["gone"][1:] == (None, None, 0, "")
    assert found["not_started"][1:] == (None, None, 0, "said")


def test_tasks_that_share_a_process_have_no_usage_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisors = Supervisors()
    for name in ("a", "b"):
        supervisors.add(name, os.getpid(), start_ticks(os.getpid()), name)
    found = usage.UsageReader(supervisors.running, lambda: 0.0).read()
    assert [one[1:] for one in found] == [(None, None, 0, "a"), (None, None, 0, "b")]
