"""What the attempts of a night do: the behaviour that the plan draws, as scripts for the stage."""

from __future__ import annotations

import random
from collections.abc import Iterator

from redrive.engine.core.failures.attempt_end import lost_outcome
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, LostWith, Outcome, OutcomeKind
from redrive.engine.runner import protocol
from redrive.engine.runner.protocol import AttemptFrame, AttemptOrder
from redrive.engine.testing.played_machine import Script

from .plan import LIST_MAX, Plan

_CLASSES = {
    "transient": FailureClass.TRANSIENT,
    "unclassified": FailureClass.UNCLASSIFIED,
    "same failure": FailureClass.UNCLASSIFIED,
    "same as its siblings": FailureClass.UNCLASSIFIED,
    "permanent": FailureClass.PERMANENT,
    "auth": FailureClass.AUTH,
    "validation": FailureClass.VALIDATION,
    "ambiguous": FailureClass.AMBIGUOUS,
    "oom": FailureClass.OUT_OF_MEMORY,
}
_STACK = 'Thread 0x1 (most recent call first):\n  File "night.py", line 7 in fetch\n'


def script_of(plan: Plan, order: AttemptOrder) -> Script:
    """Return what an attempt does. Its dice depend on the seed, its task and its number alone."""
    behaviour, dice = plan.behaviour(order.task, order.attempt)
    starts_after = dice.choice((0.0, 0.001, 0.05))
    if behaviour == "not started":
        return Script(0.0, starts_after=starts_after, refused=BlockingIOError(11, "Resource temporarily unavailable"))
    reports = list(_reports(dice))
    seconds = _seconds(behaviour, order, dice)
    forced = random.Random()
    forced.setstate(dice.getstate())
    stack, grace = forced.choice(("", _STACK)), order.spec.grace_seconds
    ends_after = forced.uniform(0, grace) if forced.random() < 0.5 else None
    end = _outcome(behaviour, order, dice, is_list=plan.is_mapped_over(order.task))
    return Script(seconds, end, reports, ends_after, stack, starts_after)


def _seconds(behaviour: str, order: AttemptOrder, dice: random.Random) -> float | None:
    """Return the duration; None: it hangs, which only a task with a timeout does."""
    if behaviour == "hang" and order.spec.timeout is not None:
        return None
    if behaviour == "slow success":
        return dice.uniform(0, 2 * (order.spec.timeout or 10.0))
    return dice.choice((0.0, 0.001, dice.uniform(0, 1), dice.uniform(0, 10)))


def _reports(dice: random.Random) -> Iterator[tuple[float, AttemptFrame | bytes]]:
    for _ in range(dice.choice((0, 0, 1, 3))):
        done = dice.randint(0, 5)
        reports: list[AttemptFrame | bytes] = [
            b"a line\n",
            protocol.Progressed(done, 5),
            protocol.Checkpointed('{"done": 1}'),
            protocol.Quarantined(protocol.BadRow(row_key=str(done), payload="1", error="bad", fingerprint="f")),
        ]
        yield dice.uniform(0, 3), dice.choice(reports)


def _outcome(behaviour: str, order: AttemptOrder, dice: random.Random, *, is_list: bool) -> Outcome:
    usage = {"duration_us": dice.randint(1, 10_000_000)}
    if behaviour == "skip":
        return Outcome(OutcomeKind.SKIPPED, skip_reason="not today", attempt_columns=usage)
    if behaviour == "defer":
        recheck = dice.choice((None, 0.0, 3.0))
        return Outcome(OutcomeKind.DEFERRED, recheck_seconds=recheck, defer_reason="not yet", attempt_columns=usage)
    if behaviour == "lost":
        return lost_outcome("killed from outside (SIGKILL)", usage, lost_with=LostWith.PROCESS)
    if behaviour == "killed":
        return lost_outcome("killed with its neighbours", usage, is_blameless=True)
    if behaviour not in _CLASSES:
        result = [dice.randint(0, 2) for _ in range(dice.randint(0, LIST_MAX))] if is_list else dice.randint(0, 9)
        return Outcome(OutcomeKind.SUCCESS, result=str(result), attempt_columns=usage)
    places = {"same failure": order.task, "same as its siblings": "rows"}
    place = places.get(behaviour) or f"{order.task}:{dice.randint(0, 3)}"
    strict = "" if dice.random() < 0.1 else place
    mark = Fingerprint(strict, f"{behaviour}:{place}", explain=behaviour)
    retry_after = dice.choice((None, None, 0.0, 12.0)) if behaviour == "transient" else None
    failure = Failure(
        dice.choice(("night.Trouble", "KeyError", "ZeroDivisionError")),
        f"{behaviour} at {place}",
        _CLASSES[behaviour],
        mark,
        retry_after_seconds=retry_after,
    )
    return Outcome(OutcomeKind.ERROR, failure, attempt_columns=usage)
