"""The executor side of ``isolation="dask"``: attempts on the workers of a Dask cluster.

Dask provides the queue and the workers. This module and ``dask_worker.py`` add a deadline that ends the process on the
worker, one start per attempt, and a lease, after which a silent attempt is certainly dead. Workers need redrive of the
same version; the source files of the flow travel to them.

A task that waits for a worker is READY. For as many tasks as could start, *offers* are queued in the cluster; the
worker that begins an offer asks for an attempt, and only then the executor claims a task. So a task is RUNNING from
the permission of its worker on, and an absence of the scheduler or of all workers costs no attempt.

An attempt whose worker is gone, or does not answer, is lost when it has certainly ended: a process of the same machine
says so, or its lease has expired. Dask's own client gives up for good after a few seconds; it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from ... import __version__
from ..core.failures.attempt_end import lost_outcome
from ..core.outcome import LostWith, Outcome, OutcomeKind
from ..core.spec import DaskOptions
from ..domain.event_codec import decode
from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..domain.liveness import LEASE_RENEWAL_SECONDS, LEASE_SECONDS, fence_seconds
from ..domain.text import counted
from ..errors import FlowError
from . import dask_worker
from .dask_worker import OfferMessage, Permit, RemoteFlow, Report, WorkerFacts, topic_of
from .protocol import AttemptControls, AttemptListener, AttemptOrder

CONNECT_SECONDS = 5.0  # also of the client that reconnects: a stop waits for so long
CLOSE_SECONDS = CONNECT_SECONDS + 2
WATCH_SECONDS = 1.0  # how often the workers are listed
ANSWER_SECONDS = 5.0  # for the scheduler and each worker to answer
SILENT_RENEWALS = 3  # without an answer, after which a worker counts as stopped
GRANT_SECONDS = 10.0  # a worker that asked longer ago may give up before the answer reaches it
WAIT_SECONDS = 2.0  # without a worker, after which people are told
LATE_MESSAGES_SECONDS = 5.0  # how long the end of an attempt waits for messages that were sent before it
PROBLEM_CHARACTERS = 200


class DaskFuture(Protocol):
    """The part of ``distributed.Future`` that is used here; it is asynchronous, as its client is."""

    status: str

    def add_done_callback(self, callback: Callable[[object], object], /) -> None: ...

    def result(self) -> Coroutine[object, object, bytes]: ...

    def exception(self) -> Coroutine[object, object, BaseException]: ...


Demand = tuple[DaskOptions, int]  # how many workers are wanted for tasks with the same options


class QueuedOffer(msgspec.Struct, eq=False):
    """An offer in the cluster. ``pool``: the tasks that it is for; ``worker``: the address of the one that asked."""

    id: str
    pool: str
    future: DaskFuture
    worker: str | None = None
    machine: str = ""  # of the worker
    asked_at: float = 0.0
    task: str | None = None  # that gets the worker
    attempt: RemoteAttempt | None = None
    is_due: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  # its future has ended, or may never do so


class KnownWorker(msgspec.Struct):
    """A worker of the cluster. ``problem``: why it cannot take attempts; empty: it can."""

    facts: WorkerFacts | None = None
    problem: str = ""
    refusal: str = ""  # the problem of a worker that imports another flow
    silences: int = 0  # requests in a row that it has not answered


class RemoteAttempt(AttemptControls):
    """An attempt that a worker was permitted to start."""

    def __init__(self, cluster: DaskCluster, offer: QueuedOffer, order: AttemptOrder, listener: AttemptListener):
        assert offer.worker is not None
        self.offer = offer
        self.worker: str = offer.worker
        self.order = order
        self.process: tuple[int, int | None] | None = None  # the pid and the start of its process, once it has started
        self.unrenewed_since: float | None = None  # its lease is not renewed any more
        self.why = f"its worker {offer.worker} is gone"
        self._cluster = cluster
        self._listener = listener
        self._messages: dict[int, OfferMessage] = {}  # that arrived before an earlier one, by number
        self._next = 1  # the first one was the request
        self._has_all_messages = asyncio.Event()
        self._message_count: int | None = None
        self._is_over = False
        self._is_interrupted = False
        self._cancel_reason: str | None = None

    # --- Messages of its worker ---------------------------------------------------------------------------------------

    def on_message(self, message: OfferMessage) -> None:
        """Forward messages to the listener in the order of their numbers; they may arrive in another."""
        if message.number < self._next:
            return
        self._messages[message.number] = message
        while not self._is_over and self._next in self._messages:
            self._forward(self._messages.pop(self._next))
            self._next += 1
        if self._message_count is not None and self._next >= self._message_count:
            self._has_all_messages.set()

    def _forward(self, message: OfferMessage) -> None:
        match message.method:
            case "flow_requested":
                self._cluster.send_flow(self)
            case "flow_refused":
                self._cluster.refuse_worker(self.worker, *message.arguments)
            case "started":
                self._on_started(*message.arguments)
            case "step" | "retried" as method:
                getattr(self._listener, method)(decode(*message.arguments))
            case method:
                getattr(self._listener, method)(*message.arguments)

    def _on_started(self, pid: int, start_ticks: int | None) -> None:
        self.process = pid, start_ticks
        self._listener.started_remotely(self.worker, pid, start_ticks)
        if self._cancel_reason is not None:  # the request found no process
            self._call("cancel", self._cancel_reason)

    async def wait_for_messages(self, count: int) -> None:
        """Wait until all ``count`` messages of the worker were forwarded, at most ``LATE_MESSAGES_SECONDS``."""
        self._message_count = count
        if self._next < count:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_all_messages.wait(), LATE_MESSAGES_SECONDS)

    def end(self, outcome: Outcome) -> None:
        """Report the outcome, once."""
        if not self._is_over:
            self._is_over = True
            self._listener.ended(outcome)

    # --- Control ------------------------------------------------------------------------------------------------------

    def cancel(self, reason: str) -> bool:
        """Start the escalation on the worker. It ends when its lease expires, also if nobody can say so."""
        if self._is_over:
            return False
        self._cancel_reason = reason
        self._call("cancel", reason)
        seconds = self.stop_renewing()
        asyncio.get_running_loop().call_later(seconds, self.offer.is_due.set)
        return True

    def interrupt(self) -> bool:
        """Cancel it, and wait no longer for its worker than for a process of this host.

        Then the task starts again only after the lease has expired. Without that a task that may not run twice would
        be a human's decision while it still runs: it is waited for.
        """
        if self._is_interrupted:
            return False
        self._is_interrupted = True
        if self.order.spec.idempotent:
            asyncio.get_running_loop().call_later(self.order.spec.grace_seconds + ANSWER_SECONDS, self._leave)
        return self.cancel("the executor stops")

    def _leave(self) -> None:
        self.end(Outcome(OutcomeKind.CANCELLED, fence_seconds=self.stop_renewing()))

    def extend(self, seconds: float) -> bool:
        """Move the deadline."""
        if self._is_over or self.process is None or self.order.spec.timeout is None:
            return False
        self._call("extend", seconds)
        return True

    def _call(self, method: str, *arguments: object) -> None:
        self._cluster.call(self.worker, dask_worker.call_attempt, self.offer.id, method, *arguments)

    # --- The lease ----------------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        """Expect no result: renew the lease no more, and end the attempt when it is certainly dead."""
        if not self.offer.is_due.is_set():
            self.why = f"its worker {self.worker} {why}"
            self.stop_renewing()
            self.offer.is_due.set()

    def stop_renewing(self) -> float:
        """Return the seconds until the attempt is certainly dead."""
        now = asyncio.get_running_loop().time()
        if self.unrenewed_since is None:
            self.unrenewed_since = now
        return max(0.0, self.unrenewed_since + fence_seconds(self.order.spec.grace_seconds) - now)


class DaskCluster:
    """The connection to one Dask scheduler and its workers.

    ``client``: None if the scheduler is away at first. ``report(payload)``: tells people what changed; ``wake()``: a
    task may start, or waits for another reason.
    """

    def __init__(
        self,
        address: str,
        executor_id: str,
        flow: RemoteFlow,
        *,
        client: Any,
        report: Callable[[ExecutorChanged], object],
        wake: Callable[[], object],
    ) -> None:
        self.address = address
        self._client = client
        self._report = report
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._is_there = client is not None  # the scheduler answers
        self._silent_since: float | None = None  # although it is connected
        self._executor_id = executor_id
        self._flow = flow
        self._offers: dict[str, QueuedOffer] = {}
        self._demand: Mapping[str, Demand] = {}
        self._waiting_since: dict[str, float] = {}  # by pool
        self._idle_since: float | None = None  # tasks wait, and none runs on the cluster
        self._workers: dict[str, KnownWorker] = {}  # by address
        self._problem = ""  # why the latest offer failed
        self._is_refused = False  # an offer failed since the workers were examined
        self._tasks: set[asyncio.Task[object]] = set()
        if client is not None:
            client.subscribe_topic(topic_of(executor_id), self._on_event)
        self._spawn(self._examine_workers())
        self._spawn(self._watch())

    # --- Offers: tasks that wait for a worker -------------------------------------------------------------------------

    def demand(self, demand: Mapping[str, Demand]) -> None:
        """Queue as many offers for each pool of tasks as are wanted, and withdraw the others."""
        now = self._loop.time()
        self._demand = dict(demand)
        self._waiting_since = {pool: self._waiting_since.get(pool, now) for pool in demand}
        if not demand or any(offer.attempt is not None for offer in self._offers.values()):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        for pool in {offer.pool for offer in self._offers.values()} | demand.keys():
            self._adjust(pool, *demand.get(pool, (DaskOptions(), 0)))

    def _adjust(self, pool: str, options: DaskOptions, count: int) -> None:
        free = [offer for offer in self._offers.values() if offer.pool == pool and offer.task is None]
        free.sort(key=lambda offer: offer.worker is None)  # a worker that has asked is kept
        self._withdraw(free[count:])
        for _ in range(count - len(free) if self._may_offer else 0):
            self._submit(pool, options)

    @property
    def _may_offer(self) -> bool:
        return self._answers and not self._is_refused and (not self._workers or bool(self._fit_workers()))

    @property
    def _answers(self) -> bool:
        """Whether the scheduler answers."""
        return self._is_there and self._silent_since is None

    def _fit_workers(self) -> list[str]:
        return [worker for worker, known in self._workers.items() if not known.problem]

    def _submit(self, pool: str, options: DaskOptions) -> None:
        id, fit = uuid.uuid4().hex, self._fit_workers()
        has_unfit = len(fit) < len(self._workers)
        try:
            future: DaskFuture = self._client.submit(
                dask_worker.run_attempt,
                id,
                self._executor_id,
                key=f"redrive-{id}",
                pure=False,
                retries=0,
                resources=dict(options.resources) or None,
                workers=list(options.workers) or (fit if has_unfit else None),
                priority=options.priority,
            )
        except Exception:  # whatever the connection raises: the cluster is away
            self._lose_scheduler()
            return
        offer = self._offers[id] = QueuedOffer(id, pool, future)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(offer.is_due.set))
        self._spawn(self._wait_for_offer(offer))

    def _withdraw(self, offers: list[QueuedOffer]) -> None:
        for offer in offers:
            self._drop(offer)
            if offer.worker is not None:
                self.call(offer.worker, dask_worker.answer, offer.id, b"")
        queued = [offer.future for offer in offers if offer.worker is None]
        if queued:
            self._spawn(self._cancel(queued))

    def _drop(self, offer: QueuedOffer) -> None:
        self._offers.pop(offer.id, None)
        offer.is_due.set()

    def acquire(self, task: str, pool: str) -> bool:
        """Give a worker that has asked to a task; False: none has."""
        earliest = self._loop.time() - GRANT_SECONDS
        for offer in self._offers.values():
            if offer.pool == pool and offer.task is None and offer.worker is not None and offer.asked_at > earliest:
                offer.task = task
                return True
        return False

    def release(self, task: str) -> None:
        """Take the worker back from a task that does not start after all."""
        for offer in self._offers.values():
            if offer.task == task and offer.attempt is None:
                offer.task = None

    def start(self, order: AttemptOrder, listener: AttemptListener) -> AttemptControls:
        """Start the attempt of a task on the worker that it has acquired."""
        offer = next((one for one in self._offers.values() if one.task == order.task and one.attempt is None), None)
        if offer is None or offer.worker is None or not self._is_there:
            self._loop.call_soon(
                listener.ended, lost_outcome("its worker was gone before it started", is_blameless=True)
            )
            return AttemptControls()
        offer.attempt = RemoteAttempt(self, offer, order, listener)
        self._spawn(self._wait_for_attempt(offer.attempt))
        permit = Permit(self._flow.target, order)
        self.call(offer.worker, dask_worker.answer, offer.id, msgspec.msgpack.encode(permit))
        return offer.attempt

    def send_flow(self, attempt: RemoteAttempt) -> None:
        """Send the flow to the worker of an attempt."""
        self.call(attempt.worker, dask_worker.receive_flow, attempt.offer.id, msgspec.msgpack.encode(self._flow))

    def refuse_worker(self, worker: str, why: str) -> None:
        """Offer nothing more to a worker in whose surroundings the flow is another one."""
        known = self._known(worker)
        known.refusal = f"worker {worker} imports another flow: {why}"
        self._note_problem(known, known.refusal)

    # --- Why tasks wait -----------------------------------------------------------------------------------------------

    def waits(self) -> dict[str, str]:
        """Return why tasks wait for a worker, by pool, once they have waited for ``WAIT_SECONDS``."""
        since = self._loop.time() - WAIT_SECONDS
        return {pool: self._why() for pool, began in self._waiting_since.items() if began <= since}

    @property
    def idle_seconds(self) -> float:
        """The seconds that tasks have waited while none ran on the cluster."""
        return 0.0 if self._idle_since is None else self._loop.time() - self._idle_since

    def _why(self) -> str:
        if not self._answers:
            return f"no Dask scheduler answers at {self.address}"
        if not self._workers:
            return "the Dask cluster has 0 workers"
        if self._problem:
            return self._problem
        unfit = [known.problem for _, known in sorted(self._workers.items()) if known.problem]
        if unfit:
            return f"{unfit[0]} ({len(unfit)} of {counted(len(self._workers), 'worker')} cannot take it)"
        return f"none of {counted(len(self._workers), 'worker')} is free"

    def _report_cluster(self, what: str) -> None:
        self._report(ExecutorChanged(ExecutorChange.CLUSTER_CHANGED, how=what))

    # --- The end of an offer, and of its attempt ----------------------------------------------------------------------

    async def _wait_for_offer(self, offer: QueuedOffer) -> None:
        """Forget an offer that has ended without an attempt, and note why."""
        await offer.is_due.wait()
        if offer.attempt is not None or self._offers.pop(offer.id, None) is None:
            return
        if offer.future.status != "error":
            self._wake()
            return
        self._is_refused = True
        with contextlib.suppress(Exception):  # the connection is lost
            error = await offer.future.exception()
            self._problem = f"a worker could not take it: {type(error).__name__}: {error}"[:PROBLEM_CHARACTERS]

    async def _wait_for_attempt(self, attempt: RemoteAttempt) -> None:
        outcome = lost_outcome("the cluster could not say how it ended")
        try:
            outcome = await self._outcome(attempt)
        finally:
            self._drop(attempt.offer)
            attempt.end(outcome)

    async def _outcome(self, attempt: RemoteAttempt) -> Outcome:
        while True:
            await attempt.offer.is_due.wait()
            report = await _read_report(attempt.offer.future)
            if report is not None and report.outcome is not None:
                await attempt.wait_for_messages(report.message_count)
                return report.outcome
            if report is not None and report.worker == attempt.worker and attempt.process is None:
                return lost_outcome(f"its worker {attempt.worker} did not wait for it", is_blameless=True)
            attempt.give_up("is gone")
            seconds = attempt.stop_renewing()
            if not seconds or await self._is_proven_dead(attempt):
                return lost_outcome(attempt.why, lost_with=LostWith.PROCESS)
            await asyncio.sleep(min(seconds, WATCH_SECONDS))

    async def _is_proven_dead(self, attempt: RemoteAttempt) -> bool:
        """Whether a process of the same machine, this one or a worker, sees that the attempt has ended."""
        machine = attempt.offer.machine
        if attempt.process is None or not machine:
            return False
        if machine == dask_worker.machine_of_this_process():
            return await asyncio.to_thread(dask_worker.has_ended, *attempt.process)
        for worker in self._fit_workers():
            facts = self._workers[worker].facts
            if worker != attempt.worker and facts is not None and facts.machine == machine:
                return await self.request(worker, dask_worker.has_ended, *attempt.process) is True
        return False

    # --- The workers --------------------------------------------------------------------------------------------------

    async def _examine_workers(self) -> None:
        """Renew the leases of all attempts until the connection is closed, and see which workers answer."""
        while True:
            await asyncio.sleep(LEASE_RENEWAL_SECONDS)
            renewed = [one for one in self._attempts() if one.unrenewed_since is None]
            asked = {one.worker for one in renewed}
            if self._demand or any(known.facts is None for known in self._workers.values()):
                asked |= self._workers.keys()
            for worker in asked:
                offers = [one.offer.id for one in renewed if one.worker == worker]
                self._spawn(self._examine_worker(worker, offers))
            self._is_refused = False
            self._wake()

    async def _examine_worker(self, worker: str, offers: list[str]) -> None:
        answer = await self.request(worker, dask_worker.renew_leases, offers)
        if not isinstance(answer, bytes):
            self._note_silence(worker)
            return
        self._known(worker).silences = 0
        self._note_facts(worker, msgspec.msgpack.decode(answer, type=WorkerFacts))

    def _known(self, worker: str) -> KnownWorker:
        """Return what is known of a worker, which may have asked before it was listed."""
        return self._workers.setdefault(worker, KnownWorker())

    def _note_silence(self, worker: str) -> None:
        if not self._answers:
            return
        known = self._known(worker)
        known.silences += 1
        if known.silences >= SILENT_RENEWALS:
            self._note_problem(known, f"worker {worker} does not answer")
            for attempt in self._attempts():
                if attempt.worker == worker:
                    attempt.give_up(f"has not answered for {LEASE_SECONDS:g} s")

    def _note_facts(self, worker: str, facts: WorkerFacts) -> None:
        known = self._known(worker)
        known.facts = facts
        if facts.version != __version__:
            self._note_problem(known, f"worker {worker} has redrive {facts.version}, and this is {__version__}")
        else:
            self._note_problem(known, known.refusal)

    def _note_problem(self, known: KnownWorker, problem: str) -> None:
        if known.problem != problem:
            known.problem = problem
            self._offer_again()

    def _offer_again(self) -> None:
        """Queue the offers again, for other workers than before."""
        self._withdraw([offer for offer in self._offers.values() if offer.worker is None])
        self._wake()

    def _attempts(self) -> list[RemoteAttempt]:
        return [offer.attempt for offer in self._offers.values() if offer.attempt is not None]

    def _note_workers(self, workers: set[str], listed_at: float) -> None:
        is_changed = workers != self._workers.keys()
        self._workers = {worker: self._known(worker) for worker in workers}
        for offer in list(self._offers.values()):
            if offer.worker is not None and offer.worker not in workers and offer.asked_at < listed_at:
                self._lose(offer, "is gone")
        if is_changed:
            self._problem = ""
            self._offer_again() if any(known.problem for known in self._workers.values()) else self._wake()

    def _lose(self, offer: QueuedOffer, why: str) -> None:
        if offer.attempt is not None:
            offer.attempt.give_up(why)
        elif offer.task is None:
            self._drop(offer)

    # --- The scheduler ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """List the workers; notice that the scheduler is away, and connect again, until the connection is closed."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._is_there and self._client.status == "running" and await self._is_still_there():
                continue
            self._lose_scheduler()
            if self._client is not None and self._client.status == "connecting":
                continue  # it closes itself soon
            await _close(self._client)
            with contextlib.suppress(FlowError):
                self._client = await _connect(self.address)
                self._client.subscribe_topic(topic_of(self._executor_id), self._on_event)
                self._is_there = True
                self._report_cluster("the Dask scheduler answers again")
                self._wake()

    async def _is_still_there(self) -> bool:
        """List the workers. A scheduler that hangs is waited for until the leases of all attempts have expired."""
        asked_at = self._loop.time()
        if await self._list_workers():
            if self._silent_since is not None:
                self._silent_since = None
                for known in self._workers.values():
                    known.silences = 0
                self._wake()
            return True
        if self._silent_since is None:
            self._silent_since = asked_at
        is_connected = self._client.status == "running"
        return is_connected and self._loop.time() - self._silent_since < LEASE_SECONDS

    async def _list_workers(self) -> bool:
        """List the workers; False: the scheduler does not answer."""
        listed_at = self._loop.time()
        try:
            workers = set(await asyncio.wait_for(self._client.nthreads(), ANSWER_SECONDS))
        except Exception:  # whatever the connection raises
            return False
        self._note_workers(workers, listed_at)
        return True

    def _lose_scheduler(self) -> None:
        if not self._is_there:
            return
        self._is_there, self._silent_since, self._workers = False, None, {}
        self._report_cluster(
            "no Dask scheduler answers: what waits for a worker goes on waiting, and what ran there is lost"
        )
        for offer in list(self._offers.values()):
            self._lose(offer, "has lost its scheduler")
        self._wake()

    # --- Calls to workers ---------------------------------------------------------------------------------------------

    async def _cancel(self, futures: list[DaskFuture]) -> None:
        with contextlib.suppress(Exception):  # the connection is lost, and the scheduler forgets what was queued
            await self._client.cancel(futures, force=True)

    def call(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on a worker without waiting for the result; a worker that is gone is ignored here."""
        self._spawn(self.request(worker, function, *arguments))

    async def request(self, worker: str, function: Callable[..., object], *arguments: object) -> object:
        """Call a function on a worker and return its result; None if the worker does not answer."""
        try:
            results: dict[str, object] = await asyncio.wait_for(
                self._client.run(function, *arguments, workers=[worker], on_error="ignore"), ANSWER_SECONDS
            )
        except Exception:  # no scheduler, no such worker: whatever the connection raises
            return None
        return results.get(worker)

    def _on_event(self, event: tuple[float, bytes]) -> None:
        message = msgspec.msgpack.decode(event[1], type=OfferMessage)
        offer = self._offers.get(message.offer)
        if message.method == "permit_requested":
            self._on_request(message.offer, offer, *message.arguments)
        elif offer is not None and offer.attempt is not None:
            offer.attempt.on_message(message)

    def _on_request(self, id: str, offer: QueuedOffer | None, worker: str, version: str, machine: str) -> None:
        """Keep the first worker that asks. Dask calls a function again whose worker died: later ones are refused."""
        self._problem = ""
        if offer is not None and offer.worker is None and version == __version__:
            offer.worker, offer.machine, offer.asked_at = worker, machine, self._loop.time()
            self._wake()
            return
        self.call(worker, dask_worker.answer, id, b"")
        if version != __version__:
            self._note_facts(worker, WorkerFacts(version, machine))
        if offer is not None and offer.attempt is not None:
            offer.attempt.give_up("is gone")

    def _spawn(self, work: Coroutine[object, object, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave the cluster. Attempts that still run there end when their lease expires."""
        for task in self._tasks:
            task.cancel()
        for attempt in self._attempts():
            attempt.end(lost_outcome("the executor ended"))
        await _close(self._client)


async def connect(
    address: str,
    executor_id: str,
    flow: RemoteFlow,
    *,
    may_be_away: bool,
    report: Callable[[ExecutorChanged], object],
    wake: Callable[[], object],
) -> DaskCluster:
    """Connect to the scheduler at ``address``. Raises FlowError that says what to do.

    ``may_be_away``: a scheduler that does not answer is waited for.
    """
    client = None
    try:
        client = await _connect(address)
    except SchedulerUnreachable:
        if not may_be_away:
            raise
    return DaskCluster(address, executor_id, flow, client=client, report=report, wake=wake)


class SchedulerUnreachable(FlowError):
    """No scheduler answers."""


async def _connect(address: str) -> Any:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise FlowError("tasks with isolation='dask' need Dask: pip install 'redrive[dask]'") from None
    for name in ("distributed", "distributed.client"):  # the journal says when the scheduler is away
        logging.getLogger(name).setLevel(logging.CRITICAL)
    client = distributed.Client(address, asynchronous=True, timeout=CONNECT_SECONDS, set_as_default=False)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await _close(client)
        why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        raise SchedulerUnreachable(f"no Dask scheduler answers at {address!r}: {why}") from None
    return client


async def _close(client: Any) -> None:
    """Close a client, if there is one. It may wait for a scheduler that does not answer."""
    if client is None:
        return
    with contextlib.suppress(Exception):  # whatever the connection raises
        await asyncio.wait_for(client.close(), CLOSE_SECONDS)


async def _read_report(future: DaskFuture) -> Report | None:
    """Return the report of a call that has ended; None: it has not, or cannot be read."""
    if future.status != "finished":
        return None
    with contextlib.suppress(Exception):  # the worker that has the result is gone
        return msgspec.msgpack.decode(await asyncio.wait_for(future.result(), ANSWER_SECONDS), type=Report)
    return None
