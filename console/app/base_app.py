"""The base of the app: passes keys through the guard to Textual, and calls the actions of the table."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from textual import events
from textual.actions import SkipAction
from textual.screen import Screen

from ..keys.actions import BY_NAME, SUSPEND_KEY, VIEW_CALLS, Action
from ..keys.keymap import KeyGuard, KeyPress, Refusal, guarded_keys
from ..terminal.driver import ConsoleTerminal
from ..terminal.tty import Tty
from ..text.role_styles import NO_STYLES, RoleStyles
from ..widgets.bars import TextField, bindings

_REFUSAL_SECONDS = 1.0  # between two messages, so that one burst has one message
_INPUT = (events.Key, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp)


class ConsoleBase(ConsoleTerminal, inherit_bindings=False):
    """An App on the console's driver, with guarded keys and a palette; the only class that calls actions of the table.

    To override: ``key_refused``, ``console_handler``, and the hooks of ``ConsoleTerminal``. A screen
    can define ``guarded_keys``; by default the keys of all actions that ask or change something are guarded.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = bindings("suspend")

    DEFAULT_CSS = """
    Screen {
        background: ansi_default;
        color: ansi_default;
    }
    """

    def __init__(self, tty: Tty | None = None, palette: RoleStyles = NO_STYLES) -> None:
        super().__init__(tty)
        self.palette = palette
        self._default_guarded_keys = guarded_keys() | {SUSPEND_KEY}
        self._guard: KeyGuard[events.Key] = KeyGuard(self.key_has_effect)
        self._arrived: deque[events.Key] = deque()  # not yet received by ``on_event``
        self._vetted: deque[events.Key] = deque(maxlen=16)  # passed by the guard, not yet handled by a widget
        self._waiting_for_keys = False
        self._refused_at = float("-inf")
        self.is_untouched = True  # nobody has pressed a key or a button of the mouse

    def on_ready(self) -> None:
        """The first frame is drawn."""
        self.freeze_gc()

    def freeze_gc(self) -> None:
        """Exclude all current objects from garbage collection.

        A collection costs one frame 30 ms after the start, and 80 ms after a run of 10,000 tasks was loaded.
        """
        if not self.is_headless:
            gc.freeze()

    async def action_handle(self, name: str) -> None:
        """Call the handler of an action; Textual's handler of every binding (``widgets.bindings``)."""
        action = BY_NAME[self.meaning_of(name)]
        handler = self.handler(action, self.screen)
        if handler is None:
            raise SkipAction  # the next binding of the key may have a handler
        await self.handle(action, handler)

    def meaning_of(self, name: str) -> str:
        """The action that the key of an action calls now: another one, if the task under the cursor asks for it."""
        return name

    async def handle(self, action: Action, handler: Callable[[], object]) -> None:
        """Call a handler of ``handler()`` and await its result if it is awaitable."""
        result = handler()
        if isinstance(result, Awaitable):
            await result

    def handler(self, action: Action, screen: Screen[Any]) -> Callable[[], object] | None:
        """The method that a key of the action calls while ``screen`` is visible; None if nothing there handles it."""
        call = VIEW_CALLS.get(action.name)
        if call is not None:
            around = screen.focused.ancestors_with_self if screen.focused is not None else [screen]
            bound = (call.bound_to(node) for node in around if node is not self)
            if (method := next(filter(None, bound), None)) is not None:
                return method
        return self.console_handler(action.name)

    def console_handler(self, name: str) -> Callable[[], object] | None:
        """The method that an action of the console calls; None if this app does not handle it."""
        return self.action_suspend_process if name == "suspend" else None

    def key_has_effect(self, key: str) -> bool:
        """Whether a key, pressed now, would change more than the view."""
        return key == "enter" if isinstance(self.focused, TextField) else key in self._guarded_keys()

    def _guarded_keys(self) -> frozenset[str]:
        guarded: frozenset[str] = getattr(self.screen, "guarded_keys", self._default_guarded_keys)
        return guarded

    def dialog_changed(self, *, refuses_all: bool) -> None:
        """A dialog opened or closed: refuse keys until a person can have seen that."""
        if not self.is_headless:
            self._guard.dialog_changed(monotonic(), refuses_all=refuses_all)

    def key_refused(self, refusal: Refusal) -> None:
        """A key was ignored because no hand seems to have pressed it; ``refusal.value`` is the message."""

    def accepts_key(self, key: events.Key) -> bool:
        """Pass a key to the guard when the key arrives, not after earlier keys have been handled."""
        is_accepted = self._guard.press(key.key, key.time, key)
        if is_accepted:
            self._arrived.append(key)
        return is_accepted

    def simulate_key(self, key: str) -> None:
        """Handle ``key`` as if it was pressed."""
        event = events.Key(key, None)
        if self.accepts_key(event):
            self.post_message(event)

    async def on_event(self, event: events.Event) -> None:
        """Pass on the keys that the guard releases, when a key arrives."""
        self.is_untouched &= not isinstance(event, _INPUT)
        if self._arrived and event is self._arrived[0]:  # Textual sends a key again that no widget has handled
            self._arrived.popleft()
            await self._pass_keys()
        else:
            await super().on_event(event)

    async def on_key(self, event: events.Key) -> None:
        """Refuse a guarded key that the guard released with another meaning.

        It was text for a field, or a key for a dialog, that has closed since.
        """
        if not self.is_headless and event not in self._vetted and event.key in self._guarded_keys():
            event.prevent_default()
            self._refuse(Refusal.BURST)

    async def _pass_keys(self) -> None:
        while (press := self._next_press()) is not None:
            if press.refusal is not None:
                self._refuse(press.refusal)
                continue
            if self.key_has_effect(press.key):
                self._vetted.append(press.event)
            await super().on_event(press.event)
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

    def _next_press(self) -> KeyPress[events.Key] | None:
        """The next released press. Input that arrived while the loop was busy is read first: it may end a burst."""
        due = self._guard.due()
        if due is not None and self.console_driver is not None:
            self.console_driver.read_pending(at_most=due)
        return next(self._guard.ready(monotonic()), None)
