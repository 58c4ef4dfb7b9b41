"""The executor: one loop that opens a run, dispatches its tasks, and stops in order.

It decides nothing by itself: ``core/ready_queue.py`` says who may start, ``core/decide.py`` what an outcome means,
``store/`` remembers, ``runner/`` acts. Every change is committed first; the fold of its events is what the next turn
of the loop sees:

    dispatch.py  starts what may start       ->  commit  ->  attempts.py launches it, and settles how it ends
    run_end.py       ends the run, or blocks it  ->  commit  ->  the events come back, and with them the next turn

Beside the loop: ``heartbeat.py``, ``watchdog.py`` and ``clock_watch.py`` once a second, ``server.py`` for operators,
``../notify.py`` for pages; ``storage_health.py``, ``zygote_restart.py`` and ``shutdown.py`` when something is wrong or ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..clock import Clock, SystemClock
from ..core.downstreams import Downstreams
from ..core.outcome import Outcome
from ..core.projection import RunFold
from ..domain.event_payloads import ExecutorChanged, OperatorActed, TaskChanged, TaskMoved
from ..domain.events import Event
from ..errors import StartInterrupted, StorageError
from ..flow.flow import Flow, TaskDef
from ..notifications.notifier import CLOSE_SECONDS, Notifier, Origin
from ..statefile.changes.transitions import Journal
from ..store import breaker_rows, claims
from ..store.breaker_rows import emit_change
from ..store.claims import Claim
from .attempts import AttemptDesk
from .clock_watch import ClockWatch
from .commit import Commit
from .dispatch import Dispatcher
from .heartbeat import Heartbeat
from .late_runs import Promises
from .opening import OpenRun, Place, Request, RunOptions, open_run, reserve, state_path_of
from .run_end import Judge, RunResult
from .run_view import Standing
from .server import CommandServer
from .shutdown import Shutdown, handle_signals
from .state_file_watch import Whereabouts
from .storage_health import StorageHealth
from .watchdog import Watch
from .zygote_restart import Revival

__all__ = ["Executor", "RunOptions", "RunResult"]

Listener = Callable[[Sequence[Event]], None]


class Executor:
    """Runs one run of one flow, and is the only one that writes its state file meanwhile.

    Parameters:
        dag_name: the name of the flow that ``tasks`` make.
        run_id: text that names the run; a run of this name in the state file is gone on with. None: a new run that is
            named after the time, or, with ``RunOptions(resume=True)``, the latest one in the state file.
        tasks: the tasks as ``TaskDef``; closures are fine, because attempts are forked from this process.
        max_parallel: attempts at a time, at least 1; not read where ``options`` are given. None: what the flow says,
            or 4.
        flow: instead of ``tasks``: a ``Flow``, or the path of a flow file, which a clean interpreter imports. None,
            without ``tasks``: the flow file that the run in ``state`` names.
        state: the path of the state file. None: ``$REDRIVE_STATE``, or ``<flow>.db`` in the user's state folder.
        options: how to run: see ``RunOptions``.
        clock: the clock of the run, for tests.
        on_events: called with the events of each commit, in the thread of the event loop.
        on_open: called with the name of the run once the executor owns it.
        handle_signals: True: SIGTERM and SIGINT stop the run in order.

    Example:
        >>> from redrive.engine import TaskDef
        >>> tasks = [TaskDef("extract", lambda: [5, 7]), TaskDef("load", lambda extract: sum(extract), ["extract"])]
        >>> Executor("sums", "monday", tasks, max_parallel=4).run()
        'SUCCESS'
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
        options = options or RunOptions(max_parallel=max_parallel)
        self._request = Request(
            flow=flow,
            run_id=run_id,
            state_path=state_path_of(flow, None if state is None else os.fspath(state), options.params),
            executor_id=uuid.uuid4().hex,
            options=options,
        )
        self._clock: Clock = clock or SystemClock()
        self._on_events = on_events
        self._on_open = on_open
        self._handle_signals = handle_signals
        self._place: Place | None = None
        self._run_loop: RunLoop | None = None
        self._is_stopping = False

    @property
    def state_path(self) -> str:
        """The path of the state file."""
        return self._request.state_path

    def run(self) -> str:
        """Run to the end, and return the state of the run: "SUCCESS", "FAILED", "PARTIAL" or "RUNNING".

        "RUNNING" is a run that waits for an operator or was stopped: the same call goes on with it.

        Raises:
            FlowError: the flow cannot be run.
            StateFileError: the state file cannot be used.
            ExecutorBusyError: another executor owns the state file.
            StartInterrupted: a signal came before anything was started.
        """
        return str(self.run_result().state)

    def run_result(self) -> RunResult:
        """Do what ``run`` does, and return more of how it ended."""
        place = self._reserve()
        try:
            return asyncio.run(self._serve(place))
        except KeyboardInterrupt:  # a signal before the loop took it
            if place.is_used:
                raise
            raise StartInterrupted(_TOO_EARLY) from None
        finally:
            place.release()

    def _reserve(self) -> Place:
        """Raises StartInterrupted for a signal, as while it waits for another executor to leave."""
        if not self._handle_signals:
            return reserve(self._request)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the loop takes both
        try:
            return reserve(self._request)
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, before)
            raise StartInterrupted(_TOO_EARLY) from None

    async def run_here(self) -> RunResult:
        """Do what ``run_result`` does in the event loop of the caller; ``flow`` is the path of a file."""
        place = reserve(self._request)
        try:
            return await self._serve(place)
        finally:
            place.release()

    def stop(self) -> None:
        """Stop in order, now or as soon as the run is open: attempts are ended, and a later start goes on."""
        self._is_stopping = True
        if self._place is not None:
            self._place.interrupt()
        if self._run_loop is not None:
            self._run_loop.stop("now")

    async def _serve(self, place: Place) -> RunResult:
        self._place = place
        if self._handle_signals:
            handle_signals(asyncio.get_running_loop(), self.stop)
        if self._is_stopping:
            place.interrupt()
        opened = await open_run(place, self._clock)
        try:
            run_loop = self._run_loop = RunLoop(opened, self._clock, self._on_events)
            if self._is_stopping:
                self.stop()
            if self._handle_signals:
                handle_signals(asyncio.get_running_loop(), lambda: run_loop.shutdown.ask("now"))
            return await run_loop.run(self._on_open)
        finally:
            self._run_loop = None
            await opened.close()


_TOO_EARLY = "interrupted before the run was opened: nothing was started"


def _flow_of(dag_name: str, tasks: Sequence[TaskDef]) -> Flow:
    flow = Flow(dag_name)
    for task in tasks:
        flow.add(task)
    return flow


class RunLoop:
    """The one loop. Each turn begins the commit that the run needs next: at most one is under way.

    What follows from a commit comes back as events, and with them the next turn.
    """

    def __init__(self, opened: OpenRun, clock: Clock, listener: Listener | None) -> None:
        self._opened = opened
        self._listener = listener
        self._wake = asyncio.Event()
        self._is_committing = False
        self._over: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._standing = Standing(opened, clock, self.wake)
        self.desk = self._make_desk(clock)
        self.downstreams = Downstreams(opened.flow, clock.now_us, self._tell_breaker)
        self.downstreams.load(opened.breaker_rows)
        self.shutdown = Shutdown(self.desk, self.wake)
        self._storage = StorageHealth(clock, self.desk.write, self._show)
        self._whereabouts = Whereabouts(opened.state_path, opened.place.lock, self._storage, opened.writer, self._fail)
        opened.last_word = self._whereabouts.copy_again
        self._dispatcher = Dispatcher(opened, self._standing, self.downstreams, self.desk)
        stays = opened.place.request.options.stay
        self._judge = Judge(self._standing, self.downstreams, self.desk, stays=stays)
        self._revival = Revival(opened.runner, opened.flow, self.wake, self._fail)
        self._server = CommandServer(self, opened.state_path)
        origin = Origin(opened.flow.name, self.fold.run.run_id, opened.state_path)
        self._notifier = Notifier(opened.flow.pages, origin, opened.writer.submit, clock)
        watch = Watch(self._standing, self.desk, self.downstreams, clock)
        self._clock_watch = ClockWatch(clock, self._move_instants)
        promises = Promises(opened, clock, self._fail)
        names = [self._whereabouts.look, self._server.look]
        duties = [*names, self._store_counts, self._clock_watch.look, watch.beat, promises.beat, self.wake]
        self._heartbeat = Heartbeat(opened, self.desk, duties)

    def _make_desk(self, clock: Clock) -> AttemptDesk:
        return AttemptDesk(
            runner=self._opened.runner,
            writer=self._opened.writer,
            loop=asyncio.get_running_loop(),
            clock=clock,
            path_seconds=lambda name: self._standing.path_seconds.get(name, 0.0),
            deadline_at=self.fold.run.deadline_at,
            freed_by=self._standing.ledger.freed_by,
            on_ended=self._attempt_ended,
            on_trouble=self._fail,
        )

    # --- The loop --------------------------------------------------------------------------------------------------

    async def run(self, on_open: Callable[[str], None] | None = None) -> RunResult:
        """Dispatch until the run has ended, is blocked, or was asked to stop."""
        asyncio.get_running_loop().set_exception_handler(self._hear_of_a_bug)
        await self._start()
        if on_open is not None:
            on_open(self.fold.run.run_id)
        try:
            while not self._over.done():
                await self._wake.wait()
                self._wake.clear()
                self._turn()
            return self._over.result()
        finally:
            await self._close()

    def _turn(self) -> None:
        self._clock_watch.look()  # before anybody asks whether an instant has come
        step = None if self._over.done() else self._next_step()
        if isinstance(step, RunResult):
            self._over.set_result(step)
        elif step is not None:
            self._is_committing = True
            self._opened.writer.submit(step.item, durable=step.durable).add_done_callback(
                partial(self._committed, step)
            )

    def _next_step(self) -> RunResult | Commit | None:
        """What to commit next, or the end; None: wait for events."""
        if self.shutdown.how is not None and self._gives_up_writing():
            return None
        if self._is_committing:
            return None
        if self._whereabouts.is_away and self.shutdown.how is None and not self.desk.sitters:
            if self._whereabouts.is_lost:
                self._fail(self._whereabouts.error())
            return None
        if self.shutdown.how is not None:
            return self._judge.interrupted()
        start = self._dispatcher.next_commit() if self.storage_trouble is None else None
        return start or self._judge.verdict()

    def _committed(self, commit: Commit, written: asyncio.Future[Any]) -> None:
        self._is_committing = False
        try:
            commit.then(written.result())
        except Exception as error:  # a step that fails must not put the run to sleep
            self._fail(error)
        self.shutdown.end_what_runs()
        self.wake()

    def _take_events(self, events: Sequence[Event]) -> None:
        self._standing.take(events)
        self._end_what_is_unwanted(events)
        self._probe_what_was_mended(events)
        self.wake()  # first: a listener that raises must not put the run to sleep
        self._notifier.take(events)
        self._show(events)

    def _end_what_is_unwanted(self, events: Sequence[Event]) -> None:
        """An operator's cancel of a running task is in the file first, and done then."""
        for event in events:
            payload = event.payload
            if event.task is None or not isinstance(payload, TaskChanged | TaskMoved):
                continue
            if payload.set.get("cancel_requested_at") is not None:
                self.desk.cancel(event.task, f"cancelled by {event.actor}: {event.reason}")

    def _probe_what_was_mended(self, events: Sequence[Event]) -> None:
        """A requeue of what died of a refused credential says that it was renewed (``statefile/changes/breaker_actions.py``)."""
        for event in events:
            for downstream in event.payload.probes if isinstance(event.payload, OperatorActed) else ():
                self.downstreams.ask_again(downstream)

    def _attempt_ended(self, claim: Claim, outcome: Outcome) -> None:
        """Its downstream learns of it before anybody else may start, and its slot is free before it is settled."""
        self._clock_watch.look()
        self.downstreams.record(claim.name, outcome, self.fold.tasks[claim.name].failures)
        self.wake()

    # --- Start and end ---------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        hooks, runner = self._opened.hooks, self._opened.runner
        hooks.on_events, hooks.on_trouble = self._take_events, self._hear_of_storage
        self._show(hooks.early)
        runner.on_lost, runner.on_freed, runner.on_news = self._revival.begin, self.wake, self._emit_news
        await self._server.start()
        self._notifier.start()
        self._standing.start()
        for downstream in self.downstreams.remarkable:  # or nobody could tell from the run itself how it stood
            self._tell_breaker(downstream)
        self._heartbeat.start()

    async def _close(self) -> None:
        self._standing.close()
        self._heartbeat.stop()
        failed = self._over.done() and self._over.exception() is not None
        if not failed:
            await self.desk.drain()
        await self._notifier.close(0 if failed else CLOSE_SECONDS)
        await self._server.close()

    def _fail(self, error: BaseException) -> None:
        """End at once; what it was is raised to the caller."""
        if not self._over.done():
            self._over.set_exception(error)
        self.wake()

    def _hear_of_a_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback should have done is not done: to end at once is safe, to go on could wait for ever."""
        loop.default_exception_handler(context)
        if "handle" in context and isinstance(error := context.get("exception"), BaseException):
            self._fail(error)

    def _hear_of_storage(self, what: str, sentence: str) -> None:
        self._storage.hear(what, sentence)
        self.wake()

    def _gives_up_writing(self) -> bool:
        """Who was asked to stop does not wait for a disk that refuses."""
        if self.storage_trouble is None or self.desk.sitters:
            return False
        if self._whereabouts.is_away:
            self._fail(self._whereabouts.error())
            return True
        why = "stopped while the state file could not be written: what ended meanwhile runs again on resume"
        self._fail(StorageError(why))
        return True

    # --- For those who speak with the executor ---------------------------------------------------------------------

    @property
    def fold(self) -> RunFold:
        """The run as its committed events tell it."""
        return self._standing.fold

    @property
    def executor_id(self) -> str:
        """Of this process, as in the executor table and in the environment of every attempt."""
        return self._opened.claimant.executor_id

    @property
    def storage_trouble(self) -> str | None:
        """Why the state file cannot be written at the moment."""
        return self._storage.trouble

    def submit(self, item: Callable[[Journal], Any], **who: str | None) -> asyncio.Future[Any]:
        """Have something written; ``who``: actor, reason, command_id."""
        actor, reason, command_id = (who.get(word) for word in ("actor", "reason", "command_id"))
        return self._opened.writer.submit(item, actor=actor, reason=reason, command_id=command_id)

    def stop(self, how: str) -> None:
        """ "drain": start nothing more; "now": end what runs as well."""
        self.shutdown.ask(how)

    def wake(self) -> None:
        """Look again whether there is something to do."""
        self._wake.set()

    # --- What nobody waits for -------------------------------------------------------------------------------------

    def _show(self, events: Sequence[Event]) -> None:
        if self._listener is None:
            return
        try:
            self._listener(events)
        except Exception as error:  # whoever looks on has no part in the run
            told = {"message": "a listener of events raised", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    def _tell_breaker(self, downstream: str) -> None:
        change, run_id = self.downstreams.change_of(downstream), self.fold.run.run_id
        rows = self.downstreams.take_dirty()
        self.desk.write(lambda journal: emit_change(journal, run_id, change, rows))

    def _store_counts(self) -> None:
        if rows := self.downstreams.take_dirty():
            self.desk.write(lambda journal: breaker_rows.store(journal, rows))

    def _move_instants(self, jump_us: int) -> None:
        run_id = self.fold.run.run_id
        self.downstreams.shift(jump_us)
        self.desk.write(lambda journal: claims.shift_instants(journal, run_id, jump_us))

    def _emit_news(self, payload: ExecutorChanged) -> None:
        """Something about the processes under the executor that no attempt of its own tells."""
        run_id = self.fold.run.run_id
        self.desk.write(lambda journal: _emit(journal, run_id, payload))


def _emit(journal: Journal, run_id: str, payload: ExecutorChanged) -> None:
    journal.emit(payload, run_id)
