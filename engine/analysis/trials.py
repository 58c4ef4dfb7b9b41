"""What is tried on the past of runs: another classification rule, and another policy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypedDict, cast

import msgspec

from ..core.decide import Decision, Fail, Retry, TaskHistory, decide
from ..core.failures.classify import CATCH_ALL_NAMES, ClassificationRule, parse_rules
from ..core.failures.facts import ErrorFacts, normalize_message, spellings_of
from ..core.option_types import Table, choice, parse_option, read_number, table_of
from ..core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from ..core.policy import RetryPolicy
from ..core.spec import DownstreamSpec, TaskSpec
from ..domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, FailedAttempt, FailedTask, TaskState
from ..domain.text import counted

# --- Rules -----------------------------------------------------------------------------------------------------------
#
# Proposes a classification rule from failures of one cause, and evaluates the rule on all past failures.
#
# ``propose_rule`` builds a rule from recorded failures. ``evaluate_rule`` runs ``decide`` again for every past failure
# that the rule matches, and reports which decisions would change and what became of those tasks. It does not predict
# how an attempt would have ended that was never made.
#
# A rule is printed as text for the flow, not stored in the state file: a stored rule would be a second source of
# truth, invisible in code review, valid for one file only, and would outlive its reason. ``resume`` reads the rules of
# the flow.


_MESSAGE_CHARACTERS_MAX = 80
_MESSAGE_CHARACTERS_MIN = 4
_PLACEHOLDER = re.compile(r"<(?:uuid|text|path|hex|n)>")
_EDGES = " \t.,:;!?()[]{}<>'\"`=-_/\\"
_OWN_ERRORS = "redrive.engine."


class RecordedFacts(TypedDict, total=False):
    """The facts of a failure, as an attempt row stores them in JSON. ``types``: of the exception, its own first."""

    types: list[str]
    status: int | None
    grpc: str | None
    sqlstate: str | None
    exit_code: int | None
    signal: int | None
    line: str  # of the output of a program: the one that names the error


def facts_of(attempt: FailedAttempt) -> ErrorFacts:
    """The facts that the conditions of a rule are compared with."""
    kind, recorded = attempt.error_type, cast(RecordedFacts, attempt.facts)
    is_exception = kind is not None and ":" not in kind  # not "exit:3" or "signal:11:unknown"
    types = recorded.get("types") or ([kind] if kind and is_exception else [])
    return ErrorFacts(
        names=tuple(spellings_of(name) for name in types),
        status=recorded.get("status"),
        grpc=recorded.get("grpc"),
        sqlstate=recorded.get("sqlstate"),
        exit_code=recorded.get("exit_code", _number_after("exit:", kind)),
    )


def _signal_of(attempt: FailedAttempt) -> int | None:
    """The number of the signal that killed the attempt, if any."""
    return cast(RecordedFacts, attempt.facts).get("signal", _number_after("signal:", attempt.error_type))


def _text_of(attempt: FailedAttempt) -> str:
    """The text that a rule searches: the error, or for a program the line that names it and the end of its output."""
    if _number_after("exit:", attempt.error_type) is None:
        return attempt.error or ""
    return "\n".join(filter(None, (cast(RecordedFacts, attempt.facts).get("line"), attempt.diagnostic)))


def _number_after(prefix: str, kind: str | None) -> int | None:
    rest = (kind or "").removeprefix(prefix).partition(":")[0]
    return int(rest) if kind is not None and kind.startswith(prefix) and rest.lstrip("-").isdigit() else None


# --- The rule ------------------------------------------------------------------------------------------------------


def propose_rule(
    failures: Sequence[FailedAttempt], failure_class: FailureClass, others: Sequence[FailedAttempt] = ()
) -> dict[str, object]:
    """Build the simplest rule for all of these failures that matches none of ``others``.

    ``others``: failures of another class, which the rule must leave alone. Raises ValueError if these failures share
    nothing, or share all of it with one of the others.
    """
    facts = {name: value for name in _RESPONSE_FACTS for name, value in _shared_condition(name, failures).items()}
    types = {failure.error_type for failure in failures if facts_of(failure).names}
    error: dict[str, object] = {"error": types.pop()} if len(types) == 1 else {}
    part = _shared_part([_text_of(failure) for failure in failures])
    message: dict[str, object] = {} if part is None else {"message": part}
    first = dict([*facts.items()][:1]) or error
    if not first or _is_too_general(first):
        first |= message
    found = [conditions for conditions in (first, facts | error, facts | error | message) if conditions]
    if not found:
        raise ValueError("these failures have nothing in common that a rule could match: neither type nor text")
    for conditions in found:
        mapping = {**conditions, "class": str(failure_class)}
        if not _matched(mapping, others):
            return mapping
    other = _matched({**found[-1], "class": str(failure_class)}, others)[0]
    raise ValueError(
        "each rule for these failures would also fit a failure that is "
        f"{other.failure_class}: {other.explain or other.error_type}; give the conditions yourself, with --when"
    )


def _matched(mapping: Mapping[str, object], failures: Sequence[FailedAttempt]) -> list[FailedAttempt]:
    (rule,) = parse_rules([mapping])
    return [one for one in failures if rule.matches(facts_of(one), _text_of(one), _signal_of(one))]


#: The response of the downstream says more than the type of the exception.
_RESPONSE_FACTS = ("status", "grpc", "sqlstate", "exit_code", "signal")


def _shared_condition(name: str, failures: Sequence[FailedAttempt]) -> dict[str, object]:
    """The fact ``name`` if all failures have the same one, else an empty condition."""
    values = {_signal_of(failure) if name == "signal" else getattr(facts_of(failure), name) for failure in failures}
    value = values.pop() if len(values) == 1 else None
    return {} if value is None else {name: value}


def _is_too_general(conditions: Mapping[str, object]) -> bool:
    """Whether unrelated failures match too: exit code 1 or 2, a built-in exception, one of redrive's own errors."""
    error = conditions.get("error")
    is_common_type = isinstance(error, str) and ("." not in error or error.startswith(_OWN_ERRORS))
    return conditions.get("exit_code") in (1, 2) or is_common_type


def _shared_part(messages: Sequence[str]) -> str | None:
    """The longest fixed part of the first line that all messages contain; of later lines only where it has none."""
    lines = messages[0].splitlines() if messages else []
    return next(filter(None, (_part_of(line, messages) for line in lines)), None)


def _part_of(line: str, messages: Sequence[str]) -> str | None:
    parts = (part.strip(_EDGES) for part in _PLACEHOLDER.split(normalize_message(line)))
    folded = [message.casefold() for message in messages]
    shared = [part for part in map(_cut, parts) if all(part.casefold() in message for message in folded)]
    return max((part for part in shared if len(part) >= _MESSAGE_CHARACTERS_MIN), key=len, default=None)


def _cut(part: str) -> str:
    if len(part) <= _MESSAGE_CHARACTERS_MAX:
        return part
    return part[:_MESSAGE_CHARACTERS_MAX].rpartition(" ")[0] or part[:_MESSAGE_CHARACTERS_MAX]


# --- Evaluation on past failures -------------------------------------------------------------------------------------


class DecisionChange(msgspec.Struct, frozen=True):
    """Past decisions that would be ``after`` instead of ``before``; ``since_then``: what became of those tasks."""

    count: int
    before: str  # "retried", "dead-lettered" or "failed", as ``after``
    after: str
    since_then: str


class RuleEffect(msgspec.Struct, frozen=True):
    """The effect of a rule on past failures.

    Attributes:
        failures: evaluated failures, of ``tasks`` tasks in ``runs`` runs, the first at ``since`` (microseconds UTC).
        fits: failures that the rule matches.
        others: (title, loose fingerprint, count) of matched failures of another cause.
        saved: attempts that would not have been made.
    """

    failures: int
    tasks: int
    runs: int
    since: int | None
    fits: int
    changes: tuple[DecisionChange, ...]
    others: tuple[tuple[str, str, int], ...]
    saved: int

    @property
    def changed_count(self) -> int:
        return sum(change.count for change in self.changes)


class _Totals(msgspec.Struct):
    fits: int = 0
    saved: int = 0
    changes: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    others: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)


def evaluate_rule(rule: ClassificationRule, tasks: Sequence[FailedTask], loose: str | None = None) -> RuleEffect:
    """Apply a rule to past failures. ``loose``: the loose fingerprint of the cause that it was made for."""
    totals = _Totals()
    for task in tasks:
        spec = msgspec.convert({"name": task.name, **task.spec}, TaskSpec)
        for _, attempts in groupby(task.attempts, key=lambda one: one.generation):
            _evaluate_generation(totals, rule, task, spec, list(attempts), loose)
    failures = [one for task in tasks for one in task.attempts if one.outcome in FAILED_OUTCOMES]
    changes = [DecisionChange(number, *words) for words, number in totals.changes.most_common()]
    others = [(title, mark, number) for (title, mark), number in totals.others.most_common()]
    since = min((one.started_at for one in failures), default=None)
    runs = len({task.run_id for task in tasks})
    return RuleEffect(len(failures), len(tasks), runs, since, totals.fits, tuple(changes), tuple(others), totals.saved)


def _evaluate_generation(
    totals: _Totals,
    rule: ClassificationRule,
    task: FailedTask,
    spec: TaskSpec,
    attempts: list[FailedAttempt],
    loose: str | None,
) -> None:
    """Evaluate the attempts of one generation, until the rule would have ended it."""
    seen: list[tuple[FailedAttempt, FailureClass]] = []
    for place, one in enumerate(attempts):
        if one.outcome not in FAILED_OUTCOMES or one.failure_class is None:
            continue
        recorded = FailureClass(one.failure_class)
        if not _fits(rule, one, spec.retry):
            seen.append((one, recorded))
            continue
        totals.fits += 1
        if loose is not None and one.fingerprint_loose != loose:
            totals.others[(one.explain or one.error_type or "unknown", one.fingerprint_loose or "")] += 1
        later = attempts[place + 1 :]
        was_retried = bool(later) or one.delay_us is not None
        before = "retried" if was_retried else _final_state(task, one, _decide_again(spec, seen, one, recorded))
        after = _decision_name(_decide_again(spec, seen, one, rule.failure_class))
        seen.append((one, rule.failure_class))
        if before != after and recorded is not rule.failure_class:
            totals.changes[(before, after, _since_then(task, one, later, before))] += 1
        if before == "retried" != after:
            totals.saved += len(later)
            return  # the later attempts would not have been made


def _fits(rule: ClassificationRule, one: FailedAttempt, policy: RetryPolicy) -> bool:
    """Whether the rule would have applied: not to timeouts, and not where the policy itself names the type."""
    facts = facts_of(one)
    is_in_policy = any(map(facts.has_type_name, policy.never_retry)) or not CATCH_ALL_NAMES.issuperset(policy.retry_on)
    return one.outcome == "error" and not is_in_policy and rule.matches(facts, _text_of(one), _signal_of(one))


def _decide_again(
    spec: TaskSpec, seen: Sequence[tuple[FailedAttempt, FailureClass]], one: FailedAttempt, failure_class: FailureClass
) -> Decision:
    """Run ``decide`` on the same history. The lowest delay is drawn: its length does not matter here."""
    alike = [past for past, _ in seen if (past.params_hash, past.input_hash) == (one.params_hash, one.input_hash)]
    history = TaskHistory(
        failures=len(seen),
        fingerprints=tuple(past.fingerprint or "" for past in alike),
        failed_at=tuple(past.ended_at or past.started_at for past in alike),
        classes=tuple(known for _, known in seen),
        first_started_at=seen[0][0].started_at if seen else one.started_at,
        idempotent=spec.idempotent,
        is_command=spec.kind == "command",
        names_downstream=spec.downstream is not None,
    )
    mark = Fingerprint(one.fingerprint or "", one.fingerprint_loose or "")
    failure = Failure(one.error_type or "", one.error or "", failure_class, mark, facts=one.facts)
    outcome = Outcome(OutcomeKind.ERROR, failure)
    now = one.ended_at if one.ended_at is not None else one.started_at
    return decide(history, outcome, spec.retry, now, lambda low, high: low)


def _decision_name(decision: Decision) -> str:
    return "retried" if isinstance(decision, Retry) else "failed" if isinstance(decision, Fail) else "dead-lettered"


def _final_state(task: FailedTask, one: FailedAttempt, simulated: Decision) -> str:
    """How the generation ended: from the state of the task, else from the simulated decision."""
    if task.generation == one.generation and task.state in NEEDS_HUMAN:
        return "failed" if task.state == TaskState.FAILED else "dead-lettered"
    return "failed" if isinstance(simulated, Fail) else "dead-lettered"


def _since_then(task: FailedTask, one: FailedAttempt, later: Sequence[FailedAttempt], before: str) -> str:
    if before == "retried":
        healed = any(next_.outcome == "success" for next_ in later)
        return "a retry healed it" if healed else "the retries failed as well"
    requeued = [next_ for next_ in task.attempts if next_.generation > one.generation]
    if not requeued:
        return _NOT_REQUEUED.get(task.state, "requeued, and not done yet")
    first = [next_ for next_ in requeued if next_.generation == requeued[0].generation]
    if first[-1].outcome == "success":
        return "healed when requeued"
    alike = first[-1].fingerprint_loose == one.fingerprint_loose and first[-1].outcome in FAILED_OUTCOMES
    return "failed again when requeued" if alike else "ended otherwise when requeued"


_NOT_REQUEUED: Mapping[str, str] = {
    str(TaskState.SKIPPED): "skipped",
    str(TaskState.CANCELLED): "cancelled",
    str(TaskState.DEAD_LETTER): "not decided yet",
    str(TaskState.FAILED): "not decided",
}


# --- Descriptions ----------------------------------------------------------------------------------------------------


def describe_rule(mapping: Mapping[str, object], downstream: str | None) -> str:
    """``status 409 on payments-api is transient``."""
    conditions = ", ".join(f"{name} {value!r}" for name, value in mapping.items() if name != "class")
    return f"{conditions}{f' on {downstream}' if downstream else ''} is {mapping['class']}"


def flow_text(mapping: Mapping[str, object], existing: Iterable[Mapping[str, object]], downstream: str | None) -> str:
    """Text to paste into the flow. The new rule is first, because the first rule that matches decides."""
    name = downstream if downstream is not None else "NAME"
    rules = ", ".join(repr(dict(rule)) for rule in (mapping, *existing))
    return f"flow.downstream({name!r}, rules=[{rules}])"


def describe_effect(found: RuleEffect) -> Iterator[str]:
    """Sentences on the effect of a rule, the total first."""
    yield f"it fits {counted(found.fits, 'failure')} of {found.failures:,}, in {counted(found.runs, 'run')}"
    if not found.changes:
        yield "it would have changed no past decision"
        return
    yield f"it would have changed {counted(found.changed_count, 'past decision')}:"
    for change in found.changes:
        yield f"  {change.count:,} {change.before} -> {change.after}: {change.since_then}"
    if found.saved:
        yield f"{counted(found.saved, 'attempt')} would not have been made"


# --- Policies --------------------------------------------------------------------------------------------------------
#
# Parses a change of policy for a replay: ``jitter=full, max_attempts=5, minimum_calls=3``.
#
# One change applies to all tasks and all downstreams of a run: a task that calls less leaves capacity to the others.


_POLICY = table_of(RetryPolicy)
_BREAKER = ("breaker", choice("on", "off"))  # off: ``metrics_only``
_NOT_CHANGED = frozenset(["retry_on", "never_retry", "on_open", "metrics_only", "shared"])
_CHANGES: Table = {
    name: option_type
    for name, option_type in (*_POLICY.items(), _BREAKER, *table_of(DownstreamSpec).items())
    if name not in _NOT_CHANGED
}
_OFF_WORDS = frozenset(["off", "none"])
_MAY_BE_OFF = frozenset(["max_elapsed", "poison_after"])
_WAIT_FIELDS = frozenset(["base", "cap", "factor", "jitter"])


class PolicyChange(msgspec.Struct, frozen=True):
    """Changed fields of retry policies and of downstreams; ``text``: as the user typed the change."""

    policy_fields: Mapping[str, Any] = {}
    downstream_fields: Mapping[str, Any] = {}
    text: str = ""

    @property
    def has_recorded_delays(self) -> bool:
        """Whether backoff delays are drawn as in the recorded run."""
        return _WAIT_FIELDS.isdisjoint(self.policy_fields)

    def apply_to_policy(self, policy: RetryPolicy) -> RetryPolicy:
        return replace(policy, **self.policy_fields)

    def apply_to_downstream(self, spec: DownstreamSpec) -> DownstreamSpec:
        """Return ``spec`` with this change applied to its breaker and retry budget."""
        return msgspec.structs.replace(spec, **self.downstream_fields)


NO_CHANGE = PolicyChange()


def parse_change(text: str) -> PolicyChange:
    """Parse ``name=value`` pairs with commas or spaces between. Raises ValueError with one sentence."""
    words = text.replace(",", " ").split()
    if not words:
        raise ValueError(f"name a change, as in max_attempts=5; there are {', '.join(_CHANGES)}")
    policy: dict[str, object] = {}
    downstream: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _CHANGES:
            raise ValueError(f"{word!r} is not name=value with one of {', '.join(_CHANGES)}")
        is_off = name in _MAY_BE_OFF and value in _OFF_WORDS
        parsed = parse_option(name, _CHANGES[name], None if is_off else read_number(value))
        if name == "breaker":
            downstream["metrics_only"] = parsed == "off"
        else:
            (policy if name in _POLICY else downstream)[name] = parsed
    return PolicyChange(policy, downstream, " ".join(words))
