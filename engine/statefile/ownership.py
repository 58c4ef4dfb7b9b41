"""Ownership of a state file: acquires its lock, and finds the processes of its executor.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import fcntl
import json
import os
import socket
import stat
import time
import zlib
from contextlib import contextmanager
from typing import Collection, Dict, Iterable, Iterator, Optional, Set, Tuple

from ..errors import CorruptFileError, ExecutorBusyError, StateFileError, StorageError, UnreadableFileError
from .lock_file import LockHolder, last_holder, lock_path, try_lock
from .paths import folder_sentence, has_content
from .processes import EXECUTOR_VARIABLE, read_file, stat_fields

# --- Opens a file beside a state file that this process will write, unless another user created it -------------------
#
# In a folder that others may write to, a planted link, pipe or file would be followed, waited for or believed.


def open_sidecar(path: str, flags: int, state_path: str) -> int:
    """Open or create (mode 0600) a file beside ``state_path``, as ``os.open``. Raises OSError, StorageError.

    The file must be a regular one of this user, of root, or of the owner of the state file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        if os.path.islink(path):
            raise StorageError(f"{path} is a link: remove it") from None
        if os.path.lexists(path) and not os.path.isfile(path):
            raise StorageError(f"{path} is not a regular file: remove it") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise StorageError(f"{path} is not a regular file: remove it")
    if status.st_uid not in trusted_users(state_path):
        os.close(descriptor)
        raise StorageError(f"{path} belongs to another user (uid {status.st_uid}): remove it")
    return descriptor


def trusted_users(state_path: str) -> Set[int]:
    """Return who may own the files beside a state file: this user, root, and the owner of the state file."""
    found = {0, os.geteuid()}
    try:
        found.add(os.stat(state_path).st_uid)
    except OSError:  # not created yet
        pass
    return found


# --- Who may have written a state file, and the code that it names ---------------------------------------------------
#
# A run trusts them if only this user and root can have written them: the state file, the flow file that it names, and
# the folders of its PYTHONPATH. A group with this user as its only member counts as this user.


def require_not_emptied(state_path: str) -> None:
    """Raise CorruptFileError for an empty state file of which the lock says that an executor has written a run."""
    holder = last_holder(state_path)
    if holder is None or holder.run_id is None or holder.released_at is None:
        return  # none, or one that died, perhaps before its first write
    if os.path.isfile(state_path) and not any(map(has_content, (state_path, state_path + "-wal"))):
        raise CorruptFileError(
            f"{state_path} is empty, but run {holder.run_id} was written into it: restore a copy;"
            f" to begin anew, remove {state_path}"
        )


def require_own_state_file(path: str) -> None:
    """Raise StateFileError for a state file that others may have made or may write; none for one that is not there.

    It holds the output and errors of each task, and what the console shows and the next run believes.
    """
    doubt = next(doubts([path]), None)
    if doubt is not None:
        mend = "remove it, make it yours alone (chown, chmod 600), or " if os.path.isfile(path) else ""  # or a device
        raise StateFileError(f"{doubt}: nothing is run with it; {mend}choose another with --state")


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
    import pwd  # here, as ``grp`` below: what is imported before a flow in memory is forked costs each attempt

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether a group holds only this user: it is named after the user, and lists nobody else."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


# --- Acquires the lock of a state file (``lock_file.py``) ------------------------------------------------------------
#
# An executor holds the lock while it runs (``lock.py``); a command client acquires it for one command if no executor
# runs (``command_client.py``). After acquiring it, both check that the path still names the locked file, because an
# executor that was refused removes the lock file that it created.


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


def open_state_file(state_path: str) -> Optional[int]:
    """Open a state file to lock it; None if it is not there. Raises StorageError."""
    try:
        return os.open(state_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFileError(f"cannot read the state file {state_path}: {error.strerror}") from error


def is_locked_file(descriptors: Iterable[int], state_path: str) -> bool:
    """Whether one of these descriptors is of the file that is at the path."""
    try:
        status = os.stat(state_path)
    except OSError:
        return False
    return any(os.path.samestat(os.fstat(descriptor), status) for descriptor in descriptors)


LEAVING_SECONDS = 1.0
LEAVING_POLL_SECONDS = 0.01


def lock_within_patience(descriptor: int) -> bool:
    """Lock a state file whose lock file the caller holds; False: an executor holds it, under another name.

    Of a killed executor, the lock file is free an instant before the state file.
    """
    until = time.monotonic() + LEAVING_SECONDS
    while not try_lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > until:
            return False
        time.sleep(LEAVING_POLL_SECONDS)  # flock with a limit: the kernel only offers to wait without one
    return True


def owned_by_another_name(state_path: str, descriptor: int) -> ExecutorBusyError:
    """The error for a state file that is locked although its lock file is not. ``descriptor``: of the file."""
    pid = _flock_owner(os.fstat(descriptor).st_ino)
    who = "an executor" if pid is None else f"the executor with pid {pid}"
    sentence = "{} writes {} under another name, as a bind mount gives it: use the name that it was started with"
    return ExecutorBusyError(sentence.format(who, state_path), pid=pid, host=socket.gethostname())


def _flock_owner(inode: int) -> Optional[int]:
    """The process that has locked a file, if the kernel knows: ``1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF``."""
    try:
        lines = read_file("/proc/locks").decode("ascii").splitlines()
    except OSError:
        return None
    for fields in map(str.split, lines):
        if fields[1:2] == ["FLOCK"] and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None


#: Descriptors of the state files that this process has changed without an executor, by inode. They stay open: closing
#: one would drop the locks of readers in this process.
_changed: Dict[Tuple[int, int], int] = {}


@contextmanager
def locked_file(state_path: str) -> Iterator[None]:
    """Lock the state file itself for one command, as ``StateLock.lock_file`` does. The caller holds its lock file.

    Raises ExecutorBusyError, StorageError.
    """
    status = os.stat(state_path)
    key = status.st_dev, status.st_ino
    if key not in _changed:
        descriptor = open_state_file(state_path)
        if descriptor is None:
            raise StateFileError(f"there is no state file {state_path}")
        _changed[key] = descriptor
    descriptor = _changed[key]
    if not lock_within_patience(descriptor):
        raise owned_by_another_name(state_path, descriptor)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def require_single_name(state_path: str) -> None:
    """Raise StorageError if a hard link gives the file another name, under which it would have another lock.

    Raises StateFileError for a folder.
    """
    names = _count_names(state_path)
    if names > 1:
        remove_makings(os.path.realpath(state_path), is_named=True)
        names = _count_names(state_path)
    if names > 1:
        sentence = "{} has {} names, and each would have an executor: remove the other hard links, or copy the file"
        raise StorageError(sentence.format(state_path, names))


def _count_names(state_path: str) -> int:
    try:
        status = os.stat(state_path)
    except (OSError, ValueError):
        return 0  # there is no file yet
    if stat.S_ISDIR(status.st_mode):
        raise StateFileError(folder_sentence(state_path))
    return status.st_nlink


def making_prefix(path: str) -> str:
    """The beginning of the names under which a state file is made beside its own (``store/making.py``)."""
    return f".redrive-{zlib.crc32(os.fsencode(os.path.basename(path))):08x}-"


def remove_makings(path: str, is_named: bool = False) -> None:
    """Remove what makings of a state file have left that were cut off.

    ``is_named``: only those that were cut off between their last two steps, when the file has both names.
    """
    folder, prefix = os.path.dirname(path), making_prefix(path)
    try:
        found = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(prefix)]
        for leftover in found:
            if not is_named or os.path.samefile(leftover, path):
                os.unlink(leftover)
    except OSError:  # it makes no other file wrong
        pass


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


# --- Finds the processes of an executor by the token in their environment --------------------------------------------


EXEC_SECONDS_MAX = 1.0  # a call of exec takes less than a millisecond, unless the machine is busy
_AT_WORK = (b"R", b"D")  # states of a process that runs, waits for a processor, or reads its program from the disk


def has_token(pid: int, executor_ids: Collection[str]) -> bool:
    """True if the environment of a process names one of these executors."""
    tokens = {f"{EXECUTOR_VARIABLE}={executor_id}".encode() for executor_id in executor_ids}
    try:
        return not tokens.isdisjoint(_environment(pid).split(b"\0"))
    except OSError:
        return False


def _environment(pid: int) -> bytes:
    """The environment of a process. Waits while a call of exec replaces it, when there is nothing to read."""
    path = f"/proc/{pid}/environ"
    found, limit, was_bare = read_file(path), time.monotonic() + EXEC_SECONDS_MAX, False
    while not found and time.monotonic() < limit:
        os.readlink(f"/proc/{pid}/exe")  # OSError: a kernel thread, or a process that has ended
        fields = stat_fields(pid)
        env_start, env_end = fields[47:49]
        # Both are equal in the middle of an exec, for as long as a busy machine lets the process wait.
        is_bare = env_end != b"0" and env_start == env_end and fields[0] not in _AT_WORK
        if is_bare and was_bare:
            return b""
        was_bare = is_bare
        time.sleep(0.001)  # no event reports the end of an exec to a process that is not the parent
        found = read_file(path)
    return found
