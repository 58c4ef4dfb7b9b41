"""Attempts omit the cleanup of ``threading`` and ``logging`` after their fork, and their own forks do not."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from redrive.engine.runner.zygote import fork_cleanup

#: Tells what ``threading`` knows, and has a fork of its own tell the same beside a thread that holds a lock.
TASK = """
    import atexit, threading

    def told():
        alive = [thread.name for thread in threading.enumerate()]
        return [alive, threading.current_thread() is threading.main_thread(), threading.main_thread().is_alive()]

    @flow.task
    def fork():
        before, hook = told(), threading._after_fork.__code__.co_name
        is_held, end = threading.Event(), threading.Event()

        def hold():
            with threading._active_limbo_lock:
                is_held.set()
                end.wait()

        thread = threading.Thread(target=hold, name="holder", daemon=True)
        thread.start()
        is_held.wait()
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, repr(told()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        end.set()
        thread.join()
        return [before, hook, os.read(read, 1000).decode()]
"""

ALONE = [["MainThread"], True, True]


async def test_a_fork_of_an_attempt_forgets_its_threads_and_renews_their_locks(bench: Any) -> None:
    await bench.open(TASK)
    outcome, _ = await bench.run("fork")
    assert json.loads(outcome.result) == [ALONE, "_after_fork", repr(ALONE)]


async def test_a_thread_that_the_import_left_behind_keeps_the_cleanup(bench: Any) -> None:
    """It has ended, but an attempt may still join it."""
    await bench.open("""
        import threading
        ended = threading.Thread(target=print)
        ended.start()
        ended.join()

        @flow.task
        def join():
            ended.join()
            return [ended.is_alive(), hasattr(threading, "_code_after_fork")]
    """)
    assert json.loads((await bench.run("join"))[0].result) == [False, False]


#: Has a thread use the lock of ``logging``, and a fork the lock of a handler that a thread holds at the fork.
LOGGING_TASK = """
    import logging, threading
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)

    @flow.task
    def fork():
        free = []
        thread = threading.Thread(target=lambda: free.append(logging._lock.acquire(False)) or logging._lock.release())
        thread.start()
        thread.join()
        hook = logging._after_at_fork_child_reinit_locks.__code__.co_name
        is_held, end = threading.Event(), threading.Event()

        def hold():
            with handler.lock:
                is_held.set()
                end.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        is_held.wait()
        if (pid := os.fork()) == 0:
            os._exit(7 if handler.lock.acquire(False) and logging._lock.acquire(False) else 8)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        end.set()
        thread.join()
        return [free, hook, status]
"""


async def test_a_fork_of_an_attempt_renews_the_locks_of_logging(bench: Any) -> None:
    await bench.open(LOGGING_TASK)
    outcome, _ = await bench.run("fork")
    assert json.loads(outcome.result) == [[True], "_after_at_fork_child_reinit_locks", 7]


#: Draws a number in the attempt and in a fork of it, and seeds in each way afterwards.
RANDOM_TASK = """
    import random

    @flow.task
    def draw():
        hook, numbers = random.Random.seed.__code__.co_qualname, [random.random()]
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, repr(random.random()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        numbers.append(float(os.read(read, 100)))
        numbers.append(random.random())
        random.seed("seed")
        return [hook, numbers, random.random() == random.Random("seed").random()]
"""


async def test_each_attempt_and_each_fork_of_it_draws_numbers_of_its_own(bench: Any) -> None:
    await bench.open(RANDOM_TASK)
    results = [json.loads((await bench.run("draw", attempt=attempt))[0].result) for attempt in (1, 2, 3)]
    assert {(hook, *facts) for hook, _, *facts in results} == {("Random.seed", True)}
    assert len({number for _, numbers, *_ in results for number in numbers}) == 9


def test_an_untried_version_of_python_keeps_the_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99))
    monkeypatch.setattr(fork_cleanup, "_is_alone", lambda _: True)
    replaced: list[object] = []
    monkeypatch.setattr(fork_cleanup, "_replace", lambda *what: replaced.append(what))
    fork_cleanup.omit_fork_cleanup()
    assert not replaced
