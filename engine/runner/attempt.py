"""The executor's side of one attempt: handles its frames, and inspects and ends it at its deadline.

The deadline is driven by the executor's monotonic clock, never by the task (SPEC 000).

The attempt is inspected in the last quarter of a second before the deadline, so that the SIGTERM comes on time: its CPU
over the last ten seconds, its processes and what they wait for, then the stacks of its threads. The stacks come last,
because the signal that requests them interrupts a sleep.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from ..core.advice import Progress
from ..core.failures.hang import Autopsy, describe_hang, hang_report
from ..core.outcome import Outcome
from ..core.secret_mask import MaskedStream, SecretMask
from ..domain.event_codec import decode
from ..domain.event_payloads import AttemptDeadline, AttemptRetry, AttemptStack
from ..domain.events import EventKind
from ..errors import StateFileError
from . import protocol
from .frame_socket import FrameSocket
from .hang import stack
from .hang.autopsy import LINE_CHARACTERS, CpuSample, Subject, flat
from .hang.proc_sampler import ProcSampler
from .listener import AttemptListener, RunningAttempt
from .masked_listener import MaskedListener
from .oom import OutOfMemoryWatch
from .outcome_of_exit import Evidence, Force
from .pipes import DrainedPipe, Pipe
from .protocol import AttemptOrder

TAIL_BYTES = 4096
CPU_SECONDS = 10.0  # before the deadline: the window in which CPU use is measured
INSPECTION_SECONDS = 0.25  # before the deadline: when the inspection starts
INSPECTION_SHARE = 0.2  # of a timeout that is short: the inspection starts later
STACK_SHARE = 0.4  # of the inspection's time is reserved for the stacks
IMPORT_SECONDS = 300.0  # limit for the import of a flow

OnStarted = Callable[[protocol.Started, list[int]], None]
Fork = Callable[[OnStarted], Awaitable[None]]  # asks the zygote for a process


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """Values that all attempts of one runner share."""

    project_root: str | None
    oom: OutOfMemoryWatch
    on_over: Callable[[int], None]  # receives the number of an attempt that has ended
    imports_per_process: bool = False  # each attempt imports the flow first
    sampler: ProcSampler = field(default_factory=ProcSampler)
    mask: SecretMask = field(default_factory=SecretMask)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of inspecting a running attempt."""

    dump: str
    autopsy: Autopsy


class Attempt(RunningAttempt, ABC):
    """The common part of attempts in processes and in threads: frames, output, the deadline."""

    def __init__(
        self, number: int, order: AttemptOrder, listener: AttemptListener, shared: RunnerContext, started_at: float
    ) -> None:
        super().__init__(pid=0)
        self.number = number
        self.order = order
        self.exit_code: int | None = None  # announced by ``os._exit`` in a thread, which ends the host
        self._listener: AttemptListener = MaskedListener(listener, shared.mask)
        self._masked_output = MaskedStream(shared.mask)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._started_at = started_at
        self._ending: protocol.Ending | None = None
        self._force_requested = Force.NONE  # the escalation has begun
        self._force_applied = Force.NONE  # a signal was sent: a result that comes now is late
        self._reader = protocol.FrameReader(protocol.ATTEMPT_LIMIT)
        self._progress = Progress(0, None, 0.0, 0.0, 0)
        self._tail = b""
        self._output_at = started_at
        self._stack = ""
        self._hang = ""
        self._report = ""
        self._cpu_before = CpuSample(started_at)
        self._sampling: asyncio.Task[None] | None = None
        self._inspection: asyncio.Task[Inspection] | None = None
        self._done = self._loop.create_future()
        self._escalation: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._allowed = order.spec.timeout
        self._is_importing = shared.imports_per_process and order.spec.kind != "command"

    def _open(self, results: int, output: int) -> None:
        self._results: Pipe | DrainedPipe | FrameSocket = Pipe(results, self._handle_results, self._on_results_closed)
        self._output: Pipe | DrainedPipe = Pipe(output, self.handle_output)
        self._arm()

    # --- Frames and output --------------------------------------------------------------------------------------------

    def _handle_results(self, data: bytes) -> None:
        try:
            for payload in self._reader.feed(data):
                self._handle_frame(protocol.decode_attempt_frame(payload))
        except (protocol.ProtocolError, msgspec.DecodeError, StateFileError):
            self._results.close()  # the task wrote into the pipe: no frame can be found any more

    def _handle_frame(self, frame: protocol.AttemptFrame) -> None:
        match frame:
            case protocol.TaskBegan():
                self._handle_task_began(frame)
            case protocol.Exiting(code):
                self.exit_code = code
            case _ if self._done.done():
                return  # frames of a leaked thread
            case protocol.Progressed(done, total):
                self._handle_progress(done, total)
                self._listener.progress(done, total)
            case protocol.Heartbeat():
                self._listener.progress(self._progress.done, self._progress.total)
            case protocol.Retried(data):
                self._listener.retried(_retry_of(data))
            case protocol.Quarantined(row_key, payload, error, fingerprint):
                self._listener.quarantined(
                    {"row_key": row_key, "payload": payload, "error": error, "fingerprint": fingerprint}
                )
            case protocol.Checkpointed(value):
                self._listener.checkpointed(value)
            case _:
                self._handle_ending(frame)

    def _handle_progress(self, done: int, total: int | None) -> None:
        if (done, total) != (self._progress.done, self._progress.total):
            moved_at, before = self._loop.time() - self._started_at, self._progress
            first = (before.first_done, before.first_at) if before.reports else (done, moved_at)
            self._progress = Progress(done, total, 0.0, moved_at, before.reports + 1, *first)

    def _handle_ending(self, ending: protocol.Ending) -> None:
        in_time = self._force_applied is Force.NONE and self._ending is None
        if in_time:
            self._ending = ending
            self._disarm()
            self._cancel_inspection()
        self._on_ending(in_time)

    def handle_output(self, data: bytes) -> None:
        """Handle output on stdout or stderr."""
        self._output_at = self._loop.time()
        self._emit_output(self._masked_output.feed(data))

    def _emit_output(self, masked: bytes) -> None:
        if masked:
            self._tail = (self._tail + masked)[-TAIL_BYTES:]
            self._listener.output(masked)

    @abstractmethod
    def _on_ending(self, in_time: bool) -> None: ...

    @abstractmethod
    def _on_results_closed(self) -> None: ...

    def _handle_task_began(self, began: protocol.TaskBegan) -> None:
        """The import is over and the function is called: its own timeout starts."""
        if self._is_importing:
            self._is_importing = False
            self._started_at = began.at
            if self._force_requested is Force.NONE:
                self._arm()

    # --- Deadline and escalation --------------------------------------------------------------------------------------

    @property
    def _limit(self) -> float | None:
        """The seconds allowed: for the import first, then for the function."""
        return IMPORT_SECONDS if self._is_importing else self._allowed

    def _arm(self) -> None:
        self._disarm()
        self._cancel_inspection()
        if self._limit is None:
            return
        deadline = self._started_at + self._limit
        if deadline - CPU_SECONDS > self._loop.time():
            self._timer = self._loop.call_at(deadline - CPU_SECONDS, self._sample_cpu, deadline)
        else:
            self._arm_inspection(deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample_cpu(self, deadline: float) -> None:
        self._sampling = self._loop.create_task(self._store_cpu_sample())
        self._arm_inspection(deadline)

    async def _store_cpu_sample(self) -> None:
        self._cpu_before = await self._shared.sampler.sample(self._subject)

    def _arm_inspection(self, deadline: float) -> None:
        assert self._limit is not None
        lead = min(INSPECTION_SECONDS, self._limit * INSPECTION_SHARE)
        self._timer = self._loop.call_at(deadline - lead, self._begin_inspection, deadline)

    def _begin_inspection(self, deadline: float) -> None:
        self._timer = self._loop.call_at(deadline, self._deadline_passed)
        self._inspection = self._loop.create_task(self._inspect(deadline))

    def _cancel_inspection(self) -> None:
        if self._inspection is not None:
            self._inspection.cancel()
            self._inspection = None

    @property
    def _subject(self) -> Subject:
        """The processes to inspect. A fork shows the command line of the zygote, so the task's name replaces it."""
        return Subject(self.pid, line=None if self.order.spec.kind == "command" else f"task {self.order.task}")

    async def _inspect(self, until: float) -> Inspection:
        left = until - self._loop.time()
        autopsy = await self._shared.sampler.examine(self._subject, self._cpu_before, until - left * STACK_SHARE)
        return Inspection(await self.dump_stack(), autopsy)

    async def _inspected(self) -> Inspection:
        """Return the inspection from before the deadline; inspect now if there was none."""
        if self._inspection is None:
            self._inspection = self._loop.create_task(self._inspect(self._loop.time() + INSPECTION_SECONDS))
        return await self._inspection

    @abstractmethod
    async def dump_stack(self) -> str:
        """Return the stacks as text; empty if the attempt does not answer within 100 ms."""

    def _deadline_passed(self) -> None:
        self._results.drain()  # a result that is in the pipe by now is in time
        self._begin_escalation(Force.DEADLINE, "deadline")

    def cancel(self, reason: str) -> bool:
        """Start the escalation. Returns False if the attempt is ending already."""
        return self._begin_escalation(Force.CANCEL, reason)

    def extend(self, seconds: float) -> bool:
        """Move the deadline. Returns False if there is none, or it has passed."""
        if (
            self._allowed is None
            or self._force_requested is not Force.NONE
            or self._ending is not None
            or self._done.done()
        ):
            return False
        self._allowed += seconds
        self._arm()
        return True

    def _begin_escalation(self, force: Force, reason: str) -> bool:
        if self._ending is not None or self._force_requested is not Force.NONE or self._done.done():
            return False
        self._disarm()
        self._force_requested = force
        if force is Force.DEADLINE:
            self._listener.step(AttemptDeadline(self._limit))
        self._escalation = self._loop.create_task(self._escalate(reason))
        self._escalation.add_done_callback(raise_task_error)
        return True

    @abstractmethod
    async def _escalate(self, reason: str) -> None:
        """Run the escalation. It stops if a final frame came before a signal was sent."""

    def _emit_stack(self, seen: Inspection, kernel: str | None = None) -> None:
        frames = stack.frames(seen.dump, self._shared.project_root)
        self._stack = seen.dump
        self._hang = describe_hang(seen.autopsy, frames)
        *_, last_line = ["", *self._tail.decode("utf-8", "replace").strip().splitlines()]
        output, quiet = flat(last_line)[:LINE_CHARACTERS], self._loop.time() - self._output_at
        self._report = hang_report(replace(seen.autopsy, last_output=output, quiet_seconds=quiet))
        where = frames.where or self._hang or None
        self._listener.step(AttemptStack(where, self._hang or None, kernel))

    async def _ended_within(self, seconds: float) -> bool:
        await asyncio.wait([self._done], timeout=seconds)
        return bool(self._done.done())

    # --- The end ------------------------------------------------------------------------------------------------------

    def _evidence(
        self, usage: Mapping[str, object], exited: protocol.Exited | None = None, *, out_of_memory: bool = False
    ) -> Evidence:
        self._emit_output(self._masked_output.flush())
        return Evidence(
            ending=self._ending,
            force=self._force_applied,
            command=(self.order.spec.command or "") if self.order.spec.kind == "command" else None,
            timeout=self._limit,
            stack=self._stack,
            hang=self._hang,
            progress=replace(self._progress, elapsed=self._limit or 0.0) if self._progress.reports else None,
            output_tail=self._tail.decode("utf-8", "replace"),
            project_root=self._shared.project_root,
            rules=self.order.rules,
            memory_bound=self._shared.oom.bound,
            usage={**usage, **({"stack": seen} if (seen := self._stack + self._report) else {})},
            exit_code=None if exited is None else exited.exit_code,
            signal=None if exited is None else exited.signal,
            out_of_memory=out_of_memory,
        )

    def _finish(self, outcome: Outcome) -> None:
        self._disarm()
        self._cancel_inspection()
        if self._sampling is not None:
            self._sampling.cancel()
        self._done.set_result(None)
        self._release_output()
        self._emit_output(self._masked_output.flush())
        self._shared.on_over(self.number)
        self._listener.ended(outcome)

    def _release_output(self) -> None:
        self._output.close()

    def pause_output(self) -> None:
        """Stop reading the pipes: the task blocks once one is full. Both are drained at the deadline and the end."""
        self._output.pause()
        self._results.pause()

    def resume_output(self) -> None:
        """Read the pipes again."""
        self._output.resume()
        self._results.resume()


def _retry_of(data: Mapping[str, object]) -> AttemptRetry:
    """Decode the payload of a retry. Raises StateFileError if it is invalid."""
    retry = decode(EventKind.ATTEMPT_RETRY, dict(data))
    assert isinstance(retry, AttemptRetry)
    return retry


def raise_task_error(work: asyncio.Task[object]) -> None:
    """Re-raise the exception of a background task in the event loop, which ends at it.

    Left in its task, the exception would only be logged, and an attempt would have no deadline.
    """
    if not work.cancelled():
        work.result()
