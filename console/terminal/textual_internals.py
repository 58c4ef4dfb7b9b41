"""All uses of Textual's private names; a test checks them against the installed version.

Each name, why the console needs it, and what Textual could offer instead:

- ``App._display``, ``LayoutUpdate``, ``ChopsUpdate``, ``_batch_count``: the driver gets composed strips,
  not the escape sequences that Textual renders from them; a driver method ``display(update)``.
- ``XTermParser``: keys of a line that delays and splits sequences; a public module.
- ``MessagePump.set_timer``, ``Timer._skip``: a late timer of one call fires; ``set_timer(skip=False)``.
- ``App._load_screen_css``, ``_css_update_count``: no restyling of the view that is left; a mend in Textual.
- ``App._fatal_error``: a crash prints no values of variables, which may be secrets; a hook ``on_crash(error)``.
- ``App._set_pointer_shape``: a sequence that not every terminal ignores; a feature flag.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

from textual.app import App
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer, TimerCallback

from ...engine.errors import RedriveError

if TYPE_CHECKING:
    from rich.console import RenderableType


def _require(names: Iterable[str]) -> None:
    """Raise RedriveError for names that an App of the installed Textual does not have: no replacement is called."""
    missing = sorted(name for name in names if not hasattr(App, name))
    if missing:
        raise RedriveError(_other_version(f"App.{missing[0]}"))


def _other_version(missing: str) -> str:
    return (
        f"the console cannot use Textual {version('textual')}, which has no {missing}: pip install 'textual==8.2.*'; "
        "commands without a screen work"
    )


try:
    from textual._compositor import ChopsUpdate, LayoutUpdate
    from textual._xterm_parser import XTermParser as XTermParser
except ImportError as error:
    raise RedriveError(_other_version(f"{error.name}")) from error

_require(("_display", "_load_screen_css", "_set_pointer_shape", "_fatal_error"))

Update = LayoutUpdate | ChopsUpdate

_set_timer = MessagePump.set_timer


def _set_timer_that_fires_late(
    self: MessagePump,
    delay: float,
    callback: TimerCallback | None = None,
    *,
    name: str | None = None,
    pause: bool = False,
) -> Timer:
    timer = _set_timer(self, delay, callback, name=name, pause=pause)
    if not hasattr(timer, "_skip"):  # set without an effect, a lost call would leave its screen waiting
        raise RedriveError(_other_version("Timer._skip"))
    timer._skip = False
    return timer


def fire_late_timers() -> None:
    """Have each timer of one call fire, also if its time has passed when it starts.

    Textual skips the calls of a timer that are past, and so the only call of such a timer, if the machine holds the
    process up for the delay before the timer first reads the clock. What waits for the call would wait for ever.
    """
    MessagePump.set_timer = _set_timer_that_fires_late  # type: ignore[method-assign]  # Textual offers no other way


def painted_parts(update: Update) -> Iterator[tuple[int, int, Iterable[Strip]]]:
    """Column, row and strips of each part of the screen that an update paints."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            yield update.region.x, y, strips
        return
    for y, first, last in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is not None and x <= last and end > first:
                yield x, y, (strip,)


class AppInternals(App[Any]):
    """An App that can draw its updates itself; Textual writes nothing else to the terminal."""

    def __init__(self) -> None:
        super().__init__(ansi_color=True)  # the operator's own sixteen colours stay what they are
        self.failure: BaseException | None = None  # that ended the App, if it crashed
        self._shown_modes: set[str] = set()

    @property
    def draws_updates(self) -> bool:
        """Whether ``draw_update`` is called; else Textual writes to its own driver."""
        return False

    def draw_update(self, screen: Screen[Any], update: Update) -> None:
        """Draw what Textual composed for ``screen``."""

    def delay_update(self, delay: float = 0.05) -> None:
        """Delay painting while the top-level view changes, as Textual does: a new view has rows to read.

        A view that was shown before is complete once it has handled its messages, and is painted then.
        """
        batch = ExitStack()
        batch.enter_context(self.batch_update())
        batches = [batch.close]

        def paint() -> None:
            if batches:
                batches.pop()()
                self.screen.refresh()

        self.set_timer(delay, paint)
        self.call_later(self._paint_known_mode, paint)

    def _load_screen_css(self, screen: Screen[Any]) -> None:
        """Load the stylesheet of a new screen, whose widgets get their styles when they are mounted.

        Textual applies all stylesheets to the screen that is left, because the new one has not counted their changes.
        """
        super()._load_screen_css(screen)
        if screen._css_update_count < 0:
            screen._css_update_count = self._css_update_count

    def _paint_known_mode(self, paint: Callable[[], None]) -> None:
        if self.current_mode in self._shown_modes:
            self.screen.call_after_refresh(paint)
        self._shown_modes.add(self.current_mode)

    def all_screens(self) -> Iterator[Screen[Any]]:
        """The screens of every view, also of those that are not shown."""
        for mode in dict.fromkeys((*self.MODES, self.current_mode)):
            with suppress(KeyError):  # a view that was not shown yet
                yield from self.get_screen_stack(mode)

    def crash(self, error: Exception) -> None:
        """End the App with ``error``, as if a handler of a message had raised it."""

        def fail() -> NoReturn:
            raise error

        self.call_later(fail)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if not self.draws_updates or not isinstance(renderable, LayoutUpdate | ChopsUpdate):
            super()._display(screen, renderable)
            return
        if self.is_running and not self._batch_count:  # one that ends is in a batch, too
            self.draw_update(screen, renderable)
        self.post_display_hook()

    def _set_pointer_shape(self, shape: str) -> None:
        """Send no pointer shape: not every terminal ignores the sequence."""

    def _fatal_error(self) -> None:
        """End without Textual's traceback, whose values of variables may hold secrets or sequences."""
        self.failure = self.failure or sys.exception()
        self.exit(return_code=1)

    def panic(self, *renderables: RenderableType) -> None:
        """End in the same way for an error that Textual would print itself."""
        self._fatal_error()
