"""Records what the executors of one user have paged: one cause in several flows is one page for each receiver.

Each cause and receiver (a sender with its options) has a file in ``<default place>/pages/`` with the flows that have
the cause. It is a hint alone: whether an episode goes on is read from their state files. A page tells of what goes on
or begins after it: a flow in which the cause has ended since then pages itself when it comes back.

Who pages holds a lock on the file until the receiver has accepted the page, so that the death of an executor lets the
next one page. Where nothing can be written or read, each flow pages.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from ..core.causes import EPISODE_SILENCE_US
from ..statefile.lock_file import try_lock
from ..statefile.paths import names_in
from ..store.pages import is_open_in

FILES_MAX = 500  # of causes and receivers; older ones go
RECORD_BYTES_MAX = 65536
MEMBERS_MAX = 50


class Member(NamedTuple):
    """A flow that has the cause, and the state file and cause of its page."""

    flow: str
    state: str
    cause: str


class PageClaim(NamedTuple):
    """Whether to page now. ``told_by``: the flow whose page has told the receiver; ``is_busy``: another one pages now;
    ``others``: flows that have the cause as well; ``lock``: held until ``confirm`` or ``release``."""

    told_by: str | None = None
    is_busy: bool = False
    others: Sequence[str] = ()
    lock: int = -1


def claim(
    folder: str | None, fingerprint: str, receiver: str, own: Member, now: int, reported_since: int | None
) -> PageClaim:
    """Ask whether this flow pages. ``reported_since``: a page of another flow from before that has told nothing of this
    one, whose cause has ended meanwhile and come back. Instants are microseconds UTC."""
    path = None if folder is None else _path(folder, fingerprint, receiver)
    lock = -1 if path is None else open_lock(path)
    if lock < 0:
        return PageClaim()
    is_own = may_page(lock)
    if not is_own:
        os.close(lock)
        return PageClaim(is_busy=is_own is False)
    known = _read(lock)
    others = [one for one in known.members if one.state != own.state and is_open_in(one.state, one.cause)]
    is_recent = now - known.seen_at <= EPISODE_SILENCE_US and (
        reported_since is None or known.paged_at > reported_since
    )
    if not (others and is_recent):
        return PageClaim(others=[one.flow for one in others], lock=lock)
    _write(lock, known._replace(seen_at=now, members=[*others, own]))
    os.close(lock)
    return PageClaim(told_by=known.told_by)


def confirm(found: PageClaim, own: Member, now: int) -> None:
    """Record that the receiver has accepted the page, and let others go on."""
    if found.lock >= 0:
        members = [one for one in _read(found.lock).members if one.state != own.state]
        _write(found.lock, _Record(own.flow, now, now, [*members, own]))
        release(found)


def release(found: PageClaim) -> None:
    """Let others page."""
    if found.lock >= 0:
        os.close(found.lock)


def flows_notified(folder: str | None, fingerprint: str, state: str) -> list[str]:
    """Return the other flows that have a cause of which the page of a state file may have told."""
    names: dict[str, None] = {}
    for path in _paths(folder) if folder is not None else ():
        if os.path.basename(path).startswith(f"{fingerprint}-"):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    names |= {
                        one.flow: None
                        for one in _read(descriptor).members
                        if one.state != state and is_open_in(one.state, one.cause)
                    }
                finally:
                    os.close(descriptor)
    return list(names)


def _path(folder: str, fingerprint: str, receiver: str) -> str | None:
    """The file of a cause and a receiver, in a folder that is kept small."""
    if not fingerprint.isalnum():
        return None
    with contextlib.suppress(OSError):
        paths = [path for path in _paths(folder) if not os.path.basename(path).startswith("storage-")]
        if len(paths) > FILES_MAX:
            for path in sorted(paths, key=os.path.getmtime)[: len(paths) - FILES_MAX]:
                os.unlink(path)
    return os.path.join(folder, f"{fingerprint}-{receiver}")


def _paths(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in names_in(folder)]


def open_lock(path: str) -> int:
    """Open the file whose lock says who pages a receiver; -1: there can be none, and each executor pages."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1


def may_page(lock: int) -> bool | None:
    """Lock a file, which the kernel frees when this executor ends; False: another one holds it; None: no lock works."""
    try:
        return try_lock(lock, fcntl.LOCK_EX)
    except OSError:
        return None


class _Record(NamedTuple):
    """The content of a file: whose page has told the receiver, when, when the cause was last seen, and who has it."""

    told_by: str = ""
    paged_at: int = 0
    seen_at: int = 0
    members: Sequence[Member] = ()


def _read(descriptor: int) -> _Record:
    """Read a record; an empty one if the file says something else."""
    try:
        value = json.loads(os.pread(descriptor, RECORD_BYTES_MAX, 0))
        members = [Member(str(flow)[:200], str(state), str(cause)) for flow, state, cause in value["members"]]
        return _Record(str(value["told_by"])[:200], int(value["paged_at"]), int(value["seen_at"]), members)
    except (OSError, ValueError, TypeError, KeyError):
        return _Record()


def _write(descriptor: int, record: _Record) -> None:
    data = json.dumps(record._replace(members=record.members[-MEMBERS_MAX:])._asdict()).encode()
    with contextlib.suppress(OSError):  # a full disk: each flow pages
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
