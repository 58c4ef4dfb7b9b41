"""The stdin, stdout and stderr of ``redrive exec`` for its command, as if nothing stood between.

Each stream has a thread of its own, because a reader may be slow: when ``WAITING_BYTES`` wait for it, the output of the
attempt is read no further, so that the command blocks, and neither the loop nor a timeout does. A reader that is gone
ends the command by SIGPIPE. With retries the stdout of the latest attempt waits in a file until the run has ended:
what failed must not be in a backup as well.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import tempfile
import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import IO

from ...engine.executor.attempts import AttemptRecorder
from .group import STDOUT

STDIN, STDERR = 0, 2
WAITING_BYTES = 256 * 1024  # of a stream
CHUNK_BYTES = 64 * 1024


class Passthrough:
    """Passes the bytes of commands on. ``spools``: the stdout of the latest attempt alone, at the end."""

    def __init__(self, *, spools: bool) -> None:
        self.lacks_input = False  # of the latest attempt: an earlier one has read it
        self.failure = ""  # why a stream took no more, in words; empty if it has taken all, or nobody reads it
        self._spool: IO[bytes] | None = tempfile.TemporaryFile() if spools else None  # noqa: SIM115  # to the end of the run
        self.count = 1 if _are_one(STDOUT, STDERR) else 2
        self._writers = {stream: StreamWriter(stream) for stream in (STDOUT, STDERR) if _is_open(stream)}
        self._has_read = False
        self._has_input = _is_open(STDIN) and not stat.S_ISCHR(os.fstat(STDIN).st_mode)

    def begin_attempt(self) -> str:
        """Forget what an earlier attempt wrote, and return the path of a pipe with the input of this process, for the
        first one; a terminal is none.

        The input itself can be of another user, as the pipe that cron makes, so that the command cannot open it.
        """
        if self._spool is not None:
            self._spool.seek(0)
            self._spool.truncate()
        self.lacks_input = self._has_read
        if not self._has_input:
            return ""
        self._has_input = False
        reading, writing = os.pipe()
        threading.Thread(target=self._copy_stream, args=(writing,), daemon=True, name="reads stdin").start()
        return f"/proc/{os.getpid()}/fd/{reading}"

    def _copy_stream(self, target: int) -> None:
        """Write all of the input into a pipe, and close that."""
        with suppress(OSError):
            while data := os.read(STDIN, CHUNK_BYTES):
                self._has_read = True
                _write(target, data)
        os.close(target)

    def write(self, attempt: AttemptRecorder, stream: int, data: bytes) -> None:
        """Pass data on."""
        if stream == STDOUT and stream not in self._writers:
            self.failure = "its stdout cannot be written: it is closed"
            attempt.controls.close_stdout()
        elif stream == STDOUT and self._spool is not None:
            self._write_spool(attempt, self._spool, data)
        elif stream in self._writers:
            self._writers[stream].put(attempt, data)

    def _write_spool(self, attempt: AttemptRecorder, spool: IO[bytes], data: bytes) -> None:
        try:
            spool.write(data)
        except OSError as error:
            self.failure = f"the output of the command cannot be kept until its end: {error.strerror}"
            attempt.controls.close_stdout()

    def finish(self) -> None:
        """Write what is left: wait for the readers, as the command would have."""
        if self._spool is not None and STDOUT in self._writers:  # else nothing was kept
            self._spool.seek(0)
            self._writers[STDOUT].write_all(iter(partial(self._spool.read, CHUNK_BYTES), b""))
        for stream, writer in self._writers.items():
            writer.finish()
            if writer.error is not None and writer.error.errno != errno.EPIPE:
                name = "stdout" if stream == STDOUT else "stderr"
                self.failure = f"its {name} cannot be written: {writer.error.strerror}"


def _is_open(stream: int) -> bool:
    """Whether a stream was open when this process began: later its number may stand for another file."""
    return (sys.__stdin__, sys.__stdout__, sys.__stderr__)[stream] is not None


def _are_one(first: int, second: int) -> bool:
    return _is_open(first) and _is_open(second) and os.path.samestat(os.fstat(first), os.fstat(second))


class StreamWriter:
    """Writes to a descriptor in a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self.error: OSError | None = None  # it takes no more
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_finished = False
        self._on_room: Callable[[], None] | None = None  # what waits for room
        self._on_error: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def put(self, attempt: AttemptRecorder, data: bytes) -> None:
        """Queue data of an attempt, which reads no more while too much waits. Call it in the event loop."""
        loop = get_running_loop()
        with self._changed:
            if self._descriptor == STDOUT:
                self._on_error = lambda: _call(loop, attempt.controls.close_stdout)
            if self.error is not None:
                return
            self._append(data)
            if self._bytes > WAITING_BYTES and self._on_room is None:
                attempt.controls.pause_output()
                self._on_room = lambda: _call(loop, attempt.controls.resume_output)

    def write_all(self, chunks: Iterator[bytes]) -> None:
        """Queue data, and wait whenever too much waits."""
        for data in chunks:
            with self._changed:
                if self.error is not None:
                    return
                self._append(data)
                self._changed.wait_for(lambda: self._bytes <= WAITING_BYTES or self.error is not None)

    def finish(self) -> None:
        """Wait until all is written, or cannot be."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _append(self, data: bytes) -> None:
        self._waiting.append(data)
        self._bytes += len(data)
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, daemon=True, name=f"writes to {self._descriptor}")
            self._thread.start()

    def _write_all(self) -> None:
        while (data := self._next()) is not None:
            try:
                _write(self._descriptor, data)
            except OSError as error:
                self._end(error)
                return
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()
                if self._bytes <= WAITING_BYTES // 2:
                    self._release()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_finished)
            return self._waiting.popleft() if self._waiting else None

    def _end(self, error: OSError) -> None:
        with self._changed:
            self.error = error
            self._waiting.clear()
            self._changed.notify_all()
            if self._on_error is not None:
                self._on_error()
            self._release()

    def _release(self) -> None:
        release, self._on_room = self._on_room, None
        if release is not None:
            release()


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it, also where another process has made the descriptor one that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def _call(loop: AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended, and the attempt with it
        loop.call_soon_threadsafe(function)
