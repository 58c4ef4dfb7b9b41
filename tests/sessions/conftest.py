"""One fixture that opens every kind of session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions import local
from redrive.console.sessions.address import SshAddress
from redrive.console.sessions.local import LocalSession
from redrive.console.sessions.session import LiveSession
from redrive.console.sessions.ssh import SshSession


@pytest.fixture(autouse=True)
def frequent_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files at rest, for which the tests wait."""
    monkeypatch.setattr(local, "HEARTBEAT_SECONDS", 0.1)


OpenSession = Callable[..., Awaitable[LiveSession]]


@pytest.fixture(params=["file", pytest.param("ssh", marks=pytest.mark.long)])
async def open_session(request: pytest.FixtureRequest, far: Any) -> AsyncIterator[OpenSession]:
    """Open sessions of one kind, and close them at the end."""
    opened: list[LiveSession] = []

    async def open_one(path: Path, **options: Any) -> LiveSession:
        if request.param == "file":
            session: LiveSession = await LocalSession.open(str(path), **options)
        else:
            session = await SshSession.open(str(SshAddress("far", str(path))), **options)
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        await session.close()
