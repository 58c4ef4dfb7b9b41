"""Attempts on the workers of a Dask cluster: more than one machine, under the same rules (document 003, gap 1).

The queue and the workers are Dask's. What Dask does not have is here and in ``worker.py``: a deadline that ends
the process on the worker, one start per attempt, and a lease after which an attempt that was not heard of is certainly
dead. Workers need redrive, and the flow's files at the same path.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from ...core.outcome import Outcome, OutcomeKind
from ...core.spec import FlowSpec
from ...domain.event_codec import decode
from ...domain.liveness import RENEW_SECONDS, fence_seconds
from ...errors import FlowError
from ..listener import AttemptListener
from ..outcome_of_exit import lost, refused
from ..protocol import AttemptOrder
from . import worker as worker_module
from .worker import Errand, Report, Told

CONNECT_SECONDS = 10.0
LATE_WORDS_SECONDS = 5.0  # how long the end of an attempt waits for what was told before it
STACK_SECONDS = 5.0


class DaskAttempt:
    """An attempt that waits for a worker, or runs on one."""

    pid = 0  # none of this host

    def __init__(self, cluster: DaskCluster, order: AttemptOrder, listener: AttemptListener) -> None:
        self.order = order
        self.worker: str | None = None  # which one was permitted to start it
        self.future: object = None
        self.is_withdrawn = False
        self._cluster = cluster
        self._listener = listener
        self._heard: dict[int, Told] = {}
        self._next = 0
        self._all_heard: asyncio.Event = asyncio.Event()
        self._told: int | None = None
        self._is_over = False

    # --- What is heard of it ------------------------------------------------------------------------------------------

    def hear(self, told: Told) -> None:
        """Take a message; they may overtake each other, and are passed on in order."""
        if told.what == "asked":
            self._asked(told.arguments[0])
        if self.worker is None or told.number < self._next:
            return
        self._heard[told.number] = told
        while not self._is_over and self._next in self._heard:
            self._pass_on(self._heard.pop(self._next))
            self._next += 1
        if self._told is not None and self._next >= self._told:
            self._all_heard.set()

    def _asked(self, address: str) -> None:
        """A worker asks to start it. Only the first one may: Dask starts a function anew when its worker has died."""
        is_first = self.worker is None and not self.is_withdrawn and not self._is_over
        if is_first:
            self.worker = address
        self._cluster.call(address, worker_module.permit, self.order.token, is_first)

    def _pass_on(self, told: Told) -> None:
        match told.what:
            case "asked":
                pass
            case "started":
                self._listener.started_remotely(str(self.worker), *told.arguments)
            case "step" | "retried" as what:
                getattr(self._listener, what)(decode(*told.arguments))
            case what:
                getattr(self._listener, what)(*told.arguments)

    async def hear_the_rest(self, told: int) -> None:
        """Wait for the messages that its worker has sent before the end."""
        self._told = told
        if self._next < told:
            try:
                await asyncio.wait_for(self._all_heard.wait(), LATE_WORDS_SECONDS)
            except TimeoutError:
                return

    def end(self, outcome: Outcome) -> None:
        """It is over."""
        if not self._is_over:
            self._is_over = True
            self._listener.ended(outcome)

    # --- What may be asked of it --------------------------------------------------------------------------------------

    def cancel(self, reason: str) -> bool:
        """End it by the ladder on its worker; at once, if it waits for one."""
        if self._is_over:
            return False
        if self.worker is None:
            self.is_withdrawn = True
            self._cluster.withdraw(self)
        else:
            self._order("cancel", reason)
        return True

    def extend(self, seconds: float) -> bool:
        """Move its deadline."""
        if self.worker is None or self._is_over or self.order.spec.timeout is None:
            return False
        self._order("extend", seconds)
        return True

    async def dump_stack(self) -> str:
        """Where it stands now."""
        if self.worker is None:
            return ""
        try:
            async with asyncio.timeout(STACK_SECONDS):
                said = await self._cluster.ask(self.worker, worker_module.order, self.order.token, "dump_stack")
        except TimeoutError:
            return ""
        return str(said or "")

    def pause_output(self) -> None:
        """Its worker bounds by itself what it sends."""

    def resume_output(self) -> None:
        """As above."""

    def _order(self, what: str, *arguments: object) -> None:
        assert self.worker is not None
        self._cluster.call(self.worker, worker_module.order, self.order.token, what, *arguments)


class DaskCluster:
    """The workers behind one scheduler, as far as this executor uses them."""

    def __init__(self, client: Any, executor_id: str, target: str, params: Mapping[str, Any], flow: FlowSpec) -> None:
        self._client = client
        self._executor_id = executor_id
        self._target = target
        self._params = dict(params)
        self._code_hash = flow.code_hash
        self._topic = f"redrive-{executor_id}"
        self._attempts: dict[str, DaskAttempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        client.subscribe_topic(self._topic, self._hear)
        self._keep(self._renew())

    def start(self, order: AttemptOrder, listener: AttemptListener) -> DaskAttempt:
        """Queue an attempt for the next worker that has room."""
        attempt = self._attempts[order.token] = DaskAttempt(self, order, listener)
        errand = Errand(self._executor_id, self._topic, self._target, self._params, self._code_hash, order)
        attempt.future = self._client.submit(
            worker_module.attend,
            msgspec.msgpack.encode(errand),
            key=f"redrive-{order.task}-{order.token}",
            pure=False,
            retries=0,
        )
        self._keep(self._attend(attempt))
        return attempt

    async def _attend(self, attempt: DaskAttempt) -> None:
        """Wait for its end, whatever that is."""
        outcome = lost("the cluster could not say how it ended")
        try:
            outcome = await self._outcome(attempt)
        finally:
            del self._attempts[attempt.order.token]
            attempt.end(outcome)

    async def _outcome(self, attempt: DaskAttempt) -> Outcome:
        status, value = await _settled(attempt.future)
        if status == "finished" and value:
            report = msgspec.msgpack.decode(value, type=Report)
            await attempt.hear_the_rest(report.told)
            return report.outcome
        if attempt.is_withdrawn:
            return Outcome(OutcomeKind.CANCELLED)
        if attempt.worker is None:
            return _never_started(status, value)
        await asyncio.sleep(fence_seconds(attempt.order.spec.grace_seconds))
        return lost(f"its worker {attempt.worker} is gone")

    # --- Calls to workers ---------------------------------------------------------------------------------------------

    def withdraw(self, attempt: DaskAttempt) -> None:
        """Take it out of the queue."""
        self._keep(self._client.cancel([attempt.future], force=True))

    def call(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on a worker; a worker that is gone is found out about elsewhere."""
        self._keep(self.ask(worker, function, *arguments))

    async def ask(self, worker: str, function: Callable[..., object], *arguments: object) -> object:
        """Call a function on a worker and return what it returns; None if it does not answer."""
        try:
            answers = await self._client.run(function, *arguments, workers=[worker], on_error="ignore")
        except (OSError, ValueError):  # no scheduler, no such worker
            return None
        return answers.get(worker)

    async def _renew(self) -> None:
        """Say to the workers that their attempts are waited for, until this is closed."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for worker in {attempt.worker for attempt in self._attempts.values()} - {None}:
                self.call(str(worker), worker_module.renew, self._executor_id)

    def _hear(self, event: tuple[float, bytes]) -> None:
        told = msgspec.msgpack.decode(event[1], type=Told)
        attempt = self._attempts.get(told.token)
        if attempt is not None:
            attempt.hear(told)

    def _keep(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave the cluster. What still runs there ends when its lease does."""
        for task in self._tasks:
            task.cancel()
        for attempt in list(self._attempts.values()):
            attempt.end(lost("the executor ended"))
        await self._client.close()


async def connect(
    address: str, executor_id: str, target: str, params: Mapping[str, object], flow: FlowSpec
) -> DaskCluster:
    """Join the cluster whose scheduler is at ``address``. Raises FlowError with what to do."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise FlowError("tasks with isolation='dask' need Dask: pip install 'redrive[dask]'") from None
    client = distributed.Client(address, asynchronous=True, timeout=CONNECT_SECONDS, set_as_default=False)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await client.close()
        why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        raise FlowError(f"no Dask scheduler answers at {address!r}: {why}") from None
    return DaskCluster(client, executor_id, target, params, flow)


async def _settled(future: Any) -> tuple[str, Any]:
    """How a Dask future ended, and its result or its exception."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
    await over.wait()
    status = str(future.status)
    if status == "finished":
        return status, await future.result()
    return status, await future.exception() if status == "error" else None


def _never_started(status: str, error: object) -> Outcome:
    """No worker was permitted to start it: costs the task nothing, unless the workers cannot run it at all."""
    if status == "error":
        return refused(f"no worker could run it: {type(error).__name__}: {error}")
    return lost("the cluster has lost it before it started", is_blameless=True)
