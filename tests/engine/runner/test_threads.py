"""Tasks in threads: no fork, and no force but on their whole process, by a rule; and who is to blame for its end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import FailureClass, LostWith, Outcome, OutcomeKind
from redrive.engine.domain.event_payloads import ExecutorChanged
from redrive.engine.runner.child import run_coroutine
from redrive.engine.runner.protocol import RunnerListener
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.thread_host import CancelToken


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


@pytest.mark.spawns
async def test_what_a_thread_logs_is_its_output(bench: Any) -> None:
    """A handler that the import has made holds the stream of that moment."""
    await bench.open("""
        import logging
        logging.basicConfig(level="INFO", format="%(message)s")
        log = logging.getLogger("etl.orders")
        log.addHandler(logging.StreamHandler(sys.stdout))

        @flow.task(isolation="thread")
        def task(ctx):
            log.info("attempt %d", ctx.attempt)
    """)
    runs = await asyncio.gather(*(bench.run("task", attempt=number) for number in (1, 2)))
    assert [recorder.text for _, recorder in runs] == [b"attempt 1\nattempt 1\n", b"attempt 2\nattempt 2\n"]


async def test_what_a_thread_writes_to_a_stream_that_the_import_has_kept_is_its_output(bench: Any) -> None:
    """As loguru keeps ``sys.stderr`` when it is imported."""
    await bench.open("""
        kept = sys.stderr

        class Sink:
            write = staticmethod(sys.stderr.write)

        @flow.task(isolation="thread")
        def task(ctx):
            kept.write(f"attempt {ctx.attempt}\\n")
            Sink.write(f"by its method {ctx.attempt}\\n")
            kept.writelines(["as ", "lines\\n"])
    """)
    runs = await asyncio.gather(*(bench.run("task", attempt=number) for number in (1, 2)))
    texts = [b"attempt %d\nby its method %d\nas lines\n" % (number, number) for number in (1, 2)]
    assert [recorder.text for _, recorder in runs] == texts


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


async def test_a_machine_without_a_thread_left_is_not_the_fault_of_the_task(bench: Any) -> None:
    """As an attempt whose process cannot be started, it is tried again and never becomes poison."""
    await bench.open("""
        import threading

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        @flow.task(isolation="thread")
        def take_all():
            threading.Thread.start = refuse

        @flow.task(isolation="thread")
        def other():
            pass
    """)
    assert (await bench.run("take_all"))[0].kind is OutcomeKind.SUCCESS
    failure = (await bench.run("other"))[0].failure
    assert (failure.failure_class, failure.message) == (
        FailureClass.TRANSIENT,
        "its thread could not be started: can't start new thread",
    )


async def test_a_task_that_checks_its_token_ends_in_time(bench: Any) -> None:
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

    def is_shown(outcome: Any, recorder: Any) -> bool:
        return "in polite" in str(recorder.payload_of("stack").where)

    outcome, recorder = await bench.run_until(is_shown, "polite")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert outcome.failure.message.startswith("task exceeded 0.4s")  # and its place, if it slept at that instant
    assert recorder.text == b"cleaned True\n"
    assert recorder.kinds == ["deadline", "stack"]
    assert "in polite" in outcome.attempt_columns["stack"]
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
    await recorder.wait_for_output(b"ready")
    assert recorder.attempt.cancel("enough")
    assert (await recorder.outcome()).kind is OutcomeKind.CANCELLED
    assert recorder.text == b"ready\nclosed\n"


def test_a_coroutine_is_cancelled_though_its_token_was_set_before_its_loop_began() -> None:
    token = CancelToken()
    token.set()
    with pytest.raises(asyncio.CancelledError):
        run_coroutine(asyncio.sleep(600), token.bind)


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
        await recorder.wait_for_output(b"ready")
        dump = await recorder.stack(bool)
        assert f"in {name}" in dump
        assert dump.count("Thread 0x") == 1
    stop.touch()
    for recorder in recorders.values():
        assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS


async def test_retries_are_reported_by_the_thread_that_made_them(bench: Any) -> None:
    await bench.open("""
        from redrive.engine.toolkit.retry import retry

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


# --- Threads that ignore their token ------------------------------------------------------------------------------

STUBBORN = """
    @flow.task(isolation="thread", timeout=60, grace_seconds=0.3)
    def stubborn(stop):
        print("ready")
        while not os.path.exists(stop):
            time.sleep(0.01)

    @flow.task(isolation="thread")
    def neighbour(leave):
        print("ready")
        while not os.path.exists(leave):
            time.sleep(0.01)
        return os.getpid()

    @flow.task(isolation="thread")
    def silent(leave):
        while not os.path.exists(leave):
            time.sleep(0.01)

    @flow.task(isolation="thread")
    def quick():
        return os.getpid()
"""


class News:
    """What the runner told of its processes, and when a slot may have become free."""

    def __init__(self, runner: Runner) -> None:
        self.emitted: list[ExecutorChanged] = []
        self._runner = runner
        self._freed = asyncio.Event()
        runner.listen(RunnerListener(slot_freed=self._freed.set, executor_changed=self.emitted.append))

    async def all_slots_are_free(self) -> None:
        async with asyncio.timeout(30):
            while self._runner.leaked_slots:
                self._freed.clear()
                await self._freed.wait()


async def run_stubborn(bench: Any, **params: str) -> tuple[Outcome, Any]:
    """Run a thread that ignores its token. Its deadline comes once it runs: else it would end before it begins."""
    stubborn = await bench.start("stubborn", params=params)
    await stubborn.wait_for_output(b"ready")
    assert stubborn.attempt.extend(0.3 - 60)
    return await stubborn.outcome(), stubborn


async def leak(bench: Any, tmp_path: Path) -> tuple[Any, Any, News]:
    """A neighbour that runs, and beside it a thread that ignored its token."""
    news = News(bench.runner)
    await bench.open(STUBBORN, params={"stop": "", "leave": ""}, declared={"stop": "", "leave": ""})
    params = {"stop": str(tmp_path / "stop"), "leave": str(tmp_path / "leave")}
    neighbour = await bench.start("neighbour", params=params)
    await neighbour.wait_for_output(b"ready")
    outcome, stubborn = await run_stubborn(bench, **params)
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert stubborn.kinds == ["deadline", "stack", "leaked"]
    assert bench.runner.leaked_slots == 1
    assert stubborn.pid == neighbour.pid
    return neighbour, stubborn, news


async def test_a_thread_that_ignores_its_token_is_killed_with_its_process_when_it_is_alone_there(
    bench: Any, tmp_path: Path, survivors: Any
) -> None:
    news = News(bench.runner)
    await bench.open(STUBBORN)
    outcome, stubborn = await run_stubborn(bench, stop=str(tmp_path / "stop"))
    assert outcome.kind is OutcomeKind.TIMED_OUT
    await news.all_slots_are_free()
    assert survivors([stubborn.pid]) == []
    assert news.emitted == [ExecutorChanged("threads-killed", pid=stubborn.pid, leaked=["stubborn"], lost=[])]
    assert (await bench.run("quick"))[0].result not in (None, str(stubborn.pid))


async def test_a_leaked_thread_holds_its_slot_while_a_neighbour_runs_and_newcomers_go_elsewhere(
    bench: Any, tmp_path: Path, survivors: Any
) -> None:
    neighbour, stubborn, news = await leak(bench, tmp_path)
    assert (await bench.run("quick"))[0].result != str(stubborn.pid)
    assert bench.runner.leaked_slots == 1
    (tmp_path / "leave").touch()
    assert (await neighbour.outcome()).result == str(stubborn.pid)
    await news.all_slots_are_free()
    assert survivors([stubborn.pid]) == []
    assert news.emitted == [ExecutorChanged("threads-killed", pid=stubborn.pid, leaked=["stubborn"], lost=[])]


async def test_a_leaked_thread_that_ends_after_all_frees_its_slot_and_harms_nobody(bench: Any, tmp_path: Path) -> None:
    neighbour, stubborn, news = await leak(bench, tmp_path)
    (tmp_path / "stop").touch()
    await news.all_slots_are_free()
    assert not neighbour.is_over
    (tmp_path / "leave").touch()
    assert (await neighbour.outcome()).result == str(stubborn.pid)
    assert news.emitted == []


async def test_when_others_want_its_slot_for_too_long_the_process_is_killed_and_the_neighbour_lost_without_blame(
    bench: Any, tmp_path: Path
) -> None:
    bench.runner.patience_seconds = 0.2
    neighbour, stubborn, news = await leak(bench, tmp_path)
    bench.runner.set_slot_demand(True)
    outcome = await neighbour.outcome()
    assert outcome.kind is OutcomeKind.LOST
    assert outcome.is_blameless
    assert "'stubborn' ignored its cancel token" in outcome.failure.message
    await news.all_slots_are_free()
    assert news.emitted == [
        ExecutorChanged("threads-killed", pid=stubborn.pid, leaked=["stubborn"], lost=["neighbour"])
    ]


async def test_when_others_want_its_slot_for_a_moment_only_the_neighbour_goes_on(bench: Any, tmp_path: Path) -> None:
    bench.runner.patience_seconds = 0.2
    neighbour, *_ = await leak(bench, tmp_path)
    bench.runner.set_slot_demand(True)
    bench.runner.set_slot_demand(False)
    await asyncio.sleep(0.4)  # twice as long as patience would have lasted
    (tmp_path / "leave").touch()
    assert (await neighbour.outcome()).kind is OutcomeKind.SUCCESS


# --- Threads that end their process -------------------------------------------------------------------------------

ENDS = """
    import ctypes, threading

    answering = []

    @flow.task(isolation="thread")
    def waits(ctx):
        print("ready")
        time.sleep(600)

    @flow.task(isolation="thread")
    def leaves():
        print("bye")
        os._exit(3)

    @flow.task(isolation="thread")
    def leaves_after_the_answer():
        while len(answering) < 2:  # the test starts the other task twice
            time.sleep(0.01)
        answering[1].join()
        os._exit(3)

    @flow.task(isolation="thread")
    def crashes():
        ctypes.string_at(0)  # here

    @flow.task(isolation="thread")
    def leaves_unseen():
        ctypes.CDLL(None)._exit(3)

    @flow.task(isolation="thread")
    def answers():
        answering.append(threading.current_thread())
        print("result follows")
        return 1

    @flow.task(isolation="thread")
    def forks(leave):
        if os.fork() == 0:
            while not os.path.exists(leave):
                time.sleep(0.01)
            os._exit(0)

    @flow.task(isolation="thread")
    def forks_and_prints():
        pid = os.fork()
        if pid == 0:
            print("from the child", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)

    @flow.task(isolation="thread")
    def forks_and_returns():
        print("twice", flush=True)
        os.fork()
        return os.getpid()
"""


async def beside_a_neighbour(bench: Any, name: str) -> tuple[Outcome, Outcome]:
    """What came of a task, and of another that waited in the same process."""
    await bench.open(ENDS)
    neighbour = await bench.start("waits")
    await neighbour.wait_for_output(b"ready")
    recorder = await bench.start(name)
    return await recorder.outcome(), await neighbour.outcome()


async def test_a_task_that_leaves_by_os_exit_fails_and_its_neighbour_is_lost_without_blame(bench: Any) -> None:
    outcome, neighbour = await beside_a_neighbour(bench, "leaves")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.failure.error_type == "exit:3"
    assert outcome.failure.message == "child died without sending result (exit code 3)"
    assert neighbour.kind is OutcomeKind.LOST
    assert neighbour.is_blameless
    assert neighbour.failure.message == "task 'leaves' ended the process that they shared (exit code 3)"
    assert (await bench.run("answers"))[0].result == "1"  # in a new process


async def test_a_task_that_crashes_fails_with_its_place_and_its_neighbour_is_lost_without_blame(bench: Any) -> None:
    outcome, neighbour = await beside_a_neighbour(bench, "crashes")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.attempt_columns["signal"] == signal.SIGSEGV
    assert f"line {bench.line_of('here')} in crashes" in outcome.attempt_columns["stack"]
    assert "in waits" not in outcome.attempt_columns["stack"]
    assert (neighbour.kind, neighbour.is_blameless) == (OutcomeKind.LOST, True)


async def test_where_nobody_can_know_who_ended_the_process_all_are_lost_and_it_counts(bench: Any) -> None:
    for outcome in await beside_a_neighbour(bench, "leaves_unseen"):
        assert (outcome.kind, outcome.is_blameless, outcome.lost_with) == (OutcomeKind.LOST, False, LostWith.PROCESS)
        assert outcome.failure.message.endswith("died (exit code 3)")


async def test_a_task_that_was_alone_in_the_process_that_ended_is_the_one_that_ended_it(bench: Any) -> None:
    await bench.open(ENDS)
    outcome, _ = await bench.run("leaves_unseen")
    assert (outcome.kind, outcome.failure.error_type) == (OutcomeKind.ERROR, "exit:3")


async def test_a_process_that_is_killed_from_outside_loses_its_attempts_and_is_replaced(bench: Any) -> None:
    await bench.open(ENDS)
    recorder = await bench.start("waits")
    await recorder.wait_for_output(b"ready")
    os.kill(recorder.pid, signal.SIGKILL)
    outcome = await recorder.outcome()
    assert (outcome.kind, outcome.is_blameless) == (OutcomeKind.LOST, False)
    assert (await bench.run("answers"))[0].result == "1"


@pytest.mark.parametrize("isolation", ["process", "worker", "thread"])
async def test_an_attempt_is_lost_with_its_process_in_each_isolation(bench: Any, isolation: str) -> None:
    """So a task with one attempt, whose process something outside has killed, is not started again."""
    await bench.open(f"""
        @flow.task(isolation="{isolation}")
        def waits():
            print("ready")
            time.sleep(600)
    """)
    recorders = [await bench.start("waits", attempt=number) for number in (1, 2)]
    for recorder in recorders:
        await recorder.wait_for_output(b"ready")
    for pid in {recorder.pid for recorder in recorders}:
        os.kill(pid, signal.SIGKILL)
    outcomes = [await recorder.outcome() for recorder in recorders]
    assert [outcome.failure.message for outcome in outcomes] == ["killed from outside (SIGKILL)"] * 2
    assert all(outcome.lost_with is LostWith.PROCESS and not outcome.is_blameless for outcome in outcomes)


async def test_a_result_that_was_written_stands_though_a_neighbour_ends_the_process_before_it_is_read(
    bench: Any,
) -> None:
    await bench.open(ENDS)
    await bench.run("answers")  # the process is there
    recorder = await bench.start("answers")
    recorder.attempt.pause_output()
    outcome, _ = await bench.run("leaves_after_the_answer")
    assert outcome.failure.error_type == "exit:3"
    written = await recorder.outcome()
    assert (written.kind, written.result, recorder.text) == (OutcomeKind.SUCCESS, "1", b"result follows\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_everybody_does_not_end_the_process_of_threads(bench: Any, number: signal.Signals) -> None:
    await bench.open(STUBBORN)
    neighbour = await bench.start("neighbour", params={"leave": str(bench.folder / "leave")})
    await neighbour.wait_for_output(b"ready")
    os.kill(neighbour.pid, number)
    (bench.folder / "leave").touch()
    assert (await neighbour.outcome()).result == str(neighbour.pid)


async def test_an_attempt_ends_with_its_result_though_a_forked_process_holds_its_pipes(bench: Any) -> None:
    await bench.open(ENDS)
    answers = await bench.start("answers")
    outcome, _ = await bench.run("forks", params={"leave": str(bench.folder / "leave")})
    assert outcome.kind is OutcomeKind.SUCCESS
    assert (await answers.outcome()).kind is OutcomeKind.SUCCESS
    (bench.folder / "leave").touch()


async def test_a_forked_process_that_comes_back_out_of_the_function_says_nothing(bench: Any) -> None:
    await bench.open(ENDS)
    outcome, recorder = await bench.run("forks_and_returns")
    assert outcome.result == str(recorder.pid)
    assert (await bench.run("answers"))[0].result == "1"


async def test_what_a_forked_process_prints_is_output_of_the_attempt(bench: Any) -> None:
    await bench.open(ENDS)
    outcome, recorder = await bench.run("forks_and_prints")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert recorder.text == b"from the child\n"


async def test_an_attempt_without_output_takes_no_descriptor(bench: Any) -> None:
    await bench.open(STUBBORN)
    leave = bench.folder / "leave"
    first = await bench.start("silent", params={"leave": str(leave)})
    before = len(os.listdir("/proc/self/fd"))
    others = [await bench.start("silent", params={"leave": str(leave)}) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before  # a collection of garbage may close files of earlier tests
    leave.touch()
    for recorder in (first, *others):
        assert (await recorder.outcome()).kind is OutcomeKind.SUCCESS
