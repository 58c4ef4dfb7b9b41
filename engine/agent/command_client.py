"""The commander's side: an operator's act reaches the living executor through its socket, or the state file itself.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

With no executor alive, the commander takes the executor's lock and applies the same functions in one transaction.
Sending a command again with the same id is safe: the second time changes nothing.
"""

import errno
import hashlib
import json
import os
import socket
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..errors import ExecutorBusyError, LinkError, StateFileError, StorageError
from ..statefile.lock_file import last_holder, lock_path, served_by

if TYPE_CHECKING:  # the agent gets this with the first command, not before
    from ..domain.command import Answer, Command

ANSWER_SECONDS = 30.0  # an executor that took the command but does not answer in this time is not well
PING_SECONDS = 5.0
PATIENCE_SECONDS = 10.0  # for an executor that starts or leaves: it holds the lock and does not listen
LOOK_AGAIN_SECONDS = 0.05
SOCKET_PATH_BYTES = 100  # the kernel takes 107; beyond this the folder's descriptor shortens the path
SOCKET_NAME_BYTES = 80  # what is left of these behind /proc/self/fd/1234567/
SOCKET_NAME_KEPT = 40  # of a longer name, for people; a hash of the whole name follows

Message = Dict[str, Any]  # of the executor, one JSON object a line


def socket_path(state_path: str) -> str:
    """Where the executor of a state file listens: beside it, under its name, or what a socket can have of that."""
    folder, name = os.path.split(state_path)
    encoded = os.fsencode(name + ".sock")
    if len(encoded) > SOCKET_NAME_BYTES:
        kept = encoded[:SOCKET_NAME_KEPT].decode("utf-8", "ignore")
        name = "{}-{}".format(kept, hashlib.sha256(os.fsencode(name)).hexdigest()[:16])
    return os.path.join(folder, name + ".sock")


def send_blocking(state_path: str, command: "Command") -> "Answer":
    """Have one command applied and return the answer.

    Raises ExecutorBusyError when neither the socket answers nor the lock is free, StateFileError when this user may not
    or the file cannot.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = _send_to_executor(state_path, command) or _apply_under_lock(state_path, command)
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise _busy(state_path)
        time.sleep(LOOK_AGAIN_SECONDS)  # whoever holds the lock tells nobody when it begins to listen or leaves


async def send(state_path: str, command: "Command") -> "Answer":
    """``send_blocking`` for a caller with an event loop."""
    import asyncio  # here, because the agent must start fast and never comes this way

    return await asyncio.get_event_loop().run_in_executor(None, send_blocking, state_path, command)


def ping(state_path: str) -> Optional[Message]:
    """What the executor says of itself, None when nobody listens. Raises LinkError, StateFileError (not this user)."""
    return _ask_executor(state_path, {"act": "ping"}, PING_SECONDS)


class Attendance(object):
    """An open line to the executor: it shows everybody who is attached, and who hangs up is gone. Never waits."""

    def __init__(self, state_path: str, actor: str) -> None:
        self._state_path = state_path
        self._actor = actor
        self._line: Optional[socket.socket] = None
        self._heard = b""
        self.names: List[str] = []
        self.storage_trouble: Optional[str] = None  # why the executor cannot write the state file

    @property
    def descriptor(self) -> Optional[int]:
        """Readable when there is something to ``hear``; None while no executor listens."""
        return None if self._line is None else self._line.fileno()

    def greet(self) -> None:
        """Say who is here, to an executor that listens; later on: ask again who else is. Changes ``descriptor``."""
        try:
            if self._line is None:
                self._line = _connect(self._state_path)
                if self._line is None:
                    return
                self._line.setblocking(False)
            self._line.send(json.dumps({"act": "hello", "actor": self._actor}).encode() + b"\n")
        except BlockingIOError:
            pass  # it does not read what we said before: alive, and busy
        except (OSError, StateFileError, LinkError):
            self.leave()

    def hear(self) -> None:
        """Take in what came. Changes ``names`` and ``storage_trouble``; ``descriptor`` when the executor hung up."""
        try:
            heard = self._line.recv(65536) if self._line is not None else b""
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if not heard:
            self.leave()
            return
        lines = (self._heard + heard).split(b"\n")
        self._heard = lines.pop()
        for line in lines:
            answer = json.loads(line.decode())
            self.names = [str(name) for name in answer.get("present", ())]
            self.storage_trouble = answer.get("storage_trouble")

    def leave(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()
        self._line, self._heard, self.names, self.storage_trouble = None, b"", [], None


def heartbeat_at(state_path: str) -> Optional[int]:
    """When an executor last showed that it turns, in microseconds UTC of its host; None if there never was one."""
    try:
        return os.stat(lock_path(state_path)).st_mtime_ns // 1000
    except OSError:
        return None


def service_pid(state_path: str) -> Optional[int]:
    """Who starts the runs of a state file by a schedule; None: nobody."""
    holder = served_by(state_path)
    return None if holder is None else holder.pid


def why_read_only(state_path: str) -> Optional[str]:
    """One sentence that says why this user can change nothing, None if it can."""
    if os.access(socket_path(state_path), os.W_OK):
        return None
    if not os.access(state_path, os.W_OK):
        return "{} is not writable for {}".format(state_path, _user())
    folder = os.path.dirname(os.path.abspath(state_path))
    if not os.access(folder, os.W_OK):
        return "{} is not writable for {}".format(folder, _user())
    lock = lock_path(state_path)
    if os.path.exists(lock) and not os.access(lock, os.W_OK):
        return "{} is not writable for {}".format(lock, _user())
    return None


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "user {}".format(os.getuid())


# --- Through the socket --------------------------------------------------------------------------------------------


def _send_to_executor(state_path: str, command: "Command") -> "Optional[Answer]":
    from ..domain.command import answer_of

    said = _ask_executor(state_path, command.as_json())
    return None if said is None else answer_of(said)


def _ask_executor(state_path: str, message: Message, patience_seconds: float = ANSWER_SECONDS) -> Optional[Message]:
    """None when nobody listens, or when who listened has gone without an answer."""
    connection = _connect(state_path)
    if connection is None:
        return None
    with closing(connection):
        return _converse(connection, message, patience_seconds)


def _connect(state_path: str) -> Optional[socket.socket]:
    folder, name = os.path.split(socket_path(os.path.abspath(state_path)))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_SECONDS)
    try:
        _connect_within(connection, folder, name)
    except OSError as error:
        connection.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise StateFileError("the executor of {} takes no commands from {}".format(state_path, _user())) from error
        raise LinkError("the executor of {} cannot be reached: {}".format(state_path, error)) from error
    return connection


def _connect_within(connection: socket.socket, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        connection.connect(path)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect("/proc/self/fd/{}/{}".format(descriptor, name))
    finally:
        os.close(descriptor)


def _converse(connection: socket.socket, message: Message, patience_seconds: float) -> Optional[Message]:
    connection.settimeout(patience_seconds)
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            piece = connection.recv(65536)
            if not piece:
                return None
            line += piece
    except socket.timeout:
        raise LinkError(
            "the executor took the command but has not answered for {:g} s: it may still do it, so look before you send"
            " it again".format(patience_seconds)
        ) from None
    except OSError:
        return None
    said: Message = json.loads(line.decode())
    return said


def _busy(state_path: str) -> ExecutorBusyError:
    holder = last_holder(state_path)
    who = "a process" if holder is None else "pid {} on {}".format(holder.pid, holder.host)
    sentence = "{} is locked by {}, which does not answer: it is starting, ending or hung; see redrive doctor"
    pid, host = (None, None) if holder is None else (holder.pid, holder.host)
    return ExecutorBusyError(sentence.format(state_path, who), pid=pid, host=host)


# --- Under the lock ------------------------------------------------------------------------------------------------


def _apply_under_lock(state_path: str, command: "Command") -> "Optional[Answer]":
    """None when somebody holds the lock."""
    if not os.path.exists(state_path):
        raise StateFileError("there is no state file {}".format(state_path))
    from ..statefile.changes.locking import (
        take_for_a_moment,  # the agent gets this when the first command comes, not before
    )

    lock = take_for_a_moment(state_path)
    if lock is None:
        return None
    try:
        return _apply(state_path, command)
    except sqlite3.Error as error:
        raise StorageError("{} could not be changed: {}".format(state_path, error)) from error
    finally:
        os.close(lock)


def _apply(state_path: str, command: "Command") -> "Answer":
    from ..statefile.changes.migrations import upgrade
    from ..statefile.changes.open_writing import open_existing, transaction
    from ..statefile.changes.operator_actions import apply
    from ..statefile.changes.transitions import Journal

    with closing(open_existing(state_path)) as connection, transaction(connection):
        upgrade(connection, state_path)
        journal = Journal(
            connection,
            int(time.time() * 1000000),
            actor=command.actor,
            reason=command.reason,
            command_id=command.id,
        )
        return apply(journal, command, is_abandoned=True)
