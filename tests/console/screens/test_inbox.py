"""The inbox: from a thousand failures to one decision, and what the engine said of it."""

from __future__ import annotations

import time

import pytest
from redrive.console.model.inbox import InboxRow
from redrive.engine.domain.command import Answer, TargetResult
from textual.geometry import Region

from ..conftest import make_app
from ..model.runs import S
from .nights import Hand, at_the_console, poisoned_night

PART = "load_part_0001"


@pytest.fixture
def night(clock):
    return poisoned_night(clock)


async def test_causes_come_first_and_say_what_they_hold_and_since_when(night, clock):
    async with at_the_console(night, clock, "4") as hand:
        assert "3 causes · 31 dead letters · 1 failed · oldest 13m" in hand.text
        row = hand.find("UnicodeDecodeError")
        assert " ".join(row.split()) == "▸ ◆ 30 UnicodeDecodeError parser.py:31 in read_row holds 30 13m"
        assert [line.split()[1] for line in hand.lines[4:7]] == ["◆", "◆", "✗"]


async def test_the_strip_says_what_happened_and_what_each_key_would_do(night, clock):
    async with at_the_console(night, clock, "4", "j") as hand:
        assert "fetch_invoices ◆ DEAD permanent · invoices-api: 401 unauthorized" in hand.text
        assert " r requeue: 1 task runs again; 3 below may go on after success" in hand.text
        assert " s skip: 3 go on without it" in hand.text


async def test_of_many_the_strip_says_from_when_to_when_and_whether_they_are_one_failure(night, clock):
    async with at_the_console(night, clock, "4") as hand:
        assert "30 tasks ◆ DEAD poison · from 03:06:50 to 03:06:50 · 'utf-8' codec can't de" in hand.text
        assert "Same failure every time; nothing changed between attempts." in hand.text
        await hand.press("a")
        assert "32 tasks ◆ DEAD · from 03:06:50 to 03:18:30 · 3 different errors" in " ".join(hand.text.split())


async def test_enter_opens_a_cause_to_its_tasks_and_more_to_all_of_them(night, clock):
    async with at_the_console(night, clock, "4", "enter") as hand:
        assert "◆ load_part_0001" in hand.text
        await hand.press("G", "k", "k")
        assert "… 10 more (Enter)" in hand.text
        await hand.press("enter")
        assert "more (Enter)" not in hand.text
        assert hand.app.screen.table.cursor_key.task == "load_part_0021"


async def test_enter_on_a_task_shows_its_attempts_side_by_side(night, clock):
    async with at_the_console(night, clock, "4", "enter", "j", "enter") as hand:
        assert "Same failure twice; nothing changed between (code, input, parameters, host)." in hand.text
        assert hand.find("#1").split() == ["#1", "#2"]
        assert hand.find(" code  ").split() == ["code", "9f2ac1d4e5", "9f2ac1d4e5"]
        await hand.press("pagedown")
        assert "Traceback  #1 #2, the same" in hand.text
        await hand.press("escape")
        assert "3 causes" in hand.text


async def test_a_fact_that_changed_between_attempts_says_so(night, clock):
    night.projection.tasks[PART].attempts[2].host = "ops-2"
    async with at_the_console(night, clock, "4", "enter", "j", "enter") as hand:
        assert hand.find(" host  ").split() == ["host", "ops-1", "ops-2", "changed"]
        assert "changed" not in hand.find(" code  ")
        assert "The same failure although the host changed between." in hand.text


async def test_other_runs_of_the_file_are_evidence_too(night, clock):
    attempt = {"run_id": "run-0", "outcome": "success", "fingerprint": None, "ended_at": clock.now - 86_400 * S}
    night.lists["history"] = [attempt]
    async with at_the_console(night, clock, "4", "enter", "j", "enter") as hand:
        assert "1 earlier run · this failure in none of them · last went well 04-23 03:20:00" in hand.text


async def test_requeue_of_one_is_sent_at_once_and_can_be_taken_back_while_it_counts_down(night, clock):
    async with at_the_console(night, clock, "4", "j", "r") as hand:
        (command,) = night.commands
        assert (command.act, command.targets) == ("requeue", (("fetch_invoices", "DEAD_LETTER", 0),))
        assert "fetch_invoices requeued · starts in 5s · z takes it back" in hand.lines[-1]
        clock.now += 2 * S
        hand.app.tick(clock.now)
        await hand.settle()
        assert "starts in 3s" in hand.lines[-1]
        await hand.press("z")
        assert night.commands[-1].act == "undo"
        assert night.commands[-1].options == {"command": command.id}


async def test_requeue_of_a_cause_shows_the_exact_list_and_needs_its_number(night, clock):
    async with at_the_console(night, clock, "4", "r") as hand:
        assert "Requeue 30 tasks" in hand.text
        assert "30 tasks run again, with a fresh budget." in hand.text
        assert "30 tasks below may go on" in hand.text
        assert "of 30; Tab and PgDn show the rest" in hand.text
        await hand.press("enter")
        assert night.commands == []
        await hand.type("30")
        await hand.press("enter")
        assert night.commands == [], "Enter goes to the answers, where Cancel is chosen"
        await hand.press("a")
        (command,) = night.commands
        assert [name for name, _, _ in command.targets] == [f"load_part_{n:04}" for n in range(1, 31)]
        assert command.options["rate_per_second"] == 5


async def test_skip_asks_for_a_reason_and_sends_it(night, clock):
    async with at_the_console(night, clock, "4", "j", "s") as hand:
        assert "3 tasks below may go on: report, mail, close_books." in hand.text
        await hand.press("enter")
        assert "A reason is needed" in hand.text
        await hand.type("paid by hand")
        await hand.press("enter")
        (command,) = night.commands
        assert (command.act, command.reason, command.targets[0][0]) == ("skip", "paid by hand", "fetch_invoices")


async def test_esc_is_no_answer_to_any_question(night, clock):
    async with at_the_console(night, clock, "4", "r") as hand:
        await hand.press("escape")
        await hand.press("j", "s")
        await hand.press("escape")
        assert night.commands == []


async def test_marks_belong_to_tasks_and_are_what_an_act_means(night, clock):
    async with at_the_console(night, clock, "4", "enter", "j", "space", "space") as hand:
        assert "2 marked" in hand.text
        await hand.press("G")
        await hand.press("s")
        assert "Skip 2 tasks" in hand.text
        assert "load_part_0001" in hand.text and "load_part_0002" in hand.text
        await hand.press("escape", "escape")
        assert "marked" not in hand.text


async def test_marking_a_cause_marks_its_tasks_and_one_can_be_left_out(night, clock):
    async with at_the_console(night, clock, "4", "space") as hand:
        assert "30 marked" in hand.text
        await hand.press("k", "enter", "j", "space")
        assert "29 marked" in hand.text
        await hand.press("r")
        assert "Requeue 29 tasks" in hand.text
        assert PART not in hand.text


async def test_a_range_of_marks_follows_the_cursor(night, clock):
    async with at_the_console(night, clock, "4", "enter", "j", "v", "j", "j", "k") as hand:
        assert "2 marked" in hand.text
        await hand.press("v", "j", "j")
        assert "2 marked" in hand.text


async def test_all_that_match_are_marked_and_again_none(night, clock):
    async with at_the_console(night, clock, "4", "a") as hand:
        assert "32 marked" in hand.text
        await hand.press("a")
        assert "marked" not in hand.text
        await hand.press("slash")
        await hand.type("api")
        await hand.press("enter", "a")
        assert "1 marked" in hand.text


async def test_what_is_done_loses_its_mark_and_what_was_refused_keeps_it(night, clock):
    def answer(command):
        (first, _, _), (second, _, _) = command.targets
        results = (
            TargetResult(first, "done", "runs again"),
            TargetResult(second, "refused", "already requeued by bob 3 s ago, now RUNNING"),
        )
        return Answer(True, "1 requeued, 1 refused", results)

    night.answer = answer
    async with at_the_console(night, clock, "4", "enter", "j", "space", "space", "r") as hand:
        await hand.press("a")
        assert "1 requeued, 1 refused · load_part_0002 already requeued by bob 3 s ago" in "\n".join(hand.lines[-2:])
        assert hand.app.screen.table.marked == ["load_part_0002"]


async def test_the_filter_keeps_what_matches_and_with_a_bang_the_rest(night, clock):
    async with at_the_console(night, clock, "4", "slash") as hand:
        await hand.type("0xe9")
        assert "1 cause · /0xe9: 30 of 32" in hand.text
        await hand.press("escape", "slash")
        await hand.type("!0xe9")
        await hand.press("enter")
        assert "2 causes · /!0xe9: 2 of 32" in hand.text
        assert "UnicodeDecodeError" not in hand.text
        await hand.press("escape")
        assert "3 causes · 31 dead letters" in hand.text


async def test_marks_of_what_the_filter_hides_are_forgotten(night, clock):
    async with at_the_console(night, clock, "4", "a", "slash") as hand:
        await hand.type("api")
        await hand.press("enter")
        assert "1 marked" in hand.text


async def test_nothing_is_said_calmly(revenue, clock):
    for row in revenue.projection.tasks.values():
        row.attempts.clear()
        row.state = type(row.state).SUCCESS
    async with at_the_console(revenue, clock, "4") as hand:
        assert "✓ nothing needs a human" in hand.text


async def test_orders_follow_each_other(night, clock):
    async with at_the_console(night, clock, "4") as hand:
        seen = []
        for _ in range(4):
            await hand.press("e")
            seen.append(hand.lines[3].split("sort: ")[1].split()[0])
        assert seen == ["count", "latest", "oldest", "held"]


async def test_n_goes_from_cause_to_cause_and_minus_closes_all(night, clock):
    async with at_the_console(night, clock, "4", "equals_sign") as hand:
        await hand.press("n")
        assert hand.app.screen.table.cursor_key == InboxRow("aa11")
        await hand.press("N", "N")
        assert hand.app.screen.table.cursor_key == InboxRow("bb11")
        await hand.press("N", "j", "minus")
        assert hand.app.screen.table.cursor_key == InboxRow("aa11")
        assert len(hand.app.screen.table.order) == 3


async def test_left_closes_the_cause_around_the_cursor_and_right_opens_it(night, clock):
    async with at_the_console(night, clock, "4", "right", "j", "j") as hand:
        assert hand.app.screen.table.cursor_key.task == "load_part_0002"
        await hand.press("h")
        assert hand.app.screen.table.cursor_key == InboxRow("c0ffee")
        assert len(hand.app.screen.table.order) == 3


async def test_the_selected_task_is_the_same_on_every_screen(night, clock):
    async with at_the_console(night, clock, "4", "enter", "j", "j", "2") as hand:
        assert hand.app.selected == "load_part_0002"
        hand.app.selected = "fetch_invoices"
        await hand.press("4")
        assert hand.app.screen.table.cursor_key == InboxRow("aa11")


# --- Live ------------------------------------------------------------------------------------------------------------


async def test_a_task_that_somebody_requeued_leaves_and_a_new_failure_comes(night, clock):
    async with at_the_console(night, clock, "4") as hand:
        await hand.tell(night, night.story.move("fetch_invoices", "PENDING", generation=1))
        assert "fetch_invoices" not in hand.text
        assert "2 causes · 30 dead letters · 1 failed" in hand.text
        await hand.tell(night, night.story.start("fetch_invoices"), night.story.fail("fetch_invoices", "DEAD_LETTER"))
        assert "3 causes" in hand.text


async def test_the_cursor_stays_on_its_row_when_others_come_and_go(night, clock):
    async with at_the_console(night, clock, "4", "j") as hand:
        gone = [night.story.move(f"load_part_{n:04}", "SKIPPED") for n in range(1, 31)]
        await hand.tell(night, gone)
        assert hand.app.screen.table.cursor_key == InboxRow("aa11")


async def test_requeue_does_nothing_right_after_the_row_left_from_under_the_cursor(night, clock):
    async with at_the_console(night, clock, "4", "j") as hand:
        await hand.pilot.pause(0.05)
        night.tell(night.story.move("fetch_invoices", "PENDING", generation=1))
        while hand.app.screen.table.cursor_key == InboxRow("aa11"):
            await hand.pilot.pause(0.01)
        await hand.pilot.press("r")
        await hand.pilot.pause()
        assert night.commands == []
        assert "has just left" in hand.lines[-1]
        await hand.pilot.pause(1.0)
        await hand.press("r")
        assert [command.targets[0][0] for command in night.commands] == ["archive"]


async def test_what_is_held_is_counted_again_once_a_second(night, clock):
    async with at_the_console(night, clock, "4") as hand:
        await hand.tell(night, night.story.move("mail", "SKIPPED"))
        clock.now += S
        hand.app.tick(clock.now)
        await hand.settle()
        assert "holds 2" in hand.find("PermanentError")


async def test_a_second_repaints_no_row_whose_age_reads_the_same(night, clock, monkeypatch):
    async with at_the_console(night, clock, "4") as hand:
        painted: list[tuple[int, int, int]] = []
        table = hand.app.screen.table
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: painted.extend(_cells(regions)))
        clock.now += S
        hand.app.tick(clock.now)
        assert painted == []
        clock.now += 60 * S
        hand.app.tick(clock.now)
        assert [y for _, y, _ in painted] == [0, 1, 2]
        assert all(x >= 60 for x, _, _ in painted)


def _cells(regions: tuple[Region, ...]) -> list[tuple[int, int, int]]:
    return [(region.x, region.y, region.width) for region in regions]


async def test_ages_become_clock_times_on_a_key(night, clock):
    async with at_the_console(night, clock, "4", "t") as hand:
        assert "03:06:50" in hand.find("UnicodeDecodeError")


# --- Width and weight -------------------------------------------------------------------------------------------------


async def test_with_room_the_evidence_stands_beside_the_list(night, clock):
    async with at_the_console(night, clock, "4", "enter", "j", size=(120, 40)) as hand:
        assert "Same failure twice; nothing changed between" in hand.text
        assert "◆ load_part_0002" in hand.text
        await hand.press("enter")
        assert hand.app.screen.evidence.has_focus
        await hand.press("escape")
        assert hand.app.screen.table.has_focus


async def test_of_a_cause_the_pane_says_when_they_came_and_what_they_hold(night, clock):
    async with at_the_console(night, clock, "4", size=(120, 40)) as hand:
        assert "Same failure every time; nothing changed between" in hand.text
        assert "30 poison" in hand.text
        assert "Holds  30 tasks" in hand.text


DAY = 24 * 3600 * S


def remembered(now: int, **more) -> dict:
    """Forty-one tasks that a requeue has healed, a month ago."""
    episode = {"run_id": "run-2026-03-25", "at": now - 31 * DAY, "tasks": 41, "decision": "requeue", "healed": 41}
    episode |= {"decided": "requeued", "decided_at": now - 31 * DAY, "healed_at": now - 31 * DAY + 360 * S}
    return {"runs": 3, "first_at": now - 60 * DAY, "episodes": [{**episode, "actor": "ana@ops", **more}]}


async def test_the_strip_says_how_it_went_the_last_time_and_what_was_never_seen(night, clock):
    night.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    async with at_the_console(night, clock, "4", size=(100, 24)) as hand:
        said = "last time 24 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6m00"
        assert said in hand.text
        await hand.press("n")
        assert said not in hand.text and "never seen before in this flow" in hand.text


async def test_where_there_is_little_room_the_end_is_told_rather_than_the_reason(night, clock):
    night.memories = {"c0ffee": remembered(clock.now, reason="the vendor had loaded the schema of the day before")}
    begun = "last time 24 March: 41 tasks, requeued by ana"
    async with at_the_console(night, clock, "4") as hand:
        assert f"{begun}, healed after 6m00" in hand.text
    async with at_the_console(night, clock, "4", size=(100, 24)) as hand:
        assert f"{begun} 'the vendor had loaded t…', healed after 6m00" in hand.text


async def test_a_note_is_written_by_key_and_stands_first_when_it_has_come_back(night, clock):
    night.memories = {"c0ffee": remembered(clock.now, reason="[red]x[/]\x1b[31m")}
    async with at_the_console(night, clock, "4", "w") as hand:
        assert "Note on UnicodeDecodeError parser.py:31 in read_row" in hand.text
        await hand.press("enter")
        assert "Nothing is written yet." in hand.text and not night.commands
        await hand.type("reload the schema")
        await hand.press("enter")
        (command,) = night.commands
        about = {"fingerprint": "c0ffee", "downstream": None, "text": "reload the schema"}
        assert (command.act, command.targets, command.options) == ("note", (), about)
        assert "note by" not in hand.text  # the screen changes when the event comes back
        written = {"at": clock.now, "actor": "bob@x", "run_id": "r", "text": "reload the schema"}
        night.memories["c0ffee"]["notes"] = [written]
        await hand.tell(night, night.story.tell("note", data={"fingerprint": "c0ffee", "text": "reload the schema"}))
        hand.app.screen.tick(clock.now)
        await hand.settle()
        assert "note by bob, at 03:20: reload the schema" in hand.text


async def test_a_cause_is_called_something_else_on_trial(night, clock):
    attempt = {"attempt": 1, "generation": 0, "outcome": "error", "started_at": 1, "ended_at": 2}
    attempt |= {"error_type": "vendor.Denied", "error": "[b]no\x1b[31m", "facts": {"status": 401}}
    attempt |= {"failure_class": "permanent", "fingerprint": "aa11", "fingerprint_loose": "aa11"}
    task = {"run_id": "r", "name": "fetch_invoices", "state": "DEAD_LETTER", "generation": 0, "skip_cause": None}
    night.lists["failures"] = [{**task, "spec": {"downstream": "invoices-api"}, "attempts": [attempt]}]
    async with at_the_console(night, clock, "4", "j", "c") as hand:
        assert "What is PermanentError api.py:12 in fetch_invoices?" in hand.text
        await hand.press("enter")
        assert "rule     status 401 is transient" in hand.text
        assert "1 dead-lettered -> retried: not decided yet" in hand.text
        assert "Nothing is changed" in hand.text and not night.commands


async def test_what_no_rule_can_be_made_of_says_so(night, clock):
    async with at_the_console(night, clock, "4", "c") as hand:
        await hand.press("enter")
        assert "nothing of flow nightly failed with fingerprint c0ffee" in hand.text


async def test_a_note_is_about_one_cause(night, clock):
    async with at_the_console(night, clock, "4", "a", "w") as hand:
        assert "these tasks failed for 3 causes: a note is about one" in hand.text
        assert not night.commands


async def test_the_evidence_tells_every_episode_and_text_of_people_cannot_do_anything(night, clock):
    night.memories = {"c0ffee": remembered(clock.now, reason="[red]x[/]\x1b[31m\u202e")}
    night.memories["c0ffee"]["episodes"] *= 2
    async with at_the_console(night, clock, "4", size=(140, 40)) as hand:
        assert "seen in 3 other runs of this flow, first 23 February" in hand.text
        assert "before that 24 March: 41 tasks" in hand.text
        assert "'[red]x[/]" in hand.text
        assert "\x1b" not in hand.text and "\u202e" not in hand.text


async def test_memory_is_asked_for_once_and_again_when_something_happened(night, clock, monkeypatch):
    asked = []

    async def cause_histories(run_id, causes):
        asked.append("memory")
        return await type(night).cause_histories(night, run_id, causes)

    monkeypatch.setattr(night, "cause_histories", cause_histories)
    async with at_the_console(night, clock, "4") as hand:
        for _ in range(3):
            hand.app.screen.tick(clock.now)
            await hand.settle()
        assert asked.count("memory") == 1
        await hand.tell(night, night.story.tell("operator", data={"act": "skip", "answer": {"ok": True}}))
        hand.app.screen.tick(clock.now)
        await hand.settle()
        assert asked.count("memory") == 2


async def test_names_of_tasks_cannot_do_anything(clock):
    session = poisoned_night(clock, 1)
    row = session.projection.tasks["archive"]
    row.error = row.attempts[1].error = "\x1b]0;pwned\x07[bold]red[/bold]\x9b2J\u202e"
    async with at_the_console(session, clock, "4", "G", "enter", "j", "enter") as hand:
        assert "archive" in hand.lines[3]
        assert not any(unfit in hand.text for unfit in "\x1b\x07\x9b\u202e")
        assert "[bold]red[/bold]" in hand.text


@pytest.mark.long
async def test_ten_thousand_rows_are_sorted_and_filtered_without_a_wait(clock):
    session = poisoned_night(clock, 10_000)
    async with at_the_console(session, clock, "4", "enter", "j", size=(120, 40)) as hand:
        screen = hand.app.screen
        screen.inbox.toggle(InboxRow("c0ffee", None, 9_980))
        began = time.thread_time()
        screen.filter_changed("part_00 !9")
        screen.filter_changed("")
        screen.change_order()
        assert time.thread_time() - began < 6
        await hand.settle()
        assert "2 causes" not in hand.text


# --- Pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)))
def test_picture(size, clock, snap_compare):
    session = poisoned_night(clock, 1_247)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    app = make_app(session, clock)

    async def look(pilot):
        await Hand(app, pilot).press("4", "enter", "j", "space", "space")

    assert snap_compare(app, terminal_size=size, run_before=look)


def test_picture_of_what_is_remembered(clock, snap_compare):
    session = poisoned_night(clock, 1_247)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    app = make_app(session, clock)

    async def look(pilot):
        await Hand(app, pilot).press("4")

    assert snap_compare(app, terminal_size=(80, 24), run_before=look)


def test_picture_of_evidence(clock, snap_compare):
    session = poisoned_night(clock, 30)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    session.projection.tasks[PART].attempts[2].host = "ops-2"
    app = make_app(session, clock)

    async def look(pilot):
        await Hand(app, pilot).press("4", "enter", "j", "enter")

    assert snap_compare(app, terminal_size=(80, 24), run_before=look)


async def test_n_says_that_there_is_no_other_cause(revenue, clock):
    async with at_the_console(revenue, clock, "4", "n") as hand:
        assert "there is no other cause" in hand.lines[-1]
