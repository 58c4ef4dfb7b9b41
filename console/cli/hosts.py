"""The state files of other hosts that a command line means: the only one, or all.

Several files are an error that names them: a guess could show or change the wrong run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ...engine.asyncio_log import run_with_log
from ...engine.errors import AddressError
from ...engine.statefile.state_files import FileRow
from ..model.runs import describe_latest
from ..sessions import open as sessions
from ..sessions.address import Endpoint, SshOptions, parse
from ..sessions.login import Login, connect_with_sign_in
from ..sessions.once import print_clock
from ..sessions.session import machine_now_us
from ..sessions.ssh import SshSession
from ..sessions.target import is_host, named_target

Result = TypeVar("Result")
UseHosts = Callable[[Mapping[str, SshSession], Sequence[FileRow]], Awaitable[Result]]


def choose_file(endpoint: Endpoint, *, to_act: bool = False) -> Endpoint:
    """The only readable file of a host, and the login that found it.

    ``to_act``: if files have something to do, the others are not candidates, as for state files of this machine.
    Raises AddressError, also for several files; LinkError.
    """
    options, found = _files_of_host(endpoint.target, Login(parse(endpoint.target), endpoint.ssh))
    return _only_file(endpoint._replace(ssh=options), found, to_act)


def _only_file(endpoint: Endpoint, file_rows: Sequence[FileRow], to_act: bool = False) -> Endpoint:
    target = endpoint.target
    usable = [file_row for file_row in file_rows if file_row.problem is None]
    if to_act:
        usable = [file_row for file_row in usable if file_row.has_work] or usable
    if len(usable) > 1:
        files = "; ".join(f"{file_row.path} ({describe_latest(file_row, machine_now_us())})" for file_row in usable)
        raise AddressError(f"{target} has {len(usable)} state files; name one of them: {files}")
    return endpoint._replace(target=usable[0].path) if usable else endpoint  # opening it reports the problem


def fleet_of(
    name: str | None, ssh: SshOptions, hosts: Sequence[str] = ()
) -> tuple[sessions.FleetTarget | None, Endpoint | None]:
    """The machines whose state files a command means, or the only file of a host; neither if the name says which file.

    Raises AddressError, LinkError.
    """
    if hosts:
        return run_with_log(sessions.log_in(hosts, ssh)), None
    target = named_target(name)
    if target is None:
        return sessions.FleetTarget("this machine"), None
    if not is_host(target):
        return None, None
    login = Login(parse(target), ssh)
    options, found = _files_of_host(target, login)
    if all(file_row.has_file for file_row in found) and sum(file_row.problem is None for file_row in found) <= 1:
        return None, _only_file(Endpoint(target, options), found)
    return sessions.FleetTarget(target, {target: login}), None


def with_hosts(hosts: Sequence[str], ssh: SshOptions, use: UseHosts[Result]) -> Result:
    """Await ``use`` with one session for all files of each host that is reached, and with the rows of the files.

    A host that is not reached has a row as well.
    """
    reached: dict[str, SshSession] = {}
    results: list[Result] = []

    async def files(target: str, options: SshOptions) -> Sequence[FileRow]:
        reached[target] = await SshSession.open(target, is_console=False, options=options, is_list=True)
        return reached[target].files

    async def open_and_use() -> None:
        try:
            found = await sessions.list_hosts(hosts, ssh, files=files)
            results.append(await use(reached, found))
        finally:
            for session in reached.values():
                print_clock(session)
                await session.close()

    run_with_log(open_and_use())
    return results[0]


def _files_of_host(target: str, login: Login) -> tuple[SshOptions, Sequence[FileRow]]:
    """The options that use the login, and the state files of ``ssh://host``. Raises AddressError, LinkError."""

    async def read(_: SshOptions) -> tuple[SshOptions, Sequence[FileRow]]:
        options = await login.options()
        return options, await sessions.list_state_files(target, options)

    return run_with_log(connect_with_sign_in(login, read))
