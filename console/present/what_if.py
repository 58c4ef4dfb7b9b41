"""A run compared with its replay under another policy: a table, and sentences on how far to trust the replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.analysis.compare import PolicyComparison, differences
from ...engine.analysis.recorded_run import FailureAttribution
from ...engine.analysis.what_if import RunFigures
from ..text.durations import format_seconds, number, wall
from ..text.plots import table_lines

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


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """``forked_at``: microseconds UTC; None: the start of the run. ``acts``: acts of operators since then."""

    forked_at: int | None = None
    acts: int = 0
    deadline_seconds: float | None = None
    is_running: bool = False


def table(comparison: PolicyComparison) -> Iterator[str]:
    """The recorded run, the control and the change; of several replays the median, least and most."""
    rows: list[Sequence[str]] = [_HEADS, _row("as it was", comparison.recorded), ("same policy (control)", *[""] * 6)]
    rows += [_row(f"  {attribution}", figures) for attribution, figures in comparison.control.items()]
    rows.append(("with the change", *[""] * 6))
    for attribution, spread in comparison.changed.items():
        rows.append(_row(f"  {attribution}", spread.median))
        if spread.least != spread.most:
            rows += [_row("    at least", spread.least), _row("    at most", spread.most)]
    yield from table_lines(rows)


def title(comparison: PolicyComparison) -> str:
    """``what if max_attempts=5 jitter=equal``."""
    return f"what if {comparison.change.text}"


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
    start = "from its start" if context.forked_at is None else f"from {wall(context.forked_at, None)} on"
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
