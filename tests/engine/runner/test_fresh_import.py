"""Flows whose import leaves threads running: nothing is forked beside them, each process imports the flow itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor
from redrive.engine.core.outcome import OutcomeKind
from redrive.engine.flow.flow import Flow
from redrive.engine.runner import process
from redrive.engine.runner.protocol import Open
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.zygote import flow_import

A_THREAD = """
    import threading
    threading.Thread(target=time.sleep, args=(600,), name="heartbeat", daemon=True).start()
"""

HOLDS_A_LOCK = """
    import threading
    lock, held, asked = threading.Lock(), threading.Event(), threading.Event()

    def keep():
        with lock:
            held.set()
            asked.wait()

    threading.Thread(target=keep, name="keeper", daemon=True).start()
    held.wait()

    @flow.task
    def task():
        asked.set()
        with lock:  # for ever, where the thread that holds it was left behind by a fork
            return "got it"

    @flow.task(isolation="thread")
    def thread():
        return task()
"""


@pytest.mark.parametrize("name", ["task", "thread"])
async def test_a_lock_that_a_thread_of_the_import_holds_is_released_in_each_attempt(bench: Any, name: str) -> None:
    await bench.open(HOLDS_A_LOCK)
    recorder = await bench.start(name)
    assert (await recorder.outcome()).result == '"got it"'
    (warning,) = bench.runner.warnings
    assert warning.startswith(
        "importing the flow left 1 thread (keeper) running, beside which no process can be forked"
    )
    assert re.search(r"each process imports the flow itself \(\d+\.\d s\) and is reused", warning)


def test_as_many_processes_import_as_run_at_a_time_however_many_tasks_there_are(tmp_path: Path) -> None:
    """An import of 0.3 s in each of 40 attempts would cost six times what all else costs."""
    (tmp_path / "flow.py").write_text(MANY)
    result = Executor(flow=str(tmp_path / "flow.py"), state=tmp_path / "state.db").run_result()
    assert result.state == "SUCCESS" and set(result.states.values()) == {"SUCCESS"}
    assert len((tmp_path / "imports").read_text().split()) <= 1 + 2


MANY = """
import os, threading
from pathlib import Path
from redrive.engine import Flow

threading.Thread(target=threading.Event().wait, daemon=True).start()
with (Path(__file__).parent / "imports").open("a") as file:
    print(os.getpid(), file=file)
flow = Flow("many", max_parallel=2)
for number in range(20):
    flow.task(name=f"t{number}")(lambda: None)
"""


async def test_a_thread_that_was_joined_is_not_left_running(bench: Any) -> None:
    await bench.open("""
        import threading
        for _ in range(50):
            thread = threading.Thread(target=time.sleep, args=(0,))
            thread.start()
            thread.join()

        @flow.task
        def task(): ...
    """)
    assert bench.runner.warnings == ()


async def test_the_zygote_of_such_a_flow_has_no_thread_and_commands_import_nothing(bench: Any) -> None:
    await bench.open(
        A_THREAD
        + """
    imports = os.path.join(os.path.dirname(__file__), "imports")
    with open(imports, "a") as file:
        print(os.getpid(), file=file)

    @flow.task
    def task():
        return open(imports).read().split()

    flow.command("command", "cat imports")
    """
    )
    assert len(process.children(bench.runner.zygote_pid)) == 0
    assert len(os.listdir(f"/proc/{bench.runner.zygote_pid}/task")) == 1
    _, recorder = await bench.run("command")
    assert recorder.text.split() == [str(bench.runner.zygote_pid).encode()]
    outcome, _ = await bench.run("task")
    zygote, attempt = json.loads(outcome.result)
    assert zygote == str(bench.runner.zygote_pid) != attempt


async def test_what_the_first_import_did_to_environment_and_folder_is_undone_before_the_next(bench: Any) -> None:
    await bench.open(
        A_THREAD
        + """
    started_in = os.getcwd()
    os.chdir("/")
    seen = os.environ.get("SEEN", "") + "x"
    os.environ["SEEN"] = seen

    @flow.task
    def task():
        return [seen, started_in]
    """
    )
    assert json.loads((await bench.run("task"))[0].result) == ["x", os.getcwd()]


async def test_a_folder_that_is_gone_keeps_nobody_from_running(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.folder / "gone").mkdir()
    monkeypatch.chdir(bench.folder / "gone")
    (bench.folder / "gone").rmdir()
    await bench.open(A_THREAD + "\n    @flow.task\n    def task():\n        return 1\n")
    assert (await bench.run("task"))[0].result == "1"


async def test_the_time_of_a_task_begins_after_its_import(bench: Any) -> None:
    await bench.open(
        A_THREAD
        + """
    time.sleep(0.6)

    @flow.task(timeout=0.5, grace_seconds=10)
    def quick():
        return 1

    @flow.task(timeout=0.5, grace_seconds=10)
    def hangs():
        time.sleep(600)  # here
    """
    )
    in_time = 600_000
    outcome, _ = await bench.run_until(lambda outcome, _: outcome.attempt_columns["duration_us"] < in_time, "quick")
    assert outcome.result == "1"
    place = f"line {bench.line_of('here')} in hangs"
    is_shown = lambda outcome, _: place in outcome.attempt_columns.get("stack", "")  # noqa: E731
    outcome, recorder = await bench.run_until(is_shown, "hangs")
    assert outcome.failure.message.startswith("task exceeded 0.5s")
    assert recorder.payload_of("deadline").timeout == 0.5


async def test_an_attempt_waits_for_the_threads_of_its_task_and_not_for_those_of_the_import(bench: Any) -> None:
    await bench.open("""
        import concurrent.futures, threading
        threading.Thread(target=time.sleep, args=(600,)).start()  # no daemon

        def later():
            time.sleep(0.2)
            print("the thread of the task")

        @flow.task(grace_seconds=60)
        def task():
            concurrent.futures.ThreadPoolExecutor().submit(print, "the pool of the task")
            threading.Thread(target=later).start()
    """)
    outcome, recorder = await bench.run("task")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert "late_exit" not in outcome.attempt_columns
    assert sorted(recorder.text.splitlines()) == [b"the pool of the task", b"the thread of the task"]


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_an_import_that_fails_the_second_time_is_the_failure_of_the_attempt(bench: Any, isolation: str) -> None:
    await bench.open(
        A_THREAD
        + f"""
    if os.path.exists(os.path.join(os.path.dirname(__file__), "broken")):
        raise LookupError("no table")

    @flow.task(isolation="{isolation}")
    def task(): ...
    """
    )
    (bench.folder / "broken").touch()
    outcome, _ = await bench.run("task")
    assert outcome.kind is OutcomeKind.ERROR
    assert "LookupError: no table" in outcome.failure.message


async def test_a_flow_may_set_signal_handlers_when_its_thread_host_imports_it(bench: Any) -> None:
    await bench.open(
        A_THREAD
        + """
    import signal
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    @flow.task(isolation="thread")
    def task():
        return 1
    """
    )
    assert (await bench.run("task"))[0].result == "1"


def test_a_program_with_threads_gets_a_warning_when_it_starts_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_import, "NAMES_SHOWN", 1000)  # threads of other tests may stand before it
    flow, end = Flow("in memory"), threading.Event()
    flow.command("nothing", "true")
    thread = threading.Thread(target=end.wait, name="feeder")
    thread.start()
    try:
        runner = Runner.fork(flow, environment={"REDRIVE_EXECUTOR": "doubted"})
    finally:
        end.set()
        thread.join()

    async def warnings() -> tuple[str, ...]:
        await runner.open(Open())
        await runner.close()
        return runner.warnings

    (warning,) = asyncio.run(warnings())
    assert "feeder" in warning
    assert "stays locked in every attempt" in warning
