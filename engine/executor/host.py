"""A process of its own for an executor: ``python -P -m redrive.engine.executor.host FD``.

The settings come as one JSON line on descriptor FD; the same descriptor answers with one JSON line, ``{"ok": true}`` or
the error that kept it from starting, and is closed. After that the process belongs to nobody: no terminal, no parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import ExecutorBusyError, FlowError, FlowImportError, RedriveError, StateFileError, StorageError
from .loop import Executor, RunOptions

STARTED, NOT_STARTED = 0, 1

_ERRORS: dict[str, type[RedriveError]] = {
    kind.__name__: kind for kind in (ExecutorBusyError, FlowError, StateFileError, RedriveError)
}


def spawn(
    *, flow: str | None, state: str, run_id: str | None, params: Mapping[str, Any], options: Mapping[str, Any]
) -> int:
    """Start an executor in a session of its own and return its pid once it owns the state file.

    ``options`` are the fields of RunOptions. Raises what kept it from starting: FlowError, ExecutorBusyError, ...
    Its stderr goes to ``<state>.stderr``: empty unless something is wrong with the executor itself.
    """
    log = _open_log(state)
    parent_end, child_end = os.pipe(), os.pipe()
    command = [sys.executable, "-P", "-m", "redrive.engine.executor.host", str(child_end[0]), str(parent_end[1])]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(child_end[0], parent_end[1]),
            start_new_session=True,
        )
    finally:
        for descriptor in (log, child_end[0], parent_end[1]):
            os.close(descriptor)
    settings = {"flow": flow, "state": state, "run_id": run_id, "params": dict(params), "options": dict(options)}
    with os.fdopen(child_end[1], "w") as to_child:
        to_child.write(json.dumps(settings) + "\n")
    with os.fdopen(parent_end[0]) as from_child:
        line = from_child.readline()
    if not line:
        raise RedriveError(f"the executor did not start; {state}.stderr says why")
    answer = json.loads(line)
    if not answer["ok"] and not os.path.exists(state):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{state}.stderr")  # the answer says all of it, and there is nothing that it would lie beside
    return _understand(answer, process.pid)


def _open_log(state: str) -> int:
    path = state + ".stderr"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(state)), exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from None


def _understand(answer: Mapping[str, Any], pid: int) -> int:
    if answer["ok"]:
        return pid
    if answer["error"] == FlowImportError.__name__:
        raise FlowImportError(answer["message"], answer.get("traceback", ""))
    raise _ERRORS.get(answer["error"], RedriveError)(answer["message"])


def main() -> int:
    """Entry of the process."""
    read_end, write_end = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (read_end, write_end):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with os.fdopen(read_end) as pipe:
        settings = json.loads(pipe.readline())
    answer = _Answer(write_end)
    executor = Executor(
        run_id=settings["run_id"],
        flow=settings["flow"],
        state=settings["state"],
        options=RunOptions(params=settings["params"], **settings["options"]),
        on_open=answer.started,
        handle_signals=True,
    )
    try:
        executor.run_result()
    except RedriveError as error:
        answer.failed(error)
        print(f"redrive: {error}", file=sys.stderr)
        return NOT_STARTED
    return STARTED


class _Answer:
    """Says once whether the executor started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def started(self, run_id: str) -> None:
        """The state file is ours, and so is the log beside it: what earlier executors left in it goes."""
        os.ftruncate(sys.stderr.fileno(), 0)
        self._send({"ok": True, "run_id": run_id})

    def failed(self, error: RedriveError) -> None:
        name = type(error).__name__
        known = name if name in _ERRORS or isinstance(error, FlowImportError) else _family(error)
        self._send({"ok": False, "error": known, "message": str(error), "traceback": getattr(error, "traceback", "")})

    def _send(self, answer: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(json.dumps(answer) + "\n")
        self._descriptor = None


def _family(error: RedriveError) -> str:
    return next(name for name, kind in _ERRORS.items() if isinstance(error, kind))


if __name__ == "__main__":
    sys.exit(main())
