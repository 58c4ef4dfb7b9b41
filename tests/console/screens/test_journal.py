"""The journal: everything that happened, who did what, and how to do it again from a shell."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.model.journal import event_of
from redrive.engine.domain.event_codec import row_of
from redrive.engine.domain.events import EventKind
from redrive.engine.errors import LinkError
from redrive.engine.statefile.list_rows import EventRow

from ..conftest import REVENUE, FakeSession, made, make_app, tell_revenue
from ..model.runs import START, S, Story, projection_of
from .nights import Hand, at_the_console


class Door(FakeSession):
    """A door to a journal that is read in windows; ``asked`` are the options of each reading."""

    asked: list[Any]
    rows: list[Any]

    async def query(self, listing, **options):
        if listing.name != "journal":
            return await super().query(listing, **options)
        self._raise()
        if not options.get("acts"):  # the header reads the acts for the progress of a redrive
            self.asked.append(options)
        before = options.get("before")
        rows = [row for row in self.rows if before is None or row["seq"] < before]
        return [made(listing.row, row) for row in rows[-options["limit"] :]]


def act(story, name="clean_refunds", what="requeue", reason="the table is mended", **options):
    """An operator's act, as the engine records it."""
    answer = {"ok": True, "message": f"1 {what}d", "results": [[name, "done", "runs again after attempt 2"]]}
    return story.tell(
        EventKind.OPERATOR,
        actor="ana@ops-1",
        reason=reason,
        command_id="c0ffee",
        data={"act": what, "options": options, "answer": answer},
    )


@pytest.fixture
def night(clock):
    projection = projection_of(REVENUE, deadline_at=START + 3 * 3600 * S)
    projection.run.run_id, projection.run.dag_name = "run-2026-04-25", "revenue"
    story = Story(projection)
    told = [story.tell(EventKind.RUN, new="RUNNING", data={"what": "created", "tasks": len(REVENUE)})]
    told += tell_revenue(story)
    told.append(act(story.after(3)))
    for event in told:
        projection.apply(event)
    session = Door(projection)
    session.story = story
    session.rows = [row_of(event) for event in told]
    session.asked = []
    clock.now = story.at
    return session


def shown(hand):
    """The rows of the list itself."""
    return hand.lines[4:-2]


def many(story, count):
    """Rows of as many events, one a second."""
    return [row_of(story.after(1).tell(EventKind.CLOCK, data={"moved_us": n * S})) for n in range(count)]


async def test_the_newest_stands_at_the_end_with_who_and_why(night, clock):
    async with at_the_console(night, clock, "6", size=(110, 40)) as hand:
        assert hand.lines[3].startswith(" 23 events · 1 act · times since 03:06:40")
        last = [line for line in shown(hand) if line][-1]
        assert " ".join(last.split()) == ("+44s ▸ clean_refunds requeue: 1 requeued · ana@ops-1: the table is mended")
        assert "+16s ◆ clean_refunds" in hand.find("needs a human")
        assert "attempt 1 failed, again in 9s of 16s: ConnectTimeout" in hand.text


async def test_what_happens_is_followed_while_the_end_is_in_view(night, clock):
    async with at_the_console(night, clock, "6") as hand:
        await hand.tell(night, night.story.after(9).tell(EventKind.RUN, data={"what": "paused"}, actor="bob@pi"))
        assert shown(hand)[-1].split() == ["+53s", "·", "run", "paused:", "nothing", "new", "starts", "·", "bob@pi"]
        assert "following" in hand.lines[3]


async def test_who_reads_further_up_is_left_in_peace(night, clock):
    async with at_the_console(night, clock, "6", "k") as hand:
        before = shown(hand)
        await hand.tell(night, night.story.move("notify", "SKIPPED"))
        assert shown(hand) == before
        assert "24 events" in hand.lines[3] and "following" not in hand.lines[3]
        await hand.press("G")
        assert "notify" in shown(hand)[-1]


async def test_what_happened_behind_another_screen_is_there_as_well(night, clock):
    async with at_the_console(night, clock, "6", "2") as hand:
        await hand.tell(night, night.story.move("notify", "SKIPPED"))
        await hand.press("6")
        assert "notify" in shown(hand)[-1]


async def test_t_changes_between_the_time_since_the_start_and_the_clock(night, clock):
    async with at_the_console(night, clock, "6", "t") as hand:
        assert shown(hand)[-1].startswith(" 03:07:24 ▸ clean_refunds")
        assert "times since" not in hand.lines[3]
        await hand.press("t")
        assert shown(hand)[-1].startswith("   +44s ▸ clean_refunds")


async def test_earlier_events_are_read_when_somebody_looks_there(night, clock):
    night.rows += many(night.story, 1_000)
    async with at_the_console(night, clock, "6") as hand:
        assert len(night.asked) == 1
        assert "200+ events" in hand.lines[3]
        await hand.press("g")
        assert [asked["before"] for asked in night.asked] == [None, 824]
        assert "400+ events" in hand.lines[3]
        cursor = hand.app.screen.table.cursor_key
        assert cursor == 824
        for _ in range(5):
            await hand.press("g")
        assert "1,023 events" in hand.lines[3]
        assert "run began: 10 tasks" in shown(hand)[0]


async def test_too_many_are_let_go_at_the_end_and_come_back_there(night, clock, monkeypatch):
    monkeypatch.setattr("redrive.console.model.journal.EVENTS_MAX", 500)
    night.rows += many(night.story, 1_000)
    async with at_the_console(night, clock, "6", "g", "g", "g") as hand:
        assert "500+ events" in hand.lines[3] and "300 newer ↓" in hand.lines[3]
        await hand.tell(night, night.story.move("notify", "SKIPPED"))
        night.rows.append(row_of(night._told[-1]))
        assert "301 newer ↓" in hand.lines[3]
        await hand.press("G")
        assert "notify" in shown(hand)[-1]
        assert "newer" not in hand.lines[3]


async def test_the_filter_reads_back_until_the_screen_is_full(night, clock):
    night.rows += many(night.story, 1_000)
    async with at_the_console(night, clock, "6", "slash") as hand:
        await hand.type("clean_refunds !ready")
        await hand.press("enter")
        assert "1,023 events" in hand.lines[3]
        assert "/clean_refunds !ready: 5" in hand.lines[3]
        assert len([line for line in shown(hand) if line]) == 5
        await hand.press("escape")
        assert "the clock moved" in shown(hand)[-1]


async def test_a_filter_without_a_match_says_so(night, clock):
    async with at_the_console(night, clock, "6", "slash") as hand:
        await hand.type("nothing like it")
        assert "nothing matches /nothing like it; Esc shows all" in hand.text
        await hand.press("escape")
        assert "23 events · 1 act" in hand.lines[3]


async def test_n_goes_to_what_somebody_did_or_has_to_do(night, clock):
    async with at_the_console(night, clock, "6", "g", "n") as hand:
        assert hand.app.screen.table.cursor_key == 20
        await hand.press("n")
        assert hand.app.screen.table.cursor_key == 23
        await hand.press("N")
        assert hand.app.screen.table.cursor_key == 20


@pytest.mark.parametrize("columns", [110, 120])
async def test_everything_about_an_act_is_a_key_away_and_y_copies_its_command_line(night, clock, monkeypatch, columns):
    copied = []
    monkeypatch.setattr(ConsoleApp, "copy_to_clipboard", lambda app, text: copied.append(text))
    async with at_the_console(night, clock, "6", "enter", size=(columns, 40)) as hand:
        assert "The same from a shell  y copies it" in hand.text
        assert "runs again after attempt 2" in hand.text
        assert "04-24 03:07:24.000000 UTC" in hand.text
        await hand.press("y", "escape")
        line = "redrive requeue --state local:revenue.db --run run-2026-04-25 --reason 'the table is mended' --"
        assert copied == [f"{line} clean_refunds"]
        assert hand.app.screen.table.has_focus


async def test_with_room_the_event_under_the_cursor_is_told_beside_the_list(night, clock):
    async with at_the_console(night, clock, "6", size=(120, 40)) as hand:
        assert "Event 23" in hand.text
        await hand.press("g")
        assert "run began: 10 tasks" in "\n".join(line[72:] for line in hand.lines)
        await hand.press("tab")
        assert hand.app.screen.event_view.has_focus
        await hand.press("escape")
        assert hand.app.screen.table.has_focus


async def test_after_a_filter_the_event_under_the_cursor_is_told_beside_the_list(night, clock):
    async with at_the_console(night, clock, "6", size=(120, 40)) as hand:
        assert "Event 23" in hand.text
        await hand.press("slash")
        await hand.type("began")
        await hand.press("enter")
        assert "Event 23" not in hand.text
        assert "run began: 10 tasks" in "\n".join(line[72:] for line in hand.lines)


async def test_y_copies_without_looking_and_the_sentence_of_what_is_no_act(night, clock, monkeypatch):
    copied = []
    monkeypatch.setattr(ConsoleApp, "copy_to_clipboard", lambda app, text: copied.append(text))
    async with at_the_console(night, clock, "6", "y", "k", "y") as hand:
        assert copied[0].startswith("redrive requeue --state ")
        assert copied[1] == "clean_orders 41 of 100 done"
        assert "sentence sent to the terminal's clipboard" in hand.lines[-1]


async def test_enter_on_an_event_shows_what_was_recorded(night, clock):
    async with at_the_console(night, clock, "6", "k", "k", "enter", size=(120, 40)) as hand:
        assert "RUNNING → RETRYING" in hand.text
        assert "extract_payments, attempt 1" in hand.text
        assert '"ceiling_us": 16000000' in hand.text
        assert "from a shell" not in hand.text


async def test_the_task_of_the_row_is_selected_everywhere(night, clock):
    async with at_the_console(night, clock, "6", "k", "k") as hand:
        assert hand.app.selected == "extract_payments"
        await hand.press("d")
        assert "ConnectTimeout" in hand.text
        await hand.press("escape", "o")
        assert hand.lines[3].startswith(" extract_payments  #1")


async def test_a_door_that_fails_says_so(night, clock):
    async with at_the_console(night, clock) as hand:
        night.error = LinkError("the line is down")
        await hand.press("6")
        assert "the line is down" in hand.lines[-1]
        await hand.press("2", "6")
        assert "23 events" in hand.lines[3]


async def test_other_runs_are_read_anew(night, clock):
    async with at_the_console(night, clock, "6") as hand:
        night.projection.run.run_id = "run-2"
        night.rows = [row | {"run_id": "run-2"} for row in night.rows[:1]]
        hand.app.live.follow("run-2")
        await hand.settle()
        await hand.press("6")
        assert night.asked[-1]["run_id"] == "run-2"
        assert "1 events" not in hand.lines[3] and "1 event " in hand.lines[3]


async def test_reasons_and_names_cannot_do_anything(night, clock):
    hostile = "\x1b]0;pwned\x07[red]x[/red]\x9b2J\u202ey\n"
    night.rows.append(row_of(act(night.story, name=hostile, reason=hostile)))
    async with at_the_console(night, clock, "6", "enter", size=(120, 40)) as hand:
        assert "[red]x[/red]" in hand.text
        assert not any(unfit in hand.text for unfit in "\x1b\x07\x9b\u202e")


async def test_a_second_repaints_nothing(night, clock, monkeypatch):
    async with at_the_console(night, clock, "6") as hand:
        painted = []
        for widget in (hand.app.screen.table, hand.app.screen.heading):
            monkeypatch.setattr(widget, "refresh", lambda *regions, **_: painted.append(regions))
        clock.now += S
        hand.app.tick(clock.now)
        assert painted == []


async def test_twenty_thousand_events_are_filtered_without_a_wait(night, clock):
    async with at_the_console(night, clock, "6") as hand:
        screen = hand.app.screen
        screen.journal.append(event_of(made(EventRow, row)) for row in many(night.story, 19_000))
        began = time.thread_time()
        screen.filter_changed("clean !ready")
        screen.filter_changed("")
        assert time.thread_time() - began < 10


# --- Pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)))
def test_picture(size, night, clock, snap_compare):
    app = make_app(night, clock)

    async def look(pilot):
        await Hand(app, pilot).press("6", "k")

    assert snap_compare(app, terminal_size=size, run_before=look)


def test_picture_of_an_act(night, clock, snap_compare):
    app = make_app(night, clock)

    async def look(pilot):
        await Hand(app, pilot).press("6", "enter")

    assert snap_compare(app, terminal_size=(80, 24), run_before=look)


async def test_m_leaves_failures_and_acts_and_shows_all_again(night, clock):
    async with at_the_console(night, clock, "6") as hand:
        every = [row for row in shown(hand) if row]
        await hand.press("m")
        left = [row for row in shown(hand) if row]
        assert 0 < len(left) < len(every) and "/is:problem" in hand.lines[3]
        assert all(any(word in row for word in ("failed", "needs a human", "ana@ops-1")) for row in left), left
        await hand.press("m")
        assert [row for row in shown(hand) if row] == every
