"""The attempts that run now: what they say goes into the store, and how they end is settled there.

One ``Sitter`` watches one attempt. Nothing that a task prints or reports waits for the disk, and nothing that ends is
forgotten: the end of an attempt and the rest of its output are written in one transaction.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import Clock
from ..core.outcome import Outcome, OutcomeKind
from ..core.spec import TaskSpec
from ..domain.event_payloads import AttemptColumns, AttemptRetry, AttemptStarted, Payload, TaskColumns
from ..domain.liveness import HEARTBEAT_SECONDS, effect_key
from ..runner.attempt import AttemptOrder, ProcessAttempt, RunningAttempt
from ..runner.outcome_of_exit import lost, not_started
from ..runner.zygote.client import Runner
from ..statefile.changes import logs
from ..statefile.changes.transitions import Journal
from ..store import claims, quarantine, runs
from ..store.claims import Claim
from ..store.settle import settle
from ..store.writer import Writer
from .output_buffer import Printed, Unwritten
from .sampling import Trickle

STARTED_TOLD_AFTER_SECONDS = 0.05  # an attempt that is over by then never needs its pid in the file
OUTPUT_FLUSH_SECONDS = 0.1
OUTPUT_FLUSH_CHARACTERS = 64 * 1024
PROGRESS_SECONDS = 0.5
ROWS_FLUSH_COUNT = 200  # quarantined rows in one write


class Sitter:
    """Watches one attempt from its claim to its settlement."""

    def __init__(self, desk: AttemptDesk, claim: Claim, spec: TaskSpec, is_probe: bool) -> None:
        self.claim = claim
        self.spec = spec
        self.is_probe = is_probe
        self.attempt: RunningAttempt | None = None
        self.timeout = spec.timeout  # seconds, with what operators have added
        self.cancelled = False
        self.interrupted = False
        self.pid: int | None = None
        self.start_ticks: int | None = None
        self.heard_at = desk.loop.time()  # its last sign of life
        self.promised = False  # it sends heartbeats or progress
        self._desk = desk
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unwritten = Unwritten()
        self._is_writing = False  # one piece of output at a time: a slow disk must not pile them up
        self._flush_timer: asyncio.TimerHandle | None = None
        self._started_timer: asyncio.TimerHandle | None = None
        self._progress: tuple[int, int | None] | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._told: tuple[int, int | None] = (0, None)
        self._beat_due = 0.0
        self._checkpoint: str | None = None
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._retries = Trickle()
        self._rows: list[Mapping[str, Any]] = []
        self._rows_timer: asyncio.TimerHandle | None = None

    # --- What the runner reports -----------------------------------------------------------------------------------

    def started(self, pid: int, start_ticks: int | None) -> None:
        """The process exists."""
        self.pid, self.start_ticks = pid, start_ticks
        loop = self._desk.loop
        self._started_timer = loop.call_later(STARTED_TOLD_AFTER_SECONDS, self._tell_started, pid, start_ticks)

    def started_elsewhere(self, host: str, pid: int, start_ticks: int | None) -> None:
        """The process exists on another host, where nobody but its worker can look at it."""
        self._write_started({"host": host, "pid": pid, "pid_start_ticks": start_ticks})

    def output(self, data: bytes) -> None:
        """It wrote to stdout or stderr."""
        self.heard_at = self._desk.loop.time()
        self._unwritten.add(self._decoder.decode(data))
        self._flush_soon()

    def progress(self, done: int, total: int | None) -> None:
        """It reported how far it is, told twice a second at most; the same numbers again are a heartbeat."""
        self.heard_at = now = self._desk.loop.time()
        self.promised = True
        if (done, total) == self._told and now < self._beat_due:
            return
        self._beat_due = now + HEARTBEAT_SECONDS
        self._progress = (done, total)
        if self._progress_timer is None:
            self._tell_progress()
            self._progress_timer = self._desk.loop.call_later(PROGRESS_SECONDS, self._progress_again)

    def retried(self, retry: AttemptRetry) -> None:
        """Its own code retried something inside the attempt."""
        self._emit_retry(self._retries.take(retry, self._desk.loop.time()))

    def quarantined(self, row: Mapping[str, Any]) -> None:
        """It set a bad row aside; provisional until the attempt succeeds."""
        self._rows.append(row)
        if len(self._rows) >= ROWS_FLUSH_COUNT:
            self._flush_rows()
        elif self._rows_timer is None:
            self._rows_timer = self._desk.loop.call_later(OUTPUT_FLUSH_SECONDS, self._flush_rows)

    def checkpointed(self, value: str) -> None:
        """It left JSON for its next attempt; of several in one moment the last is written."""
        self._checkpoint = value
        if self._checkpoint_timer is None:
            self._checkpoint_timer = self._desk.loop.call_later(OUTPUT_FLUSH_SECONDS, self._flush_checkpoint)

    def step(self, payload: Payload) -> None:
        """One rung of the ladder that ends an attempt: deadline, stack, SIGTERM, SIGKILL, sweep, leak."""
        self._emit(payload)

    def lose(self, why: str) -> None:
        """Its process is gone and nobody told: settle it as lost. A thread's end is its host's to tell."""
        if isinstance(self.attempt, ProcessAttempt):
            self.attempt.lost(why)

    def ended(self, outcome: Outcome) -> None:
        """It is over and none of its processes lives."""
        timers = (self._flush_timer, self._started_timer, self._progress_timer)
        for timer in (*timers, self._rows_timer, self._checkpoint_timer):
            if timer is not None:
                timer.cancel()
        self._flush_rows()
        self._flush_checkpoint()
        self._emit_retry(self._retries.rest())
        self._unwritten.add(self._decoder.decode(b"", True))
        self._desk.settle(self, outcome, self._unwritten.take())

    # --- Into the store --------------------------------------------------------------------------------------------

    def _emit(self, payload: Payload) -> None:
        claim = self.claim

        def item(journal: Journal) -> None:
            journal.emit(payload, claim.run_id, claim.name, attempt=claim.attempt, generation=claim.generation)

        self._desk.write(item)

    def _emit_retry(self, payload: AttemptRetry | None) -> None:
        if payload is not None:
            self._emit(payload)

    def _tell_started(self, pid: int, start_ticks: int | None) -> None:
        self._write_started({"pid": pid, "pid_start_ticks": start_ticks})

    def _write_started(self, columns: AttemptColumns) -> None:
        claim = self.claim
        told = columns.copy()
        told.pop("pid_start_ticks", None)

        def item(journal: Journal) -> None:
            journal.change_attempt(claim.run_id, claim.name, claim.attempt, columns)
            started = AttemptStarted(told)
            journal.emit(started, claim.run_id, claim.name, attempt=claim.attempt, generation=claim.generation)

        self._desk.write(item)

    def _tell_progress(self) -> None:
        if self._progress is None:
            return
        told, self._told, self._progress = self._told, self._progress, None
        done, total = self._told
        claim = self.claim
        columns: TaskColumns = {} if told == self._told else {"progress_done": done, "progress_total": total}

        def item(journal: Journal) -> None:
            beat: TaskColumns = {**columns, "last_heartbeat_at": journal.at}
            journal.change(claim.run_id, claim.name, beat, attempt=claim.attempt)

        self._desk.write(item)

    def _progress_again(self) -> None:
        self._progress_timer = None
        if self._progress is not None:
            self.progress(*self._progress)

    def _flush_checkpoint(self) -> None:
        self._checkpoint_timer = None
        value, self._checkpoint = self._checkpoint, None
        if value is not None:
            self._desk.write(lambda journal: claims.checkpoint(journal, self.claim, value))

    def _flush_rows(self) -> None:
        self._rows_timer = None
        found, self._rows = self._rows, []
        if found:
            claim = self.claim
            self._desk.write(
                lambda journal: quarantine.add(
                    journal, claim.run_id, claim.name, claim.attempt, claim.generation, found
                )
            )

    def _flush_soon(self) -> None:
        if self._unwritten.characters >= OUTPUT_FLUSH_CHARACTERS:
            self._flush_output()
        elif self._flush_timer is None:
            self._flush_timer = self._desk.loop.call_later(OUTPUT_FLUSH_SECONDS, self._flush_output)

    def _flush_output(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._is_writing:
            return
        printed = self._unwritten.take()
        if printed:
            claim = self.claim
            self._is_writing = True
            written = self._desk.write(lambda journal: _append(journal, claim, printed))
            written.add_done_callback(self._output_written)

    def _output_written(self, written: asyncio.Future[None]) -> None:
        self._is_writing = False
        if self._unwritten.characters:
            self._flush_soon()


class AttemptDesk:
    """Starts attempts, and writes what becomes of them."""

    def __init__(
        self,
        *,
        runner: Runner,
        writer: Writer,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        path_seconds: Callable[[str], float],
        deadline_at: int | None,
        freed_by: Callable[[str], Mapping[str, int]],
        on_ended: Callable[[Claim, Outcome], None],
        on_trouble: Callable[[BaseException], None],
    ) -> None:
        self.loop = loop
        self.sitters: dict[str, Sitter] = {}
        self._runner = runner
        self._writer = writer
        self._clock = clock
        self._path_seconds = path_seconds
        self._deadline_at = deadline_at
        self._freed_by = freed_by
        self._on_ended = on_ended
        self._on_trouble = on_trouble
        self._unfinished: set[asyncio.Future[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def launch(
        self,
        claim: Claim,
        spec: TaskSpec,
        params: Mapping[str, Any],
        results: Mapping[str, str | None],
        *,
        missing: Mapping[str, str] | None = None,
        is_probe: bool = False,
        rules: tuple[Mapping[str, Any], ...] = (),
    ) -> None:
        """Start the attempt of a claim that is committed.

        ``results``: JSON of the parents, by name; ``missing``: those that have none, and why; ``is_probe``: sent by a
        breaker to look; ``rules``: how its downstream wants failures to be classified.
        """
        sitter = Sitter(self, claim, spec, is_probe)
        self.sitters[claim.name] = sitter
        order = AttemptOrder(
            run_id=claim.run_id,
            task=claim.name,
            attempt=claim.attempt,
            generation=claim.generation,
            token=claim.token,
            spec=spec,
            params=params,
            inputs=_joined(results),
            rules=rules,
            only_rows=claim.only_rows,
            checkpoint=claim.checkpoint,
            missing=tuple((missing or {}).items()),
            idempotency_key=effect_key(claim.run_id, claim.name, claim.key_generation),
        )
        self._keep(self.loop.create_task(self._start(sitter, order)))

    async def _start(self, sitter: Sitter, order: AttemptOrder) -> None:
        try:
            sitter.attempt = await self._runner.start(order, sitter)
        except ProcessLookupError as error:  # who would have forked it is gone: no fault of the task
            sitter.ended(lost(str(error)))
            return
        except OSError as error:  # no process, no memory, no descriptor: the machine's trouble, worth another try
            sitter.ended(not_started(error))
            return
        if sitter.cancelled or sitter.interrupted:
            sitter.attempt.cancel("cancelled before it started")

    def cancel(self, name: str, reason: str) -> None:
        """End an attempt by the same ladder as a timeout, if there is one. That it is wanted is in the file already."""
        sitter = self.sitters.get(name)
        if sitter is not None:
            sitter.cancelled = True
            if sitter.attempt is not None:
                sitter.attempt.cancel(reason)

    def extend(self, name: str, seconds: float) -> Sitter | None:
        """Give a running attempt more time. None: it has no deadline, or that has passed, or it is only starting."""
        sitter = self.sitters.get(name)
        if sitter is None or sitter.timeout is None or sitter.attempt is None or not sitter.attempt.extend(seconds):
            return None
        sitter.timeout += seconds
        return sitter

    def interrupt_all(self) -> None:
        """End every attempt because the executor stops; their tasks will run again."""
        for sitter in self.sitters.values():
            sitter.interrupted = True
            if sitter.attempt is not None:
                sitter.attempt.cancel("the executor stops")

    def settle(self, sitter: Sitter, outcome: Outcome, printed: Printed) -> None:
        """Write the end of an attempt, with the rest of its output.

        The desk forgets the sitter first: its slot is free, and the events of the settlement may start the next
        attempt of the same task.
        """
        claim, spec = sitter.claim, sitter.spec
        if self.sitters.get(claim.name) is sitter:
            del self.sitters[claim.name]
        self._on_ended(claim, outcome)
        freed = self._freed_by(claim.name) if outcome.kind is OutcomeKind.SUCCESS else {}

        def item(journal: Journal) -> None:
            if printed:
                _append(journal, claim, printed)
            settle(
                journal,
                claim,
                spec,
                outcome,
                self._clock.uniform,
                path_seconds=self._path_seconds(claim.name),
                deadline_at=self._deadline_at,
                is_probe=sitter.is_probe,
                interrupted=sitter.interrupted,
            )
            runs.promote(journal, claim.run_id, freed)

        self._keep(self._writer.submit(item, durable=spec.effect))

    def write(self, item: Callable[[Journal], None]) -> asyncio.Future[None]:
        """Write something that nobody waits for."""
        written = self._writer.submit(item)
        written.add_done_callback(self._check)
        return written

    def _keep(self, work: asyncio.Future[Any]) -> None:
        self._unfinished.add(work)
        self._idle.clear()
        work.add_done_callback(self._forget)
        work.add_done_callback(self._check)

    def _forget(self, work: asyncio.Future[Any]) -> None:
        self._unfinished.discard(work)
        if not self._unfinished and not self.sitters:
            self._idle.set()

    def _check(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_trouble(error)

    async def drain(self) -> None:
        """Wait until every attempt is settled."""
        await self._idle.wait()


def _joined(results: Mapping[str, str | None]) -> str:
    """One JSON object of the JSON of each."""
    return "{" + ",".join(f"{json.dumps(name)}:{text or 'null'}" for name, text in results.items()) + "}"


def _append(journal: Journal, claim: Claim, printed: Printed) -> None:
    key = (claim.run_id, claim.name, claim.attempt)
    logs.append(journal, *key, printed.text)
    if printed.rest:
        logs.skip(journal, *key, printed.dropped)
        logs.append(journal, *key, printed.rest)
