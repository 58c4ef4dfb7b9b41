"""The controller of the demo's tour: which stage is current, and where the cursor is put for it."""

from __future__ import annotations

from ..keys.actions import Action, ScreenName
from ..model.board import Board
from ..present.tour import STAGES, Phase, Sight, Stage, advance, tour_line
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
        if self._run_id is None:
            self._run_id = board.projection.run.run_id
            if self.board is not None:
                self._console.selected = about = STAGES[0].about(board)
                self._pointed = (0, about, ScreenName.GRAPH)

    @property
    def board(self) -> Board | None:
        """The board of the run that has a tour."""
        board = self._console.live.board if self._console.launch.has_tour else None
        return board if board is not None and board.projection.run.run_id == self._run_id else None

    @property
    def line(self) -> Line:
        """The line of the current stage; empty if it is hidden or there is none."""
        board, console = self.board, self._console
        if board is None or not self._is_shown or not console.is_running:
            return []
        return tour_line(self._place, board, console.keymap, self._sight)

    def toggle(self) -> None:
        """Hide or show the line."""
        if not self._console.launch.has_tour:
            self._console.show_message("there is a tour in the demo: redrive demo")
        else:
            self._is_shown = not self._is_shown
            self._console.show_frames()

    def is_answered_by(self, action: Action) -> bool:
        """Whether the key of an action, pressed now, does what the line says."""
        board, stage = self.board, self._stage
        if board is None or stage is None:
            return False
        if stage.view is not None and action.name == f"view_{stage.view.value}":
            self._pointed = None  # also from the view itself: the cursor goes back
        return action.name == stage.action and stage.is_reached(board, self._sight)

    def go_on(self, action: Action | None = None) -> bool:
        """Go on to the stage that is current now, after an ``action`` that did what the line says, or after news.

        Return whether the cursor was put elsewhere.
        """
        board, screen = self.board, self._console.console_screen
        if board is None or self._console.live.is_past:
            return False
        self._place = advance(self._place, board, action)
        stage = self._stage
        if stage is None or screen.PLACE is not stage.view or stage.phase(board) is not Phase.NOW:
            self._pointed = None
        elif (point := (self._place, stage.about(board), screen.PLACE)) != self._pointed:
            self._pointed = point
            screen.go_to(stage.about(board))
            return True
        return False

    @property
    def _stage(self) -> Stage | None:
        return STAGES[self._place] if self._place < len(STAGES) else None

    @property
    def _sight(self) -> Sight:
        console, front, screen = self._console, self._console.screen, self._console.console_screen
        asked_by = front.question.trigger if isinstance(front, Dialog) else None
        is_covered = front is not screen or isinstance(console.focused, TextField)
        is_past, columns = console.live.is_past, console.size.width
        return Sight(screen.PLACE, screen.name_at_cursor(), asked_by, is_covered, is_past, columns)
