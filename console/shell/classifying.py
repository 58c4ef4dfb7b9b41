"""``redrive classify``: a rule made of a failure, and what it would have done, before it goes into the flow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import msgspec

from ...engine.core.fold import RunFold
from ...engine.core.outcome import FailureClass
from ...engine.core.reclassify import (
    Effect,
    PastAttempt,
    PastTask,
    effect,
    flow_text,
    propose,
    sentences,
    spoken_rule,
)
from ...engine.core.rules import parse_rules
from ...engine.core.spec import TaskSpec
from ...engine.errors import RedriveError
from ..doors import with_session
from ..present.durations import wall_day
from ..present.text import one_line, sanitize
from ..sessions.session import Session
from .listing import print_json
from .noting import cause_of

_OTHERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """A rule and what it would have done. ``existing``: the rules that the run has for its downstream."""

    rule: Mapping[str, Any]
    downstream: str | None
    existing: Sequence[Mapping[str, Any]]
    effect: Effect


def classify(
    target: str,
    *,
    run_id: str | None,
    fingerprint: str,
    failure_class: str,
    downstream: str | None,
    conditions: Sequence[str],
    as_json: bool,
    python: str | None,
    ssh_option: Sequence[str],
) -> int:
    """Print the rule and its effect; nothing is changed anywhere."""
    chosen = conditions_of(conditions)

    async def use(session: Session) -> Trial:
        fold = await session.snapshot(run_id)
        loose = cause_of(fold, fingerprint)
        return await trial(session, fold, loose, FailureClass(failure_class), downstream, chosen)

    found = with_session(target, use, python=python, ssh_option=ssh_option)
    if as_json:
        text = flow_text(found.rule, found.existing, found.downstream)
        print_json({"rule": found.rule, "downstream": found.downstream, "flow": text, "effect": asdict(found.effect)})
        return 0
    for line in lines(found):
        click.echo(line)
    return 0


def conditions_of(words: Sequence[str]) -> dict[str, Any]:
    """``status=409`` as a condition of a rule. Raises UsageError for what is none."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.UsageError(f"--when {word!r}: write NAME=VALUE, as status=409")
        try:
            found[name] = int(value) if name in ("status", "exit_code", "signal") else value
        except ValueError:
            raise click.UsageError(f"--when {word!r}: {name} is a number") from None
    return found


async def trial(
    session: Session,
    fold: RunFold,
    loose: str,
    failure_class: FailureClass,
    downstream: str | None = None,
    conditions: Mapping[str, Any] | None = None,
) -> Trial:
    """Make a rule of a cause and try it. ``conditions``: instead of those that would be proposed.

    Raises RedriveError where nothing failed like that, or no rule can be made of it.
    """
    names = [row.name for row in fold.tasks.values() if _failed_like(row.attempts.values(), loose)]
    called = {spec.downstream for name in names if (spec := fold.tasks[name].spec) is not None}
    if downstream is None and len(called) == 1:
        downstream = called.pop()
    rows = await session.query("failures", run_id=fold.run.run_id, downstream=downstream, names=names)
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


def _failed_like(attempts: Any, loose: str) -> bool:
    return any(one.fingerprint_loose == loose for one in attempts)


def _past(row: Mapping[str, Any]) -> PastTask:
    attempts = [PastAttempt(**one) for one in row["attempts"]]
    spec = msgspec.convert({"name": row["name"], **row["spec"]}, TaskSpec)
    return PastTask(**{**row, "spec": spec, "attempts": attempts})


def _existing(fold: RunFold, downstream: str | None) -> list[Mapping[str, Any]]:
    """The rules that the flow of the run had for this downstream."""
    declared = json.loads(fold.run.options).get("downstreams") or ()
    return [rule for spec in declared if spec.get("name") == downstream for rule in spec.get("rules") or ()]


def lines(found: Trial) -> Iterator[str]:
    """Rule, text to paste, history, and what else the rule would have met."""
    yield f"rule     {one_line(spoken_rule(found.rule, found.downstream))}"
    yield f"paste    {sanitize(flow_text(found.rule, found.existing, found.downstream))}"
    if found.downstream is None:
        yield '         these tasks name no downstream, and rules belong to one: give them downstream="NAME"'
    first, *more = sentences(found.effect)
    since = found.effect.since
    yield f"history  {first}{f', the first at {wall_day(since, None)}' if since is not None else ''}"
    yield from (f"         {sentence}" for sentence in more)
    for title, mark, count in found.effect.others[:_OTHERS_SHOWN]:
        failures = f"{count:,} failure{'' if count == 1 else 's'}"
        yield f"also     it fits {failures} of another cause: {one_line(title)} (fp {one_line(mark)})"
