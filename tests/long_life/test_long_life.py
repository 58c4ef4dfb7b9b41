"""A short life of many runs: what the process holds does not grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.marks import parametrize_mostly_long, scaled

from .life import Life, Sample, live, plot


@parametrize_mostly_long("attempts", [200, scaled(2_000)], daily=1)
def test_nothing_grows_over_a_life(tmp_path: Path, attempts: int) -> None:
    life = live(tmp_path, attempts, attaches=attempts // 100, acts=attempts // 10, report=lambda sample: None)
    assert list(life.problems()) == [], "\n".join(plot(life.samples))
    assert life.samples[-1].attempts >= attempts - 60 and life.attaches > 0


def test_what_grows_is_found() -> None:
    first = Sample(0, 0.0, 40_000, 8, 1, 1, 0, 0, 1000)
    leaking = [replace(first, attempts=number, descriptors=8 + number) for number in range(40)]
    assert list(Life(leaking, 0, 0).problems()) == ["descriptors grows: 27 and later 47"]
    assert list(Life([first, *[replace(first, zombies=1)] * 3], 0, 0).problems()) == ["1 zombies"]
