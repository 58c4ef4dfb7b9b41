"""A process survives being asked for its stacks, whatever it does, and answers if it can."""

from __future__ import annotations

import os
from typing import Any

import pytest
from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.runner import process
from support.marks import parametrize_mostly_long

from tests.support.processes import inspect_at_leisure

pytestmark = pytest.mark.spawns  # stacks are read, which in a fork begin with the test

ASKED = 100  # times; a dump by faulthandler ends a busy process after 4 to 50 of them, by the version of Python

BUSY = """
    import asyncio, threading

    def deep(n):
        return n and deep(n - 1) + sum(x for x in range(3))

    def churn(stop):
        while not os.path.exists(stop):
            thread = threading.Thread(target=deep, args=(20,))
            thread.start()
            thread.join()
            exec(compile("def f(a): return [a * i for i in range(9)]\\nf(3)", "made", "exec"), {})

    def works(stop):
        others = [threading.Thread(target=churn, args=(stop,)) for _ in range(2)]
        for one in others: one.start()
        print("ready")
        churn(stop)
        for one in others: one.join()

    async def waits(stop):
        print("ready")
        while not os.path.exists(stop):
            await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(20)))

    for isolation in ("process", "worker"):
        flow.task(name=f"works in a {isolation}", isolation=isolation)(works)
        flow.task(name=f"waits in a {isolation}", isolation=isolation)(waits)
"""


@parametrize_mostly_long(
    "task", ["works in a process", "waits in a worker", "works in a worker", "waits in a process"], quick=2
)
async def test_a_busy_process_survives_being_asked(bench: Any, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect_at_leisure(monkeypatch)
    await bench.open(BUSY, declared={"stop": ""})
    stop = bench.folder / "stop"
    recorder = await bench.start(task, params={"stop": str(stop)})
    await recorder.wait_for_output(b"ready")
    for _ in range(ASKED):
        os.kill(recorder.pid, process.STACK_SIGNAL)
        os.sched_yield()
    assert f" in {task.split()[0]}" in await recorder.stack(lambda dump: f" in {task.split()[0]}" in dump)
    stop.touch()
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS


IN_C = """
    import ctypes, hashlib, threading

    @flow.task(timeout=1, grace_seconds=0.1)
    def waits_for_a_lock():
        lock = ctypes.create_string_buffer(64)  # a mutex, which no signal interrupts
        ctypes.CDLL(None).pthread_mutex_lock(lock)
        ctypes.CDLL(None).pthread_mutex_lock(lock)

    @flow.task(timeout=1, grace_seconds=0.1)
    def adds():
        sum(range(10**15))

    @flow.task(timeout=1, grace_seconds=0.1, isolation="thread")
    def adds_in_a_thread():
        sum(range(10**15))
"""


@parametrize_mostly_long("task", ["waits_for_a_lock", "adds", "adds_in_a_thread"], quick=1)
async def test_c_code_that_answers_no_signal_is_found_at_the_end(
    bench: Any, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect_at_leisure(monkeypatch)
    await bench.open(IN_C)
    recorder = await bench.start(task)
    outcome = await recorder.outcome()
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert f"in {task}" in recorder.payload_of("stack").where


async def test_a_crash_by_our_dump_is_a_timeout(bench: Any) -> None:
    """What reads the stack of C code is sent at the deadline: whatever becomes of the process, its time was over."""
    await bench.open("""
        import ctypes, faulthandler, resource, signal

        @flow.task(timeout=1)
        def crashes_when_asked():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.unregister(signal.SIGRTMIN + 4)
            libc = ctypes.CDLL(None)
            libc.signal(signal.SIGRTMIN + 4, ctypes.cast(libc.abort, ctypes.c_void_p))
            lock = ctypes.create_string_buffer(64)
            libc.pthread_mutex_lock(lock)
            libc.pthread_mutex_lock(lock)
    """)
    outcome, _ = await bench.run_until(
        lambda outcome, recorder: outcome.attempt_columns["signal"] == 6, "crashes_when_asked"
    )
    assert outcome.kind is OutcomeKind.TIMED_OUT
