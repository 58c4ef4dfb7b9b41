"""The bell rings for a page that is new, once, and for nothing else."""

from __future__ import annotations

import pytest
from redrive.console.terminal.driver import VARIABLE, TerminalBell
from redrive.engine.domain.event_payloads import PageChanged
from redrive.engine.domain.events import Event, EventKind

NOW_US = 1_777_000_000_000_000


def page_changed(page: int, what: str, at: int = NOW_US) -> Event:
    return Event(1, at, EventKind.PAGE, None, None, None, None, None, None, None, None, None, PageChanged(what, page))


@pytest.fixture
def rings() -> list[int]:
    return []


@pytest.fixture
def bell(rings: list[int], monkeypatch: pytest.MonkeyPatch) -> TerminalBell:
    monkeypatch.delenv(VARIABLE, raising=False)
    return TerminalBell(lambda: rings.append(1))


def test_a_new_page_rings_once_however_often_it_is_sent(bell: TerminalBell, rings: list[int]) -> None:
    bell.ring_for([page_changed(7, "opened"), page_changed(7, "bell")], NOW_US)
    bell.ring_for([page_changed(7, "bell")], NOW_US)
    bell.ring_for([page_changed(7, "folded")], NOW_US)
    assert len(rings) == 1


def test_many_pages_in_one_moment_are_one_ring(bell: TerminalBell, rings: list[int]) -> None:
    bell.ring_for([page_changed(page, "bell") for page in range(50)], NOW_US)
    assert len(rings) == 1


def test_a_page_that_was_snoozed_rings_again_when_it_wakes(bell: TerminalBell, rings: list[int]) -> None:
    bell.ring_for([page_changed(7, "bell")], NOW_US)
    bell.ring_for([page_changed(7, "woken"), page_changed(7, "bell")], NOW_US)
    assert len(rings) == 2


def test_what_is_no_news_any_more_is_silent(bell: TerminalBell, rings: list[int]) -> None:
    """A line that was down for long brings the night back at once."""
    bell.ring_for([page_changed(7, "bell", at=NOW_US - 3600 * 1_000_000)], NOW_US)
    assert rings == []


@pytest.mark.parametrize("value", ["0", "off", " No "])
def test_the_environment_silences_it(rings: list[int], monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    bell = TerminalBell(lambda: rings.append(1))
    bell.ring_for([page_changed(7, "bell")], NOW_US)
    assert rings == []


def test_it_forgets_old_pages_so_that_a_long_run_costs_no_memory(bell: TerminalBell, rings: list[int]) -> None:
    for page in range(3000):
        bell.ring_for([page_changed(page, "bell")], NOW_US)
    assert len(rings) == 3000
    bell.ring_for([page_changed(2999, "bell")], NOW_US)
    assert len(rings) == 3000
