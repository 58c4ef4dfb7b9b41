"""Derives a classification rule from a cause and tries it on past failures, through a session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ...engine.analysis.rule_trial import (
    PastTask,
    RuleEffect,
    describe_effect,
    describe_rule,
    evaluate_rule,
    flow_text,
    propose_rule,
)
from ...engine.core.failures.classification_rules import parse_rules
from ...engine.core.outcome import FailureClass
from ...engine.core.projection import AttemptRow, RunProjection
from ...engine.core.spec import TaskSpec
from ...engine.domain.counting import counted
from ...engine.errors import RedriveError
from ...engine.statefile.on_demand.failure_rows import FailedAttempt, FailedTask
from ..sessions.session import Session
from ..text.cause_text import fields_text
from ..text.durations import wall_day
from ..text.text import one_line, sanitize

#: The classes of failures, and what each of them means.
FAILURE_CLASSES: Mapping[str, str] = {
    "transient": "the next attempt may work: it is retried",
    "permanent": "the next attempt will not work: a dead letter at once",
    "ambiguous": "unclear: a few attempts, then permanent",
    "validation": "the input is wrong: a dead letter at once",
    "auth": "the credential is refused: its downstream is held",
}
_OTHERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RuleTrial:
    """A rule and what it would have changed. ``existing_rules``: the run's rules for the same downstream.

    ``fields``: (name, value) of what makes the fingerprint of the cause.
    """

    rule: Mapping[str, object]
    downstream: str | None
    existing_rules: Sequence[Mapping[str, object]]
    effect: RuleEffect
    fields: Sequence[Sequence[str]] = ()

    @property
    def text(self) -> str:
        """The text to paste into the flow."""
        return flow_text(self.rule, self.existing_rules, self.downstream)


async def try_rule(
    session: Session,
    projection: RunProjection,
    fingerprint_loose: str,
    failure_class: FailureClass,
    downstream: str | None = None,
    conditions: Mapping[str, object] | None = None,
) -> RuleTrial:
    """Derive a rule from a cause and try it on the past. ``conditions`` replace the proposed ones.

    Raises RedriveError if nothing failed with this fingerprint, or if no rule can be derived from the failures.
    """
    names = [
        row.name for row in projection.tasks.values() if _has_failed_like(row.attempts.values(), fingerprint_loose)
    ]
    called = {spec.downstream for name in names if (spec := projection.tasks[name].spec) is not None}
    if downstream is None and len(called) == 1:
        downstream = called.pop()
    rows = await session.failures(projection.run.run_id, downstream, names)
    tasks = [_past_task(row) for row in rows]
    matching = [one for task in tasks for one in task.attempts if one.fingerprint_loose == fingerprint_loose]
    if not matching:
        caller = f" that calls {downstream}" if downstream is not None else ""
        raise RedriveError(
            f"nothing of flow {projection.run.dag_name}{caller} failed with fingerprint {fingerprint_loose}"
        )
    try:
        others = _of_other_classes(tasks, matching, failure_class)
        proposed = {**conditions, "class": str(failure_class)} if conditions else None
        rule = proposed or propose_rule(matching, failure_class, others)
        (parsed,) = parse_rules([rule])
    except ValueError as error:
        raise RedriveError(str(error)) from None
    effect = evaluate_rule(parsed, tasks, fingerprint_loose)
    return RuleTrial(rule, downstream, _existing_rules(projection, downstream), effect, matching[-1].fields or ())


def _of_other_classes(
    tasks: Iterable[PastTask], matching: Sequence[FailedAttempt], failure_class: FailureClass
) -> list[FailedAttempt]:
    """The failures whose class a rule for ``matching`` must not change."""
    own = {str(failure_class), *(one.failure_class for one in matching)}
    failed = (one for task in tasks for one in task.attempts if one.failure_class is not None)
    return [one for one in failed if one.failure_class not in own]


def _has_failed_like(attempts: Iterable[AttemptRow], loose: str) -> bool:
    return any(one.fingerprint_loose == loose for one in attempts)


def _past_task(row: FailedTask) -> PastTask:
    spec = msgspec.convert({"name": row.name, **row.spec}, TaskSpec)
    return PastTask(row.run_id, row.name, row.state, row.generation, row.skip_cause, spec, row.attempts)


def _existing_rules(projection: RunProjection, downstream: str | None) -> list[Mapping[str, object]]:
    """The rules of the run's flow for this downstream."""
    declared = json.loads(projection.run.options).get("downstreams") or ()
    return [rule for spec in declared if spec.get("name") == downstream for rule in spec.get("rules") or ()]


def trial_rows(trial: RuleTrial) -> Iterator[tuple[str, str]]:
    """Labels and texts: rule, text to paste, history, other causes that the rule fits, what makes this cause.

    "" continues a label.
    """
    yield "rule", one_line(describe_rule(trial.rule, trial.downstream))
    yield "paste", sanitize(trial.text)
    if trial.downstream is None:
        yield "", 'these tasks name no downstream, and a rule belongs to one: give them downstream="NAME"'
    first, *more = describe_effect(trial.effect)
    since = trial.effect.since
    yield "history", f"{first}{f', the first at {wall_day(since, None)}' if since is not None else ''}"
    for sentence in more:
        yield "", sentence
    for title, mark, count in trial.effect.others[:_OTHERS_SHOWN]:
        failures = counted(count, "failure")
        yield "also", f"it fits {failures} of another cause: {one_line(title)} (fp {one_line(mark)})"
    if trial.fields:
        yield "cause", one_line(fields_text(trial.fields))
