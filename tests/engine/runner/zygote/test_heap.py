"""What is allocated after the places between other objects were filled lies side by side."""

from __future__ import annotations

import random

import pytest
from redrive.engine.runner.zygote.heap import fill_pools


@pytest.mark.parametrize("size", [80, 240, 496])
def test_objects_lie_side_by_side(size: int) -> None:
    scattered = [bytes(size - 33) for _ in range(2000)]
    for place in random.Random(1).sample(range(2000), 300):
        scattered[place] = b""
    fillers = fill_pools()
    objects = [bytes(size - 33) for _ in range(10)]
    addresses = [id(one) for one in objects]
    assert addresses == list(range(addresses[0], addresses[0] + 10 * size, size))
    fillers.clear()
