"""The attempts that run: launches them, records their reports, and settles their outcomes.

An ``AttemptRecorder`` writes the reports of one attempt to the store, without blocking the task on the disk.
``RunningAttempts`` writes the end of an attempt and the rest of its output in one transaction.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from ..clock import Clock
from ..core.breaker import CallVerdict
from ..core.deadline import ending_deadline
from ..core.decide import Circumstances, Decision, Succeed
from ..core.failures.attempt_end import lost_outcome, not_started_outcome
from ..core.outcome import LostWith, Outcome, OutcomeKind
from ..core.schedule import local_time
from ..core.spec import TaskSpec
from ..domain.event_payloads import AttemptColumns, AttemptRetry, AttemptStarted, Payload, TaskColumns
from ..domain.liveness import HEARTBEAT_SECONDS
from ..domain.states import effect_key
from ..errors import StorageError
from ..flow.source import open_zone
from ..runner.attempt import Attempt
from ..runner.protocol import AttemptControls, AttemptListener, AttemptOrder, BadRow, ignore
from ..runner.zygote.connection import ZygoteGone
from ..statefile import logs
from ..statefile.transitions import Transaction
from ..store import claims, quarantined
from ..store.claims import Claim
from ..store.settle import settle
from .active_run import ActiveRun, FollowUp
from .opening import OpenRun

STARTED_DELAY_SECONDS = 0.5  # an attempt that ends sooner needs no pid in the file, and none on a slow line
OUTPUT_FLUSH_SECONDS = 0.1
OUTPUT_FLUSH_CHARACTERS = 64 * 1024
PROGRESS_SECONDS = 0.5
LATEST_CHARACTERS = 1000
ROWS_FLUSH_COUNT = 200  # quarantined rows in one write

OutputListener = Callable[[str, str], None]  # name of the task, text

_Decoder = codecs.getincrementaldecoder("utf-8")


class Streams(Protocol):
    """The stdin, stdout and stderr of the caller, which the commands of a run use as if nothing were between."""

    count: int  # 1 if stdout and stderr are one, so that what is written keeps its order

    def begin_attempt(self) -> str:
        """Return the path of the input of an attempt that is launched now; empty: it has none."""

    def write(self, attempt: AttemptRecorder, stream: int, data: bytes) -> None:
        """Pass on what an attempt wrote to its stdout (1) or stderr (2). Must not block, and must not raise."""


class AttemptRecorder(AttemptListener):
    """Records the reports of one attempt, as the listener of its runner, until its outcome is settled."""

    def __init__(self, attempts: RunningAttempts, claim: Claim, spec: TaskSpec) -> None:
        self.claim = claim
        self.spec = spec
        self.controls = AttemptControls()  # without effect before it is attached, and after its end
        self.timeout_seconds = spec.timeout  # including extensions by operators
        self.is_cancelled = False
        self.is_interrupted = False
        self.pid: int | None = None
        self.start_ticks: int | None = None
        self.last_seen_at = attempts.loop.time()  # last output, progress or heartbeat, on the loop's clock
        self.sends_heartbeats = False
        self._attempts = attempts
        self._decoder = _Decoder("replace")
        self.has_output = False
        self.latest_output = ""  # the last LATEST_CHARACTERS
        self._output = OutputBuffer()
        self._is_writing = False  # one write of output in flight: a slow disk must not build up a queue
        self._progress: tuple[int, int | None] | None = None
        self._stored_progress: tuple[int, int | None] = (0, None)
        self._heartbeat_due_at = 0.0
        self._checkpoint: str | None = None
        self._retry_sampler = RetrySampler()
        self._rows: list[BadRow] = []
        self._flushes: dict[Callable[[], None], asyncio.TimerHandle] = {}  # those to come

    @property
    def task(self) -> str:
        return self.claim.task

    # --- Reports of the runner -------------------------------------------------------------------------------------

    def attach(self, attempt: AttemptControls) -> None:
        """Control the attempt from now on."""
        self.controls = attempt
        if self.is_interrupted:
            attempt.interrupt()
        elif self.is_cancelled:
            attempt.cancel("cancelled before it started")

    def start_failed(self, error: OSError) -> None:
        """End the attempt: it has no process. The zygote is gone, or the machine lacks memory or descriptors."""
        if isinstance(error, ZygoteGone):
            self.ended(lost_outcome(str(error), is_blameless=error.is_blameless, lost_with=LostWith.ZYGOTE))
        else:
            self.ended(
                lost_outcome(str(error)) if isinstance(error, ProcessLookupError) else not_started_outcome(error)
            )

    def started(self, pid: int, start_ticks: int | None) -> None:
        """Record the process, unless the attempt ends within STARTED_DELAY_SECONDS."""
        self.pid, self.start_ticks = pid, start_ticks
        self._attempts.record_later(self)

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None:
        """Record a process on another host, which only its worker can inspect."""
        self._write_started({"host": host, "pid": pid, "pid_start_ticks": start_ticks})

    def output(self, data: bytes) -> None:
        """Buffer output on stdout or stderr."""
        self.last_seen_at = self._attempts.loop.time()
        text = self._decoder.decode(data)
        self._output.append(text)
        self.has_output = True
        self.latest_output = (self.latest_output + text)[-LATEST_CHARACTERS:]
        self._attempts.notify_output(self.claim.task, text)
        self._schedule_output_flush()

    def written(self, stream: int, data: bytes) -> None:
        """Pass the bytes of a command on, as they are."""
        if self._attempts.streams is not None:
            self._attempts.streams.write(self, stream, data)

    def progress(self, done: int, total: int | None) -> None:
        """Store progress at most every PROGRESS_SECONDS; unchanged numbers count as a heartbeat."""
        self.last_seen_at = now = self._attempts.loop.time()
        self.sends_heartbeats = True
        if (done, total) == self._stored_progress and now < self._heartbeat_due_at:
            return
        self._heartbeat_due_at = now + HEARTBEAT_SECONDS
        self._progress = (done, total)
        if self._flush_progress not in self._flushes:
            self._write_progress()
            self._flush_later(self._flush_progress, PROGRESS_SECONDS)

    def retried(self, retry: AttemptRetry) -> None:
        """Count a retry inside the attempt, and emit it, sampled."""
        self._attempts.on_retried(self.claim.task)
        self._emit_retry(self._retry_sampler.sample(retry, self._attempts.loop.time()))

    def quarantined(self, row: BadRow) -> None:
        """Buffer a quarantined row; it stays provisional until the attempt succeeds."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_FLUSH_COUNT:
            self._flush_now(self._flush_rows)
        else:
            self._flush_later(self._flush_rows)

    def checkpointed(self, value: str) -> None:
        """Store JSON for the next attempt; of several values within OUTPUT_FLUSH_SECONDS the last is written."""
        self._checkpoint = value
        self._flush_later(self._flush_checkpoint)

    def step(self, payload: Payload) -> None:
        """Emit a step of the termination: deadline, stack, SIGTERM, SIGKILL, sweep or leak."""
        self._attempts.emit(self.claim, payload)

    def extend(self, seconds: float) -> float | None:
        """Extend the timeout and return it. None: there is none, it has passed, or the process has not started yet."""
        if self.timeout_seconds is None or not self.controls.extend(seconds):
            return None
        self.timeout_seconds += seconds
        return self.timeout_seconds

    def mark_lost(self, why: str) -> None:
        """End the attempt as lost: its process vanished without a result."""
        if isinstance(self.controls, Attempt):
            self.controls.lose(why)

    def ended(self, outcome: Outcome) -> None:
        """Flush the buffers, and have the outcome settled: no process of the attempt is left."""
        for timer in self._flushes.values():
            timer.cancel()
        self._flush_rows()
        self._flush_checkpoint()
        self._emit_retry(self._retry_sampler.flush())
        self._output.append(self._decoder.decode(b"", True))
        self._attempts.settle(self, outcome, self._output.drain())

    def _flush_later(self, flush: Callable[[], None], seconds: float = OUTPUT_FLUSH_SECONDS) -> None:
        """Call ``flush`` in so many seconds, unless such a call is to come."""
        if flush not in self._flushes:
            self._flushes[flush] = self._attempts.loop.call_later(seconds, self._flush_now, flush)

    def _flush_now(self, flush: Callable[[], None]) -> None:
        timer = self._flushes.pop(flush, None)
        if timer is not None:
            timer.cancel()
        flush()

    # --- Writes ----------------------------------------------------------------------------------------------------

    def _emit_retry(self, payload: AttemptRetry | None) -> None:
        if payload is not None:
            self._attempts.emit(self.claim, payload)

    def record_process(self) -> None:
        """Store the process, which has run for STARTED_DELAY_SECONDS."""
        self._write_started({"pid": self.pid, "pid_start_ticks": self.start_ticks})

    def _write_started(self, columns: AttemptColumns) -> None:
        claim = self.claim
        event_columns = columns.copy()
        event_columns.pop("pid_start_ticks", None)

        def item(transaction: Transaction) -> None:
            transaction.change_attempt(claim.run_id, claim.task, claim.attempt, columns)
            claims.emit(transaction, claim, AttemptStarted(event_columns))

        self._attempts.write(item)

    def _write_progress(self) -> None:
        if self._progress is None:
            return
        previous, self._stored_progress, self._progress = self._stored_progress, self._progress, None
        done, total = self._stored_progress
        claim = self.claim
        is_heartbeat = previous == self._stored_progress
        columns: TaskColumns = {} if is_heartbeat else {"progress_done": done, "progress_total": total}

        def item(transaction: Transaction) -> None:
            beat: TaskColumns = {**columns, "last_heartbeat_at": transaction.at}
            transaction.change(claim.run_id, claim.task, beat, attempt=claim.attempt)

        self._attempts.write(item)

    def _flush_progress(self) -> None:
        if self._progress is not None:
            self.progress(*self._progress)

    def _flush_checkpoint(self) -> None:
        value, self._checkpoint = self._checkpoint, None
        if value is not None:
            self._attempts.write(lambda transaction: claims.save_checkpoint(transaction, self.claim, value))

    def _flush_rows(self) -> None:
        found, self._rows = self._rows, []
        if found:
            self._attempts.write(lambda transaction: quarantined.add_rows(transaction, self.claim, found))

    def _schedule_output_flush(self) -> None:
        if self._output.characters >= OUTPUT_FLUSH_CHARACTERS:
            self._flush_now(self._flush_output)
        else:
            self._flush_later(self._flush_output)

    def _flush_output(self) -> None:
        if self._is_writing:
            return
        chunk = self._output.drain()
        if chunk:
            claim = self.claim
            self._is_writing = True
            limit_bytes = self._attempts.log_limit_bytes
            self._attempts.write(
                lambda transaction: _append_output(transaction, claim, chunk, limit_bytes), self._on_output_written
            )

    def _on_output_written(self, written: object) -> None:
        self._is_writing = False
        if self._output.characters:
            self._schedule_output_flush()


class RunningAttempts:
    """Launches attempts and settles them. ``running``: by task, until their outcome has come."""

    def __init__(
        self,
        opened: OpenRun,
        run: ActiveRun,
        clock: Clock,
        *,
        follow_up: Callable[[Mapping[str, int]], FollowUp | None],
        on_ended: Callable[[Claim, Outcome], CallVerdict],
        on_error: Callable[[BaseException], None],
        on_retried: Callable[[str], None],
        on_output: OutputListener | None,
        streams: Streams | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.log_limit_bytes = opened.flow.log_limit_mb * 1024 * 1024
        self.running: dict[str, AttemptRecorder] = {}
        self._runner = opened.runner
        self._remote = opened.remote
        self._writer = opened.writer
        self._uniform = clock.uniform
        self._run = run
        row, zone = run.projection.run, open_zone(opened.flow.timezone, opened.flow.name)
        self._date = local_time(row.logical_time or row.started_at, zone).date().isoformat()
        self._freed_by = run.ready_queue.unblocked_by
        self._follow_up = follow_up
        self._on_ended = on_ended
        self.on_retried = on_retried
        self._on_error = on_error
        self._on_output = on_output
        self.streams = streams
        self._lost_with_zygote: set[str] = set()  # tasks whose latest attempt was
        self._is_interrupted = False
        self._settling_count = 0  # settlements that are being written
        self._unrecorded: dict[AttemptRecorder, float] = {}  # when each process is to be recorded, in order
        self._record_timer: asyncio.TimerHandle | None = None  # one for all: most attempts end before
        self._idle = asyncio.Event()
        self._idle.set()

    def notify_output(self, name: str, text: str) -> None:
        """Pass output on to the listener, which must not affect the run."""
        if self._on_output is None:
            return
        try:
            self._on_output(name, text)
        except Exception as error:
            self.loop.call_exception_handler({"message": "a listener of output raised", "exception": error})

    def launch(
        self,
        claim: Claim,
        spec: TaskSpec,
        results: Mapping[str, str | None],
        missing: Mapping[str, str],
        rules: tuple[Mapping[str, object], ...],
    ) -> None:
        """Start the attempt of a committed claim.

        ``results``: JSON by parent; ``missing``: the reason by parent without a result; ``rules``: classification rules
        of its downstream.
        """
        recorder = AttemptRecorder(self, claim, spec)
        recorder.is_interrupted = self._is_interrupted  # claims that were being committed when the stop came
        self.running[claim.task] = recorder
        order = AttemptOrder(
            run_id=claim.run_id,
            task=claim.task,
            attempt=claim.attempt,
            generation=claim.generation,
            spec=spec,
            params=self._run.flow.params,
            typed=self._run.flow.typed_params,
            inputs=_join_json(results),
            rules=rules,
            only_rows=claim.only_rows,
            checkpoint=claim.checkpoint,
            earlier_result=claim.earlier_result,
            missing=tuple(missing.items()),
            idempotency_key=effect_key(claim.run_id, claim.task, claim.key_generation),
            date=self._date,
            streams=0 if self.streams is None or spec.kind != "command" else self.streams.count,
            stdin="" if self.streams is None else self.streams.begin_attempt(),
        )
        self._idle.clear()
        if self._remote is not None and spec.isolation == "dask":
            recorder.attach(self._remote.start(order, recorder))
            return
        is_apart = claim.task in self._lost_with_zygote
        self._runner.launch(order, recorder, recorder.attach, recorder.start_failed, is_apart=is_apart)

    def record_later(self, recorder: AttemptRecorder) -> None:
        """Record the process of an attempt after STARTED_DELAY_SECONDS, unless the attempt ends before."""
        self._unrecorded[recorder] = self.loop.time() + STARTED_DELAY_SECONDS
        if self._record_timer is None:
            self._record_timer = self.loop.call_later(STARTED_DELAY_SECONDS, self._record_processes)

    def _record_processes(self) -> None:
        self._record_timer = None
        now = self.loop.time()
        for recorder, due_at in list(self._unrecorded.items()):
            if due_at > now:
                self._record_timer = self.loop.call_at(due_at, self._record_processes)
                return
            del self._unrecorded[recorder]
            recorder.record_process()

    def cancel(self, name: str, reason: str) -> None:
        """Terminate the attempt of a task, if one runs, by the steps of a timeout. The request is committed already."""
        recorder = self.running.get(name)
        if recorder is not None:
            recorder.is_cancelled = True
            recorder.controls.cancel(reason)

    def interrupt_all(self) -> None:
        """Terminate every attempt, also each that starts later: the executor stops. Their tasks run again on resume."""
        self._is_interrupted = True
        for recorder in self.running.values():
            recorder.is_interrupted = True
            recorder.controls.interrupt()

    def settle(self, recorder: AttemptRecorder, outcome: Outcome, chunk: OutputChunk) -> None:
        """Write the end of an attempt, with the rest of its output, and what is claimed with it.

        The slot is freed first, because the events of the settlement may start the next attempt of the same task.
        """
        claim, verdict = recorder.claim, self._free_slot(recorder, outcome)
        freed = self._freed_by(claim.task) if outcome.kind is OutcomeKind.SUCCESS else {}
        follow_up = self._follow_up(freed)

        def item(transaction: Transaction) -> list[Claim]:
            if chunk:
                _append_output(transaction, claim, chunk, self.log_limit_bytes)
            decision = self._settle_in(transaction, recorder, outcome, verdict)
            if freed:  # the children that become READY with its success
                claims.promote(transaction, claim.run_id, freed)
            return [] if follow_up is None else follow_up.claim(transaction, isinstance(decision, Succeed))

        on_written, durable = partial(self._on_settled, follow_up), follow_up is not None and follow_up.durable
        try:
            self._writer.write(item, on_written, self._on_settling_failed, durable=durable)
        except StorageError as error:  # the executor leaves: the next one settles the attempt as lost
            self._on_settling_failed(error)

    def _free_slot(self, recorder: AttemptRecorder, outcome: Outcome) -> CallVerdict:
        """Free the slot of an attempt that has ended; return how much of a failure its downstream explains."""
        task = recorder.claim.task
        self._unrecorded.pop(recorder, None)
        if self.running.get(task) is recorder:
            del self.running[task]
        if outcome.lost_with is LostWith.ZYGOTE:
            self._lost_with_zygote.add(task)
        elif self._lost_with_zygote:
            self._lost_with_zygote.discard(task)
        verdict = self._on_ended(recorder.claim, outcome)
        self._settling_count += 1
        self._idle.clear()
        return verdict

    def _settle_in(
        self, transaction: Transaction, recorder: AttemptRecorder, outcome: Outcome, verdict: CallVerdict
    ) -> Decision | None:
        claim = recorder.claim
        if recorder.has_output:
            logs.finish(transaction, claim.run_id, claim.task, claim.attempt)
        circumstances = Circumstances(
            call=verdict,
            path_seconds=self._run.path_seconds.get(claim.task, 0.0),
            deadline_at=ending_deadline(self._run.projection.run),
            is_interrupted=recorder.is_interrupted,
            is_silent=not recorder.has_output,
        )
        return settle(transaction, claim, recorder.spec, outcome, self._uniform, circumstances)

    def _on_settled(self, follow_up: FollowUp | None, claimed: list[Claim]) -> None:
        """A settlement is committed."""
        try:
            if follow_up is not None:
                follow_up.on_committed(claimed)
        except Exception as error:
            self._on_error(error)
        self._end_settling()

    def _on_settling_failed(self, error: BaseException) -> None:
        """A settlement cannot be written."""
        self._end_settling()
        self._on_error(error)

    def _end_settling(self) -> None:
        self._settling_count -= 1
        if not self._settling_count and not self.running:
            self._idle.set()

    def emit(self, claim: Claim, payload: Payload) -> None:
        """Queue an event of an attempt."""
        self.write(lambda transaction: claims.emit(transaction, claim, payload))

    def write(self, item: Callable[[Transaction], object], on_committed: Callable[[object], None] = ignore) -> None:
        """Queue a write; errors go to ``on_error``."""
        self._writer.write(item, on_committed, self._on_error)

    async def drain(self) -> None:
        """Wait until every attempt is settled."""
        await self._idle.wait()


def _join_json(results: Mapping[str, str | None]) -> str:
    """Join JSON values into one JSON object."""
    return "{" + ",".join(f"{json.dumps(name)}:{text or 'null'}" for name, text in results.items()) + "}"


def _append_output(transaction: Transaction, claim: Claim, chunk: OutputChunk, limit_bytes: int) -> None:
    key = (claim.run_id, claim.task, claim.attempt)
    logs.append(transaction, *key, chunk.head, limit_bytes=limit_bytes)
    logs.append(transaction, *key, chunk.tail, dropped=chunk.dropped_bytes, limit_bytes=limit_bytes)


# --- Bounds for what an attempt reports: output that is not stored yet, and retries inside it ------------------------
#
# However fast a task prints or retries, and however slow the disk is, the memory of the executor and the state file
# grow within limits.


HEAD_CHARACTERS = 4 * 1024 * 1024  # more between two writes is dropped, behind what came first
TAIL_CHARACTERS = 256 * 1024
FULL_RATE_COUNT = 100
INTERVAL_SECONDS = 1.0


class OutputChunk(msgspec.Struct, frozen=True):
    """A piece of output: ``head``, then ``dropped_bytes`` that were discarded, then ``tail``."""

    head: str = ""
    dropped_bytes: int = 0
    tail: str = ""

    def __bool__(self) -> bool:
        return bool(self.head)


class OutputBuffer:
    """Keeps the head and the tail of the appended output until it is drained."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_characters = 0
        self._tail_characters = 0
        self._dropped_bytes = 0

    @property
    def characters(self) -> int:
        return self._head_characters + self._tail_characters

    def append(self, text: str) -> None:
        """Append output; above the limits, drop the oldest output behind the head."""
        if self._head_characters < HEAD_CHARACTERS:
            self._head.append(text)
            self._head_characters += len(text)
            return
        self._tail.append(text)
        self._tail_characters += len(text)
        while self._tail_characters - len(self._tail[0]) >= TAIL_CHARACTERS:
            oldest = self._tail.popleft()
            self._tail_characters -= len(oldest)
            self._dropped_bytes += len(oldest.encode("utf-8", "replace"))

    def drain(self) -> OutputChunk:
        """Return the buffered output and clear the buffer."""
        chunk = OutputChunk("".join(self._head), self._dropped_bytes, "".join(self._tail))
        self._head.clear()
        self._tail.clear()
        self._head_characters = self._tail_characters = self._dropped_bytes = 0
        return chunk


class RetrySampler:
    """Passes the first FULL_RATE_COUNT retries, then one every INTERVAL_SECONDS.

    ``untold`` of a passed retry: the number of suppressed retries since the previous one.
    """

    def __init__(self) -> None:
        self._emitted = 0
        self._emitted_at = 0.0
        self._suppressed = 0
        self._latest: AttemptRetry | None = None

    def sample(self, retry: AttemptRetry, now: float) -> AttemptRetry | None:
        """Return the retry to emit; None: suppressed. ``now``: seconds on the monotonic clock."""
        if self._emitted >= FULL_RATE_COUNT and now - self._emitted_at < INTERVAL_SECONDS:
            self._suppressed += 1
            self._latest = retry
            return None
        suppressed, self._suppressed, self._latest = self._suppressed, 0, None
        self._emitted, self._emitted_at = self._emitted + 1, now
        return retry._replace(untold=suppressed) if suppressed else retry

    def flush(self) -> AttemptRetry | None:
        """Return the last retry if it was suppressed; called at the end of the attempt."""
        if self._latest is None:
            return None
        latest, self._latest = self._latest, None
        return latest._replace(untold=self._suppressed - 1) if self._suppressed > 1 else latest
