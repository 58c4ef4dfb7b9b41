"""Reading events, waiting for a status and making commands, for the tests of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redrive.engine.domain.acts import Command, Target
from redrive.engine.domain.events import Event
from support.waiting import wait_until_async

LIMIT_SECONDS = 90.0  # for what never comes


async def read_events(events: AsyncIterator[Sequence[Event]], until: int) -> list[Event]:
    """What comes, up to and with the event ``until``."""
    taken: list[Event] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        while not taken or taken[-1].seq < until:
            taken += await anext(events)
    return taken


async def wait_for_status(session: Any, what: Any) -> Any:
    """Wait until the status is so; looked at by the clock, as a screen does."""
    await wait_until_async(lambda: what(session.status), describe=lambda: session.status)
    return session.status


def command(act: str, *targets: tuple[str, str, int], id: str = "c1", **more: Any) -> Command:
    seen = tuple(Target(*target) for target in targets)
    return Command(id, act, more.pop("run_id", "night-1"), seen, "ana@desk", "because", more)
