"""The process that forks: how it opens a flow, and what is left when it or the executor is killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.errors import CycleError, FlowError, FlowImportError
from redrive.engine.flow.flow import Flow
from redrive.engine.runner import process
from redrive.engine.runner import runner as runner_module
from redrive.engine.runner.protocol import AttemptListener, AttemptOrder, Open
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.zygote import connection
from support.marks import parametrize_mostly_long

from ..conftest import bearers_of

pytestmark = pytest.mark.spawns  # the process itself is tried

# --- Opening a flow -----------------------------------------------------------------------------------------------


async def test_the_spec_arrives_as_the_flow_has_it(bench: Any) -> None:
    spec = await bench.open(
        """
        @flow.task(timeout=7, retry=None)
        def first(): ...

        @flow.task(after=first)
        def second(): ...
        """,
        params={"day": "9"},
        declared={"day": 1},
    )
    assert spec.params == {"day": 9}
    assert [task.name for task in spec.tasks] == ["first", "second"]
    assert spec.tasks[1].parents == ("first",)
    assert spec.tasks[0].timeout == 7
    assert spec.path == str(bench.path)
    assert bench.runner.warnings == ()


@pytest.mark.long
async def test_a_flow_of_nine_thousand_tasks_crosses(bench: Any) -> None:
    spec = await bench.open("""
        for number in range(9000):
            flow.command(f"task-{number}", "true", after=[f"task-{number - 1}"] if number else [])
    """)
    assert len(spec.tasks) == 9000
    assert spec.tasks[-1].parents == ("task-8998",)
    assert (await bench.run("task-8999"))[0].kind is OutcomeKind.SUCCESS


@parametrize_mostly_long(
    ("source", "error", "words"),
    [
        ("import no_such_module", FlowImportError, "No module named 'no_such_module'"),
        ("def broken(:", FlowImportError, "SyntaxError"),
        ("sys.exit('stop here')", FlowImportError, "SystemExit"),
        ("raise KeyboardInterrupt", FlowImportError, "KeyboardInterrupt"),
        ("os._exit(5)", FlowImportError, "exit code 5"),
        ("os.kill(os.getpid(), 11)", FlowImportError, "signal 11"),
        ("flow = None", FlowError, "defines no Flow"),
        ("flow.command('a', 'x', after='b'); flow.command('b', 'x', after='a')", CycleError, "a -> b -> a"),
        ("flow.command('a', 'x', after='zzz')", FlowError, "zzz"),
    ],
    quick=3,
)
async def test_a_flow_that_cannot_be_imported_is_reported_once_and_clearly(
    bench: Any, source: str, error: type[FlowError], words: str
) -> None:
    with pytest.raises(error) as caught:
        await bench.open(source, declared={})
    assert words in str(caught.value) + getattr(caught.value, "traceback", "")
    if error is CycleError:
        assert set(caught.value.cycle) == {"a", "b"}  # type: ignore[attr-defined]


async def test_the_traceback_of_an_import_names_the_line(bench: Any) -> None:
    with pytest.raises(FlowImportError) as caught:
        await bench.open("""
            def helper():
                raise LookupError("no table")  # here
            helper()
        """)
    assert f'flow_under_test.py", line {bench.line_of("here")}, in helper' in caught.value.traceback


@pytest.mark.long
async def test_an_import_that_does_not_end_shows_where_it_is(
    bench: Any, survivors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.path.write_text("import time\nwhile True:\n    time.sleep(1)\n")
    for seconds in (1, 10, 40):  # a busy machine may not import it within the first second
        monkeypatch.setattr(runner_module, "IMPORT_SECONDS", seconds)
        with pytest.raises(FlowImportError, match=f"did not end within {seconds} s") as caught:
            await bench.runner.open(Open(str(bench.path)))
        if caught.value.traceback:
            break
    assert 'flow_under_test.py", line 3' in caught.value.traceback
    assert bearers_of(bench.executor_id) == []


async def test_what_the_import_prints_is_kept_and_not_printed_again_by_attempts(bench: Any) -> None:
    await bench.open("""
        print("loading tables", end="")

        @flow.task
        def task():
            print("and now the task")
    """)
    assert bench.runner.printed == "loading tables"
    assert (await bench.run("task"))[1].text == b"and now the task\n"


async def test_a_flow_may_take_the_streams_away(bench: Any) -> None:
    await bench.open("""
        sys.stdout = sys.stderr = None

        @flow.task
        def task():
            return 1
    """)
    assert (await bench.run("task"))[0].result == "1"


async def test_descriptors_left_by_the_import_are_doubted(bench: Any) -> None:
    await bench.open("""
        log = open("/dev/zero")

        @flow.task
        def task():
            return 1
    """)
    (descriptor,) = bench.runner.warnings
    assert "/dev/zero" in descriptor
    assert (await bench.run("task"))[0].result == "1"


async def test_libraries_are_asked_for_one_thread_only_while_they_load(bench: Any) -> None:
    await bench.open("""
        during = os.environ.get("OPENBLAS_NUM_THREADS")

        @flow.task
        def task():
            return [during, os.environ.get("OPENBLAS_NUM_THREADS")]
    """)
    assert (await bench.run("task"))[0].result == '["1",null]'


async def test_a_helper_that_the_import_started_is_left_alone(bench: Any) -> None:
    await bench.open("""
        import subprocess
        helper = subprocess.Popen(["sleep", "600"])

        @flow.task
        def task():
            return os.path.exists(f"/proc/{helper.pid}")
    """)
    assert [(await bench.run("task"))[0].result for _ in range(3)] == ["true"] * 3


async def test_what_an_attempt_left_to_another_user_ends_nobody_and_holds_nobody_up(bench: Any) -> None:
    await bench.open("""
        import subprocess
        kill = os.kill

        def refuse(pid, number):
            if open(f"/proc/{pid}/comm").read() == "sleep\\n":
                raise PermissionError(1, "Operation not permitted")
            kill(pid, number)

        os.kill = refuse

        @flow.task
        def leaves():
            return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

        @flow.task
        def after():
            return 1
    """)
    zygote_pid = bench.runner.zygote_pid
    outcome, recorder = await bench.run("leaves")
    pid = int(outcome.result)
    try:
        assert recorder.payload_of("swept") == ([pid], [pid])
        seconds = []
        for _ in range(20):
            before = time.monotonic()
            assert (await bench.run("after"))[0].result == "1"
            seconds.append(time.monotonic() - before)
        assert min(seconds) < 0.9, "each of them waited a second for the death of what was never theirs"
        assert bench.runner.zygote_pid == zygote_pid
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_process_that_cannot_be_made_is_an_oserror_and_the_next_one_works(bench: Any, survivors: Any) -> None:
    await bench.open("""
        @flow.task
        def task():
            return 1
    """)
    pid = bench.runner.zygote_pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    refused = 0
    for descriptors in range(3, 20):  # each place where the zygote may run out of them
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors, limits[1]))
        try:
            assert (await bench.run("task"))[0].kind in (OutcomeKind.SUCCESS, OutcomeKind.ERROR)
        except OSError as error:
            assert "cannot start a process" in str(error)
            refused += 1
    assert refused > 5
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert (await bench.run("task"))[0].result == "1"
    assert survivors(set(bearers_of(bench.executor_id)) - {pid}) == []


async def test_an_executor_without_descriptors_loses_its_attempts_and_knows_it(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def waits():
            time.sleep(600)

        @flow.task
        def answers():
            return 1
    """)
    waiting = await bench.start("waits")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] < highest:  # no gap is left below the limit
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 2, limits[1]))
    try:
        with pytest.raises(OSError, match="zygote is gone"):
            await bench.start("waits")
        assert (await waiting.outcome()).kind is OutcomeKind.LOST
        await asyncio.wait_for(bench.zygote_lost.wait(), 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in fillers:
            os.close(fd)
    await bench.runner.open(Open(str(bench.path)))
    assert (await bench.run("answers"))[0].result == "1"


async def test_a_start_without_a_zygote_is_an_oserror(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def task(): ...
    """)
    await bench.runner.close()
    with pytest.raises(OSError, match="no zygote"):
        await bench.start("task")


async def test_close_leaves_nobody_alive_and_reports_the_end(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def task():
            print("ready", os.fork() and os.getpid(), flush=True)
            time.sleep(600)
    """)
    recorder = await bench.start("task")
    await recorder.wait_for_output(b"ready")
    await bench.runner.close()
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    assert bearers_of(bench.executor_id) == []


# --- kill -9 ------------------------------------------------------------------------------------------------------

ESCAPES = """
    def escape():
        "Two forks, a session of its own, and no descriptor of ours."
        read, write = os.pipe()
        first = os.fork()
        if first == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(write, str(os.getpid()).encode())
                os.closerange(0, 1024)
                time.sleep(600)
            os._exit(0)
        os.waitpid(first, 0)  # else it may still be there when somebody counts
        return int(os.read(read, 20))

    @flow.task
    def task():
        print("pids", os.getpid(), escape(), "end", flush=True)
        time.sleep(600)

    @flow.task
    def quick():
        return 1

    @flow.task(isolation="thread")
    def thread():
        print("ready", flush=True)
        time.sleep(600)

    @flow.task(isolation="worker")
    def worker():
        print("ready", flush=True)
        time.sleep(600)
"""


async def test_a_zygote_that_is_killed_takes_everything_along_and_can_be_opened_again(
    bench: Any, survivors: Any
) -> None:
    await bench.open(ESCAPES)
    recorder, thread = await bench.start("task"), await bench.start("thread")
    await recorder.wait_for_output(b"end")
    await thread.wait_for_output(b"ready")
    pids = [int(word) for word in recorder.text.split()[1:3]]
    bearers = bearers_of(bench.executor_id)
    assert set(pids) <= set(bearers)
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    assert (await thread.outcome()).kind is OutcomeKind.LOST
    await asyncio.wait_for(bench.zygote_lost.wait(), 30)
    assert survivors(bearers, seconds=0) == []
    await bench.runner.open(Open(str(bench.path)))
    assert (await bench.run("quick"))[0].result == "1"


async def test_a_start_that_a_stopped_zygote_does_not_answer_fails(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.open(ESCAPES)
    os.kill(bench.runner.zygote_pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(connection, "PING_SECONDS", 0.05)
        for task in ("quick", "worker", "thread"):
            with pytest.raises(OSError, match=r"zygote is gone|no zygote"):
                await bench.start(task)
        await asyncio.wait_for(bench.zygote_lost.wait(), 30)
    await bench.runner.open(Open(str(bench.path)))
    assert (await bench.run("quick"))[0].result == "1"


@pytest.fixture
def thousand_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_attempts_may_have_as_many_descriptors_under_each_zygote(thousand_descriptors: None, bench: Any) -> None:
    """The executor allows itself more, after its start."""
    await bench.open("""
        import resource

        @flow.task
        def task():
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    """)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1000
    assert (await bench.run("task"))[0].result == "1000"
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    await asyncio.wait_for(bench.zygote_lost.wait(), 30)
    await bench.runner.open(Open(str(bench.path)))
    assert (await bench.run("task"))[0].result == "1000"


async def test_a_result_that_was_sent_stands_though_the_zygote_is_killed(bench: Any) -> None:
    await bench.open("""
        import atexit

        def stay():
            print("the result is sent", flush=True)
            time.sleep(600)

        @flow.task(grace_seconds=60)
        def task():
            atexit.register(stay)
            return 1
    """)
    recorder = await bench.start("task")
    await recorder.wait_for_output(b"sent")
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    outcome = await recorder.outcome()
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, "1")


EXECUTOR = """
import asyncio, fcntl, os, sys
sys.path.insert(0, {folder!r})
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.protocol import AttemptOrder, Open
from redrive.engine.runner.protocol import AttemptListener

class Listener:
    def __getattr__(self, name):
        return lambda *values: None
    def output(self, data):
        os.write(1, data)

async def main():
    lock = os.open({lock!r}, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    runner = Runner.spawn(environment={{"REDRIVE_EXECUTOR": {executor_id!r}}}, inherited_fds=[lock])
    spec = await runner.open(Open({flow!r}))
    by_name = {{task.name: task for task in spec.tasks}}
    for name in ("thread", "worker", "task"):
        await runner.start(AttemptOrder("run", name, 1, 0, by_name[name]), Listener())
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def started(source: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that is killed at the end, if not before."""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process_:
        try:
            yield process_
        finally:
            process_.kill()


LEFT_BY_THE_IMPORT = """
    import subprocess, threading
    threading.Thread(target=time.sleep, args=(600,)).start()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
"""


@parametrize_mostly_long("how", ["as it is", "zygote stopped", "much left by the import"], quick=1)
def test_an_executor_that_is_killed_leaves_nobody_alive_and_the_lock_free(
    tmp_path: Path, survivors: Any, how: str
) -> None:
    flow, lock = tmp_path / "flow.py", tmp_path / "lock"
    left = LEFT_BY_THE_IMPORT if how == "much left by the import" else ""
    flow.write_text(
        "import os, time\nfrom redrive.engine.flow.flow import Flow\nflow = Flow('x')\n"
        + textwrap.dedent(left + ESCAPES)
    )
    executor_id = f"killed-{os.getpid()}-{how}"
    source = EXECUTOR.format(folder=str(tmp_path), lock=str(lock), executor_id=executor_id, flow=str(flow))
    with started(source) as executor:
        text = b""
        while b"end" not in text or text.count(b"ready") < 2:
            text += os.read(executor.stdout.fileno(), 1000)
        bearers = bearers_of(executor_id)
        # The zygote, the host of the thread, the worker, the attempt, and what escaped from it; with what the import
        # starts, which happened in four of them.
        assert len(bearers) == (9 if left else 5)
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        zygote = process.children(executor.pid)[0]
        if how == "zygote stopped":
            os.kill(zygote, signal.SIGSTOP)
        executor.kill()
        if how == "zygote stopped":
            os.kill(zygote, signal.SIGCONT)
    assert survivors(bearers) == []
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_executor_that_is_killed_during_an_import_leaves_nobody_alive(tmp_path: Path, survivors: Any) -> None:
    flow = tmp_path / "flow.py"
    mark = tmp_path / "importing"
    os.mkfifo(mark)
    flow.write_text(f"open({str(mark)!r}, 'w').write('importing')\nwhile True: pass\n")
    executor_id = f"killed-in-import-{os.getpid()}"
    source = EXECUTOR.format(folder="", lock=str(tmp_path / "l"), executor_id=executor_id, flow=str(flow))
    with started(source) as executor:
        assert mark.read_text() == "importing"
        bearers = bearers_of(executor_id)
        assert len(bearers) == 1
        executor.kill()
    assert survivors(bearers) == []


# --- A flow in memory ---------------------------------------------------------------------------------------------


def test_a_flow_in_memory_is_forked_with_its_closures() -> None:
    flow = Flow("in memory")
    captured = {"value": 41}

    @flow.task
    def task(ctx: Any) -> int:
        captured["value"] += 1
        return captured["value"]

    runner = Runner.fork(flow, environment={"REDRIVE_EXECUTOR": "forked"})

    async def run() -> list[Any]:
        results = []
        spec = await runner.open(Open())

        class Waiter(AttemptListener):
            def __init__(self) -> None:
                self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def ended(self, outcome: Any) -> None:
                self.outcome.set_result(outcome)

        for attempt in (1, 2):
            waiter = Waiter()
            await runner.start(AttemptOrder("run", "task", attempt, 0, spec.tasks[0]), waiter)
            results.append((await waiter.outcome).result)
        await runner.close()
        return results

    assert asyncio.run(run()) == ["42", "42"]  # each attempt has its own copy
    assert captured == {"value": 41}


async def test_attempts_and_commands_hold_the_descriptors_to_keep(tmp_path: Path) -> None:
    """A free lock proves that nobody of an old run is alive, so everybody must hold it."""
    flow, lock = tmp_path / "flow.py", tmp_path / "state.lock"
    flow.write_text(
        "import os\nfrom redrive.engine.flow.flow import Flow\nflow = Flow('x')\n"
        "@flow.task\ndef task():\n    return [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "flow.command('command', 'ls -l /proc/self/fd')\n"
    )
    with lock.open("w") as file:
        fd = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)  # a number that a busy test process may reach
    runner = Runner.spawn(environment={"REDRIVE_EXECUTOR": f"keep-{os.getpid()}"}, inherited_fds=[fd])

    class Waiter(AttemptListener):
        def __init__(self) -> None:
            self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.text = b""

        def output(self, data: bytes) -> None:
            self.text += data

        def ended(self, outcome: Any) -> None:
            self.outcome.set_result(outcome)

    try:
        spec = await runner.open(Open(str(flow)))
        waiters = [Waiter() for _ in spec.tasks]
        for task, waiter in zip(spec.tasks, waiters, strict=True):
            await runner.start(AttemptOrder("run", task.name, 1, 0, task), waiter)
        assert str(lock) in (await waiters[0].outcome).result
        await waiters[1].outcome
        assert str(lock) in waiters[1].text.decode()
    finally:
        await runner.close()
        os.close(fd)
