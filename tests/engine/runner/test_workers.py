"""Warm workers: reused after a clean success, and replaced after anything else; as killable as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.domain.event_changes import ExecutorChange
from redrive.engine.domain.event_payloads import ExecutorChanged
from redrive.engine.errors import FlowError
from redrive.engine.runner.frame_socket import FrameSocket
from redrive.engine.runner.worker import pool, process_state
from redrive.engine.runner.zygote.client import Runner
from support.processes import is_gone, wait_until_dead

TELLS = """
    @flow.task(isolation="worker")
    def tells():
        return os.getpid()
"""


async def pid_of(bench: Any, task: str = "tells") -> int:
    """The process in which an attempt ran."""
    outcome, recorder = await bench.run(task)
    assert outcome.kind is OutcomeKind.SUCCESS
    assert json.loads(outcome.result) == recorder.pid
    return int(outcome.result)


def retired(bench: Any) -> list[str]:
    """Collect why workers are retired."""
    found: list[str] = []

    def on_change(payload: ExecutorChanged) -> None:
        assert payload.what == ExecutorChange.WORKER_RETIRED
        found.append(payload.how or "")

    bench.runner.on_executor_change = on_change
    return found


# --- Reuse ------------------------------------------------------------------------------------------------------------


async def test_a_worker_is_reused_and_each_attempt_keeps_what_is_its_own(bench: Any) -> None:
    """Output, variables, arguments, context, progress, checkpoint, quarantine and usage are those of the attempt."""
    reports = retired(bench)
    await bench.open(
        """
        seen = []

        @flow.task(isolation="worker")
        def first(ctx, day):
            os.write(1, b"C code, ")
            print("I am", ctx.task, ctx.attempt, end="")  # without the end of a line
            ctx.progress(ctx.attempt, 9)
            ctx.checkpoint(ctx.attempt)
            ctx.quarantine("row", {"a": ctx.attempt}, "bad")
            seen.append(ctx.attempt)
            names = sorted(name for name in os.environ if name.startswith("REDRIVE_PARAM_"))
            return [os.getpid(), seen, ctx.checkpointed, names, os.environ["REDRIVE_ATTEMPT"]]

        @flow.task(isolation="worker")
        async def second(ctx):
            import asyncio
            await asyncio.sleep(0)
            print("I am", ctx.task)
            return [os.getpid(), seen, os.environ["REDRIVE_TASK"]]
    """,
        declared={"day": None},
    )
    one, first_recorder = await bench.run("first", attempt=1, params={"day": "monday"})
    again, second_recorder = await bench.run("first", attempt=2, params={"day": 2, "other": 3}, checkpoint="7")
    other, other_recorder = await bench.run("second")
    assert json.loads(one.result) == [first_recorder.pid, [1], None, ["REDRIVE_PARAM_DAY"], "1"]
    both = ["REDRIVE_PARAM_DAY", "REDRIVE_PARAM_OTHER"]
    assert json.loads(again.result) == [first_recorder.pid, [1, 2], 7, both, "2"]
    assert json.loads(other.result) == [first_recorder.pid, [1, 2], "second"]
    assert [first_recorder.text, second_recorder.text, other_recorder.text] == [
        b"C code, I am first 1",
        b"C code, I am first 2",
        b"I am second\n",
    ]
    recorders = (first_recorder, second_recorder, other_recorder)
    assert [recorder.progresses for recorder in recorders] == [[(1, 9)], [(2, 9)], []]
    assert [len(first_recorder.rows), len(second_recorder.rows), len(other_recorder.rows)] == [1, 1, 0]
    assert first_recorder.pid == second_recorder.pid == other_recorder.pid
    assert first_recorder.start_ticks == other_recorder.start_ticks > 0
    assert again.attempt_columns["max_rss_kb"] > 1000
    assert again.attempt_columns["duration_us"] > 0
    assert reports == []


@pytest.mark.long
async def test_the_cost_of_an_attempt_is_not_that_of_the_attempts_before(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="worker")
        def busy():
            until = time.process_time() + 0.3
            while time.process_time() < until:
                sum(range(1000))
            block = bytearray(64 * 1024 * 1024)
            block[::4096] = b"x" * len(block[::4096])

        @flow.task(isolation="worker")
        def quick():
            pass

        @flow.task(isolation="worker")
        def fails():
            raise ValueError
    """)
    busy, first_recorder = await bench.run("busy")
    assert busy.attempt_columns["cpu_user_us"] + busy.attempt_columns["cpu_system_us"] >= 250_000
    assert busy.attempt_columns["max_rss_kb"] > 64 * 1024
    for name in ("quick", "fails"):
        outcome, recorder = await bench.run(name)
        assert recorder.pid == first_recorder.pid
        assert outcome.attempt_columns["cpu_user_us"] + outcome.attempt_columns["cpu_system_us"] < 150_000
        assert outcome.attempt_columns["max_rss_kb"] < busy.attempt_columns["max_rss_kb"] - 32 * 1024


async def test_a_silent_attempt_is_one_message_to_the_worker_and_one_back(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound on the cost that holds on a busy machine, too."""
    sent, received = 0, 0
    send, receive = FrameSocket._try_send, FrameSocket._receive

    def count_sent(link: FrameSocket, data: memoryview, fds: Sequence[int]) -> int:
        nonlocal sent
        sent += 1
        return send(link, data, fds)

    def count_received(link: FrameSocket) -> bool:
        nonlocal received
        received += 1
        return receive(link)

    monkeypatch.setattr(FrameSocket, "_try_send", count_sent)
    monkeypatch.setattr(FrameSocket, "_receive", count_received)
    await bench.open(TELLS)
    await pid_of(bench)
    sent = received = 0
    for _ in range(20):
        await pid_of(bench)
    assert (sent, received) == (20, 20)


async def test_limits_masks_and_deadlines_are_those_of_any_attempt(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="worker")
        def large():
            return "x" * 70_000

        @flow.task(isolation="worker")
        def prints(ctx):
            print("to http://user:password@host")
            ctx.heartbeat()
            return os.getpid()

        @flow.task(isolation="worker", timeout=60, grace_seconds=20)
        def waits(stop):
            print("ready", flush=True)
            while not os.path.exists(stop): time.sleep(0.01)
    """)
    large, _ = await bench.run("large")
    assert large.failure.message.startswith("task 'large' returned 70002 bytes of JSON")
    for _ in range(2):
        _, recorder = await bench.run("prints")
        assert (recorder.text, recorder.progresses) == (b"to http://user:***@host\n", [(0, None)])
    stop = bench.folder / "stop"
    waiting = await bench.start("waits", params={"stop": str(stop)})
    await waiting.wait_for_output(b"ready")
    assert waiting.attempt.extend(60)
    stop.touch()
    assert (await waiting.outcome()).kind is OutcomeKind.SUCCESS
    assert waiting.kinds == []


async def test_attempts_at_the_same_time_have_workers_of_their_own(bench: Any) -> None:
    await bench.open(
        TELLS
        + """
    @flow.task(isolation="worker")
    def meets(folder, ctx):
        open(f"{folder}/here-{ctx.attempt}", "w").close()
        while len([name for name in os.listdir(folder) if name.startswith("here-")]) < 3:
            time.sleep(0.01)
    """
    )
    params = {"folder": str(bench.folder)}
    runs = await asyncio.gather(*(bench.run("meets", attempt=number, params=params) for number in (1, 2, 3)))
    assert {outcome.kind for outcome, _ in runs} == {OutcomeKind.SUCCESS}
    pids = {recorder.pid for _, recorder in runs}
    assert len(pids) == 3
    assert await pid_of(bench) in pids


@pytest.mark.long
async def test_random_numbers_are_not_those_that_another_attempt_has_seeded(bench: Any) -> None:
    await bench.open("""
        import random

        @flow.task(isolation="worker")
        def seeds():
            random.seed(1)
            return os.getpid()

        @flow.task(isolation="worker")
        def draws():
            return [os.getpid(), random.random() == random.Random(1).random()]
    """)
    pid = await pid_of(bench, "seeds")
    assert json.loads((await bench.run("draws"))[0].result) == [pid, False]


@pytest.mark.long
async def test_a_flow_whose_import_leaves_threads_is_imported_once_by_a_worker(bench: Any) -> None:
    await bench.open("""
        import threading
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        imported_at = time.monotonic()

        @flow.task(isolation="worker", timeout=30)
        def tells():
            return [os.getpid(), imported_at]
    """)
    first, again = (await bench.run("tells"))[0], (await bench.run("tells"))[0]
    assert first.result == again.result


# --- What ends a worker -----------------------------------------------------------------------------------------------

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
    await bench.open(TELLS + UNCLEAN)
    for name, kind in OUTCOMES.items():
        before = await pid_of(bench)
        outcome, recorder = await bench.run(name)
        assert (name, outcome.kind, recorder.pid) == (name, kind, before)
        assert is_gone(before), name
        assert await pid_of(bench) != before


async def test_a_worker_that_is_killed_is_one_crashed_attempt_or_none(bench: Any) -> None:
    await bench.open(
        TELLS
        + """
    @flow.task(isolation="worker")
    def waits():
        print("ready", flush=True)
        time.sleep(600)
    """
    )
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

    OPTIONS = {"isolation": "worker", "timeout": 1, "grace_seconds": 0.3}

    @flow.task(**OPTIONS)
    def busy_loop():
        while True: pass

    @flow.task(**OPTIONS)
    def blocked_syscall():
        read, write = os.pipe()
        os.read(read, 1)

    @flow.task(**OPTIONS)
    def ignores_sigterm():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(60)

    @flow.task(**OPTIONS)
    def holds_the_gil():
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)

    @flow.task(**OPTIONS)
    def child_processes(path):
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        children = [subprocess.Popen([sys.executable, "-S", "-c", stubborn], stdout=-1, start_new_session=each)
                    for each in (False, True)]
        for child in children:
            child.stdout.read(1)
        open(path, "w").write(" ".join(str(child.pid) for child in children))
        children[0].wait()

    @flow.task(isolation="worker")
    def meets(folder, ctx):
        open(f"{folder}/here-{ctx.attempt}", "w").close()
        while len([name for name in os.listdir(folder) if name.startswith("here-")]) < 5:
            time.sleep(0.01)
        return os.getpid()
"""
WAYS = ["busy_loop", "blocked_syscall", "ignores_sigterm", "holds_the_gil", "child_processes"]


async def test_every_stuck_body_is_killed_in_a_warm_worker_too(bench: Any, tmp_path: Path) -> None:
    """All at once, in five workers that have run an attempt before."""
    await bench.open(STUCK)
    params = {"folder": str(tmp_path), "path": str(tmp_path / "children")}
    warm = await asyncio.gather(*(bench.run("meets", attempt=number, params=params) for number in range(5)))
    pids = {recorder.pid for _, recorder in warm}
    assert len(pids) == 5
    runs = dict(zip(WAYS, await asyncio.gather(*(bench.run(way, params=params) for way in WAYS)), strict=True))
    for way, (outcome, recorder) in runs.items():
        assert (way, outcome.kind) == (way, OutcomeKind.TIMED_OUT)
        assert recorder.kinds[:3] == ["deadline", "stack", "sigterm"], way
        assert is_gone(recorder.pid), way
    assert {recorder.pid for _, recorder in runs.values()} == pids
    for way in ("ignores_sigterm", "holds_the_gil"):
        assert "sigkill" in runs[way][1].kinds
    if (tmp_path / "children").exists():  # else its deadline came before
        assert wait_until_dead(map(int, (tmp_path / "children").read_text().split()), seconds=0) == []
    fresh, recorder = await bench.run("meets", attempt=6, params=params)
    assert fresh.kind is OutcomeKind.SUCCESS
    assert recorder.pid not in pids


async def test_a_cancelled_attempt_runs_its_finally_blocks_and_ends_its_worker(bench: Any) -> None:
    await bench.open(
        TELLS
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
        TELLS
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
    assert "in waits" in await recorder.attempt.dump_stack()
    stop.touch()
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS
    assert await pid_of(bench) != recorder.pid


# --- What an attempt leaves behind ------------------------------------------------------------------------------------

LEAKS = """
    import gc, resource, signal, subprocess, threading

    def leaks(function):
        return flow.task(isolation="worker")(function)

    @leaks
    def working_directory():
        os.chdir("/")

    @leaks
    def removed_directory():
        os.mkdir(f"gone-{os.getpid()}")
        os.chdir(f"gone-{os.getpid()}")
        os.rmdir(os.getcwd())

    @leaks
    def environment():
        os.environ["PGHOST"] = "db2"

    @leaks
    def own_variable():
        os.environ["REDRIVE_PARAM_LEFT"] = "1"

    @leaks
    def replaced_environment():
        os.environ = dict(os.environ)

    @leaks
    def umask():
        os.umask(0o077)

    @leaks
    def signal_handler():
        signal.signal(signal.SIGUSR1, lambda number, frame: None)

    @leaks
    def ignored_signal():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @leaks
    def stack_signal():
        signal.signal(signal.SIGRTMIN + 3, signal.SIG_DFL)

    @leaks
    def signal_mask():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    @leaks
    def timer():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(600)

    @leaks
    def open_descriptor():
        os.open("/dev/null", os.O_RDONLY)

    @leaks
    def closed_descriptor():
        os.close(0)

    @leaks
    def exchanged_descriptor():
        zero = os.open("/dev/zero", os.O_RDONLY)
        os.dup2(zero, 0)
        os.close(zero)

    @leaks
    def thread():
        threading.Thread(target=time.sleep, args=(0.2,)).start()

    @leaks
    def daemon_thread():
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    @leaks
    def child_process():
        subprocess.Popen(["sleep", "600"], start_new_session=True)

    @leaks
    def orphan():
        subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"])

    @leaks
    def zombie():
        if os.fork() == 0:
            os._exit(0)

    @leaks
    def stream():
        sys.stdout = open("/dev/null", "w")
        os.dup2(1, sys.stdout.fileno())
        flow.kept = sys.stdout

    @leaks
    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))

    @leaks
    def priority():
        os.nice(1)

    @leaks
    def trace():
        sys.setprofile(lambda *seen: None)

    @leaks
    def number_format():
        import locale
        locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")

    @leaks
    def socket_timeout():
        import socket
        socket.setdefaulttimeout(5)

    @leaks
    def recursion():
        sys.setrecursionlimit(5000)

    @leaks
    def collector():
        gc.disable()

    @leaks
    def memory():
        flow.kept = bytearray(200 * 1024 * 1024)
        flow.kept[::4096] = b"x" * len(flow.kept[::4096])
"""
FINDINGS = {
    "working_directory": "changed the working directory",
    "removed_directory": "changed the working directory",
    "environment": "changed the environment",
    "own_variable": "changed the environment",
    "replaced_environment": "cannot be checked (AttributeError: 'dict' object has no attribute '_data')",
    "umask": "changed the umask",
    "signal_handler": "changed a signal handler",
    "ignored_signal": "changed a signal handler",
    "stack_signal": "changed a signal handler",
    "signal_mask": "changed the signal mask",
    "timer": "left a timer running",
    "open_descriptor": "left a descriptor open, or closed one",
    "closed_descriptor": "left a descriptor open, or closed one",
    "exchanged_descriptor": "left a descriptor open, or closed one",
    "thread": "left a thread running",
    "daemon_thread": "left a thread running",
    "child_process": "left a child process",
    "orphan": "left a child process",
    "zombie": "left a child process",
    "stream": "replaced sys.stdin, sys.stdout or sys.stderr",
    "limit": "changed a resource limit",
    "priority": "changed its priority or its CPUs",
    "trace": "left a trace or profile function",
    "number_format": "changed the locale",
    "socket_timeout": "changed a setting of the interpreter",
    "recursion": "changed a setting of the interpreter",
    "collector": "changed a setting of the interpreter",
    "memory": "MiB larger than before its first attempt",
}


async def test_a_worker_in_which_an_attempt_left_something_behind_is_replaced(bench: Any) -> None:
    reports = retired(bench)
    await bench.open(TELLS + LEAKS)
    for name, finding in FINDINGS.items():
        before = await pid_of(bench)
        outcome, recorder = await bench.run(name)
        assert (name, outcome.kind, recorder.pid) == (name, OutcomeKind.SUCCESS, before)
        assert is_gone(before), name
        assert reports[-1].startswith(f"task {name!r} "), reports
        assert finding in reports[-1]
        assert await pid_of(bench) != before
    await bench.run("working_directory")
    assert len(reports) == len(FINDINGS)  # each is told once


async def test_what_a_task_cleans_up_itself_is_no_finding(bench: Any) -> None:
    reports = retired(bench)
    await bench.open(
        TELLS
        + """
    import concurrent.futures, ctypes, decimal, subprocess, tempfile, threading

    @flow.task(isolation="worker")
    def tidy():
        subprocess.run(["true"], check=True)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(abs, range(20)))
        decimal.getcontext().prec = 3
        threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 100_000)
        os.environ["X"] = "1"
        del os.environ["X"]
        ctypes.CDLL(None).printf(b"from C\\n")
        return os.getpid()

    @flow.task(isolation="worker")
    async def awaits():
        import asyncio
        assert decimal.getcontext().prec == 28
        await asyncio.gather(asyncio.sleep(0.01), asyncio.to_thread(abs, -1))
        shell = await asyncio.create_subprocess_exec("true")
        await shell.wait()
        return os.getpid()
    """
    )
    pid = await pid_of(bench)
    outcome, recorder = await bench.run("tidy")
    assert (outcome.kind, recorder.text) == (OutcomeKind.SUCCESS, b"from C\n")
    pids = [await pid_of(bench, name) for name in ("tells", "awaits", "tidy", "awaits", "tells")]
    assert (pids, reports) == ([pid] * 5, [])


async def test_threads_and_exit_functions_of_a_retired_worker_end_as_those_of_any_process(bench: Any) -> None:
    await bench.open("""
        import atexit, threading

        def later():
            time.sleep(0.2)
            print("thread")

        @flow.task(isolation="worker", grace_seconds=20)
        def leaves_a_thread():
            atexit.register(print, "exit function")
            threading.Thread(target=later).start()
            return 1
    """)
    outcome, recorder = await bench.run("leaves_a_thread")
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, "1")
    assert recorder.text == b"thread\nexit function\n"


@pytest.mark.long
async def test_exit_functions_run_when_the_executor_ends(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "END_SECONDS", 600.0)  # it ends with its worker, not with its patience
    await bench.open("""
        import atexit

        @flow.task(isolation="worker")
        def registers(path):
            atexit.register(lambda: open(path, "w").close())
    """)
    await bench.run("registers", params={"path": str(tmp_path / "ran")})
    await asyncio.wait_for(bench.runner.close(), 60)
    assert (tmp_path / "ran").exists()


async def test_a_worker_is_bounded_in_attempts_and_in_idle_time(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.2)
    reports = retired(bench)
    await bench.open(
        TELLS
        + """
    from redrive.engine.runner.worker import process_state
    process_state.ATTEMPTS_MAX = 3
    """
    )
    pids = [await pid_of(bench) for _ in range(4)]
    assert pids[0] == pids[1] == pids[2] != pids[3]
    assert reports == ["task 'tells' was number 3 of its process"]
    assert process_state.ATTEMPTS_MAX == 1000
    gone = asyncio.get_running_loop().create_future()
    pidfd = os.pidfd_open(pids[3])
    asyncio.get_running_loop().add_reader(pidfd, lambda: gone.done() or gone.set_result(None))
    await asyncio.wait_for(gone, 60)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    assert await pid_of(bench) != pids[3]


# --- With the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_zygote_that_is_killed_takes_its_workers_along(bench: Any) -> None:
    lost = asyncio.Event()
    bench.runner.on_lost = lost.set
    await bench.open(
        TELLS
        + """
    @flow.task(isolation="worker")
    def waits():
        print("ready", flush=True)
        time.sleep(600)
    """
    )
    recorder, idle = await bench.start("waits"), await pid_of(bench)
    await recorder.wait_for_output(b"ready")
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    await asyncio.wait_for(lost.wait(), 60)
    assert is_gone(idle)
    assert is_gone(recorder.pid)
    await bench.runner.open(str(bench.path))
    assert await pid_of(bench) != idle


@pytest.mark.long
async def test_workers_of_replaced_code_end_after_their_attempt(bench: Any) -> None:
    source = """
        @flow.task(isolation="worker")
        def tells():
            return "old"

        @flow.task(isolation="worker")
        def waits(stop):
            print("ready", flush=True)
            while not os.path.exists(stop): time.sleep(0.01)
            return "old"
    """
    await bench.open(source)
    stop = bench.folder / "stop"
    running = await bench.start("waits", params={"stop": str(stop)})
    await running.wait_for_output(b"ready")
    _, idle = await bench.run("tells")
    bench.path.write_text(bench.path.read_text().replace('"old"', '"new"'))
    bench.runner.replace(await bench.runner.prepare(str(bench.path)))
    outcome, recorder = await bench.run("tells")
    assert outcome.result == '"new"'
    stop.touch()
    assert (await running.outcome()).result == '"old"'
    assert wait_until_dead([idle.pid, running.pid]) == []
    assert (await bench.run("tells"))[1].pid == recorder.pid


def test_a_flow_in_memory_with_mapped_tasks_groups_and_effects_runs_in_workers(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    flow = Flow("warm", max_parallel=1)

    def note() -> None:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")

    with flow.group("inside"):

        @flow.task(isolation="worker")
        def numbers() -> list[int]:
            note()
            return [1, 2, 3]

        @flow.map(over=numbers, isolation="worker")
        def double(number: int) -> int:
            note()
            return 2 * number

        @flow.task(after=[double], kind="effect", isolation="worker")
        def pays(ctx: Any) -> list[int]:
            note()
            return list(*ctx.inputs.values())

    assert Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run() == "SUCCESS"
    assert len(pids.read_text().split()) == 5
    assert len(set(pids.read_text().split())) == 1


async def test_a_command_cannot_run_in_a_worker(bench: Any) -> None:
    with pytest.raises(FlowError, match=r"task 'load': a command cannot run in a worker: .* isolation='process'"):
        await bench.open('flow.command("load", "true", isolation="worker")')


async def test_closing_kills_workers_that_run(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="worker")
        def waits():
            print("ready", flush=True)
            time.sleep(600)
    """)
    recorder = await bench.start("waits")
    await recorder.wait_for_output(b"ready")
    assert isinstance(bench.runner, Runner)
    await bench.runner.close()
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    assert is_gone(recorder.pid)
