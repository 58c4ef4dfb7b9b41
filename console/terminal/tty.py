"""Raw mode and alternate screen, restored after errors, SIGTERM, a hang-up or a failed import.

Nothing here imports Textual, so the first cells are on the screen before that import begins. Every write goes through
a descriptor that never blocks. Sequences are those of ECMA-48 and xterm; a terminal ignores the modes it does not know.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from .capabilities import TerminalCapabilities, size_of

ALTERNATE_SCREEN = "\x1b[?1049h"
#: Modes of the console: cursor hidden, pastes in brackets, no automatic wrap, keypad sends digits.
MODES = "\x1b[?25l\x1b[?2004h\x1b[?7l\x1b>"
#: Clicks and the wheel, with SGR coordinates. Not 1003: it sends bytes for every move of the mouse.
MOUSE_ON = "\x1b[?1000h\x1b[?1006h"
MOUSE_OFF = "\x1b[?1006l\x1b[?1000l"
#: Undoes all of the above, and what a library below us may have switched on. CAN first ends a sequence cut short.
#: The picture is erased before the alternate screen is left: where there is none, as in GNU screen by its defaults,
#: what the shell prints would stand in the picture; where there is one, nobody sees it.
RESET_MODES = (
    f"\x18\x1b[?2026l\x1b[m\x1b[?2004l{MOUSE_OFF}"
    "\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?7h\x1b[H\x1b[J\x1b[?1049l\x1b[?25h"
)

RESTORE_SECONDS = 0.5  # limit for writes while leaving, if the terminal does not read

_INPUT_FLAGS_OFF = termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR
_LOCAL_FLAGS_OFF = termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG


class Tty:
    """Exclusive use of the terminal. The end of the block restores its previous state::

        with Tty(detect_capabilities()) as tty:
            tty.splash("redrive - opening revenue.db")
            from .app import ConsoleApp      # slow, may fail
            ConsoleApp(..., tty=tty).run()

    Until the application has a loop that handles them in order, SIGTERM and SIGHUP end the block by ``SystemExit``.
    """

    def __init__(self, terminal: TerminalCapabilities, input_fd: int = 0, screen_fd: int = 2) -> None:
        self.capabilities = terminal
        self.input_fd = input_fd
        self.screen_fd = screen_fd
        self._saved_attributes: list[Any] | None = None
        self._is_alternate = False
        self._saved_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._saved_handlers[number] = signal.signal(number, _leave_on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        finally:
            for number, handler in self._saved_handlers.items():
                signal.signal(number, handler)

    def splash(self, words: str) -> None:
        """Show ``words`` at once, in ASCII, before Textual is imported."""
        columns, rows = size_of(self.screen_fd)
        shown = "".join(character for character in words if character.isascii() and character.isprintable())
        rule = "-" * columns
        lines = (f" {shown[: columns - 2]}", f"\x1b[2;1H{rule}", f"\x1b[{max(rows - 1, 3)};1H{rule}")
        self.enter_raw_mode()
        data = "".join((self.alternate_screen_sequence(), "\x1b[?25l\x1b[H\x1b[J", *lines))
        with _opened_screen(self.screen_fd) as screen:
            write_within(screen, data.encode("ascii"), RESTORE_SECONDS)

    def enter_raw_mode(self) -> None:
        """Read every key as it is pressed: no echo, no lines, no signals, no flow control; write bytes as they are."""
        try:
            raw = termios.tcgetattr(self.input_fd)
            if self._saved_attributes is None:
                self._saved_attributes = termios.tcgetattr(self.input_fd)
            raw[tty.IFLAG] &= ~_INPUT_FLAGS_OFF
            raw[tty.OFLAG] &= ~termios.OPOST
            raw[tty.LFLAG] &= ~_LOCAL_FLAGS_OFF
            raw[tty.CC][termios.VMIN] = 1
            termios.tcsetattr(self.input_fd, termios.TCSANOW, raw)
        except termios.error:
            pass  # the terminal is gone: the next read reports it

    def alternate_screen_sequence(self) -> str:
        """The sequence that switches to the alternate screen; "" if it is active already."""
        if self._is_alternate:
            return ""
        self._is_alternate = True
        return ALTERNATE_SCREEN

    def release(self) -> None:
        """Restore the screen and the input mode. A second call does nothing.

        A terminal that does not read loses unwritten output; its modes are restored all the same.
        """
        try:
            if self._is_alternate:
                self._is_alternate = False
                self._leave_screen()
            if self._saved_attributes is not None:
                attributes, self._saved_attributes = self._saved_attributes, None
                termios.tcsetattr(self.input_fd, termios.TCSANOW, attributes)
                termios.tcflush(self.input_fd, termios.TCIFLUSH)  # late answers of the terminal are not for the shell
        except (termios.error, OSError):
            pass  # the terminal is gone: there is nothing to restore

    def _leave_screen(self) -> None:
        data = RESET_MODES.encode("ascii")
        with _opened_screen(self.screen_fd) as screen:
            if not write_within(screen, data, RESTORE_SECONDS):
                termios.tcflush(screen, termios.TCOFLUSH)
                write_within(screen, data, 0)


@contextmanager
def _opened_screen(fd: int) -> Iterator[int]:
    """A descriptor of ``open_screen`` for the length of a block."""
    screen = open_screen(fd)
    try:
        yield screen
    finally:
        os.close(screen)


def open_screen(fd: int) -> int:
    """Open a separate non-blocking descriptor on the terminal behind ``fd``.

    The flag O_NONBLOCK belongs to the open file, which ``fd`` shares with the shell: hence a file of our own.

    Raises:
        OSError: no such terminal, or it belongs to another user (after ``su``) and is not the controlling one either.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(os.ttyname(fd), flags)
    except OSError:
        return os.open("/dev/tty", flags)


def write_within(screen: int, data: bytes, seconds: float) -> bool:
    """Write ``data`` to a descriptor of ``open_screen``, waiting at most ``seconds`` each time that it has no room.

    Returns False if something is left unwritten.
    """
    poll = select.poll()
    poll.register(screen, select.POLLOUT)
    while data:
        ready = poll.poll(seconds * 1000)
        if not ready or not ready[0][1] & select.POLLOUT:
            return False
        try:
            data = data[os.write(screen, data) :]
        except BlockingIOError:
            continue
        except OSError:
            return False
    return True


def detach_standard_streams() -> None:
    """Point descriptors 0 to 2 at /dev/null, so that late writes of libraries succeed after a hang-up."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)


def _leave_on_signal(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
