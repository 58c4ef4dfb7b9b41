"""Forks executors from one process that has imported them: a start costs a fork instead of half a second of imports.

The executor of a flow of few tasks forks its zygote from the same memory (``launch.fork_importer``).

``python -P -m redrive.engine.executor.starter SOCKET_FD``. A request is one packet with three descriptors: the log, and
the two pipes of ``host.py``. The answer is the pid. The executor gets a session of its own; it outlives the starter,
which ends when the other end of the socket closes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from typing import NoReturn

from .host import NOT_STARTED, open_process, serve_executor

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
        words = [sys.executable, "-P", "-m", "redrive.engine.executor.starter", str(theirs.fileno())]
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

    def start(self, words: list[str], log: int, read_end: int, write_end: int) -> int:
        """Start an executor and return its pid: a replacement of ``host.open_process``."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._socket is None:
                self.open()
            assert self._socket is not None
            socket.send_fds(self._socket, [b"start"], [log, read_end, write_end])
            return int(self._socket.recv(ANSWER_BYTES))
        self.close()  # it has died: the next start makes a new one
        return open_process(words, log, read_end, write_end)


def main() -> int:
    """Fork executors until the parent is gone."""
    from ..flow import loading, source  # noqa: F401  # all of them before the forks
    from ..runner.zygote import connection, zygote  # noqa: F401
    from . import loop, opening  # noqa: F401

    connection.flow_spec(b'{"name": "", "tasks": []}')  # its first call reads the types of all specs
    source.ignore_imported_modules()
    requests = socket.socket(fileno=int(sys.argv[1]))
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
        requests.send(str(pid).encode())


def _become_executor(log: int, read_end: int, write_end: int) -> NoReturn:
    """Never returns: the end of the interpreter would write to all objects, and so copy all memory."""
    code = NOT_STARTED
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        code = serve_executor(read_end, write_end)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
