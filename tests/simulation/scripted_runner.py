"""The runner of a night: attempts are timers, and end as the plan says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from redrive.engine.core.failures.failure import describe_timeout
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.secret_mask import SecretMask
from redrive.engine.core.spec import FlowSpec
from redrive.engine.domain.event_changes import ExecutorChange
from redrive.engine.domain.event_payloads import AttemptDeadline, AttemptSigkill, AttemptSigterm, ExecutorChanged
from redrive.engine.runner.listener import AttemptListener, BadRow
from redrive.engine.runner.outcome_of_exit import lost, not_started
from redrive.engine.runner.protocol import AttemptOrder

from .plan import LIST_MAX, Plan

_CLASSES = {
    "transient": FailureClass.TRANSIENT,
    "unclassified": FailureClass.UNCLASSIFIED,
    "same failure": FailureClass.UNCLASSIFIED,
    "permanent": FailureClass.PERMANENT,
    "auth": FailureClass.AUTH,
    "validation": FailureClass.VALIDATION,
    "ambiguous": FailureClass.AMBIGUOUS,
    "oom": FailureClass.OUT_OF_MEMORY,
}
_PIDS = 1_000_000  # beyond those of this machine; no code looks at a process without start ticks


class ScriptedRunner:
    """Stands in for ``zygote.client.Runner``. ``on_start`` and ``on_end`` observe the attempts."""

    def __init__(self, plan: Plan, executor_id: str, on_start: Callable[[AttemptOrder], None]) -> None:
        self.executor_id = executor_id
        self.on_lost: Callable[[], None] = lambda: None
        self.on_freed: Callable[[], None] = lambda: None
        self.on_executor_change: Callable[[ExecutorChanged], None] = lambda change: None
        self.attempts_max = 1000
        self.warnings: tuple[str, ...] = ()
        self.printed = ""
        self.remote = None
        self.mask = SecretMask()
        self.leaked_slots = 0
        self.is_open = False
        self.running: dict[int, ScriptedAttempt] = {}
        self.plan = plan
        self._on_start = on_start
        self._last_number = 0
        self._starts: set[asyncio.Task[None]] = set()

    async def open(self, target: str = "", params: Any = None, **options: Any) -> FlowSpec:
        self.is_open = True
        return self.plan.flow

    async def prepare(self, target: str, **options: Any) -> Any:
        await asyncio.sleep(0.5)
        return SimpleNamespace(spec=self.plan.flow, shared=SimpleNamespace(mask=self.mask))

    def replace(self, prepared: Any) -> None:
        self.is_open = True

    async def discard(self, prepared: Any) -> None:
        """There is no process."""

    def set_slot_demand(self, has_demand: bool) -> None:
        """No slot leaks."""

    def launch(
        self,
        order: AttemptOrder,
        listener: AttemptListener,
        on_started: Callable[[Any], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        async def start() -> None:
            try:
                on_started(await self._start(order, listener))
            except OSError as error:
                on_failed(error)

        task = asyncio.get_running_loop().create_task(start())
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start(self, order: AttemptOrder, listener: AttemptListener) -> ScriptedAttempt:
        behaviour, dice = self.plan.behaviour(order.task, order.attempt)
        await asyncio.sleep(dice.choice((0.0, 0.001, 0.05)))
        if not self.is_open:
            raise ProcessLookupError("the zygote is gone")
        if behaviour == "not started":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self._on_start(order)
        self._last_number += 1
        attempt = ScriptedAttempt(self, self._last_number, order, listener, behaviour, dice)
        self.running[self._last_number] = attempt
        attempt.begin()
        return attempt

    def lose_zygote(self) -> None:
        """The zygote dies, and all attempts with it."""
        if not self.is_open:
            return
        self.is_open = False
        for attempt in list(self.running.values()):
            attempt.end(lost("its zygote died"))
        self.on_executor_change(ExecutorChanged(ExecutorChange.ZYGOTE_DIED, pid=_PIDS, how="killed"))
        self.on_lost()

    async def close(self) -> None:
        self.is_open = False
        for attempt in list(self.running.values()):
            attempt.end(lost("the executor ended"))


@dataclass(eq=False)
class ScriptedAttempt:
    """One attempt: its deadline, its end by itself, and how it ends when it is told to."""

    runner: ScriptedRunner
    number: int
    order: AttemptOrder
    listener: AttemptListener
    behaviour: str
    dice: random.Random
    is_ending: bool = False
    is_over: bool = False
    allowed: float | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return _PIDS + self.number

    def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.allowed = self.order.spec.timeout
        self.listener.started(self.pid, None)
        self._arm()
        for seconds, report in self._reports():
            self._later(seconds, self._report, report)
        duration = self._duration_seconds()
        if duration is not None:
            self._later(duration, self.end_by_itself)

    def _duration_seconds(self) -> float | None:
        """The duration; None: it hangs, which only a task with a timeout does."""
        if self.behaviour == "hang" and self.allowed is not None:
            return None
        if self.behaviour == "slow success":
            return self.dice.uniform(0, 2 * (self.allowed or 10.0))
        return self.dice.choice((0.0, 0.001, self.dice.uniform(0, 1), self.dice.uniform(0, 10)))

    def _reports(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for _ in range(self.dice.choice((0, 0, 1, 3))):
            done = self.dice.randint(0, 5)
            row: BadRow = {"row_key": str(done), "payload": "1", "error": "bad", "fingerprint": "f"}
            reports: list[Callable[[], None]] = [
                partial(self.listener.output, b"a line\n"),
                partial(self.listener.progress, done, 5),
                partial(self.listener.checkpointed, '{"done": 1}'),
                partial(self.listener.quarantined, row),
            ]
            yield self.dice.uniform(0, 3), self.dice.choice(reports)

    def _report(self, report: Callable[[], None]) -> None:
        if not self.is_over:
            report()

    def _later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self.timers.append(self.loop.call_later(seconds, callback, *args))

    def _arm(self) -> None:
        if self.allowed is not None:
            self._later(max(0.0, self.started_at + self.allowed - self.loop.time()), self._check_deadline)

    def _check_deadline(self) -> None:
        assert self.allowed is not None
        if self.is_ending or self.is_over or self.loop.time() < self.started_at + self.allowed - 1e-6:
            return
        self.listener.step(AttemptDeadline(self.allowed))
        failure = describe_timeout(self.allowed, self.dice.choice(("", _STACK)))
        self._end_by_force("deadline", Outcome(OutcomeKind.TIMED_OUT, failure))

    def _end_by_force(self, reason: str, outcome: Outcome) -> None:
        self.is_ending = True
        self.listener.step(AttemptSigterm(reason, self.order.spec.grace_seconds))
        if self.dice.random() < 0.5:
            self._later(self.dice.uniform(0, self.order.spec.grace_seconds), self.end, outcome)
        else:
            self._later(self.order.spec.grace_seconds, self._kill, reason, outcome)

    def _kill(self, reason: str, outcome: Outcome) -> None:
        if not self.is_over:
            self.listener.step(AttemptSigkill(reason, [self.pid]))
            self.end(outcome)

    def end_by_itself(self) -> None:
        if not self.is_ending:
            is_list = self.runner.plan.is_mapped_over(self.order.task)
            self.end(_outcome(self.behaviour, self.order, self.dice, is_list=is_list))

    def end(self, outcome: Outcome) -> None:
        if self.is_over:
            return
        self.is_over = True
        for timer in self.timers:
            timer.cancel()
        del self.runner.running[self.number]
        self.listener.ended(outcome)

    # --- The controls of the executor ------------------------------------------------------------------------------

    def cancel(self, reason: str) -> bool:
        if self.is_ending or self.is_over:
            return False
        self._end_by_force(reason, Outcome(OutcomeKind.CANCELLED))
        return True

    def extend(self, seconds: float) -> bool:
        if self.allowed is None or self.is_ending or self.is_over:
            return False
        self.allowed += seconds
        self._arm()
        return True

    async def dump_stack(self) -> str:
        return ""

    def pause_output(self) -> None:
        """There is no pipe."""

    def resume_output(self) -> None:
        """There is no pipe."""


_STACK = 'Thread 0x1 (most recent call first):\n  File "night.py", line 7 in fetch\n'


def _outcome(behaviour: str, order: AttemptOrder, dice: random.Random, *, is_list: bool) -> Outcome:
    usage = {"duration_us": dice.randint(1, 10_000_000)}
    if behaviour == "skip":
        return Outcome(OutcomeKind.SKIPPED, skip_reason="not today", attempt_columns=usage)
    if behaviour == "defer":
        recheck = dice.choice((None, 0.0, 3.0))
        return Outcome(OutcomeKind.DEFERRED, recheck_seconds=recheck, defer_reason="not yet", attempt_columns=usage)
    if behaviour == "lost":
        return lost("killed from outside (SIGKILL)", usage)
    if behaviour == "killed":
        return lost("killed with its neighbours", usage, is_blameless=True)
    if behaviour == "not started":
        return not_started(BlockingIOError(11, "Resource temporarily unavailable"))
    if behaviour not in _CLASSES:
        result = [dice.randint(0, 2) for _ in range(dice.randint(0, LIST_MAX))] if is_list else dice.randint(0, 9)
        return Outcome(OutcomeKind.SUCCESS, result=str(result), attempt_columns=usage)
    place = order.task if behaviour == "same failure" else f"{order.task}:{dice.randint(0, 3)}"
    strict = "" if dice.random() < 0.1 else place
    mark = Fingerprint(strict, f"{behaviour}:{place}", explain=behaviour)
    retry_after = dice.choice((None, None, 0.0, 12.0)) if behaviour == "transient" else None
    failure = Failure(
        "night.Trouble", f"{behaviour} at {place}", _CLASSES[behaviour], mark, retry_after_seconds=retry_after
    )
    return Outcome(OutcomeKind.ERROR, failure, attempt_columns=usage)
