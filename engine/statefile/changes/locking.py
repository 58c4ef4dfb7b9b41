"""Takes the lock file of a state file (``lock_file.py``).

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An executor keeps the lock for as long as it runs (``lock.py``); a commander takes it for one command where there is no
executor (``command_client.py``). Whoever takes it checks that the file still has its name: an executor that was refused removes
a lock file that it has made.
"""

import fcntl
import json
import os
from typing import Dict, Optional, Tuple

from ...errors import StorageError
from ..lock_file import LockHolder, lock_path, try_lock


def take_for_a_moment(state_path: str) -> Optional[int]:
    """Take the lock without waiting and without a name in it, until the descriptor is closed; None where it is held.

    Raises StorageError.
    """
    path = lock_path(state_path)
    descriptor, _ = open_lock(path)
    is_taken = False
    try:
        is_taken = try_lock(descriptor, fcntl.LOCK_EX) and has_its_name(descriptor, path)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    finally:
        if not is_taken:
            os.close(descriptor)
    return descriptor if is_taken else None


def open_lock(path: str) -> Tuple[int, bool]:
    """The descriptor, and whether the file was made for it. Raises StorageError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags | os.O_EXCL, 0o600), True
        except FileExistsError:
            return os.open(path, flags, 0o600), False
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot open {path}: {getattr(error, 'strerror', None) or error}") from error


def has_its_name(descriptor: int, path: str) -> bool:
    """Whether the file that is locked is the one that others find under its name. Raises OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_holder(descriptor: int, holder: LockHolder) -> None:
    """Raises OSError."""
    fields: Dict[str, object] = dict(holder._asdict())
    data = json.dumps(fields).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
