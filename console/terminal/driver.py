"""Textual driver: key input, screen output and signals, all non-blocking on the event loop.

Textual's own driver writes through a bounded queue, reads in a thread that spins when the terminal is gone, asks for
reports of every mouse move, and dies on SIGTERM and SIGHUP with the terminal left as it was drawn. ``ConsoleDriver``
is its replacement for ``redrive``; ``ConsoleTerminal`` makes an App use it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from textual import events, messages
from textual.app import App
from textual.driver import Driver
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen

from ..text.text import sanitize_lines
from . import textual_internals as internals
from .capabilities import TerminalCapabilities, detect_capabilities, size_of
from .cell_encoder import CellEncoder
from .escape_parser import EscapeKey, EscapeParser, EscapeSequence, InputToken, PastedText
from .flow_control import FlowControl
from .output import REQUEST_POSITION, TerminalOutput
from .tty import ALTERNATE_SCREEN, MODES, MOUSE_OFF, MOUSE_ON, Tty, detach_standard_streams, open_screen

_REQUEST_SYNCHRONIZED = "\x1b[?2026$p"
_LAST_ROW, _ERASE_ROW = "\x1b[999;1H", "\r\x1b[K"  # the probe covers nothing and is not left on the screen
_PROBE = "●◆↻✓·"  # signs that some terminals for East Asian scripts draw two cells wide
_LETTER_PROBE = "é"  # the same where signs are drawn in ASCII
_READ_BYTES = 4096
_RESIZE_SECONDS = 0.05  # a dragged window edge sends dozens of sizes a second
_FIRST_REPORT_SECONDS = 2.0
_LAST_REPORTS_SECONDS = 0.3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_STRING_INTRODUCERS = ("\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX")

internals.fire_late_timers()


class ConsoleDriver(Driver):
    """Textual creates one driver for each run of the App."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        assert isinstance(app, ConsoleTerminal)
        self._console = app
        self._tty = app.tty
        # With a size, else Textual believes COLUMNS and LINES.
        super().__init__(app, debug=debug, mouse=mouse, size=size or size_of(self._tty.screen_fd))
        app.console_driver = self
        self._event_loop = asyncio.get_running_loop()
        self._restarts_itself = True
        #: Whether the terminal sends clicks to us instead of selecting text, which people do over ssh.
        self.captures_mouse = mouse and not self._tty.capabilities.is_remote
        shown = self._tty.capabilities
        self.cell_encoder = CellEncoder(shown.colours, shown.has_unicode_texts, has_ascii_signs=not shown.has_unicode)
        self.output: TerminalOutput | None = None
        self._is_reading = False
        self._handles_signals = False
        self._probe = _PROBE if shown.has_unicode else _LETTER_PROBE if shown.has_unicode_texts else ""
        self._position_requested_at: float | None = None  # when the first report was asked for, until it comes
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._escape_parser = EscapeParser(self._tty.capabilities.escape_delay_seconds)
        self._new_key_parser = partial(internals.XTermParser, debug)
        self._key_parser = self._new_key_parser()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._resize_timer: asyncio.TimerHandle | None = None

    @property
    def can_suspend(self) -> bool:
        """True: Ctrl-Z and pagers work."""
        return True

    @contextmanager
    def no_automatic_restart(self) -> Iterator[None]:
        """Suspend and resume by the block alone, as for a pager: no signal does it."""
        before, self._restarts_itself = self._restarts_itself, False
        try:
            with super().no_automatic_restart():
                yield
        finally:
            self._restarts_itself = before

    # --- the life of it -------------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Enter raw mode and draw; also called after a pager or a suspension."""
        remote = self._tty.capabilities.is_remote
        self._tty.enter_raw_mode()
        self.output = TerminalOutput(
            open_screen(self._tty.screen_fd),
            on_lost=self._on_hangup,
            on_drained=self._console.output_drained,
            flow_control=FlowControl() if remote else None,
        )
        self._add_signal_handlers()
        self._event_loop.add_reader(self._tty.input_fd, self._read)
        self._is_reading = True
        self.output.send_control(self._tty.alternate_screen_sequence() + self._modes())
        if os.environ.get("TERM_PROGRAM") != "Apple_Terminal":  # which prints the question's last letter
            self.output.send_control(_REQUEST_SYNCHRONIZED)
        self._position_requested_at = self._event_loop.time()
        self.output.send_control(f"{_LAST_ROW}{self._probe}{REQUEST_POSITION}{_ERASE_ROW}")
        self._post_size()

    def _modes(self) -> str:
        return MODES + (MOUSE_ON if self.captures_mouse else "")

    def disable_input(self) -> None:
        """Read no more keys."""
        if self._is_reading:
            self._event_loop.remove_reader(self._tty.input_fd)
            self._is_reading = False
        for timer in (self._expiry_timer, self._resize_timer):
            if timer is not None:
                timer.cancel()

    def stop_application_mode(self) -> None:
        """Restore the terminal, with a short wait for pending reports."""
        self.disable_input()
        if self.output is not None:
            self._discard_pending_reports(self.output.pending_reports)
            self.output.close()
        self._tty.release()

    def close(self) -> None:
        """Remove the signal handlers. Textual calls this at shutdown and for a suspension."""
        if self._handles_signals:
            self._handles_signals = False
            for number in _SIGNALS:
                self._event_loop.remove_signal_handler(number)

    def _discard_pending_reports(self, count: int) -> None:
        """Read the position reports that are still due, so that the shell does not get them as input."""
        end = self._event_loop.time() + _LAST_REPORTS_SECONDS
        count += (
            self._position_requested_at is not None
            and self._event_loop.time() < self._position_requested_at + _FIRST_REPORT_SECONDS
        )
        while count > 0 and select.select([self._tty.input_fd], [], [], max(end - self._event_loop.time(), 0))[0]:
            try:
                count -= max(os.read(self._tty.input_fd, _READ_BYTES).count(b"R"), 1)
            except OSError:
                return

    # --- out ------------------------------------------------------------------------------------------------------

    def write(self, data: str) -> None:
        """Send a control sequence in order with the frames."""
        if self.output is not None:
            self.output.send_control(data)

    def ring(self) -> None:
        if self.output is not None:
            self.output.ring()

    def set_mouse(self, on: bool) -> None:
        """Receive clicks, or leave the mouse to the terminal, to select text."""
        self.captures_mouse = on
        self.write(MOUSE_ON if on else MOUSE_OFF)

    def show(self, update: internals.Update, size: Size) -> None:
        """Copy composed strips into the buffer and write the changed cells."""
        if self.output is None:
            return
        picture = self.output.buffer
        picture.resize(size.width, size.height)
        cells = self.cell_encoder.encode
        for x, y, strips in internals.painted_parts(update):
            picture.draw(x, y, [cell for strip in strips for cell in cells(strip)])
        self.output.flush()

    def redraw(self) -> None:
        """Write all cells again."""
        if self.output is not None:
            self.output.buffer.invalidate()
            self.output.flush()

    # --- in -------------------------------------------------------------------------------------------------------

    def read_pending(self, at_most: float) -> None:
        """Read pending input. Its arrival time is at most ``at_most`` (seconds of the loop's clock), because it may
        have arrived while the loop was busy."""
        if self._is_reading:
            self._read(at_most)

    def _read(self, at_most: float = float("inf")) -> None:
        """Read once. The loop may call although ``read_pending`` has taken everything since it looked, and a read then
        would wait for the next key: the descriptor blocks, because it is the shell's as well."""
        if not select.select([self._tty.input_fd], [], [], 0)[0]:
            return
        try:
            data = os.read(self._tty.input_fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._on_hangup()
            return
        at = min(self._event_loop.time(), at_most)
        self._deliver(self._escape_parser.feed(self._decode(data), at), at)

    def _deliver(self, tokens: list[InputToken], at: float) -> None:
        for token in tokens:
            for message in self._messages(token, at):
                self.process_message(message)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        due = self._escape_parser.expires_at()
        self._expiry_timer = None if due is None else self._event_loop.call_at(due, self._on_expiry)

    def _on_expiry(self) -> None:
        now = self._event_loop.time()
        self._deliver(self._escape_parser.expire(now), now)

    def _messages(self, token: InputToken, at: float) -> list[Message]:
        if isinstance(token, EscapeKey):
            found: list[Message] = [events.Key("escape", "\x1b")]
            at = token.at
        elif isinstance(token, PastedText):
            found = [events.Paste(token.text.replace("\0", ""))]
        elif isinstance(token, EscapeSequence) and token.text.startswith(_STRING_INTRODUCERS):
            found = []
        else:
            found = list(self._key_parser.feed(token.text))
            if isinstance(token, EscapeSequence) and not found:
                self._key_parser = self._new_key_parser()  # it does not know the sequence and would wait for more of it
        for message in found:
            message.time = at
        return found

    def process_message(self, message: Message) -> None:
        """Handle terminal reports here; pass keys and mouse events on."""
        if isinstance(message, events.CursorPosition):
            self._on_position_report(message.x)
        elif isinstance(message, messages.TerminalSupportsSynchronizedOutput):
            if self.output is not None:
                self.output.supports_synchronized = True
        elif isinstance(message, events.Key):
            if self._console.accepts_key(message):
                super().process_message(message)
        elif not isinstance(message, messages.InBandWindowResize):
            super().process_message(message)

    def _on_position_report(self, column: int) -> None:
        """The first report gives the width of the probe glyphs; later reports confirm frames."""
        if self._position_requested_at is not None:
            self._position_requested_at = None
            if column != len(self._probe):
                self.cell_encoder = CellEncoder(self._tty.capabilities.colours, has_wide_signs=True)
                self._console.fall_back_to_ascii()
        if self.output is not None:
            self.output.on_position_report()

    def send_message(self, message: Message) -> None:
        """Post directly: the driver runs on the event loop."""
        self._console.post_message(message)

    # --- signals --------------------------------------------------------------------------------------------------

    def _add_signal_handlers(self) -> None:
        if self._handles_signals:
            return
        self._handles_signals = True
        add = self._event_loop.add_signal_handler
        add(signal.SIGTERM, self._console.terminated, signal.SIGTERM)
        add(signal.SIGINT, self._console.terminated, signal.SIGINT)
        add(signal.SIGHUP, self._on_hangup)
        add(signal.SIGWINCH, self._schedule_resize)
        add(signal.SIGTSTP, self._on_suspend)
        add(signal.SIGCONT, self._on_resume)

    def _on_hangup(self) -> None:
        """Handle a hang-up or a failed read or write: the terminal is lost."""
        self.disable_input()
        if self.output is not None:
            self.output.close()
            self.output = None
        self._tty.release()  # a SIGHUP sent by hand leaves a terminal that wants to be restored
        detach_standard_streams()
        self._console.terminal_lost()

    def _on_suspend(self) -> None:
        if self._restarts_itself:
            self.stop_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_resume(self) -> None:
        """Continue after SIGCONT: another program may have used the terminal."""
        if not self._restarts_itself:
            return
        if self._is_reading and self.output is not None:
            self._tty.enter_raw_mode()
            self.output.send_control(ALTERNATE_SCREEN + self._modes())
            self.redraw()
        else:
            self.start_application_mode()
            self._console.post_message(self.SignalResume())
            self._console.refresh(layout=True)

    def _schedule_resize(self) -> None:
        if self._resize_timer is None:
            self._resize_timer = self._event_loop.call_later(_RESIZE_SECONDS, self._post_size)

    def _post_size(self) -> None:
        self._resize_timer = None
        size = Size(*size_of(self._tty.screen_fd))
        self._console.post_message(events.Resize(size, size))


class ConsoleTerminal(internals.AppInternals):
    """An App on ``ConsoleDriver``, with a given or a new ``Tty``.

    Overridables: ``terminated`` (by a signal), ``terminal_lost`` (hang-up), ``output_drained`` (all output written),
    ``fall_back_to_ascii`` (glyphs are too wide), ``accepts_key`` (before the key is handled).
    """

    def __init__(self, tty: Tty | None = None) -> None:
        self.tty = tty or Tty(detect_capabilities())
        self.console_driver: ConsoleDriver | None = None  # None: the app runs without a terminal
        super().__init__()

    def get_driver_class(self) -> type[Driver]:
        """Return ``ConsoleDriver``; TEXTUAL_DRIVER has no effect."""
        return ConsoleDriver

    @property
    def capabilities(self) -> TerminalCapabilities:
        """The capabilities of the terminal."""
        return self.tty.capabilities

    @property
    def is_output_busy(self) -> bool:
        """Whether the last frame is not yet written: skip this paint, the next one includes it."""
        driver = self.console_driver
        return driver is not None and driver.output is not None and driver.output.is_busy

    def output_drained(self) -> None:
        """Called when all output is written after the terminal was busy."""

    def fall_back_to_ascii(self) -> None:
        """The terminal draws glyphs wider than one cell: send ASCII from now on."""
        self.repaint()

    def accepts_key(self, key: events.Key) -> bool:
        """Called when a key is read, before it is queued. False drops it."""
        return True

    def repaint(self) -> None:
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.refresh()

    def terminated(self, number: int) -> None:
        """Handle SIGTERM or SIGINT."""
        self.exit(return_code=128 + number)

    def terminal_lost(self) -> None:
        """The terminal is gone. The run is not: it belongs to another process."""
        self.exit(return_code=128 + signal.SIGHUP)

    def redraw(self) -> None:
        """Draw everything again (Ctrl-L), because the terminal may show something else."""
        if self.console_driver is not None:
            self.console_driver.redraw()

    def bell(self) -> None:
        """Ring the terminal's bell."""
        if self.console_driver is not None:
            self.console_driver.ring()

    def copy_to_clipboard(self, text: str) -> None:
        """Have the terminal copy ``truncated_to_clipboard(text)``."""
        if self.console_driver is not None:
            self.console_driver.write(copy_sequence(text, os.environ))

    @property
    def draws_updates(self) -> bool:
        """True: this app draws on a terminal."""
        return self.console_driver is not None

    def draw_update(self, screen: Screen[Any], update: internals.Update) -> None:
        """Write the changed cells and move the terminal's cursor to the text input."""
        driver = self.console_driver
        assert driver is not None
        if driver.output is not None:
            cursor = self.cursor_position
            driver.output.buffer.cursor_target = (cursor.x, cursor.y) if cursor else None
        driver.show(update, screen.outer_size)


# --- Copy to the clipboard of the local machine through the terminal (OSC 52); works over ssh ------------------------


#: The limit of xterm, before base64; other terminals accept at least as much.
COPIED_BYTES_MAX = 74_994
_SCREEN_CHUNK = 240  # GNU screen cuts longer strings off


def truncated_to_clipboard(text: str) -> str:
    """The start of ``text`` that fits the clipboard limit, without control characters, which would act when pasted."""
    return sanitize_lines(text).encode("utf-8", "replace")[:COPIED_BYTES_MAX].decode("utf-8", "ignore")


def copy_sequence(text: str, environ: Mapping[str, str]) -> str:
    """The escape sequence that makes the terminal copy ``truncated_to_clipboard(text)``, also inside tmux or screen.

    tmux forwards one of two forms, depending on its configuration: send both.
    """
    data = b64encode(truncated_to_clipboard(text).encode("utf-8")).decode("ascii")
    plain = f"\x1b]52;c;{data}\x07"
    if environ.get("TMUX"):
        return f"{plain}\x1bPtmux;\x1b{plain}\x1b\\"
    if environ.get("STY"):
        chunks = (plain[start : start + _SCREEN_CHUNK] for start in range(0, len(plain), _SCREEN_CHUNK))
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return plain
