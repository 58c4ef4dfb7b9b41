"""Native frames of what hangs, by a real ``py-spy``: what C code does, and nothing where it cannot be known."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import psutil
import pytest
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.core.failures.hang import NativeFrame, NativeStack
from redrive.engine.runner import attempt
from redrive.engine.runner.autopsy import Subject, native_stack
from support.commands import quoted
from support.marks import parametrize_mostly_long
from support.processes import is_gone
from support.waiting import wait_until, wait_until_async

PY_SPY = str(Path(sysconfig.get_path("scripts"), "py-spy"))
_HANG = """
import ctypes
def inner():
    print(flush=True)
    ctypes.CDLL(None).pause()
inner()
"""
SECONDS = 60.0  # for py-spy, on a machine that does much else


@pytest.fixture
def hanging() -> Iterator[int]:
    """A process of Python that hangs in C."""
    with subprocess.Popen([sys.executable, "-c", _HANG], stdout=subprocess.PIPE) as found:
        assert found.stdout is not None and found.stdout.readline()
        yield found.pid
        found.kill()


async def test_the_calls_of_c_and_then_those_of_python_are_named(hanging: int) -> None:
    found = await native_stack(PY_SPY, Subject(hanging), time.monotonic() + SECONDS)
    assert found is not None and found.pid == hanging
    native = [frame for frame in found.frames if frame.is_native]
    assert "pause" in {frame.function for frame in native} and "libc" in native[0].place
    assert NativeFrame("inner", "<string>:5", is_native=False) in found.frames


async def test_the_first_process_of_python_below_a_shell_is_read(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(_HANG)
    with subprocess.Popen(
        ["sh", "-c", f"{quoted(sys.executable)} hang.py; true"], cwd=tmp_path, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None and shell.stdout.readline()
        found = await native_stack(PY_SPY, Subject(shell.pid), time.monotonic() + SECONDS)
        assert found is not None and found.pid != shell.pid
        os.kill(found.pid, 9)


@pytest.mark.parametrize("script", ["exit 1", "echo '[]'", "echo '{}'", "echo 'no JSON'", "echo '[{\"frames\": 1}]'"])
async def test_a_py_spy_that_fails_or_says_something_else_leaves_nothing(
    tmp_path: Path, script: str, hanging: int, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho 'Permission denied' >&2\n{script}\n")
    program.chmod(0o755)
    assert await native_stack(str(program), Subject(hanging), time.monotonic() + SECONDS) is None
    assert await native_stack(str(tmp_path / "none"), Subject(hanging), time.monotonic() + SECONDS) is None
    assert capfd.readouterr() == ("", "")


async def test_a_py_spy_that_takes_too_long_is_ended_and_what_it_stopped_goes_on(tmp_path: Path, hanging: int) -> None:
    program, begun = tmp_path / "py-spy", tmp_path / "begun"
    program.write_text(f'#!/bin/sh\nkill -STOP "$3"; echo $$ > {quoted(begun)}; exec sleep 1000\n')
    program.chmod(0o755)
    assert await native_stack(str(program), Subject(hanging), time.monotonic() + 0.2) is None

    def has_begun() -> bool:
        return begun.exists() and begun.read_text().endswith("\n")

    for is_reported in (False, True):
        begun.unlink(missing_ok=True)
        reading = asyncio.create_task(native_stack(str(program), Subject(hanging), time.monotonic() + 1000))
        await asyncio.sleep(0)  # it starts the program, and asyncio reports that in a later turn of the loop
        if is_reported:
            await wait_until_async(has_begun)
        else:
            wait_until(has_begun)
        wait_until(lambda: psutil.Process(hanging).status() == psutil.STATUS_STOPPED)  # not by the return of ``kill``
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert is_gone(int(begun.read_text()))
        assert psutil.Process(hanging).status() != psutil.STATUS_STOPPED


def test_a_library_is_that_whose_code_the_line_has_called() -> None:
    def library(*frames: tuple[str, str]) -> str:
        return NativeStack(1, tuple(NativeFrame(name, place, ".so" in place) for name, place in frames)).library

    extension = "/usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so"
    sleep, query = ("clock_nanosleep", "/lib/libc.so.6"), ("execute", extension)
    assert library(sleep, ("sqlite3InvokeBusyHandler", "/usr/lib/libsqlite3.so.0.8.6"), query) == "libsqlite3"
    assert library(sleep, query, ("load", "flow.py:4")) == ""
    assert library(("poll", "/lib/libc.so.6"), ("perform", "/lib/libcurl.so.4")) == "libcurl"
    assert library(("fit", "/x/site-packages/_fit.cpython-311-x86_64-linux-gnu.so")) == "_fit"
    assert library(("load", "flow.py:4"), ("sqlite3_step", "/usr/lib/libsqlite3.so.0")) == ""


def locked(path: str) -> None:
    with sqlite3.connect(path, timeout=1000) as connection:
        connection.execute("CREATE TABLE t (a)")


def hashing(path: str) -> None:
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2_000_000_000)


@pytest.mark.timeout(300)
@parametrize_mostly_long(("function", "library"), [(locked, "libsqlite3"), (hashing, "libcrypto")])
def test_the_evidence_of_a_hang_names_native_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[[str], None], library: str
) -> None:
    monkeypatch.setenv("PATH", f"{Path(PY_SPY).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(attempt, "INSPECTION_SHARE", 0.9)
    lock = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    for timeout_seconds in (10, 60):  # py-spy takes longer on a busy machine
        monkeypatch.setattr(attempt, "NATIVE_SECONDS", 0.9 * timeout_seconds)
        flow = Flow("f", params={"path": str(tmp_path / "locked.db")})
        flow.task(function, name="hangs", timeout=timeout_seconds, grace_seconds=1, retry=RetryPolicy(max_attempts=1))
        state = tmp_path / f"s{timeout_seconds}.db"
        with redirect_stdout(io.StringIO()):
            Executor(flow=flow, state=state).run()
        with sqlite3.connect(state) as connection:
            ((stack, error),) = connection.execute("SELECT attempt.stack, attempt.error FROM attempt").fetchall()
        if "Native stack of pid" in stack:
            break
    lock.close()
    assert "Native stack of pid" in stack and f"({library}.so" in stack
    assert re.search(rf" in {library} at .* in {function.__name__}", error)
