"""Opens a session for one command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

from ...engine.domain.text import format_seconds
from ...engine.statefile.lists import RUN_NAMES
from ..model.session_status import CLOCK_OFFSET_SECONDS
from ..text.text import echo, is_remote, one_line
from .address import Endpoint, parse
from .file_session import FileSession
from .session import LiveSession, Query, Session
from .target import one_run

Result = TypeVar("Result")
AnySession = TypeVar("AnySession", bound=Session)
Use = Callable[[Session], Awaitable[Result]]


def with_session(
    endpoint: Endpoint, use: Callable[[LiveSession], Awaitable[Result]], queries: Sequence[Query] = ()
) -> Result:
    """Open a session for a command in an event loop, await ``use``, close the session. ``queries``: sent ahead."""
    from ...engine.asyncio_log import run_with_log  # here: most commands read once
    from .open import open_session

    found: list[Result] = []

    async def open_and_use() -> None:  # no result: to restore SIGINT, ``asyncio.run`` makes a text of the whole task
        found.append(await _use(await open_session(endpoint, is_console=False, queries=queries), use))

    run_with_log(open_and_use())
    return found[0]


def read_once(endpoint: Endpoint, use: Use[Result], queries: Sequence[Query] = ()) -> Result:
    """Open a session and await a ``use`` that awaits nothing but its answers: without an event loop, unless by ssh."""
    if is_remote(endpoint.target):
        return with_session(endpoint, use, queries)

    async def use_named(session: Session) -> Result:
        if endpoint.run is not None:
            session.run_id = one_run(endpoint.run, await session.rows(RUN_NAMES), endpoint.target)
        return await use(session)

    async def open_and_use() -> Result:
        return await _use(await FileSession.open_once(endpoint.target), use_named)

    return finish(open_and_use())


def finish(coroutine: Coroutine[object, object, Result]) -> Result:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise RuntimeError("a file that is read once is never waited for")


async def _use(session: AnySession, use: Callable[[AnySession], Awaitable[Result]]) -> Result:
    try:
        result = await use(session)
        print_clock(session)
        return result
    finally:
        await session.close()


def print_clock(session: Session) -> None:
    """Print the line of ``clock_notice``, if there is one."""
    if notice := clock_notice(session.address, session.status.clock_offset_seconds):
        echo(f"redrive: {notice}", err=True)


def clock_notice(address: str, seconds: float) -> str:
    """A line about a host whose clock is that far ahead of the one of this machine; empty if it shows the same."""
    if abs(seconds) < CLOCK_OFFSET_SECONDS:
        return ""
    way = "ahead" if seconds > 0 else "behind"
    host = one_line(parse(address).host)
    return f"the clock of {host} is {format_seconds(round(abs(seconds)))} {way}: ages are counted by it"
