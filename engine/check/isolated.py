"""Check a flow in a child process, so that its import cannot damage the checker.

The flow is imported as by an executor, without a terminal and with the same time limit, and the reply is decoded as by
an executor: ``check`` refuses the flows that ``run`` refuses, in the same words. Parameters that a run has to name are
no reason: they are findings.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from typing import NamedTuple, NoReturn

import msgspec

from ..core.spec import FlowSpec
from ..domain.text import printable
from ..errors import FlowImportError
from ..flow.flow import Flow
from ..flow.import_output import ImportOutput
from ..flow.loading import load_flow
from ..flow.source import Finding
from ..runner import process, protocol, reaper
from ..runner.attempt import IMPORT_SECONDS
from ..runner.zygote import connection, flow_import
from ..runner.zygote.client import interpreter_of
from ..runner.zygote.flow_import import ImportSurvey, single_threaded_libraries
from .tasks import check_tasks


class ProcessCost(msgspec.Struct, frozen=True):
    """What it costs to fork the process that has imported a flow, by trial. ``packages``: the largest that it imports.

    ``seconds``: of a processor, for the fork and the end of a child that does nothing.
    """

    seconds: float
    packages: list[str]


class _CheckReply(protocol.Frame, frozen=True):
    """The reply of the child: the spec of the flow, the findings, and from where tasks inherit options."""

    spec: bytes
    findings: list[Finding]
    inherited: dict[str, dict[str, str]]
    cost: ProcessCost | None


class CheckedFlow(NamedTuple):
    """A flow that was imported and checked; ``inherited``: by task, from where each inherited option comes.

    ``cost``: None if it cannot be known, as beside threads of the import.
    """

    spec: FlowSpec
    findings: list[Finding]
    inherited: Mapping[str, Mapping[str, str]]
    cost: ProcessCost | None


class _ImportFailure(protocol.Frame, frozen=True):
    failed: protocol.OpenFailed


_decode = msgspec.msgpack.Decoder(_CheckReply | _ImportFailure).decode


def check_in_subprocess(target: str, params: Mapping[str, str]) -> CheckedFlow:
    """Return a flow with the findings of its import, functions and source. Raises FlowError as `run` does.

    Output of the flow goes to stderr, as ``ImportOutput`` prints it. The caller must have one thread, because the
    process forks.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the parent process
            stream.flush()
    python = interpreter_of(target)
    reading, writing = os.pipe()
    printed, printing = os.pipe()
    stack = os.memfd_create("stack")
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        for number in (1, 2):
            os.dup2(printing, number)
        if python is None:
            _run_child(writing, stack, target, params)
        _execute_child(python, writing, stack, target, params)
    os.close(writing)
    os.close(printing)
    os.set_blocking(printed, False)
    pidfd, begun = os.pidfd_open(pid), time.monotonic()
    child = _Child(pidfd, reading, printed)
    try:
        waited = connection.SLOW_SECONDS
        payload = child.receive(begun + waited)
        while payload is None and not process.has_ended(pidfd) and not process.writes_stack(pid):
            waited += connection.SLOW_SECONDS  # its interpreter still starts
            if waited >= IMPORT_SECONDS:
                break
            payload = child.receive(begun + waited)
        if payload is None and not process.has_ended(pidfd):
            sentence = connection.slow_import_sentence(target, waited, _read_stack(pid, pidfd, stack))
            print(printable(sentence), file=sys.stderr)
            payload = child.receive(begun + IMPORT_SECONDS)
        timed_out = payload is None and not process.has_ended(pidfd)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # the child and all processes of the import
        os.kill(pid, signal.SIGKILL)  # the child may not have its own process group yet
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        child.print_rest()
        for descriptor in (reading, printed, pidfd, stack):
            os.close(descriptor)
    if payload is None:
        raise FlowImportError(_failure_message(target, timed_out, status))
    return _read(payload)


def _failure_message(target: str, timed_out: bool, status: int) -> str:
    if timed_out:
        return f"importing {target!r} did not end within {IMPORT_SECONDS:g} s"
    return f"the process that imported {target!r} ended ({connection.exit_status_text(status)})"


def _read_stack(pid: int, pidfd: int, stack: int) -> str:
    """Return where the import stands; empty if it does not write that in time."""
    if not process.writes_stack(pid):
        return ""
    reaper.signal_process(pidfd, process.STACK_SIGNAL)
    written, until = b"", time.monotonic() + connection.STACK_WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(connection.STACK_QUIET_SECONDS)  # no event reports a write to a file in memory
        earlier, written = written, os.pread(stack, connection.OUTPUT_BYTES_MAX, 0)
        if written and written == earlier:
            break
    return written.decode(errors="replace")


PIPE_READS_MAX = 64  # after the end: a process that has left the group may print for ever


class _Child:
    """The process that imports the flow, as its parent reads it. ``printed``: a pipe that does not block."""

    def __init__(self, pidfd: int, reading: int, printed: int) -> None:
        self._pidfd, self._reading, self._printed = pidfd, reading, printed
        self._frames = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._output = ImportOutput()
        self._poll = select.poll()
        for descriptor in (pidfd, reading, printed):
            self._poll.register(descriptor, select.POLLIN)

    def receive(self, until: float) -> bytes | None:
        """Read one frame; None if the process ends without one, or at the time limit. Prints what it prints."""
        while (left := until - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in self._poll.poll(left * 1000)}
            if self._printed in ready and not self._output.feed_from(self._printed):
                self._poll.unregister(self._printed)
            data = os.read(self._reading, 65536) if self._reading in ready else b""
            payloads = self._frames.feed(data)
            if payloads:
                return payloads[0]
            if self._reading in ready and not data:
                self._poll.unregister(self._reading)  # end of file; the pidfd reports the end of the process
            if self._pidfd in ready and self._reading not in ready:
                return None
        return None

    def print_rest(self) -> None:
        """Print what is in the pipe. The process has ended."""
        for _ in range(PIPE_READS_MAX):
            if not self._output.feed_from(self._printed):
                break
        self._output.close()


def _read(payload: bytes) -> CheckedFlow:
    reply = _decode(payload)
    if isinstance(reply, _ImportFailure):
        raise connection.flow_error(reply.failed)
    return CheckedFlow(connection.flow_spec(reply.spec), reply.findings, reply.inherited, reply.cost)


# --- In the child ----------------------------------------------------------------------------------------------------


def _execute_child(python: str, writing: int, stack: int, target: str, params: Mapping[str, str]) -> NoReturn:
    """Run ``_run_child`` in another interpreter, the one that the flow names."""
    try:
        os.set_inheritable(writing, True)
        os.set_inheritable(stack, True)
        words = [str(writing), str(stack), target, json.dumps(dict(params))]
        os.execv(python, [python, "-P", "-m", __name__, *words])
    finally:
        os._exit(1)


def _run_child(writing: int, stack: int, target: str, params: Mapping[str, str]) -> NoReturn:
    """Import the flow, and send what was found. ``stack``: where the parent reads at which line the import stands."""
    try:
        faulthandler.register(process.STACK_SIGNAL, file=stack, chain=False)
        os.setsid()
        process.set_parent_death_signal(signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        sys.stdout = sys.stderr
        protocol.write_all(writing, protocol.encode(_import_and_check(target, params)))
        if sys.stderr is not None:
            sys.stderr.flush()
    except BaseException:  # an exception must not reach the code of the parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _missing_params(flow: Flow, missing: Iterable[str]) -> Iterator[Finding]:
    for name in missing:
        if flow.schedule is None:
            yield Finding("note", "params", f"a run names the parameter {name!r}: --param {name}=...")
        else:
            day = ", or schedule_offset_days" if flow.params.declared[name].type is date else ""
            why = f"a scheduled run names no parameter {name!r}: give it a default{day}"
            yield Finding("error", "params", why)


def _import_and_check(target: str, params: Mapping[str, str]) -> _CheckReply | _ImportFailure:
    try:
        survey, before, modules = ImportSurvey(), time.monotonic(), frozenset(sys.modules)
        with single_threaded_libraries():
            flow = load_flow(target, params)
            missing = sorted(flow.params.declared.keys() - flow.params.keys())
            flow.params.update(dict.fromkeys(missing))  # a run has to name them, a check does not
            spec = flow.spec()
        effects = survey.since()
        warnings = [Finding("warning", "import", text) for text in effects.warnings(time.monotonic() - before)]
        findings = [*warnings, *_missing_params(flow, missing), *check_tasks(spec, flow.functions)]
        cost = None if effects.threads else _process_cost(sys.modules.keys() - modules)
        return _CheckReply(msgspec.json.encode(spec), findings, flow.inherited, cost)
    except BaseException as error:  # any error of the import: the same reply as to an executor
        return _ImportFailure(flow_import.failure_of(error))


TRIALS = 5
PACKAGES_MAX = 3


def _process_cost(imported: Iterable[str]) -> ProcessCost | None:
    """Fork this process some times, and take the least: what other programs do only adds to it. None: it cannot be."""
    modules = Counter(name.partition(".")[0] for name in imported)
    known = {"redrive", *sys.stdlib_module_names}
    packages = [name for name, count in modules.most_common() if name not in known and count > 1]
    try:
        return ProcessCost(min(_fork_seconds() for _ in range(TRIALS)), packages[:PACKAGES_MAX])
    except OSError:  # no more processes; or the flow ignores SIGCHLD, and nobody knows what a child has used
        return None


def _fork_seconds() -> float:
    began = time.process_time()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    _, _, usage = os.wait4(pid, 0)
    return time.process_time() - began + usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    _run_child(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
