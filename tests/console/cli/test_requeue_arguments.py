"""When tasks run again, as people write it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import click
import pytest
from redrive.console.cli.operate import REQUEUE_OPTIONS, preview_lines, requeue_options_of, seconds_until
from redrive.engine.domain.acts import DONE, HELD, ActPreview, TargetResult
from support.marks import for_each


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone whose clocks are moved, as a POSIX rule, for machines without zone files."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone()


@for_each(
    "text, now, hours",
    [
        ("06:00", "2026-01-10T03:00", 3),
        ("6:00", "2026-01-10T03:00", 3),
        ("06:00", "2026-01-10T06:00", 24),  # it is six now: the next one
        ("06:00", "2026-01-10T23:00", 7),
        ("06:00", "2026-03-28T22:00", 7),  # the night in which an hour is left out
        ("06:00", "2026-10-24T22:00", 9),  # and the one that has it twice
        ("2026-01-12T03:00", "2026-01-10T03:00", 48),
        ("2026-01-10T03:00+00:00", "2026-01-10T03:00", 1),
    ],
)
def test_a_time_is_the_next_one_on_the_clocks_here(text: str, now: str, hours: float) -> None:
    assert seconds_until(text, at(now)) == (hours * 3600, True)


@for_each("text", ["soon", "25:00", "2026-01-09T03:00", "", "06:00 tomorrow"])
def test_what_is_no_time_or_has_passed_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        seconds_until(text, at("2026-01-10T03:00"))


def given(**options: object) -> dict[str, object]:
    return {**dict.fromkeys(REQUEUE_OPTIONS), "param": (), **options}


def test_nothing_asked_for_is_nothing_sent() -> None:
    assert requeue_options_of(given()) == {}


@for_each(
    "options",
    [
        {"not_before": "0s"},
        {"not_before": "25:00"},
        {"rate": "fast"},
        {"rate": "0/s"},
        {"timeout": "soon"},
        {"param": ("day",)},
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_sent(options: dict[str, object]) -> None:
    with pytest.raises(click.UsageError):
        requeue_options_of(given(**options))


def test_a_preview_names_what_follows_a_canary() -> None:
    later = [TargetResult(name, HELD, "follow when a has succeeded") for name in "bc"]
    results = [TargetResult("a", DONE, "runs again"), *later]
    preview = ActPreview(True, "", results, ["a"])
    assert list(preview_lines(preview)) == ["would run again (1): a", "would follow when a has succeeded (2): b, c"]
