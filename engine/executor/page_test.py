"""Sends a test message by each sender of a flow: whether a page would reach anybody is known before one has to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..domain.text import printable
from ..notifications.notifier import MessageOrigin, message_of
from ..notifications.senders import make_senders
from ..store import database, runs
from .resume_plan import check_trust, flow_path_of, read_flow


class SenderResult(NamedTuple):
    """The result of a sender: an error, a note that nothing could be tried, or else the message was accepted."""

    sender: str
    error: str = ""
    note: str = ""


async def try_senders(state_path: str, run_id: str | None) -> tuple[str, Sequence[SenderResult]]:
    """Return the name of the flow and what its senders of pages did with a message.

    ``run_id`` None: the latest run. The options of a sender are in the flow file alone. Raises RedriveError.
    """
    with database.reading(state_path) as connection:
        run_id = run_id or runs.latest_run_id(connection) or ""
        source = runs.find_source(connection, run_id)
    if source is None:
        raise runs.unknown_run(run_id, state_path)
    check_trust(source, state_path)
    flow = await read_flow(flow_path_of(source, state_path, run_id), None, source)
    title, origin = f"{flow.name}: this is a test of its pages", MessageOrigin(flow.name, run_id, state_path)
    message = message_of(origin, "test", [title], key=f"test/{flow.name}", ids=[], severity="info", title=title)
    return flow.name, await asyncio.gather(*(_try(options, message) for options in flow.pages))


async def _try(options: Mapping[str, object], message: Mapping[str, object]) -> SenderResult:
    kind = str(options["sender"])
    if kind == "bell":
        return SenderResult(kind, note="rings in consoles that show a run, and is not tried")
    (sender,) = make_senders([options])
    try:
        await sender.send(message)
    except Exception as error:  # senders run third-party code, which may raise any error
        return SenderResult(kind, printable(str(error) or type(error).__name__))
    return SenderResult(kind)
