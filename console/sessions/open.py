"""Opens what a target names: one state file, or the list of all files of machines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial

import msgspec

from ...engine.errors import LinkError, RedriveError
from ...engine.statefile.lists import RUN_NAMES
from ...engine.statefile.state_files import POLL_SECONDS, FileRow, FileRowReader
from ..text.text import is_remote
from .address import Endpoint, SshOptions, parse
from .agent_process import AgentMessage, AgentProcess, clock_offset_us, file_rows_in
from .bundle import boot_command
from .connection import DEAD_SECONDS, WATCH_SECONDS
from .login import Login, connect_with_sign_in
from .session import LiveSession, Query, about_run, rows_query
from .ssh_errors import SILENCE_SECONDS
from .target import one_run


async def open_session(
    endpoint: Endpoint,
    *,
    read_only: bool = False,
    is_console: bool = True,
    may_prompt: bool = True,
    queries: Sequence[Query] = (),
    login: Login | None = None,
) -> LiveSession:
    """Open a session for a state file and the run that is named. ``is_console``: as ``SshSession.open``;
    ``may_prompt``: ssh may ask on the terminal, which no screen has taken; ``queries``: sent ahead;
    those of no run are about the one that is named, else the latest; ``login``: shared with other sessions.

    Raises RedriveError with one sentence.
    """
    target, run = endpoint.target, endpoint.run
    session: LiveSession
    if is_remote(target):
        from .ssh import SshSession

        whole = None if run is None else parse(f"{target}@{run}").path
        first = queries if run is None else [rows_query(RUN_NAMES)]

        def connect(options: SshOptions) -> Awaitable[SshSession]:
            return SshSession.open(
                target,
                read_only=read_only,
                is_console=is_console,
                options=options,
                queries=first,
                whole=whole,
                login=login,
            )

        own = login or Login(parse(target), endpoint.ssh)
        session = remote = await (connect_with_sign_in(own, connect) if may_prompt else connect(endpoint.ssh))
        run = None if remote.is_whole else run
    else:
        from .local import LocalSession

        session = await LocalSession.open(target, read_only=read_only)
    if run is not None:
        try:
            session.run_id = one_run(run, await session.rows(RUN_NAMES), target, *session.ssh_arguments)
            session.prefetch(about_run(query, session.run_id) for query in queries)
        except BaseException:
            await session.close()
            raise
    return session


# --- The state files in the default place of this machine or of a host: once, or again whenever they change ----------


OPEN_SECONDS = 3.0  # until the console opens without the hosts that have not let it in
AGAIN_SECONDS = 10.0  # until a lost connection to one of several hosts is made again


class FleetTarget(msgspec.Struct, frozen=True):
    """Machines with several state files. ``place``: for people; ``hosts``: ``ssh://host`` -> the login on it.

    Without hosts: this machine.
    """

    place: str
    hosts: Mapping[str, Login] = {}

    def watch(self) -> AsyncIterator[Sequence[FileRow]]:
        """Yield their state files, again whenever they change."""
        return watch_hosts(self.hosts) if self.hosts else watch_state_files()

    def login_for(self, path: str) -> Login | None:
        """The login on the host of a state file; None for this machine."""
        if not is_remote(path):
            return None
        host = replace(parse(path), path="")
        return next((login for target, login in self.hosts.items() if parse(target) == host), None)


async def watch_state_files() -> AsyncIterator[Sequence[FileRow]]:
    """Yield the state files of this machine every POLL_SECONDS, in the order of ``FileRowReader.read``."""
    reader = FileRowReader()
    while True:
        yield await asyncio.to_thread(reader.read)
        await asyncio.sleep(POLL_SECONDS)


async def watch_remote_files(target: str, options: SshOptions) -> AsyncGenerator[Sequence[FileRow], None]:
    """Yield the state files of ``ssh://host`` at once and whenever they change. ``FileRow.path`` is the whole address.

    Raises AddressError, LinkError: also when the connection ends.
    """
    address = parse(target)
    latest: asyncio.Queue[AgentMessage] = asyncio.Queue(1)

    def receive(message: AgentMessage) -> None:
        if "files" not in message:
            return  # a sign of life
        if latest.full():
            latest.get_nowait()
        latest.put_nowait(message)

    agent = AgentProcess(address, options, receive)
    words = options.argv(address, boot_command(options.python, options.become))
    message = await agent.open(words, {"list": True}, silence_seconds=SILENCE_SECONDS)
    offset_us = clock_offset_us(message)
    try:
        while True:
            yield file_rows_in(message, address, offset_us)
            waiting = asyncio.ensure_future(latest.get())
            while not (waiting.done() or agent.ended.done()):
                agent.kill_if_silent(DEAD_SECONDS)
                await asyncio.wait((waiting, agent.ended), timeout=WATCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                raise agent.ended.result()
            message = waiting.result()
    finally:
        await agent.close()


async def log_in(hosts: Iterable[str], ssh: SshOptions) -> FleetTarget:
    """Log in once on each host, on all at once; ssh may ask for passwords, one host after the other.

    A host that cannot be reached says so in the list; one that takes longer than OPEN_SECONDS is let in meanwhile.
    """
    logins = {target: Login(parse(target), ssh) for target in hosts}

    async def reach(login: Login) -> None:
        with suppress(TimeoutError, RedriveError):
            await connect_with_sign_in(login, lambda options: asyncio.wait_for(login.options(), OPEN_SECONDS))

    await asyncio.gather(*map(reach, logins.values()))
    return FleetTarget(f"{len(logins)} hosts", logins)


async def watch_hosts(hosts: Mapping[str, Login]) -> AsyncGenerator[Sequence[FileRow], None]:
    """Yield the state files of all hosts at once, and whenever those of one change.

    A host that is being connected is a row. One that cannot be reached is a row with the reason, beside what was known
    of it; its connection is made again.
    """
    found: dict[str, Sequence[FileRow]] = {target: [FileRow(target, has_file=False)] for target in hosts}
    changed = asyncio.Event()
    changed.set()

    async def follow(target: str, login: Login) -> None:
        is_final = False
        while not is_final:
            try:
                async with aclosing(watch_remote_files(target, await login.options())) as files:
                    async for file_rows in files:
                        found[target] = file_rows
                        changed.set()
            except RedriveError as error:
                is_final = isinstance(error, LinkError) and error.final
                found[target] = [_unreachable(target, error), *(one for one in found[target] if one.path != target)]
                changed.set()
            await asyncio.sleep(0 if is_final else AGAIN_SECONDS)

    tasks = [asyncio.create_task(follow(target, login)) for target, login in hosts.items()]
    try:
        while True:
            await changed.wait()
            changed.clear()
            yield [file_row for file_rows in found.values() for file_row in file_rows]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def list_hosts(
    hosts: Iterable[str],
    ssh: SshOptions,
    *,
    files: Callable[[str, SshOptions], Awaitable[Sequence[FileRow]]] | None = None,
) -> Sequence[FileRow]:
    """Read the state files of all hosts at once; ssh may ask for passwords, one host after the other.

    ``files``: reads those of one host. A host that cannot be reached is a row with the reason.
    """

    async def read(target: str) -> Sequence[FileRow]:
        try:
            login = Login(parse(target), ssh)
            return await connect_with_sign_in(login, partial(files or list_state_files, target))
        except RedriveError as error:
            return [_unreachable(target, error)]

    read_hosts = await asyncio.gather(*map(read, dict.fromkeys(hosts)))
    return [file_row for file_rows in read_hosts for file_row in file_rows]


def _unreachable(target: str, error: RedriveError) -> FileRow:
    return FileRow(target, problem=str(error), has_file=False)


async def list_state_files(target: str, options: SshOptions) -> Sequence[FileRow]:
    """Return the state files of ``ssh://host`` as of now. Raises AddressError, LinkError."""
    from .ssh import SshSession

    session = await SshSession.open(target, is_console=False, options=options, is_list=True)
    await session.close()
    return session.files
