"""A connection that opens itself again: found dead in time, tried again with patience, given up only when it must."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...engine.errors import LinkError, RedriveError
from .address import SshAddress
from .agent_process import Message, Pipe
from .bundle import boot_command
from .session import Link
from .ssh_options import SshOptions

STALE_SECONDS = 8.0  # the agent beats each 5 s: what is missed now is found well within 10 s
DEAD_SECONDS = 25.0  # ssh itself gives up after 15 s of silence; this is for an agent that hangs
WATCH_SECONDS = 1.0
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
JITTER = 0.25  # a host that comes back is not met by all consoles at once
PATIENCE_SECONDS = 120.0  # a question waits so long for a lost line to come back
CLOCK_SECONDS = 60.0  # between two comparisons of the clocks
CLOCK_PROBES = 3


class Line:
    """Keeps one agent reachable. ``on_hello`` and ``on_message`` hear what it says; ``on_change`` that ``link`` did."""

    def __init__(
        self,
        address: SshAddress,
        options: SshOptions,
        settings: Message,
        on_hello: Callable[[Message], None],
        on_message: Callable[[Message], None],
        on_change: Callable[[], None],
    ) -> None:
        self.trouble: str | None = None
        self.offset_seconds = 0.0  # their clock minus ours
        self._address = address
        self._options = options
        self._settings = settings
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_change = on_change
        self._pipe: Pipe | None = None
        self._open = asyncio.Event()  # there is a pipe, or there will never be one again
        self._final: RedriveError | None = None
        self._heard_at = time.monotonic()
        self._retry_at: float | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def link(self) -> Link:
        """How the line is."""
        if self._final is not None:
            return Link.CLOSED
        if self._keeping is None:
            return Link.CONNECTING
        return Link.LIVE if self._pipe is not None and self.age_seconds < STALE_SECONDS else Link.STALE

    @property
    def age_seconds(self) -> float:
        """Since anything was heard."""
        return time.monotonic() - (self._heard_at if self._pipe is None else self._pipe.heard_at)

    @property
    def retry_in_seconds(self) -> float | None:
        """Until the next try; None while none is planned."""
        return None if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    async def open(self) -> None:
        """Connect for the first time. Raises AddressError, LinkError, or what the agent found wrong."""
        pipe = await self._connect()
        self._keeping = asyncio.create_task(self._keep(pipe))

    async def close(self) -> None:
        """For good."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        if self._pipe is not None:
            await self._pipe.close()
        self._finish(LinkError("this door was closed", final=True))

    async def ask(self, ask: str, *, teach: Sequence[str] = (), **fields: Any) -> Any:
        """Put a question that may be put again: when the line drops meanwhile, it is. ``teach``: modules that it needs.

        Raises LinkError when no answer comes in PATIENCE_SECONDS or ever.
        """
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self._ask_until_answered(ask, teach, fields)
        except TimeoutError:
            raise LinkError(f"no answer from {self._address.host} for {PATIENCE_SECONDS:g} s") from None

    def tell(self, ask: str, **fields: object) -> None:
        """Say something that the next connection need not hear."""
        if self._pipe is not None and not self._pipe.ended.done():
            self._pipe.tell(ask, **fields)

    async def _ask_until_answered(self, ask: str, teach: Sequence[str], fields: dict[str, object]) -> object:
        while True:
            await self._open.wait()
            pipe = self._pipe
            if pipe is None:
                assert self._final is not None
                raise self._final
            try:
                pipe.teach(teach)
                return await pipe.ask(ask, **fields)
            except LinkError:
                if not pipe.ended.done():
                    raise  # the agent's own: it could not reach the executor
                if pipe is self._pipe:
                    self._open.clear()

    # --- Its life ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> Pipe:
        argv = self._options.argv(self._address, boot_command(self._options.python))
        pipe = Pipe(self._address, self._options.python, self._on_message)
        hello = await pipe.open(argv, self._settings)
        try:
            self._pipe, self.trouble, self._retry_at = pipe, None, None
            self._on_hello(hello)
        except (KeyError, TypeError) as error:
            self._pipe = None
            await pipe.close()
            raise LinkError(f"what answers on {self._address.host} is not the agent", final=True) from error
        self._open.set()
        return pipe

    async def _keep(self, pipe: Pipe) -> None:
        try:
            while True:
                self._lose(await self._watch(pipe))
                pipe = await self._reconnect()
        except RedriveError as error:
            self._finish(error)

    async def _watch(self, pipe: Pipe) -> LinkError:
        """Until it has ended. Silence is shown by ``link``, and ended when it lasts."""
        comparing = asyncio.create_task(self._compare_clocks(pipe))
        link = self.link
        try:
            while not pipe.ended.done():
                await asyncio.wait({pipe.ended}, timeout=WATCH_SECONDS)
                if time.monotonic() - pipe.heard_at > DEAD_SECONDS:
                    pipe.kill()
                if self.link is not link:
                    link = self.link
                    self._on_change()
        finally:
            comparing.cancel()
        return pipe.ended.result()

    def _lose(self, error: LinkError) -> None:
        assert self._pipe is not None
        self._heard_at = self._pipe.heard_at
        self._pipe = None
        self._open.clear()
        self.trouble = str(error)
        self._on_change()

    async def _reconnect(self) -> Pipe:
        """Raises what makes trying again useless."""
        for attempt in itertools.count():
            wait = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
            wait *= 1 + random.uniform(-JITTER, JITTER)
            self._retry_at = time.monotonic() + wait
            await asyncio.sleep(wait)
            self._retry_at = None
            try:
                return await self._connect()
            except LinkError as error:
                if error.final:
                    raise
                self.trouble = str(error)
            except RedriveError as error:  # the file is not there, or not whole: it may come back
                self.trouble = str(error)
            self._on_change()
        raise AssertionError("unreachable: counting has no end")

    def _finish(self, error: RedriveError) -> None:
        self._final = self._final or error
        self.trouble = str(self._final)
        self._pipe = None
        self._open.set()
        self._on_change()

    async def _compare_clocks(self, pipe: Pipe) -> None:
        """The probe with the shortest way there and back knows best."""
        try:
            while True:
                probes = [await _probe(pipe) for _ in range(CLOCK_PROBES)]
                self.offset_seconds = min(probes)[1]
                await asyncio.sleep(CLOCK_SECONDS)
        except LinkError:
            pass  # the line is down: ``_watch`` tells


async def _probe(pipe: Pipe) -> tuple[float, float]:
    """Seconds there and back, and their clock minus ours in seconds, as if both ways took the same time."""
    wall, start = time.time(), time.monotonic()
    theirs = await pipe.ask("clock") / 1e6
    taken = time.monotonic() - start
    return taken, theirs - (wall + taken / 2)
