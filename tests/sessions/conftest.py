"""Doors to a state file, each the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.address import SshAddress
from redrive.console.sessions.local import LocalSession
from redrive.console.sessions.ssh import SshSession

Open = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["file", "ssh"])
async def door(request: pytest.FixtureRequest, far: Any) -> AsyncIterator[Open]:
    """Opens a path through one kind of door; closes what it opened."""
    opened: list[Any] = []

    async def open_door(path: Path, **options: Any) -> Any:
        if request.param == "file":
            session: Any = await LocalSession.open(str(path), **options)
        else:
            session = await SshSession.open(str(SshAddress("far", str(path))), **options)
        opened.append(session)
        return session

    yield open_door
    for session in opened:
        await session.close()
