"""A run beside itself under another policy: as it was, the same once more, and with the change, under several dice.

The same once more is the control. Where it is not what the run was, the replay leaves something out that mattered, and
a change that makes a smaller difference than that shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median_low

from .counters import Counts
from .policy_change import NO_CHANGE, Change
from .recorded_run import Reading
from .what_if import Figures, Stage, Uniform, as_it_was, replay


@dataclass(frozen=True, slots=True)
class Spread:
    """Figure by figure, over replays that differ by their dice: the median, the least and the most."""

    median: Figures
    least: Figures
    most: Figures


@dataclass(frozen=True, slots=True)
class Comparison:
    """``control`` and ``changed`` by how the record is read."""

    change: Change
    was: Figures
    control: Mapping[Reading, Figures]
    changed: Mapping[Reading, Spread]
    nights: int  # replays with the change, under each reading


def compare(
    stage: Stage,
    counts: Counts,
    change: Change,
    dice: Sequence[Uniform],
) -> Comparison:
    """Replay a run: once as it was, and with the change for each of the ``dice``.

    ``counts``: of all events of the run.
    """
    control: dict[Reading, Figures] = {}
    changed: dict[Reading, Spread] = {}
    for reading in Reading:
        control[reading] = replay(stage, NO_CHANGE, reading)
        changed[reading] = spread_of([replay(stage, change, reading, uniform) for uniform in dice])
    return Comparison(change, as_it_was(stage.end, counts), control, changed, len(dice))


def spread_of(found: Sequence[Figures]) -> Spread:
    """Each figure on its own: the median night is none that was replayed."""
    columns = [*zip(*map(astuple, found), strict=True)]
    return Spread(Figures(*map(median_low, columns)), Figures(*map(min, columns)), Figures(*map(max, columns)))


def differences(one: Figures, other: Figures) -> dict[str, float]:
    """The figures in which two runs differ, by name; what the record does not know is none of them."""
    names = (field.name for field in fields(Figures) if field.name not in ("unrecorded", "is_over"))
    found = {name: getattr(other, name) - getattr(one, name) for name in names}
    return {name: difference for name, difference in found.items() if difference}
