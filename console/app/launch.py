"""One visit of the console to a run: the door is opened, the executor started where one is wanted, the app shown.

What the operator has written into files is read first, so that a mistake in them starts nothing. Whatever may ask for a
password comes before the screen is taken. The executor starts while Textual is imported, in a process of its own, so
that nothing that happens to this terminal happens to the run.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..sessions.target import is_remote
from ..terminal.tty import Hold

if TYPE_CHECKING:
    from ...engine.executor.loop import RunOptions
    from ..keys.keymap import KeyMap
    from ..sessions.session import Session
    from .app import ConsoleApp
    from .exit_summary import ConsoleEnd
    from .theme import Theme

CRASHED = 70  # EX_SOFTWARE: the console failed, which says nothing about the run

Door = Callable[[], Awaitable["Session"]]


class Habits(NamedTuple):
    """What the operator's own files say."""

    keymap: KeyMap
    look: Theme

    @classmethod
    def read(cls) -> Habits:
        """Raises RedriveError with what is wrong in them."""
        from ..keys.keymap import load_keys
        from .theme import chosen_name, load_theme

        return cls(load_keys(), load_theme(chosen_name()))


@dataclass(frozen=True, slots=True)
class Visit:
    """Where to, and how. ``open_to_act``: for a console that only looks, the door for when it is armed."""

    target: str
    run_id: str | None
    started_here: bool = False
    run_options: Mapping[str, object] = field(default_factory=dict)
    open_to_act: Door | None = None

    @property
    def state_path(self) -> str | None:
        """The state file, where an executor can be started from here."""
        return None if is_remote(self.target) else self.target


def attach(hold: Hold, visit: Visit, read_only: bool, python: str | None, ssh_option: Sequence[str]) -> ConsoleEnd:
    """Visit a run that somebody else started."""
    from ..sessions.open import open_session

    def door(look_only: bool = read_only) -> Awaitable[Session]:
        return open_session(visit.target, read_only=look_only, python=python, ssh_option=ssh_option)

    async def acting() -> Session:
        return await door(look_only=False)

    if read_only:
        visit = Visit(visit.target, visit.run_id, open_to_act=acting)
    return asyncio.run(_go(hold, door, visit, Habits.read()))


def start(hold: Hold, flow: str | None, state: str, run_id: str | None, options: RunOptions) -> ConsoleEnd:
    """Start an executor and visit its run."""
    later = {"max_parallel": options.max_parallel, "durability": options.durability}
    visit, habits = Visit(state, run_id, started_here=True, run_options=later), Habits.read()
    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(_spawn, flow, state, run_id, options)
        return asyncio.run(_go(hold, lambda: _embedded(starting, state, later), visit, habits))


def _spawn(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> None:
    from ...engine.executor import host

    settings = asdict(options)
    params = settings.pop("params")
    host.spawn(flow=flow, state=state, run_id=run_id, params=params, options=settings)


async def _embedded(starting: Future[None], state: str, later: Mapping[str, object]) -> Session:
    from ..sessions.embedded import EmbeddedSession

    await asyncio.wrap_future(starting)
    session = await EmbeddedSession.open(state)
    assert isinstance(session, EmbeddedSession)
    session.run_options = later
    return session


async def _go(hold: Hold, door: Door, visit: Visit, habits: Habits) -> ConsoleEnd:
    session = None
    if visit.state_path is None:
        session = await door()
        hold.splash(f"redrive - {visit.target}")
    from ..screens.console import Way
    from .app import ConsoleApp

    way = Way(visit.state_path, visit.started_here, visit.run_options, visit.open_to_act)
    session = session or await door()
    app = ConsoleApp(session, visit.run_id, hold=hold, keymap=habits.keymap, look=habits.look, way=way)
    try:
        code = await app.run_async()
    finally:
        app.live.close()
        await session.close()
        if app.acting_session is not None:
            await app.acting_session.close()
    hold.release()
    return _say_goodbye(app, code, visit.target)


def _say_goodbye(app: ConsoleApp, code: int | None, target: str) -> ConsoleEnd:
    from .exit_summary import ConsoleEnd, console_end, last_words

    way_back = f"redrive attach {shlex.quote(target)}"
    if app.failure is not None:
        from .crash_report import print_crash

        print_crash(app.failure, {"target": target, "size": app.size, "view": app.current_mode}, way_back)
        return ConsoleEnd(CRASHED)
    for line in last_words(app.live.board, app.live.status.executor_alive, way_back):
        print(line)
    return console_end(app, code)
