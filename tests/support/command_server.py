"""A process that has imported the commands of ``redrive`` and forks once for each command.

A command that reads a state file or sends an act takes a tenth of the processor time of its imports, one that runs a
flow half. Each command still runs in a process of its own, with its own working directory, environment and descriptors,
from ``main()`` to its exit code. Commands that draw are started by a fresh interpreter.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NoReturn, Self

MESSAGE_BYTES_MAX = 1 << 20
_NUMBER = struct.Struct("<i")  # the pid of the command, then its return code


class ForkedCommand:
    """One command, which the server has forked: what the tests use of a ``subprocess.Popen``."""

    def __init__(self, server: CommandServer, words: Sequence[str], options: Mapping[str, Any]) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        text = options.get("text", True)
        with open(os.devnull, "r+b", buffering=0) as null, ExitStack() as theirs:
            descriptors: list[int] = [null.fileno()]
            streams: list[IO[Any] | None] = []
            for given in (options["stdout"], options["stderr"]):
                ours: IO[Any] | None = None
                if given == subprocess.PIPE:
                    reading, writing = os.pipe()
                    theirs.callback(os.close, writing)
                    ours, given = os.fdopen(reading, "r" if text else "rb"), writing
                elif given == subprocess.STDOUT:
                    given = descriptors[1]
                elif given == subprocess.DEVNULL:
                    given = null.fileno()
                descriptors.append(given if isinstance(given, int) else given.fileno())
                streams.append(ours)
            self.stdout, self.stderr = streams
            where, variables = options.get("cwd") or os.getcwd(), options.get("env") or os.environ
            self.pid, self._report = server.start(words, descriptors, os.fspath(where), variables)

    def poll(self) -> int | None:
        return self._receive(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._receive(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _receive(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
            self.returncode = int(_NUMBER.unpack(self._report.recv(_NUMBER.size))[0])
            self._report.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Read the streams to their ends, and wait."""
        limit = None if timeout is None else time.monotonic() + timeout
        open_ones = [one if one is not None and not one.closed else None for one in (self.stdout, self.stderr)]
        threads = [_Reader(stream) if stream is not None else None for stream in open_ones]
        for thread in threads:
            if thread is not None:
                thread.join(None if limit is None else max(0.0, limit - time.monotonic()))
                if thread.is_alive():
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if limit is None else max(0.0, limit - time.monotonic()))
        out, err = (None if thread is None else thread.text for thread in threads)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class _Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, stream: IO[Any]) -> None:
        super().__init__(daemon=True)
        self._stream, self.text = stream, None
        self.start()

    def run(self) -> None:
        with self._stream as stream:
            self.text = stream.read()


class Door:
    """The socket by which a test process, or a supervisor that the server has forked, asks the server for others."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        self._lock = threading.Lock()

    def start_executor(self, words: Sequence[str], log: int, settings: int, write_end: int) -> int:
        """Start an executor as ``host.open_process`` does, and return its pid. It is no child of this process."""
        request = _encode({"executor": list(words[6:]), "cwd": os.getcwd(), "env": dict(os.environ)})
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                socket.send_fds(self._socket, [request], [log, settings, write_end, theirs.fileno()])
            return int(_NUMBER.unpack(ours.recv(_NUMBER.size))[0])


class CommandServer(Door):
    """The door of a test process to its server. The server ends when the test process ends."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=_server_environment(),
            )

    def start(
        self, words: Sequence[str], standard: Sequence[int], cwd: str, variables: Mapping[str, str]
    ) -> tuple[int, socket.socket]:
        """Start one command with these three descriptors. Returns its pid, and where its return code comes."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            request = _encode({"words": list(words), "cwd": cwd, "env": dict(variables)})
            socket.send_fds(self._socket, [request], [*standard, theirs.fileno()])
        return int(_NUMBER.unpack(ours.recv(_NUMBER.size))[0]), ours

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
        request = _encode({"words": words, "cwd": os.fspath(cwd or os.getcwd()), "env": variables})
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
                    socket.send_fds(self._socket, [request], descriptors)
                code = _wait(ours, timeout, words)
            return subprocess.CompletedProcess(
                list(words), code, _text_of(printed, errors), _text_of(complained, errors)
            )


def _encode(request: Mapping[str, object]) -> bytes:
    return json.dumps(request).encode("utf-8", "surrogateescape")


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
    inner, from_inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _fork_executors(Door(inner))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        for connection in select.select([requests, from_inside], [], [])[0]:
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 4)
            if not message:
                return
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                from_inside.close()
                _supervise(message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _fork_executors(door: Door) -> None:
    """Let commands and supervisors start executors here, and an executor be forked for its zygote, as those of
    ``redrive exec`` and of the short flows of ``redrive serve`` are. Supervisors look at their files twice a second."""
    from redrive.engine import asyncio_log  # noqa: F401
    from redrive.engine.executor import host, loop, opening  # noqa: F401
    from redrive.engine.flow import loading, source  # noqa: F401
    from redrive.engine.runner import process
    from redrive.engine.runner.zygote import connection, zygote  # noqa: F401
    from redrive.engine.runner.zygote.launch import SpawnedZygote
    from redrive.engine.schedule import supervisor

    supervisor.SCAN_SECONDS = 0.5
    process.LARGE_HEAP_BYTES = sys.maxsize  # the heap of this process is large, but not that of a command
    init = SpawnedZygote.__init__
    SpawnedZygote.__init__ = lambda *words, **options: init(*words, **{**options, "is_forked": True})  # type: ignore[method-assign]
    host.spawn = functools.partial(host.spawn, start=door.start_executor)
    host.Starter.open = lambda starter: None  # type: ignore[method-assign,assignment]
    host.Starter.start = lambda starter, *given: door.start_executor(*given)  # type: ignore[method-assign]


def _supervise(message: bytes, descriptors: Sequence[int]) -> None:
    """Fork the command, and report its pid and its return code; of an executor, which outlives this, the pid alone."""
    *given, report = descriptors
    request = json.loads(message.decode("utf-8", "surrogateescape"))
    pid = os.fork()
    if pid == 0:
        os.close(report)
        if "executor" in request:
            _become_executor(request, *given)
        _end_with(lambda: _run_command(request, given))
    with socket.socket(fileno=report) as connection:
        connection.sendall(_NUMBER.pack(pid))
        for descriptor in given:
            os.close(descriptor)
        if "executor" not in request:
            connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _end_with(run: Callable[[], object]) -> NoReturn:
    """Run it to its end, and leave as the interpreter does."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(code)


def _run_command(request: Mapping[str, object], standard: Sequence[int]) -> None:
    import redrive.console
    from redrive.console.cli.main import main

    words = request["words"]
    assert isinstance(words, list)
    _prepare(request, standard, [str(Path(redrive.console.__path__[0], "__main__.py")), *words])
    sys.modules["__main__"].__package__ = "redrive.console"  # click names the command by it
    main()


def _become_executor(request: Mapping[str, object], log: int, settings: int, write_end: int) -> NoReturn:
    os.setsid()
    _end_with(lambda: _run_executor(request, log, settings, write_end))


def _run_executor(request: Mapping[str, object], log: int, settings: int, write_end: int) -> NoReturn:
    from redrive.engine.executor import host

    names = request["executor"]
    assert isinstance(names, list)
    standard = [os.open(os.devnull, os.O_RDWR), os.dup(log), log]
    _prepare(request, standard, [host.__file__, str(settings), str(write_end), *names])
    sys.exit(host.main())


def _prepare(request: Mapping[str, object], standard: Sequence[int], words: list[str]) -> None:
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    environment = request["env"]
    assert isinstance(environment, dict)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, mode, closefd=False)) for number, mode in _MODES)
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)
    sys.argv = words


_MODES = ((0, "rb"), (1, "wb"), (2, "wb"))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
