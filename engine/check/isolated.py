"""Check a flow in a child process, so that its import cannot damage the checker.

The flow is imported as by an executor, without a terminal and with the same time limit, and the reply is decoded as by
an executor: ``check`` refuses the flows that ``run`` refuses, in the same words. Parameters that a run has to name are
no reason: they are findings.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

import msgspec

from ..asyncio_log import run_with_log
from ..core.spec import FlowSpec
from ..flow.flow import Flow
from ..flow.import_output import ImportOutput
from ..flow.loading import load_flow
from ..flow.source import Finding
from ..runner import own_stack, process, protocol
from ..runner.attempt import IMPORT_SECONDS
from ..runner.child import flush
from ..runner.zygote.connection import ZygoteConnection
from ..runner.zygote.flow_import import ImportSurvey, failure_of, single_threaded_libraries
from ..runner.zygote.interpreter import interpreter_of
from ..runner.zygote.launch import ZygoteProcess, fork_serving, spawn_zygote
from ..runner.zygote.zygote import receive_open, reset_streams
from .tasks import check_tasks


class ProcessCost(msgspec.Struct, frozen=True):
    """The cost of a fork of the process that has imported a flow, by trial. ``packages``: the largest that it imports.

    ``seconds``: of a processor, for the fork and the end of a child that does nothing.
    """

    seconds: float
    packages: list[str]


class CheckedImport(msgspec.Struct, frozen=True):
    """Facts about a flow that only its import shows.

    Attributes:
        findings: of the import, the functions and the source.
        inherited: by task, from where each inherited option comes.
        cost: None if it cannot be known, as beside threads of the import.
    """

    findings: list[Finding]
    inherited: dict[str, dict[str, str]]
    cost: ProcessCost | None


def check_in_subprocess(target: str, params: Mapping[str, str]) -> tuple[FlowSpec, CheckedImport]:
    """Import and check a flow. Raises FlowError as `run` does.

    Output of the flow goes to stderr, as ``ImportOutput`` prints it. The caller must have one thread, because the
    process forks.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the parent process
            stream.flush()
    python = interpreter_of(target)
    child = fork_serving(_serve, {}) if python is None else spawn_zygote({}, python=python, module=__name__)
    return run_with_log(_receive(child, protocol.Open(target, params)))


async def _receive(child: ZygoteProcess, request: protocol.Open) -> tuple[FlowSpec, CheckedImport]:
    output = ImportOutput()
    connection = ZygoteConnection(child, on_exit=protocol.ignore, on_gone=protocol.ignore, on_printed=output.feed)
    try:
        spec, opened = await connection.open(request, IMPORT_SECONDS)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # the child and all processes of the import
        connection.kill()  # the child may not have its own process group yet
        await connection.end()
        output.close()
    return spec, msgspec.json.decode(opened.checked, type=CheckedImport)


# --- In the child ----------------------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> NoReturn:
    """Import the flow that the first frame names, and send what was found."""
    try:
        own_stack.write_on_signal(2)  # shows where the import stands
        process.set_parent_death_signal(signal.SIGKILL)
        request = receive_open(control, protocol.FrameReader(protocol.CONTROL_LIMIT))
        control.sendall(protocol.encode(_import_and_check(request.target, request.params)))
        flush()
    except BaseException:  # an exception must not reach the code of the parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _missing_params(flow: Flow, missing: Iterable[str]) -> Iterator[Finding]:
    for name in missing:
        if flow.declared.schedule is None:
            yield Finding("note", "params", f"a run names the parameter {name!r}: --param {name}=...")
        else:
            yield Finding("error", "params", f"a scheduled run names no parameter {name!r}: give it a default")


def _import_and_check(target: str, params: Mapping[str, object]) -> protocol.FlowOpened | protocol.OpenFailed:
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
        checked = msgspec.json.encode(CheckedImport(findings, flow.inherited, cost))
        return protocol.FlowOpened(msgspec.json.encode(spec), "", [], imports_per_process=False, checked=checked)
    except BaseException as error:  # any error of the import: the same reply as to an executor
        return failure_of(error)


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
    reset_streams()
    _serve(socket.socket(fileno=int(sys.argv[1])))
