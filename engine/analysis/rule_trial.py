"""Classify once: from a failure to a rule of its downstream, tried on all that has happened before anybody uses it.

``propose`` makes a rule of what was recorded of a cause; ``effect`` asks ``decide`` again, for every past failure that
the rule fits, and says which decisions would have been others and what became of those tasks. What nobody can know is
left open: how a try would have ended that was never made.

A rule is printed as the text of the flow, and not kept in the state file. A stored one would be a second truth beside
the flow's: it would hold in one file and not in the next one, decide without being seen in the code that is reviewed,
and outlive the reason that it was made for. The flow says it, and ``resume`` reads the flow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..core.decide import Decision, Fail, History, Retry, decide
from ..core.failures.classification_rules import Rule
from ..core.failures.classify import EVERYTHING
from ..core.failures.fingerprint import normalise
from ..core.failures.library_errors import Facts
from ..core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from ..core.policy import RetryPolicy
from ..core.spec import TaskSpec
from ..domain.states import NEEDS_HUMAN, TaskState

_FAILED = frozenset(["error", "timed_out"])
_MESSAGE_CHARACTERS_MAX = 80
_MESSAGE_CHARACTERS_MIN = 4
_STAND_IN = re.compile(r"<(?:uuid|text|path|hex|n)>")
_EDGES = " \t.,:;!?()[]{}<>'\"`=-_/\\"
_OURS = "redrive.engine."


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One attempt as it was recorded. Instants in microseconds UTC."""

    attempt: int
    generation: int
    outcome: str
    started_at: int
    ended_at: int | None = None
    error_type: str | None = None
    error: str | None = None
    diagnostic: str | None = None
    failure_class: str | None = None
    fingerprint: str | None = None
    fingerprint_loose: str | None = None
    explain: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    delay_us: int | None = None
    params_hash: str | None = None
    input_hash: str | None = None

    @property
    def known(self) -> Facts:
        """What a rule is held against."""
        types = self.facts.get("types") or ([self.error_type] if self.error_type else [])
        status = self.facts.get("status")
        exit_code = self.facts.get("exit_code", _number_after("exit:", self.error_type))
        names = tuple(_spellings(name) for name in types)
        grpc, sqlstate = self.facts.get("grpc"), self.facts.get("sqlstate")
        return Facts(names, status, grpc=grpc, sqlstate=sqlstate, exit_code=exit_code)

    @property
    def signal(self) -> int | None:
        """The signal that it died by, if it did."""
        signal: int | None = self.facts.get("signal", _number_after("signal:", self.error_type))
        return signal

    @property
    def text(self) -> str:
        """What the message of a rule is looked for in: of a program the end of its error output."""
        return (self.diagnostic if _number_after("exit:", self.error_type) is not None else self.error) or ""


@dataclass(frozen=True, slots=True)
class PastTask:
    """A task of some run that failed at least once, with all of its attempts, oldest first."""

    run_id: str
    name: str
    state: str
    generation: int
    skip_cause: str | None
    spec: TaskSpec
    attempts: Sequence[PastAttempt]


def _number_after(prefix: str, kind: str | None) -> int | None:
    rest = (kind or "").removeprefix(prefix).partition(":")[0]
    return int(rest) if kind is not None and kind.startswith(prefix) and rest.lstrip("-").isdigit() else None


def _spellings(name: str) -> tuple[str, ...]:
    """Every way to write a type, as ``library_errors.py`` has them."""
    name = name if "." in name else f"builtins.{name}"
    last = name.rpartition(".")[2]
    return name, f"{name.partition('.')[0]}.{last}", last


# --- The rule ------------------------------------------------------------------------------------------------------


def propose(failures: Sequence[PastAttempt], failure_class: FailureClass) -> dict[str, object]:
    """A rule that fits all of these and as little else as what was recorded allows. Raises ValueError where nothing
    was recorded that a rule can ask for."""
    said = next((found for found in map(_shared, _ANSWERS, [failures] * len(_ANSWERS)) if found), None)
    if said is None:
        types = {failure.error_type for failure in failures if failure.known.names}
        said = {"error": types.pop()} if len(types) == 1 else {}
    if not said or _is_general(said):
        part = _shared_part([failure.text for failure in failures])
        said = {**said, **({"message": part} if part is not None else {})}
    if not said:
        raise ValueError("nothing was recorded of these failures that a rule can ask for: they share no type, no text")
    return {**said, "class": str(failure_class)}


#: What the other side answered says more than the exception that carried it.
_ANSWERS = ("status", "grpc", "sqlstate", "exit_code", "signal")


def _shared(name: str, failures: Sequence[PastAttempt]) -> dict[str, object] | None:
    found = {failure.signal if name == "signal" else getattr(failure.known, name) for failure in failures}
    value = found.pop() if len(found) == 1 else None
    return None if value is None else {name: value}


def _is_general(said: Mapping[str, Any]) -> bool:
    """Too little on its own: any program exits with 1, anybody raises a ValueError, or one of our own errors."""
    error = said.get("error")
    return said.get("exit_code") in (1, 2) or (error is not None and ("." not in error or error.startswith(_OURS)))


def _shared_part(messages: Sequence[str]) -> str | None:
    """The longest part of the first message that does not vary and that all of them have."""
    if not messages:
        return None
    parts = (part.strip(_EDGES) for part in _STAND_IN.split(normalise(messages[0])))
    folded = [message.casefold() for message in messages]
    shared = [part for part in map(_cut, parts) if all(part.casefold() in message for message in folded)]
    return max((part for part in shared if len(part) >= _MESSAGE_CHARACTERS_MIN), key=len, default=None)


def _cut(part: str) -> str:
    if len(part) <= _MESSAGE_CHARACTERS_MAX:
        return part
    return part[:_MESSAGE_CHARACTERS_MAX].rpartition(" ")[0] or part[:_MESSAGE_CHARACTERS_MAX]


# --- Tried on what has happened --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """So many decisions would have been ``after`` instead of ``before``; ``since`` then: what became of those tasks."""

    count: int
    before: str  # retried, dead-lettered, failed
    after: str
    since_then: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What a rule would have done. ``failures``: looked at, of ``tasks`` in ``runs``, the first at ``since``.

    ``fits``: how many it holds for; ``others``: (title, fingerprint, how many) of those that are of another cause.
    ``saved``: attempts that would not have been made.
    """

    failures: int
    tasks: int
    runs: int
    since: int | None
    fits: int
    changes: tuple[Change, ...]
    others: tuple[tuple[str, str, int], ...]
    saved: int

    @property
    def changed(self) -> int:
        """How many past decisions would have been others."""
        return sum(change.count for change in self.changes)


@dataclass(slots=True)
class _Count:
    fits: int = 0
    saved: int = 0
    changes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    others: Counter[tuple[str, str]] = field(default_factory=Counter)


def effect(rule: Rule, tasks: Sequence[PastTask], loose: str | None = None) -> Effect:
    """Try a rule on the past. ``loose``: the fingerprint of the cause that it was made for."""
    count = _Count()
    for task in tasks:
        for _, attempts in groupby(task.attempts, key=lambda one: one.generation):
            _walk(count, rule, task, list(attempts), loose)
    failures = [one for task in tasks for one in task.attempts if one.outcome in _FAILED]
    changes = [Change(number, *words) for words, number in count.changes.most_common()]
    others = [(title, mark, number) for (title, mark), number in count.others.most_common()]
    since = min((one.started_at for one in failures), default=None)
    runs = len({task.run_id for task in tasks})
    return Effect(len(failures), len(tasks), runs, since, count.fits, tuple(changes), tuple(others), count.saved)


def _walk(count: _Count, rule: Rule, task: PastTask, attempts: list[PastAttempt], loose: str | None) -> None:
    """One generation, up to where the rule would have ended it sooner."""
    seen: list[tuple[PastAttempt, FailureClass]] = []
    for place, one in enumerate(attempts):
        if one.outcome not in _FAILED or one.failure_class is None:
            continue
        recorded = FailureClass(one.failure_class)
        if not _fits(rule, one, task.spec.retry):
            seen.append((one, recorded))
            continue
        count.fits += 1
        if loose is not None and one.fingerprint_loose != loose:
            count.others[(one.explain or one.error_type or "unknown", one.fingerprint_loose or "")] += 1
        later = attempts[place + 1 :]
        was_retried = bool(later) or one.delay_us is not None
        before = "retried" if was_retried else _stopped(task, one, _ask(task, seen, one, recorded))
        after = _word(_ask(task, seen, one, rule.failure_class))
        seen.append((one, rule.failure_class))
        if before != after and recorded is not rule.failure_class:
            count.changes[(before, after, _since_then(task, one, later, before))] += 1
        if before == "retried" != after:
            count.saved += len(later)
            return  # what came after it would not have come


def _fits(rule: Rule, one: PastAttempt, policy: RetryPolicy) -> bool:
    """Whether the rule would have decided: timeouts are nobody's answer, and a policy that names types comes first."""
    known = one.known
    is_bound = any(known.named(name) for name in policy.never_retry) or not EVERYTHING.issuperset(policy.retry_on)
    return one.outcome == "error" and not is_bound and rule.holds(known, one.text, one.signal)


def _ask(
    task: PastTask, seen: Sequence[tuple[PastAttempt, FailureClass]], one: PastAttempt, failure_class: FailureClass
) -> Decision:
    """``decide`` with the same past. The dice fall low: how long a wait is changes nothing here."""
    alike = [past for past, _ in seen if (past.params_hash, past.input_hash) == (one.params_hash, one.input_hash)]
    history = History(
        failures=len(seen),
        fingerprints=tuple(past.fingerprint or "" for past in alike),
        classes=tuple(known for _, known in seen),
        first_started_at=seen[0][0].started_at if seen else one.started_at,
        idempotent=task.spec.idempotent,
        timeout_seconds=task.spec.timeout,
    )
    mark = Fingerprint(one.fingerprint or "", one.fingerprint_loose or "")
    outcome = Outcome(OutcomeKind.ERROR, Failure(one.error_type or "", one.error or "", failure_class, mark))
    now = one.ended_at if one.ended_at is not None else one.started_at
    return decide(history, outcome, task.spec.retry, now, lambda low, high: low)


def _word(decision: Decision) -> str:
    return "retried" if isinstance(decision, Retry) else "failed" if isinstance(decision, Fail) else "dead-lettered"


def _stopped(task: PastTask, one: PastAttempt, simulated: Decision) -> str:
    """How it ended: as the task still says, else as the rules have it."""
    if task.generation == one.generation and task.state in NEEDS_HUMAN:
        return "failed" if task.state == TaskState.FAILED else "dead-lettered"
    return "failed" if isinstance(simulated, Fail) else "dead-lettered"


def _since_then(task: PastTask, one: PastAttempt, later: Sequence[PastAttempt], before: str) -> str:
    if before == "retried":
        healed = any(next_.outcome == "success" for next_ in later)
        return "a retry healed it" if healed else "the retries failed as well"
    requeued = [next_ for next_ in task.attempts if next_.generation > one.generation]
    if not requeued:
        return _RESTS.get(task.state, "requeued, and not done yet")
    first = [next_ for next_ in requeued if next_.generation == requeued[0].generation]
    if first[-1].outcome == "success":
        return "healed when requeued"
    alike = first[-1].fingerprint_loose == one.fingerprint_loose and first[-1].outcome in _FAILED
    return "failed again when requeued" if alike else "ended otherwise when requeued"


_RESTS: Mapping[str, str] = {
    str(TaskState.SKIPPED): "skipped",
    str(TaskState.CANCELLED): "cancelled",
    str(TaskState.DEAD_LETTER): "nobody has decided yet",
    str(TaskState.FAILED): "nobody has decided",
}


# --- In words --------------------------------------------------------------------------------------------------------


def spoken_rule(mapping: Mapping[str, object], downstream: str | None) -> str:
    """``status 409 on payments-api is transient``."""
    conditions = ", ".join(f"{name} {value!r}" for name, value in mapping.items() if name != "class")
    return f"{conditions}{f' on {downstream}' if downstream else ''} is {mapping['class']}"


def flow_text(mapping: Mapping[str, object], existing: Iterable[Mapping[str, object]], downstream: str | None) -> str:
    """What to paste into the flow: the new rule first, because the first that holds decides."""
    name = downstream if downstream is not None else "NAME"
    rules = ", ".join(repr(dict(rule)) for rule in (mapping, *existing))
    return f"flow.downstream({name!r}, rules=[{rules}])"


def sentences(found: Effect) -> Iterator[str]:
    """What the rule would have done, the sum first."""
    yield f"it fits {_times(found.fits, 'failure')} of {found.failures:,}, in {_times(found.runs, 'run')}"
    if not found.changes:
        yield "it would have changed no past decision"
        return
    yield f"it would have changed {_times(found.changed, 'past decision')}:"
    for change in found.changes:
        yield f"  {change.count:,} {change.before} -> {change.after}: {change.since_then}"
    if found.saved:
        yield f"{_times(found.saved, 'attempt')} would not have been made"


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
