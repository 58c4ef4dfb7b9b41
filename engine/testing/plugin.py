"""The pytest plugin: the fixture ``play``, whose nights are shown when their test fails."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .night import Night

_NIGHTS: pytest.StashKey[list[Any]] = pytest.StashKey()


@pytest.fixture
def play(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[..., Night]:
    """``redrive.engine.testing.play``; a state file is kept in ``tmp_path``, and a failed test shows the timeline."""
    from .playing import play as play_night

    nights = request.node.stash.setdefault(_NIGHTS, [])

    def call(*args: Any, **options: Any) -> Night:
        __tracebackhide__ = True
        options.setdefault("keep", tmp_path / f"night-{len(nights) + 1}.db")
        night = play_night(*args, **options)
        nights.append(night)
        return night

    return call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the nights of a failed test to its report."""
    report = yield
    if report.when == "call" and report.failed:
        for night in item.stash.get(_NIGHTS, []):
            report.sections.append((f"night: {night!r}", night.timeline))
    return report
