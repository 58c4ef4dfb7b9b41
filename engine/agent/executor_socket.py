"""The socket of the executor that owns a state file: its path, one request, and a connection that proves its life.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import errno
import json
import os
import socket
import struct
import time
from contextlib import closing
from typing import Any, Dict, Optional

from ..errors import LinkError, NoAnswerError, StateFileError
from ..statefile.lock_file import lock_path

RESPONSE_SECONDS = 30.0  # an executor that accepted a command and does not respond in this time is not well
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
SOCKET_PATH_BYTES = 100  # the kernel takes 107; a longer path is shortened by the descriptor of its folder
SOCKET_NAME_BYTES = 80  # what is left of these behind /proc/self/fd/1234567/
_NAME_BYTES_SHOWN = 40  # of a longer name; a hash of the whole name follows

SocketMessage = Dict[str, Any]  # of the executor, one JSON object a line


def socket_path(state_path: str) -> str:
    """The path of the socket of an executor: ``<state>.sock``, the name shortened to what a socket can have."""
    folder, name = os.path.split(state_path)
    encoded = os.fsencode(name + ".sock")
    if len(encoded) > SOCKET_NAME_BYTES:
        start = encoded[:_NAME_BYTES_SHOWN].decode("utf-8", "ignore")
        import hashlib  # here: it loads OpenSSL, which the fork of each attempt would copy

        name = f"{start}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return os.path.join(folder, name + ".sock")


class ExecutorConnection(object):
    """An open connection to the executor, which ends with it. Never blocks."""

    def __init__(self, state_path: str) -> None:
        self._state_path = state_path
        self._connection: Optional[socket.socket] = None

    @property
    def descriptor(self) -> Optional[int]:
        """Readable when there is something to ``receive``; None while no executor listens."""
        return None if self._connection is None else self._connection.fileno()

    def refresh(self) -> None:
        """Connect to an executor that listens; when connected, ask whether it lives. Changes ``descriptor``."""
        try:
            if self._connection is None:
                self._connection = connect(self._state_path)
                if self._connection is None:
                    return
                self._connection.setblocking(False)
            self._connection.send(json.dumps({"act": "ping"}).encode() + b"\n")
        except BlockingIOError:
            pass  # the executor has not read the message before: it is alive, and busy
        except (OSError, StateFileError, LinkError):
            self.close()

    def receive(self) -> None:
        """Take what has come; close when the executor has disconnected."""
        try:
            data = self._connection.recv(65536) if self._connection is not None else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()

    def close(self) -> None:
        """Disconnect; ``refresh`` connects again."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def read_only_reason(state_path: str) -> Optional[str]:
    """Return why this user cannot send commands, in a sentence; None if the user can."""
    if os.access(socket_path(state_path), os.W_OK):
        return None
    lock = lock_path(state_path)
    paths = [state_path, os.path.dirname(os.path.abspath(state_path))] + [lock] * os.path.exists(lock)
    for path in paths:
        if not os.access(path, os.W_OK):
            return f"{path} is not writable for {_user()}"
    return None


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or f"user {os.getuid()}"


def connect(state_path: str) -> Optional[socket.socket]:
    """None if no executor listens. Raises LinkError, or StateFileError if this user may not connect."""
    folder, name = os.path.split(socket_path(os.path.abspath(state_path)))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(RESPONSE_SECONDS)
    try:
        _connect_within(connection, folder, name)
        _check_peer(connection, state_path)
    except OSError as error:
        connection.close()
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise StateFileError(f"the executor of {state_path} takes no commands from {_user()}") from error
        raise LinkError(f"the executor of {state_path} cannot be reached: {error}") from error
    return connection


def _check_peer(connection: socket.socket, state_path: str) -> None:
    """The socket may be planted: it must belong to this user, root, or the owner of the state file."""
    uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    if uid not in (0, os.geteuid()) and uid != os.stat(state_path).st_uid:
        raise OSError(f"its socket belongs to uid {uid}: remove it")


def _connect_within(connection: socket.socket, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        connection.connect(path)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


# --- One request to the executor of a state file, and its response ---------------------------------------------------


PING_SECONDS = 5.0


def ping(state_path: str) -> Optional[SocketMessage]:
    """The status that the executor reports of itself; None if no executor listens.

    Raises LinkError, or StateFileError if this user may not connect.
    """
    return request(state_path, {"act": "ping"}, PING_SECONDS)


def request(
    state_path: str, message: SocketMessage, timeout_seconds: float = RESPONSE_SECONDS
) -> Optional[SocketMessage]:
    """Send a message to the executor and return its response; None if no executor listens, or if it ended meanwhile."""
    connection = connect(state_path)
    if connection is None:
        return None
    with closing(connection):
        return _exchange(connection, message, timeout_seconds)


def _exchange(connection: socket.socket, message: SocketMessage, timeout_seconds: float) -> Optional[SocketMessage]:
    deadline = time.monotonic() + timeout_seconds
    connection.settimeout(timeout_seconds)
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
        line = bytearray()
        while not line.endswith(b"\n"):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            piece = connection.recv(65536)
            if not piece:
                return None
            line += piece
            if len(line) > RESPONSE_BYTES_MAX:
                raise LinkError("the answer on the socket of the executor is too long: no executor sends that")
            if time.monotonic() > deadline:
                raise socket.timeout()
    except socket.timeout:
        raise NoAnswerError(f"no answer from the executor for {timeout_seconds:g} s") from None
    except OSError:
        return None
    return _parse(bytes(line))


def _parse(line: bytes) -> SocketMessage:
    try:
        response: SocketMessage = json.loads(line.decode())
        if isinstance(response["ok"], bool) and isinstance(response["message"], str):
            return response
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise LinkError("the process on the socket of the executor is not an executor")
