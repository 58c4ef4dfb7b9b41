"""The report in a browser: it loads nothing, runs nothing of a task, and a phone can show it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser

from .test_report import HOSTILE, page_of, report_of
from .test_rows import board_of_all_states

pytestmark = pytest.mark.long  # it needs a Chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Browser:
    """A report whose every long text is hostile."""
    path = tmp_path / "night.html"
    path.write_text(page_of(report_of(board_of_all_states(HOSTILE)))[1], encoding="utf-8")
    chromium.open(path)
    assert chromium.requests == [path.as_uri()]
    return chromium


def test_hostile_text_runs_nothing_and_loads_nothing(page: Browser) -> None:
    assert page.complaints == []
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.querySelectorAll('img, iframe, link, object, a, form').length") == 0
    assert page.evaluate("document.body.textContent.includes('<script>alert(1)</script>')")


def test_the_policy_stops_a_script(page: Browser) -> None:
    page.evaluate(
        "(() => { const added = document.createElement('script'); added.textContent = 'window.ran = 1';"
        " document.body.append(added); })()"
    )
    assert page.evaluate("window.ran === undefined")
    assert "Content Security Policy" in "".join(page.complaints)


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
