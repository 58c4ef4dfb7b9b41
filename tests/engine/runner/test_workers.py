"""Warm workers: reused after a clean success, and replaced after anything else; as killable as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.core.outcome import OutcomeKind, reason_of_unstored
from redrive.engine.errors import FlowError
from redrive.engine.runner import protocol
from redrive.engine.runner.channels import FrameSocket
from redrive.engine.runner.protocol import Open
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.zygote import connection
from support.processes import is_gone, wait_until_dead
from support.waiting import wait_until_async

from .worker_helpers import PID_TASK, PID_TASK_AND_WAITING_TASK, pid_of, retired

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

    monkeypatch.setattr(connection, "PING_SECONDS", 600.0)  # else a busy machine counts pings
    monkeypatch.setattr(FrameSocket, "_try_send", count_sent)
    monkeypatch.setattr(FrameSocket, "_receive", count_received)
    await bench.open(PID_TASK)
    await pid_of(bench)
    sent = received = 0
    for _ in range(20):
        await pid_of(bench)
    assert (sent, received) == (20, 20)


async def test_limits_masks_and_deadlines_are_those_of_any_attempt(bench: Any) -> None:
    await bench.open("""
        @flow.task(isolation="worker")
        def large():
            return "x" * 17_000_000

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
    assert large.failure is None and "of JSON (17000002 bytes)" in str(reason_of_unstored(large.result))
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
        PID_TASK
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
        def pid():
            return [os.getpid(), imported_at]
    """)
    first, again = (await bench.run("pid"))[0], (await bench.run("pid"))[0]
    assert first.result == again.result


# --- With the rest ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_dies_behind_its_report_has_ended_its_attempt(bench: Any) -> None:
    """The executor reads both in one turn of its loop."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await bench.open(
        """
        @flow.task(isolation="worker")
        def waits():
            while not os.path.exists("go"):
                time.sleep(0.01)
        """
    )
    recorder = await bench.start("waits")
    worker = recorder.attempt.backend
    worker.link.pause()
    (bench.folder / "go").touch()
    await wait_until_async(lambda: has_reported(worker.link._socket))
    os.kill(recorder.pid, signal.SIGKILL)
    await asyncio.wait_for(worker.gone, 60)
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS and errors == []


def has_reported(link: socket.socket) -> bool:
    """Whether the last message of an attempt can be read."""
    try:
        unread = link.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    frames = map(protocol.decode_worker_frame, protocol.FrameReader(protocol.ATTEMPT_LIMIT).feed(unread))
    return any(isinstance(frame, protocol.WorkerChecked) for frame in frames)


@pytest.mark.long
async def test_a_zygote_that_is_killed_takes_its_workers_along(bench: Any) -> None:
    await bench.open(PID_TASK_AND_WAITING_TASK)
    recorder, idle = await bench.start("waits"), await pid_of(bench)
    await recorder.wait_for_output(b"ready")
    os.kill(bench.runner.zygote_pid, signal.SIGKILL)
    assert (await recorder.outcome()).kind is OutcomeKind.LOST
    await asyncio.wait_for(bench.zygote_lost.wait(), 60)
    assert is_gone(idle)
    assert is_gone(recorder.pid)
    await bench.runner.open(Open(str(bench.path)))
    assert await pid_of(bench) != idle


@pytest.mark.long
async def test_workers_of_replaced_code_end_after_their_attempt(bench: Any) -> None:
    source = """
        @flow.task(isolation="worker")
        def pid():
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
    _, idle = await bench.run("pid")
    bench.path.write_text(bench.path.read_text().replace('"old"', '"new"'))
    bench.runner.replace(await bench.runner.prepare(Open(str(bench.path))))
    outcome, recorder = await bench.run("pid")
    assert outcome.result == '"new"'
    stop.touch()
    assert (await running.outcome()).result == '"old"'
    assert wait_until_dead([idle.pid, running.pid]) == []
    assert (await bench.run("pid"))[1].pid == recorder.pid


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
