"""Launches the console on a run: opens a session, starts an executor if needed, and runs the app.

The user's files are read first, so that a mistake in them starts nothing. A session that may ask for a password is
opened before the screen is taken. The executor is a separate process, so that a failure of this terminal does not stop
the run; it starts while Textual is imported.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...engine.asyncio_log import log_asyncio, print_line, run_with_log
from ...engine.domain.text import shell_command
from ..model.launch_context import LaunchContext
from ..terminal.tty import Tty
from ..text.text import echo_lines, is_remote, sanitize

if TYPE_CHECKING:
    from ...engine.executor.run_options import RunOptions
    from ..sessions.address import Endpoint, SshOptions
    from ..sessions.login import Login
    from ..sessions.open import FleetTarget
    from ..sessions.session import LiveSession
    from .app import ConsoleApp, ConsoleEnd
    from .fleet import Opening
    from .theme import Theme

CRASHED = 70  # EX_SOFTWARE: the console failed; the run may go on
LOG_LINES_MAX = 100  # the latest ones, of asyncio
_LINE_CHARACTERS_MAX = 2000  # of a traceback

T = TypeVar("T")
App = TypeVar("App", bound="ConsoleApp")


def _chosen_theme() -> Theme:
    """The theme that the operator has chosen. Raises RedriveError if there is none of that name."""
    from .theme import initial_theme_name, load_theme

    return load_theme(initial_theme_name())


def attach(
    tty: Tty, endpoint: Endpoint, read_only: bool, *, opened: Opening | None = None, login: Login | None = None
) -> ConsoleEnd:
    """Open the console on a run of another process.

    ``opened``: from the list of state files, to which Esc returns; ``login``: on the host, shared with the list.
    """
    from ..sessions.open import open_session

    target = endpoint.target

    def open_target() -> Awaitable[LiveSession]:
        return open_session(endpoint, read_only=read_only, login=login)

    context = LaunchContext(
        state_path=None if is_remote(target) else target,  # where an executor can be started
        is_of_fleet=opened is not None,
    )
    run_id = None if opened is None else opened.run_id
    return _run_on_screen(tty, _run_app(tty, open_target, target, run_id, context, _chosen_theme(), opened))


def attach_fleet(tty: Tty, fleet: FleetTarget, read_only: bool, ssh: SshOptions) -> ConsoleEnd:
    """Open the list of state files, and the console on each that the operator chooses there."""
    from ...engine.errors import RedriveError
    from ..sessions.address import Endpoint
    from ..sessions.open import open_session
    from .app import ConsoleEnd
    from .fleet import FleetApp

    def open_file(path: str) -> Awaitable[LiveSession]:
        login = fleet.login_for(path)
        return open_session(Endpoint(path, ssh), read_only=read_only, is_console=False, may_prompt=False, login=login)

    theme, before, message = _chosen_theme(), None, ""
    while True:
        shown = partial(FleetApp, tty=tty, theme=theme, before=before, message=message, is_read_only=read_only)
        make = partial(shown, fleet.watch, fleet.place, open_file)
        app, code = _run_on_screen(tty, _run_to_end(make))
        if app.failure is not None:
            echo_lines(crash_lines(app.failure, "redrive"), err=True)
            return ConsoleEnd(CRASHED)
        if app.chosen is None:
            return ConsoleEnd(code)
        before, message = app.chosen.path, ""
        try:
            login = fleet.login_for(app.chosen.path)
            end = attach(tty, Endpoint(app.chosen.path, ssh), read_only, opened=app.chosen, login=login)
        except RedriveError as error:
            message = str(error)
            continue
        if not end.returns_to_fleet:
            return end


async def _run_to_end(make: Callable[[], App]) -> tuple[App, int]:
    """Make an app in the event loop and run it. Returns it with its return code, closed with its session."""
    app = make()
    try:
        code = await app.run_async()
    finally:
        app.live.close()
        await app.live.session.close()
    return app, code or 0


def start(
    tty: Tty, flow: str | None, state: str, run_id: str | None, options: RunOptions, *, has_tour: bool = False
) -> ConsoleEnd:
    """Start an executor and open the console on its run."""
    run_options = {"max_parallel": options.max_parallel, "durability": options.durability, "trust": options.trust}
    context = LaunchContext(state, started_here=True, run_options=run_options, has_tour=has_tour)
    theme = _chosen_theme()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(_spawn, flow, state, run_id, options)
        open_state = partial(_open_started, starting, state)
        return _run_on_screen(tty, _run_app(tty, open_state, state, run_id, context, theme))


def _spawn(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> None:
    from ...engine.executor import host

    host.spawn(flow=flow, state=state, run_id=run_id, options=asdict(options))


async def _open_started(starting: Future[None], state: str) -> LiveSession:
    from ..sessions.local import LocalSession

    await asyncio.wrap_future(starting)
    return await LocalSession.open(state)


def _run_on_screen(tty: Tty, coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that draws on the terminal; what asyncio logs is printed when the terminal is restored."""
    lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
    try:
        return run_with_log(coroutine, lines.append)
    finally:
        tty.release()
        log_asyncio(print_line)
        for line in lines:
            print_line(line)


async def _run_app(
    tty: Tty,
    open_target: Callable[[], Awaitable[LiveSession]],
    target: str,
    run_id: str | None,
    context: LaunchContext,
    theme: Theme,
    opened: Opening | None = None,
) -> ConsoleEnd:
    session = None
    if context.state_path is None:
        session = await open_target()
        tty.splash(f"redrive - {target}")
    from ..keys.actions import ScreenName
    from .app import ConsoleApp

    session = session or await open_target()
    view = ScreenName.GRAPH if opened is None else opened.view
    run_id = run_id or session.run_id
    make = partial(ConsoleApp, session, run_id, tty=tty, theme=theme, launch=context, view=view)
    app, code = await _run_to_end(make)
    tty.release()
    return _print_end(app, code, target, session.ssh_arguments)


def _print_end(app: ConsoleApp, code: int | None, target: str, ssh_arguments: Sequence[str] = ()) -> ConsoleEnd:
    from ...engine.core.waiting import ALIVE
    from ..model.session_status import runner_of
    from .app import ConsoleEnd, console_end, exit_lines

    resume_command = shell_command(["redrive", "attach", target, *ssh_arguments])
    if app.failure is not None:
        from ..sessions.file_session import require_known_values

        require_known_values()
        echo_lines(crash_lines(app.failure, resume_command), err=True)
        return ConsoleEnd(CRASHED)
    echo_lines(app.operator_actions.unanswered_lines())
    if app.returns_to_fleet:
        return ConsoleEnd(code or 0, returns_to_fleet=True)
    board = app.live.board
    runner = ALIVE if board is None else runner_of(board.projection.run, app.live.status)
    echo_lines(exit_lines(board, runner, target, ssh_arguments))
    return console_end(app, code)


def crash_lines(error: BaseException, resume: str = "redrive attach") -> list[str]:
    """The lines of a failure on standard error: its traceback without values of variables, and the way back."""
    traced = "".join(traceback.format_exception(error)).splitlines()
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    last = f"The console failed: {summary}", f"The run was not touched; come back with: {resume}"
    return [sanitize(line, _LINE_CHARACTERS_MAX) for line in (*traced, *last)]
