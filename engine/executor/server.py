"""The executor's ear: a UNIX socket beside the state file where operators' commands arrive, one JSON object a line.

Each command is one transaction through ``statefile/changes/operator_actions.py``, the same functions that a commander uses under the lock
when no executor lives. Only what needs the living executor is done here: ending a running attempt, stopping, presence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..agent.command_client import socket_path
from ..core.durations import spoken
from ..domain.command import DONE, REFUSED, RUNNING, Answer, Command, Result, command_of
from ..domain.event_payloads import OperatorActed, OperatorNotice
from ..domain.states import TaskState
from ..errors import RedriveError, RefusedError, StorageError
from ..statefile.changes import operator_actions
from ..statefile.changes.transitions import Journal
from ..statefile.changes.undo import RecordedAct, find_act
from ..store import claims

if TYPE_CHECKING:
    from .loop import RunLoop

LINE_BYTES_MAX = 16 * 1024 * 1024  # a frozen list of 10,000 targets is well below
SOCKET_MODE = 0o600

Message = Mapping[str, Any]  # one JSON object a line


class CommandServer:
    """Listens while the executor lives."""

    def __init__(self, run_loop: RunLoop, state_path: str) -> None:
        self._run_loop = run_loop
        self._path = socket_path(state_path)
        self._servers: list[asyncio.AbstractServer] = []
        self._listening: asyncio.Task[None] | None = None
        self._present: dict[asyncio.StreamWriter, str] = {}
        self._conversations: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> list[str]:
        """Who is attached."""
        return sorted(self._present.values())

    async def start(self) -> None:
        """Listen. A socket that a dead executor left behind is replaced: the lock says that nobody else is alive."""
        directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_PATH | os.O_DIRECTORY)
        try:
            # Through the descriptor of the folder, because the path of a socket may have 107 bytes only.
            short = f"/proc/self/fd/{directory}/{os.path.basename(self._path)}"
            if os.path.lexists(self._path):
                os.unlink(self._path)
            mask = os.umask(0o777 & ~SOCKET_MODE)
            try:
                self._servers.append(await asyncio.start_unix_server(self._converse, short, limit=LINE_BYTES_MAX))
            except OSError as error:  # the file system knows no sockets
                why = error.strerror or error
                raise StorageError(f"the socket {self._path} cannot be made: {why}; choose another --state") from None
            finally:
                os.umask(mask)
        finally:
            os.close(directory)

    def look(self) -> None:
        """Listen anew where somebody has removed the socket: nobody else could be told what is the matter."""
        if not os.path.lexists(self._path) and (self._listening is None or self._listening.done()):
            self._listening = asyncio.get_running_loop().create_task(self._listen_again())

    async def _listen_again(self) -> None:
        with contextlib.suppress(OSError, StorageError):  # the folder is gone as well; the next beat tries again
            await self.start()

    async def close(self) -> None:
        """Hang up on everybody and remove the socket."""
        if self._listening is not None:
            await asyncio.wait({self._listening})
        for server in self._servers:
            server.close()
        for conversation in list(self._conversations):
            conversation.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)
        if os.path.lexists(self._path):
            os.unlink(self._path)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        try:
            while line := await reader.readline():
                message = await self._answer_whatever_comes(line, writer)
                writer.write(json.dumps(message).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError, ValueError):
            pass  # hung up, or a line over the limit: nothing was applied that was not answered
        finally:
            self._conversations.discard(task)
            self._leave(writer)
            writer.close()

    async def _answer_whatever_comes(self, line: bytes, writer: asyncio.StreamWriter) -> Message:
        """A command that we fail at must cost neither the operator the answer nor the run its executor."""
        try:
            return await self._answer(line, writer)
        except RedriveError as error:
            return Answer(False, str(error)).as_json()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a command failed", "exception": error})
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            return Answer(False, f"nothing is changed, by a fault of redrive itself: {fault}").as_json()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> Message:
        try:
            value = json.loads(line)
            name = str(value["act"])
        except (ValueError, KeyError, TypeError):
            return Answer(False, "that is not a command: one JSON object a line with an 'act'").as_json()
        attend = _ATTENDING.get(name)
        if attend is not None:
            return attend(self, value, writer)
        trouble = self._run_loop.storage_trouble
        if trouble is not None and name not in _WRITES_NOTHING:
            # Better a refusal now than an answer when the disk has room again.
            return Answer(False, f"nothing is changed: {trouble}").as_json()
        try:
            command = command_of(value)
        except ValueError as error:
            return Answer(False, str(error)).as_json()
        return (await HANDLERS.get(name, CommandServer._apply)(self, command)).as_json()

    async def _apply(self, command: Command) -> Answer:
        def item(journal: Journal) -> tuple[Answer, bool]:
            is_new = find_act(journal.connection, command.id) is None
            return operator_actions.apply(journal, command), is_new

        answer: Answer
        answer, is_new = await self._run_loop.submit(item, **_who(command))
        if not any(result.word == RUNNING for result in answer.results):
            return answer
        results = tuple([await self._finish(command, result, is_new) for result in answer.results])
        message = f"{results[0].task}: {results[0].sentence}" if len(results) == 1 else answer.message
        return Answer(any(result.word == DONE for result in results), message, results)

    async def _finish(self, command: Command, result: Result, is_new: bool) -> Result:
        """Do to a target that runs what only its executor can do."""
        if result.word != RUNNING:
            return result
        done, sentence = await FINISHERS[command.act](self, command, result, is_new)
        return Result(result.task, DONE if done else REFUSED, sentence)

    async def _end(self, command: Command, result: Result, is_new: bool) -> tuple[bool, str]:
        """Its CANCELLED comes when its process is gone; the loop began to end it when it saw the event."""
        row = self._run_loop.fold.tasks[result.task]
        ending = row.state is TaskState.CANCELLED or row.cancel_requested_at is not None
        return ending, result.sentence if ending else f"it ended before: now {row.state}"

    async def _extend(self, command: Command, result: Result, is_new: bool) -> tuple[bool, str]:
        """Its deadline is on a clock of this process alone; that it has moved is told afterwards."""
        if not is_new:  # the same command again must not give the time twice
            return True, "it was given more time when this came first"
        seconds = float(command.options["seconds"])
        sitter = self._run_loop.desk.extend(result.task, seconds)
        if sitter is None or sitter.timeout is None:
            return False, "its deadline has just passed, or its process is only starting"
        claim, timeout = sitter.claim, sitter.timeout
        await self._run_loop.submit(lambda journal: claims.extend(journal, claim, timeout, seconds), **_who(command))
        return True, f"{spoken(round(seconds * 1e6))} more: {spoken(round(timeout * 1e6))} in all"

    # --- What only a living executor can do ------------------------------------------------------------------------

    def _hello(self, message: Message, writer: asyncio.StreamWriter) -> Message:
        actor = str(message.get("actor") or "somebody")
        if writer not in self._present:
            self._present[writer] = actor
            self._tell_presence(OperatorNotice.ATTACH, actor)
        return {**self._self_portrait("hello"), "present": self.present}

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        actor = self._present.pop(writer, None)
        if actor is not None:
            self._tell_presence(OperatorNotice.DETACH, actor)
            self._run_loop.wake()

    def _tell_presence(self, what: str, actor: str) -> None:
        present = self.present
        run_id = self._run_loop.fold.run.run_id

        def item(journal: Journal) -> None:
            journal.actor = actor
            journal.emit(OperatorActed(what=what, present=present), run_id)

        self._run_loop.desk.write(item)

    def _ping(self, message: Message, writer: asyncio.StreamWriter) -> Message:
        return {**self._self_portrait("pong"), "pid": os.getpid()}

    def _self_portrait(self, message: str) -> Message:
        run_loop = self._run_loop
        trouble = run_loop.storage_trouble
        return {"ok": True, "message": message, "executor_id": run_loop.executor_id, "storage_trouble": trouble}

    async def _stop(self, command: Command) -> Answer:
        how = str(command.options.get("how") or "drain")
        if how not in ("drain", "now"):
            return Answer(False, f"stop how? 'drain' or 'now', not {how!r}")
        self._run_loop.stop(how)
        running = len(self._run_loop.desk.sitters)
        word = "ending" if how == "now" else "waiting for"
        return Answer(True, f"stopping: {word} {running} running task{'' if running == 1 else 's'}")

    async def _breaker(self, command: Command) -> Answer:
        """Set it in the memory of this process, which writes it to the state file; once for each id."""
        earlier: RecordedAct | None
        earlier = await self._run_loop.submit(lambda journal: find_act(journal.connection, command.id))
        if earlier is not None:
            return earlier.answer
        downstream, how = str(command.options.get("downstream")), str(command.options.get("how"))
        try:
            message = self._run_loop.downstreams.act(downstream, how, command.actor or "an operator")
        except RefusedError as error:
            return Answer(False, str(error))
        answer, run_id = Answer(True, message), self._run_loop.fold.run.run_id
        acted = OperatorActed(
            command.act,
            dict(command.options),
            answer.as_json(),
            what=OperatorNotice.BREAKER,
            downstream=downstream,
            how=how,
        )

        def item(journal: Journal) -> None:
            journal.emit(acted, run_id)

        await self._run_loop.submit(item, **_who(command))
        self._run_loop.wake()
        return answer


def _who(command: Command) -> dict[str, Any]:
    return {"actor": command.actor, "reason": command.reason or None, "command_id": command.id or None}


#: What is done to a running task once the act that wants it is committed: (done, sentence).
FINISHERS = {
    "cancel": CommandServer._end,
    "extend": CommandServer._extend,
}

#: Acts that the executor applies to what it has in memory; all others are a transaction of ``statefile/changes/operator_actions.py``.
HANDLERS: dict[str, Callable[[CommandServer, Command], Awaitable[Answer]]] = {
    "stop": CommandServer._stop,
    "breaker": CommandServer._breaker,
}

#: What is asked for by those who attend, and is no act.
_ATTENDING = {
    "hello": CommandServer._hello,
    "ping": CommandServer._ping,
}

_WRITES_NOTHING = frozenset(["stop"])
