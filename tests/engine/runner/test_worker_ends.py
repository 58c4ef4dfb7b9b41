"""What ends a worker: everything but a success."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import OutcomeKind
from support.processes import is_gone, wait_until_dead

from .worker_helpers import PID_TASK, PID_TASK_AND_WAITING_TASK, pid_of

UNCLEAN = """
    from redrive.engine.errors import NotReady, SkipTask

    @flow.task(isolation="worker")
    def raises():
        raise ValueError

    @flow.task(isolation="worker")
    def skips():
        raise SkipTask

    @flow.sensor(isolation="worker")
    def looks():
        return False

    @flow.task(isolation="worker")
    def leaves():
        os._exit(3)

    @flow.task(isolation="worker")
    def dies():
        os.kill(os.getpid(), 11)

    @flow.task(isolation="worker")
    def is_killed():
        os.kill(os.getpid(), 9)
"""
OUTCOMES = {
    "raises": OutcomeKind.ERROR,
    "skips": OutcomeKind.SKIPPED,
    "looks": OutcomeKind.DEFERRED,
    "leaves": OutcomeKind.ERROR,
    "dies": OutcomeKind.ERROR,
    "is_killed": OutcomeKind.LOST,
}


async def test_after_anything_but_a_success_the_next_attempt_gets_a_fresh_process(bench: Any) -> None:
    await bench.open(PID_TASK + UNCLEAN)
    for name, kind in OUTCOMES.items():
        before = await pid_of(bench)
        outcome, recorder = await bench.run(name)
        assert (name, outcome.kind, recorder.pid) == (name, kind, before)
        assert is_gone(before), name
        assert await pid_of(bench) != before


async def test_a_worker_that_is_killed_is_one_crashed_attempt_or_none(bench: Any) -> None:
    await bench.open(PID_TASK_AND_WAITING_TASK)
    before = await pid_of(bench)
    recorder = await bench.start("waits")
    await recorder.wait_for_output(b"ready")
    assert recorder.pid == before
    os.kill(before, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    idle = await pid_of(bench)
    os.kill(idle, signal.SIGKILL)
    assert wait_until_dead([idle]) == []
    assert await pid_of(bench) != idle


STUCK = """
    import ctypes, signal, subprocess, sys

    OPTIONS = {"isolation": "worker", "timeout": 60, "grace_seconds": 0.3}

    @flow.task(**OPTIONS)
    def busy_loop():
        print("stuck", flush=True)
        while True: pass

    @flow.task(**OPTIONS)
    def blocked_syscall():
        read, write = os.pipe()
        print("stuck", flush=True)
        os.read(read, 1)

    @flow.task(**OPTIONS)
    def ignores_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("stuck", flush=True)
        while True: time.sleep(60)

    @flow.task(**OPTIONS)
    def holds_the_gil():
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        print("stuck", flush=True)
        library.pthread_mutex_lock(mutex)

    @flow.task(**OPTIONS)
    def child_processes(path):
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        children = [subprocess.Popen([sys.executable, "-S", "-c", stubborn], stdout=-1, start_new_session=each)
                    for each in (False, True)]
        for child in children:
            child.stdout.read(1)
        open(path, "w").write(" ".join(str(child.pid) for child in children))
        print("stuck", flush=True)
        children[0].wait()

    @flow.task(isolation="worker")
    def meets(folder, ctx):
        open(f"{folder}/here-{ctx.attempt}", "w").close()
        while len([name for name in os.listdir(folder) if name.startswith("here-")]) < 5:
            time.sleep(0.01)
        return os.getpid()
"""
WAYS = ["busy_loop", "blocked_syscall", "ignores_sigterm", "holds_the_gil", "child_processes"]


@pytest.mark.long
async def test_every_stuck_body_is_killed_in_a_warm_worker_too(bench: Any, tmp_path: Path) -> None:
    """All at once, in five workers that have run an attempt before."""
    await bench.open(STUCK)
    params = {"folder": str(tmp_path), "path": str(tmp_path / "children")}
    warm = await asyncio.gather(*(bench.run("meets", attempt=number, params=params) for number in range(5)))
    pids = {recorder.pid for _, recorder in warm}
    assert len(pids) == 5
    recorders = {way: await bench.start(way, params=params) for way in WAYS}
    for recorder in recorders.values():
        await recorder.wait_for_output(b"stuck")
    for recorder in recorders.values():
        assert recorder.attempt.extend(-59)  # the deadline is a second after the start, or now
    runs = {way: (await recorder.outcome(), recorder) for way, recorder in recorders.items()}
    for way, (outcome, recorder) in runs.items():
        assert (way, outcome.kind) == (way, OutcomeKind.TIMED_OUT)
        assert recorder.kinds[:3] == ["deadline", "stack", "sigterm"], way
        assert is_gone(recorder.pid), way
    assert {recorder.pid for _, recorder in runs.values()} == pids
    for way in ("ignores_sigterm", "holds_the_gil"):
        assert "sigkill" in runs[way][1].kinds
    assert wait_until_dead(map(int, (tmp_path / "children").read_text().split()), seconds=0) == []
    fresh, recorder = await bench.run("meets", attempt=6, params=params)
    assert fresh.kind is OutcomeKind.SUCCESS
    assert recorder.pid not in pids


async def test_a_cancelled_attempt_runs_its_finally_blocks_and_ends_its_worker(bench: Any) -> None:
    await bench.open(
        PID_TASK
        + """
    @flow.task(isolation="worker", grace_seconds=20)
    def works():
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            print("cleaned")
    """
    )
    before = await pid_of(bench)
    recorder = await bench.start("works")
    await recorder.wait_for_output(b"ready")
    assert recorder.attempt.cancel("enough")
    assert (await recorder.outcome()).kind is OutcomeKind.CANCELLED
    assert recorder.text == b"ready\ncleaned\n"
    assert is_gone(before)


async def test_a_worker_that_was_asked_for_its_stack_is_not_reused(bench: Any) -> None:
    """The signal that asks may come late: it must not reach the next attempt."""
    await bench.open(
        PID_TASK
        + """
    @flow.task(isolation="worker")
    def waits(stop):
        print("ready", flush=True)
        while not os.path.exists(stop): time.sleep(0.01)
    """
    )
    stop = bench.folder / "stop"
    recorder = await bench.start("waits", params={"stop": str(stop)})
    await recorder.wait_for_output(b"ready")
    await recorder.stack(lambda dump: "in waits" in dump)
    stop.touch()
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS
    assert await pid_of(bench) != recorder.pid
