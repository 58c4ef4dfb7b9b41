"""The event loop of a run: dispatches its tasks, and shuts down in order.

The loop makes no decisions: ``core/ready_queue.py`` says which tasks may start, ``core/decide.py`` what an outcome
means, ``store/`` writes, ``runner/`` runs processes. Every change is committed first; its events update the run in
memory (``active_run.py``), and the next step of the loop reads that:

    dispatch.py  claims ready tasks           ->  commit  ->  attempts.py launches them and settles their outcomes
    run_end.py   ends the run, or blocks it   ->  commit  ->  the events arrive and trigger the next step

Once a second: ``HeartbeatTimer`` below, ``watchdog.py``, ``state_file_watch.py``, ``../clock.py``. For operators:
``server.py``. For pages and pings: ``publisher.py``. After the death of a zygote: ``zygote_restart.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..core.breaker import CallVerdict
from ..core.causes import LAST_TRIES_SECONDS
from ..core.downstreams import DownstreamStates
from ..core.outcome import Outcome, OutcomeKind
from ..domain.acts import BY_EXECUTOR, Author
from ..domain.event_payloads import OperatorActed, TaskChanged, TaskMoved
from ..domain.events import Event
from ..errors import StorageError
from ..runner.protocol import RunnerListener
from ..statefile.breakers import store_breakers, write_change
from ..statefile.clock_steps import shift_times
from ..statefile.transitions import Transaction
from ..store import executors
from ..store.claims import Claim
from ..store.machine import MachineBreakers
from ..store.writer import WriterListener
from .active_run import ActiveRun, Commit, FollowUp
from .attempts import OutputListener, RunningAttempts, Streams
from .dispatch import Dispatcher
from .opening import Machine, OpenRun
from .publisher import EventListener, Publisher
from .run_end import LateRuns, RunEndCheck, RunResult, Shutdown, apply_retention
from .server import CommandServer
from .state_file_watch import StateFileWatch, StorageHealth
from .watchdog import Watchdog
from .zygote_restart import ZygoteRestart

T = TypeVar("T")


class RunLoop:
    """The event loop of a run. Each step submits the next commit; at most one commit is in flight.

    The events of a commit update the run in memory and trigger the next step. Who calls whom stands in the constructor,
    in ``_duties`` and in ``_listen``.
    """

    def __init__(
        self,
        opened: OpenRun,
        machine: Machine,
        listener: EventListener | None,
        on_output: OutputListener | None = None,
        streams: Streams | None = None,
    ) -> None:
        clock = machine.clock
        self._opened = opened
        self.executor_id = opened.identity.executor_id
        self._loop = asyncio.get_running_loop()
        self._is_woken = False  # a step is scheduled
        self._is_committing = False
        self._acts_in_flight = 0
        self._end: RunResult | None = None  # of a run that has ended, while its last pages are sent
        self._is_paged = False
        self._pages_until = 0.0  # on the loop's clock
        self._result: asyncio.Future[RunResult] = self._loop.create_future()
        self.active_run = ActiveRun(opened, clock, self.wake)
        self.attempts = RunningAttempts(
            opened,
            self.active_run,
            clock,
            follow_up=self._follow_up,
            on_ended=self._on_attempt_ended,
            on_error=self._fail,
            on_retried=self._on_call_retried,
            on_output=on_output,
            streams=streams,
        )
        self.downstreams = DownstreamStates(opened.flow, clock.now_us, self._emit_breaker)
        self.downstreams.load(opened.breaker_rows, is_new_run=opened.is_new)
        self._breakers_of_machine = _breakers_of(machine, opened, self.downstreams)
        self.shutdown = Shutdown(self.attempts, self.wake)
        self._publisher = Publisher(opened, machine, self.active_run, self.attempts, listener)
        self.storage = StorageHealth(clock, self.attempts.write, self._publisher.notify_listener)
        self._file_watch = StateFileWatch(opened.state_path, opened.lease.lock, self.storage, opened.writer, self._fail)
        self._dispatcher = Dispatcher(opened, self.active_run, self.downstreams, self.attempts)
        self._run_end = RunEndCheck(self.active_run, self.downstreams, self.attempts, opened)
        self.zygote_restart = ZygoteRestart(
            opened, self.active_run, write=self.attempts.write, on_done=self.wake, on_failed=self._fail
        )
        self._server = CommandServer(self, opened.state_path)
        self._watchdog = Watchdog(self.active_run, self.attempts, self.downstreams, clock)
        self._clock_watch = opened.clock_watch
        self._late_runs = LateRuns(opened, clock, self._fail)
        self._heartbeat = HeartbeatTimer(opened, self.attempts, self._duties(), machine.heartbeat_seconds)
        self._listen()

    def _duties(self) -> list[Callable[[], None]]:
        """Return the checks of each heartbeat, in their order."""
        return [
            self._file_watch.check,
            self._server.check_socket,
            self._consider_findings,
            self._store_breakers,
            self._check_clock,
            self._publish_health,
            self._watchdog.check,
            self._late_runs.check,
            self.zygote_restart.check,
            self.wake,
        ]

    def _listen(self) -> None:
        """Say who is called when the writer has committed, and when the runner has news."""
        self._opened.writer.listen(
            WriterListener(
                events_committed=self._on_events_committed,
                events_durable=self._publisher.on_events_durable,
                storage_changed=self._on_storage_change,
                writing_failed=self._fail,
            )
        )
        self._opened.runner.listen(
            RunnerListener(
                zygote_lost=self._replace_zygote, slot_freed=self.wake, executor_changed=self._publisher.emit_news
            )
        )

    # --- The loop --------------------------------------------------------------------------------------------------

    async def run(self, on_open: Callable[[str], None] | None = None) -> RunResult:
        """Dispatch until the run has ended, is blocked, or was asked to stop."""
        self._loop.set_exception_handler(self._on_callback_error)
        await self._start()
        if on_open is not None:
            on_open(self.active_run.run_id)
        try:
            self._on_wake()
            return await asyncio.shield(self._result)
        finally:
            await self._close()

    def _on_wake(self) -> None:
        self._is_woken = False
        if self._result.done():
            return
        try:
            self._step()
        except Exception as error:
            self._fail(error)

    def _step(self) -> None:
        self._check_clock()  # before due times are compared with the clock
        step = None if self._result.done() else self._next_step()
        if isinstance(step, RunResult):
            if not self._acts_in_flight and not self._waits_for_pages(step):  # an act may reopen the run
                self._result.set_result(step)
        elif step is not None:
            self._reopen_run()
            self._is_committing = True
            self._opened.writer.write(
                step.item, partial(self._committed, step), self._commit_failed, durable=step.durable
            )

    def _next_step(self) -> RunResult | Commit | None:
        """Return what to commit next, or the result of the run; None: wait for events."""
        if self.shutdown.mode is not None and self._fails_unwritable_stop():
            return None
        if self._is_committing:
            return None
        if self.storage.problem is None and self.shutdown.mode != "now" and (passed := self._run_end.pass_deadline()):
            return passed
        if self._file_watch.is_missing and self.shutdown.mode is None and not self.attempts.running:
            if self._file_watch.is_given_up(self._loop.time()):
                self._fail(self._file_watch.missing_error())
            return None
        if self.shutdown.mode is not None:
            return self._end or self._run_end.interrupted_result()
        start = self._dispatcher.next_commit() if self.storage.problem is None else None
        return start or self._run_end.check()

    def _follow_up(self, freed: Mapping[str, int]) -> FollowUp | None:
        """Return what to claim with the settlement of an attempt."""
        if self.shutdown.mode is not None or self._result.done():
            return None
        if self._file_watch.is_missing or self.storage.problem is not None or self._run_end.is_deadline_due:
            return None
        return self._dispatcher.follow_up(freed)

    def _waits_for_pages(self, end: RunResult) -> bool:
        """Whether unsent pages keep the executor of a run that has ended. Until then an act can continue the run."""
        options = self._opened.lease.request.options
        if end.interrupted or options.served or not self._publisher.notifier.is_running:
            return False  # ``redrive serve`` sends between its runs
        if self._end is None:
            self._pages_until = self._loop.time() + LAST_TRIES_SECONDS
            self._publisher.notifier.send_last(self._on_pages_sent)
        elif self._is_paged or self.shutdown.mode is not None:
            return False
        self._end = end
        return self._loop.time() < self._pages_until

    def _on_pages_sent(self) -> None:
        self._is_paged = True
        self.wake()

    def _reopen_run(self) -> None:
        """Forget an end of the run that an act has undone."""
        if self._end is not None:
            self._end, self._is_paged = None, False
            self._publisher.notifier.send_last(None)

    def _committed(self, commit: Commit, result: object) -> None:
        self._is_committing = False
        try:
            commit.on_committed(result)
        except Exception as error:  # a failed step must not leave the loop waiting for ever
            self._fail(error)
        self.wake()

    def _commit_failed(self, error: BaseException) -> None:
        self._is_committing = False
        self._fail(error)

    def _on_events_committed(self, events: Sequence[Event]) -> None:
        self.active_run.apply(events)
        acts = [event for event in events if event.actor is not None]
        self._cancel_attempts(events)
        self._probe_repaired_downstreams(acts)
        self.wake()

    def _cancel_attempts(self, events: Sequence[Event]) -> None:
        """Terminate running attempts whose end an operator or the deadline of the run has requested."""
        for event in events:
            payload = event.payload
            if event.task is None or not isinstance(payload, TaskChanged | TaskMoved):
                continue
            if payload.set.get("cancel_requested_at") is not None:
                by_operator = f"cancelled by {event.actor}: {event.reason}"
                self.attempts.cancel(event.task, payload.why or by_operator)

    def _probe_repaired_downstreams(self, events: Sequence[Event]) -> None:
        """Probe the downstreams of requeued tasks: a requeue after AuthError implies new credentials.

        See ``statefile/operator_actions.py``.
        """
        for event in events:
            for downstream in event.payload.probes if isinstance(event.payload, OperatorActed) else ():
                self.downstreams.request_probe(downstream)

    def _on_attempt_ended(self, claim: Claim, outcome: Outcome) -> CallVerdict:
        """Update the breaker before the next dispatch. The slot is free before the outcome is committed."""
        self._check_clock()
        if outcome.kind is not OutcomeKind.SUCCESS:
            self.zygote_restart.check_before_retry()
        row, retry = self.active_run.projection.tasks[claim.task], self.active_run.spec(claim.task).retry
        return self.downstreams.record(claim.task, outcome, row.failures + row.refusals, retry.max_attempts)

    def _on_call_retried(self, task: str) -> None:
        self._check_clock()
        self.downstreams.record_retry(task)

    # --- Start and close -------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._publisher.start()
        self._server.start()
        self.active_run.start()
        for downstream in self.downstreams.changed_names:  # so that the events of this run show their state
            self._emit_breaker(downstream)
        self._store_breakers()
        self._heartbeat.start()

    async def save_file(self) -> None:
        """Save a state file that is missing, before it is closed. Raises StorageError if it is."""
        await self._file_watch.save()

    async def _close(self) -> None:
        self.active_run.close()
        self._heartbeat.stop()
        await self.zygote_restart.close()
        self._dispatcher.close()
        failed = self._result.done() and self._result.exception() is not None
        if not failed:
            await self.attempts.drain()
        await self._publisher.close_pages(has_failed=failed)
        if not failed:
            writer, flow = self._opened.writer, self._opened.flow
            await apply_retention(writer, flow, self.active_run.run_id, lambda: self.shutdown.mode is not None)
        await self._publisher.close(has_failed=failed)
        await self._server.close()

    def _fail(self, error: BaseException) -> None:
        """End the loop at once and raise ``error`` to the caller."""
        if not self._result.done():
            self._result.set_exception(error)
        self.wake()

    def _on_callback_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run after an exception in a callback: the loop might otherwise wait for ever."""
        loop.default_exception_handler(context)
        if "handle" in context and isinstance(error := context.get("exception"), BaseException):
            self._fail(error)

    def _on_storage_change(self, what: str, sentence: str) -> None:
        self.storage.on_writer_change(what, sentence)
        self._publish_health()
        self.wake()

    def _publish_health(self) -> None:
        self._publisher.publish_health(self.storage)

    def _fails_unwritable_stop(self) -> bool:
        """Fail, instead of waiting for the disk, if a stop was requested while the state file cannot be written."""
        if self.storage.problem is None or self.attempts.running:
            return False
        if self._file_watch.is_missing:
            self._fail(self._file_watch.missing_error())
            return True
        why = "stopped while the state file could not be written: tasks that ended since then run again on resume"
        self._fail(StorageError(why))
        return True

    # --- For the command server ------------------------------------------------------------------------------------

    async def respond(self, line: bytes) -> Mapping[str, object]:
        """Answer one line as the command socket does. Raises ConnectionError once the executor leaves."""
        return await self._server.respond(line)

    def submit(self, item: Callable[[Transaction], T], author: Author = BY_EXECUTOR) -> asyncio.Future[T]:
        """Queue a write whose result an operator receives."""
        self._check_clock()  # the act may compute times
        written = self._opened.writer.submit(item, author, durable=True)
        self._acts_in_flight += 1
        written.add_done_callback(self._on_act_written)
        return written

    def operate_breaker(self, downstream: str, how: str, actor: str) -> str:
        """Change a breaker in memory; return a sentence. Raises RefusedError."""
        self._check_clock()  # a change computes times
        return self.downstreams.operate(downstream, how, actor)

    def _on_act_written(self, written: asyncio.Future[Any]) -> None:
        self._acts_in_flight -= 1
        self.wake()

    @property
    def has_result(self) -> bool:
        """True once the executor leaves: later changes of the run are for the next executor."""
        return self._result.done()

    def wake(self) -> None:
        """Trigger the next step of the loop, at the end of this turn of the event loop."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._on_wake)

    # --- Fire and forget -------------------------------------------------------------------------------------------

    def _emit_breaker(self, downstream: str) -> None:
        change = self.downstreams.change_event(downstream)
        rows = self.downstreams.drain_dirty_rows()
        self.attempts.write(lambda transaction: write_change(transaction, self.active_run.run_id, change, rows))
        finding = self.downstreams.finding(downstream)
        if finding is not None and self._breakers_of_machine is not None:
            self._breakers_of_machine.publish(downstream, finding)

    def _consider_findings(self) -> None:
        if self._breakers_of_machine is not None:
            for downstream, finding in self._breakers_of_machine.read_new().items():
                self.downstreams.consider(downstream, finding)

    def _replace_zygote(self) -> None:
        if self.shutdown.mode is None:
            self.zygote_restart.start()

    def _store_breakers(self) -> None:
        if rows := self.downstreams.drain_dirty_rows():
            self.attempts.write(lambda transaction: store_breakers(transaction.connection, rows))

    def _check_clock(self) -> None:
        """Shift the times of the run if the wall clock was stepped."""
        if jump_us := self._clock_watch.jump_us():
            self._shift_times(jump_us)

    def _shift_times(self, jump_us: int) -> None:
        self.downstreams.shift_clock(jump_us)
        self._watchdog.shift_clock(jump_us)
        self.storage.shift_clock(jump_us)
        rows = self.downstreams.drain_dirty_rows()

        def item(transaction: Transaction) -> None:
            shift_times(transaction, [self.active_run.run_id], jump_us)
            store_breakers(transaction.connection, rows)  # with the tasks: the next executor knows nothing of the step

        self.attempts.write(item)


def _breakers_of(machine: Machine, opened: OpenRun, downstreams: DownstreamStates) -> MachineBreakers | None:
    folder = machine.breakers_folder()
    if folder is None or not downstreams.specs:
        return None
    found = MachineBreakers(folder, downstreams.specs, opened.flow.name, opened.identity.executor_id)
    found.register(name for name, spec in downstreams.specs.items() if spec.shared)
    return found


# --- Runs a coroutine to its end, also for a caller whose thread runs an event loop (a notebook) ---------------------


def run_to_end(coroutine: Coroutine[object, object, T], stop: Callable[[], None]) -> T:
    """Do what ``asyncio.run`` does; if a loop runs here, in a thread with a loop of its own.

    ``stop``: called in that thread on Ctrl-C; the coroutine then has to end.
    """
    if not _has_loop():
        return asyncio.run(coroutine)
    loop = asyncio.new_event_loop()

    def run() -> T:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(coroutine)

    with ThreadPoolExecutor(1, "redrive-executor") as pool:
        ended = pool.submit(run)
        try:
            return ended.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # the loop ended first
                loop.call_soon_threadsafe(stop)
            raise


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --- The heartbeat: once a second the executor shows that it is alive and runs its periodic checks -------------------
#
# It touches the lock file, which costs no commit and is visible to other processes, and writes its row every ten
# seconds. One of the checks wakes the loop, so that a missed wake-up delays the run by one second at most.


HEARTBEATS_PER_ROW = 10  # 003.40


class HeartbeatTimer:
    """Beats from ``start`` to ``stop`` and runs ``checks`` at each beat, in this order."""

    def __init__(
        self, opened: OpenRun, attempts: RunningAttempts, checks: Sequence[Callable[[], None]], period_seconds: float
    ) -> None:
        self._opened = opened
        self._attempts = attempts
        self._checks = checks
        self._period_seconds = period_seconds
        self._beats = 0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat now and every ``period_seconds``."""
        # Schedule the next beat first: the rest may raise if the disk fails.
        self._next = asyncio.get_running_loop().call_later(self._period_seconds, self.start)
        self._opened.lease.lock.touch()
        self._beats += 1
        if self._beats % HEARTBEATS_PER_ROW == 0:
            executor_id = self._opened.identity.executor_id
            self._attempts.write(lambda transaction: executors.write_heartbeat(transaction, executor_id))
        for check in self._checks:
            check()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
