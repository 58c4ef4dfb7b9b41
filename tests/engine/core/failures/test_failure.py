"""From an exception, an exit code, a signal or a deadline to the data that the executor gets."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.failures.attempt_end import AttemptEnd, signal_failure, timeout_failure
from redrive.engine.core.failures.failure import (
    MESSAGE_MAX,
    TRACEBACK_MAX,
    failure_of_error,
    failure_of_exit,
    traceback_of,
)
from redrive.engine.core.failures.fingerprint import fingerprint_v1
from redrive.engine.core.outcome import FailureClass
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.errors import PermanentError, RetryAfter

ROOT = str(Path(__file__).parent)
ENGINE = str(Path(failure_of_error.__code__.co_filename).parents[1] / "runner" / "call.py")


def settle(row: dict[str, int]) -> float:
    return row["amount"] / row["count"]


def caught(row: dict[str, int]) -> Exception:
    try:
        settle(row)
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def test_a_failure_reports_every_cause():
    """000.30, 004.09: type, message, class, fingerprint, traceback: as data, computed where the exception is."""
    error = caught({"amount": 1, "count": 0})
    failure = failure_of_error(error, project_root=ROOT, code_hash="c0de")
    assert failure.error_type == "ZeroDivisionError"
    assert failure.message == "division by zero"
    assert failure.failure_class is FailureClass.UNCLASSIFIED
    assert failure.fingerprint.v1 == fingerprint_v1(error)
    assert failure.fingerprint.explain.startswith("ZeroDivisionError test_failure.py:")
    assert failure.fingerprint.explain.endswith(" in settle")
    assert failure.fingerprint.parts[1] == "c0de"
    assert 'return row["amount"] / row["count"]' in failure.traceback


def test_zero_division_and_key_error_are_two_failures():
    """Part 0.1: through document 000's subprocess both got one fingerprint."""
    first, second = failure_of_error(caught({"amount": 1, "count": 0})), failure_of_error(caught({"amount": 1}))
    assert first.fingerprint.strict != second.fingerprint.strict
    assert (first.error_type, second.error_type) == ("ZeroDivisionError", "KeyError")


def test_two_bad_rows_of_one_bug_are_one_failure():
    """000.28: a null field fails the same way whatever the row."""
    first, second = (
        failure_of_error(caught({"amount": 1, "count": 0})),
        failure_of_error(caught({"amount": 99, "count": 0})),
    )
    assert first.fingerprint.strict == second.fingerprint.strict


def test_rules_policy_and_waits_reach_the_failure():
    """004.04, 004.08."""
    assert failure_of_error(RetryAfter(30)).retry_after_seconds == 30
    ruled = failure_of_error(KeyError("x"), rules=[{"error": "KeyError", "class": "transient"}])
    assert ruled.failure_class is FailureClass.TRANSIENT
    assert (
        failure_of_error(KeyError("x"), policy=RetryPolicy(retry_on=("TransientError",))).failure_class
        is FailureClass.PERMANENT
    )
    with pytest.raises(ValueError, match="no condition"):
        failure_of_error(KeyError("x"), rules=[{"class": "transient"}])


def test_the_diagnostic_of_the_task_is_the_failures():
    """004.09."""
    assert failure_of_error(PermanentError("no", diagnostic="row 7 has no key")).diagnostic == "row 7 has no key"


def test_long_texts_are_cut_to_their_ends():
    error = ValueError("x" * 1_000_000 + "the end")
    failure = failure_of_error(error)
    assert len(failure.message) < MESSAGE_MAX + 100
    assert failure.message.endswith("the end")
    assert len(failure.traceback) < TRACEBACK_MAX + 100


def test_a_recursion_is_described_in_bounded_space():
    """000.16: an endless recursion is described, and its traceback fits."""

    def even(number: int) -> bool:
        return odd(number - 1)

    def odd(number: int) -> bool:
        return even(number - 1)

    with pytest.raises(RecursionError) as caught:
        even(0)
    assert len(failure_of_error(caught.value).traceback) < TRACEBACK_MAX + 100


def test_the_frames_of_the_engine_are_not_shown(tmp_path):
    """The reader of a traceback wants the task, not the machinery that called it."""
    from redrive.engine.core import policy

    try:
        policy.RetryPolicy(max_attempts=0)
    except ValueError as error:
        text = traceback_of(error)
    assert "test_failure.py" in text
    assert "policy.py" not in text
    assert text.rstrip().endswith("not 0")


async def settle_later(row: dict[str, int]) -> float:
    await asyncio.sleep(0)
    return settle(row)


async def settle_together(row: dict[str, int]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(settle_later(row))


def raised_by(coroutine: Coroutine[Any, Any, Any]) -> BaseException:
    """As an attempt runs it: the frames of the event loop come first."""
    sink: list[BaseException] = []
    calling = compile(
        "try:\n    run(coroutine)\nexcept BaseException as error:\n    sink.append(error)", ENGINE, "exec"
    )
    exec(calling, {"run": asyncio.run, "coroutine": coroutine, "sink": sink})
    return sink[0]


def test_the_traceback_of_a_coroutine_begins_with_the_users_own_line():
    """Six frames of asyncio and of the engine came before it."""
    lines = traceback_of(raised_by(settle_later({"amount": 1, "count": 0}))).splitlines()
    assert f'File "{__file__}"' in lines[1] and lines[1].endswith("in settle_later")
    assert not any("asyncio" in line for line in lines)


def test_the_tracebacks_in_a_group_begin_there_too():
    error = raised_by(settle_together({"amount": 1, "count": 0}))
    lines = traceback_of(error).splitlines()
    assert lines[1].endswith("in settle_together")
    assert not any("runners.py" in line or "base_events.py" in line for line in lines)
    assert any(line.endswith("in settle_later") for line in lines)


def test_a_group_says_what_the_first_of_its_exceptions_says():
    failure = failure_of_error(raised_by(settle_together({"amount": 1, "count": 0})), project_root=ROOT)
    assert failure.message.startswith("ZeroDivisionError: division by zero (unhandled errors in a TaskGroup")
    assert failure.error_type == "ExceptionGroup"


async def give_up(error: Exception) -> None:
    try:
        raise ConnectionError("the bank is down")
    except ConnectionError as cause:
        raise error from cause


@pytest.mark.parametrize("text", ["", "RetryError[<Future at 0x7f754f671a50 state=finished raised ConnectionError>]"])
def test_an_error_without_facts_says_what_its_cause_says(text):
    failure = failure_of_error(raised_by(give_up(RuntimeError(text))), project_root=ROOT)
    assert failure.message == "ConnectionError: the bank is down"
    assert failure.error_type == "RuntimeError"


def test_errors_that_are_causes_of_each_other_have_a_message():
    itself, first, second = TimeoutError(), RuntimeError(), ValueError()
    itself.__cause__, first.__cause__, second.__cause__ = itself, second, first
    assert failure_of_error(itself, project_root=ROOT).error_type == "TimeoutError"
    assert failure_of_error(first, project_root=ROOT).message == "ValueError"


def test_an_error_with_facts_says_them_itself():
    assert failure_of_error(raised_by(give_up(RuntimeError("no rows"))), project_root=ROOT).message == "no rows"


def test_a_failure_inside_the_library_keeps_its_frames():
    """Only what comes before the first line of the user's own is left out."""
    with pytest.raises(ValueError) as caught:
        json.loads("{")
    lines = traceback_of(caught.value)
    assert "test_failure.py" in lines.splitlines()[1]
    assert "decoder.py" in lines


def test_an_exit_code_is_a_failure():
    failure = failure_of_exit(75, stderr="loading\npsql: server is starting up\n")
    assert failure.error_type == "exit:75"
    assert failure.message == "exit status 75: psql: server is starting up"
    assert failure.failure_class is FailureClass.TRANSIENT
    assert failure.diagnostic == "loading\npsql: server is starting up"
    assert failure_of_exit(1).message == "exit status 1"


def test_rules_speak_of_exit_codes_and_signals_too():
    """004.08."""
    rules = [{"exit_code": 1, "message": "deadlock", "class": "transient"}, {"signal": 11, "class": "permanent"}]
    assert failure_of_exit(1, stderr="ERROR: Deadlock found", rules=rules).failure_class is FailureClass.TRANSIENT
    assert failure_of_exit(1, stderr="ERROR: syntax", rules=rules).failure_class is FailureClass.UNCLASSIFIED
    assert signal_failure(AttemptEnd(rules=tuple(rules)), 11).failure_class is FailureClass.PERMANENT


def test_out_of_memory_says_how_much_it_had():
    """4.1: ``signal:<n>:oom``, with the memory figure."""
    end = AttemptEnd(out_of_memory=True, memory_bound="4 GB that it had", usage={"max_rss_kb": 2048 * 1024})
    failure = signal_failure(end, 9)
    assert (failure.error_type, failure.failure_class) == ("signal:9:oom", FailureClass.OUT_OF_MEMORY)
    assert failure.diagnostic == "it held at most 2048 MiB of the 4 GB that it had"


def test_a_crash_reports_where_python_stood():
    """4.1: a real segmentation fault with faulthandler's own words."""
    program = "import faulthandler; faulthandler.enable()\ndef parse(): faulthandler._sigsegv()\nparse()\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    failure = signal_failure(AttemptEnd(stack=ended.stderr), -ended.returncode)
    assert failure.message == "ended by SIGSEGV at <string>:2 in parse"


def test_a_timeout_speaks_document_000s_sentence():
    """000.22: ``task exceeded {n}s``; 000.42: never poison by its type: its class is its own."""
    stack = 'Current thread 0x1 (most recent call first):\n  File "/srv/flow.py", line 9 in wait_for_lock\n'
    failure = timeout_failure(AttemptEnd(timeout=10.0, stack=stack, project_root="/srv"))
    assert failure.message == "task exceeded 10s"
    assert failure.failure_class is FailureClass.TIMEOUT
    assert failure.diagnostic == "it was at flow.py:9 in wait_for_lock"
    assert failure.fingerprint.fields[1] == ("place", "flow.py:wait_for_lock")
    assert timeout_failure(AttemptEnd(timeout=0.5)).diagnostic is None


# --- The body of a response that urllib leaves unread ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "sent", "diagnostic"),
    [
        ("Content-Length: 17", b'{"amount": "bad"}', 'HTTP 422\n{"amount": "bad"}'),
        ("Content-Length: 17", b"", "HTTP 422"),  # it never comes
        ("Content-Length: 0", b"", "HTTP 422"),
    ],
)
def test_the_body_of_a_refused_request_of_urllib_is_shown(head: str, sent: bytes, diagnostic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 422 Unprocessable Entity\r\n{head}\r\n\r\n".encode() + sent)
                over.wait()

        over = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/")
            assert failure_of_error(raised.value).diagnostic == diagnostic
        finally:
            over.set()
            thread.join()
