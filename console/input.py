"""Keys on their way to Textual: through the guard, by the map, with a hook for what was refused."""

from __future__ import annotations

from time import monotonic

from textual import events

from .driver import ConsoleTerminal
from .hold import Hold
from .keys import DEFAULT_KEYS, KeyGuard, KeyMap, Refusal
from .widgets.field import TextField
from .widgets.palette import PLAIN, Palette


class ConsoleBase(ConsoleTerminal):
    """An App on our driver, with guarded keys and a palette.

    Overridables: ``key_refused``, and those of ``ConsoleTerminal``. A screen may name the keys that do more than look
    in ``guarded_keys``; elsewhere these are the keys of all actions that ask or change.
    """

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
        self._acting_keys = keymap.guarded()
        self._guard = KeyGuard(self.key_acts)
        self._waiting_for_keys = False
        self.set_keymap(keymap.for_textual())

    @property
    def palette(self) -> Palette:
        """What roles look like."""
        return self._palette

    @palette.setter
    def palette(self, palette: Palette) -> None:
        self._palette = palette
        for screen in self.screen_stack:
            for widget in screen.walk_children(with_self=True):
                widget.refresh()

    def key_acts(self, key: str) -> bool:
        """Whether a key, pressed now, would do more than look."""
        if isinstance(self.focused, TextField):
            return key == "enter"
        guarded: frozenset[str] = getattr(self.screen, "guarded_keys", self._acting_keys)
        return key in guarded

    def key_refused(self, refusal: Refusal) -> None:
        """A key did nothing because no hand seems to have pressed it; ``refusal.value`` says so in words."""

    async def on_event(self, event: events.Event) -> None:
        """Let key presses wait where they must."""
        if isinstance(event, events.Key) and not event.is_forwarded and not self.is_headless:
            self._guard.press(event.key, event.time, event)
            await self._pass_keys()
        else:
            await super().on_event(event)

    async def _pass_keys(self) -> None:
        for press in self._guard.ready(monotonic()):
            if press.refusal is None:
                await super().on_event(press.token)
            else:
                self.key_refused(press.refusal)
        due = self._guard.due()
        if due is not None and not self._waiting_for_keys:
            self._waiting_for_keys = True
            self.set_timer(max(due - monotonic(), 0.001), self._pass_held_keys)

    async def _pass_held_keys(self) -> None:
        self._waiting_for_keys = False
        await self._pass_keys()
