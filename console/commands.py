"""What keys lead to that changes no task: leaving, resuming, arming, copying, help, the palette, themes, the mouse."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..engine.core.outcome import FailureClass
from ..engine.errors import RedriveError
from . import questions, theme
from .actions import ACTIONS, BY_NAME, MOVES, Action, Effect, actions_of, shell_line
from .keys import key_file, key_label
from .model.board import Board
from .model.inbox import Cause, causes_of
from .present.durations import wall
from .present.folding import folded
from .present.pieces import Line, Piece, Role
from .present.summary import incident
from .present.text import one_line, pad
from .present.what_if import table, title
from .rewind import SPEEDS
from .screens.base import ConsoleScreen, run_latest
from .screens.choice import Option
from .screens.palette import CommandPalette, Entry
from .screens.reading import Reading
from .terminal.clipboard import copied_part
from .trial import CLASSES, told, try_rule
from .what_if import Answer

if TYPE_CHECKING:
    from .app import ConsoleApp

ARMED_SECONDS = 600
READING_COLUMNS = 92
_KEYS_CELLS = 9
_LABEL_CELLS = 9  # of what is told of a rule
SAID_SECONDS = 5.0

_QUITTING = (
    Option("leave", "Leave it running", "redrive attach comes back to it"),
    Option("drain", "Stop after the running tasks", "resume goes on from there"),
    Option("now", "Stop now", "what runs is ended, and runs again later"),
)
_STOPPING = _QUITTING[1:]

_REPLAYED = "Play the night, from here or from its beginning, {} times as fast."

_WHAT_IF = "The night under another policy, from here on: what-if max_attempts=5 jitter=full."
_WORDED = {"at": "The run as it was then: 03:12, or an event's number.", "what-if": _WHAT_IF}

_GOING = frozenset(["open", "back", "quit", "details", "output", "why", "next_pane", "previous_pane"])
_FINDING = frozenset(["filter", "next", "previous", "palette", "help", "sort", "copy"])


def _changes(action: Action) -> bool:
    return action.effect > Effect.LOOK and action.name != "quit"


def _goes(action: Action) -> bool:
    return action.name in _GOING or action.name.startswith("view_")


def _finds(action: Action) -> bool:
    return action.name in _FINDING


def _shows(action: Action) -> bool:
    return not (_changes(action) or _goes(action) or _finds(action) or action in MOVES)


#: The headings of help, and what stands under each.
_HELP: tuple[tuple[str, Callable[[Action], bool]], ...] = (
    ("Change the run", _changes),
    ("Go", _goes),
    ("Find", _finds),
    ("Show", _shows),
    ("Move", lambda action: action in MOVES),
)


class Commands:
    """One for each console."""

    def __init__(self, console: ConsoleApp) -> None:
        self._console = console
        self._armed_until = 0.0  # monotonic seconds
        self._history: list[str] = []
        self._taking: dict[str, Callable[[str], None]] = {
            "theme": self.use_theme,
            "at": console.rewind.to_time,
            "replay": lambda speed: console.rewind.play(int(speed)),
            "what-if": console.rewind.what_if,
        }

    # --- Leaving --------------------------------------------------------------------------------------------------

    def quit(self) -> None:
        """Leave; while a run that was started here lives, ask what shall become of it."""
        console = self._console
        board = console.live.board
        lives = board is not None and board.fold.run.ended_at is None and console.health.executor_alive
        if not lives or not console.way.started_here or console.stopping or console.locked is not None:
            console.exit(0)
        else:
            console.acts.choose("The run is not over", _QUITTING, self._leave)

    def _leave(self, how: str) -> None:
        if how == "leave":
            self._console.exit(0)
        else:
            self._console.stopping = True
            self._console.acts.stop_run(how)

    def stop_run(self) -> None:
        """End the executor, and stay to see it."""
        self._console.acts.choose("Stop the run", _STOPPING, self._console.acts.stop_run)

    # --- The executor ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Start an executor here, when the last one is gone."""
        console, board = self._console, self._console.live.board
        if board is None or board.fold.run.ended_at is not None:
            self._say("there is nothing to resume", Role.WARNING)
        elif console.health.executor_alive:
            self._say("its executor is alive", Role.WARNING)
        elif console.way.state_path is None:
            self._say("resume it over there: an executor runs beside its state file", Role.WARNING)
        elif console.locked is not None:
            self._say(console.locked, Role.WARNING)
        else:
            gone_at = console.health.gone_at
            since = f" since {wall(gone_at, None)}" if gone_at is not None else ""
            question = questions.of_resume(board, since, _first(console, "resume_here"))
            console.acts.ask(question, lambda reply: run_latest(console, self._resume, "resume"))

    async def _resume(self) -> None:
        from .sessions.embedded import resume

        console, board = self._console, self._console.live.board
        assert board is not None and console.way.state_path is not None
        self._say("starting an executor ...")
        try:
            await resume(console.way.state_path, board.fold.run.run_id, console.way.run_options)
        except RedriveError as error:
            self._say(str(error), Role.WARNING)
        else:
            self._say("resumed here")

    # --- Arming ---------------------------------------------------------------------------------------------------

    @property
    def armed_seconds(self) -> int:
        """How much longer a console that was opened to look may change something; 0: not at all."""
        return max(round(self._armed_until - time.monotonic()), 0) if self._console.acting_session is not None else 0

    def arm(self) -> None:
        """Allow changes for a while, or forbid them again."""
        console = self._console
        if self.armed_seconds:
            self._armed_until = 0.0
            self._say("changes are forbidden again")
        elif console.way.open_to_act is None:
            why = console.health.read_only
            self._say(why or "changes are allowed already", Role.WARNING if why else Role.TEXT)
        else:
            question = questions.of_arming(ARMED_SECONDS // 60, "opened read-only", _first(console, "arm"))
            console.acts.ask(question, lambda reply: run_latest(console, self._arm, "arm"))

    async def _arm(self) -> None:
        console = self._console
        assert console.way.open_to_act is not None
        try:
            if console.acting_session is None:
                console.acting_session = await console.way.open_to_act()
        except RedriveError as error:
            self._say(str(error), Role.WARNING)
            return
        self._armed_until = time.monotonic() + ARMED_SECONDS
        console.show_frames()
        self._say(f"armed: changes are allowed for {ARMED_SECONDS // 60} minutes", Role.WARNING)

    # --- Words ----------------------------------------------------------------------------------------------------

    def help(self) -> None:
        """The keys that work here."""
        lines: list[Line] = [[], *self._help_lines()]
        self._console.push_screen(Reading([Piece("Keys that work here", Role.TITLE)], lines))

    def show_what_if(self, answer: Answer) -> None:
        """A run beside itself under another policy."""
        lines: list[Line] = [[], *([Piece(line)] for line in table(answer.comparison)), []]
        for sentence in answer.sentences():
            lines += folded([Piece(sentence, Role.DIM)], self._reading_cells, 2)
        self._console.push_screen(Reading([Piece(one_line(title(answer.comparison)), Role.TITLE)], lines))

    @property
    def _reading_cells(self) -> int:
        return min(self._console.size.width, READING_COLUMNS) - 5

    def _help_lines(self) -> Iterator[Line]:
        keymap = self._console.keymap
        for heading, chosen in _HELP:
            actions = [action for action in self._possible() if chosen(action) and keymap.of(action.name)]
            if actions:
                yield [Piece(heading, Role.STRONG)]
                for action in actions:
                    keys = " ".join(key_label(key) for key in keymap.of(action.name))
                    yield from self._folded([Piece(f"  {pad(keys, _KEYS_CELLS)} ", Role.KEY), Piece(action.help)])
                yield []

    def _folded(self, line: Line) -> list[Line]:
        return folded(line, self._reading_cells, _KEYS_CELLS + 3)

    def list_keys(self) -> None:
        """Every key, and the file that changes them."""
        keymap = self._console.keymap
        lines: list[Line] = [[Piece(f"Changed by {key_file()}", Role.DIM)], []]
        for action in ACTIONS:
            keys = " ".join(key_label(key) for key in keymap.of(action.name))
            lines.append(
                [Piece(f"{pad(action.name, 18)} "), Piece(pad(keys, 14), Role.KEY), Piece(action.help, Role.DIM)]
            )
        self._console.push_screen(Reading([Piece("All keys", Role.TITLE)], lines))

    def palette(self, text: str = "") -> None:
        """Run any command by its name; ``text`` is typed already."""
        keymap = self._console.keymap
        entries = [
            Entry(action.name, action.name.replace("_", " "), action.help, keymap.label(action.name))
            for action in self._possible()
            if action not in MOVES
        ]
        entries += [Entry("quit", "q", BY_NAME["quit"].help)]
        entries += [Entry(f"theme:{name}", f"theme {name}", _about(name)) for name in theme.names()]
        entries += [Entry(f"replay:{speed}", f"replay {speed}x", _REPLAYED.format(speed)) for speed in SPEEDS]
        entries.append(Entry("what-if:", "what-if", _WHAT_IF))

        def chosen(value: str | None) -> None:
            if value is not None:
                self._history.append(value.replace(":", " ", 1) if ":" in value else value.replace("_", " "))
                run_latest(self._console, partial(self._run, value), "palette")

        self._console.push_screen(CommandPalette(entries, self._history, text, _with_words), chosen)

    async def _run(self, value: str) -> None:
        command, colon, argument = value.partition(":")
        if colon and command in self._taking:
            self._taking[command](argument)
            return
        method = self._method(value)
        if method is not None:
            result = method()
            if isinstance(result, Awaitable):
                await result

    def _possible(self) -> list[Action]:
        """What can be done on the screen that is seen."""
        screen = self._screen()
        return [action for action in actions_of(screen.PLACE) if self._method(action.name) is not None]

    def _method(self, name: str) -> Callable[[], object] | None:
        """What a key would call: of the focused widget, of what holds it, of the screen, or of the app."""
        screen = self._screen()
        nodes = [*(screen.focused.ancestors_with_self if screen.focused is not None else (screen,)), self._console]
        for node in nodes:
            method: Callable[[], object] | None = getattr(node, f"action_{name}", None)
            if method is not None:
                return method
        return None

    def _screen(self) -> ConsoleScreen:
        return next(screen for screen in reversed(self._console.screen_stack) if isinstance(screen, ConsoleScreen))

    # --- Copying --------------------------------------------------------------------------------------------------

    def copy(self) -> None:
        """A name, an error, a command line, or a summary, to the clipboard of the operator's own machine."""
        board = self._console.live.board
        if board is None:
            return
        texts = dict(self._copies(board))
        options = [Option(word, word, one_line(text)[:48]) for word, text in texts.items()]
        self._console.acts.choose("Copy", options, lambda word: self._copy(word, texts[word]))

    def _copies(self, board: Board) -> Iterator[tuple[str, str]]:
        console, name = self._console, self._console.selected
        target = console.way.state_path or console.address
        if name is not None:
            row = board.row(name)
            yield "name", name
            if row.error:
                yield "error", row.error
            if row.failure_fingerprint:
                yield "fingerprint", row.failure_fingerprint
            line = shell_line("requeue", target, board.fold.run.run_id, [name], "after a fix")
            if line is not None:
                yield "command", line
        yield "summary", incident(board, console.address, console.live.now_us)

    def _copy(self, word: str, text: str) -> None:
        self._console.copy_to_clipboard(text)
        whole, part = len(text.encode("utf-8", "replace")), len(copied_part(text).encode())
        if part < whole:
            self._say(f"{word}: the first {part:,} of {whole:,} bytes, as much as terminals take", Role.WARNING)
        else:
            self._say(f"{word} sent to the terminal's clipboard ({whole:,} bytes, by OSC 52)")

    # --- Classes --------------------------------------------------------------------------------------------------

    def classify(self, names: Sequence[str]) -> None:
        """Make a rule of a cause and show what it would have done; into the flow it goes by hand."""
        board = self._console.live.board
        causes = causes_of(board, names) if board is not None else []
        if len(causes) != 1:
            self._say("a rule is made of one cause: put the cursor on it", Role.WARNING)
            return
        options = [Option(name, name, words) for name, words in CLASSES.items()]
        title = f"What is {one_line(causes[0].title)}?"
        self._console.acts.choose(
            title, options, lambda name: run_latest(self._console, partial(self._try_rule, causes[0], name), "classify")
        )

    async def _try_rule(self, cause: Cause, name: str) -> None:
        board = self._console.live.board
        assert board is not None
        session = self._console.live.session
        try:
            found = await try_rule(session, board.fold, cause.fingerprint, FailureClass(name), cause.downstream)
        except RedriveError as error:
            self._say(str(error), Role.WARNING)
            return
        columns = min(self._console.size.width, READING_COLUMNS) - 5
        lines: list[Line] = []
        for label, text in told(found):
            lines += folded([Piece(pad(label, _LABEL_CELLS), Role.DIM), Piece(text)], columns, _LABEL_CELLS)
        self._console.push_screen(Reading([Piece("Nothing is changed: the flow decides", Role.TITLE)], lines))

    # --- Looks ----------------------------------------------------------------------------------------------------

    def choose_theme(self) -> None:
        """Pick a theme."""
        options = [Option(name, name, _about(name)) for name in theme.names()]
        self._console.acts.choose("Theme", options, self.use_theme)

    def use_theme(self, name: str) -> None:
        """Use it from now on, and the next time."""
        try:
            self._console.use_theme(theme.load_theme(name))
            theme.remember(name)
        except RedriveError as error:
            self._say(str(error), Role.WARNING)
        except OSError as error:
            self._say(f"theme {name}; it could not be remembered: {error.strerror}", Role.WARNING)
        else:
            self._say(f"theme {name}")

    def mouse(self) -> None:
        """Take the mouse, or leave it to the terminal."""
        on = self._console.toggle_mouse()
        self._say("clicks come here" if on else "the terminal selects text")

    def bell(self) -> None:
        """Ring for new pages from now on, or keep quiet."""
        bell = self._console.bell_of_pages
        bell.is_on = not bell.is_on
        self._say("new pages ring the terminal" if bell.is_on else "new pages are silent here")

    def _say(self, sentence: str, role: Role = Role.TEXT) -> None:
        self._console.say([Piece(one_line(sentence), role)], SAID_SECONDS)


def _with_words(text: str) -> Entry | None:
    """What is typed as ``at 03:12``, or ``what-if max_attempts=5``."""
    word, _, words = text.strip().partition(" ")
    if word not in _WORDED:
        return None
    return Entry(f"{word}:{words.strip()}", one_line(text.strip()), _WORDED[word])


def _about(name: str) -> str:
    try:
        return theme.load_theme(name).about
    except RedriveError as error:
        return str(error)


def _first(console: ConsoleApp, action: str) -> str | None:
    keys = console.keymap.of(action)
    return keys[0] if keys else None
