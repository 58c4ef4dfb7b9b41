"""Opens the session for a target, and runs a coroutine with it for commands without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .session import Session
from .ssh_options import Endpoint, SshOptions
from .target import is_remote

Result = TypeVar("Result")

_read_files: list[str] = []  # the state files of this machine that this process has opened


async def open_session(endpoint: Endpoint, *, read_only: bool = False) -> Session:
    """Open a session for a state file. Raises RedriveError with one sentence."""
    target = endpoint.target
    if is_remote(target):
        from .address import parse
        from .sign_in import connect_with_sign_in
        from .ssh import SshSession

        def connect(options: SshOptions) -> Awaitable[SshSession]:
            return SshSession.open(target, read_only=read_only, options=options)

        return await connect_with_sign_in(parse(target), endpoint.ssh, connect)
    from .local import LocalSession

    _read_files.append(target)
    return await LocalSession.open(target, read_only=read_only)


def with_session(endpoint: Endpoint, use: Callable[[Session], Awaitable[Result]]) -> Result:
    """Open a session, await ``use``, close the session."""

    async def open_and_use() -> Result:
        session = await open_session(endpoint)
        try:
            return await use(session)
        finally:
            await session.close()

    return asyncio.run(open_and_use())


def require_known_values() -> None:
    """Explain a failure of the program by the state file that it has read last.

    Raises CorruptFileError that names a row which no redrive has written. If the file is sound, the fault is ours.
    """
    from ...engine.store.row_audit import require_known_rows

    for path in _read_files[-1:]:
        require_known_rows(path)
