"""What ssh carries: answers questions about a state file and sends its events, from the host where the file lives.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Commands come on standard input, one JSON object a line: ``{"id", "ask", ...}``. On standard output, after a marker line
(whatever came before it is the noise of a login), everything is one compressed stream of JSON lines: ``{"hello"}`` or
``{"refused"}`` first, then ``{"id", "ok": value}`` or ``{"id", "error": [kind, sentence]}`` for what was asked, and
unasked ``{"events"}``, ``{"beat"}``, ``{"reset"}``. The agent leaves when its input ends, which is how it learns that
nobody is there any more.
"""

import json
import os
import select
import sqlite3
import sys
import threading
import time
import zlib
from importlib import import_module
from queue import Queue
from typing import Any, Callable, Dict, List, Optional

from ..errors import RedriveError, SnapshotNeeded, StateFileError
from ..statefile import queries
from ..statefile.default_paths import resolve
from ..statefile.reader import Reader
from . import command_client

POLL_SECONDS = 0.1
BUSY_POLL_SECONDS = 0.03  # for BUSY_SECONDS after something came: what comes next is about the same act
BUSY_SECONDS = 2.0
BEAT_SECONDS = 5.0
GREET_SECONDS = 2.0  # between two looks whether an executor has come, or who else is attached
SILENT_SECONDS = 4.0  # an executor that has not touched its lock for so long is worth a word at once
GONE_POLL_SECONDS = 1.0  # while the file cannot be read
BATCH_EVENTS = 500
UNTAKEN_EVENTS = 5000  # sent and not yet taken: more would wait in memory over there


class Output(object):
    """One compressed stream of JSON lines; whole messages from any thread."""

    def __init__(self, descriptor: int, marker: str) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._packer = zlib.compressobj(6)
        self._write(marker.encode() + b"\n")

    def send(self, message: Dict[str, Any]) -> None:
        """Raises OSError when nobody reads any more."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._write(self._packer.compress(line) + self._packer.flush(zlib.Z_SYNC_FLUSH))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class Input(object):
    """Commands as they come, line by line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def read(self) -> Optional[List[Dict[str, Any]]]:
        """What has come, None at the end. Call when the descriptor is readable."""
        piece = os.read(self.descriptor, 65536)
        if not piece:
            return None
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [json.loads(line.decode()) for line in lines]


class Bell(object):
    """Lets another thread end the main loop's wait."""

    def __init__(self) -> None:
        self.descriptor, self._other_end = os.pipe()
        os.set_blocking(self._other_end, False)

    def ring(self) -> None:
        """Never waits; a bell that was not heard yet is enough."""
        try:
            os.write(self._other_end, b"!")
        except BlockingIOError:
            pass

    def quieten(self) -> None:
        """Call when the descriptor is readable."""
        os.read(self.descriptor, 4096)


class Feed(object):
    """Events from ``since`` on, as fast as they are taken."""

    def __init__(self) -> None:
        self.sent: Optional[int] = None  # None: nobody follows
        self._taken = 0
        self._more = False

    def follow(self, since: int) -> None:
        """Begin after ``since``."""
        self.sent = self._taken = since
        self._more = True

    def take(self, seq: int) -> None:
        """They have handled what came up to ``seq``."""
        self._taken = seq

    def stop(self) -> None:
        """Until the next ``follow``."""
        self.sent = None

    @property
    def hungry(self) -> bool:
        """True if there is more to read at once."""
        return self.sent is not None and self._more and self._has_room

    @property
    def _has_room(self) -> bool:
        return self.sent is not None and self.sent - self._taken < UNTAKEN_EVENTS

    def read(self, reader: Reader, changed: bool) -> List[Any]:
        """The next batch, empty when there is none. Raises SnapshotNeeded."""
        self._more = self._more or changed
        if not self.hungry:
            return []
        assert self.sent is not None
        rows = reader.events(self.sent, BATCH_EVENTS)
        self._more = len(rows) == BATCH_EVENTS
        if rows:
            self.sent = rows[-1][0]
        return rows


class Agent(object):
    """One loop: commands, changes of the file, signs of life."""

    def __init__(self, settings: Dict[str, Any], sources: Dict[str, str], source: Input, output: Output) -> None:
        self._sources = sources
        self._input = source
        self._output = output
        self._bell = Bell()
        self._path = resolve(settings["path"])
        self._reader = Reader(self._path)
        self._feed = Feed()
        self._attendance = command_client.Attendance(self._path, str(settings["actor"]))
        self._next_greeting = 0.0
        self._commands: "Queue[Dict[str, Any]]" = Queue()
        self._busy_until = 0.0
        self._next_beat = 0.0
        self._told: Optional[List[Any]] = None
        self._trouble: Optional[str] = None

    def hello(self) -> None:
        """The first message: what was found. Raises StateFileError."""
        self._reader.open()
        self._output.send({"hello": {"path": self._path, "uuid": self._reader.uuid}})
        threading.Thread(target=self._apply_commands, daemon=True).start()

    def serve(self) -> None:
        """Until the input ends or nobody reads the output."""
        self._beat()  # before any answer: whoever asks one question and leaves learns how the executor is
        while True:
            ready = self._wait()
            if self._bell.descriptor in ready:
                self._bell.quieten()
            if self._input.descriptor in ready:
                requests = self._input.read()
                if requests is None:
                    return
                for request in requests:
                    self._answer(request)
            if self._attendance.descriptor in ready:
                self._attendance.hear()
            self._poll()
            self._beat()

    def _wait(self) -> List[int]:
        now = time.monotonic()
        delay = BUSY_POLL_SECONDS if now < self._busy_until else POLL_SECONDS
        if self._trouble is not None:
            delay = GONE_POLL_SECONDS
        elif self._feed.hungry:
            delay = 0.0
        watched = [self._input.descriptor, self._bell.descriptor]
        if self._attendance.descriptor is not None:
            watched.append(self._attendance.descriptor)
        return select.select(watched, [], [], delay)[0]

    # --- What comes unasked -----------------------------------------------------------------------------------------

    def _poll(self) -> None:
        try:
            rows = self._feed.read(self._reader, self._reader.changed())
            self._trouble = None
        except SnapshotNeeded as needed:
            self._feed.stop()
            self._output.send({"reset": str(needed), "uuid": self._reader.uuid})
            return
        except (StateFileError, sqlite3.Error) as error:
            self._trouble = str(error)
            if not _is_only_busy(error):
                self._reader.close()
            return
        if rows:
            self._busy_until = time.monotonic() + BUSY_SECONDS
            self._output.send({"events": rows})

    def _beat(self) -> None:
        """A sign of life each few seconds, and at once when what it says has changed."""
        now = time.monotonic()
        if now >= self._next_greeting:
            self._next_greeting = now + GREET_SECONDS
            self._attendance.greet()
        told = [self._is_attended(), self._attendance.names, self._is_executor_silent(), self._trouble]
        told.append(self._attendance.storage_trouble)
        if now < self._next_beat and told == self._told:
            return
        self._told = told
        self._next_beat = now + BEAT_SECONDS
        facts = {"now": _now_us(), "trouble": self._trouble, "present": self._attendance.names}
        facts["read_only"] = command_client.why_read_only(self._path)
        facts["service_pid"] = command_client.service_pid(self._path)
        facts["storage_trouble"] = self._attendance.storage_trouble
        self._output.send({"beat": dict(facts, executor=self._executor())})

    def _is_attended(self) -> bool:
        return self._attendance.descriptor is not None

    def _is_executor_silent(self) -> bool:
        heartbeat_at = command_client.heartbeat_at(self._path)
        return heartbeat_at is None or _now_us() - heartbeat_at > SILENT_SECONDS * 1000000

    def _executor(self) -> Optional[queries.ExecutorState]:
        if self._trouble is not None:
            return None
        seen_at = command_client.heartbeat_at(self._path)
        try:
            return queries.executor(self._reader.connection, seen_at, self._is_attended(), _now_us())
        except (StateFileError, sqlite3.Error):
            return None  # the next poll says what is wrong

    # --- What was asked ---------------------------------------------------------------------------------------------

    def _answer(self, request: Dict[str, Any]) -> None:
        try:
            answer = _ANSWERS[request["ask"]](self, request)
        except (RedriveError, sqlite3.Error) as error:
            self._output.send(_refusal(request, error))
        else:
            if "id" in request and answer is not _LATER:
                self._output.send({"id": request["id"], "ok": answer})

    def _clock(self, request: Dict[str, Any]) -> Any:
        return _now_us()

    def _follow(self, request: Dict[str, Any]) -> Any:
        if request["since"] is None:
            self._feed.stop()
            return
        self._feed.follow(request["since"])
        try:
            head = self._reader.head()
        except (StateFileError, sqlite3.Error):
            head = request["since"]  # nothing more for now; the next poll says what is wrong
        self._output.send({"following": head})

    def _take(self, request: Dict[str, Any]) -> Any:
        self._feed.take(request["seq"])

    def _learn(self, request: Dict[str, Any]) -> Any:
        """Sources that only few need, sent when the first of them does."""
        self._sources.update(request["sources"])

    def _read(self, request: Dict[str, Any]) -> Any:
        """One of the functions that read, by its name; its module may have come only now."""
        module, function = _READS[request["what"]]
        read = getattr(import_module("..statefile." + module, __package__), function)
        return read(self._reader.connection, **request["options"])

    def _send(self, request: Dict[str, Any]) -> Any:
        self._commands.put(request)  # another thread waits for the answer: events go on meanwhile
        return _LATER

    def _apply_commands(self) -> None:
        """The life of the thread that commands wait in."""
        while True:
            request = self._commands.get()
            message = self._applied(request)
            try:
                self._output.send(message)
            except OSError:
                return  # nobody reads: the main thread leaves as well
            self._bell.ring()

    def _applied(self, request: Dict[str, Any]) -> Dict[str, Any]:
        try:
            from ..domain.command import command_of  # it came with the first command

            answer = command_client.send_blocking(self._path, command_of(request["command"]))
            return {"id": request["id"], "ok": answer.as_json()}
        except Exception as error:  # whatever it is, somebody waits for the answer
            return _refusal(request, error)


_LATER = object()

_ANSWERS: Dict[str, Callable[[Agent, Dict[str, Any]], Any]] = {
    "clock": Agent._clock,
    "follow": Agent._follow,
    "take": Agent._take,
    "learn": Agent._learn,
    "read": Agent._read,
    "send": Agent._send,
}

_READS = {
    "board": ("snapshot", "board"),
    "links": ("snapshot", "links"),
    "history": ("snapshot", "history"),
    "runs": ("queries", "runs"),
    "query": ("queries", "query_by_name"),
    "past": ("queries", "past"),
    "usual": ("duration_stats", "of_run"),
    "log": ("changes.logs", "read"),
    "attempt_text": ("changes.logs", "attempt_text"),
    "memory": ("on_demand.cause_history", "of_causes"),
    "failures": ("on_demand.failure_queries", "against"),
    "preview": ("changes.dry_run", "preview"),
}


def _refusal(request: Dict[str, Any], error: Exception) -> Dict[str, Any]:
    return {"id": request.get("id"), "error": [type(error).__name__, str(error)]}


def _now_us() -> int:
    return int(time.time() * 1000000)


def _is_only_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def main(settings: Dict[str, Any], sources: Dict[str, str]) -> None:
    """Run until the other side leaves. ``settings``: marker, path, actor; ``list`` asks for the default files only."""
    output = Output(sys.stdout.fileno(), settings["marker"])
    try:
        if settings.get("list"):
            from ..statefile.on_demand.offers import state_files  # sent only to whom it was asked of

            output.send({"hello": {"files": state_files()}})
            return
        agent = Agent(settings, sources, Input(sys.stdin.fileno()), output)
        agent.hello()
        agent.serve()
    except (RedriveError, sqlite3.Error) as error:
        output.send({"refused": [type(error).__name__, str(error)]})
    except (BrokenPipeError, ConnectionError):
        pass  # nobody is there any more
