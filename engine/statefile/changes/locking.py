"""Acquires the lock of a state file (``lock_file.py``).

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

An executor holds the lock while it runs (``lock.py``); a command client acquires it for one command if no executor runs
(``command_client.py``). After acquiring it, both check that the path still names the locked file, because an executor
that was refused removes the lock file that it created.
"""

import fcntl
import json
import os
from typing import Dict, Optional, Tuple

from ...errors import StorageError
from ..lock_file import LockHolder, lock_path, try_lock
from .sidecar_file import open_sidecar


def try_acquire(state_path: str) -> Optional[int]:
    """Acquire the lock without waiting and without writing a holder; None if it is held. Closing releases it.

    Raises StorageError.
    """
    require_single_name(state_path)
    path = lock_path(state_path)
    descriptor, _ = open_lock(path)
    is_taken = False
    try:
        is_taken = try_lock(descriptor, fcntl.LOCK_EX) and is_current_file(descriptor, path)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    finally:
        if not is_taken:
            os.close(descriptor)
    return descriptor if is_taken else None


def require_single_name(state_path: str) -> None:
    """Raise StorageError if a hard link gives the file another name, under which it would have another lock."""
    try:
        names = os.stat(state_path).st_nlink
    except (OSError, ValueError):
        return  # there is no file yet
    if names > 1:
        sentence = "{} has {} names, and each would have an executor: remove the other hard links, or copy the file"
        raise StorageError(sentence.format(state_path, names))


def open_lock(path: str) -> Tuple[int, bool]:
    """Open the lock file. Returns the descriptor, and True if the file was created. Raises StorageError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    state_path = path[: -len(lock_path(""))]
    try:
        try:
            return os.open(path, flags | os.O_EXCL, 0o600), True
        except FileExistsError:
            return open_sidecar(path, flags, state_path), False
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot open {path}: {getattr(error, 'strerror', None) or error}") from error


def is_current_file(descriptor: int, path: str) -> bool:
    """True if the path still names the locked file. Raises OSError."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def write_holder(descriptor: int, holder: LockHolder) -> None:
    """Write who holds the lock. Raises OSError."""
    fields: Dict[str, object] = dict(holder._asdict())
    data = json.dumps(fields).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
