"""The controller of the demo's tour: which stage is current, and where the cursor is put for it."""

from __future__ import annotations

from ..keys.actions import Action, ScreenName
from ..keys.keymap import key_label, shown_key
from ..model.board import Board
from ..present.tour import STAGES, Phase, ScreenState, TourStage, advance, tour_line
from ..text.pieces import Line
from ..widgets.bars import TextField
from ..widgets.dialog import Dialog
from .views import ViewConsole


class Tour:
    """The tour of the first run that the console shows; each console has one, with or without a tour."""

    def __init__(self, console: ViewConsole) -> None:
        self._console = console
        self._is_shown = console.launch.has_tour
        self._run_id: str | None = None
        self._place = 0
        self._pointed: tuple[int, str, ScreenName] | None = None  # where the cursor was put last

    def start(self, board: Board) -> None:
        """Begin with the first board that the console shows, with the cursor on what the first stage is about."""
        if self._run_id is None and self._console.launch.has_tour:
            self._run_id, about = board.projection.run.run_id, STAGES[0].about(board)
            self._console.selected, self._pointed = about, (0, about, ScreenName.GRAPH)

    @property
    def board(self) -> Board | None:
        """The board of the run that has a tour."""
        board = self._console.live.board
        return board if board is not None and board.projection.run.run_id == self._run_id else None

    @property
    def line(self) -> Line:
        """The line of the current stage; empty if it is hidden or there is none."""
        board, console = self.board, self._console
        if board is None or not self._is_shown or not console.is_running:
            return []
        return tour_line(self._place, board, self._screen_state)

    def toggle(self) -> None:
        """Hide or show the line."""
        if not self._console.launch.has_tour:
            self._console.show_message("there is a tour in the demo: redrive demo")
        self._is_shown = self._console.launch.has_tour and not self._is_shown
        self._console.show_frames()

    def is_answered_by(self, action: Action) -> bool:
        """Whether the key of an action, pressed now, does what the line says."""
        board, stage = self.board, self._stage
        if board is None or stage is None:
            return False
        if stage.view is not None and action.name == f"view_{stage.view.value}":
            self._pointed = None  # also from the view itself: the cursor goes back
        return action.name == stage.action and stage.is_reached(board, self._screen_state)

    def go_on(self, action: Action | None = None) -> bool:
        """Go on to the stage that is current now, after an ``action`` that did what the line says, or after news.

        Return whether the cursor was put elsewhere.
        """
        board, screen, before = self.board, self._console.console_screen, self._pointed
        if board is None or self._console.live.is_past:
            return False
        self._place = advance(self._place, board, action)
        stage, self._pointed = self._stage, None
        if stage is not None and screen.PLACE is stage.view and stage.phase(board) is Phase.NOW:
            self._pointed = (self._place, stage.about(board), screen.PLACE)
        if self._pointed in (None, before):
            return False
        screen.go_to(self._pointed[1])
        return True

    @property
    def _stage(self) -> TourStage | None:
        return STAGES[self._place] if self._place < len(STAGES) else None

    @property
    def _screen_state(self) -> ScreenState:
        console, front, screen = self._console, self._console.screen, self._console.console_screen
        asked_by = front.question.trigger if isinstance(front, Dialog) else None
        is_covered = front is not screen or isinstance(console.focused, TextField)
        leave = key_label("escape") if is_covered else shown_key("back") if console.live.is_past else ""
        return ScreenState(screen.PLACE, screen.name_at_cursor(), console.size.width, leave, asked_by)
