"""One attempt in a process of its own: what goes in, what comes out, and every way to end by itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest
from msgspec import structs
from redrive.engine.core.outcome import FailureClass, OutcomeKind, reason_of_unstored
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.errors import FlowError
from redrive.engine.runner.out_of_memory import OutOfMemoryWatch
from support.marks import parametrize_mostly_long


async def test_a_result_is_handed_on_as_json(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def answer():
            return {"rows": [1, 2, 3], "name": "änna"}
    """)
    outcome, recorder = await bench.run("answer")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert json.loads(outcome.result) == {"rows": [1, 2, 3], "name": "änna"}
    assert recorder.kinds == []
    assert recorder.pid > 1, "an attempt that ends at once reports its process too"


async def test_usage_reports_what_the_attempt_cost(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def work():
            until = time.process_time() + 0.2
            while time.process_time() < until:
                sum(range(1000))
    """)
    outcome, recorder = await bench.run("work")
    usage = outcome.attempt_columns
    assert usage["exit_code"] == 0
    assert usage["signal"] is None
    assert usage["cpu_user_us"] + usage["cpu_system_us"] >= 150_000
    assert usage["duration_us"] >= 150_000
    assert usage["max_rss_kb"] > 1000
    assert recorder.pid > 1
    assert recorder.start_ticks > 0


async def test_arguments_are_matched_by_name(bench: Any) -> None:
    await bench.open(
        """
        @flow.task
        def plain():
            return "as it is"

        @flow.task(name="load-orders")
        def load():
            return None

        @flow.task(after=[load, plain])
        def join(ctx, load_orders, plain, day, limit=7, *, shout=False):
            who = [ctx.attempt, ctx.generation, ctx.run_id, ctx.task]
            return [load_orders, plain, day, limit, shout, ctx.inputs, *who]
    """,
        declared={"day": "monday"},
    )
    assert (await bench.run("plain"))[0].result == '"as it is"'
    inputs = {"load-orders": {"rows": 10**30}, "plain": None}
    outcome, _ = await bench.run("join", inputs=inputs, params={"day": "tuesday"}, attempt=3, generation=2)
    assert json.loads(outcome.result) == [
        {"rows": 10**30}, None, "tuesday", 7, False, inputs, 3, 2, "run-1", "join"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def ask(nonsense): ...", "asks for an argument 'nonsense'"),
        ("def ask(ctx, /): ...", "takes its argument 'ctx' by position only"),
        ("def ask(): yield 1", "is a generator"),
        ("async def ask(): yield 1", "is a generator"),
    ],
)
async def test_a_function_that_cannot_be_called_keeps_the_flow_from_being_run(bench: Any, body: str, why: str) -> None:
    """By day, with the line of the function, and not as a dead letter at night."""
    with pytest.raises(FlowError, match=rf"flow_under_test.py:\d+: task 'ask' {why}"):
        await bench.open(f"@flow.task\n{body}", declared={})


async def test_the_environment_says_who_the_attempt_is(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def env():
            return {name: value for name, value in os.environ.items() if name.startswith("REDRIVE_")}
    """)
    outcome, _ = await bench.run("env", attempt=4, idempotency_key="k-1", params={"day-of": 3}, date="2026-04-25")
    assert json.loads(outcome.result) == {
        "REDRIVE_EXECUTOR": bench.executor_id,
        "REDRIVE_RUN_ID": "run-1",
        "REDRIVE_TASK": "env",
        "REDRIVE_ATTEMPT": "4",
        "REDRIVE_IDEMPOTENCY_KEY": "k-1",
        "REDRIVE_LOGICAL_TIME": "",
        "REDRIVE_DATE": "2026-04-25",
        "REDRIVE_PARAMS": '{"day-of": 3}',
        "REDRIVE_PARAM_DAY_OF": "3",
    }


async def test_parameters_of_the_task_win_over_those_of_the_run(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def show(ctx):
            return [dict(ctx.params), os.environ["REDRIVE_PARAM_A"]]
    """)
    spec = structs.replace(bench.task("show"), params={"a": "task"})
    outcome, _ = await bench.run("show", spec=spec, params={"a": "run", "b": 1})
    assert json.loads(outcome.result) == [{"a": "task", "b": 1}, "task"]


async def test_each_attempt_is_a_session_leader_with_nothing_of_its_neighbours(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def look():
            links = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{fd}"))
                except OSError:
                    pass
            return [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), sorted(l.split(":")[0] for l in links)]
    """)
    outcome, _ = await bench.run("look")
    is_session, is_group, links = json.loads(outcome.result)
    assert is_session
    assert is_group
    # null, the reserved descriptor, output twice, stack, results: no socket of the zygote, no pipe of another attempt
    assert links == ["/dev/null", "/dev/null", "pipe", "pipe", "pipe", "pipe"]


async def test_dice_differ_between_attempts(bench: Any) -> None:
    await bench.open("""
        import random

        @flow.task
        def roll():
            return random.random()
    """)
    rolls = {(await bench.run("roll"))[0].result for _ in range(5)}
    assert len(rolls) == 5


async def test_a_failure_is_described_where_the_exception_still_is_one(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def divide():
            return 1 / 0  # here

        @flow.task
        def lookup():
            return {}["missing"]
    """)
    outcome, _ = await bench.run("divide")
    failure = outcome.failure
    assert outcome.kind is OutcomeKind.ERROR
    assert failure.error_type == "ZeroDivisionError"
    assert failure.message == "division by zero"
    assert f"line {bench.line_of('here')}, in divide" in failure.traceback
    other = (await bench.run("lookup"))[0].failure
    assert failure.fingerprint.strict != other.fingerprint.strict  # document 000's own pair of runs gave one hash
    assert failure.fingerprint.strict == (await bench.run("divide"))[0].failure.fingerprint.strict


async def test_an_exception_that_cannot_be_shown_is_still_a_failure(bench: Any) -> None:
    await bench.open("""
        class Hostile(Exception):
            def __str__(self):
                raise RuntimeError("no")
            def __repr__(self):
                raise RuntimeError("no")

        @flow.task
        def hostile():
            raise Hostile

        @flow.task
        def surrogate():
            raise ValueError("\\udcff" * 3)

        @flow.task
        def nested():
            raise ExceptionGroup("\\udcff", [ValueError("row \\udcff")])

        @flow.task
        def unnamed():
            raise type("Unnamed", (Exception,), {"__module__": "\\udcff"})

        @flow.task
        def long():
            raise ValueError("x" * 10_000_000)
    """)
    assert "Hostile" in (await bench.run("hostile"))[0].failure.error_type
    assert (await bench.run("surrogate"))[0].failure.error_type == "ValueError"
    assert (await bench.run("nested"))[0].failure.error_type == "ExceptionGroup"
    assert "Unnamed" in (await bench.run("unnamed"))[0].failure.error_type
    assert len((await bench.run("long"))[0].failure.message) < 100_000


@parametrize_mostly_long(
    ("code", "kind"),
    [
        ("sys.exit()", OutcomeKind.SUCCESS),
        ("sys.exit(0)", OutcomeKind.SUCCESS),
        ("sys.exit(3)", OutcomeKind.ERROR),
        ("sys.exit('no')", OutcomeKind.ERROR),
        ("raise KeyboardInterrupt", OutcomeKind.ERROR),
        ("raise BaseException('bare')", OutcomeKind.ERROR),
    ],
    quick=3,
)
async def test_what_is_no_exception_is_reported_too(bench: Any, code: str, kind: OutcomeKind) -> None:
    await bench.open(f"""
        @flow.task
        def leave():
            {code}
    """)
    outcome, _ = await bench.run("leave")
    assert outcome.kind is kind
    if kind is OutcomeKind.ERROR:
        assert outcome.failure.error_type in ("SystemExit", "KeyboardInterrupt", "BaseException")


async def test_a_task_may_defer_or_skip(bench: Any) -> None:
    await bench.open(
        """
        from redrive.engine.errors import NotReady, SkipTask

        @flow.task
        def defer():
            raise NotReady("no file", recheck_seconds=12)

        @flow.task
        def wrong(seconds):
            raise NotReady("no file", recheck_seconds=seconds)

        @flow.task
        def skip():
            raise SkipTask("branch not taken")

        @flow.sensor(every=5)
        def look(ready):
            return ready
    """,
        declared={"ready": "", "seconds": ""},
    )
    deferred, _ = await bench.run("defer")
    assert (deferred.kind, deferred.recheck_seconds) == (OutcomeKind.DEFERRED, 12)
    assert (await bench.run("wrong", params={"seconds": "12"}))[0].recheck_seconds == 12
    assert (await bench.run("wrong", params={"seconds": "soon"}))[0].failure.error_type == "ValueError"
    assert (await bench.run("skip"))[0].kind is OutcomeKind.SKIPPED
    assert (await bench.run("look", params={"ready": ""}))[0].kind is OutcomeKind.DEFERRED
    assert (await bench.run("look", params={"ready": "file.csv"}))[0].result == '"file.csv"'


async def test_a_coroutine_function_is_run_to_its_end(bench: Any) -> None:
    await bench.open("""
        import asyncio

        @flow.task
        async def fetch(ctx):
            await asyncio.sleep(0)
            return ctx.task
    """)
    assert (await bench.run("fetch"))[0].result == '"fetch"'


async def test_a_generator_that_a_function_returns_is_refused_because_its_body_never_ran(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def generate():
            return (number for number in range(3))
    """)
    outcome, _ = await bench.run("generate")
    assert outcome.kind is OutcomeKind.ERROR
    assert "generator" in outcome.failure.message


async def test_a_result_that_cannot_be_stored_says_what_it_was(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def odd():
            return object()
    """)
    outcome, recorder = await bench.run("odd")
    why = "result is an object; return plain values, or the name of a file"
    assert (outcome.kind, reason_of_unstored(outcome.result)) == (OutcomeKind.SUCCESS, why)
    assert b"was not stored: result is an object" in recorder.text


async def test_a_path_is_stored_with_its_type(bench: Any) -> None:
    await bench.open("""
        import pathlib

        @flow.task
        def found():
            return {"files": [pathlib.Path("/a/b.csv")]}
    """)
    assert json.loads((await bench.run("found"))[0].result) == {"files": [{"redrive:path": "/a/b.csv"}]}


async def test_a_result_that_is_too_large_is_a_success_without_a_result(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def fits():
            return "x" * (16 * 1024 * 1024 - 2)

        @flow.task
        def too_large():
            return "x" * (16 * 1024 * 1024 - 1)
    """)
    assert len((await bench.run("fits"))[0].result) == 16 * 1024 * 1024
    outcome, _ = await bench.run("too_large")
    assert outcome.failure is None
    assert "16777217 bytes" in str(reason_of_unstored(outcome.result))


async def test_progress_and_heartbeats_arrive_in_order(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def steps(ctx):
            for done in range(10_001):
                ctx.progress(done, 10_000)
            ctx.heartbeat()
    """)
    outcome, recorder = await bench.run("steps")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert recorder.progresses[0] == (0, 10_000)
    assert recorder.progresses[-2:] == [(10_000, 10_000), (10_000, 10_000)]  # the heartbeat says the same again
    assert len(recorder.progresses) < 1000  # not each of ten thousand


async def test_the_last_progress_is_not_lost_to_the_interval(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def two(ctx):
            ctx.progress(1)
            ctx.progress(2)
    """)
    assert (await bench.run("two"))[1].progresses == [(1, None), (2, None)]


async def test_progress_is_reported_in_whole_steps_whatever_numbers_a_task_counts_with(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def halves(ctx):
            ctx.progress(0.5, 2.0)
            ctx.progress(2.0, 2.0)

        @flow.task
        def beyond(ctx):
            ctx.progress(-1, float("inf"))
            ctx.progress(2 ** 80)

        @flow.task
        def words(ctx):
            ctx.progress("half")
    """)
    outcome, recorder = await bench.run("halves")
    assert (outcome.kind, recorder.progresses) == (OutcomeKind.SUCCESS, [(0, 2), (2, 2)])
    largest = 2**63 - 1  # that the state file can hold
    assert (await bench.run("beyond"))[1].progresses == [(0, largest), (largest, None)]
    assert (await bench.run("words"))[0].failure.error_type == "TypeError"


async def test_retries_inside_the_task_are_reported(bench: Any) -> None:
    await bench.open("""
        from redrive.engine.toolkit.retry import retry

        calls = []

        @retry(retries=2, base=0)
        def flaky():
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            return len(calls)

        @flow.task
        def call():
            return flaky()
    """)
    outcome, recorder = await bench.run("call")
    assert outcome.result == "3"
    assert [retry.try_number for retry in recorder.retries] == [1, 2]


async def test_output_of_any_size_arrives_whole_and_in_order(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def chatty():
            for number in range(60_000):
                print("line of output", number)
            os.write(2, b"to stderr by hand\\n")
    """)
    outcome, recorder = await bench.run("chatty")
    lines = recorder.text.splitlines()
    assert outcome.kind is OutcomeKind.SUCCESS
    assert len(recorder.text) > 1024 * 1024
    assert lines[:-1] == [b"line of output %d" % number for number in range(60_000)]
    assert lines[-1] == b"to stderr by hand"


async def test_a_task_waits_while_its_output_is_not_read(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def chatty():
            print("begin")
            sys.stdout.write("x" * 2_000_000)
    """)
    recorder = await bench.start("chatty")
    await recorder.wait_for_output(b"begin")
    recorder.attempt.pause_output()
    await asyncio.sleep(0.2)  # time in which nothing may come
    assert len(recorder.text) < 1_000_000
    assert not recorder.is_over
    recorder.attempt.resume_output()
    assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS
    assert len(recorder.text) == 2_000_006


async def test_text_that_is_no_text_does_not_break_a_print(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def odd():
            print("\\udcff\\x1b[2J", flush=True)
            os.write(1, b"\\xff\\xfe")
    """)
    outcome, recorder = await bench.run("odd")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert recorder.text == b"\\udcff\x1b[2J\n\xff\xfe"


@parametrize_mostly_long("count", [30, 300])
async def test_instant_tasks_lose_no_result(bench: Any, count: int) -> None:
    """Document 000's own runner lost 10 of 300: the child exits between a look and a poll."""
    await bench.open("""
        @flow.task
        def instant(ctx):
            return ctx.attempt
    """)
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> str | None:
        async with gate:
            outcome, _ = await bench.run("instant", attempt=number)
            assert outcome.kind is OutcomeKind.SUCCESS, outcome
            return outcome.result

    assert await asyncio.gather(*map(one, range(count))) == [str(number) for number in range(count)]


async def test_a_child_that_dies_without_a_result_is_an_error_in_the_documents_words(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def vanish():
            os._exit(7)

        @flow.task
        def vanish_politely():
            os._exit(0)
    """)
    outcome, _ = await bench.run("vanish")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.failure.error_type == "exit:7"
    assert "child died without sending result" in outcome.failure.message
    assert (await bench.run("vanish_politely"))[0].kind is OutcomeKind.ERROR


async def test_a_crash_reports_its_signal_and_its_line(bench: Any) -> None:
    await bench.open("""
        import signal

        @flow.task
        def crash():
            os.kill(os.getpid(), signal.SIGSEGV)  # crash
            time.sleep(30)
    """)
    outcome, _ = await bench.run("crash")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.attempt_columns["signal"] == signal.SIGSEGV
    assert outcome.failure.error_type == "signal:11:unknown"
    assert f"flow_under_test.py:{bench.line_of('crash')} in crash" in outcome.failure.fingerprint.explain


async def test_a_sigkill_from_elsewhere_is_not_ours(bench: Any) -> None:
    await bench.open("""
        import signal

        @flow.task
        def killed():
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    outcome, _ = await bench.run("killed")
    assert outcome.kind is OutcomeKind.LOST
    assert outcome.failure.message.startswith("killed from outside")


async def test_a_program_that_the_kernel_killed_for_memory_below_a_shell_is_out_of_memory(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell reports the death of its child by its exit code, or in words; the kernel counts why."""
    await bench.open("""
        flow.command("shell", "sh -c 'kill -9 $$'; exit $?", timeout=30)
        flow.command("script", "echo 'load.sh: line 3: 17 Killed ./load'; exit 2", timeout=30)
        flow.command("other", "exit 3", timeout=30)
    """)
    names, counted = ("shell", "script", "other"), []
    for explains in (True, False):
        monkeypatch.setattr(OutOfMemoryWatch, "explains", lambda *_, explains=explains: explains)
        counted.append([(await bench.run(name))[0].failure.error_type for name in names])
    assert counted == [["signal:9:oom", "signal:9:oom", "exit:3"], ["exit:137", "exit:2", "exit:3"]]


async def test_a_sigterm_from_elsewhere_runs_finally_blocks_and_is_an_error(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def stopped():
            try:
                print("ready")
                time.sleep(60)
            finally:
                print("cleaned")
    """)
    recorder = await bench.start("stopped")
    await recorder.wait_for_output(b"ready")
    os.kill(recorder.pid, signal.SIGTERM)
    outcome = await recorder.outcome()
    assert outcome.failure.error_type == "signal:15:unknown"
    assert recorder.text == b"ready\ncleaned\n"


async def test_a_process_that_the_task_forked_does_not_speak_in_its_name(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def doubled(ctx):
            if os.fork() == 0:
                ctx.progress(99)
                return "child"
            os.wait()
            return "parent"
    """)
    outcome, recorder = await bench.run("doubled")
    assert outcome.result == '"parent"'
    assert recorder.progresses == []


async def test_bytes_scribbled_on_the_result_pipe_harm_nobody_else(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def scribble():
            for fd in range(3, 1024):
                try:
                    os.write(fd, b"\\xff" * 100)
                except OSError:
                    pass

        @flow.task
        def fine():
            return 1
    """)
    outcome, _ = await bench.run("scribble")
    assert outcome.kind is OutcomeKind.ERROR
    assert (await bench.run("fine"))[0].result == "1"


async def test_a_task_that_closes_all_descriptors_is_distinguished_from_a_success(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def close_all():
            os.closerange(3, 1024)
            return 1
    """)
    outcome, recorder = await bench.run("close_all")
    assert outcome.kind is OutcomeKind.ERROR
    assert "child died without sending result" in outcome.failure.message
    assert b"Bad file descriptor" in recorder.text


async def test_exit_functions_of_the_task_run_and_threads_are_joined(bench: Any) -> None:
    await bench.open("""
        import atexit, threading
        atexit.register(print, "of the import: not in an attempt")

        def late():
            time.sleep(0.2)
            print("thread done")

        @flow.task
        def work():
            atexit.register(print, "of the task")
            threading.Thread(target=late).start()
            return 1
    """)
    outcome, recorder = await bench.run("work")
    assert outcome.result == "1"
    assert recorder.text == b"thread done\nof the task\n"


async def test_a_success_stands_though_the_process_does_not_end(bench: Any) -> None:
    await bench.open("""
        import threading

        @flow.task(grace_seconds=0.3)
        def work():
            threading.Thread(target=time.sleep, args=(600,)).start()
            return "done"
    """)
    outcome, recorder = await bench.run("work")
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, '"done"')
    assert outcome.attempt_columns["late_exit"] is True
    assert recorder.kinds == ["sigkill"]
    assert recorder.payload_of("sigkill").reason == "late exit"


async def test_memory_that_runs_out_inside_the_task_is_an_exception(bench: Any) -> None:
    await bench.open("""
        import resource

        @flow.task
        def greedy():
            resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000))
            return len(bytearray(1_000_000_000))
    """)
    assert (await bench.run("greedy"))[0].failure.error_type == "MemoryError"


async def test_rules_and_policy_reach_the_classifier(bench: Any) -> None:
    await bench.open("""
        @flow.task
        def fail():
            raise KeyError("x")
    """)
    spec = structs.replace(bench.task("fail"), retry=RetryPolicy(never_retry=("KeyError",)))
    assert (await bench.run("fail", spec=spec))[0].failure.failure_class is FailureClass.PERMANENT
    assert (await bench.run("fail"))[0].failure.failure_class is not FailureClass.PERMANENT
