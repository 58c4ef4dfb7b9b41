"""An attempt, as the executor has it: its frames and output, its deadline, its end.

The deadline is driven by the executor's monotonic clock, never by the task (SPEC 000). At the deadline, and when it is
cancelled, an attempt is ended in steps: stack, SIGTERM to its process group, grace, SIGKILL to the group and to every
descendant. A result that arrived before the SIGTERM was sent stands, even in the same instant.

The attempt is inspected in the last quarter of a second before the deadline, so that the SIGTERM comes on time: its
CPU in the last minute, its processes and what they wait for, then the stacks of its threads. The stacks come
last, because the signal that requests them interrupts a sleep.

The attempt runs in its ``AttemptBackend``: a process of its own (``forked_process.py``), a warm worker, or a thread.
All that an attempt reports leaves through ``_report`` and its neighbours, which mask the secrets of the flow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from ..core.advice import Progress
from ..core.failures.attempt_end import AttemptEnd, KillReason, lost_outcome, outcome_of, was_killed
from ..core.failures.hang import Autopsy, describe_hang, hang_report
from ..core.outcome import LostWith, Outcome, OutcomeKind, unstored_result
from ..core.secret_mask import MaskedStream, SecretMask
from ..domain.event_codec import decode
from ..domain.event_payloads import AttemptDeadline, AttemptRetry, AttemptStack, AttemptSwept, Payload
from ..domain.events import EventKind
from . import cgroups, protocol, stack
from .autopsy import LINE_CHARACTERS, ProcSampler, flat
from .command import ResultError, line_problem
from .out_of_memory import OutOfMemoryWatch
from .protocol import AttemptControls, AttemptListener, AttemptOrder
from .usage import MemoryGauge, Sample, UsageSubject, cpu_share

STDOUT, STDERR = 1, 2
TAIL_BYTES = 4096
SAMPLED_SECONDS = 60.0  # before the deadline: CPU and memory are sampled each second
CPU_SECONDS = 10.0  # before the deadline: the window of the CPU use in the sentence of the autopsy
INSPECTION_SECONDS = 0.25  # before the deadline: when the inspection starts
INSPECTION_SHARE = 0.2  # of a timeout that is short: the inspection starts later
STACK_SHARE = 0.4  # of the inspection's time is reserved for the stacks
IMPORT_SECONDS = 300.0  # limit for the import of a flow


class AttemptBackend:
    """The process or thread of an attempt; only the attempt calls these methods. Here they have no effect."""

    def __init__(self, pid: int, start_ticks: int | None) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.attempt: Attempt | None = None

    @property
    def _running(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def subject(self, line: str | None) -> UsageSubject:
        """Return the processes to inspect. ``line``: shown instead of the command line; None: that itself."""
        return UsageSubject(0)

    async def dump_stack(self) -> str:
        """Return the stacks as text; empty if the process does not answer within 100 ms."""
        return ""

    async def dump_c_code(self) -> str:
        """Return the stack of a thread that did not answer, because it is in C code. It may end the process."""
        return ""

    def drain(self) -> None:
        """Read all frames and output that were written."""

    def pause(self) -> None:
        """Stop reading frames and output."""

    def resume(self) -> None:
        """Read them again."""

    def close_stdout(self) -> None:
        """Read the stdout of a command no more."""

    def on_reported(self, is_in_time: bool) -> None:
        """The final frame has come. ``is_in_time``: before the attempt was told to end."""

    def terminate(self, reason: str) -> None:
        """Ask the task to end, and report that step."""

    def kill(self, reason: str) -> None:
        """End the task, which has not ended within the grace, and report that step."""

    def has_ended(self) -> bool:
        """Whether the process has ended, although nobody has reported it yet."""
        return False

    def command_result(self) -> str | None:
        """Return the result of a command that succeeded, as JSON. Raises ResultError."""
        return None

    def release(self) -> None:
        """The attempt is over: close what belongs to it alone."""


class RunnerContext(msgspec.Struct, frozen=True):
    """Values that all attempts of one runner share."""

    project_root: str | None
    oom: OutOfMemoryWatch
    imports_per_process: bool = False  # each process imports the flow first
    sampler: ProcSampler = msgspec.field(default_factory=ProcSampler)
    mask: SecretMask = msgspec.field(default_factory=SecretMask)


class Inspection(msgspec.Struct, frozen=True):
    """The result of inspecting a running attempt."""

    dump: str
    autopsy: Autopsy


class Attempt(AttemptControls):
    """An attempt from its start to its outcome. ``started_at``: seconds on the monotonic clock."""

    def __init__(
        self,
        order: AttemptOrder,
        listener: AttemptListener,
        shared: RunnerContext,
        backend: AttemptBackend,
        started_at: float,
    ) -> None:
        self.order = order
        self.started_at = started_at  # of the function, once the import in the attempt is over
        self.is_terminating = False  # SIGTERM was sent, or the cancel token set: a result that comes now is late
        self.reported: Outcome | None = None  # in the final frame, if that came in time
        self.backend = backend
        self._listener = listener
        self._shared = shared
        self._mask = shared.mask
        self._masked_output = MaskedStream(shared.mask)
        self._loop = asyncio.get_running_loop()
        self._kill_reason = KillReason.NONE  # why the escalation has begun
        self._may_end_by_dump = False  # the request for a dump of C code can end the process: redrive ended it then
        self._is_late_exit = False
        self._oom_mark = shared.oom.mark()
        self._progress = Progress(0, None, 0.0, 0.0, 0)
        self._tail = b""
        self._stderr_tail = b""  # has the reason of a failure, whatever came last
        self._stream = STDERR  # of the latest output; that of both in one pipe
        self._output_at = started_at
        self._stack = ""
        self._hang = ""
        self._hang_report = ""
        self._samples = deque([Sample(started_at)], maxlen=round(SAMPLED_SECONDS) + 1)
        self._inspection: asyncio.Task[Inspection] | None = None
        self._done = self._loop.create_future()
        self._escalation: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = order.spec.timeout
        self._is_importing = shared.imports_per_process and order.spec.kind != "command"
        backend.attempt = self
        self._memory_limit = None if order.cgroup else order.spec.memory  # which the sampler watches, not the kernel
        self._memory_used = 0  # bytes, the most that was seen
        if self._memory_limit is not None:
            shared.sampler.follow(self, MemoryGauge(self._memory_limit))
        self._arm_deadline()
        if order.spec.kind != "command":
            self.started()

    @property
    def is_over(self) -> bool:
        return self._done.done()

    @property
    def _has_outcome(self) -> bool:
        return self.reported is not None or self.is_over

    def started(self) -> None:
        """Report the process: that of a command once its program runs."""
        self._listener.started(self.backend.pid, self.backend.start_ticks)

    # --- Frames and output, masked ------------------------------------------------------------------------------------

    def handle_frame(self, frame: protocol.AttemptFrame) -> None:
        """Handle one frame. Raises StateFileError if no event can be made of it."""
        match frame:
            case protocol.TaskBegan(at):
                self._handle_task_began(at)
            case _ if self.is_over:
                return  # frames of a leaked thread
            case protocol.Progressed(done, total):
                self._handle_progress(done, total)
            case protocol.Heartbeat():
                self._listener.progress(self._progress.done, self._progress.total)
            case protocol.Retried(data):
                self._listener.retried(self._mask.value(_retry_of(data)))
            case protocol.Quarantined(row):
                self._listener.quarantined(self._mask.value(row))
            case protocol.Checkpointed(value):
                self._handle_checkpoint(value)
            case protocol.Ended(outcome):
                self._handle_ended(outcome)

    def _handle_progress(self, done: int, total: int | None) -> None:
        if (done, total) != (self._progress.done, self._progress.total):
            moved_at, before = self._loop.time() - self.started_at, self._progress
            first = (before.first_done, before.first_at) if before.reports else (done, moved_at)
            self._progress = Progress(done, total, 0.0, moved_at, before.reports + 1, *first)
        self._listener.progress(done, total)

    def _handle_checkpoint(self, value: str) -> None:
        """Pass a checkpoint on. With a secret it is left out: masked it would be another value."""
        secret = self._mask.find(value)
        if secret is None:
            self._listener.checkpointed(value)
        else:
            self._listener.output(f"redrive: the checkpoint was not stored: it holds {secret}\n".encode())

    def _handle_ended(self, outcome: Outcome) -> None:
        is_in_time = not self.is_terminating and self.reported is None
        if is_in_time:
            self.reported = outcome
            self._cancel_timer()
            self._cancel_inspection()
        self.backend.on_reported(is_in_time)

    def handle_output(self, data: bytes, stream: int = STDERR) -> None:
        """Handle output on stdout or stderr."""
        self._output_at = self._loop.time()
        if self.order.streams:
            self._listener.written(stream if self.order.streams > 1 else STDOUT, data)
        self._stream = stream
        self._emit_output(self._masked_output.feed(data))

    def _emit_output(self, masked: bytes) -> None:
        if masked:
            self._tail = (self._tail + masked)[-TAIL_BYTES:]
            if self._stream == STDERR:
                self._stderr_tail = (self._stderr_tail + masked)[-TAIL_BYTES:]
            self._listener.output(masked)

    def report(self, step: Payload) -> None:
        """Report a step of the escalation."""
        self._listener.step(self._mask.value(step))

    def _handle_task_began(self, at: float) -> None:
        """The import is over and the function is called: its own timeout starts."""
        if self._is_importing:
            self._is_importing = False
            self.started_at = at
            if self._kill_reason is KillReason.NONE:
                self._arm_deadline()

    # --- Deadline and escalation --------------------------------------------------------------------------------------

    @property
    def _current_timeout(self) -> float | None:
        """The seconds allowed: for the import first, then for the function."""
        return IMPORT_SECONDS if self._is_importing else self._timeout

    def _arm_deadline(self) -> None:
        self._cancel_timer()
        self._cancel_inspection()
        if self._current_timeout is None:
            return
        deadline = self.started_at + self._current_timeout
        if deadline - SAMPLED_SECONDS > self._loop.time():
            if self._memory_limit is None:
                self._shared.sampler.unfollow(self)
            self._timer = self._loop.call_at(deadline - SAMPLED_SECONDS, self._sample_until, deadline)
        else:
            self._sample_until(deadline)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sample_until(self, deadline: float) -> None:
        """Sample the attempt until its deadline, shortly before which it is inspected."""
        assert self._current_timeout is not None
        self._shared.sampler.follow(self)
        begin = deadline - min(INSPECTION_SECONDS, self._current_timeout * INSPECTION_SHARE)
        self._timer = self._loop.call_at(begin, self._begin_inspection, deadline)

    def on_sample(self, seen: Sample) -> None:
        """Keep what its processes use, and end them above the limit of memory."""
        self._samples.append(seen)
        self._memory_used = max(self._memory_used, seen.memory)
        if self._memory_limit is not None and seen.memory > self._memory_limit:
            self._begin_escalation(KillReason.MEMORY, "memory limit")

    def _cpu_before(self) -> Sample:
        """Return the latest sample from before the window of the sentence; without one, the first."""
        since = self._loop.time() - CPU_SECONDS
        return next((seen for seen in reversed(self._samples) if seen.at <= since), self._samples[0])

    def _begin_inspection(self, deadline: float) -> None:
        self._timer = self._loop.call_at(deadline, self._deadline_passed)
        self._inspection = self._loop.create_task(self._inspect(deadline))

    def _cancel_inspection(self) -> None:
        if self._inspection is not None:
            self._inspection.cancel()
            self._inspection = None

    def subject(self) -> UsageSubject:
        """Return the processes to inspect. A fork has the command line of its zygote, so the task is named instead."""
        return self.backend.subject(None if self.order.spec.kind == "command" else f"task {self.order.task}")

    async def _inspect(self, until: float) -> Inspection:
        left = until - self._loop.time()
        autopsy = await self._shared.sampler.examine(self.subject(), self._cpu_before(), until - left * STACK_SHARE)
        dump = await self.backend.dump_stack()
        by_second = tuple(cpu_share(*both) for both in pairwise(self._samples) if both[1].at < both[0].at + 2)
        return Inspection(dump, replace(autopsy, cpu_by_second=by_second))

    async def _inspected(self) -> Inspection:
        """Return the inspection from before the deadline; inspect now if there was none."""
        if self._inspection is None:
            self._inspection = self._loop.create_task(self._inspect(self._loop.time() + INSPECTION_SECONDS))
        return await self._inspection

    def _deadline_passed(self) -> None:
        self.backend.drain()  # a result that is in the pipe by now is in time
        self._begin_escalation(KillReason.DEADLINE, "deadline")

    def _begin_escalation(self, kill_reason: KillReason, reason: str) -> bool:
        if self._has_outcome or self._kill_reason is not KillReason.NONE:
            return False
        self._cancel_timer()
        self._kill_reason = kill_reason
        if kill_reason is KillReason.DEADLINE:
            self.report(AttemptDeadline(self._current_timeout))
        self._escalation = self._loop.create_task(self._escalate(reason))
        self._escalation.add_done_callback(raise_task_error)
        return True

    async def _escalate(self, reason: str) -> None:
        """End the attempt in steps. It stops if the final frame came before the first signal was sent."""
        seen = await self._inspected()
        self.backend.drain()
        if not (seen.dump or self._has_outcome):
            self._may_end_by_dump = True
            seen = replace(seen, dump=await self.backend.dump_c_code())
            self.backend.drain()
        if self._has_outcome:
            return
        self._report_stack(seen)
        self.is_terminating = True
        self.backend.terminate(reason)
        await asyncio.wait([self._done], timeout=self.order.spec.grace_seconds)
        if not self.is_over and not self.backend.has_ended():
            self.backend.kill(reason)

    def _report_stack(self, seen: Inspection) -> None:
        frames = stack.frames(seen.dump, self._shared.project_root)
        self._stack = seen.dump
        self._hang = describe_hang(seen.autopsy, frames)
        *_, last_line = ["", *self._tail.decode("utf-8", "replace").strip().splitlines()]
        output, quiet = flat(last_line)[:LINE_CHARACTERS], self._loop.time() - self._output_at
        self._hang_report = hang_report(replace(seen.autopsy, last_output=output, quiet_seconds=quiet))
        where = frames.where or self._hang or None
        self.report(AttemptStack(where, self._hang or None))

    # --- Controls of the executor -------------------------------------------------------------------------------------

    def cancel(self, reason: str) -> bool:
        """Start the escalation. Returns False if the attempt is ending already."""
        return self._begin_escalation(KillReason.CANCEL, reason)

    def extend(self, seconds: float) -> bool:
        """Move the deadline. Returns False if there is none, or it has passed."""
        if self._timeout is None or self._kill_reason is not KillReason.NONE or self._has_outcome:
            return False
        self._timeout += seconds
        self._arm_deadline()
        return True

    def pause_output(self) -> None:
        """Stop reading: the task blocks once a pipe is full. All is drained at the deadline and the end."""
        self.backend.pause()

    def resume_output(self) -> None:
        """Read again."""
        self.backend.resume()

    def close_stdout(self) -> None:
        """Close the stdout of a command, which nobody reads any more."""
        if not self.is_over:
            self.backend.close_stdout()

    # --- The end ------------------------------------------------------------------------------------------------------

    def expect_exit(self) -> None:
        """Kill a process that sent its result but does not exit: a non-daemon thread, or a hanging exit function."""
        if not self.is_over:
            self._timer = self._loop.call_later(self.order.spec.grace_seconds, self._exit_is_late)

    def _exit_is_late(self) -> None:
        if not self.backend.has_ended():
            self._is_late_exit = True
            self.backend.kill("late exit")

    def exited(self, exited: protocol.Exited, crash_dump: str) -> None:
        """End the attempt: the zygote has reaped the process in which it ran, and all that it wrote is read.

        ``crash_dump``: the stacks that a signal made it write.
        """
        if self.is_over:
            return
        if exited.swept:
            self.report(AttemptSwept(exited.swept, exited.survivors))
        output = self._tail.decode("utf-8", "replace") if self.order.spec.kind == "command" else ""
        killed = was_killed(exited.exit_code, exited.signal, output)
        killed = killed and not self.is_terminating and not self._is_late_exit
        if self.order.cgroup:
            peak, is_over = cgroups.remove(self.order.cgroup)
            self._memory_used = max(self._memory_used, peak)
            if killed and is_over:
                self._kill_reason, self.is_terminating, killed = KillReason.MEMORY, True, False
        usage = {
            "exit_code": exited.exit_code,
            "signal": exited.signal,
            "max_rss_kb": max(exited.max_rss_kb, self._memory_used // 1024),
            "cpu_user_us": round(exited.cpu_user_us, -3),  # less is noise, and a seventh of what ssh carries
            "cpu_system_us": round(exited.cpu_system_us, -3),
            "duration_us": round((exited.exited_at - self.started_at) * 1e6),
            **({"late_exit": True} if self._is_late_exit else {}),
        }
        is_out = killed and self._shared.oom.explains(self._oom_mark, exited.max_rss_kb)
        self.end(usage, exited, crash_dump=crash_dump, out_of_memory=is_out)

    def lose(self, why: str, *, is_blameless: bool = False, lost_with: LostWith = LostWith.PROCESS) -> None:
        """End the attempt as LOST: its process is gone. What it has reported stands; so does a reason to end it."""
        self.backend.drain()
        if self.is_over:
            return
        usage = self.duration()
        if self.reported is None and not self.is_terminating:
            self.finish(lost_outcome(why, usage, is_blameless=is_blameless, lost_with=lost_with))
        else:
            self.end(usage)

    def duration(self) -> dict[str, object]:
        """Return how long it has run until now, as columns of the attempt."""
        return {"duration_us": round((self._loop.time() - self.started_at) * 1e6)}

    def end(
        self,
        usage: Mapping[str, object],
        exited: protocol.Exited | None = None,
        *,
        crash_dump: str = "",
        out_of_memory: bool = False,
    ) -> None:
        """End the attempt with the outcome that follows from all that is known. ``usage``: columns of the attempt."""
        self._emit_output(self._masked_output.flush())
        self._stack = self._stack or crash_dump
        shown = self._stack + self._hang_report
        exit_code, signal = (None, None) if exited is None else (exited.exit_code, exited.signal)
        result, result_error = self._command_result(exit_code)
        end = AttemptEnd(
            reported=self.reported,
            kill_reason=self._kill_reason if self.is_terminating or self._may_end_by_dump else KillReason.NONE,
            exit_code=exit_code,
            signal=signal,
            out_of_memory=out_of_memory,
            memory_bound=self._shared.oom.bound,
            memory_used=self._memory_used,
            memory_limit=self.order.spec.memory or 0,
            command=(self.order.spec.command or "") if self.order.spec.kind == "command" else None,
            start_problem=self._start_problem(exit_code),
            result=result,
            result_error=result_error,
            timeout=self._current_timeout,
            stack=self._stack,
            hang=self._hang,
            progress=replace(self._progress, elapsed=self._current_timeout or 0.0) if self._progress.reports else None,
            output_tail=(self._stderr_tail or self._tail).decode("utf-8", "replace"),
            project_root=self._shared.project_root,
            rules=self.order.rules,
            usage={**usage, **({"stack": shown} if shown else {})},
        )
        self.finish(outcome_of(end))

    def _start_problem(self, exit_code: int | None) -> str:
        """Return what the shell of a command does not say about a program that it could not start."""
        if self.order.spec.kind != "command" or exit_code not in (126, 127):
            return ""
        return line_problem(self.order.spec, self._shared.project_root) or ""

    def _command_result(self, exit_code: int | None) -> tuple[str | None, str]:
        """Return the result of a command that succeeded, as JSON, and why it cannot be used."""
        if self.order.spec.kind != "command" or exit_code != 0:
            return None, ""
        try:
            return self.backend.command_result(), ""
        except ResultError as error:
            return None, str(error)

    def finish(self, outcome: Outcome) -> None:
        """End the attempt with this outcome, once."""
        self._cancel_timer()
        self._cancel_inspection()
        self._shared.sampler.unfollow(self)
        self._done.set_result(None)
        self.backend.release()
        self._emit_output(self._masked_output.flush())
        self._listener.ended(self._masked(outcome))

    def _masked(self, outcome: Outcome) -> Outcome:
        """Mask an outcome. A result with a secret is not stored at all: masked it would be another value."""
        secret = None if outcome.result is None else self._mask.find(outcome.result)
        if secret is not None:
            outcome = replace(outcome, result=unstored_result(f"result holds {secret}"), element_keys={})
        elif any(self._mask.find(key) for keys in outcome.element_keys.values() for key in keys):
            outcome = replace(outcome, element_keys={}) if outcome.result is not None else outcome
        is_clean = outcome.kind is OutcomeKind.SUCCESS and not outcome.attempt_columns.get("stack")  # numbers alone
        return outcome if is_clean else self._mask.value(outcome)


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
