"""What an attempt hangs in: real sockets, pipes, locks, children and loops, looked at by a real executor's side."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.failures.hang import Activity, Autopsy, describe_hang, hang_report
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.runner import attempt, autopsy
from redrive.engine.runner.autopsy import ProcSampler, examine
from redrive.engine.runner.sockets import Tables, address
from redrive.engine.runner.usage import Sample, UsageSubject, sample
from support.commands import quoted
from support.marks import for_each, parametrize_mostly_long

pytestmark = pytest.mark.spawns  # stacks are read, which in a fork begin with the test

PARAMETERS = {"port": 0, "path": ""}

FLOW = """
    import fcntl, socket, subprocess, threading
    from concurrent.futures import ThreadPoolExecutor

    OPTIONS = {"timeout": 0.5, "grace_seconds": 5}
    RECEIVES = "import socket; socket.create_connection(('127.0.0.1', %d)).recv(1)"

    def receive(port):
        socket.create_connection(("127.0.0.1", port)).recv(1)  # receive

    @flow.task(**OPTIONS)
    def asks(port):
        receive(port)

    @flow.task(**OPTIONS)
    def asks_patiently(port):
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            connection.recv(1)  # patiently

    @flow.task(**OPTIONS)
    def asks_by_a_path(path):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.recv(1)

    @flow.task(timeout=0.5, grace_seconds=0.1)  # it waits for its thread
    def asks_in_a_pool(port):
        with ThreadPoolExecutor() as pool:
            pool.submit(receive, port).result()

    @flow.task(**OPTIONS)
    def sends(port):
        socket.create_connection(("127.0.0.1", port)).sendall(bytes(100_000_000))  # sends

    @flow.task(**OPTIONS)
    def starts_a_program(port):
        subprocess.run([sys.executable, "-S", "-c", RECEIVES % port], capture_output=True)  # program

    @flow.task(**OPTIONS)
    def locks(path):
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # locks

    @flow.task(**OPTIONS)
    def spins_in_a_child():
        subprocess.run([sys.executable, "-S", "-c", "while True: pass"])

    def crunch():
        while True: pass  # crunch

    @flow.task(**OPTIONS)
    def spins_in_a_thread():
        thread = threading.Thread(target=crunch)
        thread.start()
        thread.join()

    @flow.task(timeout=1.0, grace_seconds=5)
    def computes_first():
        end = time.process_time() + 0.1
        while time.process_time() < end: pass
        time.sleep(600)

    @flow.task(**OPTIONS)
    def rests():
        print("batch 6\\nbatch\\x1b 7", flush=True)
        time.sleep(600)

    @flow.task(isolation="thread", **OPTIONS)
    def asks_in_a_thread(port, ctx):
        with socket.create_connection(("127.0.0.1", port), timeout=0.2) as connection:
            while not ctx.cancelled:
                try:
                    connection.recv(1)  # in a thread
                except TimeoutError:
                    continue
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """Accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def is_reported(words: str) -> Any:
    """Where the machine did not stand still while the task came to its hang, this is in its error."""
    return lambda outcome, recorder: words in outcome.failure.message


async def hang_of(bench: Any, task: str, words: str, **params: Any) -> Any:
    """Run a task of FLOW until its timeout says this. Answers with its outcome."""
    if bench.spec is None:
        await bench.open(FLOW, declared=PARAMETERS)
    outcome, recorder = await bench.run_until(is_reported(words), task, params=params)
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert outcome.failure.message == f"task exceeded 0.5s: {recorder.payload_of('stack').hang}"
    return outcome


async def test_a_server_that_never_answers_is_named(bench: Any, server: socket.socket) -> None:
    port = server.getsockname()[1]
    outcome = await hang_of(bench, "asks", "blocked in recv from", port=port)
    place = f"flow_under_test.py:{bench.line_of('receive')} in receive"
    assert f"blocked in recv from 127.0.0.1:{port} at {place}, " in outcome.failure.message
    assert f"tcp 127.0.0.1:{port} (ESTABLISHED, 0 bytes unread, 0 bytes unsent)" in outcome.attempt_columns["stack"]
    assert f"line {bench.line_of('receive')} in receive" in outcome.attempt_columns["stack"]


async def test_a_client_with_a_timeout_of_its_own_polls_and_is_understood(bench: Any, server: socket.socket) -> None:
    port = server.getsockname()[1]
    await hang_of(bench, "asks_patiently", f"waits for 127.0.0.1:{port} at flow_under_test.py", port=port)


async def test_what_the_other_side_does_not_take_is_counted(bench: Any, server: socket.socket) -> None:
    outcome = await hang_of(bench, "sends", "blocked in send to", port=server.getsockname()[1])
    assert "bytes unsent) at flow_under_test.py" in outcome.failure.message


async def test_a_service_behind_a_unix_socket_is_named_by_its_path(bench: Any) -> None:
    kept: list[asyncio.StreamWriter] = []  # since Python 3.13 a connection that nobody keeps is closed
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        path = f"{folder}/s"
        async with await asyncio.start_unix_server(lambda _, writer: kept.append(writer), path):
            await hang_of(bench, "asks_by_a_path", f"blocked in recv from {path} at", path=path)
            for writer in kept:
                writer.close()


async def test_a_thread_of_a_pool_is_examined_where_the_first_only_waits_for_it(
    bench: Any, server: socket.socket
) -> None:
    port = server.getsockname()[1]
    words = f"waits for a thread of its own, blocked in recv from 127.0.0.1:{port}"
    await hang_of(bench, "asks_in_a_pool", words, port=port)


async def test_a_program_that_the_task_started_is_followed_to_what_it_waits_for(
    bench: Any, server: socket.socket
) -> None:
    port = server.getsockname()[1]
    outcome = await hang_of(bench, "starts_a_program", "): blocked in recv from", port=port)
    place = f"flow_under_test.py:{bench.line_of('program')} in starts_a_program"
    assert f"waits at {place} for its child `python" in outcome.failure.message
    assert f"blocked in recv from 127.0.0.1:{port}, " in outcome.failure.message


async def test_who_holds_the_lock_that_it_waits_for_is_named(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "the.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = f"waits for a lock on {path} held by pid {os.getpid()} (`"
        outcome = await hang_of(bench, "locks", words, path=str(path))
    assert f"waits for {path} held by pid {os.getpid()}" in outcome.attempt_columns["stack"]


async def test_a_child_that_computes_is_distinguished_from_one_that_waits(bench: Any) -> None:
    outcome = await hang_of(bench, "spins_in_a_child", "is spinning")
    assert "its child `python" in outcome.failure.message


@pytest.mark.long
async def test_a_thread_that_computes_is_reported_by_its_place(bench: Any) -> None:
    await bench.open(FLOW, declared=PARAMETERS)
    words = f"a thread is spinning at flow_under_test.py:{bench.line_of('crunch')} in crunch, "
    await hang_of(bench, "spins_in_a_thread", words)


async def test_the_last_line_of_its_output_is_kept_with_how_long_ago_that_was(bench: Any) -> None:
    outcome = await hang_of(bench, "rests", "asleep at flow_under_test.py")
    *_, heading, line = outcome.attempt_columns["stack"].splitlines()
    assert heading == "Output:"
    found = re.fullmatch(r"  (\d+(?:\.\d)?)s before: batch  7", line)
    assert found is not None, line
    assert 0 <= float(found[1]) <= outcome.attempt_columns["duration_us"] / 1e6


async def test_only_the_time_just_before_the_deadline_counts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computed in the hour before says nothing about how it hangs."""
    monkeypatch.setattr(attempt, "CPU_SECONDS", 0.3)
    monkeypatch.setattr(autopsy, "INTERVAL_SECONDS", 0.05)
    words = ("asleep at flow_under_test.py", ", 0 % CPU for the last 0.")
    await bench.open(FLOW, declared=PARAMETERS)
    history = re.compile(r"CPU by the second, 0 idle, 9 one CPU, [+] more:\n  \d*[1-9]\d*0\n$")

    def is_met(outcome: Outcome, _: object) -> bool:
        assert outcome.failure is not None
        is_said = all(one in outcome.failure.message for one in words)
        return is_said and history.search(outcome.attempt_columns["stack"]) is not None

    await bench.run_until(is_met, "computes_first")


async def test_a_task_in_a_thread_is_examined_without_its_neighbours(bench: Any, server: socket.socket) -> None:
    port = server.getsockname()[1]
    outcome = await hang_of(bench, "asks_in_a_thread", f"waits for 127.0.0.1:{port}", port=port)
    assert "Other threads" not in outcome.attempt_columns["stack"]


async def test_a_command_is_followed_through_its_shell(bench: Any, server: socket.socket) -> None:
    port = server.getsockname()[1]
    program = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
    line = f'true; {quoted(sys.executable)} -S -c "{program}"; true'
    await bench.open(f"flow.command('t', {line!r}, timeout=0.5, grace_seconds=5)")
    outcome, _ = await bench.run_until(is_reported("blocked in recv"), "t")
    assert "task exceeded 0.5s: waits for its child `python" in outcome.failure.message
    assert f"): blocked in recv from 127.0.0.1:{port}, " in outcome.failure.message
    assert outcome.failure.fingerprint.strict == ""  # pids and ports make no two hangs different failures
    assert outcome.attempt_columns["stack"].startswith("Processes:\n  pid ")


COROUTINES = """
    import asyncio

    OPTIONS = {"timeout": 0.5, "grace_seconds": 5}

    async def leaf():
        await asyncio.sleep(600)  # leaf

    async def pulse():
        while True:
            await asyncio.sleep(0.02)

    @flow.task(**OPTIONS)
    async def awaits():
        await leaf()

    @flow.task(**OPTIONS)
    async def groups():
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf())

    @flow.task(**OPTIONS)
    async def gathers():
        await asyncio.gather(leaf(), leaf())

    @flow.task(**OPTIONS)
    async def has_a_pulse():
        async with asyncio.TaskGroup() as group:
            group.create_task(leaf())
            group.create_task(pulse())

    @flow.task(**OPTIONS)
    async def asks(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()  # reader

    @flow.task(**OPTIONS)
    async def blocks():
        time.sleep(600)  # blocks
"""


@parametrize_mostly_long("task", ["awaits", "groups", "gathers", "has_a_pulse"], quick=2)
async def test_a_coroutine_that_hangs_is_reported_by_the_line_that_awaits(bench: Any, task: str) -> None:
    """The stack of its thread shows nothing but the loop: every such hang had the same place, in a library."""
    await bench.open(COROUTINES, declared=PARAMETERS)
    place = f"flow_under_test.py:{bench.line_of('leaf')} in leaf"
    outcome, recorder = await bench.run_until(is_reported(f"awaits asyncio.sleep at {place}"), task)
    assert recorder.payload_of("stack").where == place
    assert outcome.failure.fingerprint.explain == f"timed out at {place}"
    assert "Coroutine 'Task-" in outcome.attempt_columns["stack"]


async def test_a_coroutine_that_awaits_a_server_names_it(bench: Any, server: socket.socket) -> None:
    await bench.open(COROUTINES, declared=PARAMETERS)
    port = server.getsockname()[1]
    words = f"waits for 127.0.0.1:{port} at flow_under_test.py:{bench.line_of('reader')} in asks, "
    await bench.run_until(is_reported(words), "asks", params={"port": port})


async def test_a_coroutine_that_blocks_its_loop_is_reported_by_its_thread(bench: Any) -> None:
    await bench.open(COROUTINES, declared=PARAMETERS)
    words = f"asleep at flow_under_test.py:{bench.line_of('blocks')} in blocks, "
    outcome, _ = await bench.run_until(is_reported(words), "blocks")
    assert "Coroutine" not in outcome.attempt_columns["stack"]


# --- A kill is never late -------------------------------------------------------------------------------------------


async def test_everything_is_seen_before_the_deadline_so_that_the_sigterm_comes_on_time(bench: Any) -> None:
    """A dump that is asked for at the deadline takes ten milliseconds and more; all of it took place before."""
    await bench.open(FLOW, declared=PARAMETERS)

    def is_on_time(outcome: Any, recorder: Any) -> bool:
        late = recorder.times["attempt.sigterm"] - recorder.times["attempt.deadline"]
        return late < 0.008 and "asleep at flow_under_test.py" in outcome.failure.message

    await bench.run_until(is_on_time, "rests")


async def test_an_inspection_that_never_ends_delays_no_kill(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the command line of a process can block for as long as that is stuck in the kernel."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stuck(*_: Any) -> Autopsy:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return Autopsy()

    monkeypatch.setattr(autopsy, "examine", stuck)
    await bench.open(FLOW, declared=PARAMETERS)

    def has_place(outcome: Any, recorder: Any) -> bool:
        assert outcome.failure.message == "task exceeded 0.5s"
        return str(outcome.failure.diagnostic).startswith("it was at flow_under_test.py")

    outcomes = [(await bench.run_until(has_place, "rests"))[0] for _ in range(2)]
    release.set()
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.TIMED_OUT}


async def test_an_examiner_answers_by_the_time_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    first_has_answered = threading.Event()
    monkeypatch.setattr(autopsy, "examine", lambda *_: Autopsy(cpu=1.0 if first_has_answered.wait(60) else None))
    nobody, begun = Sample(0.0), time.monotonic()
    later = asyncio.create_task(ProcSampler().examine(UsageSubject(os.getpid()), nobody, begun + 90))
    assert (await ProcSampler().examine(UsageSubject(os.getpid()), nobody, begun + 0.05)).cpu is None
    first_has_answered.set()
    assert (await later).cpu == 1.0
    assert await ProcSampler().examine(UsageSubject(os.getpid()), nobody, begun) == Autopsy()


def test_a_crowd_is_examined_as_far_as_there_is_room_and_said_to_be_one() -> None:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(autopsy.PROCESSES_MAX + 5)]
    try:
        me = UsageSubject(os.getpid())
        report = examine(me, sample(me), time.monotonic() + 60, Tables())
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert len(report.processes) == autopsy.PROCESSES_MAX
    assert not report.is_complete


def test_nothing_is_read_after_its_time() -> None:
    report = examine(UsageSubject(os.getpid()), Sample(0.0), time.monotonic() - 1, Tables())
    assert (report.processes, report.descriptors, report.is_complete) == ((), (), False)


# --- What is not ours to see ----------------------------------------------------------------------------------------

UNPRIVILEGED = """
    import json, os, sys, time
    from redrive.engine.core.failures.hang import describe_hang, hang_report
    from redrive.engine.runner.autopsy import examine
    from redrive.engine.runner.usage import UsageSubject, sample
    from redrive.engine.runner.sockets import Tables

    pid = int(sys.argv[1])
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    seen = examine(UsageSubject(pid), sample(UsageSubject(pid)), time.monotonic() + 60, Tables())
    (one,) = seen.processes[:1]
    texts = [describe_hang(seen), hang_report(seen)]
    print(json.dumps([one.state, one.is_exact, one.name, len(seen.descriptors), *texts]))
"""


def test_without_the_right_to_inspect_less_is_reported_and_nothing_fails() -> None:
    """As in a container that forbids ptrace: the process of somebody else shows its state and its name."""
    with subprocess.Popen(["sleep", "600"]) as child:
        pid = child.pid if os.getuid() == 0 else 1
        program = [sys.executable, "-c", textwrap.dedent(UNPRIVILEGED), str(pid)]
        completed = subprocess.run(program, capture_output=True, text=True, check=True)
        child.kill()
    state, is_exact, name, descriptors, words, lines = json.loads(completed.stdout)
    assert (is_exact, descriptors) == (False, 0)
    assert state in ("S", "R", "I", "D")
    assert words
    assert name in lines


def test_a_process_that_is_gone_leaves_nothing_to_say() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    report = examine(UsageSubject(child.pid), Sample(0.0), time.monotonic() + 60, Tables())
    assert describe_hang(report) == hang_report(report) == ""


def test_names_cannot_break_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a\nProcesses:\nb\udcff"
    with path.open("w"):
        me = UsageSubject(os.getpid())
        report = examine(me, sample(me), time.monotonic() + 60, Tables())
    (end,) = [end for end in report.descriptors if end.name.startswith(str(tmp_path))]
    assert end.name == f"{tmp_path}/a Processes: b\\udcff"


# --- Details --------------------------------------------------------------------------------------------------------


@for_each(
    "written, read",
    [
        ("0100007F:1538", "127.0.0.1:5432"),
        ("00000000:0000", ""),
        ("00000000000000000000000001000000:0050", "[::1]:80"),
        ("0000000000000000FFFF00000500000A:1538", "10.0.0.5:5432"),
    ],
)
def test_addresses_read_as_people_write_them(written: str, read: str) -> None:
    assert sys.byteorder == "little"
    assert address(written) == read


def test_connections_of_the_newer_kind_are_found_too() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        port, me = server.getsockname()[1], UsageSubject(os.getpid())
        ends = examine(me, sample(me), time.monotonic() + 60, Tables()).descriptors
        (end,) = [end for end in ends if end.number == client.fileno()]
        assert (end.kind, end.name, end.state) == ("tcp", f"[::1]:{port}", "ESTABLISHED")


def test_what_is_polled_and_selected_is_read_from_the_process() -> None:
    program = "import select, socket; a, b = socket.socketpair(); print(a.fileno(), flush=True); {}"
    for line, doing in (
        ("p = select.poll(); p.register(a); p.poll()", Activity.POLL),
        ("select.select([a], [], [])", Activity.SELECT),
        ("e = select.epoll(); e.register(a, select.EPOLLIN); e.poll()", Activity.EPOLL),
    ):
        waits = line.replace("p.register(a)", "p.register(a, select.POLLIN)")
        with subprocess.Popen([sys.executable, "-S", "-c", program.format(waits)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            number = int(child.stdout.readline())
            while True:  # it is on its way there
                (report,) = examine(UsageSubject(child.pid), Sample(0.0), time.monotonic() + 60, Tables()).processes
                if report.activity is doing:
                    break
            child.kill()
        assert report.waits_on == (number,)


async def test_an_attempt_is_killed_in_time_on_a_machine_without_a_thread_left(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever inspects it needs a thread: without one the kill has less to say."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await bench.open("""
        @flow.task(timeout=0.3, grace_seconds=0.2)
        def hang():
            time.sleep(600)
    """)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        outcome, _ = await bench.run("hang")
    assert outcome.kind is OutcomeKind.TIMED_OUT
