"""The process that forks: a clean, single-threaded interpreter that imported the flow once.

``python -P -m redrive.engine.runner.zygote.zygote SOCKET_FD`` is how the executor starts it; ``serve`` is the same in a
process that was forked from a program which built its flow itself.

The loop in ``fork_loop.py`` forks the attempts. When the executor's end of the socket closes, the zygote kills all
descendants and ends.

If the import leaves threads running, forking is unsafe. Then the zygote re-executes itself, which ends the threads, and
each process of attempts imports the flow itself (``per_attempt_import.py``).
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from ...core.spec import FlowSpec
from ...statefile.processes import EXECUTOR_VARIABLE
from .. import process, protocol
from ..child import FlowFacts, flush, reset_exit_functions
from ..command import attempts_folder
from .flow_import import Loader, RecordedLoader, facts_after_restart, open_flow
from .fork_loop import RECEIVE_BYTES, ExecutorGone, ForkLoop

END_SECONDS = 5.0

#: Blocked in the zygote, and unblocked in an attempt once it can handle them. None of them may end the zygote, which
#: lives as long as the executor's socket. A fork does not copy pending signals. They are blocked before the import,
#: because a thread that the import starts would otherwise receive them.
_BLOCKED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """The environment and folder of the zygote before the import."""

    environment: Mapping[str, str]
    folder: str | None  # None: it was removed

    @classmethod
    def current(cls) -> ProcessOrigin:
        """Read the environment and the folder of this process."""
        try:
            return cls(dict(os.environ), os.getcwd())
        except OSError:
            return cls(dict(os.environ), None)

    def reexecute(self, control: socket.socket, state: protocol.RestartState) -> NoReturn:
        """Execute the zygote again. Pid, children and blocked signals stay. Raises OSError."""
        memory = os.memfd_create("redrive", 0)  # inherited
        protocol.write_all(memory, protocol.encode(state))
        control.set_inheritable(True)
        if self.folder is not None:
            os.chdir(self.folder)
        words = [*sys.orig_argv[:-1], str(control.fileno()), str(memory)]  # in place of the socket alone
        os.execve(sys.executable, words, dict(self.environment))


def serve(
    control: socket.socket, load: Loader, *, origin: ProcessOrigin | None = None, warnings: Sequence[str] = ()
) -> NoReturn:
    """Open the flow that the first frame names, fork attempts until the executor is gone, and end.

    ``origin``: for a re-execution if the import leaves threads; ``warnings``: known before the import.
    """

    def work() -> None:
        reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        loop = _open(control, reader, load, origin, warnings)
        if loop is not None:
            _fork_attempts(loop)

    _run_to_end(work)


def _open(
    control: socket.socket,
    reader: protocol.FrameReader,
    load: Loader,
    origin: ProcessOrigin | None,
    warnings: Sequence[str],
) -> ForkLoop | None:
    """Import the flow and answer. None: that failed.

    A function of its own, because the answer has the specs of all tasks, and must be gone before the first fork.
    """
    request = _receive_open(control, reader)
    imported = open_flow(request, load)
    if isinstance(imported, protocol.OpenFailed):
        control.sendall(protocol.encode(imported))
        return None
    response = msgspec.structs.replace(imported.response, warnings=[*warnings, *imported.response.warnings])
    if imported.left_threads and origin is not None:
        response = msgspec.structs.replace(response, imports_per_process=True)
        from ...flow.recorded_sources import read_sources  # here, because each fork would copy what it imports

        sources = read_sources(msgspec.json.decode(response.spec, type=FlowSpec).sources)
        origin.reexecute(control, protocol.RestartState(request, response, sources))
    loop = _answer(control, reader, imported.facts, response)
    if imported.uses_collector:
        gc.enable()
    return loop


def _answer(
    control: socket.socket, reader: protocol.FrameReader, facts: FlowFacts, response: protocol.FlowOpened
) -> ForkLoop:
    _install_signal_handlers(facts)
    loop = ForkLoop(control, facts, reader)
    control.sendall(protocol.encode(response))
    return loop


def serve_restarted(control: socket.socket, load: RecordedLoader, state: protocol.RestartState) -> NoReturn:
    """Serve after a re-execution: each process of attempts imports the flow, this process never does."""
    reader = protocol.FrameReader(protocol.CONTROL_LIMIT)

    def work() -> None:
        _fork_attempts(_answer(control, reader, facts_after_restart(state, load), state.opened))

    _run_to_end(work)


def _read_restart_state(memory: int) -> protocol.RestartState:
    """Read the state that ``reexecute`` wrote."""
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        (payload,) = protocol.FrameReader(protocol.CONTROL_LIMIT).feed(file.read())
    return protocol.decode_restart_state(payload)


def _run_to_end(work: Callable[[], None]) -> NoReturn:
    """Run ``work``, then end this process by ``os._exit``: the interpreter would join threads."""
    executor_id = os.environ.get(EXECUTOR_VARIABLE, "")
    try:
        process.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        work()
    except (ExecutorGone, BrokenPipeError, ConnectionResetError):
        pass  # the executor is gone: no report
    except BaseException:
        traceback.print_exc()
    finally:
        _kill_descendants(END_SECONDS)
        _remove_folder(attempts_folder(executor_id, os.getpid()))
        flush()
        os._exit(0)


def _kill_descendants(seconds: float) -> None:
    """Kill and reap all descendants. All of them become children of this process, their living subreaper."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        process.kill_all(process.descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)  # SIGKILL was sent to all of them; others may have been forked meanwhile


def _remove_folder(folder: str) -> None:
    if os.path.isdir(folder):
        import shutil  # here, because each fork would copy what it imports

        shutil.rmtree(folder, ignore_errors=True)


def _fork_attempts(loop: ForkLoop) -> None:
    reset_exit_functions()
    gc.collect()
    gc.freeze()  # a collection in an attempt would write to every object, and so copy all memory
    process.collapse_heap()
    loop.run()


def _install_signal_handlers(facts: FlowFacts) -> None:
    """Install the handlers of attempts, which inherit them and only unblock the signals."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, facts.termination.handle)
    faulthandler.enable(file=facts.stack_fd, all_threads=True)
    faulthandler.register(process.STACK_SIGNAL, file=facts.stack_fd, all_threads=True, chain=False)


def _receive_open(control: socket.socket, reader: protocol.FrameReader) -> protocol.Open:
    while True:
        data = control.recv(RECEIVE_BYTES)
        if not data:
            raise ExecutorGone
        for payload in reader.feed(data):
            frame = protocol.decode_executor_frame(payload)
            if not isinstance(frame, protocol.Open):
                raise protocol.ProtocolError(f"the first frame is {type(frame).__name__}, not Open")
            return frame


def reset_streams() -> None:
    """Make stdout and stderr line-buffered UTF-8 with backslash escapes, so that output of a hung task is complete."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main(arguments: list[str]) -> None:
    """Run the zygote: the entry point of the process that the executor starts."""
    from ...flow.loading import load_flow

    origin = ProcessOrigin.current()
    reset_streams()
    faulthandler.register(process.STACK_SIGNAL, all_threads=True, chain=False)  # shows where an import hangs
    descriptor, *memory = (int(argument) for argument in arguments[1:])
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    if memory:
        serve_restarted(control, load_flow, _read_restart_state(memory[0]))
    serve(control, load_flow, origin=origin)


if __name__ == "__main__":
    main(sys.argv)
