"""Trials on the past of a run: another class for a cause, another retry policy. The run is not changed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median_low

import msgspec

from ...engine.analysis.trials import (
    PolicyChange,
    RuleEffect,
    describe_effect,
    describe_rule,
    evaluate_rule,
    flow_text,
    propose_rule,
)
from ...engine.analysis.what_if import (
    FailureAttribution,
    PolicyComparison,
    ReplayInput,
    ReplayStart,
    RunFigures,
    compare,
    differences,
    start_of_run,
)
from ...engine.core.dag import Dag
from ...engine.core.failures.classify import parse_rules
from ...engine.core.outcome import FailureClass
from ...engine.core.projection import AttemptRow, RunProjection
from ...engine.domain.states import FailedAttempt, FailedTask
from ...engine.domain.text import counted, format_seconds
from ...engine.errors import RedriveError
from ...engine.statefile.lists import DurationStats
from ..text.event_text import fields_text
from ..text.figures import number, number_table, wall, wall_day
from ..text.text import one_line, sanitize
from .reads import EventHistory
from .session import Session

# --- Another class ---------------------------------------------------------------------------------------------------
#
# Derives a classification rule from a cause and tries it on past failures, through a session.


#: The classes of failures, and what each of them means.
FAILURE_CLASSES: Mapping[str, str] = {
    "transient": "the next attempt may work: it is retried",
    "permanent": "the next attempt will not work: a dead letter at once",
    "ambiguous": "unclear: a few attempts, then permanent",
    "validation": "the input is wrong: a dead letter at once",
    "auth": "the credential is refused: its downstream is held",
}
_OTHERS_SHOWN = 5


class RuleTrial(msgspec.Struct, frozen=True):
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
    tasks = await session.failures(projection.run.run_id, downstream, names)
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
    tasks: Iterable[FailedTask], matching: Sequence[FailedAttempt], failure_class: FailureClass
) -> list[FailedAttempt]:
    """The failures whose class a rule for ``matching`` must not change."""
    own = {str(failure_class), *(one.failure_class for one in matching)}
    failed = (one for task in tasks for one in task.attempts if one.failure_class is not None)
    return [one for one in failed if one.failure_class not in own]


def _has_failed_like(attempts: Iterable[AttemptRow], loose: str) -> bool:
    return any(one.fingerprint_loose == loose for one in attempts)


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
    yield "history", f"{first}{f', the first at {wall_day(since)}' if since is not None else ''}"
    for sentence in more:
        yield "", sentence
    for title, mark, count in trial.effect.others[:_OTHERS_SHOWN]:
        failures = counted(count, "failure")
        yield "also", f"it fits {failures} of another cause: {one_line(title)} (fp {one_line(mark)})"
    if trial.fields:
        yield "cause", one_line(fields_text(trial.fields))


# --- Another policy --------------------------------------------------------------------------------------------------
#
# Replays a recorded run under another policy and compares the results; for the command line and for the console.


REPLAYS = 5


class WhatIfResult(msgspec.Struct, frozen=True):
    """A comparison. ``seq``: the event after which the replay starts; None: at the start of the run."""

    comparison: PolicyComparison
    run_id: str
    seq: int | None
    context: ReplayContext

    @property
    def title(self) -> str:
        """``what if max_attempts=5 jitter=equal``."""
        return f"what if {self.comparison.change.text}"

    def sentences(self) -> Iterator[str]:
        """The findings and the limits of the comparison."""
        return describe_comparison(self.comparison, self.context)


async def replay_under_policy(
    session: Session,
    projection: RunProjection,
    history: EventHistory,
    change: PolicyChange,
    seq: int | None = None,
    replays: int = REPLAYS,
) -> WhatIfResult:
    """Replay the run of ``projection``, a snapshot of the present, from after the event ``seq``; None: from its start.

    ``replays``: how many, each with other random numbers. Reads ``history`` up to the present first. The replays run in
    a thread, so that a large run does not block the screen.
    """
    await history.load(projection.seq)
    index, stats = history.index, await session.duration_stats(projection.run.run_id)
    start = start_of_run(projection)
    if seq is not None:
        snapshot = (await history.point_at(seq)).snapshot
        start = ReplayStart(snapshot.projection, index.instant_of(seq), index.counter.counts_at(seq), snapshot.breakers)
    counts, dice = index.counter.counts_at(projection.seq), [random.Random(one).uniform for one in range(replays)]
    run = projection.run

    def simulate() -> PolicyComparison:
        return compare(ReplayInput(projection, start, _path_seconds(projection, stats)), counts, change, dice)

    context = ReplayContext(
        forked_at=None if seq is None else start.at,
        acts=counts.acts - start.counts.acts,
        deadline_seconds=None if run.deadline_at is None else (run.deadline_at - run.started_at) / 1e6,
        is_running=run.ended_at is None and run.blocked_since is None,
    )
    return WhatIfResult(await asyncio.to_thread(simulate), run.run_id, seq, context)


def _path_seconds(projection: RunProjection, stats: Mapping[str, DurationStats]) -> Mapping[str, float]:
    """The longest path in seconds from each task to the end, by the durations of earlier runs; empty without those."""
    if not stats:
        return {}
    known: dict[str, float] = {name: one.p50_us / 1e6 for name, one in stats.items()}
    unknown = median_low(known.values())
    dag = Dag((name, projection.parents.get(name, ())) for name in projection.tasks)
    return dag.remaining_path({name: known.get(name, unknown) for name in projection.tasks})


# --- What if ---------------------------------------------------------------------------------------------------------
#
# A run compared with its replay under another policy: a table, and sentences on how far to trust the replay.


_HEADS = ("", "calls", "failed", "dead letters", "not run", "pages", "finish")
_NOUNS = {
    "calls": ("call", "calls"),
    "failed": ("failed task", "failed tasks"),
    "dead_letters": ("dead letter", "dead letters"),
    "not_run": ("task not run", "tasks not run"),
    "pages": ("page", "pages"),
}
_SECONDS_MIN = 1.0  # smaller differences at the finish are not mentioned

_ATTRIBUTIONS = (
    "by number: each attempt ends as the attempt of that number did; right for bugs and for chance, blind to outages.",
    "by time: where an outage explains a failure, as the call of the same downstream did that was nearest in time.",
    "The truth is between the two.",
)
_NOT_REPLAYED = (
    "Not replayed: crashes of the executor, other runs of the file, what earlier runs had shown about failures that"
    " heal, and that a downstream with fewer calls may recover sooner."
)


class ReplayContext(msgspec.Struct, frozen=True):
    """``forked_at``: microseconds UTC; None: the start of the run. ``acts``: acts of operators since then."""

    forked_at: int | None = None
    acts: int = 0
    deadline_seconds: float | None = None
    is_running: bool = False


def comparison_table(comparison: PolicyComparison) -> Iterator[str]:
    """The recorded run, the control and the change; of several replays the median, least and most."""
    rows: list[Sequence[str]] = [_HEADS, _row("as it was", comparison.recorded), ("same policy (control)", *[""] * 6)]
    rows += [_row(f"  {attribution}", figures) for attribution, figures in comparison.control.items()]
    rows.append(("with the change", *[""] * 6))
    for attribution, spread in comparison.changed.items():
        rows.append(_row(f"  {attribution}", spread.median))
        if spread.least != spread.most:
            rows += [_row("    at least", spread.least), _row("    at most", spread.most)]
    yield from number_table(rows)


def describe_comparison(comparison: PolicyComparison, context: ReplayContext) -> Iterator[str]:
    """Sentences on the comparison; first, how far the table can be trusted."""
    yield _describe_control(comparison)
    yield from _describe_unrecorded(comparison)
    if context.is_running:
        yield "The run is not over: tasks that have not run yet are assumed to succeed."
    if context.acts:
        acts = "1 act of an operator" if context.acts == 1 else f"{context.acts} acts of operators"
        yield f"A replay has no operator: the run had {acts} since then."
    if context.deadline_seconds is not None:
        yield f"The run is due after {format_seconds(context.deadline_seconds)}."
    start = "from its start" if context.forked_at is None else f"from {wall(context.forked_at)} on"
    replays = "once" if comparison.replays == 1 else f"{comparison.replays} times with other random numbers; medians"
    yield f"Replayed {start} by the engine's own rules, with the slots, pools and breakers of the flow: {replays}."
    yield from _ATTRIBUTIONS
    yield _NOT_REPLAYED


def _row(name: str, figures: RunFigures) -> tuple[str, ...]:
    counts = (figures.calls, figures.failed, figures.dead_letters, figures.not_run, figures.pages)
    return (name, *map(number, counts), format_seconds(figures.seconds) if figures.is_over else "never")


def _describe_control(comparison: PolicyComparison) -> str:
    differences_by = {
        attribution: _describe_difference(comparison.recorded, figures)
        for attribution, figures in comparison.control.items()
    }
    if not any(differences_by.values()):
        return "The control equals the run: what the replay leaves out did not matter here."
    parts = "; ".join(f"{attribution}: {words or 'nothing'}" for attribution, words in differences_by.items())
    return f"The control differs from the run ({parts}): a difference no larger than that shows nothing."


def _describe_difference(was: RunFigures, again: RunFigures) -> str:
    if not again.is_over:
        return "it never ends"
    found = differences(was, again)
    seconds = found.pop("seconds", 0.0)
    words = [f"{difference:+,} {_NOUNS[name][abs(difference) != 1]}" for name, difference in found.items()]
    if abs(seconds) >= _SECONDS_MIN:
        words.append(f"{format_seconds(abs(seconds))} {'later' if seconds > 0 else 'sooner'}")
    return ", ".join(words)


def _describe_unrecorded(comparison: PolicyComparison) -> Iterator[str]:
    medians = {attribution: spread.median for attribution, spread in comparison.changed.items()}
    parts = [f"{figures.unrecorded:,} {attribution}" for attribution, figures in medians.items() if figures.unrecorded]
    if parts:
        yield (
            f"Without a counterpart in the run are {' and '.join(parts)} of {_calls(medians)} calls:"
            " they end as the last one did, and tasks that had not run succeed."
        )
    if endless := [figures.calls for figures in medians.values() if not figures.is_over]:
        yield (
            "Never: a downstream that does not recover in the run is called again and again;"
            f" stopped after {max(endless):,} calls."
        )


def _calls(medians: dict[FailureAttribution, RunFigures]) -> str:
    return " and ".join(dict.fromkeys(number(figures.calls) for figures in medians.values()))
