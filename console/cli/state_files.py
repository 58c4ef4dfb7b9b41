"""The state files that a command line means: the one that is named, or all of a machine or of several hosts."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.errors import LinkError
from ...engine.statefile.state_files import FileRow, file_row_of, file_rows
from ..sessions.address import Endpoint, SshOptions
from ..sessions.once import read_once
from ..sessions.session import FILE_QUERY, Session
from ..sessions.target import existing_target, is_host, named_target
from ..text.text import is_remote


def files_of(name: str | None, ssh: SshOptions, hosts: Sequence[str] = ()) -> Sequence[FileRow]:
    """Every state file of this machine or of the hosts that are named, or the one file that is named.

    Raises RedriveError if there is none, or if the one that is named cannot be read.
    """
    target, hosts = hosts_of(name, hosts)
    if not hosts:
        return files_of_machine(target, ssh)
    from ...engine.asyncio_log import run_with_log  # here: they import the event loop
    from ..sessions.open import list_hosts

    found = run_with_log(list_hosts(hosts, ssh))
    if len(found) == 1 and not found[0].has_file:
        raise LinkError(found[0].problem or "")
    return found


def hosts_of(name: str | None, hosts: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The one file that a command line names, or the hosts whose files it means."""
    target = named_target(name)
    return (None, (str(target),)) if not hosts and is_host(target) else (target, hosts)


def files_of_machine(target: str | None, ssh: SshOptions) -> Sequence[FileRow]:
    """The file that is named, or all of this machine. Raises RedriveError."""
    if target is None:
        found = file_rows()
        if not found:
            existing_target(None)  # raises
        return found
    if not is_remote(target):
        return [file_row_of(target)]
    return [read_once(Endpoint(target, ssh), file_row_of_session, [FILE_QUERY])]


async def file_row_of_session(session: Session) -> FileRow:
    """Read through a session the row that the list of its host has for the file."""
    file_row = await session.file_row()
    return file_row._replace(path=session.address, clock_offset_us=round(session.status.clock_offset_seconds * 1e6))
