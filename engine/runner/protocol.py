"""The frames between executor, zygote and attempts: msgpack after a 4-byte length, which has a limit.

Control frames travel on the zygote's socket. Attempt frames travel on a pipe of the attempt, never on its stdout. The
limit is needed because a task can write to any descriptor, and stray bytes must not be read as a length of 4 GB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from resource import struct_rusage
from typing import Annotated, Any, TypedDict

import msgspec

from ..core.outcome import RESULT_BYTES_MAX, Outcome
from ..core.spec import TaskSpec
from ..domain.event_payloads import AttemptRetry, ExecutorChanged, Payload

CONTROL_LIMIT = 256 * 1024 * 1024  # bytes: a flow of 100,000 tasks is about 40 MB
RESULT_LIMIT = RESULT_BYTES_MAX
NO_INPUTS = "{}"
SMALL_LIMIT = 64 * 1024  # bytes of a checkpoint, which is in the row of its task, and of a result on a line of output
ATTEMPT_LIMIT = RESULT_LIMIT + 1024 * 1024
TEXT_LIMIT = 64 * 1024  # characters of a traceback or a message
SWEEP_SECONDS = 1.0  # how long the report of an exit waits for the death of strays
COUNT_MAX = 2**63 - 1  # the largest number that the state file can hold

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class ProtocolError(Exception):
    """The received bytes are not a frame."""


class AttemptOrder(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The inputs of one attempt.

    ``inputs``: the results of the parents by name, as JSON text, which keeps integers of any size.
    ``missing``: (name, why) of the parents without a result, because they did not succeed.
    ``only_rows``: (key, payload) of the requeued quarantined rows; empty: the attempt processes all rows.
    ``earlier_result``: with ``only_rows``, the JSON that the task returned before.
    ``checkpoint``: the JSON that an earlier attempt of this generation stored.
    ``folder``: where a command finds the results of its parents and leaves its own; set by the runner.
    ``typed``: the parameters that are texts here and that a function gets in another type, each with its name.
    ``date``: the day of the run, as ``YYYY-MM-DD``.
    ``streams``: of a command: how many streams of its caller it writes to. With 2 its stdout is the result pipe, apart
    from its stderr; with 1 both are one; with 0 its output goes to the log alone.
    ``stdin``: a path that a command without an input of its own reads; empty: none.
    ``cgroup``: the folder of the cgroup that the attempt enters first; empty: it stays in that of the executor.
    """

    run_id: str
    task: str
    attempt: int
    generation: int
    spec: TaskSpec
    params: Mapping[str, Any] = {}
    inputs: str = NO_INPUTS
    idempotency_key: str = ""
    rules: tuple[Mapping[str, Any], ...] = ()
    only_rows: tuple[tuple[str, str | None], ...] = ()
    checkpoint: str | None = None
    earlier_result: str | None = None
    missing: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    typed: Mapping[str, str] = {}
    date: str = ""
    streams: int = 0
    stdin: str = ""
    cgroup: str = ""


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all frames: the class name is the tag."""


# --- Executor to zygote -----------------------------------------------------------------------------------------------


class Open(Frame, frozen=True):
    """Import this flow: the first frame, sent once. ``target``: ``local.py[:name]``; a flow in memory has none.

    ``sources``: the files of a flow of another host, by path, which are imported in place of those on the disk. The
    zygote then ends with its attempts after ``LEASE_SECONDS`` without a Ping: a stopped worker enforces no lease.
    ``variables``: of the environment, for the import and all attempts.
    """

    target: str = ""
    params: Mapping[str, Any] = {}
    remembered: Mapping[str, Any] = {}  # the stored parameters of the run; those that the flow has no more are left out
    python_path: Sequence[str] = ()  # folders of the PYTHONPATH with which the run was started, which are added
    sources: Mapping[str, bytes] = {}
    variables: Mapping[str, str] = {}


class Start(Frame, frozen=True):
    """Fork an attempt, or run one in a worker or a thread of a host. Responses refer to it by ``number``."""

    number: int
    order: msgspec.Raw  # an AttemptOrder, which the attempt decodes
    variables: dict[bytes, bytes] = {}  # of its environment; a thread has that of its host


class StartShared(Frame, frozen=True):
    """Fork a process that runs attempts, each sent to it as a Start: one after another, or in threads of a host."""

    number: int
    is_thread_host: bool = False


class Ping(Frame, frozen=True):
    """Answer with Pong."""


# --- Zygote to executor -----------------------------------------------------------------------------------------------


class FlowOpened(Frame, frozen=True):
    """The flow is imported: its FlowSpec as JSON, and warnings.

    ``imports_per_process``: each attempt imports the flow, because the import leaves threads running.
    ``checked``: what ``check/isolated.py`` has found besides.
    """

    spec: bytes
    project_root: str
    warnings: list[str]
    imports_per_process: bool
    checked: bytes = b""


class OpenFailed(Frame, frozen=True):
    """The import failed, or the flow is invalid."""

    error: str  # a class name of errors.py
    message: str
    traceback: str
    cycle: list[str]


class Started(Frame, frozen=True):
    """The process exists. Four descriptors come with this frame: pidfd, results, output, stack.

    Of the program of a command, from its worker: its pidfd, and the pipe of its stdout if that is apart.
    """

    number: int  # 0: the program of the attempt of a worker
    pid: int
    start_ticks: int
    forked_at: float  # seconds on the monotonic clock, which all processes share


class Refused(Frame, frozen=True):
    """The process could not be forked: out of processes, memory or descriptors."""

    number: int
    message: str


class Exited(Frame, frozen=True):
    """The process was reaped. Of the processes that it left behind only ``survivors`` are alive."""

    number: int  # 0: an attempt of a worker, which reports its end
    exit_code: int | None
    signal: int | None
    max_rss_kb: int
    cpu_user_us: int
    cpu_system_us: int
    exited_at: float
    swept: list[int]
    survivors: list[int]

    @classmethod
    def of(cls, number: int, status: int, usage: struct_rusage) -> Exited:
        """Return the end of a process that was reaped now: its lists are filled while what it left dies."""
        code = os.waitstatus_to_exitcode(status)
        return cls(
            number,
            code if code >= 0 else None,
            -code if code < 0 else None,
            usage.ru_maxrss,
            round(usage.ru_utime * 1e6),
            round(usage.ru_stime * 1e6),
            time.monotonic(),
            [],
            [],
        )


class Pong(Frame, frozen=True):
    """The zygote serves its socket."""


# --- Zygote to itself -------------------------------------------------------------------------------------------------


class RestartState(Frame, frozen=True):
    """State that a zygote hands to itself when it re-executes without the flow: the request, and its response.

    ``sources``: the source files of the flow by path, as it has imported them.
    """

    request: Open
    opened: FlowOpened
    sources: Mapping[str, bytes]


# --- Executor to thread host ------------------------------------------------------------------------------------------


class CancelThread(Frame, frozen=True):
    """Set the thread's cancel token."""

    number: int


class DumpThreads(Frame, frozen=True):
    """Write the stacks of all threads to the stack pipe."""


# --- Attempt to executor ----------------------------------------------------------------------------------------------


class TaskBegan(Frame, frozen=True):
    """The function is about to be called. Sent by threads, and by processes that had to import the flow first."""

    at: float  # seconds on the monotonic clock
    ident: int  # identifies the thread in a dump of all stacks
    native: int = 0  # the kernel's number for it


class Exiting(Frame, frozen=True):
    """The task calls ``os._exit`` in a thread: the host process ends with this code, and all its attempts."""

    code: int


class Progressed(Frame, frozen=True):
    done: Count
    total: Count | None


class Heartbeat(Frame, frozen=True):
    """The task is alive."""


class Retried(Frame, frozen=True):
    """The code of the task retries a call inside the attempt."""

    data: dict[str, Any]


class BadRow(TypedDict):
    """A row that an attempt set aside."""

    row_key: str
    payload: str
    error: str
    fingerprint: str | None


class Quarantined(Frame, frozen=True):
    """A bad row. It is provisional until the attempt succeeds, else a retried task would store it twice."""

    row: BadRow


class Checkpointed(Frame, frozen=True):
    """State for the next attempt, as JSON."""

    value: str


class Ended(Frame, frozen=True):
    """The final frame of a function. CANCELLED: SIGTERM came, and the ``finally`` blocks have run."""

    outcome: Outcome


# --- Thread host to executor ------------------------------------------------------------------------------------------


class ThreadOutput(Frame, frozen=True):
    """The attempt writes its first output. One descriptor comes with this frame: the pipe."""


class ThreadEnded(Frame, frozen=True):
    """The thread of the attempt has ended."""


class FromThread(Frame, frozen=True):
    """A frame of the attempt ``number``."""

    number: int
    frame: ThreadFrame


# --- Worker to executor -----------------------------------------------------------------------------------------------


class WorkerChecked(Frame, frozen=True):
    """The worker has checked itself, after a success or the end of a program.

    ``findings``: what the attempt left behind; empty: the worker waits for its next Start, else it ends. The CPU times
    are those of the worker since its fork.
    ``exited``: how the program of a command ended, or as if the process of the function had ended with its success.
    """

    findings: list[str]
    cpu_user_us: int
    cpu_system_us: int
    exited: Exited


AttemptFrame = TaskBegan | Progressed | Heartbeat | Retried | Quarantined | Checkpointed | Ended
ThreadFrame = AttemptFrame | Exiting | ThreadOutput | ThreadEnded
WorkerFrame = AttemptFrame | Started | WorkerChecked
ExecutorFrame = Open | Start | StartShared | Ping
ZygoteFrame = FlowOpened | OpenFailed | Started | Refused | Exited | Pong
HostFrame = Start | CancelThread | DumpThreads

_encoder = msgspec.msgpack.Encoder()
decode_order = msgspec.msgpack.Decoder(AttemptOrder).decode
decode_attempt_frame = msgspec.msgpack.Decoder(AttemptFrame).decode
decode_worker_frame = msgspec.msgpack.Decoder(WorkerFrame).decode
decode_executor_frame = msgspec.msgpack.Decoder(ExecutorFrame).decode
decode_zygote_frame = msgspec.msgpack.Decoder(ZygoteFrame).decode
decode_restart_state = msgspec.msgpack.Decoder(RestartState).decode
decode_thread_frame = msgspec.msgpack.Decoder(FromThread).decode
decode_host_frame = msgspec.msgpack.Decoder(HostFrame).decode


def encode_order(order: AttemptOrder) -> msgspec.Raw:
    """Return the bytes of an order, for a ``Start``."""
    return msgspec.Raw(_encoder.encode(order))


def encode(frame: Frame) -> bytes:
    """Return the length and the payload of a frame."""
    payload = _encoder.encode(frame)
    return len(payload).to_bytes(4, "big") + payload


def clean_text(text: str, limit: int) -> str:
    """Return ``text`` with lone surrogates escaped, and its middle cut if it is longer than ``limit``."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2 - 20
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data`` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class FrameReader:
    """Splits a stream into payloads. Buffers at most one unfinished frame."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add data and return the payloads that are complete. Raises ProtocolError if a length is over the limit."""
        buffer = self._buffer
        buffer += data
        payloads = []
        position = 0
        while len(buffer) - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if length > self._limit:
                raise ProtocolError(f"a frame of {length} bytes is over the bound of {self._limit}")
            if len(buffer) - position - 4 < length:
                break
            payloads.append(bytes(buffer[position + 4 : position + 4 + length]))
            position += 4 + length
        del buffer[:position]
        return payloads


# --- The interfaces between the executor and the runner --------------------------------------------------------------
#
# An attempt reports to its ``AttemptListener`` and is controlled as ``AttemptControls``; a runner reports what
# concerns no single attempt to its ``RunnerListener``.


class AttemptListener:
    """Receives the reports of one attempt, in the event loop and in order; ``ended`` is the last one.

    A subclass handles those that it needs.
    """

    def started(self, pid: int, start_ticks: int | None) -> None:
        """The process exists."""

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None:
        """The process exists on another host."""

    def output(self, data: bytes) -> None:
        """The task wrote to stdout or stderr. Call ``pause_output`` on the attempt when this comes too fast."""

    def written(self, stream: int, data: bytes) -> None:
        """A command with ``streams`` wrote to its stdout (1) or stderr (2): as it is, also if it has a secret."""

    def progress(self, done: int, total: int | None) -> None:
        """The task reported its progress; the same numbers again are a heartbeat."""

    def retried(self, retry: AttemptRetry) -> None:
        """The code of the task retried a call."""

    def quarantined(self, row: BadRow) -> None:
        """The task set a row aside; provisional until the attempt succeeds."""

    def checkpointed(self, value: str) -> None:
        """The task stored JSON for the next attempt."""

    def step(self, payload: Payload) -> None:
        """A step of the escalation happened (deadline, stack, SIGTERM, SIGKILL, ...); ``payload``: of its event."""

    def ended(self, outcome: Outcome) -> None:
        """The attempt is over, and none of its processes lives."""


def ignore(*report: object) -> None:
    """Do nothing: the default of each report."""


class RunnerListener(msgspec.Struct, frozen=True):
    """Functions for the reports of a runner, called in the event loop.

    Attributes:
        zygote_lost: the zygote died, its attempts have ended as LOST, and a flow may be opened again.
        slot_freed: a slot that a leaked thread held may be free.
        executor_changed: gets the payload of an event: a zygote, a host of threads or a worker ended.
    """

    zygote_lost: Callable[[], object] = ignore
    slot_freed: Callable[[], object] = ignore
    executor_changed: Callable[[ExecutorChanged], object] = ignore


class AttemptControls:
    """The controls of an attempt. Here of one that has ended: none has an effect."""

    is_terminating = False  # SIGTERM was sent, or the cancel token set

    def cancel(self, reason: str) -> bool:
        """Start the escalation now. Returns False if the attempt is ending already."""
        return False

    def interrupt(self) -> bool:
        """Do what ``cancel`` does, because the executor stops."""
        return self.cancel("the executor stops")

    def extend(self, seconds: float) -> bool:
        """Move the deadline. Returns False if there is none, or it has passed."""
        return False

    def pause_output(self) -> None:
        """Stop reading the pipes: the task blocks once one of them is full."""

    def resume_output(self) -> None:
        """Read the pipes again."""

    def close_stdout(self) -> None:
        """Read the stdout of a command with ``streams`` no more: SIGPIPE ends it when it writes again."""
