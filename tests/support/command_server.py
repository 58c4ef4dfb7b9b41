"""A process that has imported the commands of ``redrive`` and forks once for each command.

A command that reads a state file or sends an act takes a tenth of the processor time of its imports, one that runs a
flow half. Each command still runs in a process of its own, with its own working directory, environment and descriptors,
from ``main()`` to its exit code. Commands that draw are started by a fresh interpreter.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

MESSAGE_BYTES_MAX = 1 << 20
_NUMBER = struct.Struct("<i")  # the pid of the command, then its return code


class CommandServer:
    """The door of a test process to its server. The server ends when the test process ends."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_server_environment(),
            )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        self._lock = threading.Lock()

    def run(
        self,
        words: Sequence[str],
        *,
        timeout: float,
        input: str | None = None,
        errors: str = "strict",
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end. Raises TimeoutExpired after ``timeout`` seconds, as ``subprocess.run`` does."""
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in (env or os.environ).items()}
        request = json.dumps({"words": words, "cwd": os.fspath(cwd or os.getcwd()), "env": variables})
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as printed,
            tempfile.TemporaryFile() as complained,
        ):
            given.write((input or "").encode())
            given.seek(0)
            ours, theirs = socket.socketpair()
            with ours:
                with theirs, self._lock:
                    descriptors = [given.fileno(), printed.fileno(), complained.fileno(), theirs.fileno()]
                    socket.send_fds(self._socket, [request.encode("utf-8", "surrogateescape")], descriptors)
                code = _wait(ours, timeout, words)
            return subprocess.CompletedProcess(
                list(words), code, _text_of(printed, errors), _text_of(complained, errors)
            )


def _server_environment() -> dict[str, str]:
    """The environment of the test process without what its first test has set, as its folder for state files."""
    own = ("HOME", "PYTEST_", "REDRIVE_", "XDG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _wait(connection: socket.socket, timeout: float, words: Sequence[str]) -> int:
    (pid,) = _NUMBER.unpack(connection.recv(_NUMBER.size))
    connection.settimeout(timeout)
    try:
        return int(_NUMBER.unpack(connection.recv(_NUMBER.size))[0])
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(words), timeout) from None


def _text_of(file: IO[bytes], errors: str) -> str:
    file.seek(0)
    return file.read().decode(errors=errors)


# --- In the server ----------------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until the test process closes the connection."""
    import redrive.console.cli

    for module in pkgutil.walk_packages(redrive.console.cli.__path__, "redrive.console.cli."):
        importlib.import_module(module.name)
    _fork_zygotes()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 4)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _supervise(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_zygotes() -> None:
    """Let an executor be forked for its zygote, as ``redrive exec`` and the short flows of ``redrive serve`` do it."""
    from redrive.engine.flow import loading, source  # noqa: F401
    from redrive.engine.runner import process
    from redrive.engine.runner.zygote import zygote  # noqa: F401
    from redrive.engine.runner.zygote.launch import SpawnedZygote

    process.LARGE_HEAP_BYTES = sys.maxsize  # the heap of this process is large, but not that of a command
    init = SpawnedZygote.__init__
    SpawnedZygote.__init__ = lambda *words, **options: init(*words, **{**options, "is_forked": True})  # type: ignore[method-assign]


def _supervise(message: bytes, descriptors: Sequence[int]) -> None:
    """Fork the command, and report its pid and its return code."""
    *standard, report = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _run_command(json.loads(message.decode("utf-8", "surrogateescape")), standard)
    with socket.socket(fileno=report) as connection:
        connection.sendall(_NUMBER.pack(pid))
        for descriptor in standard:
            os.close(descriptor)
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _run_command(request: Mapping[str, object], standard: Sequence[int]) -> None:
    code = 1
    try:
        _prepare(request, standard)
        from redrive.console.cli.main import main

        main()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: waits for threads
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(code)


def _prepare(request: Mapping[str, object], standard: Sequence[int]) -> None:
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    words, environment = request["words"], request["env"]
    assert isinstance(words, list) and isinstance(environment, dict)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, mode, closefd=False)) for number, mode in _MODES)
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    import redrive.console

    sys.argv = [str(Path(redrive.console.__path__[0], "__main__.py")), *words]
    sys.modules["__main__"].__package__ = "redrive.console"  # click names the command by it


_MODES = ((0, "rb"), (1, "wb"), (2, "wb"))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
