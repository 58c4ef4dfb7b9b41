"""Starts a zygote: as a clean interpreter, or forked from the program that built the flow in memory."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from _thread import get_native_id  # ``threading`` does work after each fork
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ...statefile.processes import open_files

if TYPE_CHECKING:  # a zygote that is spawned imports them itself, at the same time as the executor its own modules
    from .flow_import import LoadedFlow

ZYGOTE_MODULE = "redrive.engine.runner.zygote.zygote"
ZYGOTE_DIED = "the process that forks the attempts died"


class ZygoteProcess(msgspec.Struct):
    """A started zygote. ``reap`` waits for its end and returns the exit code, negative for a signal."""

    pid: int
    pidfd: int
    control: socket.socket
    output: int  # pipe with the output of the zygote and the import
    reap: Callable[[], int]


StartZygote = Callable[[str | None], ZygoteProcess]  # starts a zygote of an interpreter; None: of that of this process


def spawn_zygote(
    environment: Mapping[str, str],
    inherited_fds: Sequence[int] = (),
    python: str | None = None,
    module: str = ZYGOTE_MODULE,
) -> ZygoteProcess:
    """Start a clean interpreter: ``python``, or the one of this process.

    ``environment`` is added to ours; ``inherited_fds`` are inherited by the attempts. ``module``: what it runs.
    """
    import subprocess  # here: a zygote that is forked does without it

    control, theirs = socket.socketpair()
    output, output_write = os.pipe()
    try:
        started = subprocess.Popen(
            [python or sys.executable, "-P", "-m", module, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno(), *inherited_fds],
            start_new_session=True,
        )
    except OSError:
        control.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(output_write)
    return ZygoteProcess(started.pid, os.pidfd_open(started.pid), control, output, started.wait)


class SpawnedZygote:
    """A clean interpreter that imports the zygote's modules while the executor imports its own.

    ``is_forked``: it is a fork of this process instead, which has imported them, and has no threads.
    A call returns a zygote of the interpreter ``python``: this one if nobody has it yet and ``python`` is None, which
    stands for the interpreter of this process; else a new one.
    """

    def __init__(
        self, environment: Mapping[str, str], inherited_fds: Sequence[int] = (), *, is_forked: bool = False
    ) -> None:
        self._environment = environment
        self._inherited_fds = inherited_fds
        self._unused: ZygoteProcess | None = None
        with suppress(OSError):  # a call tries it again, and raises
            self._unused = (fork_importer if is_forked else spawn_zygote)(environment, inherited_fds)

    def __call__(self, python: str | None) -> ZygoteProcess:
        """Raises OSError if no process can be started."""
        if python is not None:
            self.end_unused()
        zygote, self._unused = self._unused, None
        return zygote or spawn_zygote(self._environment, self._inherited_fds, python)

    def end_unused(self) -> None:
        """Kill the zygote if it is unused: it has imported no flow."""
        zygote, self._unused = self._unused, None
        if zygote is not None:
            signal.pidfd_send_signal(zygote.pidfd, signal.SIGKILL)
            zygote.reap()
            zygote.control.close()
            os.close(zygote.output)
            os.close(zygote.pidfd)


def fork_at_once(flow: LoadedFlow, environment: Mapping[str, str], inherited_fds: Sequence[int] = ()) -> StartZygote:
    """Fork this process now, so that functions and closures of the calling program can be tasks.

    Call it before an event loop, threads or a database connection exist: the fork would copy them. Returns a function
    that hands the zygote out once, and then raises ProcessLookupError.
    """
    from . import zygote  # before the fork

    warnings = _fork_warnings()

    def serve(control: socket.socket) -> NoReturn:
        zygote.serve(control, lambda *request: flow, warnings=warnings)

    forked = [fork_serving(serve, environment, inherited_fds)]

    def start_zygote(python: str | None) -> ZygoteProcess:
        if not forked:
            raise ProcessLookupError(f"{ZYGOTE_DIED}, and with it the flow that was built in memory")
        return forked.pop()

    return start_zygote


def fork_importer(environment: Mapping[str, str], inherited_fds: Sequence[int] = ()) -> ZygoteProcess:
    """Fork this process, an executor alone, for a flow in a file: as a clean interpreter, but ready at once."""
    from ...flow import loading, source  # noqa: F401  # before the fork
    from ..call import reserve
    from . import zygote

    source.ignore_imported_modules()

    kept = {0, 1, 2, reserve, *inherited_fds}
    opened = open_files().keys() - kept  # before the fork: it raises where there is no /proc

    def serve(control: socket.socket) -> NoReturn:
        for descriptor in opened:
            os.close(descriptor)
        zygote.serve_file(control)

    return fork_serving(serve, environment, inherited_fds)


def fork_serving(
    serve: Callable[[socket.socket], NoReturn], environment: Mapping[str, str], inherited_fds: Sequence[int] = ()
) -> ZygoteProcess:
    """Fork this process into a session of its own, in which ``serve`` gets a socket to this one."""
    control, theirs = socket.socketpair()
    output, output_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # collecting what the program left would end its things here: SQLite would remove a log in use
        control.close()
        os.close(output)
        for fd in inherited_fds:
            os.set_inheritable(fd, True)  # commands are executed, and must hold the lock as well
        _become_zygote(theirs, output_write, serve, environment)
    theirs.close()
    os.close(output_write)
    return ZygoteProcess(pid, os.pidfd_open(pid), control, output, lambda: _wait(pid))


def _wait(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # this program ignores SIGCHLD: the kernel reaped it, its status is lost
        return 0


def _fork_warnings() -> list[str]:
    from . import flow_import

    names = [name for thread, name in flow_import.threads().items() if thread != get_native_id()]
    if not names:
        return []
    return [
        f"this program runs {flow_import.named_threads(names)} besides the one that starts the run: a lock "
        "that one of them holds now stays locked in every attempt; start threads later, or put the flow in a file"
    ]


def _become_zygote(
    control: socket.socket, output: int, serve: Callable[[socket.socket], NoReturn], environment: Mapping[str, str]
) -> NoReturn:
    """Run the zygote in the forked process. Never returns into the calling program."""
    from .zygote import reset_streams

    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(null)
        os.close(output)
        os.environ.update(environment)
        reset_streams()
        serve(control)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
