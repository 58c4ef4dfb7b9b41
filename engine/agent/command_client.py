"""Sends an operator's command to the living executor, or applies it to the state file itself.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

With no executor alive, the sender takes the executor's lock and applies the same functions in one transaction.
Sending a command again with the same id is safe: the second time changes nothing.
"""

import os
import sqlite3
import time
from typing import Any, List, Optional

from ..domain.acts import Answer, Command, parse_answer
from ..domain.text import shell_command
from ..errors import ExecutorBusyError, LinkError, StateFileError, StorageError
from ..statefile.lock_file import last_holder
from ..statefile.open_writing import refuse_copy, write_alone
from ..statefile.operator_actions import apply
from ..statefile.paths import is_full
from ..statefile.transitions import Transaction
from .executor_socket import SocketMessage, request

PATIENCE_SECONDS = 10.0  # for an executor that starts or leaves: it holds the lock and does not listen
RETRY_SECONDS = 0.05


def send_blocking(state_path: str, command: Command) -> Answer:
    """Have one command applied and return the answer.

    Raises ExecutorBusyError when neither the socket answers nor the lock is free, StateFileError when this user may not
    write the file or the file cannot be used.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        response = request(state_path, command.as_json())
        answer = apply_under_lock(state_path, command) if response is None else _parse(response)
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise _busy(state_path)
        time.sleep(RETRY_SECONDS)  # the holder of the lock does not announce when it begins to listen or leaves


def _parse(response: SocketMessage) -> Answer:
    try:
        return parse_answer(response)
    except (ValueError, TypeError):
        raise LinkError("the process on the socket of the executor is not an executor") from None


def _busy(state_path: str) -> ExecutorBusyError:
    holder = last_holder(state_path)
    who = "a process" if holder is None else holder.who
    sentence = "{} is locked by {}, which does not answer: it is starting, ending or hung; see {}"
    pid, host = (None, None) if holder is None else (holder.pid, holder.host)
    doctor = shell_command(["redrive", "doctor", state_path])
    return ExecutorBusyError(sentence.format(state_path, who, doctor), pid=pid, host=host)


def apply_under_lock(state_path: str, command: Command, now_us: Optional[int] = None) -> Optional[Answer]:
    """Apply a command to a file without an executor. None when another process holds the lock.

    ``now_us``: microseconds UTC; None: the clock of this machine. Raises StorageError, StateFileError.
    """
    if not os.path.exists(state_path):
        raise StateFileError(f"there is no state file {state_path}")
    try:
        with write_alone(state_path) as connection:
            if connection is None:
                return None
            refuse_copy(connection, state_path, command.run_id)
            at = int(time.time() * 1000000) if now_us is None else now_us
            return apply(Transaction(connection, at), command, is_abandoned=True)
    except sqlite3.Error as error:
        raise StorageError(_describe_unwritten(state_path, error)) from error


def _describe_unwritten(state_path: str, error: sqlite3.Error) -> str:
    if is_full(state_path):  # SQLite says so only of a commit, and of other writes "disk I/O error"
        return f"nothing was changed: the disk that holds {state_path} is full; free some space"
    hint = "; end the program that has locked it, and try again" if "locked" in str(error) else ""
    return f"{state_path} could not be changed: {error}{hint}"


# --- What running tasks use now, as their executor reads it from /proc on request ------------------------------------


USAGE_ACT = "usage"
USAGE_RESPONSE_SECONDS = 2.0


def read_usage(state_path: str) -> List[Any]:
    """The rows of ``TaskUsage`` of all running tasks; none without an executor. Raises LinkError, StateFileError."""
    response = request(state_path, {"act": USAGE_ACT}, USAGE_RESPONSE_SECONDS)
    usage = (response or {}).get("usage")
    return usage if isinstance(usage, list) else []
