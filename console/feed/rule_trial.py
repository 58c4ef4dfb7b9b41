"""A rule made of a cause and tried on its past: asked through a door, told in rows of a label and a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ...engine.analysis.rule_trial import (
    Effect,
    PastAttempt,
    PastTask,
    effect,
    flow_text,
    propose,
    sentences,
    spoken_rule,
)
from ...engine.core.failures.classification_rules import parse_rules
from ...engine.core.outcome import FailureClass
from ...engine.core.projection import AttemptRow, RunFold
from ...engine.core.spec import TaskSpec
from ...engine.errors import RedriveError
from ...engine.statefile.on_demand.failure_queries import FailedTask
from ..sessions.session import Session
from ..text.durations import wall_day
from ..text.text import one_line, sanitize

#: What an operator may call a failure, and what follows from it.
CLASSES: Mapping[str, str] = {
    "transient": "the next attempt may work: it is retried",
    "permanent": "it will not: a dead letter at once",
    "ambiguous": "nobody can say: a few attempts, then permanent",
    "validation": "the input is wrong: a dead letter at once",
    "auth": "the credential is refused: its downstream is held",
}
_OTHERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """A rule and what it would have done. ``existing``: the rules that the run has for its downstream."""

    rule: Mapping[str, object]
    downstream: str | None
    existing: Sequence[Mapping[str, object]]
    effect: Effect

    @property
    def text(self) -> str:
        """What to paste into the flow."""
        return flow_text(self.rule, self.existing, self.downstream)


async def try_rule(
    session: Session,
    fold: RunFold,
    loose: str,
    failure_class: FailureClass,
    downstream: str | None = None,
    conditions: Mapping[str, object] | None = None,
) -> Trial:
    """Make a rule of a cause and try it. ``conditions``: instead of those that would be proposed.

    Raises RedriveError where nothing failed like that, or no rule can be made of it.
    """
    names = [row.name for row in fold.tasks.values() if _failed_like(row.attempts.values(), loose)]
    called = {spec.downstream for name in names if (spec := fold.tasks[name].spec) is not None}
    if downstream is None and len(called) == 1:
        downstream = called.pop()
    rows = await session.failures(fold.run.run_id, downstream, names)
    tasks = [_past(row) for row in rows]
    alike = [one for task in tasks for one in task.attempts if one.fingerprint_loose == loose]
    if not alike:
        calling = f" that calls {downstream}" if downstream is not None else ""
        raise RedriveError(f"nothing of flow {fold.run.dag_name}{calling} failed with fingerprint {loose}")
    try:
        rule = {**conditions, "class": str(failure_class)} if conditions else propose(alike, failure_class)
        (parsed,) = parse_rules([rule])
    except ValueError as error:
        raise RedriveError(str(error)) from None
    return Trial(rule, downstream, _existing(fold, downstream), effect(parsed, tasks, loose))


def _failed_like(attempts: Iterable[AttemptRow], loose: str) -> bool:
    return any(one.fingerprint_loose == loose for one in attempts)


def _past(row: FailedTask) -> PastTask:
    attempts = [PastAttempt(*one) for one in row.attempts]
    spec = msgspec.convert({"name": row.name, **row.spec}, TaskSpec)
    return PastTask(row.run_id, row.name, row.state, row.generation, row.skip_cause, spec, attempts)


def _existing(fold: RunFold, downstream: str | None) -> list[Mapping[str, object]]:
    """The rules that the flow of the run had for this downstream."""
    declared = json.loads(fold.run.options).get("downstreams") or ()
    return [rule for spec in declared if spec.get("name") == downstream for rule in spec.get("rules") or ()]


def told(found: Trial) -> Iterator[tuple[str, str]]:
    """Rule, text to paste, history, and what else the rule would have met. A row without a label goes on."""
    yield "rule", one_line(spoken_rule(found.rule, found.downstream))
    yield "paste", sanitize(found.text)
    if found.downstream is None:
        yield "", 'these tasks name no downstream, and rules belong to one: give them downstream="NAME"'
    first, *more = sentences(found.effect)
    since = found.effect.since
    yield "history", f"{first}{f', the first at {wall_day(since, None)}' if since is not None else ''}"
    for sentence in more:
        yield "", sentence
    for title, mark, count in found.effect.others[:_OTHERS_SHOWN]:
        failures = f"{count:,} failure{'' if count == 1 else 's'}"
        yield "also", f"it fits {failures} of another cause: {one_line(title)} (fp {one_line(mark)})"
