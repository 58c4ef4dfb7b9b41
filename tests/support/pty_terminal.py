"""A terminal made of a real PTY and pyte: programs get a controlling terminal, keys, resizes, hang-ups and stalls.

Nothing is read behind the test's back: a terminal that does not read is a test that does not call ``read``.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyte

_PRIVATE_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_UNKNOWN_TO_PYTE = re.compile(rb"\x1b\[[<>=?][0-9;]*\$?[a-zA-Z]|\x18|\x1b>")
_SGR = re.compile(rb"\x1b\[([0-9;]*)m")
_ASK_SYNCHRONIZED, _ASK_POSITION = b"\x1b[?2026$p", b"\x1b[6n"
_INCOMPLETE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*)?\Z|[\xc0-\xff][\x80-\xbf]{0,3}\Z")

#: A wait ends when its condition holds. This is for a program that hangs, on a machine that does much else.
LIMIT_SECONDS = 90.0

ENVIRONMENT = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
_TRIES = 40


def is_readable(descriptor: int, seconds: float = 0.0) -> bool:
    """Whether there is something to read, also from a descriptor above 1,024, which ``select`` refuses."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


class PtyTerminal:
    """A program on a terminal of its own.

    Attributes:
        raw: every byte read so far.
        screen: what a person would see, as far as it was read.
        modes: the private modes that are switched on (25 is the cursor, 1049 the alternate screen).
        answers: whether questions of the program are answered, as real terminals do.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        environ: Mapping[str, str] | None = None,
        answers: bool = True,
    ) -> None:
        self.raw = bytearray()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.modes = {7, 25}
        self.answers = answers
        self._unparsed = b""
        self._seen: tuple[int, int, int] | None = None  # what the lines were made of
        self._lines: list[str] = []
        self.master, slave = os.openpty()
        self.resize(columns, rows, report=False)
        self.slave_path = os.ttyname(slave)
        self.attributes = termios.tcgetattr(slave)
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**ENVIRONMENT, **(environ or {})},
        )
        self._slave = slave  # held open, so that its settings can be looked at when the program is gone

    # --- what the terminal does ----------------------------------------------------------------------------------

    def read(self, seconds: float = 0.0) -> int:
        """Read what there is, waiting up to ``seconds`` for the first byte. Returns how many bytes were read."""
        if self.master < 0 or not is_readable(self.master, seconds):
            return 0
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return 0
        self._receive(data)
        return len(data)

    def _receive(self, data: bytes) -> None:
        self.raw += data
        data = self._unparsed + data
        tail = _INCOMPLETE.search(data)
        self._unparsed = data[tail.start() :] if tail else b""
        data = data[: len(data) - len(self._unparsed)]
        for numbers, on in _PRIVATE_MODE.findall(data):
            for number in map(int, numbers.split(b";")):
                (self.modes.add if on == b"h" else self.modes.discard)(number)
        for part in re.split(rb"(\x1b\[6n)", data):
            if part != _ASK_POSITION:
                self._stream.feed(_UNKNOWN_TO_PYTE.sub(b"", part))
            elif self.answers:
                self.send(b"\x1b[%d;%dR" % (self.screen.cursor.y + 1, self.screen.cursor.x + 1))
        if self.answers:
            for _ in range(data.count(_ASK_SYNCHRONIZED)):
                self.send(b"\x1b[?2026;2$y")

    def read_for(self, seconds: float) -> int:
        """Read for so long. Returns how many bytes came."""
        end = time.monotonic() + seconds
        count = 0
        while (left := end - time.monotonic()) > 0:
            count += self.read(left)
            if self.process.poll() is not None and not self.read(0):
                break
        return count

    def until(self, met: str | Callable[[], Any], seconds: float = LIMIT_SECONDS) -> None:
        """Read until a text is on the screen or a condition holds.

        Raises:
            AssertionError: it did not come to be in time; shows the screen.
        """
        condition = (lambda: met in self.text) if isinstance(met, str) else met
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {met}\n{self.text}"
            self.read(0.02)

    def send(self, data: bytes | str) -> None:
        """Keys, pastes, answers."""
        os.write(self.master, data.encode() if isinstance(data, str) else data)

    def resize(self, columns: int, rows: int, report: bool = True) -> None:
        """Another window size; the kernel tells the program."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if report:
            self.screen.resize(rows, columns)

    def hang_up(self) -> None:
        """The line is cut."""
        os.close(self._slave)
        os.close(self.master)
        self.master = self._slave = -1

    def signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        self.process.send_signal(number)

    def until_stopped(self) -> None:
        """Read until the program is stopped, by itself or by SIGSTOP: what continues it before that is lost."""
        self.until(lambda: self._process_fields()[0] == "T")

    # --- what a person sees ---------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[str]:
        """The rows of the screen without the blanks at their ends. Made again only when something was read."""
        seen = len(self.raw), self.screen.columns, self.screen.lines
        if seen != self._seen:
            self._seen, self._lines = seen, [line.rstrip() for line in self.screen.display]
        return self._lines

    @property
    def text(self) -> str:
        """The whole screen."""
        return "\n".join(self.lines)

    def is_given_back(self) -> bool:
        """Modes and line settings are as they were before the program."""
        return self.modes == {7, 25} and not self.takes_keys()

    def takes_keys(self) -> bool:
        """The line is not yet as it was before the program."""
        return termios.tcgetattr(self._slave) != self.attributes

    def unread_input(self) -> bytes:
        """Bytes that were sent and that nobody has read: a shell would take them for keys."""
        settings = termios.tcgetattr(self._slave)
        settings[3] &= ~termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        return os.read(self._slave, 4096) if is_readable(self._slave) else b""

    def colour_codes(self) -> set[str]:
        """The SGR parameters sent so far that set a colour."""
        parameters = {number for match in _SGR.findall(bytes(self.raw)) for number in match.decode().split(";")}
        return {number for number in parameters if number and (30 <= int(number) <= 49 or 90 <= int(number) <= 107)}

    # --- the program ----------------------------------------------------------------------------------------------

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Read until the program ends. Returns its exit code; negative for a signal."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still running after {seconds} s\n{self.text}"
            if not self.read(0.02):
                time.sleep(0.005)  # a line that was hung up is never silent
        while self.read(0):
            pass
        return self.process.returncode

    def memory_bytes(self) -> int:
        """Resident memory of the program."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Processor time that the program has used."""
        fields = self._process_fields()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _process_fields(self) -> list[str]:
        """proc(5), ``stat``, from the state on."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()

    def close(self) -> None:
        """End the program, however it behaves."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait()
        for fd in (self.master, self._slave):
            if fd >= 0:
                os.close(fd)


def python(script: str | os.PathLike[str], *arguments: str) -> list[str]:
    """The argument vector that runs a script in this interpreter."""
    return [sys.executable, os.fspath(script), *arguments]


def in_time(attempt: Callable[[], bool]) -> None:
    """Try what is only what it should be where the machine does not stop in the middle of it, until it was.

    ``attempt`` checks what it can and returns whether it was such a try. What the program never does is none.
    """
    assert any(attempt() for _ in range(_TRIES)), "never seen"
