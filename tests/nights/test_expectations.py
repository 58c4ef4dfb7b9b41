"""Nights in which something is late, and is told before anything fails."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from redrive.engine import Flow
from redrive.engine.testing import play, play_schedule


def about(text: str) -> object:
    """An instant in microseconds, within two heartbeats."""
    return pytest.approx(datetime.fromisoformat(text).timestamp() * 1e6, abs=2e6)


def test_a_task_that_is_not_done_when_it_was_expected_is_paged_once_before_it_fails() -> None:
    flow = Flow("f", timezone="Europe/Berlin")
    flow.task(name="extract")(lambda: time.sleep(3 * 3600))
    flow.task(name="load", after="extract", expect_by="01:00")(lambda: time.sleep(60))
    night = play(flow, at="2026-01-05T22:30+01:00")
    assert night.state == "SUCCESS"
    (page,) = night.pages
    assert (page.title, page.severity, page.state) == ("later than expected on load", "normal", "resolved")
    assert page.created_at == about("2026-01-06T01:00+01:00")
    sentence = "it was expected by 01:00 Europe/Berlin and is not done: pending, after extract"
    assert sentence in night.why("load", "2h31m") and "late: load" in night.header("2h31m")
    assert any(f"load LATE: {sentence}" in line for line in night.journal)
    assert "late" not in night.header("3h20m") and sentence not in night.why("load", "3h20m")


def test_a_task_that_is_done_in_time_pages_nobody() -> None:
    flow = Flow("f")
    flow.task(name="load", expect_by="2h")(lambda: time.sleep(3600))
    assert play(flow).pages == []


def test_a_scheduled_task_is_expected_from_its_logical_time_on() -> None:
    flow = Flow("nightly", schedule="0 2 * * *", timezone="Europe/Berlin")
    flow.task(name="load", expect_by="03:30")(lambda: time.sleep(7200))
    night = play_schedule(flow, at="2026-01-05T22:00+01:00", lasts="1d")
    (page,) = night.pages
    assert page.created_at == about("2026-01-06T03:30+01:00")
