"""Keys on their way to Textual and from there to what they call: through the guard, by the map, by the table of
actions, with a hook for what was refused."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import BindingType
from textual.screen import Screen

from ..keys.actions import SUSPEND_KEY, Action, Call, Receiver, action_named
from ..keys.keymap import DEFAULT_KEYS, KeyGuard, KeyMap, Press, Refusal
from ..terminal.driver import ConsoleDriver, ConsoleTerminal
from ..terminal.tty import Hold
from ..widgets.bindings import bindings
from ..widgets.role_styles import PLAIN, Palette
from ..widgets.text_input import TextField

_REFUSAL_SECONDS = 1.0  # one burst is refused once


class ConsoleBase(ConsoleTerminal, inherit_bindings=False):
    """An App on our driver, with guarded keys, a palette, and the one place where actions of the table are called.

    Overridables: ``key_refused``, ``receiver``, ``passed``, and those of ``ConsoleTerminal``. A screen may name the
    keys that do more than look in ``guarded_keys``; elsewhere these are the keys of all actions that ask or change.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("suspend")

    DEFAULT_CSS = """
    Screen {
        background: ansi_default;
        color: ansi_default;
    }
    """

    def __init__(self, hold: Hold | None = None, keymap: KeyMap = DEFAULT_KEYS, palette: Palette = PLAIN) -> None:
        super().__init__(hold)
        self.keymap = keymap
        self._palette = palette
        self._acting_keys = keymap.guarded() | {SUSPEND_KEY}
        self._guard = KeyGuard(self.key_acts)
        self._arrived: deque[events.Key] = deque()  # those that are still to come through the queue of the app
        self._vetted: deque[events.Key] = deque(maxlen=16)  # those that may act, on their way through the widgets
        self._waiting_for_keys = False
        self._refused_at = float("-inf")
        self.set_keymap(keymap.for_textual())

    @property
    def palette(self) -> Palette:
        """What roles look like."""
        return self._palette

    @palette.setter
    def palette(self, palette: Palette) -> None:
        self._palette = palette
        self.repaint()

    def on_ready(self) -> None:
        """The first frame is there."""
        self.keep()

    def keep(self) -> None:
        """Nothing that exists by now is garbage: without this, looking for garbage costs some frame 30 ms after the
        start, and 80 ms when a run of 10,000 tasks has been read."""
        if not self.is_headless:
            gc.freeze()

    async def action_handle(self, name: str) -> None:
        """Every binding leads here (``widgets.bindings``): make the call of an action of the table."""
        action = action_named(name)
        handler = self.handler(action, self.screen)
        if handler is None:
            raise SkipAction  # the next binding of the key may have one
        await self.handle(action, handler)

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Make a call that ``handler`` has found."""
        answer = handler()
        if isinstance(answer, Awaitable):
            await answer

    def handler(self, action: Action, screen: Screen[Any]) -> Callable[[], object] | None:
        """What an action calls on a screen, ready to be called; None if nothing there handles it."""
        call = action.call
        if call.receiver is Receiver.VIEW:
            around = screen.focused.ancestors_with_self if screen.focused is not None else [screen]
            receivers: list[object] = [node for node in around if node is not self]
        else:
            receivers = [self.receiver(call.receiver)]
        methods = (getattr(receiver, call.method, None) for receiver in receivers)
        method = next((method for method in methods if method is not None), None)
        return None if method is None else lambda: method(*self.passed(call), *call.arguments)

    def receiver(self, receiver: Receiver) -> object:
        """The object that handles calls to a receiver other than the view; None if there is none here."""
        return self if receiver is Receiver.CONSOLE else None

    def passed(self, call: Call) -> tuple[object, ...]:
        """What a call gets of the screen."""
        return ()

    def key_acts(self, key: str) -> bool:
        """Whether a key, pressed now, would do more than look."""
        return key == "enter" if isinstance(self.focused, TextField) else key in self._guarded_keys()

    def _guarded_keys(self) -> frozenset[str]:
        guarded: frozenset[str] = getattr(self.screen, "guarded_keys", self._acting_keys)
        return guarded

    def key_refused(self, refusal: Refusal) -> None:
        """A key did nothing because no hand seems to have pressed it; ``refusal.value`` says so in words."""

    def key_arrived(self, key: events.Key) -> bool:
        """The guard must know of a key when it comes, not when those before it have been handled."""
        let_in = self._guard.press(key.key, key.time, key)
        if let_in:
            self._arrived.append(key)
        return let_in

    def simulate_key(self, key: str) -> None:
        """As if it had been pressed."""
        event = events.Key(key, None)
        if self.key_arrived(event):
            self.post_message(event)

    async def on_event(self, event: events.Event) -> None:
        """A key is the sign that those which may go on should; which one it is, the guard knows."""
        if self._arrived and event is self._arrived[0]:  # it comes again, later, if no widget has used it
            self._arrived.popleft()
            await self._pass_keys()
        else:
            await super().on_event(event)

    async def _on_key(self, event: events.Key) -> None:
        """A key that nothing below has used comes to its binding. It may have meant something else when it was let
        through: text for a field that closed meanwhile, a key for a dialog that is gone."""
        if not self.is_headless and event not in self._vetted and event.key in self._guarded_keys():
            event.prevent_default()
            self._refuse(Refusal.BURST)

    async def _pass_keys(self) -> None:
        while (press := self._next_press()) is not None:
            if press.refusal is not None:
                self._refuse(press.refusal)
                continue
            if self.key_acts(press.key):
                self._vetted.append(press.token)
            await super().on_event(press.token)
        due = self._guard.due()
        if due is not None and not self._waiting_for_keys:
            self._waiting_for_keys = True
            self.set_timer(max(due - monotonic(), 0.001), self._pass_held_keys)

    async def _pass_held_keys(self) -> None:
        self._waiting_for_keys = False
        await self._pass_keys()

    def _refuse(self, refusal: Refusal) -> None:
        if monotonic() - self._refused_at > _REFUSAL_SECONDS:
            self._refused_at = monotonic()
            self.key_refused(refusal)

    def _next_press(self) -> Press | None:
        """While the loop was busy the rest of a burst may have come: nothing is decided before it is read."""
        due = self._guard.due()
        if due is not None and isinstance(self._driver, ConsoleDriver):
            self._driver.read_waiting(at_most=due)
        return next(self._guard.ready(monotonic()), None)
