"""Random graphs in the shapes that real workflows have: layers, wide fans, joins, long edges, loose parts."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from redrive.engine.core.dag import Dag

Pairs = list[tuple[str, list[str]]]


def layered(count: int, depth: int, seed: int, long_edges: float = 0.08) -> Pairs:
    """One to three parents per task, mostly from the level before."""
    dice = random.Random(seed)
    levels: list[list[str]] = [[] for _ in range(depth)]
    for number in range(count):
        levels[number * depth // count].append(f"t{number}")
    pairs: Pairs = []
    for depth_now, level in enumerate(levels):
        for name in level:
            parents = set()
            for _ in range(dice.randint(1, 3) if depth_now else 0):
                far = dice.random() < long_edges
                parents.add(dice.choice(levels[dice.randrange(depth_now) if far else depth_now - 1]))
            pairs.append((name, sorted(parents)))
    return pairs


@st.composite
def dags(draw: st.DrawFn, most: int = 16) -> Dag:
    """Any acyclic graph of up to ``most`` tasks, sparse ones and dense ones alike."""
    count = draw(st.integers(1, most))
    dice = random.Random(draw(st.integers(0, 2**32)))
    density = draw(st.sampled_from([0.05, 0.15, 0.3, 0.6]))
    return Dag((f"t{n}", [f"t{p}" for p in range(n) if dice.random() < density]) for n in range(count))


def edges(dag: Dag) -> set[tuple[str, str]]:
    """(parent, child)."""
    return {(parent, name) for name in dag.names for parent in dag.parents(name)}
