"""Compares a recorded run with replays of it: under its own policies (the control), and with a change.

Where the control differs from the recorded run, the replay leaves out something that mattered, and a change with a
smaller effect than that difference shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median_low

from .counters import RunCounts
from .policy_change import NO_CHANGE, PolicyChange
from .recorded_run import FailureAttribution
from .what_if import ReplayInput, RunFigures, Uniform, recorded_figures, replay


@dataclass(frozen=True, slots=True)
class FigureRange:
    """The median, least and most of each figure, over replays with different random numbers."""

    median: RunFigures
    least: RunFigures
    most: RunFigures


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """The recorded figures, the control, and the replays with ``change``, by attribution of failures."""

    change: PolicyChange
    recorded: RunFigures
    control: Mapping[FailureAttribution, RunFigures]
    changed: Mapping[FailureAttribution, FigureRange]
    replays: int  # with the change, for each attribution


def compare(
    replay_input: ReplayInput, counts: RunCounts, change: PolicyChange, uniforms: Sequence[Uniform]
) -> PolicyComparison:
    """Replay a run once as it was, and once with the change for each source of random numbers in ``uniforms``.

    ``counts``: of all events of the run.
    """
    control: dict[FailureAttribution, RunFigures] = {}
    changed: dict[FailureAttribution, FigureRange] = {}
    for attribution in FailureAttribution:
        control[attribution] = replay(replay_input, NO_CHANGE, attribution)
        changed[attribution] = range_of([replay(replay_input, change, attribution, uniform) for uniform in uniforms])
    return PolicyComparison(change, recorded_figures(replay_input.recorded, counts), control, changed, len(uniforms))


def range_of(figures: Sequence[RunFigures]) -> FigureRange:
    """Take each figure on its own: no single replay need have all the medians."""
    columns = [*zip(*map(astuple, figures), strict=True)]
    return FigureRange(
        RunFigures(*map(median_low, columns)), RunFigures(*map(min, columns)), RunFigures(*map(max, columns))
    )


def differences(one: RunFigures, other: RunFigures) -> dict[str, float]:
    """Return the figures in which two runs differ, by name, without the count of unrecorded attempts."""
    names = (field.name for field in fields(RunFigures) if field.name not in ("unrecorded", "is_over"))
    found = {name: getattr(other, name) - getattr(one, name) for name in names}
    return {name: difference for name, difference in found.items() if difference}
