"""The report of a run: its facts are those of the board, and no text of a task becomes part of the page."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from redrive.console.app.theme import load_theme
from redrive.console.model.board import Board
from redrive.console.model.inbox import AttemptTexts, EvidenceData, Inbox, failures_of
from redrive.console.present.report import (
    CauseEvidence,
    PageColours,
    ReportData,
    report_html,
    slots_line,
    slow_lines,
    tasks_near_limits,
    timeline_rows,
)
from redrive.console.text.pieces import Role, plain
from redrive.engine.analysis.slot_seconds import SlotSeconds
from redrive.engine.core.projection import AttemptRow
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.lists import PastAttemptRow
from redrive.engine.statefile.logs import AttemptText

from ..model.runs import EventBuilder, S, projection_of
from .test_rows import EVIL, NOW, board_of_all_states

HOSTILE = f'{EVIL} </pre></script><script>alert(1)</script><img src=x onerror=\'x\'>" onclick="y" ``` &amp; ]]> <!--'
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "pre", "b", "details", "summary"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "open"}


class Page(HTMLParser):
    """What a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.inside: dict[str, list[str]] = {"style": [], "title": []}
        self.comments: list[str] = []
        self.frames: list[bool] = []  # of the divisions that are open: whether it scrolls by itself
        self.unbroken: list[bool] = []  # of each text whose lines are not broken: whether it is in such a frame
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "div":
            self.frames.append(("class", "wide") in attrs)
        if tag == "pre":
            self.unbroken.append(any(self.frames))

    def handle_endtag(self, tag: str) -> None:
        if tag == "div":
            self.frames.pop()

    def handle_data(self, data: str) -> None:
        if self.lasttag in self.inside:
            self.inside[self.lasttag].append(data)
            self.lasttag = ""
            return
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def report_of(board, **facts) -> ReportData:
    """A report with the evidence of every cause, whose long texts are hostile."""
    builder = EventBuilder(board.projection)
    note = builder.event(EventKind.NOTE, actor=HOSTILE, reason=HOSTILE, data={"text": HOSTILE})
    causes = []
    for cause in Inbox(board).causes():
        long = AttemptText(HOSTILE, HOSTILE, HOSTILE)
        texts = [AttemptTexts(one.attempt, long) for one in failures_of(board.row(cause.tasks[0]))]
        causes.append(CauseEvidence(cause, EvidenceData(texts)))
    return ReportData(board, HOSTILE, NOW, causes, len(causes), [note], **facts)


def page_of(data: ReportData) -> tuple[Page, str]:
    themes = [load_theme(name) for name in ("light", "dark")]
    colours = [PageColours(one.background, one.foreground, one.styles) for one in themes]
    text = report_html(data, *colours)
    return Page(text), text


def hostile_page() -> tuple[Page, str]:
    board = board_of_all_states(HOSTILE)
    return page_of(report_of(board))


def test_no_text_of_a_task_becomes_a_tag_or_an_attribute():
    page, text = hostile_page()
    assert set(page.tags) <= TAGS
    assert not page.comments
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    classes = {value for name, value in page.attributes if name == "class"}
    assert classes <= {*map(str, Role), "wide", "line"}
    assert "onerror=" in "".join(page.text)  # it is there, as text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b\ud800-\udfff]", text)


def test_the_policy_allows_the_style_of_the_page_and_nothing_else():
    page, _ = hostile_page()
    policy = next(value for _, value in page.attributes if value and value.startswith("default-src"))
    allowed = {part.split()[0]: part.split()[1] for part in policy.split(";")}

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert allowed == {
        "default-src": "'none'",
        "style-src": digest(page.inside["style"][0]),
        "base-uri": "'none'",
    }
    assert not re.search("https?:|//[a-z]|url\\(|@import|eval", "".join(page.inside["style"]))


def test_a_phone_shows_the_text_without_scrolling_sideways_and_colours_follow_the_reader():
    """Only a chart and a traceback may be wider than the screen: each scrolls in a frame of its own."""
    page, _ = hostile_page()
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    style = page.inside["style"][0]
    assert ".wide{overflow-x:auto" in style and "overflow-wrap:anywhere" in style
    assert len(page.unbroken) > 2 and all(page.unbroken)
    light, _, dark = style.partition("@media(prefers-color-scheme:dark)")
    backgrounds = [re.findall("body{[^}]*background(?:-color)?:#([0-9a-f]{6})", one) for one in (light, dark)]
    assert [int(one[0][:2], 16) > 128 for one in backgrounds] == [True, False]


def test_every_cause_has_its_page_with_the_message_and_the_traceback():
    board = board_of_all_states("the message")
    data = report_of(board)
    page, _ = page_of(data)
    text = "".join(page.text)
    assert page.tags.count("details") == len(Inbox(board).causes()) > 0
    for one in data.causes:
        assert one.cause.title in text
    assert "alert(1)" in text  # of the traceback


def test_tasks_that_took_much_longer_than_usual_are_named():
    board = board_of_all_states("name")
    running = next(name for name, row in board.projection.tasks.items() if row.state is TaskState.RUNNING)
    assert slow_lines(report_of(board)) == ["No earlier run to compare with."]
    board.duration_stats = {running: DurationStats(S, 2 * S, 20)}
    assert f"{running}: 41s, usually 1s (95 of 100 within 2s)" in slow_lines(report_of(board))


def test_limits_are_proposed_from_earlier_attempts_for_tasks_that_came_near_theirs() -> None:
    limits = {"load": {"timeout": 30.0, "memory": 2**30}, "ample": {"timeout": 600.0, "memory": 2**40}}
    board = Board(projection_of([("load", []), ("ample", [])], limits))
    for row in board.projection.tasks.values():
        row.attempts[1] = AttemptRow(1, outcome="success", duration_us=25 * S, max_rss_kb=900_000)
    assert tasks_near_limits(board) == ["load"]
    past = [
        PastAttemptRow("run", day, NOW, None, 25 * S, "success", None, None, None, None, 900_000) for day in range(5)
    ]
    text = " ".join(page_of(report_of(board, near_limits={"load": past}))[0].text)
    assert "load: 5 of 5 attempts took about 25s: timeout=45s would have let all of them end" in text
    assert 'load: its attempts held up to 922 MB of 1.1 GB allowed: memory="2GB"' in text


def test_a_large_run_has_a_row_for_each_group_which_opens_to_its_tasks():
    names = [("fetch", []), *((f"load_{number:03}", ["fetch"]) for number in range(80))]
    board = Board(projection_of([*names, *((f"check_{number}", [f"load_{number:03}"]) for number in range(9))]))
    timeline = timeline_rows(ReportData(board, "night.db", NOW))
    rows = {plain(row.line).split()[2]: row for row in timeline if row.members}
    assert list(rows) == ["load", "check"]
    assert [len(row.members) for row in rows.values()] == [80, 9]
    page, text = page_of(ReportData(board, "night.db", NOW))
    assert page.tags.count("summary") == page.tags.count("details") == 2
    assert '<b class="dim"> ▸ </b>' not in text


def test_a_small_run_has_a_row_for_each_task():
    board = board_of_all_states("name")
    assert not any(row.members for row in timeline_rows(report_of(board)))


@pytest.mark.parametrize("tasks", [1, 2_000])
def test_a_large_graph_is_listed_by_groups_and_its_timeline_is_bounded(tasks):
    board = Board(projection_of([(f"load_{number:04}", []) for number in range(tasks)]))
    _, text = page_of(ReportData(board, "night.db", NOW))
    assert ("1,700 more tasks" in text) == (tasks > 1)


def test_the_slot_seconds_stand_by_the_end_of_the_attempts_the_dearest_first() -> None:
    spent = {"success": SlotSeconds(1200, 240.0), "hang": SlotSeconds(2, 1200.0, 600.0)}
    line = "slot seconds of attempts: hang 1,200.0 in 2, success 240.0 in 1,200"
    assert slots_line(spent) == f"{line}; 600.0 of them repeated an earlier failure"
