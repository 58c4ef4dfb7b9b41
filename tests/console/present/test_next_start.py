"""When the next run of a schedule starts: every list and screen says the same (003.35)."""

from __future__ import annotations

import re
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.runs import fleet_entries, schedule_row
from redrive.console.present.fleet import FLEET_COLUMNS, fleet_row
from redrive.console.present.next_start import (
    NextStart,
    StartKind,
    nearest,
    next_start,
    start_of_entry,
    start_of_schedule,
    start_sentence,
    start_word,
    start_words,
)
from redrive.console.present.schedules import SCHEDULE_COLUMNS
from redrive.console.present.states import RowContext
from redrive.console.text.columns import shell_rows
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.statefile.lists import ScheduleRow
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.statefile.supervisor_file import FOREVER, FlowBefore, ServedSchedule, is_served
from support.marks import for_each

S = 1_000_000
DAY = 86_400 * S
NOW = round(datetime.fromisoformat("2026-11-21T17:18:00+00:00").timestamp() * 1e6)  # 22:48 in Kolkata


def row(local: str, expression: str = "0 2 * * *") -> ScheduleRow:
    due = round(datetime.fromisoformat(local).timestamp() * 1e6)
    return ScheduleRow("revenue", expression, "Asia/Kolkata", "one", None, 0, 0, due, local)


@for_each(
    "local, sentence",
    [
        ("2026-11-22T02:00:00+05:30", "next 20:30 (02:00 Asia/Kolkata), in 3h12"),
        ("2026-11-21T20:30:00+00:00", "next 20:30, in 3h12"),
        ("2026-11-21T22:48:30+05:30", "next 17:18:30 (22:48:30 Asia/Kolkata), in 30s"),
        ("2026-11-24T02:00:00+05:30", "next 23 Nov 20:30 (02:00 Asia/Kolkata), in 2d03h"),
        ("2026-11-21T22:34:00+05:30", "due 14m00 ago and not started"),
    ],
)
def test_a_start_is_said_by_both_clocks_and_by_how_far_it_is(local, sentence):
    assert start_sentence(next_start(row(local), None, NOW), NOW) == sentence


def test_where_there_is_room_for_one_it_is_the_nearest():
    rows = [row("2026-11-22T02:00:00+05:30"), row("2026-11-21T23:00:00+05:30")]
    assert start_sentence(nearest(next_start(one, None, NOW) for one in rows), NOW).startswith("next 17:30")
    assert nearest([]).kind is StartKind.NONE


def test_the_name_of_a_zone_or_of_a_flow_cannot_do_anything():
    start = next_start(row("2026-11-22T02:00:00+05:30")._replace(timezone="a\x1b[2Jb"), None, NOW)
    after = next_start(row("2026-11-22T02:00:00+05:30", "after a\x1b[2Jb"), None, NOW)
    assert "\x1b" not in start_sentence(start, NOW) + start_sentence(after, NOW)


FACTS = {
    **{name: st.just(ServedSchedule._field_defaults.get(name)) for name in ServedSchedule._fields},
    "flow": st.just("revenue"),
    "expression": st.just("0 2 * * *"),
    "timezone": st.sampled_from(["UTC", "Asia/Kolkata", "no such zone"]),
    "next_at": st.none() | st.integers(NOW - DAY, NOW + 500 * DAY),
    "next_logical": st.just(NOW),
    "paused_until": st.just(0) | st.just(FOREVER) | st.integers(NOW - DAY, NOW + DAY),
    "skip_logical": st.none() | st.just(NOW),
    "start_error": st.none() | st.just("no such file"),
    "failed_since": st.just(NOW),
    "acknowledged_at": st.none() | st.just(NOW),
    "heartbeat_at": st.just(NOW) | st.just(NOW - DAY),
    "stopped_at": st.none() | st.just(NOW),
    "after": st.just(()) | st.just((FlowBefore("load", "goes on", None, ""),)),
}


@given(st.builds(ServedSchedule, **FACTS))
def test_all_lists_say_the_same_of_the_next_start(served):
    service_pid = 7 if is_served(served, NOW) else None
    file_row = FileRow(
        "/x.db", "revenue", schedules=[schedule_row(served)], supervised=[served], service_pid=service_pid
    )
    (entry,) = fleet_entries([file_row], NOW)
    start = start_of_schedule(served, NOW)
    assert start_of_entry(entry, NOW) == start
    context, kind = RowContext(NOW, UTF8), start.kind
    of_fleet = next_cell(FLEET_COLUMNS, entry, context)
    of_schedule = next_cell(SCHEDULE_COLUMNS, served, NOW)
    on_screen = plain(fleet_row(entry, FLEET_COLUMNS, context, 160))
    assert of_fleet == ("" if kind is StartKind.NONE else start_sentence(start, NOW))
    assert of_schedule in (start_words(start, NOW), "") and bool(of_schedule) <= (of_schedule in of_fleet)
    assert start_word(start, NOW).text in on_screen
    for text in (of_fleet, of_schedule):
        assert bool(re.search(r"\bin \d", text)) == (kind is StartKind.COMING)
        assert ("skipped" in text) == (kind is StartKind.SKIPPED)
        assert ("due " in text) == (kind is StartKind.DUE) == ("due " in start_word(start, NOW).text)
    assert (kind is StartKind.PAUSED) == served.is_paused(NOW) == ("paused" in of_fleet)
    assert kind is not StartKind.COMING or (service_pid is not None and served.next_at > NOW - 5 * S)


def next_cell(columns, one, context) -> str:
    titles, cells = shell_rows(columns, [one], context)
    cell = dict(zip(map(str, titles), cells, strict=True))["NEXT"]
    return str(getattr(cell, "text", cell))


def test_a_start_after_other_flows_says_which_and_for_which_it_waits():
    before = (FlowBefore("load", "goes on", None, ""), FlowBefore("prices", "", None, ""))
    start = NextStart(StartKind.AFTER, before=before)
    unserved = next_start(row("2026-11-22T02:00:00+05:30", "after load, prices; by 06:00"), None, NOW)
    assert [one.flow for one in unserved.before] == ["load", "prices"]
    assert start_sentence(start, NOW) == "after load, prices: waits for load"
    assert start_word(start, NOW).text == "after load, prices"
