"""What an attempt may leave behind in a worker, which is replaced then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.runner import worker_loop, workers
from support.processes import is_gone
from support.waiting import wait_until_async

from .worker_helpers import PID_TASK, pid_of, retired

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
        threading.Thread(target=threading.main_thread().join).start()  # ends with the main thread

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
    "replaced_environment": "replaced os.environ",
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
    await bench.open(PID_TASK + LEAKS)
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


@pytest.mark.spawns
async def test_what_a_task_cleans_up_itself_is_no_finding(bench: Any) -> None:
    reports = retired(bench)
    await bench.open(
        PID_TASK
        + """
    import concurrent.futures, ctypes, decimal, subprocess, tempfile, threading
    from redrive.engine.runner import worker_loop
    worker_loop.THREAD_EXIT_SECONDS = 60.0  # a busy machine lets the end of a thread wait

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
    pids = [await pid_of(bench, name) for name in ("pid", "awaits", "tidy", "awaits", "pid")]
    assert (pids, reports) == ([pid] * 5, [])


async def test_threads_and_exit_functions_of_a_retired_worker_end_as_those_of_any_process(bench: Any) -> None:
    await bench.open("""
        import atexit, threading

        def later():
            time.sleep(1)
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
    monkeypatch.setattr(workers, "END_SECONDS", 600.0)  # it ends with its worker, not with its patience
    await bench.open("""
        import atexit

        @flow.task(isolation="worker")
        def registers(path):
            atexit.register(lambda: open(path, "w").close())
    """)
    await bench.run("registers", params={"path": str(tmp_path / "ran")})
    await asyncio.wait_for(bench.runner.close(), 60)
    assert (tmp_path / "ran").exists()


async def test_a_worker_is_bounded_in_attempts(bench: Any) -> None:
    reports = retired(bench)
    await bench.open(
        PID_TASK
        + """
    from redrive.engine.runner import worker_loop
    worker_loop.ATTEMPTS_MAX = 3
    """
    )
    pids = [await pid_of(bench) for _ in range(4)]
    assert pids[0] == pids[1] == pids[2] != pids[3]
    assert reports == ["task 'pid' was number 3 of its process"]
    assert worker_loop.ATTEMPTS_MAX == 1000


async def test_a_worker_is_bounded_in_idle_time(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.2)
    await bench.open(PID_TASK)
    idle = await pid_of(bench)
    await wait_until_async(lambda: is_gone(idle))
    assert await pid_of(bench) != idle
