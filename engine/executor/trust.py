"""Whether the code that a state file names may run without an operator's word.

It may if only this user and root can have written it: the state file, which names the flow file, the flow file, and
the folders of its PYTHONPATH. A group with this user as its only member counts as this user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator


def doubts(paths: Iterable[str]) -> Iterator[str]:
    """Yield one sentence for each path that another user may have written; none for a path that does not exist."""
    own = os.geteuid()
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if status.st_uid not in (own, 0):
            yield f"{path} belongs to {user_name(status.st_uid)}"
        elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            yield f"{path} can be written by every user"
        elif status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, status.st_uid):
            yield f"{path} can be written by the group {_group_name(status.st_gid)}"


def owner_of(path: str) -> str:
    """Return the name of the owner of a file; "nobody" if it is not there."""
    try:
        return user_name(os.stat(path).st_uid)
    except OSError:
        return "nobody"


def user_name(uid: int) -> str:
    """Return the name of a user; the number of an unknown one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether a group holds only this user: it is named after the user, and lists nobody else."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
