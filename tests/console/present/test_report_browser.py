"""The report in a browser: it loads nothing, runs nothing of a task, its slider works, and a phone can show it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.console.present.report import Move, timeline_of
from redrive.console.present.states import state_sign
from redrive.console.text.glyphs import UTF8
from redrive.engine.core.views import STATE_STYLES
from redrive.engine.domain.states import TaskState
from support.browser import Browser

from .test_report import HOSTILE, page_of, report_of
from .test_rows import board_of_all_states

pytestmark = pytest.mark.long  # it needs a Chromium

SIGNS = "[...document.querySelectorAll('[data-task]')].map((sign) => sign.textContent)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Browser:
    """A report whose every long text is hostile; in each cell after the first, one task reaches its state."""
    board = board_of_all_states(HOSTILE)
    span = timeline_of(report_of(board)).span
    moves = [
        Move(span.instant(cell), name, row.state) for cell, (name, row) in enumerate(board.projection.tasks.items(), 1)
    ]
    path = tmp_path / "night.html"
    path.write_text(page_of(report_of(board, moves))[1], encoding="utf-8")
    chromium.open(path)
    assert chromium.requests == [path.as_uri()]
    return chromium


def slide(page: Browser, cell: str) -> None:
    page.evaluate(f"(slider.value = {cell}, slider.dispatchEvent(new Event('input')))")


def test_hostile_text_runs_nothing_and_loads_nothing(page: Browser) -> None:
    assert page.complaints == []
    assert page.evaluate("document.scripts.length") == 2  # the data and the script of the report
    assert page.evaluate("document.querySelectorAll('img, iframe, link, object, a, form').length") == 0
    assert page.evaluate("document.body.textContent.includes('<script>alert(1)</script>')")


def test_the_policy_stops_a_script_that_is_not_the_pages(page: Browser) -> None:
    page.evaluate(
        "(() => { const added = document.createElement('script'); added.textContent = 'window.ran = 1';"
        " document.body.append(added); })()"
    )
    assert page.evaluate("window.ran === undefined")
    assert "Content Security Policy" in "".join(page.complaints)


def test_the_slider_shows_the_states_of_each_instant(page: Browser) -> None:
    at_the_end = page.evaluate(SIGNS)
    assert page.evaluate("!night.hidden && hand.hidden")
    slide(page, "0")
    assert set(page.evaluate(SIGNS)) == {state_sign(TaskState.PENDING, UTF8).text}
    assert page.evaluate("instant.textContent").endswith(STATE_STYLES[TaskState.PENDING].word)
    assert not page.evaluate("hand.hidden")
    slide(page, "3")
    halfway = page.evaluate(SIGNS)
    assert set(halfway) > {state_sign(TaskState.PENDING, UTF8).text}
    slide(page, "slider.max")
    assert page.evaluate(SIGNS) == at_the_end != halfway


def test_a_phone_shows_the_text_without_scrolling_sideways(page: Browser) -> None:
    page.resize(390, 844)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("[...document.querySelectorAll('.wide')].some((one) => one.scrollWidth > one.clientWidth)")


def test_colours_follow_the_reader(page: Browser) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    light, dark = (sum(int(part) for part in one[4:-1].split(",")) for one in backgrounds)
    assert light > 600 > 200 > dark
