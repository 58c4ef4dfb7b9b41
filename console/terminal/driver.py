"""Textual's door to the terminal: keys in, pictures out, signals heard; all on the event loop, nothing ever blocks.

Textual's own driver writes through a bounded queue, reads in a thread that spins when the terminal is gone, asks for
reports of every mouse move, and dies on SIGTERM and SIGHUP with the terminal left as it was drawn. ``ConsoleDriver`` is
its replacement for ``redrive``; ``ConsoleTerminal`` makes an App use it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from codecs import getincrementaldecoder
from typing import Any

from textual import events, messages
from textual.app import App
from textual.driver import Driver
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen

from .capabilities import Terminal, size_of, survey
from .cell_encoder import Typesetter
from .clipboard import copy_sequence
from .escape_parser import EscapeKey, Pasted, Sequence, SequenceReader, Token
from .flow_control import Pacing
from .output import ASK_POSITION, TerminalOutput
from .textual_internals import UPDATE_SECONDS, AppInternals, Update, XTermParser, painted_parts, set_update_period
from .tty import ALTERNATE_SCREEN, MODES, MOUSE_OFF, MOUSE_ON, Hold, let_go, open_screen

_ASK_SYNCHRONIZED = "\x1b[?2026$p"
_PROBE = "●◆↻✓·"  # signs that some terminals for East Asian scripts draw two cells wide
_READ_BYTES = 4096
_RESIZE_SECONDS = 0.05  # a dragged window edge sends dozens of sizes a second
_FIRST_ANSWER_SECONDS = 2.0
_LAST_ANSWERS_SECONDS = 0.3
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_STRING_INTRODUCERS = ("\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX")

set_update_period(UPDATE_SECONDS)


class ConsoleDriver(Driver):
    """See the module. One for each run of the App, made by Textual."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert isinstance(app, ConsoleTerminal)
        self._console = app
        self._hold = app.hold
        self._forced_size = size
        self._size = self._size_now()  # else Textual believes COLUMNS and LINES
        self._mouse_on = mouse and self._hold.terminal.mouse
        self.typesetter = Typesetter(self._hold.terminal.colours, self._hold.terminal.unicode)
        self.output: TerminalOutput | None = None
        self._reading = False
        self._listening = False
        self._probe = _PROBE if self._hold.terminal.unicode else ""
        self._asked_at: float | None = None  # when the first report was asked for, until it comes
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._sequences = SequenceReader(self._hold.terminal.escape_delay_seconds)
        self._parser = XTermParser(debug)
        self._tick: asyncio.TimerHandle | None = None
        self._resize: asyncio.TimerHandle | None = None

    @property
    def can_suspend(self) -> bool:
        """Ctrl-Z and pagers work."""
        return True

    @property
    def mouse_on(self) -> bool:
        """Whether the terminal sends clicks to us instead of selecting text."""
        return self._mouse_on

    # --- the life of it -------------------------------------------------------------------------------------------

    def start_application_mode(self) -> None:
        """Take the terminal: also after it was given back for a pager or a suspension."""
        remote = self._hold.terminal.remote
        self._hold.take_keys()
        self.output = TerminalOutput(
            open_screen(self._hold.screen_fd),
            on_lost=self._lost,
            on_quiet=self._console.frame_shown,
            pacing=Pacing() if remote else None,
        )
        self._hear_signals()
        self._loop.add_reader(self._hold.input_fd, self._read)
        self._reading = True
        self.output.control(self._hold.enter_screen() + self._modes())
        if os.environ.get("TERM_PROGRAM") != "Apple_Terminal":  # which prints the question's last letter
            self.output.control(_ASK_SYNCHRONIZED)
        self._asked_at = self._loop.time()
        self.output.control(f"\x1b[H{self._probe}{ASK_POSITION}")
        self._tell_size()

    def _modes(self) -> str:
        return MODES + (MOUSE_ON if self._mouse_on else "")

    def disable_input(self) -> None:
        """Read no more keys."""
        if self._reading:
            self._loop.remove_reader(self._hold.input_fd)
            self._reading = False
        for timer in (self._tick, self._resize):
            if timer is not None:
                timer.cancel()

    def stop_application_mode(self) -> None:
        """Give the terminal back, waiting a moment at most if it does not read."""
        self.disable_input()
        if self.output is not None:
            self._await_last_answers(self.output.answers_due)
            self.output.abandon()
        self._hold.release()

    def close(self) -> None:
        """Hear no more signals. Textual calls this when the App has shut down, and for a suspension."""
        if self._listening:
            self._listening = False
            for number in _SIGNALS:
                self._loop.remove_signal_handler(number)

    def _await_last_answers(self, count: int) -> None:
        """Reports that we asked for must not be typed into the shell. A terminal that is asked at all answers soon."""
        end = self._loop.time() + _LAST_ANSWERS_SECONDS
        count += self._asked_at is not None and self._loop.time() < self._asked_at + _FIRST_ANSWER_SECONDS
        while count > 0 and select.select([self._hold.input_fd], [], [], max(end - self._loop.time(), 0))[0]:
            try:
                count -= max(os.read(self._hold.input_fd, _READ_BYTES).count(b"R"), 1)
            except OSError:
                return

    # --- out ------------------------------------------------------------------------------------------------------

    def write(self, data: str) -> None:
        """Modes, bells, the clipboard: in order with the frames."""
        if self.output is not None:
            self.output.control(data)

    def ring(self) -> None:
        """Ring the bell."""
        if self.output is not None:
            self.output.ring()

    def set_mouse(self, on: bool) -> None:
        """Have clicks sent to us, or leave the mouse to the terminal, to select text."""
        self._mouse_on = on
        self.write(MOUSE_ON if on else MOUSE_OFF)

    def show(self, update: Update, size: Size) -> None:
        """Take over what Textual composed and write what of it is new."""
        if self.output is None:
            return
        picture = self.output.picture
        picture.resize(size.width, size.height)
        cells = self.typesetter.cells
        for x, y, strips in painted_parts(update):
            picture.draw(x, y, [cell for strip in strips for cell in cells(strip)])
        self.output.flush()

    def redraw(self) -> None:
        """Forget what the terminal shows and draw everything again."""
        if self.output is not None:
            self.output.picture.forget()
            self.output.flush()

    # --- in -------------------------------------------------------------------------------------------------------

    def read_waiting(self, at_most: float) -> None:
        """Read what already waits. It may have come while the loop was busy: nothing of it counts as having arrived
        later than ``at_most`` (seconds of the loop's clock)."""
        if self._reading:
            self._read(at_most)

    def _read(self, at_most: float = float("inf")) -> None:
        """Read once. The loop may call although ``read_waiting`` has taken everything since it looked, and a read then
        would wait for the next key: the descriptor blocks, because it is the shell's as well."""
        if not select.select([self._hold.input_fd], [], [], 0)[0]:
            return
        try:
            data = os.read(self._hold.input_fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        at = min(self._loop.time(), at_most)
        self._deliver(self._sequences.feed(self._decode(data), at), at)

    def _deliver(self, tokens: list[Token], at: float) -> None:
        for token in tokens:
            for message in self._messages(token, at):
                self.process_message(message)
        self._plan_tick()

    def _plan_tick(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        due = self._sequences.due()
        self._tick = None if due is None else self._loop.call_at(due, self._on_tick)

    def _on_tick(self) -> None:
        now = self._loop.time()
        self._deliver(self._sequences.tick(now), now)

    def _messages(self, token: Token, at: float) -> list[Message]:
        if isinstance(token, EscapeKey):
            found: list[Message] = [events.Key("escape", "\x1b")]
            at = token.at
        elif isinstance(token, Pasted):
            found = [events.Paste(token.text.replace("\0", ""))]
        elif isinstance(token, Sequence) and token.text.startswith(_STRING_INTRODUCERS):
            found = []
        else:
            found = list(self._parser.feed(token.text))
            if isinstance(token, Sequence) and not found:
                self._parser = XTermParser(self._debug)  # it does not know the sequence and would wait for more of it
        for message in found:
            message.time = at
        return found

    def process_message(self, message: Message) -> None:
        """Keep the terminal's reports for ourselves, pass keys and the mouse on."""
        if isinstance(message, events.CursorPosition):
            self._position_reported(message.x)
        elif isinstance(message, messages.TerminalSupportsSynchronizedOutput):
            if self.output is not None:
                self.output.synchronized = True
        elif isinstance(message, events.Key):
            if self._console.key_arrived(message):
                super().process_message(message)
        elif not isinstance(message, messages.InBandWindowResize):
            super().process_message(message)

    def _position_reported(self, column: int) -> None:
        """The first report measures our signs, all others answer for frames."""
        if self._asked_at is not None:
            self._asked_at = None
            if column != len(self._probe):
                self.typesetter = Typesetter(self._hold.terminal.colours, unicode=False)
                self._console.signs_unfit()
        if self.output is not None:
            self.output.answered()

    def send_message(self, message: Message) -> None:
        """We are on the loop already: no detour over a thread-safe call."""
        self._app.post_message(message)

    # --- signals --------------------------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        if self._listening:
            return
        self._listening = True
        add = self._loop.add_signal_handler
        add(signal.SIGTERM, self._console.terminated, signal.SIGTERM)
        add(signal.SIGINT, self._console.terminated, signal.SIGINT)
        add(signal.SIGHUP, self._lost)
        add(signal.SIGWINCH, self._plan_resize)
        add(signal.SIGTSTP, self._suspend)
        add(signal.SIGCONT, self._resume)

    def _lost(self) -> None:
        """The terminal hung up, or reads and writes fail: it will not come back."""
        self.disable_input()
        if self.output is not None:
            self.output.abandon()
            self.output = None
        self._hold.release()  # a SIGHUP sent by hand leaves a terminal that wants to be restored
        let_go()
        self._console.terminal_lost()

    def _suspend(self) -> None:
        if self._auto_restart:
            self.stop_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        """Somebody else had the terminal, or may have had it."""
        if not self._auto_restart:
            return
        if self._reading and self.output is not None:
            self._hold.take_keys()
            self.output.control(ALTERNATE_SCREEN + self._modes())
            self.redraw()
        else:
            self.start_application_mode()
            self._app.post_message(self.SignalResume())
            self._app.refresh(layout=True)

    def _plan_resize(self) -> None:
        if self._resize is None:
            self._resize = self._loop.call_later(_RESIZE_SECONDS, self._tell_size)

    def _size_now(self) -> tuple[int, int]:
        return self._forced_size or size_of(self._hold.screen_fd)

    def _tell_size(self) -> None:
        self._resize = None
        size = Size(*self._size_now())
        self._app.post_message(events.Resize(size, size))


class ConsoleTerminal(AppInternals):
    """An App on ``ConsoleDriver``. Give it a ``Hold``, or it takes one of its own.

    Overridables: ``terminated`` (by a signal), ``terminal_lost`` (hang-up), ``frame_shown`` (the terminal caught up),
    ``signs_unfit`` (only ASCII keeps its width here), ``key_arrived`` (before the key is handled).
    """

    def __init__(self, hold: Hold | None = None) -> None:
        self.hold = hold or Hold(survey())
        super().__init__(ansi_color=True)  # the operator's own sixteen colours stay what they are

    def get_driver_class(self) -> type[Driver]:
        """Ours, whatever the environment says."""
        return ConsoleDriver

    @property
    def terminal(self) -> Terminal:
        """What the terminal can do."""
        return self.hold.terminal

    @property
    def output_busy(self) -> bool:
        """The terminal has not taken the last frame yet: skip this paint, the next one will show the same and more."""
        driver = self._driver
        return isinstance(driver, ConsoleDriver) and driver.output is not None and driver.output.busy

    def frame_shown(self) -> None:
        """Called when the terminal has taken everything after it had kept us waiting."""

    def signs_unfit(self) -> None:
        """The terminal draws our signs wider than one cell: from now on everything is sent as ASCII."""
        self.repaint()

    def key_arrived(self, key: events.Key) -> bool:
        """A key was read; it will be handled when those before it are. False drops it."""
        return True

    def repaint(self) -> None:
        """Have everything composed again."""
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.refresh()

    def terminated(self, number: int) -> None:
        """SIGTERM or SIGINT was sent."""
        self.exit(return_code=128 + number)

    def terminal_lost(self) -> None:
        """The terminal is gone. The run is not: it belongs to another process."""
        self.exit(return_code=128 + signal.SIGHUP)

    def redraw(self) -> None:
        """Ctrl-L: draw everything again, whatever the terminal shows."""
        if isinstance(self._driver, ConsoleDriver):
            self._driver.redraw()

    def ring(self) -> None:
        """Ring the terminal's bell."""
        if isinstance(self._driver, ConsoleDriver):
            self._driver.ring()

    bell = ring  # Textual's own word for it

    def copy_to_clipboard(self, text: str) -> None:
        """Have the terminal copy ``clipboard.copied_part(text)``."""
        if self._driver is not None:
            self._driver.write(copy_sequence(text, os.environ))

    @property
    def draws_updates(self) -> bool:
        """On a terminal."""
        return isinstance(self._driver, ConsoleDriver)

    def draw_update(self, screen: Screen[Any], update: Update) -> None:
        """Write what of it is new, and put the terminal's cursor where text is typed."""
        driver = self._driver
        assert isinstance(driver, ConsoleDriver)
        if driver.output is not None:
            cursor = self.cursor_position
            driver.output.picture.rest_at = (cursor.x, cursor.y) if cursor else None
        driver.show(update, screen.outer_size)
