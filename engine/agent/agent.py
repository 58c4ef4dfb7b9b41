"""The agent that ssh carries: reads a state file on its host, sends its events, and passes on commands of operators.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Requests come on standard input, one JSON object a line: ``{"id", "ask", ...}``. On standard output, a marker line ends
the noise of the login; what follows is one compressed stream of JSON lines: ``{"hello"}`` or ``{"refused"}`` first,
then a response ``{"id", "ok": value}`` or ``{"id", "error": [kind, sentence]}`` to each request, and without a request
``{"events"}``, ``{"beat"}`` and ``{"reset"}``. The agent ends when its input ends.
"""

import binascii
import json
import os
import select
import sqlite3
import sys
import threading
import time
import zlib
from queue import Queue
from typing import Any, Callable, Dict, List, Optional

from ..domain.events import OWN_INSTANT, Json, JsonObject
from ..domain.rows import ExecutorState, Health
from ..errors import RedriveError, SnapshotNeeded, StateFileError
from ..statefile.copies import living_original
from ..statefile.health_file import read_health, stuck_run
from ..statefile.lock_file import executor_of, heartbeat_at, service_pid
from ..statefile.opening import reading_error
from ..statefile.paths import named_path
from ..statefile.reader import IDLE_SECONDS, Reader, SqlRow, WriteNotices
from . import executor_socket

POLL_SECONDS = 0.1  # without inotify
BUSY_POLL_SECONDS = 0.03  # for BUSY_SECONDS after a notice or an event: the next one often belongs to the same act
BUSY_SECONDS = 2.0
BEAT_SECONDS = 5.0
PRESENCE_SECONDS = 2.0  # between two checks whether an executor has started, or who else is attached
SILENT_SECONDS = 4.0  # an executor that has not touched its lock for so long is reported at once
GONE_POLL_SECONDS = 1.0  # while the file cannot be read
BATCH_EVENTS = 500
PACE_SECONDS, PACE_SECONDS_MAX = 0.1, 1.0  # for which events are gathered: a screen is drawn each 0.1 s
PACE_ROUND_TRIPS = 2  # on a slow line
STREAM_PACES = 3  # so much longer while one batch follows another: a third fewer bytes
UNACKNOWLEDGED_EVENTS = 5000  # more would pile up in the memory of the console
LINE_BYTES_MAX = 4 * 1024 * 1024  # of a request: an executor takes no longer command
COMMANDS_MAX = 99  # that wait for another thread

AgentRequest = Dict[str, Any]


class Output(object):
    """A compressed stream of JSON lines; whole messages from any thread."""

    def __init__(self, descriptor: int, marker: str) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._compressor = zlib.compressobj(9)
        self._write(marker.encode() + b"\n")

    def send(self, message: JsonObject) -> None:
        """Raises OSError when the other end is closed."""
        line = json.dumps(message, separators=(",", ":"), default=repr).encode() + b"\n"
        with self._lock:
            self._write(self._compressor.compress(line) + self._compressor.flush(zlib.Z_SYNC_FLUSH))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class Input(object):
    """Requests, each a line of JSON."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def read(self) -> Optional[List[bytes]]:
        """The lines that have arrived, None at the end. Call when the descriptor is readable."""
        piece = os.read(self.descriptor, 65536)
        if not piece:
            return None
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LINE_BYTES_MAX:
            sys.exit("a request is too long")
        return lines


class WakeupPipe(object):
    """Lets another thread end the wait of the main loop."""

    def __init__(self) -> None:
        self.descriptor, self._other_end = os.pipe()
        os.set_blocking(self._other_end, False)

    def wake(self) -> None:
        """Never blocks; a full pipe wakes the loop as well."""
        try:
            os.write(self._other_end, b"!")
        except BlockingIOError:
            pass

    def clear(self) -> None:
        """Call when the descriptor is readable."""
        os.read(self.descriptor, 4096)


class EventStream(object):
    """Reads events from ``since`` on, as fast as the console acknowledges them."""

    def __init__(self) -> None:
        self.sent: Optional[int] = None  # seq of the latest event sent; None while the console does not follow
        self._acknowledged = 0
        self._has_more = False

    def follow(self, since: int) -> None:
        """Start after ``since``."""
        self.sent = self._acknowledged = since
        self._has_more = True

    def acknowledge(self, seq: int) -> None:
        """The console has handled the events up to ``seq``."""
        self._acknowledged = seq

    def stop(self) -> None:
        """Read no events until the next ``follow``."""
        self.sent = None

    @property
    def is_ready(self) -> bool:
        """True if there are events to read at once."""
        return self.sent is not None and self._has_more and self.sent - self._acknowledged < UNACKNOWLEDGED_EVENTS

    def read_batch(self, reader: Reader, has_changed: bool) -> List[SqlRow]:
        """The next events, an empty list if there are none. Raises SnapshotNeeded."""
        self._has_more = self._has_more or has_changed
        if self.sent is None or not self.is_ready:
            return []
        rows = reader.events(self.sent, BATCH_EVENTS)
        self._has_more = len(rows) == BATCH_EVENTS
        if rows:
            self.sent = rows[-1][0]
        return rows


class Agent(object):
    """The loop of the agent: requests, changes of the file, signs of life."""

    def __init__(self, settings: Dict[str, Any], sources: Dict[str, str], source: Input, output: Output) -> None:
        self._sources = sources
        self._input = source
        self._output = output
        self._wakeup = WakeupPipe()
        self._settings = settings
        self.path = ""  # of the file that is open
        self._reader: Reader
        self._notices: WriteNotices
        self._executor_connection: executor_socket.ExecutorConnection
        self._events = EventStream()
        self._next_presence = 0.0
        self._commands: "Queue[AgentRequest]" = Queue(COMMANDS_MAX)
        self._busy_until = 0.0
        self._next_beat = 0.0
        self._pace_seconds = self._gather_seconds = PACE_SECONDS
        self._sent_at = 0.0
        self._last_status: Optional[List[object]] = None
        self._problem: Optional[str] = None
        self._health: Optional[Health] = None

    def open(self, settings: Dict[str, Any]) -> JsonObject:
        """Open a file, in place of the one before. Return what the console knows it by. Raises StateFileError."""
        if self.path:
            for one in (self._reader, self._notices, self._executor_connection):
                one.close()
        whole = settings.get("whole")  # of an address with @ in its path: a file of the whole name wins
        is_whole = whole is not None and os.path.exists(named_path(str(whole)) or "")
        self.path = named_path(str(whole if is_whole else settings["path"])) or _default_path()
        self._reader = Reader(self.path)
        self._notices = WriteNotices(self.path)
        self._executor_connection = executor_socket.ExecutorConnection(self.path)
        self._reader.open()
        self._problem, self._next_presence = None, 0.0
        answers = [self._answer(what, options) for what, options in settings.get("queries", ())]
        opened = {"path": self.path, "whole": is_whole, "uuid": self._reader.uuid, "now": _now_us()}  # type: JsonObject
        return dict(opened, answers=answers, beat=self._beat())

    def _answer(self, what: str, options: Dict[str, Any]) -> JsonObject:
        """Answer a query of READS that came with the opening of the file."""
        try:
            return {"ok": self._reader.read(what, options)}
        except Exception as error:
            return {"error": _described(self.path, error)}

    def serve(self) -> None:
        """Run until the input ends or the output is closed."""
        threading.Thread(target=self._apply_commands, daemon=True).start()
        while True:
            ready = self._wait()
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
            if self._input.descriptor in ready and not self.receive():
                return
            if self._executor_connection.descriptor in ready:
                self._executor_connection.receive()
            self._poll()
            if self._is_beat_due():
                self._output.send({"beat": self._beat()})

    def receive(self) -> bool:
        """Handle the requests that have arrived, or wait for one. False at the end of the input."""
        lines = self._input.read()
        for line in lines or ():
            self._handle(line)
        return lines is not None

    def _wait(self) -> List[int]:
        watched = [self._input.descriptor, self._wakeup.descriptor, self._executor_connection.descriptor]
        delay = POLL_SECONDS
        if self._problem is not None:
            delay = GONE_POLL_SECONDS
        elif self._events.is_ready:
            delay = 0.0
        elif time.monotonic() < self._busy_until:
            delay = BUSY_POLL_SECONDS
        elif self._notices.watch():
            delay = IDLE_SECONDS
            watched.append(self._notices.descriptor)
        ready = select.select([one for one in watched if one is not None], [], [], delay)[0]
        if self._notices.descriptor in ready:
            self._notices.clear()
            self._busy_until = time.monotonic() + BUSY_SECONDS
        return ready

    # --- Sent without a request -------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Send what is new, once in two round trips: a line carries few large batches cheaper than many small ones."""
        if not self._events.is_ready and time.monotonic() < self._sent_at + self._gather_seconds:
            return
        try:
            rows = self._events.read_batch(self._reader, self._reader.changed())
            self._problem = None
        except SnapshotNeeded as needed:
            self._events.stop()
            self._output.send({"reset": str(needed), "uuid": self._reader.uuid})
            return
        except (StateFileError, sqlite3.Error, OverflowError) as error:
            self._problem = str(error)
            if not (isinstance(error, sqlite3.OperationalError) and "locked" in str(error)):
                self._reader.close()
            return
        if rows:
            longest = min(STREAM_PACES * self._pace_seconds, PACE_SECONDS_MAX)
            follows = time.monotonic() < self._sent_at + 2 * longest
            self._gather_seconds = min(2 * self._gather_seconds, longest) if follows else self._pace_seconds
            self._sent_at = time.monotonic()
            self._busy_until = self._sent_at + BUSY_SECONDS
            self._output.send(_packed(rows))

    def _is_beat_due(self) -> bool:
        """A sign of life is sent every BEAT_SECONDS, and at once when its content changes."""
        return time.monotonic() >= self._next_beat or self._status() != self._last_status

    def _beat(self) -> JsonObject:
        self._last_status = self._status()
        self._next_beat = time.monotonic() + BEAT_SECONDS
        pid = service_pid(self.path)
        return {
            "now": _now_us(),
            "path": self.path,
            "problem": self._problem,
            "read_only": executor_socket.read_only_reason(self.path),
            "service_pid": pid,
            "stuck_run": None if pid is None else stuck_run(self.path),
            "health": self._health,
            "executor": self._executor(),
        }

    def _status(self) -> List[object]:
        """The facts whose change sends a sign of life at once."""
        now = time.monotonic()
        if now >= self._next_presence:
            self._next_presence = now + PRESENCE_SECONDS
            self._executor_connection.refresh()
            self._health = read_health(self.path)
        seen_at = heartbeat_at(self.path)
        is_silent = seen_at is None or _now_us() - seen_at > SILENT_SECONDS * 1000000
        return [self._is_attached(), is_silent, self._problem, self._health]

    def _is_attached(self) -> bool:
        return self._executor_connection.descriptor is not None

    def _executor(self) -> Optional[ExecutorState]:
        if self._problem is not None:
            return None
        try:
            original = None if self._is_attached() else living_original(self._reader.connection, self.path)
            return executor_of(self.path, self._is_attached(), _now_us(), original)
        except (StateFileError, sqlite3.Error):
            return None  # the next poll reports the error

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _handle(self, line: bytes) -> None:
        request: AgentRequest = {}  # what is none gets an error as well
        try:
            request = dict(json.loads(line.decode()))
        except (ValueError, TypeError, RecursionError):
            pass
        if request.get("ask") == "send" and not self._commands.full():
            self._commands.put(request)  # another thread waits for the answer, so that events are sent meanwhile
        else:
            self._respond(request)

    def _respond(self, request: AgentRequest) -> None:
        """Whatever is wrong with a request, the next one gets its response."""
        try:
            value = _HANDLERS[request["ask"]](self, request)
            if "id" in request:
                self._output.send({"id": request["id"], "ok": value})
        except Exception as error:
            self._output.send({"id": request.get("id"), "error": _described(self.path, error)})

    def _clock(self, request: AgentRequest) -> int:
        return _now_us()

    def _file(self, request: AgentRequest) -> JsonObject:
        """Go on with another file of this host: a command reads several by one login."""
        return self.open(dict(self._settings, path=request["path"], queries=request["queries"]))

    def _follow(self, request: AgentRequest) -> None:
        if request["since"] is None:
            self._events.stop()
            return
        since = int(request["since"])
        self._events.follow(since)
        try:
            head = self._reader.last_seq_after(since)
        except (StateFileError, sqlite3.Error):
            head = since  # the next poll reports the error
        self._output.send({"following": head})

    def _pace(self, request: AgentRequest) -> None:
        seconds = PACE_ROUND_TRIPS * float(request["seconds"])
        self._pace_seconds = min(max(seconds, PACE_SECONDS), PACE_SECONDS_MAX)

    def _acknowledge(self, request: AgentRequest) -> None:
        self._events.acknowledge(int(request["seq"]))

    def _load(self, request: AgentRequest) -> None:
        """Add the sources of further modules, which the console sends before the first request that needs them."""
        self._sources.update(json.loads(zlib.decompress(binascii.a2b_base64(request["sources"])).decode()))

    def _read(self, request: AgentRequest) -> Json:
        value: Json = self._reader.read(request["what"], request["options"])
        return value

    def _usage(self, request: AgentRequest) -> Json:
        from .command_client import read_usage

        return read_usage(self.path)

    def _send(self, request: AgentRequest) -> object:
        from ..domain.acts import parse_command  # loaded with the first command
        from .command_client import send_blocking

        return send_blocking(self.path, parse_command(request["command"])).as_json()

    def _apply_commands(self) -> None:
        """The thread that waits for the answers to commands."""
        while True:
            request = self._commands.get()
            try:
                self._respond(request)
            except OSError:
                return  # the output is closed: the main thread ends as well
            self._wakeup.wake()


_HANDLERS: Dict[str, Callable[[Agent, AgentRequest], Any]] = {
    "clock": Agent._clock,
    "file": Agent._file,
    "follow": Agent._follow,
    "acknowledge": Agent._acknowledge,
    "pace": Agent._pace,
    "load": Agent._load,
    "read": Agent._read,
    "usage": Agent._usage,
    "send": Agent._send,
}


def _packed(rows: List[SqlRow]) -> JsonObject:
    """Events in half the bytes: numbers and instants as differences to the row before."""
    packed, seq, at = [], 0, 0
    for row in rows:
        if not isinstance(row[1], int):  # of a file that no redrive has written: its reader says so
            return {"events": rows}
        payload = row[-1]
        if isinstance(payload, str):
            payload = payload.replace(str(row[1]), OWN_INSTANT)
        packed.append([row[0] - seq, row[1] - at] + list(row[2:-1]) + [payload])
        seq, at = row[0], row[1]
    return {"packed": packed}


def _now_us() -> int:
    return int(time.time() * 1000000)


def _described(path: str, error: Exception) -> List[str]:
    """The kind and the sentence of an error, as the console reads them."""
    shown = reading_error(path, error) if isinstance(error, sqlite3.Error) else error
    return [type(shown).__name__, str(shown)]


def _default_path() -> str:
    from ..statefile.state_files import default_path  # sent only if the user names no file

    return default_path()


def main(settings: Dict[str, Any], sources: Dict[str, str]) -> None:
    """Run until the client leaves. ``settings``: marker, path; ``list``: send the files, and again
    when they change, until the first request: it names the one to open."""
    output = Output(sys.stdout.fileno(), settings["marker"])
    try:
        agent = Agent(settings, sources, Input(sys.stdin.fileno()), output)
        if settings.get("list"):
            from ..statefile.state_files import watch  # sent only with this setting

            watch(output.send, sys.stdin.fileno())
            while not agent.path:
                if not agent.receive():
                    return
        else:
            output.send({"hello": agent.open(settings)})
        agent.serve()
    except (RedriveError, sqlite3.Error, ValueError) as error:
        output.send({"refused": _described(str(settings.get("path") or "the state file"), error)})
    except ConnectionError:
        pass  # the console has left
