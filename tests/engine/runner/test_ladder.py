"""Ending what does not end: deadline, stack, SIGTERM, grace, SIGKILL, sweep; each way to hang (SPEC 4.11)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import FailureClass, OutcomeKind
from support.marks import parametrize_mostly_long

pytestmark = pytest.mark.spawns  # stacks are read, which in a fork begin with the test

TIMEOUT = 0.4
GRACE = 0.4
SLACK = 0.5
TRIES = 40  # where the machine may have stood still in the middle of one

HANGS = """
    import ctypes, re, signal, socket, threading

    OPTIONS = {"timeout": 0.4, "grace_seconds": 0.4}

    @flow.task(**OPTIONS)
    def ignores_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: pass  # ignores_sigterm

    @flow.task(**OPTIONS)
    def swallows_everything():
        while True:
            try:
                time.sleep(60)  # swallows_everything
            except BaseException:
                pass

    @flow.task(**OPTIONS)
    def regex():
        re.match("(a+)+$", "a" * 60 + "!")  # regex

    @flow.task(**OPTIONS)
    def half_closed_socket():
        left, right = socket.socketpair()
        left.recv(1)  # half_closed_socket

    @flow.task(**OPTIONS)
    def slow_read():
        read, write = os.pipe()
        os.read(read, 1)  # slow_read

    @flow.task(**OPTIONS)
    def big_integer():
        n = 7
        n ** n ** 11  # big_integer

    @flow.task(**OPTIONS)
    def deadlock():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # deadlock

    @flow.task(**OPTIONS)
    def holds_the_gil():
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)  # holds_the_gil

    @flow.task(**OPTIONS)
    def sleeps():
        time.sleep(600)  # sleeps
"""
#: Each way to hang, and how the autopsy calls it.
WAYS = {
    "ignores_sigterm": "spinning at {place}, ",
    "swallows_everything": "asleep at {place}, ",
    "regex": "spinning in re.match at {place}, ",
    "half_closed_socket": "blocked in recv from a unix socket at {place}, 0 % CPU",
    "slow_read": "blocked on a pipe of which it holds both ends itself at {place}, 0 % CPU",
    "big_integer": "spinning at {place}, ",
    "deadlock": "waits for a lock or a thread of its own at {place}, 0 % CPU",
    "holds_the_gil": "waits for a lock or a thread of its own at {place}, 0 % CPU",
    "sleeps": "asleep at {place}, 0 % CPU",
}
NEEDS_SIGKILL = {"ignores_sigterm", "swallows_everything", "holds_the_gil"}


def hung(outcome: Any, recorder: Any) -> bool:
    """Its deadline found it in a line of the flow, not yet on its way there."""
    where = recorder.payload_of("stack").where if "stack" in recorder.kinds else None
    return (where or "").startswith("flow_under_test.py:")


@parametrize_mostly_long("way", WAYS, quick=2)
async def test_every_way_to_hang_is_ended_in_time_and_shows_its_line(bench: Any, way: str) -> None:
    """000.16, 000.17."""
    await bench.open(HANGS)
    started_at = time.monotonic()

    place = f"flow_under_test.py:{bench.line_of(way)} in {way}"

    def is_reported(outcome: Any) -> bool:
        return outcome.failure.message.startswith(f"task exceeded 0.4s: {WAYS[way].format(place=place)}")

    def is_in_time(outcome: Any, recorder: Any) -> bool:
        nonlocal started_at
        seconds, started_at = time.monotonic() - started_at, time.monotonic()
        assert seconds >= TIMEOUT
        as_asked = ("sigkill" in recorder.kinds) == (way in NEEDS_SIGKILL)
        return seconds < TIMEOUT + GRACE + SLACK and hung(outcome, recorder) and as_asked and is_reported(outcome)

    outcome, recorder = await bench.run_until(is_in_time, way)
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert outcome.failure.error_type == "TimeoutError"
    assert outcome.failure.message.endswith(recorder.payload_of("stack").hang)
    assert outcome.failure.failure_class is FailureClass.TIMEOUT
    assert recorder.kinds[:3] == ["deadline", "stack", "sigterm"]
    assert recorder.payload_of("stack").where == place
    assert f", line {bench.line_of(way)} in {way}" in outcome.attempt_columns["stack"]
    assert "engine/runner" not in outcome.attempt_columns["stack"]


async def test_two_hangs_at_one_place_have_one_fingerprint(bench: Any) -> None:
    await bench.open(HANGS)
    first, again, other = [
        (await bench.run_until(hung, way))[0].failure.fingerprint for way in ("sleeps", "sleeps", "deadlock")
    ]
    assert first.strict == again.strict != other.strict


async def test_finally_blocks_run_before_the_end(bench: Any) -> None:
    """SIGTERM does not do this by itself: document 000 says that it does."""
    await bench.open("""
        @flow.task(timeout=0.3, grace_seconds=10)
        def work():
            try:
                time.sleep(600)
            finally:
                print("lock file removed")
    """)
    outcome, recorder = await bench.run_until(hung, "work")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.text == b"lock file removed\n"
    assert recorder.kinds == ["deadline", "stack", "sigterm"]


async def test_a_coroutine_is_cancelled_so_that_its_finally_blocks_run(bench: Any) -> None:
    await bench.open("""
        import asyncio

        @flow.task(timeout=0.3, grace_seconds=10)
        async def awaits():
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0)
                print("closed")

        @flow.task(timeout=0.3, grace_seconds=10)
        async def blocks():
            try:
                time.sleep(600)
            finally:
                print("closed")
    """)
    for way in ("awaits", "blocks"):
        outcome, recorder = await bench.run_until(lambda _, recorder: bool(recorder.text), way)
        assert outcome.kind is OutcomeKind.TIMED_OUT
        assert recorder.text == b"closed\n"
        assert "sigkill" not in recorder.kinds


async def test_a_result_that_comes_after_the_sigterm_is_too_late(bench: Any) -> None:
    await bench.open("""
        @flow.task(timeout=0.3, grace_seconds=10)
        def late():
            try:
                time.sleep(600)
            finally:
                return "done after all"
    """)
    outcome, _ = await bench.run_until(hung, "late")
    assert (outcome.kind, outcome.result) == (OutcomeKind.TIMED_OUT, None)


async def test_a_result_in_the_instant_of_the_deadline_wins(bench: Any, survivors: Any) -> None:
    """The executor was away while the task ended and its deadline passed: the result was there first."""
    await bench.open("""
        @flow.task(timeout=0.5)
        def quick():
            return 1
    """)
    for _ in range(TRIES):
        recorder = await bench.start("quick")
        survivors([recorder.pid])
        time.sleep(0.6)  # noqa: ASYNC251 - the loop stands still, and everything is due at once when it turns again
        outcome = await recorder.outcome()
        if not recorder.kinds:  # else its start was announced after its deadline
            break
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, "1")
    assert recorder.kinds == []


async def test_a_result_while_it_is_asked_for_its_stack_wins(bench: Any) -> None:
    """That is before its deadline: nothing else is told of it."""
    await bench.open("""
        import signal

        @flow.task(timeout=0.5)
        def ends_while_asked():
            signal.signal(signal.SIGRTMIN + 3, lambda number, frame: sys.exit())  # ends instead of a dump
            time.sleep(600)
    """)

    def is_whole(outcome: Any, recorder: Any) -> bool:
        return outcome.kind is OutcomeKind.SUCCESS and not recorder.kinds

    await bench.run_until(is_whole, "ends_while_asked")


async def test_a_task_that_became_another_program_is_ended_at_its_deadline_and_not_by_being_asked(bench: Any) -> None:
    """The signal that asks Python for its stacks would kill what has no handler for it."""
    await bench.open("""
        @flow.task(timeout=0.5, grace_seconds=20)
        def becomes():
            os.execvp("sleep", ["sleep", "600"])
    """)

    def has_become(outcome: Any, recorder: Any) -> bool:
        return "asleep" in outcome.failure.message

    outcome, recorder = await bench.run_until(has_become, "becomes")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.kinds == ["deadline", "stack", "sigterm"]


ESCAPES = """
    import subprocess

    def escape(path):
        "A daemon as the books have it: two forks, a session of its own, no descriptor of ours."
        if (first := os.fork()):
            os.waitpid(first, 0)  # else it may still be ending when it is swept
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        os.rename(path, path + ".ready")
        os.closerange(0, 1024)
        time.sleep(600)
        os._exit(0)

    def wait_for(path):
        while not os.path.exists(path + ".ready"):
            time.sleep(0.01)

    @flow.task(timeout=0.6, grace_seconds=0.2)
    def hangs(path):
        escape(path)
        wait_for(path)
        time.sleep(600)

    @flow.task(timeout=30)
    def succeeds(path):
        escape(path)
        wait_for(path)
        return 1

    @flow.task
    def crashes(path):
        escape(path)
        wait_for(path)
        os.kill(os.getpid(), 9)

    @flow.task
    def leaves_a_child(path):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open(path + ".ready", "w").write(str(child.pid))
"""


@parametrize_mostly_long("way", ["hangs", "succeeds", "crashes", "leaves_a_child"], quick=2)
async def test_nothing_that_an_attempt_left_behind_outlives_it(
    bench: Any, way: str, tmp_path: Path, survivors: Any
) -> None:
    await bench.open(ESCAPES)
    for number in range(TRIES):
        path = str(tmp_path / f"escaped-{number}")
        outcome, recorder = await bench.run(way, params={"path": path})
        if os.path.exists(path + ".ready"):  # else its deadline found it before it had escaped
            break
    pid = int(Path(path + ".ready").read_text())
    assert survivors([pid], seconds=0) == []  # when the end is told it is dead already
    if way == "hangs":
        assert outcome.kind is OutcomeKind.TIMED_OUT
    else:
        assert recorder.payload_of("swept") == ([pid], [])


async def test_a_neighbour_is_not_touched_by_the_end_of_another(bench: Any, tmp_path: Path) -> None:
    await bench.open(
        ESCAPES
        + """
    @flow.task
    def lives(path):
        child = subprocess.Popen(["sleep", "600"])
        print("started", flush=True)
        while not os.path.exists(path + ".stop"):
            time.sleep(0.01)
        alive = child.poll() is None
        child.kill()
        return alive
    """
    )
    neighbour = await bench.start("lives", params={"path": str(tmp_path / "n")})
    await neighbour.wait_for_output(b"started")
    await bench.run("succeeds", params={"path": str(tmp_path / "e")})
    (tmp_path / "n.stop").touch()
    assert (await neighbour.outcome()).result == "true"


# --- By an operator -----------------------------------------------------------------------------------------------


async def test_cancel_is_the_same_ladder_without_a_deadline(bench: Any) -> None:
    await bench.open("""
        @flow.task(grace_seconds=10)
        def work():
            try:
                print("ready")
                time.sleep(600)
            finally:
                print("cleaned")
    """)
    recorder = await bench.start("work")
    await recorder.wait_for_output(b"ready")
    assert recorder.attempt.cancel("cancelled by ana")
    assert not recorder.attempt.cancel("again")
    outcome = await recorder.outcome()
    assert outcome.kind is OutcomeKind.CANCELLED
    assert recorder.kinds == ["stack", "sigterm"]
    assert recorder.payload_of("sigterm").reason == "cancelled by ana"
    assert recorder.text == b"ready\ncleaned\n"
    assert not recorder.attempt.cancel("too late")


async def test_what_may_not_be_signalled_is_waited_for_and_still_too_late(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that has become another user's, as ``sudo`` does."""
    await bench.open("""
        flow.command("exchange", "read go < gate", timeout=0.1, grace_seconds=0.1)
    """)
    os.mkfifo(bench.folder / "gate")

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    recorder = await bench.start("exchange")
    await recorder.climbed("sigkill")
    assert recorder.kinds == ["deadline", "stack", "sigterm", "sigkill"]
    assert not recorder.is_over
    (bench.folder / "gate").write_text("go\n")
    assert (await recorder.outcome()).kind is OutcomeKind.TIMED_OUT


async def test_a_deadline_can_be_moved_until_it_has_passed(bench: Any) -> None:
    await bench.open("""
        @flow.task(timeout=0.5)
        def work():
            time.sleep(1)
            return 1

        @flow.task
        def unbounded():
            return 1
    """)
    recorder = await bench.start("work")
    while not recorder.attempt.extend(60):  # it has passed already
        recorder = await bench.start("work")
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS
    assert not recorder.attempt.extend(60)
    assert not (await bench.start("unbounded")).attempt.extend(60)


async def test_the_message_of_a_timeout_names_the_deadline_as_it_was(bench: Any) -> None:
    await bench.open("""
        @flow.task(timeout=0.2, grace_seconds=0.2)
        def work():
            time.sleep(600)
    """)
    recorder = await bench.start("work")
    while not recorder.attempt.extend(0.3):  # it has passed already
        recorder = await bench.start("work")
    assert (await recorder.outcome()).failure.message.startswith("task exceeded 0.5s")


async def test_a_running_task_can_be_asked_where_it_stands(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def work():
            while True: print("ready"); time.sleep(0.001)  # here
    """)
    recorder = await bench.start("work")
    await recorder.wait_for_output(b"ready")
    for _ in range(2):
        dump = await recorder.stack(lambda dump: dump.count("Current thread") == 1)
        assert f"line {bench.line_of('here')} in work" in dump
    recorder.attempt.cancel("enough")
    await recorder.outcome()


async def test_a_task_that_closed_its_stack_pipe_is_ended_all_the_same(bench: Any) -> None:
    await bench.open("""
        @flow.task(timeout=0.3, grace_seconds=0.3)
        def work():
            os.closerange(3, 1024)
            print("closed", flush=True)
            time.sleep(600)
    """)
    outcome, recorder = await bench.run_until(lambda _, recorder: b"closed" in recorder.text, "work")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.kinds[:3] == ["deadline", "stack", "sigterm"]
    assert ", line " not in outcome.attempt_columns.get("stack", "")


async def test_a_task_that_was_killed_says_how_far_it_came_by_its_own_progress(bench: Any) -> None:
    """Nearly done needs another timeout; standing still since long before needs another look."""
    await bench.open("""
        @flow.task(timeout=0.6, grace_seconds=5)
        def slow(ctx):
            for row in range(1000):
                ctx.progress(row, 1000)
                time.sleep(0.02)

        @flow.task(timeout=3, grace_seconds=5)
        def stuck(ctx):
            for row in range(3):
                ctx.progress(row, 1000)
            time.sleep(600)
    """)
    words = r"[1-9] % done by its own progress \(\d+ of 1,000\), at that pace it needed .*"
    outcome, _ = await bench.run_until(lambda outcome, _: re.fullmatch(words, outcome.failure.diagnostic), "slow")
    assert outcome.progress.needed_seconds > 15
    words = r"no progress since [12]\.\ds, at [012] of 1,000"
    outcome, _ = await bench.run_until(lambda outcome, _: re.fullmatch(words, outcome.failure.diagnostic), "stuck")
    assert outcome.progress.needed_seconds is None


async def test_many_deadlines_at_once_are_all_kept(bench: Any) -> None:
    await bench.open(HANGS)
    runs = await asyncio.gather(*(bench.run("sleeps") for _ in range(20)))
    assert {outcome.kind for outcome, _ in runs} == {OutcomeKind.TIMED_OUT}
    assert not any(os.path.exists(f"/proc/{recorder.pid}") for _, recorder in runs)
