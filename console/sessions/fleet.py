"""The state files in the default place of this machine or of a host: once, or again whenever they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from ...engine.domain.states import RunState
from ...engine.statefile.on_demand.offers import POLL_SECONDS, Offer, OfferReader
from .address import SshAddress, parse
from .agent_process import AgentProcess, Message
from .bundle import boot_command
from .ssh_options import SshOptions
from .wire import decoding, rows_of

DEFAULT_OPTIONS = SshOptions()


@dataclass(frozen=True, slots=True)
class FleetTarget:
    """A machine with several state files. ``options``: None for this machine."""

    place: str
    options: SshOptions | None = None

    def watch(self) -> AsyncIterator[Sequence[Offer]]:
        """Yield its state files, again whenever they change."""
        return watch_state_files() if self.options is None else watch_remote_files(self.place, self.options)


async def watch_state_files() -> AsyncIterator[Sequence[Offer]]:
    """Yield the state files of this machine every POLL_SECONDS, in the order of ``OfferReader.read``."""
    reader = OfferReader()
    while True:
        yield await asyncio.to_thread(reader.read)
        await asyncio.sleep(POLL_SECONDS)


async def watch_remote_files(
    target: str, options: SshOptions = DEFAULT_OPTIONS
) -> AsyncGenerator[Sequence[Offer], None]:
    """Yield the state files of ``ssh://host`` at once and whenever they change. ``Offer.path`` is the whole address.

    Raises AddressError, LinkError: also when the connection ends.
    """
    address = parse(target)
    latest: asyncio.Queue[Message] = asyncio.Queue(1)

    def receive(message: Message) -> None:
        if latest.full():
            latest.get_nowait()
        latest.put_nowait(message)

    agent = AgentProcess(address, options.python, receive)
    message = await agent.open(options.argv(address, boot_command(options.python)), {"list": True})
    try:
        while True:
            yield _offers_of(message, address)
            waiting = asyncio.ensure_future(latest.get())
            await asyncio.wait((waiting, agent.ended), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                raise agent.ended.result()
            message = waiting.result()
    finally:
        await agent.close()


async def list_state_files(target: str, options: SshOptions = DEFAULT_OPTIONS) -> Sequence[Offer]:
    """Return the state files of ``ssh://host`` as of now. Raises AddressError, LinkError."""
    async with aclosing(watch_remote_files(target, options)) as files:
        return await anext(files)


def _offers_of(message: Message, address: SshAddress) -> list[Offer]:
    with decoding("a list of state files"):
        found = rows_of(Offer, message["files"])
        for offer in found:
            RunState(offer.state or RunState.RUNNING)
        return [offer._replace(path=str(replace(address, path=offer.path))) for offer in found]
