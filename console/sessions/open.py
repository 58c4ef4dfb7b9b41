"""Opens the right session for a target, and lets commands use it without an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict, TypeVar

from .identity import me
from .session import Session
from .target import is_remote

Result = TypeVar("Result")


class DoorOptions(TypedDict, total=False):
    """How a host is reached: the interpreter over there, and options for ssh; passed on from the command line."""

    python: str | None
    ssh_option: Sequence[str]


def actor() -> str:
    """Who acts, for the journal: user@host."""
    return me()


async def open_session(
    target: str, *, read_only: bool = False, python: str | None = None, ssh_option: Sequence[str] = ()
) -> Session:
    """Open the door to a state file. Raises RedriveError with one sentence."""
    if is_remote(target):
        from .address import parse
        from .sign_in import with_answers
        from .ssh import SshSession
        from .ssh_options import SshOptions

        def connect(options: SshOptions) -> Awaitable[SshSession]:
            return SshSession.open(target, actor=actor(), read_only=read_only, options=options)

        return await with_answers(parse(target), SshOptions(python or "python3", tuple(ssh_option)), connect)
    from .local import FileSession

    return await FileSession.open(target, actor=actor(), read_only=read_only)


def with_session(
    target: str,
    use: Callable[[Session], Awaitable[Result]],
    *,
    python: str | None = None,
    ssh_option: Sequence[str] = (),
) -> Result:
    """Open, use, close."""

    async def go() -> Result:
        session = await open_session(target, python=python, ssh_option=ssh_option)
        try:
            return await use(session)
        finally:
            await session.close()

    return asyncio.run(go())
