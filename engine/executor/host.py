"""The process of an executor, and the one that forks executors for a supervisor.

``python -P -m redrive.engine.executor.host SETTINGS_FD WRITE_FD STATE [FLOW]``: an executor.

SETTINGS_FD is a file that has the settings before the process starts: its starter may die at any moment. The response
is one JSON line on WRITE_FD, ``{"ok": true}`` or the error of the start. After that the process runs detached, without
a terminal. STATE and FLOW are there for ``ps``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn, Required, TypedDict

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
    kind.__name__: kind
    for kind in (ExecutorBusyError, FlowError, StorageError, StateFileError, RefusedError, RedriveError)
}


class _Report(TypedDict, total=False):
    ok: Required[bool]
    error: str
    message: str
    traceback: str


#: Starts the process of an executor: its words, its log, its settings, and its end of the pipe. Returns the pid.
StartProcess = Callable[[list[str], int, int, int], int]


def open_process(words: list[str], log: int, settings: int, write_end: int) -> int:
    """Start an executor in a fresh interpreter."""
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(settings, write_end), start_new_session=True
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
    log, settings, parent_end = _open_log(state), os.memfd_create("settings"), os.pipe()
    given = {"flow": flow, "state": state, "run_id": run_id, "options": dict(options)}
    with open(settings, "w", closefd=False) as file:
        file.write(json.dumps(given))  # ``json.dump`` takes six times as long
    words = [sys.executable, "-P", "-m", "redrive.engine.executor.host", str(settings), str(parent_end[1])]
    words += [os.path.abspath(state), *([flow] if flow is not None else [])]
    try:
        pid = start(words, log, settings, parent_end[1])
    finally:
        for descriptor in (log, settings, parent_end[1]):
            os.close(descriptor)
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
    """The entry point of both processes."""
    if len(sys.argv) == 2:
        return fork_executors(socket.socket(fileno=int(sys.argv[1])))
    return serve_executor(int(sys.argv[1]), int(sys.argv[2]))


def serve_executor(given: int, write_end: int) -> int:
    """Run the executor whose settings the file ``given`` has, and return the exit code of its process."""
    for descriptor in (given, write_end):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = json.loads(os.pread(given, os.fstat(given).st_size, 0))  # another executor may have read it, too
    os.close(given)
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
    """Reports once whether the executor started. The starter may be gone: a start goes on without it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def started(self, run_id: str) -> None:
        """Truncate the log, which may hold messages of earlier executors, and report the start."""
        os.ftruncate(sys.stderr.fileno(), 0)
        self._send({"ok": True})

    def failed(self, error: RedriveError) -> None:
        name = type(error).__name__
        is_known = name in _ERRORS or isinstance(error, FlowImportError)
        known = name if is_known else next(base for base, kind in _ERRORS.items() if isinstance(error, kind))
        self._send({"ok": False, "error": known, "message": str(error), "traceback": getattr(error, "traceback", "")})

    def _send(self, report: _Report) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "w") as pipe:
            pipe.write(json.dumps(report) + "\n")


# --- A process that forks executors -----------------------------------------------------------------------------------
#
# ``python -P -m redrive.engine.executor.host SOCKET_FD``. It has imported everything: a start costs a fork instead of
# half a second of imports. The executor of a flow of few tasks forks its zygote from the same memory
# (``launch.fork_importer``).
#
# A request is one packet with three descriptors: the log, the settings, and the pipe. The answer is the pid. The
# executor gets a session of its own; it outlives the starter, which ends when the other end of the socket closes.


ANSWER_BYTES = 16


class Starter:
    """The process that forks executors, as its parent sees it. It is started again when it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Start the process, so that it has imported everything when the first run is due."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-P", "-m", "redrive.engine.executor.host", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        finally:
            theirs.close()
        self._socket = ours

    def close(self) -> None:
        """End the process; executors go on."""
        with self._lock:
            if self._socket is not None and self._process is not None:
                self._socket.close()
                self._process.wait()
            self._socket = self._process = None

    def start(self, words: list[str], log: int, settings: int, write_end: int) -> int:
        """Start an executor and return its pid: a replacement of ``open_process``."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._socket is None:
                self.open()
            assert self._socket is not None
            socket.send_fds(self._socket, [b"start"], [log, settings, write_end])
            return int(self._socket.recv(ANSWER_BYTES))
        self.close()  # it has died: the next start makes a new one
        return open_process(words, log, settings, write_end)


def fork_executors(requests: socket.socket) -> int:
    """Fork executors until the parent is gone."""
    from .. import asyncio_log  # noqa: F401  # all of them before the forks
    from ..flow import loading, source  # noqa: F401
    from ..runner.zygote import connection, zygote  # noqa: F401
    from ..store.making import tables_alone
    from . import loop, opening  # noqa: F401

    connection.flow_spec(b'{"name": "", "tasks": []}')  # its first call reads the types of all specs
    source.digest_of(b"")  # its first call imports a module
    tables_alone()
    source.ignore_imported_modules()
    requests.set_inheritable(False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when it ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps executors
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, ANSWER_BYTES, 3)
        if not data:
            return 0
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become_executor(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the parent is gone: the next request is the end
            requests.send(str(pid).encode())


def _become_executor(log: int, settings: int, write_end: int) -> NoReturn:
    """Never returns: the end of the interpreter would write to all objects, and so copy all memory."""
    code = NOT_STARTED
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        code = serve_executor(settings, write_end)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
