"""One request to the executor of a state file, and its response.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import socket
import time
from contextlib import closing
from typing import Optional

from ..errors import LinkError
from .executor_socket import RESPONSE_BYTES_MAX, RESPONSE_SECONDS, Message, connect

PING_SECONDS = 5.0


def ping(state_path: str) -> Optional[Message]:
    """The status that the executor reports of itself; None if no executor listens.

    Raises LinkError, or StateFileError if this user may not connect.
    """
    return request(state_path, {"act": "ping"}, PING_SECONDS)


def request(state_path: str, message: Message, timeout_seconds: float = RESPONSE_SECONDS) -> Optional[Message]:
    """Send a message to the executor and return its response; None if no executor listens, or if it ended meanwhile."""
    connection = connect(state_path)
    if connection is None:
        return None
    with closing(connection):
        return _exchange(connection, message, timeout_seconds)


def _exchange(connection: socket.socket, message: Message, timeout_seconds: float) -> Optional[Message]:
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
        raise LinkError(
            "the executor took the command but has not answered for {:g} s: it may still apply it, so check the run"
            " before you send it again".format(timeout_seconds)
        ) from None
    except OSError:
        return None
    return _parse(bytes(line))


def _parse(line: bytes) -> Message:
    try:
        response: Message = json.loads(line.decode())
        if isinstance(response["ok"], bool) and isinstance(response["message"], str):
            return response
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise LinkError("the process on the socket of the executor is not an executor: see redrive doctor")
