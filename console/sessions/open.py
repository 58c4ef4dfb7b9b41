"""Opens what a target names: one state file, or all of a host; ssh may ask for a password first."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ...engine.errors import LinkError, RedriveError
from ...engine.statefile.lists import RUN_NAMES
from ...engine.statefile.state_files import POLL_SECONDS, FileRow, FileRowReader
from .address import Endpoint, SshAddress, SshOptions, parse
from .bundle import boot_command
from .connection import (
    SILENCE_SECONDS,
    AgentMessage,
    AgentProcess,
    clock_offset_us,
    file_rows_in,
    link_error,
    silent_host,
)
from .session import LiveSession, Prefetch, list_query, no_queries
from .target import is_remote, one_run

Result = TypeVar("Result")


async def open_session(
    endpoint: Endpoint,
    *,
    read_only: bool = False,
    is_console: bool = True,
    may_prompt: bool = True,
    asks: Prefetch = no_queries,
) -> LiveSession:
    """Open a session for a state file and the run that is named. ``is_console``: as ``SshSession.open``;
    ``may_prompt``: ssh may ask on the terminal, which no screen has taken; ``asks``: questions about the
    run that is named (None: the latest), which are sent ahead.

    Raises RedriveError with one sentence.
    """
    target, run = endpoint.target, endpoint.run
    session: LiveSession
    if is_remote(target):
        from .ssh import SshSession

        whole = None if run is None else parse(f"{target}@{run}").path
        first = asks(None) if run is None else [list_query(RUN_NAMES)]

        def connect(options: SshOptions) -> Awaitable[SshSession]:
            return SshSession.open(
                target, read_only=read_only, is_console=is_console, options=options, asks=first, whole=whole
            )

        signed_in = connect_with_sign_in(parse(target), endpoint.ssh, connect) if may_prompt else connect(endpoint.ssh)
        session = remote = await signed_in
        run = None if remote.is_whole else run
    else:
        from .local import LocalSession

        session = await LocalSession.open(target, read_only=read_only)
    if run is not None:
        try:
            session.run_id = one_run(run, await session.query(RUN_NAMES), target, *session.ssh_arguments)
            session.prefetch(asks(session.run_id))
        except BaseException:
            await session.close()
            raise
    return session


# --- Passwords, second factors and unknown keys ----------------------------------------------------------------------
#
# ssh itself asks for them on the terminal, before the console starts.
#
# Afterwards ssh keeps the connection open, for a minute or as long as it is used, and the session uses it without a
# prompt. An operator whose keys suffice never gets here.


PERSIST_SECONDS = 60
LOGIN_POLL_SECONDS = 0.03


async def connect_with_sign_in(
    address: SshAddress, options: SshOptions, use: Callable[[SshOptions], Awaitable[Result]]
) -> Result:
    """Await ``use``; if ssh needs input and the terminal is interactive, let ssh prompt and await ``use`` again.

    Raises what ``use`` raises, and LinkError when the sign-in failed.
    """
    try:
        return await use(options)
    except LinkError as error:
        if not error.locked or not is_interactive():
            raise
    return await use(sign_in(address, options))


def is_interactive() -> bool:
    """Whether a person can answer prompts on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


SOCKET_FOLDER_BYTES = 64  # a socket's path may have 104; "/redrive-12345678/ssh" and 17 that ssh appends are 38


def sign_in(address: SshAddress, options: SshOptions) -> SshOptions:
    """Let ssh prompt on the terminal of this process. Returns options that reuse the authenticated connection.

    Raises LinkError when the sign-in failed.
    """
    shared, _ = _shared(address, options)
    if subprocess.run(_master(shared).argv(address, "true", may_prompt=True)).returncode != 0:
        raise LinkError(f"could not sign in to {address.place}", final=True)
    return shared


class Login:
    """A login on a host for all sessions of a command or of a console, which ends with this process."""

    def __init__(self, address: SshAddress, options: SshOptions) -> None:
        self.options, folder = _shared(address, options)
        self._address = address
        self._alone = options  # for sessions that log in themselves
        self._gives_up_at = time.monotonic() + SILENCE_SECONDS
        self._stderr = Path(folder, "stderr")  # no pipe: ssh holds it open for as long as the connection lasts
        words, nowhere = _master(self.options).argv(address, "true"), subprocess.DEVNULL
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError), self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=stderr)
            atexit.register(self.give_up)

    async def done(self) -> SshOptions:
        """Return options that use the connection; if there is none, those of before: a session says why.

        Raises LinkError for a host that is silent, and for one that a person has to answer.
        """
        if self._process is None:
            return self._alone
        while (code := self._process.poll()) is None:
            if time.monotonic() > self._gives_up_at:
                self.give_up()
                raise silent_host(self._address.place, SILENCE_SECONDS)
            await asyncio.sleep(LOGIN_POLL_SECONDS)
        if code == 0:
            return self.options
        said = self._stderr.read_text(errors="replace")
        error = link_error(self._address.place, "", code, said, self._alone.login(self._address))
        if error.locked:
            raise error
        return self._alone

    def give_up(self) -> None:
        """Wait no longer, if it is still going on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def share_login(address: SshAddress, options: SshOptions) -> SshOptions:
    """Log in once for all sessions, unless the operator shares a connection. As ``Login.done``."""
    if await asyncio.to_thread(options.has_shared_connection, address):
        return options
    return await Login(address, options).done()


def _shared(address: SshAddress, options: SshOptions) -> tuple[SshOptions, str]:
    """Options with the socket of a connection for several sessions, which ends with this process; its folder."""
    parents = filter(_fits_socket, (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()))
    folder = tempfile.mkdtemp(prefix="redrive-", dir=next(parents, "/tmp"))  # mode 0700 keeps other users out
    shared = options.with_options(f"ControlPath={os.path.join(folder, 'ssh')}")
    atexit.register(_sign_out, shared.argv(address), folder)
    return shared, folder


def _fits_socket(parent: str) -> bool:
    """Whether a folder, which the shell of another user may name, can be used, and is short enough for ssh."""
    return len(os.fsencode(parent)) <= SOCKET_FOLDER_BYTES and os.access(parent, os.W_OK | os.X_OK)


def _master(shared: SshOptions) -> SshOptions:
    return shared.with_options("ControlMaster=yes", f"ControlPersist={PERSIST_SECONDS}")


def _sign_out(argv: Sequence[str], folder: str) -> None:
    if os.path.exists(os.path.join(folder, "ssh")):
        subprocess.run([argv[0], "-O", "exit", *argv[1:]], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


# --- The state files in the default place of this machine or of a host: once, or again whenever they change ----------


DEFAULT_OPTIONS = SshOptions()
OPEN_SECONDS = 3.0  # until the console opens without the hosts that have not let it in
AGAIN_SECONDS = 10.0  # until a lost connection to one of several hosts is made again


class FleetTarget(msgspec.Struct, frozen=True):
    """Machines with several state files. ``place``: for people; ``hosts``: ``ssh://host`` -> how it is reached.

    Without hosts: this machine. ``logins``: those that the list waits for.
    """

    place: str
    hosts: Mapping[str, SshOptions] = {}
    logins: Mapping[str, Login] = {}

    def watch(self) -> AsyncIterator[Sequence[FileRow]]:
        """Yield their state files, again whenever they change."""
        return watch_hosts(self.hosts, self.logins) if self.hosts else watch_state_files()


async def watch_state_files() -> AsyncIterator[Sequence[FileRow]]:
    """Yield the state files of this machine every POLL_SECONDS, in the order of ``FileRowReader.read``."""
    reader = FileRowReader()
    while True:
        yield await asyncio.to_thread(reader.read)
        await asyncio.sleep(POLL_SECONDS)


async def watch_remote_files(
    target: str, options: SshOptions = DEFAULT_OPTIONS
) -> AsyncGenerator[Sequence[FileRow], None]:
    """Yield the state files of ``ssh://host`` at once and whenever they change. ``FileRow.path`` is the whole address.

    Raises AddressError, LinkError: also when the connection ends.
    """
    address = parse(target)
    latest: asyncio.Queue[AgentMessage] = asyncio.Queue(1)

    def receive(message: AgentMessage) -> None:
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
            await asyncio.wait((waiting, agent.ended), return_when=asyncio.FIRST_COMPLETED)
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
    logins: dict[str, Login] = {}

    async def reach(target: str) -> SshOptions:
        address = parse(target)

        async def use(options: SshOptions) -> SshOptions:
            if await asyncio.to_thread(options.has_shared_connection, address):
                return options
            login = logins[target] = Login(address, options)
            async with asyncio.timeout(OPEN_SECONDS):
                return await login.done()

        try:
            return await connect_with_sign_in(address, ssh, use)
        except TimeoutError:
            return logins[target].options
        except RedriveError:
            return ssh

    targets = [*dict.fromkeys(hosts)]
    reached = await asyncio.gather(*map(reach, targets))
    return FleetTarget(f"{len(targets)} hosts", dict(zip(targets, reached, strict=True)), logins)


async def watch_hosts(
    hosts: Mapping[str, SshOptions], logins: Mapping[str, Login] = {}
) -> AsyncGenerator[Sequence[FileRow], None]:
    """Yield the state files of all hosts at once, and whenever those of one change.

    A host that is being connected is a row. One that cannot be reached is a row with the reason, beside what was known
    of it; its connection is made again.
    """
    found: dict[str, Sequence[FileRow]] = {target: [FileRow(target, has_file=False)] for target in hosts}
    changed = asyncio.Event()
    changed.set()
    waiting = dict(logins)

    async def follow(target: str, options: SshOptions) -> None:
        is_final = False
        while not is_final:
            try:
                if target in waiting:
                    options = await waiting.pop(target).done()
                async with aclosing(watch_remote_files(target, options)) as files:
                    async for file_rows in files:
                        found[target] = file_rows
                        changed.set()
            except RedriveError as error:
                is_final = isinstance(error, LinkError) and error.final
                found[target] = [_unreachable(target, error), *(one for one in found[target] if one.path != target)]
                changed.set()
            await asyncio.sleep(0 if is_final else AGAIN_SECONDS)

    tasks = [asyncio.create_task(follow(target, options)) for target, options in hosts.items()]
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
            return await connect_with_sign_in(parse(target), ssh, partial(files or list_state_files, target))
        except RedriveError as error:
            return [_unreachable(target, error)]

    read_hosts = await asyncio.gather(*map(read, dict.fromkeys(hosts)))
    return [file_row for file_rows in read_hosts for file_row in file_rows]


def _unreachable(target: str, error: RedriveError) -> FileRow:
    return FileRow(target, problem=str(error), has_file=False)


async def list_state_files(target: str, options: SshOptions = DEFAULT_OPTIONS) -> Sequence[FileRow]:
    """Return the state files of ``ssh://host`` as of now. Raises AddressError, LinkError."""
    async with aclosing(watch_remote_files(target, options)) as files:
        return await anext(files)
