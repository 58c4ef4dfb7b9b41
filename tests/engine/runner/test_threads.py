"""Tasks in threads: no fork, and no force. What ignores its token is shown as a leaked slot."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from redrive.engine.core.outcome import OutcomeKind


async def test_threads_share_one_process_and_keep_their_output_apart(bench: Any) -> None:
    await bench.open("""
        import threading
        together = threading.Barrier(3)

        @flow.task(isolation="thread")
        def task(ctx):
            together.wait(30)
            print("I am", ctx.attempt)
            ctx.progress(ctx.attempt, 9)
            return os.getpid()
    """)
    runs = await asyncio.gather(*(bench.run("task", attempt=number) for number in (1, 2, 3)))
    assert {outcome.kind for outcome, _ in runs} == {OutcomeKind.SUCCESS}
    assert len({outcome.result for outcome, _ in runs}) == 1
    assert {recorder.pid for _, recorder in runs} == {int(runs[0][0].result)}
    assert [recorder.text for _, recorder in runs] == [b"I am 1\n", b"I am 2\n", b"I am 3\n"]
    assert [recorder.progresses for _, recorder in runs] == [[(number, 9)] for number in (1, 2, 3)]


async def test_failures_and_exits_in_threads_are_outcomes(bench: Any) -> None:
    await bench.open("""
        from redrive.engine.errors import SkipTask

        @flow.task(isolation="thread")
        def divide():
            1 / 0

        @flow.task(isolation="thread")
        def leave():
            sys.exit(3)

        @flow.task(isolation="thread")
        def skip():
            raise SkipTask

        @flow.task(isolation="thread")
        async def wait():
            import asyncio
            await asyncio.sleep(0)
            return 5
    """)
    assert (await bench.run("divide"))[0].failure.error_type == "ZeroDivisionError"
    assert (await bench.run("leave"))[0].failure.error_type == "SystemExit"
    assert (await bench.run("skip"))[0].kind is OutcomeKind.SKIPPED
    assert (await bench.run("wait"))[0].result == "5"


async def test_a_task_that_looks_at_its_token_ends_in_time(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="thread", timeout=0.4, grace_seconds=20)
        def polite(ctx):
            try:
                while True:
                    ctx.check()  # here
                    time.sleep(0.01)
            finally:
                print("cleaned", ctx.cancelled)
    """)
    outcome, recorder = await bench.run("polite")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert outcome.failure.message == "task exceeded 0.4s"
    assert recorder.text == b"cleaned True\n"
    assert recorder.kinds == ["deadline", "stack"]
    assert "in polite" in recorder.data_of("stack")["where"]
    assert bench.runner.leaked_slots == 0


async def test_a_coroutine_in_a_thread_is_cancelled(bench: Any) -> None:
    await bench.open("""
        import asyncio

        @flow.task(isolation="thread", grace_seconds=20)
        async def awaits():
            try:
                print("ready")
                await asyncio.sleep(600)
            finally:
                print("closed")
    """)
    recorder = await bench.start("awaits")
    await recorder.heard(b"ready")
    assert recorder.attempt.cancel("enough")
    assert (await recorder.outcome()).kind is OutcomeKind.CANCELLED
    assert recorder.text == b"ready\nclosed\n"


async def test_a_task_that_ignores_its_token_is_a_leaked_slot_until_it_ends(bench: Any, tmp_path: Path) -> None:
    freed = asyncio.Event()
    bench.runner.on_freed = freed.set
    await bench.open("""
        @flow.task(isolation="thread", timeout=0.3, grace_seconds=0.3)
        def stubborn(stop):
            while not os.path.exists(stop):  # here
                time.sleep(0.01)
            print("nobody listens")

        @flow.task(isolation="thread")
        def other():
            return 1
    """)
    outcome, recorder = await bench.run("stubborn", params={"stop": str(tmp_path / "stop")})
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.kinds == ["deadline", "stack", "leaked"]
    assert "in stubborn" in outcome.usage["stack"]
    assert bench.runner.leaked_slots == 1
    assert (await bench.run("other"))[0].result == "1"
    assert not freed.is_set()
    (tmp_path / "stop").touch()
    await asyncio.wait_for(freed.wait(), 30)
    assert bench.runner.leaked_slots == 0


async def test_the_stack_of_a_thread_is_its_own(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="thread")
        def first(stop):
            print("ready")
            while not os.path.exists(stop): time.sleep(0.01)  # first

        @flow.task(isolation="thread")
        def second(stop):
            print("ready")
            while not os.path.exists(stop): time.sleep(0.01)  # second
    """)
    stop = bench.folder / "stop"
    recorders = {name: await bench.start(name, params={"stop": str(stop)}) for name in ("first", "second")}
    for name, recorder in recorders.items():
        await recorder.heard(b"ready")
        dump = await recorder.attempt.dump_stack()
        assert f"in {name}" in dump
        assert dump.count("Thread 0x") == 1
    stop.touch()
    for recorder in recorders.values():
        assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS


async def test_a_host_that_dies_loses_its_attempts_and_is_replaced(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="thread")
        def waits():
            print("ready")
            time.sleep(600)

        @flow.task(isolation="thread")
        def answers():
            return 1
    """)
    recorder = await bench.start("waits")
    await recorder.heard(b"ready")
    os.kill(recorder.pid, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    assert (await bench.run("answers"))[0].result == "1"


async def test_retries_are_told_by_the_thread_that_made_them(bench: Any) -> None:
    await bench.open("""
        from redrive.engine.retrying import retry

        @flow.task(isolation="thread")
        def task(ctx):
            calls = []

            @retry(retries=5, base=0)
            def flaky():
                calls.append(1)
                if len(calls) <= ctx.attempt:
                    raise TimeoutError("slow")

            flaky()
    """)
    runs = await asyncio.gather(*(bench.run("task", attempt=number) for number in (1, 3)))
    assert [len(recorder.retries) for _, recorder in runs] == [1, 3]
