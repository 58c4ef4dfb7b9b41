"""A separate process for an executor: ``python -P -m redrive.engine.executor.host READ_FD WRITE_FD STATE [FLOW]``.

The settings arrive as one JSON line on READ_FD. The response is one JSON line on WRITE_FD, ``{"ok": true}`` or the
error of the start. After that the process runs detached, without a terminal. STATE and FLOW are there for ``ps``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Required, TypedDict

from ..domain.text import printable
from ..errors import (
    ExecutorBusyError,
    FlowError,
    FlowImportError,
    RedriveError,
    RefusedError,
    StateFileError,
    StorageError,
)
from ..statefile.ownership import open_sidecar
from .executor import Executor
from .run_options import RunOptions

STARTED, NOT_STARTED = 0, 1

_ERRORS: dict[str, type[RedriveError]] = {
    kind.__name__: kind for kind in (ExecutorBusyError, FlowError, StateFileError, RefusedError, RedriveError)
}


class _Report(TypedDict, total=False):
    ok: Required[bool]
    error: str
    message: str
    traceback: str


#: Starts the process of an executor: its words, its log, and its ends of the two pipes. Returns the pid.
StartProcess = Callable[[list[str], int, int, int], int]


def open_process(words: list[str], log: int, read_end: int, write_end: int) -> int:
    """Start an executor in a fresh interpreter."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(read_end, write_end),
        start_new_session=True,
    )
    return process.pid


def spawn(
    *,
    flow: str | None,
    state: str,
    run_id: str | None,
    options: Mapping[str, object],
    start: StartProcess = open_process,
) -> int:
    """Start an executor in its own session and return its pid once it owns the state file.

    ``options``: the fields of RunOptions. Its stderr goes to ``<state>.stderr``, which stays empty unless the executor
    itself fails. Raises the error of the start: FlowError, ExecutorBusyError, ...
    """
    log = _open_log(state)
    parent_end, child_end = os.pipe(), os.pipe()
    words = [sys.executable, "-P", "-m", "redrive.engine.executor.host", str(child_end[0]), str(parent_end[1])]
    words += [os.path.abspath(state), *([flow] if flow is not None else [])]
    try:
        pid = start(words, log, child_end[0], parent_end[1])
    finally:
        for descriptor in (log, child_end[0], parent_end[1]):
            os.close(descriptor)
    settings = {"flow": flow, "state": state, "run_id": run_id, "options": dict(options)}
    with os.fdopen(child_end[1], "w") as to_child:
        to_child.write(json.dumps(settings) + "\n")
    with os.fdopen(parent_end[0]) as from_child:
        line = from_child.readline()
    if not line:
        raise RedriveError(f"the executor did not start; {state}.stderr says why")
    report: _Report = json.loads(line)
    if not report["ok"] and not os.path.exists(state):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{state}.stderr")  # the response has the error, and there is no state file beside it
    return _read_report(report, pid)


def _open_log(state: str) -> int:
    path = state + ".stderr"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(state)), mode=0o700, exist_ok=True)
        return open_sidecar(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, state)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from None


def _read_report(report: _Report, pid: int) -> int:
    if report["ok"]:
        return pid
    if report["error"] == FlowImportError.__name__:
        raise FlowImportError(report["message"], report.get("traceback", ""))
    raise _ERRORS.get(report["error"], RedriveError)(report["message"])


def main() -> int:
    """Run the executor; the entry point of the process."""
    return serve_executor(int(sys.argv[1]), int(sys.argv[2]))


def serve_executor(read_end: int, write_end: int) -> int:
    """Run the executor whose settings come from a pipe, and return the exit code of its process."""
    for descriptor in (read_end, write_end):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with os.fdopen(read_end) as pipe:
        settings = json.loads(pipe.readline())
    report = _StartReport(write_end)
    executor = Executor(
        run_id=settings["run_id"],
        flow=settings["flow"],
        state=settings["state"],
        options=RunOptions(**settings["options"]),
        on_open=report.started,
        handle_signals=True,
    )
    try:
        executor.run_result()
    except RedriveError as error:
        report.failed(error)
        print(printable(f"redrive: {error}"), file=sys.stderr)
        return NOT_STARTED
    return STARTED


class _StartReport:
    """Reports once whether the executor started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def started(self, run_id: str) -> None:
        """Truncate the log, which may hold messages of earlier executors, and report the start."""
        os.ftruncate(sys.stderr.fileno(), 0)
        self._send({"ok": True})

    def failed(self, error: RedriveError) -> None:
        name = type(error).__name__
        known = name if name in _ERRORS or isinstance(error, FlowImportError) else _known_base(error)
        self._send({"ok": False, "error": known, "message": str(error), "traceback": getattr(error, "traceback", "")})

    def _send(self, report: _Report) -> None:
        if self._descriptor is None:
            return
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(json.dumps(report) + "\n")
        self._descriptor = None


def _known_base(error: RedriveError) -> str:
    return next(name for name, kind in _ERRORS.items() if isinstance(error, kind))


if __name__ == "__main__":
    sys.exit(main())
