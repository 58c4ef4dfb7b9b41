"""Opens the console: looks at the terminal, shows first cells, starts or finds the run, and says goodbye afterwards.

The order is what matters. Whatever may ask for a password comes before the screen is taken. The first cells come before
Textual is imported, which takes longer than everything else. The executor is started meanwhile, in a process of its
own, so that nothing that happens to this terminal happens to the run.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .hold import Hold
from .target import is_remote
from .terminal import survey

if TYPE_CHECKING:
    from ..engine.executor import RunOptions
    from .app import ConsoleApp
    from .sessions.session import Session

CRASHED = 70  # EX_SOFTWARE: the console failed, which says nothing about the run


@dataclass(frozen=True, slots=True)
class _Manner:
    """How the console comes to its run; the fields of ``app.Way``, which cannot be imported yet, and more."""

    target: str
    run_id: str | None
    state_path: str | None = None
    started_here: bool = False
    run_options: Mapping[str, Any] = field(default_factory=dict)
    open_to_act: Callable[[], Awaitable[Session]] | None = None


def show_target(
    target: str, run_id: str | None, *, read_only: bool, python: str | None, ssh_option: Sequence[str]
) -> int:
    """Attach to a state file that somebody else writes, here or behind ssh. Returns the exit code.

    Raises RedriveError with one sentence, on a terminal that is as it was before.
    """
    terminal = survey()
    if terminal.plain_because is not None:
        return _show_plain(target, run_id, terminal.plain_because, python, ssh_option)
    from .doors import open_session

    if is_remote(target):
        from .choosing import choose_file

        target = choose_file(target, python, ssh_option)

    def door(look_only: bool = read_only) -> Awaitable[Session]:
        return open_session(target, read_only=look_only, python=python, ssh_option=ssh_option)

    async def acting() -> Session:
        return await door(look_only=False)

    local = None if is_remote(target) else target
    manner = _Manner(target, run_id, state_path=local, open_to_act=acting if read_only else None)
    with Hold(terminal) as hold:
        if local is not None:
            hold.splash(f"redrive - {Path(target).name}")
        return asyncio.run(_console(hold, door, manner))


def show_run(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> int:
    """Start an executor for a new run (or, with ``options.resume``, an old one) and show it. Returns the exit code.

    Raises what kept the executor from starting, on a terminal that is as it was before.
    """
    terminal = survey()
    if terminal.plain_because is not None:
        from .running import run_plain

        return run_plain(flow, state, run_id, options)
    later = {"max_parallel": options.max_parallel, "durability": options.durability}
    manner = _Manner(state, run_id, state_path=state, started_here=True, run_options=later)
    with Hold(terminal) as hold, ThreadPoolExecutor(1) as beside:
        hold.splash(f"redrive - {Path(state).name} - starting ...")
        starting = beside.submit(_start, flow, state, run_id, options)
        return asyncio.run(_console(hold, lambda: _embedded(starting, state, later), manner))


def _start(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> None:
    from ..engine import host

    settings = asdict(options)
    params = settings.pop("params")
    host.spawn(flow=flow, state=state, run_id=run_id, params=params, options=settings)


async def _embedded(starting: Future[None], state: str, later: Mapping[str, Any]) -> Session:
    from .sessions.embedded import EmbeddedSession

    await asyncio.wrap_future(starting)
    session = await EmbeddedSession.open(state)
    assert isinstance(session, EmbeddedSession)
    session.run_options = later
    return session


async def _console(hold: Hold, door: Callable[[], Awaitable[Session]], manner: _Manner) -> int:
    session = None
    if manner.state_path is None:  # ssh may ask for a password: the screen is not taken yet
        session = await door()
        hold.splash(f"redrive - {manner.target}")
    from .app import ConsoleApp, Way
    from .keys import load_keys
    from .theme import chosen_name, load_theme

    keymap, look = load_keys(), load_theme(chosen_name())
    way = Way(manner.state_path, manner.started_here, manner.run_options, manner.open_to_act)
    session = session or await door()
    app = ConsoleApp(session, manner.run_id, hold=hold, keymap=keymap, look=look, way=way)
    try:
        code = await app.run_async()
    finally:
        app.live.close()
        await session.close()
        if app.acting_session is not None:
            await app.acting_session.close()
    hold.release()
    return _say_goodbye(app, code, manner.target)


def _say_goodbye(app: ConsoleApp, code: int | None, target: str) -> int:
    from .goodbye import exit_code, last_words

    way_back = f"redrive attach {shlex.quote(target)}"
    if app.failure is not None:
        from .crash import print_crash

        print_crash(app.failure, {"target": target, "size": app.size, "view": app.current_mode}, way_back)
        return CRASHED
    for line in last_words(app.live.board, app.live.status.executor_alive, way_back):
        print(line)
    return code or exit_code(app)


def _show_plain(target: str, run_id: str | None, because: str, python: str | None, ssh_option: Sequence[str]) -> int:
    """One picture as text."""
    from .listing import show_tasks

    options: dict[str, Any] = {"python": python, "ssh_option": ssh_option}
    code = show_tasks(target, run_id, False, **options)
    print(f"redrive: {because}: the tasks as they are now; `redrive events --follow` goes on", file=sys.stderr)
    return code
