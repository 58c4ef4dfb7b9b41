"""Checks a flow in a process of its own: whatever its import does to that process, the checker lives to tell.

It is imported as an executor would have it imported, without a terminal and for as long, and what comes back is read
as an executor reads it: what `run` refuses is refused here, in the same words.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

import msgspec

from ..core.spec import FlowSpec
from ..errors import FlowImportError
from ..flow.finding import Finding
from ..flow.loading import load_flow
from ..runner import process, protocol
from ..runner.attempt import IMPORT_SECONDS
from ..runner.zygote import connection, flow_import
from ..runner.zygote.import_side_effects import ImportSurvey, single_threaded_libraries
from .functions import check_functions
from .source import check_source


class _Answer(msgspec.Struct, tag=True):
    """What the child sends: the flow as an executor gets it, and what only that process can find."""

    spec: bytes
    findings: list[Finding]


class _Refusal(msgspec.Struct, tag=True):
    failed: protocol.OpenFailed


_decode = msgspec.msgpack.Decoder(_Answer | _Refusal).decode


def check_in_subprocess(target: str, params: Mapping[str, str]) -> tuple[FlowSpec, list[Finding]]:
    """The flow, and what its import, its functions and its source tell. Raises FlowError where `run` would.

    What the flow prints goes to stderr. To be called in a process with one thread, which is forked.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started us
            stream.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(writing, target, params)
    os.close(writing)
    pidfd = os.pidfd_open(pid)
    try:
        payload = _receive(reading, pidfd, time.monotonic() + IMPORT_SECONDS)
        timed_out = payload is None and not process.has_ended(pidfd)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # itself, and what the import has started
        os.kill(pid, signal.SIGKILL)  # it may not have got as far as a group of its own
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(reading)
        os.close(pidfd)
    if payload is None:
        raise FlowImportError(_why_nothing_came(target, timed_out, status))
    return _read(payload)


def _why_nothing_came(target: str, timed_out: bool, status: int) -> str:
    if timed_out:
        return f"importing {target!r} did not end within {IMPORT_SECONDS:g} s"
    return f"the process that imported {target!r} ended ({connection.status_in_words(status)})"


def _receive(reading: int, pidfd: int, until: float) -> bytes | None:
    """One frame; None when the process ends without it, or it does not come in time."""
    frames = protocol.FrameReader(protocol.CONTROL_LIMIT)
    poll = select.poll()
    for descriptor in (reading, pidfd):
        poll.register(descriptor, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
        data = os.read(reading, 65536) if reading in ready else b""
        payloads = frames.feed(data)
        if payloads:
            return payloads[0]
        if reading in ready and not data:
            poll.unregister(reading)  # its end; whether it is alive is told by the other
        if ready == {pidfd}:
            return None
    return None


def _read(payload: bytes) -> tuple[FlowSpec, list[Finding]]:
    answer = _decode(payload)
    if isinstance(answer, _Refusal):
        raise connection.flow_error(answer.failed)
    return connection.flow_spec(answer.spec), answer.findings


# --- In the child ----------------------------------------------------------------------------------------------------


def _be_the_child(writing: int, target: str, params: Mapping[str, str]) -> NoReturn:
    try:
        os.setsid()
        process.set_parent_death_signal(signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        protocol.write_all(writing, _framed(_look(target, params)))
        if sys.stderr is not None:
            sys.stderr.flush()
    except BaseException:  # it must not climb into the command that was forked
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _look(target: str, params: Mapping[str, str]) -> _Answer | _Refusal:
    survey, before = ImportSurvey(), time.monotonic()
    try:
        with single_threaded_libraries():
            flow = load_flow(target, params)
            spec = flow.spec()
        doubts = [Finding("warning", "import", doubt) for doubt in survey.since().warnings(time.monotonic() - before)]
        findings = [*doubts, *check_functions(spec, flow.functions), *check_source(spec)]
        return _Answer(msgspec.json.encode(spec), findings)
    except BaseException as error:  # of the flow's import, whatever it is: the same answer as to an executor
        return _Refusal(flow_import.failure_of(error))


def _framed(answer: _Answer | _Refusal) -> bytes:
    payload = msgspec.msgpack.encode(answer)
    return len(payload).to_bytes(4, "big") + payload
