"""The executor: one loop that opens a run, dispatches its tasks, and stops in order.

It decides nothing by itself: ``core/ledger.py`` says who may start, ``core/decide.py`` what an outcome means,
``store/`` remembers, ``runner/`` acts. Every change is committed first; the fold of its events is what the next turn
of the loop sees.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .attempts import AttemptDesk
from .clock import Clock, SystemClock
from .core.dag import Dag
from .core.events import Event, EventKind
from .core.fold import RunFold, TaskRow
from .core.ledger import Ledger, spec_of
from .core.outcome import Outcome
from .core.run_state import RunVerdict, judge_run
from .core.spec import FlowSpec, TaskSpec
from .core.states import RunState, TaskState
from .downstreams import Downstreams, store, tell_change
from .errors import RedriveError, StorageError
from .flow import Flow, TaskDef
from .notify import CLOSE_SECONDS, Notifier, Origin
from .opening import OpenRun, Place, Request, RunOptions, beat, open_run, reserve, state_path_of
from .server import CommandServer
from .store import claims
from .store.claims import Claim
from .store.journal import Journal
from .timers import Timers
from .watch import Watch

__all__ = ["Executor", "RunOptions", "RunResult"]

HEARTBEAT_SECONDS = 1.0  # the lock file's mtime: costs no commit, and is seen from outside
HEARTBEATS_PER_ROW = 10  # the executor's row in the file (document 003)
CLOCK_JUMP_SECONDS = 2.0

Listener = Callable[[Sequence[Event]], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How it ended. ``state`` is RUNNING where it was blocked or interrupted."""

    run_id: str
    state: RunState
    blocked: bool = False
    interrupted: bool = False


class Executor:
    """Runs one run of one flow in one state file, alone.

    The documents' form is ``Executor(dag_name, run_id, tasks, max_parallel=4).run()``; closures are welcome, because
    attempts are forked from this process. ``flow`` may be a path instead: then a clean interpreter imports it; with
    ``flow=None`` and no tasks, the flow file that the run in ``state`` names. ``handle_signals``: SIGTERM and SIGINT
    stop it in order. ``on_open(run_id)`` is called once it owns the state file and the run.
    """

    def __init__(
        self,
        dag_name: str = "",
        run_id: str | None = None,
        tasks: Sequence[TaskDef] | None = None,
        max_parallel: int | None = None,
        *,
        flow: Flow | str | None = None,
        state: str | os.PathLike[str] | None = None,
        options: RunOptions | None = None,
        clock: Clock | None = None,
        on_events: Listener | None = None,
        on_open: Callable[[str], None] | None = None,
        handle_signals: bool = False,
    ) -> None:
        if tasks is not None:
            flow = _flow_of(dag_name, tasks)
        self._request = Request(
            flow=flow,
            run_id=run_id,
            state_path=state_path_of(flow, None if state is None else os.fspath(state)),
            executor_id=uuid.uuid4().hex,
            options=options or RunOptions(max_parallel=max_parallel),
        )
        self._clock: Clock = clock or SystemClock()
        self._on_events = on_events
        self._on_open = on_open
        self._handle_signals = handle_signals

    @property
    def state_path(self) -> str:
        """Where the run is kept."""
        return self._request.state_path

    def run(self) -> str:
        """Run to the end; returns the state of the run as text, as document 003's executor does.

        Raises FlowError, StateFileError, ExecutorBusyError.
        """
        return str(self.run_result().state)

    def run_result(self) -> RunResult:
        """Run to the end. The zygote of an in-memory flow is forked first, before any thread or loop exists."""
        place = reserve(self._request)
        try:
            return asyncio.run(self._serve(place))
        finally:
            place.release()

    async def _serve(self, place: Place) -> RunResult:
        opened = await open_run(place, self._clock)
        try:
            run_loop = RunLoop(opened, self._clock, self._on_events)
            if self._handle_signals:
                run_loop.handle_signals()
            return await run_loop.run(self._on_open)
        finally:
            await opened.close()


def _flow_of(dag_name: str, tasks: Sequence[TaskDef]) -> Flow:
    flow = Flow(dag_name)
    for task in tasks:
        flow.add(task)
    return flow


class RunLoop:
    """The one loop: events in, claims out."""

    def __init__(self, opened: OpenRun, clock: Clock, on_events: Listener | None) -> None:
        self._opened = opened
        self._stays = opened.place.request.options.stay
        self._clock = clock
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._writer = opened.writer
        self.fold: RunFold = opened.fold
        self.flow: FlowSpec = opened.flow
        self._remaining = _remaining_seconds(opened)
        self.ledger = Ledger(self.fold, self._remaining)
        self._timers = Timers(self._loop, clock.now_us, self._come_due)
        self._wake = asyncio.Event()
        self._stopping: str | None = None
        self._trouble: BaseException | None = None
        self._committing: asyncio.Task[None] | None = None  # a dispatch, or a verdict: one at a time
        self._ended: RunResult | None = None
        self.storage_trouble: str | None = None  # why the state file cannot be written at the moment
        self.downstreams = Downstreams(opened.flow, clock.now_us, self._breaker_changed)
        self.downstreams.load(opened.breaker_rows)
        self.desk = AttemptDesk(
            runner=opened.runner,
            writer=opened.writer,
            loop=self._loop,
            clock=clock,
            path_seconds=lambda name: self._remaining.get(name, 0.0) if opened.median_seconds else 0.0,
            deadline_at=self.fold.run.deadline_at,
            on_ended=self._attempt_ended,
            on_trouble=self._fail,
        )
        self._server = CommandServer(self, opened.state_path)
        origin = Origin(self.flow.name, self.fold.run.run_id, opened.state_path)
        self._notifier = Notifier(self.flow.pages, origin, self._writer.submit, clock)
        path_seconds = self._remaining if opened.median_seconds else {}
        self._watch = Watch(self.fold, self.desk, self.downstreams, self.ledger.startable, clock, path_seconds)
        self._reopening: asyncio.Task[None] | None = None
        self._beat_handle: asyncio.TimerHandle | None = None
        self._beats = 0
        self._last_wall = clock.now_us()
        self._last_monotonic = clock.monotonic()

    # --- From start to end -----------------------------------------------------------------------------------------

    async def run(self, on_open: Callable[[str], None] | None = None) -> RunResult:
        """Dispatch until the run has ended, is blocked, or was asked to stop."""
        hooks = self._opened.hooks
        hooks.on_events, hooks.on_trouble = self._take_events, self._storage_trouble
        self._opened.runner.on_lost = self._runner_lost
        self._opened.runner.on_freed = self._wake.set
        self._opened.runner.on_news = self._tell_news
        await self._server.start()
        self._notifier.start()
        for row in self.fold.tasks.values():
            self._arm(row)
        self._beat()
        self._wake.set()
        if on_open is not None:
            on_open(self.fold.run.run_id)
        try:
            while self._ended is None:
                await self._wake.wait()
                self._wake.clear()
                if self._trouble is not None:
                    raise self._trouble
                self._turn()
            return self._ended
        finally:
            await self._close()

    async def _close(self) -> None:
        self._timers.clear()
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if self._trouble is None:
            await self.desk.drain()
        await self._notifier.close(CLOSE_SECONDS if self._trouble is None else 0)
        await self._server.close()

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT stop in order; the terminal going away means nothing to a run."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop, "now")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def stop(self, how: str) -> None:
        """ "drain": start nothing more; "now": end what runs as well."""
        if how == "now" and self._stopping != "now":
            self.desk.interrupt_all()
        self._stopping = "now" if "now" in (how, self._stopping) else how
        self._wake.set()

    def submit(self, item: Callable[[Journal], Any], **who: str | None) -> asyncio.Future[Any]:
        """Have something written; ``who``: actor, reason, command_id."""
        return self._writer.submit(item, **who)

    def wake(self) -> None:
        """Look again whether there is something to do."""
        self._wake.set()

    @property
    def executor_id(self) -> str:
        """Of this process, as in the executor table and in the environment of every attempt."""
        return self._opened.claimant.executor_id

    def _fail(self, error: BaseException) -> None:
        self._trouble = self._trouble or error
        self._wake.set()

    # --- Events ----------------------------------------------------------------------------------------------------

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            old = self.fold.tasks[event.task].state if event.task in self.fold.tasks else None
            row = self.fold.apply(event)
            if row is not None and event.kind in (EventKind.TASK, EventKind.TASK_CHANGED):
                assert old is not None
                if row.state is not old or event.kind == EventKind.TASK:
                    self.ledger.moved(row, old)
                self._arm(row)
                if (event.data.get("set") or {}).get("cancel_requested_at") is not None:
                    self.desk.cancel(row.name, f"cancelled by {event.actor}: {event.reason}")
        self._wake.set()  # first: a listener that raises must not put the run to sleep
        self._notifier.take(events)
        if self._on_events is not None:
            self._on_events(events)

    def _arm(self, row: TaskRow) -> None:
        """Arm the instant that a task waits for, if any."""
        if row.next_retry_at is None or row.state not in (TaskState.RETRYING, TaskState.SENSING, TaskState.PENDING):
            self._timers.disarm(row.name)
            self.ledger.come_due(row.name)
            return
        if row.state is TaskState.PENDING:
            self.ledger.not_before(row.name)
        self._timers.arm(row.name, row.next_retry_at)

    def _come_due(self, key: str) -> None:
        if key in self.fold.tasks:
            self.ledger.come_due(key)
        self._wake.set()

    def _attempt_ended(self, claim: Claim, outcome: Outcome) -> None:
        """Its downstream learns of it before anybody else may start."""
        self.downstreams.record(claim.name, outcome, self.fold.tasks[claim.name].failures)

    def _breaker_changed(self, downstream: str) -> None:
        told, run_id = self.downstreams.told(downstream), self.fold.run.run_id
        rows = self.downstreams.take_dirty()
        self.desk.write(lambda journal: tell_change(journal, run_id, told, rows))

    # --- One turn --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self._stopping is not None and self.storage_trouble is not None and not self.desk.sitters:
            why = "stopped while the state file could not be written: what ended meanwhile runs again on resume"
            self._fail(StorageError(why))
            return
        if self._committing is not None:
            return
        if self._stopping is not None:
            if not self.desk.sitters:
                self._ended = RunResult(self.fold.run.run_id, self.fold.run.state, interrupted=True)
        elif not self._dispatch():
            self._judge()

    def _commit(self, work: Any) -> None:
        self._committing = self._loop.create_task(work)
        self._committing.add_done_callback(self._committed)

    def _committed(self, task: asyncio.Task[None]) -> None:
        self._committing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._wake.set()

    def _dispatch(self) -> bool:
        """Promote all whose parents are satisfied, and claim as many as there is room for. False: nothing to do."""
        if self.storage_trouble is not None or not self._opened.runner.is_open:
            return False
        if self._turn_away():
            return True
        free = 0 if self.fold.run.paused_since is not None else self._free_slots()
        picked = self.ledger.pick(free, self._admits)
        self._want_leaked_slots(len(picked) == free)
        promote = list(self.ledger.promotable)
        if not picked and not promote:
            return False
        self._commit(self._commit_dispatch(promote, picked))
        return True

    async def _commit_dispatch(self, promote: list[str], picked: list[str]) -> None:
        run_id, claimant = self.fold.run.run_id, self._opened.claimant
        orders = [claims.ClaimOrder(name, self.fold.tasks[name].generation, self._spec(name)) for name in picked]

        def item(journal: Journal) -> list[Claim]:
            return claims.dispatch(journal, run_id, promote, orders, claimant)

        try:
            taken = await self._writer.submit(item)
        finally:
            self.ledger.claimed(picked)
        self.downstreams.withdraw(set(picked) - {claim.name for claim in taken})
        for claim in taken:
            parents = self.fold.parents.get(claim.name, ())
            results = {parent: self.fold.tasks[parent].result for parent in parents}
            spec, probe = self._spec(claim.name), self.downstreams.is_probe(claim.name)
            rules = self.downstreams.rules(spec.downstream)
            self.desk.launch(claim, spec, self.flow.params, results, is_probe=probe, rules=rules)
            if self.fold.tasks[claim.name].cancel_requested_at is not None:  # in the same commit as the claim
                self.desk.cancel(claim.name, "cancelled before it started")
        if self._stopping == "now":  # asked for while these claims were being committed
            self.desk.interrupt_all()

    def _spec(self, name: str) -> TaskSpec:
        return spec_of(self.fold.tasks[name])

    def _free_slots(self) -> int:
        runner = self._opened.runner
        slots = min(self.fold.run.max_parallel, runner.attempts_max)
        return max(0, slots - self.ledger.running - runner.leaked_slots)

    def _want_leaked_slots(self, are_all_used: bool) -> None:
        runner = self._opened.runner
        if runner.leaked_slots:
            is_paused = self.fold.run.paused_since is not None
            runner.want_slots(are_all_used and not is_paused and self.ledger.has_startable)

    def _admits(self, row: TaskRow) -> bool:
        spec = spec_of(row)
        if spec.pool is not None:
            used = self.ledger.pool_used[spec.pool] + spec.pool_slots
            if used > self.flow.pools.get(spec.pool, 0):
                return False
        if spec.downstream is None:
            return True
        admission = self.downstreams.admit(row.name, spec.downstream, is_retry=row.failures > 0)
        if admission.call is None and admission.retry_at is not None:
            self._timers.arm(_downstream_key(spec.downstream), admission.retry_at)
        return admission.call is not None

    def _turn_away(self) -> bool:
        """Where a flow wants no waiting for an open breaker, end what would call it. False: nobody was turned away."""
        orders = [
            claims.ClaimOrder(name, self.fold.tasks[name].generation, self._spec(name))
            for downstream, spec in self.downstreams.specs.items()
            if spec.on_open != "hold" and self.downstreams.is_open(downstream)
            for name in self.ledger.startable(downstream)
        ]
        if not orders:
            return False
        self._commit(self._commit_turning_away(orders))
        return True

    async def _commit_turning_away(self, orders: list[claims.ClaimOrder]) -> None:
        run_id, specs = self.fold.run.run_id, self.downstreams.specs

        def item(journal: Journal) -> None:
            for order in orders:
                claims.turn_away(journal, run_id, order, specs[str(order.spec.downstream)].on_open)

        await self._writer.submit(item)

    def _judge(self) -> None:
        """End the run, or mark it blocked, when nothing can move without an operator."""
        run = self.fold.run
        active = self.ledger.active - self._shut_out()
        if active or self.desk.sitters:
            if run.blocked_since is not None:
                self._commit(self._commit_change("unblocked", {"blocked_since": None}))
            return
        verdict = judge_run(self.fold.tasks.values(), active)
        if verdict.blocked and run.blocked_since is not None:
            if not self._stays:
                self._ended = RunResult(run.run_id, run.state, blocked=True)
        elif not verdict.blocked and run.ended_at is not None:
            self._ended = RunResult(run.run_id, run.state)
        else:
            self._commit(self._commit_verdict(verdict))

    def _shut_out(self) -> int:
        """Tasks whose downstream stays open until an operator says otherwise: they move no more than a dead letter."""
        shut = [name for name in self.downstreams.specs if self.downstreams.is_shut(name)]
        if not shut or not self.ledger.counts[TaskState.DEAD_LETTER]:
            return 0
        return sum(len(self.ledger.startable(name)) for name in shut)

    async def _commit_verdict(self, verdict: RunVerdict) -> None:
        run_id = self.fold.run.run_id
        await self._writer.submit(lambda journal: claims.write_verdict(journal, run_id, verdict))

    async def _commit_change(self, what: str, columns: dict[str, Any]) -> None:
        run_id = self.fold.run.run_id
        await self._writer.submit(lambda journal: journal.change_run(run_id, what, columns))

    # --- When something is wrong -----------------------------------------------------------------------------------

    def _storage_trouble(self, what: str, sentence: str) -> None:
        """The disk refuses: start nothing more, let run what runs, and say so once it can be written again."""
        data = {"what": what, "sentence": sentence}
        self._wake.set()
        if what == "degraded":
            self.storage_trouble = sentence
            self._tell_listener(Event._make((0, self._clock.now_us(), EventKind.STORAGE, *[None] * 9, data)))
        else:
            self.storage_trouble = None
            self.desk.write(lambda journal: _tell_storage(journal, data))

    def _tell_listener(self, unwritten: Event) -> None:
        """What no file can hold now: an event without a number, for whoever shows or prints the run."""
        if self._on_events is not None:
            self._on_events([unwritten])

    def _tell_news(self, what: str, data: Mapping[str, Any]) -> None:
        """Something about the processes under the executor that no attempt of its own tells."""
        run_id, told = self.fold.run.run_id, {"what": what, **data}
        self.desk.write(lambda journal: _tell_news(journal, run_id, told))

    def _runner_lost(self) -> None:
        """The zygote died, and all attempts with it: they are settled as lost; a new zygote takes over."""
        self._reopening = self._loop.create_task(self._reopen_runner())
        self._reopening.add_done_callback(self._reopened)

    async def _reopen_runner(self) -> None:
        path = self.flow.path
        if path is None:
            raise RedriveError("the process that holds the functions of this flow died; start the program again")
        await self._opened.runner.open(path, dict(self.flow.params))

    def _reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._wake.set()

    # --- The heartbeat ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Show that the loop turns; once in ten beats in the file as well. Also the safety net of the dispatch."""
        self._beat_handle = self._loop.call_later(HEARTBEAT_SECONDS, self._beat)  # first: the disk may refuse the rest
        self._opened.touch()
        if self._beats % HEARTBEATS_PER_ROW == HEARTBEATS_PER_ROW - 1:
            executor_id = self.executor_id
            self.desk.write(lambda journal: beat(journal, executor_id))
        self._beats += 1
        if rows := self.downstreams.take_dirty():
            self.desk.write(lambda journal: store(journal, rows))
        self._watch_clock()
        self._watch.beat()
        self._wake.set()

    def _watch_clock(self) -> None:
        """Wall and monotonic time must advance together; armed timers are safe either way, stored instants are not."""
        wall, monotonic = self._clock.now_us(), self._clock.monotonic()
        jump = (wall - self._last_wall) / 1e6 - (monotonic - self._last_monotonic)
        self._last_wall, self._last_monotonic = wall, monotonic
        if abs(jump) > CLOCK_JUMP_SECONDS:
            run_id, jump_us = self.fold.run.run_id, round(jump * 1e6)
            self.desk.write(lambda journal: claims.shift_instants(journal, run_id, jump_us))


def _remaining_seconds(opened: OpenRun) -> dict[str, float]:
    """Longest path from each task to a leaf, by the medians of earlier runs; by count where there are none."""
    fold, medians = opened.fold, opened.median_seconds
    unknown = sorted(medians.values())[len(medians) // 2] if medians else 1.0
    weights = {name: medians.get(name, unknown) for name in fold.tasks}
    dag = Dag((name, fold.parents.get(name, ())) for name in fold.tasks)
    return dict(dag.remaining_path(weights))


def _downstream_key(downstream: str) -> str:
    """Of the timer of a breaker; no task has a name with this character (``flow.py``)."""
    return f"\0{downstream}"


def _tell_news(journal: Journal, run_id: str, data: dict[str, Any]) -> None:
    journal.tell(EventKind.EXECUTOR, run_id, data=data)


def _tell_storage(journal: Journal, data: dict[str, Any]) -> None:
    journal.tell(EventKind.STORAGE, data=data)
