"""The inbox: from a thousand failures to one decision, and what the engine said of it."""

from __future__ import annotations

import time

import pytest
from redrive.console.model.inbox import InboxRow
from redrive.console.screens.base import JUMP_SECONDS
from redrive.console.text.figures import wall
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.acts import Answer, TargetResult
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.supervisor_file import NightSummary
from support.marks import parametrize_mostly_long
from textual.geometry import Region

from ..conftest import FakeSession, StillClock, make_app
from ..model.runs import START, S, failed_task, projection_of
from .screen_driver import open_console, poisoned_run, pressing

PART = "load_part_0001"


@pytest.fixture
def session(clock):
    return poisoned_run(clock)


async def test_causes_come_first_and_the_strip_says_what_happened_and_what_each_key_would_do(session, clock):
    async with open_console(session, clock, "4") as driver:
        assert "3 causes · 31 dead letters · 1 failed · oldest 13m" in driver.text
        row = driver.find("UnicodeDecodeError")
        assert " ".join(row.split()) == "▸ ◆ 30 UnicodeDecodeError parser.py:31 in read_row holds 30 13m"
        assert [line.split()[1] for line in driver.lines[4:7]] == ["◆", "◆", "✗"]
        # of many it says from when to when, and whether they are one failure
        assert "30 tasks ◆ DEAD poison · at 03:06:50 · 'utf-8' codec can't decode byte" in driver.text
        assert "Same failure every time; nothing changed between attempts." in driver.text
        await driver.press("a")
        assert "32 tasks ◆ DEAD · from 03:06:50 to 03:18:30 · 3 different errors" in " ".join(driver.text.split())
        await driver.press("a", "j")
        assert "fetch_invoices ◆ DEAD permanent · invoices-api: 401 unauthorized" in driver.text
        assert " r requeue: 1 to run again; 3 may go on" in driver.text
        assert " s skip: 1 to be skipped; 3 may go on" in driver.text


async def test_causes_open_to_their_tasks_and_close_again(session, clock):
    async with open_console(session, clock, "4", "enter") as driver:
        table = driver.app.screen.table
        assert "◆ load_part_0001" in driver.text
        await driver.press("G", "k", "k")
        assert "… 10 more (Enter)" in driver.text
        await driver.press("enter")
        assert "more (Enter)" not in driver.text
        assert table.cursor_key.task == "load_part_0021"
        await driver.press("h")  # closes the cause around the cursor
        assert (table.cursor_key, len(table.order)) == (InboxRow("c0ffee"), 3)
        await driver.press("right", "j", "j")
        assert table.cursor_key.task == "load_part_0002"
        await driver.press("g", "equals_sign", "n")  # from cause to cause
        assert table.cursor_key == InboxRow("aa11")
        await driver.press("N", "N")
        assert table.cursor_key == InboxRow("bb11")
        await driver.press("N", "j", "minus")  # closes all
        assert (table.cursor_key, len(table.order)) == (InboxRow("aa11"), 3)
        seen = []
        for _ in range(4):
            await driver.press("e")
            seen.append(driver.lines[3].split("sort: ")[1].split()[0])
        assert seen == ["count", "latest", "oldest", "held"]


async def test_enter_on_a_task_shows_its_attempts_side_by_side(session, clock):
    async with open_console(session, clock, "4", "enter", "j", "enter") as driver:
        assert "Same failure twice; nothing changed between (code, input, parameters, host)." in driver.text
        assert driver.find("#1").split() == ["2/3", "#1", "#2"]
        assert driver.find(" host  ").split() == ["host", "ops-1", "ops-1"]
        assert not driver.find(" code  "), "its hash is the same, as the sentence says"
        await driver.press("pagedown")
        assert "Traceback  attempts #1 #2, the same" in driver.text
        await driver.press("escape")
        assert "3 causes" in driver.text


async def test_a_fact_that_changed_between_attempts_says_so(session, clock):
    session.projection.tasks[PART].attempts[2].host = "ops-2"
    async with open_console(session, clock, "4", "enter", "j", "enter") as driver:
        assert driver.find(" host  ").split() == ["host", "ops-1", "ops-2", "changed"]
        assert driver.find(" error  ") and "changed" not in driver.find(" error  ")
        assert "The same failure although the host changed between." in driver.text


async def test_other_runs_of_the_file_are_evidence_too(session, clock):
    attempt = {"run_id": "run-0", "outcome": "success", "fingerprint": None, "ended_at": clock.now - 86_400 * S}
    session.lists["history"] = [attempt]
    async with open_console(session, clock, "4", "enter", "j", "enter") as driver:
        assert "1 earlier run · this failure in none of them · last went well 04-23 03:20:00" in driver.text


async def test_requeue_of_one_is_sent_at_once_and_can_be_taken_back_while_it_counts_down(session, clock):
    async with open_console(session, clock, "4", "j", "r") as driver:
        (command,) = session.commands
        assert (command.act, command.targets) == ("requeue", (("fetch_invoices", "DEAD_LETTER", 0),))
        assert "fetch_invoices requeued · starts in 5s · z takes it back" in driver.lines[-1]
        clock.now += 2 * S
        driver.app.tick(clock.now)
        await driver.settle()
        assert "starts in 3s" in driver.lines[-1]
        await driver.press("z")
        assert session.commands[-1].act == "undo"
        assert session.commands[-1].options == {"command": command.id}


async def test_a_requeue_in_a_paused_run_promises_no_start(session, clock):
    session.projection.run = session.projection.run._replace(paused_since=clock.now)
    async with open_console(session, clock, "4", "j") as driver:
        assert driver.text.count("paused: nothing starts until unpaused") == 2, "of the requeue and of the skip"
        await driver.press("r")
        assert [command.act for command in session.commands] == ["requeue"], "a pause is no doubt: no question"
        assert "fetch_invoices requeued · the run is paused: p unpauses · z takes it back" in driver.lines[-1]
        assert "starts in" not in driver.text


async def test_requeue_of_a_cause_shows_the_exact_list_and_needs_its_number(session, clock):
    async with open_console(session, clock, "4", "r") as driver:
        assert "Requeue 30 tasks" in driver.text
        assert "30 tasks may go on" in driver.text
        assert "of 30; Tab and PgDn show the rest" in driver.text
        await driver.press("enter")
        assert session.commands == []
        await driver.press("escape")
        assert session.commands == [], "Esc is no answer to any question"
        await driver.press("r")
        await driver.submit("30")
        assert session.commands == [], "Enter goes to the answers, where Cancel is chosen"
        await driver.press("a")
        (command,) = session.commands
        assert [name for name, _, _ in command.targets] == [f"load_part_{n:04}" for n in range(1, 31)]
        assert command.options["rate_per_second"] == 5


async def test_skip_asks_for_a_reason_and_sends_it(session, clock):
    async with open_console(session, clock, "4", "j", "s", "escape") as driver:
        assert session.commands == [], "Esc is no answer to any question"
        await driver.press("s")
        assert "3 tasks may go on: report, mail, close_books." in driver.text
        await driver.press("enter")
        assert "A reason is needed" in driver.text
        await driver.submit("paid by hand")
        (command,) = session.commands
        assert (command.act, command.reason, command.targets[0][0]) == ("skip", "paid by hand", "fetch_invoices")


async def test_marks_belong_to_tasks_and_are_what_an_act_means(session, clock):
    async with open_console(session, clock, "4", "space") as driver:
        assert "30 marked" in driver.text, "a cause means its tasks"
        await driver.press("k", "enter", "j", "space")
        assert "29 marked" in driver.text, "one of them is left out"
        await driver.press("r")
        assert "Requeue 29 tasks" in driver.text
        assert PART not in driver.text
        await driver.press("escape", "escape")
        assert "marked" not in driver.text
        await driver.press("g", "j", "space", "space")
        assert "2 marked" in driver.text
        await driver.press("G")
        await driver.press("s")
        assert "Skip 2 tasks" in driver.text
        assert "load_part_0001" in driver.text and "load_part_0002" in driver.text


@pytest.mark.long
async def test_all_that_match_are_marked_and_again_none(session, clock):
    async with open_console(session, clock, "4", "a") as driver:
        assert "32 marked" in driver.text
        await driver.press("a")
        assert "marked" not in driver.text
        await driver.press("slash")
        await driver.submit("api")
        await driver.press("a")
        assert "1 marked" in driver.text
        await driver.press("escape", "escape", "a")
        assert "32 marked" in driver.text
        await driver.press("slash")
        await driver.submit("api")
        assert "1 marked" in driver.text, "marks of what the filter hides are forgotten"


async def test_what_is_done_loses_its_mark_and_what_was_refused_keeps_it(session, clock):
    def answer(command):
        (first, _, _), (second, _, _) = command.targets
        results = (
            TargetResult(first, "done", "runs again"),
            TargetResult(second, "refused", "already requeued by bob 3 s ago, now RUNNING"),
        )
        return Answer(True, "1 requeued, 1 refused", results)

    session.answer = answer
    async with open_console(session, clock, "4", "enter", "j", "space", "space", "r") as driver:
        await driver.press("a")
        assert "1 requeued, 1 refused · load_part_0002 already requeued by bob 3 s ago" in "\n".join(driver.lines[-2:])
        assert driver.app.screen.table.marks == ["load_part_0002"]


async def test_the_filter_keeps_what_matches_and_with_a_bang_the_rest(session, clock):
    async with open_console(session, clock, "4", "slash") as driver:
        await driver.type("0xe9")
        assert "1 cause · /0xe9: 30 of 32" in driver.text
        await driver.press("escape", "slash")
        await driver.submit("!0xe9")
        assert "2 causes · /!0xe9: 2 of 32" in driver.text
        assert "UnicodeDecodeError" not in driver.text
        await driver.press("escape")
        assert "3 causes · 31 dead letters" in driver.text


async def test_nothing_is_said_calmly(revenue, clock):
    for row in revenue.projection.tasks.values():
        row.attempts.clear()
        row.state = type(row.state).SUCCESS
    async with open_console(revenue, clock, "4") as driver:
        assert "✓ nothing needs a human" in driver.text


async def test_a_run_without_executor_is_counted_in_the_inbox_that_has_no_task(clock: StillClock):
    """As `redrive inbox` and the list of runs count it."""
    session = FakeSession(projection_of([("a", []), ("b", ["a"])]))
    session.set_status(executor=ExecutorState(gone_at=clock.now))
    async with open_console(session, clock, "4") as driver:
        assert "4 Inbox ◆1" in driver.text
        assert "the run needs a human; none of its tasks does" in driver.text
        assert driver.text.count("◆ executor gone since 03:06:40") == 1, "the list says what it needs"
        assert "nothing needs a human" not in driver.text
        session.last_nights = [NightSummary("SUCCESS", 60 * S, f"2026-04-{day}") for day in (23, 24, 25)]
        session.last_nights += [NightSummary("FAILED", 9 * S, "2026-04-26"), NightSummary("RUNNING", 1, "2026-04-27")]
        await driver.pilot.resize_terminal(120, 40)
        await driver.settle()
        assert driver.text.count("│ executor gone since 03:06:40") == 1, "beside the list that is empty"
        nights = [line.partition("│")[2].split() for line in driver.lines if " Apr " in line]
        assert [night[3:5] for night in nights[:3]] == [["○", "cut"], ["✗", "FAILED"], ["✓", "success"]]
        assert nights[2][:3] == ["Sat", "25", "Apr"] and nights[2][5] == "1m00"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_late_run_that_goes_on_has_lost_nothing_and_gets_another_deadline(clock: StillClock, size):
    projection = projection_of([("dump", []), ("upload", ["dump"])])
    row = projection.tasks["dump"]
    row.state, row.attempt, row.attempts[1] = TaskState.RUNNING, 1, AttemptRow(1, started_at=START, outcome="running")
    projection.run = projection.run._replace(deadline_at=START - S)
    async with open_console(FakeSession(projection), clock, "4", size=size) as driver:
        text = " ".join(driver.text.split())
        assert "Runs now 1" in text and "● dump" in text
        assert "T gives the run another deadline, or none" in text and "T deadline…" in driver.lines[-1]
        assert "lost" not in text


async def test_the_selected_task_is_the_same_on_every_screen(session, clock):
    async with open_console(session, clock, "4", "enter", "j", "j", "2") as driver:
        assert driver.app.selected == "load_part_0002"
        driver.app.selected = "fetch_invoices"
        await driver.press("4")
        assert driver.app.screen.table.cursor_key == InboxRow("aa11")


# --- Live ------------------------------------------------------------------------------------------------------------


async def test_a_task_that_somebody_requeued_leaves_and_a_new_failure_comes(session, clock):
    async with open_console(session, clock, "4") as driver:
        await driver.emit(session, session.builder.move("mail", "SKIPPED"))
        clock.now += S
        driver.app.tick(clock.now)
        await driver.settle()
        assert "holds 2" in driver.find("PermanentError"), "what is held is counted again once a second"
        await driver.emit(session, session.builder.move("fetch_invoices", "PENDING", generation=1))
        assert "fetch_invoices" not in driver.text
        assert "2 causes · 30 dead letters · 1 failed" in driver.text
        await driver.emit(
            session, session.builder.start("fetch_invoices"), session.builder.fail("fetch_invoices", "DEAD_LETTER")
        )
        assert "3 causes" in driver.text


async def test_a_task_that_left_while_another_view_was_in_front_has_an_empty_row(session, clock):
    """The first picture of a view that comes to the front may be painted before its list is read again."""
    async with open_console(session, clock, "4", "enter") as driver:
        table = driver.app.screen.table
        y = table.order.index(next(row for row in table.order if row.task == PART))
        assert table.line(y)
        await driver.press("2")
        await driver.emit(session, session.builder.move(PART, "PENDING", generation=1))
        assert table.order[y].task == PART
        assert not "".join(piece.text for piece in table.line(y)).strip()


async def test_requeue_does_nothing_right_after_the_row_left_from_under_the_cursor(session, clock):
    async with open_console(session, clock, "4", "j") as driver:
        await driver.emit(session, [session.builder.move(f"load_part_{n:04}", "SKIPPED") for n in range(1, 31)])
        assert driver.app.screen.table.cursor_key == InboxRow("aa11"), "the cursor stays when others come and go"
        await driver.emit(session, session.builder.move("fetch_invoices", "PENDING", generation=1))
        assert driver.app.screen.table.cursor_key == InboxRow("bb11")
        clock.now += S  # a person who presses the key again does so within a second
        await driver.press("r")
        assert session.commands == []
        assert "nothing was done: the cursor has just moved to archive" in driver.lines[-1]
        clock.now += round(JUMP_SECONDS * S)
        await driver.press("r")
        assert [command.targets[0][0] for command in session.commands] == ["archive"]


async def test_a_second_repaints_no_row_whose_age_reads_the_same(session, clock, monkeypatch):
    async with open_console(session, clock, "4") as driver:
        painted: list[tuple[int, int, int]] = []
        table = driver.app.screen.table
        monkeypatch.setattr(table, "refresh", lambda *regions, **_: painted.extend(_cells(regions)))
        clock.now += S
        driver.app.tick(clock.now)
        assert painted == []
        clock.now += 60 * S
        driver.app.tick(clock.now)
        assert [y for _, y, _ in painted] == [0, 1, 2]
        assert all(x >= 60 for x, _, _ in painted)


def _cells(regions: tuple[Region, ...]) -> list[tuple[int, int, int]]:
    return [(region.x, region.y, region.width) for region in regions]


# --- Width and weight -------------------------------------------------------------------------------------------------


async def test_with_room_the_evidence_stands_beside_the_list(session, clock):
    async with open_console(session, clock, "4", size=(120, 40)) as driver:
        # of a cause: when they came and what they hold
        assert "Same failure every time; nothing changed between" in driver.text
        assert "30 poison" in driver.text
        assert "Holds  30 tasks" in driver.text
        await driver.press("enter", "j")
        assert "Same failure twice; nothing changed between" in driver.text
        assert "◆ load_part_0002" in driver.text
        await driver.visit("enter", driver.app.screen.evidence)


DAY = 24 * 3600 * S


def remembered(now: int, **more) -> dict:
    """Forty-one tasks that a requeue has healed, a month ago."""
    episode = {"run_id": "run-2026-03-25", "at": now - 31 * DAY, "tasks": 41, "decision": "requeue", "healed": 41}
    episode |= {"decided": "requeued", "decided_at": now - 31 * DAY, "healed_at": now - 31 * DAY + 360 * S}
    return {"runs": 3, "first_at": now - 60 * DAY, "episodes": [{**episode, "actor": "ana@ops", **more}]}


async def test_the_strip_says_how_it_went_the_last_time_and_what_was_never_seen(session, clock):
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    async with open_console(session, clock, "4", size=(100, 24)) as driver:
        history = "last time 24 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6m00"
        assert history in driver.text
        await driver.press("n")
        assert history not in driver.text and "never seen before in this flow" in driver.text


@pytest.mark.long
async def test_where_there_is_little_room_the_end_is_reported_rather_than_the_reason(session, clock):
    session.memories = {"c0ffee": remembered(clock.now, reason="the vendor had loaded the schema of the day before")}
    begun = "last time 24 March: 41 tasks, requeued by ana"
    async with open_console(session, clock, "4") as driver:
        assert f"{begun}, healed after 6m00" in driver.text
    async with open_console(session, clock, "4", size=(100, 24)) as driver:
        assert f"{begun} 'the vendor had loaded t…', healed after 6m00" in driver.text


async def test_a_note_is_written_by_key_and_stands_first_when_it_has_come_back(session, clock):
    session.memories = {"c0ffee": remembered(clock.now, reason="[red]x[/]\x1b[31m")}
    async with open_console(session, clock, "4", "w") as driver:
        assert "Note on UnicodeDecodeError parser.py:31 in read_row" in driver.text
        await driver.press("enter")
        assert "Nothing is written yet." in driver.text and not session.commands
        await driver.submit("reload the schema")
        (command,) = session.commands
        about = {"fingerprint": "c0ffee", "downstream": None, "text": "reload the schema"}
        assert (command.act, command.targets, command.options) == ("note", (), about)
        assert "note by" not in driver.text  # the screen changes when the event comes back
        written = {"at": clock.now, "actor": "bob@x", "run_id": "r", "text": "reload the schema"}
        session.memories["c0ffee"]["notes"] = [written]
        await driver.emit(
            session, session.builder.event("note", data={"fingerprint": "c0ffee", "text": "reload the schema"})
        )
        driver.app.screen.tick(clock.now)
        await driver.settle()
        assert "note by bob, at 03:20: reload the schema" in driver.text


async def test_a_note_is_about_one_cause(session, clock):
    async with open_console(session, clock, "4", "a", "w") as driver:
        assert "these tasks failed for 3 causes: choose one of them for the note" in driver.text
        assert not session.commands


async def test_the_evidence_reports_every_episode_and_text_of_people_cannot_do_anything(session, clock):
    session.memories = {"c0ffee": remembered(clock.now, reason="[red]x[/]\x1b[31m\u202e")}
    session.memories["c0ffee"]["episodes"] *= 2
    async with open_console(session, clock, "4", size=(140, 40)) as driver:
        assert "seen in 3 other runs of this flow, first 23 February" in driver.text
        assert "before that 24 March: 41 tasks" in driver.text
        assert "'[red]x[/]" in driver.text
        assert "\x1b" not in driver.text and "\u202e" not in driver.text


async def test_memory_is_asked_for_once_and_again_when_something_happened(session, clock, monkeypatch):
    asked = []

    async def cause_histories(run_id, causes):
        asked.append("memory")
        return await type(session).cause_histories(session, run_id, causes)

    monkeypatch.setattr(session, "cause_histories", cause_histories)
    async with open_console(session, clock, "4") as driver:
        for _ in range(3):
            driver.app.screen.tick(clock.now)
            await driver.settle()
        assert asked.count("memory") == 1
        await driver.emit(session, session.builder.event("operator", data={"act": "skip", "answer": {"ok": True}}))
        driver.app.screen.tick(clock.now)
        await driver.settle()
        assert asked.count("memory") == 2


async def test_names_of_tasks_cannot_do_anything(clock):
    session = poisoned_run(clock, 1)
    row = session.projection.tasks["archive"]
    row.error = row.attempts[1].error = "\x1b]0;pwned\x07[bold]red[/bold]\x9b2J\u202e"
    async with open_console(session, clock, "4", "G", "enter") as driver:
        assert "archive" in driver.lines[3]
        assert not any(unfit in driver.text for unfit in "\x1b\x07\x9b\u202e")
        assert "[bold]red[/bold]" in driver.text


@pytest.mark.weekly
@pytest.mark.long
async def test_ten_thousand_rows_are_sorted_and_filtered_without_a_wait(clock):
    session = poisoned_run(clock, 10_000)
    async with open_console(session, clock, "4", "enter", "j", size=(120, 40)) as driver:
        screen = driver.app.screen
        screen.inbox.toggle(InboxRow("c0ffee", None, 9_980))
        began = time.thread_time()
        screen.filter_changed("part_00 !9")
        screen.filter_changed("")
        screen.change_order()
        assert time.thread_time() - began < 6
        await driver.settle()
        assert "2 causes" not in driver.text


# --- Pictures ---------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture(size, clock, snap_compare):
    session = poisoned_run(clock, 1_247)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "4", "enter", "j", "space", "space"))


@pytest.mark.long
def test_picture_of_the_cause_history(clock, snap_compare):
    session = poisoned_run(clock, 1_247)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing(app, "4"))


def test_picture_of_evidence(clock, snap_compare):
    session = poisoned_run(clock, 30)
    session.memories = {"c0ffee": remembered(clock.now, reason="schema reloaded")}
    session.projection.tasks[PART].attempts[2].host = "ops-2"
    app = make_app(session, clock)
    assert snap_compare(app, terminal_size=(80, 24), run_before=pressing(app, "4", "enter", "j", "enter"))


async def test_n_says_that_there_is_no_other_cause(revenue, clock):
    async with open_console(revenue, clock, "4", "n") as driver:
        assert "there is no other cause" in driver.lines[-1]


# --- What waits for a human and has not failed -----------------------------------------------------------------------


def waiting_run(clock: StillClock, reason: str, count: int = 11) -> FakeSession:
    """A blocked run whose tasks are ready, and held: by a pause, by a refused credential, by an operator's breaker."""
    names = [f"load_{number:02}" for number in range(count)]
    specs = {} if reason == "pause" else {name: {"downstream": "vault"} for name in names}
    projection = projection_of([*((name, []) for name in names), ("report", names)], specs)
    for name in names:
        row = projection.tasks[name]
        row.state, row.changed_at = TaskState.READY, START
    projection.run = projection.run._replace(blocked_since=START + 600 * S)
    if reason == "pause":
        projection.run = projection.run._replace(paused_since=START, paused_by="ana@ops-1")
    session = FakeSession(projection)
    if reason != "pause":
        state = "OPEN" if reason == "credential" else "FORCED_OPEN"
        session.lists["breakers"] = [
            {"downstream": "vault", "state": state, "window": [], "detail": {}, "changed_at": START}
        ]
    clock.now = START + 700 * S
    return session


@pytest.mark.parametrize(
    ("reason", "said", "mending"),
    [
        ("pause", "Nothing failed: the run is paused for", "p unpause: 11 tasks may start"),
        ("credential", "Nothing failed: breaker vault is open", "7 systems: one probe"),
        ("forced", "Nothing failed: breaker vault is held", "7 systems: the breaker is closed"),
    ],
)
async def test_what_is_held_did_not_fail_and_the_key_that_mends_it_comes_first(
    clock: StillClock, reason: str, said: str, mending: str
):
    async with open_console(waiting_run(clock, reason), clock, "4") as driver:
        for size in [(80, 24), (120, 40)]:
            await driver.pilot.resize_terminal(*size)
            await driver.settle()
            text = " ".join(driver.text.split())
            assert said in text
            assert mending in text
            assert "11 failed" not in text and "One failure" not in text and "run again" not in text
            words = driver.lines[-1].split()
            first = {"pause": "p"}.get(reason, "7")
            assert first in words[:6] and "r" not in words and "s" not in words


async def test_an_approval_offers_its_answers_alone(clock: StillClock):
    projection = projection_of([("ok", []), ("publish", ["ok"])], {"ok": {"kind": "approval"}})
    row = projection.tasks["ok"]
    row.state, row.started_at = TaskState.READY, START
    projection.run = projection.run._replace(blocked_since=START)
    async with open_console(FakeSession(projection), clock, "4", size=(120, 40)) as driver:
        text = " ".join(driver.text.split())
        assert "y approve: 1 task below may start" in text and "n reject: 1 task below will not run" in text
        assert "failure" not in text and "run again" not in text and "runs again" not in text


async def test_a_pause_that_alone_holds_a_run_is_in_its_inbox_before_the_engine_pages_for_it(clock: StillClock):
    """As after a requeue in a blocked and paused run: it is no longer blocked, and nothing starts."""
    session = waiting_run(clock, "pause")
    session.projection.run = session.projection.run._replace(blocked_since=None)
    async with open_console(session, clock, "4") as driver:
        assert "nothing needs a human" not in driver.text
        assert "p unpause: 11 tasks may start" in " ".join(driver.text.split())


async def test_after_the_deadline_the_badge_counts_what_the_list_counts_and_the_header_names_it(clock: StillClock):
    projection = projection_of([("settle", []), ("enrich", ["settle"]), ("report", ["enrich"])])
    failed_task(projection, "settle")
    for name in ("enrich", "report"):
        projection.tasks[name].state = TaskState.CANCELLED
        projection.tasks[name].failure_mode = "deadline"
    late = {"deadline_at": START, "deadline_passed_at": START}
    projection.run = projection.run.with_columns({"state": "FAILED", "ended_at": clock.now, **late})
    async with open_console(FakeSession(projection), clock, "4", size=(120, 40)) as driver:
        assert "4 Inbox ◆3" in driver.text
        assert "2 causes · 1 dead letter · 2 by the deadline" in driver.text
        assert f"deadline {wall(START)} passed" in driver.lines[0]
        await driver.press("2", "l", "l")
        assert "⊗ report deadline" in " ".join(driver.text.split())


async def test_the_footer_says_that_enter_closes_an_open_cause(session, clock: StillClock):
    async with open_console(session, clock, "4") as driver:
        assert "Enter open" in driver.lines[-1]
        await driver.press("enter")
        assert "Enter close" in driver.lines[-1]


async def test_p_unpauses_a_run_from_its_inbox(clock: StillClock):
    session = waiting_run(clock, "pause")
    async with open_console(session, clock, "4", "p"):
        assert [command.act for command in session.commands] == ["unpause"]


WAITS: dict[str, dict[str, object]] = {
    "approval": {"state": TaskState.READY, "spec": TaskSpec("one", kind="approval")},
    "sensor": {"state": TaskState.SENSING, "next_retry_at": START + 3600 * S},
    "pause": {"state": TaskState.READY},
    "deadline": {"state": TaskState.CANCELLED, "failure_mode": "deadline"},
    "failure": {"state": TaskState.FAILED},
}


@parametrize_mostly_long("wait", WAITS, quick=2)
async def test_every_view_offers_a_requeue_and_a_skip_only_where_they_end_the_wait(clock: StillClock, wait: str):
    projection = projection_of([("one", []), ("two", ["one"])])
    for column, value in WAITS[wait].items():
        setattr(projection.tasks["one"], column, value)
    projection.run = projection.run._replace(paused_since=START if wait == "pause" else None)
    async with open_console(FakeSession(projection), clock, "4", size=(120, 40)) as driver:
        said = {}
        for view in "423":
            await driver.press(view)
            said[view] = {word for _, word in driver.app.screen.hints()} & {"requeue", "skip…", "deadline…", "unpause"}
        expected = {"pause": {"unpause"}, "deadline": {"deadline…", "requeue"}, "failure": {"requeue", "skip…"}}
        assert said["2"] == said["3"] == expected.get(wait, set())
        assert wait == "sensor" or said["4"] == said["2"], said


async def test_the_keys_of_a_page_act_on_the_task_that_it_shows(session, clock):
    """Also if the row below it has gone, so that the cursor of the list is on another task."""
    async with open_console(session, clock, "4", "enter", "j", "d") as driver:
        assert "load_part_0001" in driver.lines[3]
        driver.app.selected = "load_part_0002"
        await driver.press("pagedown", "pageup")
        assert "load_part_0001" in driver.lines[3]
        assert driver.app.screen.target_tasks() == ("load_part_0001",)
