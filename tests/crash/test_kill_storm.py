"""Any processes of a run killed or stopped in any combination, also during recovery: whole, once, and nobody left.

Which processes, with which signal and when is drawn from a number: executor, zygote, reaper, attempts of every kind
and their children, and a follower; once to three times in a run, then the run is resumed to its end.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from redrive.engine.statefile import lock_file
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long, scaled
from support.processes import read_stalled_seconds, wait_until_dead
from support.waiting import wait_until

from .test_kill_executor import bearers, projection_is_table

SURVIVORS_SECONDS = 0.3  # 0.1 where nothing else runs
STOPPED_SECONDS = 7.0  # longer than the five seconds after which a lock file without a heartbeat is old
LINES_MAX = 60  # after so many events of one executor at most, something dies
FLOW = """
import os, pathlib, subprocess, time
from redrive.engine import Flow, RetryPolicy

flow = Flow("storm", max_parallel=6)
options = dict(timeout=60, grace_seconds=0.2, max_losses=99, retry=RetryPolicy(max_attempts=9, base=0.02, cap=0.1))
here = pathlib.Path(__file__).parent

def paid(ctx):
    with open(here / "paid", "a") as file:
        file.write(ctx.idempotency_key + "\\\\n")
    time.sleep(0.05)

def leaves(ctx):
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    time.sleep(0.05)

last = []
for level in range(5):
    now = []
    for isolation in ("process", "worker", "thread"):
        name = f"{isolation}{level}"
        flow.task(lambda: time.sleep(0.05), name=name, after=last, isolation=isolation, **options)
        now.append(name)
    flow.task(leaves, name=f"leaves{level}", after=last, **options)
    flow.task(paid, name=f"paid{level}", kind="effect", timeout=60, grace_seconds=0.2)
    flow.command(f"shell{level}", "(setsid sleep 301 &) ; sleep 0.05", after=last, **options)
    last = [*now, f"leaves{level}", f"shell{level}"]
""".replace("\\\\", "\\")


class Storm:
    """One run, the executors that it gets one after another, and what happens to them."""

    def __init__(self, folder: Path, number: int) -> None:
        self.dice = random.Random(number)
        self.state = folder / "state.db"
        self.flow = folder / "flow.py"
        self.flow.write_text(FLOW)
        self.done: set[str] = set()

    def start(self) -> subprocess.Popen[str]:
        if self.state.exists() and lock_file.last_holder(str(self.state)) is not None and self.has_run():
            return start_redrive("resume", self.state, "--plain")
        return start_redrive("run", self.flow, "--state", self.state, "--run-id", "r", "--plain")

    def has_run(self) -> bool:
        with closing(sqlite3.connect(self.state)) as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]
            return bool(tables and connection.execute("SELECT count(*) FROM run").fetchone()[0])

    def executor_ids(self) -> list[str]:
        if not self.state.exists() or not self.has_run():
            return []
        with closing(sqlite3.connect(self.state)) as connection:
            return [identity for (identity,) in connection.execute("SELECT executor_id FROM executor")]

    def strike(self, is_stop: bool) -> None:
        """Start an executor, and kill or stop some of its processes at some moment."""
        process = self.start()
        executor = psutil.Process(process.pid)
        follower = start_redrive("events", self.state, "--follow") if self.dice.random() < 0.3 else None
        assert process.stdout is not None
        for _ in range(self.dice.randint(1, LINES_MAX)):
            if not process.stdout.readline():
                break
        try:
            if is_stop:
                self.stop(executor)
            else:
                self.kill(executor, follower)
            process.communicate(timeout=120)
        finally:
            if follower is not None:
                follower.kill()
                follower.communicate(timeout=60)
            with suppress(ProcessLookupError):
                process.kill()
        assert process.returncode in (0, 3, -signal.SIGKILL, -signal.SIGTERM, 130), process.returncode
        self.done |= self.successes()

    def stop(self, executor: psutil.Process) -> None:
        """Freeze the executor for longer than its lease: nobody takes the run from it, and it goes on."""
        if executor.status() == psutil.STATUS_ZOMBIE:
            return
        executor.suspend()
        time.sleep(STOPPED_SECONDS)
        taken = run_redrive("resume", self.state, "--plain")
        assert taken.returncode == 75, taken
        executor.resume() if self.dice.random() < 0.7 else executor.kill()

    def kill(self, executor: psutil.Process, follower: subprocess.Popen[str] | None) -> None:
        with suppress(psutil.NoSuchProcess):
            children = sorted(executor.children(), key=lambda child: child.pid)
            others = [each for each in executor.children(recursive=True) if each not in children[:1]]
            victims = [each for each in others if self.dice.random() < 0.5]
            is_executor_killed = self.dice.random() < 0.7
            is_reaper_killed = self.dice.random() < 0.2
            victims += [executor] * is_executor_killed + children[:1] * is_reaper_killed
            self.dice.shuffle(victims)
            kind = self.dice.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            for victim in victims:
                with suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL if victim is not executor else kind)
            if follower is not None and self.dice.random() < 0.5:
                follower.kill()
            if is_executor_killed and kind == signal.SIGKILL and not is_reaper_killed:
                executor.wait(60)
                self.check_survivors([process.pid for process in others], {child.pid for child in children[:1]})

    def check_survivors(self, pids: list[int], reaper: set[int]) -> None:
        """Check how long anybody outlives the executor, while a processor was free.

        Its reaper does: it looks for a fifth of a second for processes that were just being forked.
        """
        started, stalled_before, seconds = time.monotonic(), read_stalled_seconds(), 0.0
        while pids:
            assert wait_until_dead(pids) == []
            seconds = time.monotonic() - started
            stalled = read_stalled_seconds() - stalled_before
            pids = [pid for pid in bearers(self.executor_ids()) if pid not in reaper]
        if seconds:
            print(f"the last process ended {seconds * 1000:.0f} ms after the executor, {stalled * 1000:.0f} ms stalled")
            assert seconds - stalled < SURVIVORS_SECONDS

    def successes(self) -> set[str]:
        if not self.state.exists() or not self.has_run():
            return set()
        with closing(sqlite3.connect(self.state)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM task WHERE state = 'SUCCESS'")}

    def check(self) -> None:
        """Check the file at the end, what happened outside of it, and who is alive."""
        with closing(sqlite3.connect(self.state)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            moves = connection.execute("SELECT seq, task, new FROM event WHERE kind = 'task' ORDER BY seq").fetchall()
            ended: set[str] = set()
            for _, task, new in moves:
                assert not (new == "RUNNING" and task in ended), f"{task} ran again"
                ended |= {task} if new == "SUCCESS" else set()
            states = dict(connection.execute("SELECT name, state FROM task").fetchall())
            left = {name: state for name, state in states.items() if state != "SUCCESS"}
            assert all(name.startswith("paid") and state == "DEAD_LETTER" for name, state in left.items()), left
            assert self.done <= ended
            projection_is_table(connection)
        paid = self.flow.with_name("paid")
        happened = Counter(paid.read_text().split()) if paid.exists() else Counter[str]()
        assert set(happened.values()) <= {1}, happened
        wait_until(lambda: not bearers(self.executor_ids()))


@pytest.mark.spawns
@pytest.mark.timeout(900)  # up to three executors that die, and one that ends, each with a limit of its own
@parametrize_mostly_long("number", range(scaled(20)), daily=4)
def test_a_run_outlives_any_deaths(tmp_path: Path, number: int) -> None:
    storm = Storm(tmp_path, number)
    for strike in range(storm.dice.randint(1, 3)):
        storm.strike(is_stop=number % 10 == 1 and strike == 0)
    last = storm.start()
    output, _ = last.communicate(timeout=240)
    assert last.returncode in (0, 3), output
    storm.check()
