"""Opens a file beside a state file that this process will write, unless another user created it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

In a folder that others may write to, a planted link, pipe or file would be followed, waited for or believed.
"""

import os
import stat
from typing import Set

from ...errors import StorageError


def open_sidecar(path: str, flags: int, state_path: str) -> int:
    """Open or create (mode 0600) a file beside ``state_path``, as ``os.open``. Raises OSError, StorageError.

    The file must be a regular one of this user, of root, or of the owner of the state file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        if os.path.islink(path):
            raise StorageError("{} is a link: remove it".format(path)) from None
        if os.path.lexists(path) and not os.path.isfile(path):
            raise StorageError("{} is not a regular file: remove it".format(path)) from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise StorageError("{} is not a regular file: remove it".format(path))
    if status.st_uid not in trusted_users(state_path):
        os.close(descriptor)
        raise StorageError("{} belongs to another user (uid {}): remove it".format(path, status.st_uid))
    return descriptor


def trusted_users(state_path: str) -> Set[int]:
    """Who may own what lies beside a state file: this user, root, and the owner of the state file."""
    found = {0, os.geteuid()}
    try:
        found.add(os.stat(state_path).st_uid)
    except OSError:  # not created yet
        pass
    return found
