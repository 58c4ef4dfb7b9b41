"""The command server: a UNIX socket beside the state file that receives operators' commands, one JSON object a line.

Each command is one transaction through ``statefile/operator_actions.py``, which the client calls itself, under the
lock, when no executor lives. This module adds what needs the living executor: terminating a running attempt, stopping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from ..agent import command_client
from ..agent.executor_socket import socket_path
from ..domain.acts import BY_EXECUTOR, DONE, REFUSED, RUNNING, Answer, Author, Command, TargetResult, parse_command
from ..domain.event_payloads import OperatorActed, OperatorNotice
from ..domain.states import TaskState
from ..domain.text import counted, format_seconds
from ..errors import RedriveError, RefusedError, StorageError
from ..runner.usage import UsageReader
from ..statefile import operator_actions
from ..statefile.ownership import has_token
from ..statefile.transitions import Transaction
from ..statefile.undo import answer_again, find_act
from ..store import claims
from .active_run import ActiveRun
from .attempts import RunningAttempts
from .run_end import Shutdown
from .state_file_watch import StorageHealth
from .zygote_restart import ZygoteRestart

T = TypeVar("T")

LINE_BYTES_MAX = 4 * 1024 * 1024  # a frozen list of 10,000 targets is well below
HELD_BYTES_MAX = 32 * 1024 * 1024  # of the unfinished lines of all connections
READ_BYTES = 64 * 1024
BACKLOG = 1024  # clients that wait; one more gets an error at once
ACCEPT_RETRY_SECONDS = 1.0  # after a client for which no descriptor was free
SOCKET_MODE = 0o600

_PEER = struct.Struct("3i")  # pid, uid, gid

CommandMessage = Mapping[str, object]  # one JSON object a line


class LoopControl(Protocol):
    """The part of the running executor that the server needs; ``loop.RunLoop`` implements it."""

    attempts: RunningAttempts
    shutdown: Shutdown
    zygote_restart: ZygoteRestart
    active_run: ActiveRun
    storage: StorageHealth
    executor_id: str

    @property
    def has_result(self) -> bool:
        """True once the executor leaves."""

    def operate_breaker(self, downstream: str, how: str, actor: str) -> str:
        """Change a breaker in memory; return a sentence. Raises RefusedError."""

    def submit(self, item: Callable[[Transaction], T], author: Author = BY_EXECUTOR) -> asyncio.Future[T]:
        """Queue a write."""

    def wake(self) -> None:
        """Trigger the next step of the loop."""


class _TooLong(Exception):
    """A client has sent a line over the limit."""


class CommandServer:
    """Listens while the executor lives."""

    def __init__(self, loop: LoopControl, state_path: str) -> None:
        self._loop = loop
        self._path = socket_path(state_path)
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._usage_reader = UsageReader(loop.attempts.running, time.monotonic)

    def start(self) -> None:
        """Listen. Replaces the socket of a dead executor; the lock proves that no other executor lives."""
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_PATH | os.O_DIRECTORY)
        try:
            # Through the descriptor of the folder: the path of a socket is limited to 107 bytes.
            listener = _open_listener(f"/proc/self/fd/{directory}/{os.path.basename(self._path)}")
        except OSError as error:  # the file system supports no sockets
            why = error.strerror or error
            raise StorageError(f"the socket {self._path} cannot be made: {why}; choose another --state") from None
        finally:
            os.close(directory)
        self._stop_listening()  # at a socket that somebody has removed
        self._listener = listener
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:  # open
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        """Serve one client. asyncio's own server loses the one that it has just accepted when it is closed."""
        loop = asyncio.get_running_loop()
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has gone
            return
        except OSError as error:  # no descriptor is free
            loop.call_exception_handler({"message": "a client cannot connect", "exception": error})
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_RETRY_SECONDS, self._listen, listener)
            return
        connection = loop.create_task(self._serve_connection(client))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    def check_socket(self) -> None:
        """Listen again if the socket was removed."""
        if not os.path.lexists(self._path):
            with contextlib.suppress(OSError, StorageError):  # the folder is gone too; the next heartbeat tries again
                self.start()

    async def close(self) -> None:
        """Close all connections and remove the socket."""
        self._stop_listening()
        await asyncio.sleep(0)  # the task of the last client begins: from then on it closes the connection
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        with contextlib.suppress(OSError):  # the folder is gone, or may no longer be written
            os.unlink(self._path)

    async def _serve_connection(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=client, limit=READ_BYTES)
        try:
            async with contextlib.aclosing(self._lines(reader)) as lines:
                async for line in lines:
                    await _send(writer, await self.respond(line, writer))
        except _TooLong as error:
            with contextlib.suppress(ConnectionError):
                await _send(writer, Answer(False, str(error)).as_json())
        except asyncio.CancelledError:
            writer.transport.abort()  # the loop ends: what the client has not read cannot be sent any more
        except ConnectionError:
            pass  # disconnected: a command is applied only before its response
        finally:
            writer.close()

    async def _lines(self, reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
        """Yield the lines of one client. Raises _TooLong if it, or all of them together, leave too much unfinished."""
        held = bytearray()
        try:
            while data := await reader.read(READ_BYTES):
                *ends, rest = data.split(b"\n")
                for end in ends:
                    yield bytes(held) + end
                    self._held_bytes -= len(held)
                    held.clear()
                held += rest
                self._held_bytes += len(rest)
                if len(held) > LINE_BYTES_MAX or self._held_bytes > HELD_BYTES_MAX:
                    raise _TooLong(f"nothing is changed: a command is one line of at most {LINE_BYTES_MAX} bytes")
        finally:
            self._held_bytes -= len(held)

    async def respond(self, line: bytes, writer: asyncio.StreamWriter | None = None) -> CommandMessage:
        """Handle one line; an error becomes a response and does not end the executor.

        ``writer``: the connection of the client; without one the line can only be an act. Raises ConnectionError once
        the executor leaves.
        """
        try:
            return await self._handle_line(line, writer)
        except RedriveError as error:
            return Answer(False, str(error)).as_json()
        except ConnectionError:
            raise
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a command failed", "exception": error})
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            return Answer(False, f"nothing is changed, by a fault of redrive itself: {fault}").as_json()

    async def _handle_line(self, line: bytes, writer: asyncio.StreamWriter | None) -> CommandMessage:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        name = value.get("act") if isinstance(value, dict) else None
        handle = _CLIENT_REQUESTS.get(name) if isinstance(name, str) else None
        if handle is not None and writer is not None:
            return handle(self, value, writer)
        return (await self._answer(name, value, writer)).as_json()

    async def _answer(self, name: object, value: object, writer: asyncio.StreamWriter | None) -> Answer:
        if not isinstance(name, str):
            return Answer(False, "that is not a command: one JSON object a line with an 'act'")
        self._require_staying()
        problem = self._loop.storage.problem
        if problem is not None and name not in _WRITES_NOTHING:
            # Refuse now instead of responding only when the disk accepts writes again.
            return Answer(False, f"nothing is changed: {problem}")
        try:
            command = parse_command(value)
        except ValueError as error:
            return Answer(False, str(error))
        if writer is not None:
            command = command._replace(actor=self._known_actor(command.actor, writer))
        refused = operator_actions.unread_refusal(command)
        if refused is not None:
            return Answer(False, refused)
        return await HANDLERS.get(name, CommandServer._apply)(self, command)

    def _known_actor(self, actor: str, writer: asyncio.StreamWriter) -> str:
        """The name that a client gives itself; with its process, if that is a task of this run or of another user."""
        credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(credentials)
        if has_token(pid, [self._loop.executor_id]):
            return f"{actor} (a task of this run, pid {pid})"
        return actor if uid == os.geteuid() else f"{actor} (uid {uid}, pid {pid})"

    def _require_staying(self) -> None:
        if self._loop.has_result:
            raise ConnectionAbortedError(
                "the executor leaves: the client applies the act itself, once the lock is free"
            )

    async def _apply(self, command: Command) -> Answer:
        names = [target.task for target in command.targets]
        code = await self._loop.zygote_restart.load_for(command.act, names)
        answer = await self._apply_with_this_code(command)
        return answer._replace(message=f"{answer.message}; {code.sentence}") if code.sentence else answer

    async def _apply_with_this_code(self, command: Command) -> Answer:
        def item(transaction: Transaction) -> tuple[Answer, bool]:
            is_new = find_act(transaction.connection, command.id) is None
            return operator_actions.apply(transaction, command), is_new

        self._require_staying()  # changed code was loaded since
        answer, is_new = await self._loop.submit(item, command.author)
        if not any(result.outcome == RUNNING for result in answer.results):
            return answer
        results = tuple([await self._finish(command, result, is_new) for result in answer.results])
        message = f"{results[0].task}: {results[0].sentence}" if len(results) == 1 else answer.message
        return Answer(any(result.outcome == DONE for result in results), message, results)

    async def _finish(self, command: Command, result: TargetResult, is_new: bool) -> TargetResult:
        """Apply a committed command to a running attempt."""
        if result.outcome != RUNNING:
            return result
        done, sentence = await FINISHERS[command.act](self, command, result, is_new)
        return TargetResult(result.task, DONE if done else REFUSED, sentence)

    async def _cancel(self, command: Command, result: TargetResult, is_new: bool) -> tuple[bool, str]:
        """Report a cancel. The loop terminates the attempt on its event; CANCELLED follows when the process is gone."""
        row = self._loop.active_run.projection.tasks[result.task]
        ending = row.state is TaskState.CANCELLED or row.cancel_requested_at is not None
        return ending, result.sentence if ending else f"it ended before: now {row.state}"

    async def _extend(self, command: Command, result: TargetResult, is_new: bool) -> tuple[bool, str]:
        """Extend the timeout, which only this process holds, then emit the change."""
        if not is_new:  # a repeated command must not extend twice
            return True, "it was given more time when this came first"
        seconds, recorder = float(command.options["seconds"]), self._loop.attempts.running.get(result.task)
        timeout = None if recorder is None else recorder.extend(seconds)
        if recorder is None or timeout is None:
            is_terminating = recorder is not None and recorder.controls.is_terminating
            return False, "SIGTERM was sent to it: it ends" if is_terminating else "it ends now, or is only starting"
        claim = recorder.claim
        await self._loop.submit(
            lambda transaction: claims.extend_timeout(transaction, claim, timeout, seconds), command.author
        )
        return True, f"{format_seconds(seconds)} more: {format_seconds(timeout)} in all"

    # --- Requests to the living executor ---------------------------------------------------------------------------

    def _ping(self, message: CommandMessage, writer: asyncio.StreamWriter) -> CommandMessage:
        return {**self._status("pong"), "pid": os.getpid()}

    def _usage(self, message: CommandMessage, writer: asyncio.StreamWriter) -> CommandMessage:
        return {**self._status("usage"), "usage": self._usage_reader.read()}

    def _status(self, message: str) -> CommandMessage:
        loop = self._loop
        problem = loop.storage.problem
        return {"ok": True, "message": message, "executor_id": loop.executor_id, "storage_problem": problem}

    async def _stop(self, command: Command) -> Answer:
        how = command.options.get("how")
        if how not in ("drain", "now"):
            return Answer(False, f"stop how? 'drain' or 'now', not {str(how)[:60]!r}")
        self._loop.shutdown.request(how)
        running = len(self._loop.attempts.running)
        word = "ending" if how == "now" else "waiting for"
        answer = Answer(True, f"stopping: {word} {counted(running, 'running task')}; the run can resume")
        self._write_act(command, answer)  # not awaited: the disk may refuse writes
        return answer

    def _write_act(self, command: Command, answer: Answer) -> None:
        """Emit an act on this process, for the journal; once per command id."""
        acted = OperatorActed(command.act, dict(command.options), answer.as_json())
        run_id = self._loop.active_run.run_id

        def item(transaction: Transaction) -> None:
            if find_act(transaction.connection, command.id) is not None:
                return
            transaction.author = command.author
            transaction.emit(acted, run_id)

        self._loop.attempts.write(item)

    async def _reload(self, command: Command) -> Answer:
        """Load changed source files. The event of the load names them."""
        load = await self._loop.zygote_restart.load_for(command.act)
        nothing = "nothing changed: the executor runs the code that is on the disk"
        answer = Answer(load.ok, load.sentence or nothing)
        self._write_act(command, answer)
        return answer

    async def _breaker(self, command: Command) -> Answer:
        """Change a breaker in memory and write it to the state file; once per command id."""
        earlier = await self._loop.submit(lambda transaction: find_act(transaction.connection, command.id))
        if earlier is not None:
            return answer_again(earlier, command)
        downstream, how = str(command.options.get("downstream")), str(command.options.get("how"))
        try:
            message = self._loop.operate_breaker(downstream, how, command.actor or "an operator")
        except RefusedError as error:
            return Answer(False, str(error))
        answer, run_id = Answer(True, message), self._loop.active_run.run_id
        acted = OperatorActed(
            command.act,
            dict(command.options),
            answer.as_json(),
            what=OperatorNotice.BREAKER,
            downstream=downstream,
            how=how,
        )
        await self._loop.submit(lambda transaction: transaction.emit(acted, run_id), command.author)
        self._loop.wake()
        return answer


def _open_listener(path: str) -> socket.socket:
    """Replace what is at the path by a socket that only its owner may use. Raises OSError."""
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o777 & ~SOCKET_MODE)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    listener.setblocking(False)
    return listener


async def _send(writer: asyncio.StreamWriter, message: CommandMessage) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


#: Applied to a running task after the commit of the act: (done, sentence).
FINISHERS = {"cancel": CommandServer._cancel, "extend": CommandServer._extend}

#: Acts on the executor's memory; all others are transactions of ``statefile/operator_actions.py``.
HANDLERS: dict[str, Callable[[CommandServer, Command], Awaitable[Answer]]] = {
    "stop": CommandServer._stop,
    "reload": CommandServer._reload,
    "breaker": CommandServer._breaker,
}

#: Requests of connected clients that are not acts.
_CLIENT_REQUESTS = {
    "ping": CommandServer._ping,
    command_client.USAGE_ACT: CommandServer._usage,
}

_WRITES_NOTHING = frozenset(["stop"])
