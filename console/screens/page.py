"""A text page about one subject, updated in place; its long texts are read when it is shown.

A pane next to a list, or a screen on narrow terminals.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from textual.binding import BindingType
from textual.widget import Widget

from ..keys.actions import ScreenName
from ..present.tasks import Scene
from ..sessions.session import Session
from ..text.pieces import Line
from ..widgets.bindings import bindings_of
from ..widgets.text_view import LinesView
from .base import ConsoleScreen, run_latest

TextKey = TypeVar("TextKey", bound=Hashable)
Texts = TypeVar("Texts")


class PageView(LinesView, Generic[TextKey, Texts]):
    """A page of lines. Subclasses render the page and read its texts."""

    def __init__(self, scene: Callable[[], Scene], *, id: str | None = None) -> None:
        self._page_lines: list[Line] = []
        super().__init__(self._page_lines, wrap=True, id=id)
        self.scene = scene
        self.texts: Texts | None = None
        self._loaded_key: TextKey | None = None

    # --- For subclasses -------------------------------------------------------------------------------------------

    @abstractmethod
    def render_page(self) -> list[Line]:
        """The page as of now."""

    @abstractmethod
    def text_key(self) -> TextKey | None:
        """The key of the texts that the page needs; None if it needs none."""

    @abstractmethod
    async def fetch(self, session: Session, run_id: str, wanted: TextKey) -> Texts:
        """Read the texts. Raises RedriveError."""

    def reset(self) -> None:
        """Prepare for another subject: no texts, first line."""
        self.texts = self._loaded_key = None
        self._page_lines.clear()
        self.move_to_edge(-1)

    # --- Kept up to date ------------------------------------------------------------------------------------------

    def update_page(self) -> None:
        """Render the page and repaint changed rows."""
        lines = self.render_page() if self.columns else []
        if lines == self._page_lines:
            return
        before = [self.line(y) for y in range(self.rows)] if self._page_lines else []
        self._page_lines[:] = lines
        self._rows_in_view = None
        self._top = max(min(self._top, self._last_page()), (0, 0))
        for y, line in enumerate(before):
            if self.line(y) != line:
                self.refresh_rows(y)
        if not before:
            self.refresh()

    def tick(self) -> None:
        """Update ages, once a second."""
        self.update_page()

    def missing_text_key(self) -> TextKey | None:
        """The key of the texts still to be read; None if they are loaded."""
        needed = self.text_key()
        return None if needed == self._loaded_key else needed

    async def read(self, session: Session, run_id: str) -> None:
        """Read the missing texts, and show them if the page still needs them then."""
        wanted = self.missing_text_key()
        if wanted is None:
            return
        texts = await self.fetch(session, run_id, wanted)
        if self.missing_text_key() == wanted:
            self.texts, self._loaded_key = texts, wanted
            self.update_page()

    def on_resize(self) -> None:
        """Wrap sentences to the new width."""
        self.update_page()


class PageScreen(ConsoleScreen):
    """A page over the screen that opened it. Subclasses create the page and set its subject."""

    PLACE = ScreenName.DETAIL
    BINDINGS: ClassVar[list[BindingType]] = bindings_of(ScreenName.DETAIL)
    page: PageView[Any, Any]

    def __init__(self, view: ScreenName) -> None:
        super().__init__()
        self._view = view

    @property
    def view(self) -> ScreenName:
        """The tab of the screen below."""
        return self._view

    def scene(self) -> Scene:
        """The context for rendering the page."""
        console = self.console
        return Scene(self.board, console.live.now_us, console.glyphs, console.absolute_times, runner=console.runner)

    def content(self) -> Iterable[Widget]:
        """Yield the page."""
        yield self.page

    def refresh_page(self) -> None:
        """Update the page and read missing texts."""
        self.page.update_page()
        read_page(self, self.page)

    def tick(self, now_us: int) -> None:
        """Update ages."""
        self.page.tick()

    def filter_changed(self, text: str) -> None:
        """Search in the page."""
        self.page.search(text)
        self.page.find_next()

    def go_to_next(self, step: int) -> None:
        """Go to the next match, or the previous one."""
        if not self.filter_text:
            self.console.show_message(f"{self.console.keymap.label('filter')} searches this page")
        elif self.page.find_next(forward=step > 0) is None:
            self.console.show_message("no line of this page matches")

    def drill_in(self) -> None:
        """Return to the previous screen."""
        self.back()


def read_page(screen: ConsoleScreen, page: PageView[Any, Any]) -> None:
    """Read the missing texts of a page in the background."""
    if page.missing_text_key() is not None:
        session, run_id = screen.console.live.session, screen.board.projection.run.run_id
        # the header shows an error; the next event reads again
        run_latest(screen, partial(page.read, session, run_id), "texts", shows_errors=False)
