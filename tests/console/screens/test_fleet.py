"""The list of all state files: pictures, what opens, what leaves, and news while it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redrive.console.app.fleet import FleetApp, Opening
from redrive.console.keys.actions import ScreenName
from redrive.console.model.runs import FleetOrder, fleet_entries
from redrive.console.present.fleet import (
    FLEET_COLUMNS,
    fleet_columns,
    fleet_heading,
    fleet_row,
    run_to_show,
)
from redrive.console.present.fleet_why import why_line, why_of
from redrive.console.present.states import RowContext
from redrive.console.sessions.session import LiveSession
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.console.text.figures import wall
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.domain.rows import ExecutorState, RunFacts
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import LinkError, RedriveError, StateFileError
from redrive.engine.statefile.lists import NeedRow, ScheduleRow
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.statefile.supervisor_file import NightSummary
from support.marks import parametrize_mostly_long
from support.waiting import LIMIT_SECONDS, wait_until_async
from textual.worker import WorkerCancelled

from ..conftest import FakeSession, StillClock, press, rows_of, settle, shown
from ..model.runs import START, EventBuilder, S, projection_of

HOUR = 3600 * S
FOLDER = "/var/lib/etl/.local/state/redrive"
ALIVE, GONE = ExecutorState(True, pid=71), ExecutorState(False, gone_at=START - HOUR)


def schedule(flow: str, in_us: int, local: str) -> list[ScheduleRow]:
    at = START + in_us
    return [ScheduleRow(flow, "0 5 * * *", "Asia/Kolkata", "one", f"/srv/{flow}.py", 0, 0, at, local)]


def file_row(flow: str, state: str, executor: ExecutorState = GONE, **columns: Any) -> FileRow:
    run_id = f"{flow}-2026-04-25"
    latest = RunFacts(run_id, flow, START - HOUR, START if state != "RUNNING" else None, state)
    known: dict[str, Any] = {
        "latest": next((one for one in columns.get("runs", ()) if one.run_id == run_id), latest),
        "executor": executor,
        "tasks": 10,
        "finished": 8,
    }
    known |= {"nights": [NightSummary(end) for end in ("SUCCESS", "FAILED", "PARTIAL", "SUCCESS", state)], **columns}
    return FileRow(f"{FOLDER}/{flow}.db", flow, **known)


def unfinished(flow: str, dead: int = 0, blocked: bool = False) -> list[RunFacts]:
    since = START - HOUR if blocked else None
    return [RunFacts(f"{flow}-2026-04-25", flow, START - HOUR, blocked_since=since, dead_letters=dead)]


def failed(flow: str) -> list[RunFacts]:
    return [RunFacts(f"{flow}-2026-04-25", flow, START - HOUR, START, "FAILED")]


FILES = [
    file_row(
        "revenue",
        "RUNNING",
        ALIVE,
        tasks=1002,
        finished=981,
        nights=[
            *(NightSummary("SUCCESS", (60 + 5 * n) * S) for n in range(12)),
            NightSummary("SUCCESS", 400 * S),
            NightSummary("RUNNING"),
        ],
        runs=unfinished("revenue", dead=12),
        service_pid=70,
    ),
    file_row("ledger", "RUNNING", runs=unfinished("ledger", dead=1, blocked=True)),
    file_row("backup", "RUNNING", runs=unfinished("backup")),
    file_row("imports", "RUNNING", ALIVE, runs=unfinished("imports")),
    file_row("rates", "SUCCESS", service_pid=70, schedules=schedule("rates", 2 * HOUR, "2026-04-25T05:00:00+05:30")),
    file_row("warehouse-of-all-the-partners", "FAILED", runs=failed("warehouse-of-all-the-partners")),
    FileRow(f"{FOLDER}/fresh.db", schedules=schedule("fresh", HOUR, "2026-04-25T04:00:00+05:30"), service_pid=72),
    FileRow(f"{FOLDER}/odd.db", problem=f"{FOLDER}/odd.db is not a redrive state file"),
]


class Files:
    """The state files that a test tells of."""

    def __init__(self, *first: Sequence[FileRow] | RedriveError) -> None:
        self.news: asyncio.Queue[Sequence[FileRow] | RedriveError] = asyncio.Queue()
        for found in first:
            self.news.put_nowait(found)

    async def watch(self) -> AsyncIterator[Sequence[FileRow]]:
        while True:
            found = await self.news.get()
            if isinstance(found, RedriveError):
                self.news.task_done()
                raise found
            yield found
            self.news.task_done()

    async def are_shown(self) -> None:
        """Wait for the list of all that was told: it reads the schedules, in a thread, before it goes on."""
        await asyncio.wait_for(self.news.join(), LIMIT_SECONDS)


async def unread(path: str) -> LiveSession:
    """No state file is there."""
    raise StateFileError(f"there is no state file {path}")


def fleet_app(files: Files, **options: Any) -> FleetApp:
    tty = Tty(TerminalCapabilities(has_unicode=options.pop("has_unicode", True)))
    return FleetApp(files.watch, "this machine", unread, tty=tty, clock=StillClock(), **options)


async def keys(app: FleetApp, pilot: Any, *pressed: str) -> None:
    """Keys, and what each leads to; the list itself is read without end."""
    for key in pressed:
        await pilot.press(key)
        await pilot.pause()
        for worker in [one for one in app.workers if one.name != "follow"]:
            with suppress(WorkerCancelled):
                await worker.wait()
        app.live.flush_pending()
        await pilot.pause()


def run_app(session: Any, clock: StillClock, files: Files) -> FleetApp:
    """The list, which reads the run of any row from ``session``."""

    async def open_file(path: str) -> Any:
        return session

    return FleetApp(files.watch, "here", open_file, tty=Tty(TerminalCapabilities(has_unicode=True)), clock=clock)


@asynccontextmanager
async def list_on(session: Any, clock: StillClock, files: Files) -> AsyncIterator[tuple[FleetApp, Any]]:
    """The list, with the run of the first row from ``session``, and its pilot."""
    app = run_app(session, clock, files)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until_async(lambda: app.live.board is not None)
        await pilot.pause()
        yield app, pilot


def text_of(app: FleetApp) -> str:
    return "\n".join(rows_of(app))


def argv_of(app: FleetApp) -> list[list[str]]:
    """The words of each row of the list."""
    return [row.split() for row in rows_of(app)[3 : 3 + len(app.list_screen.table.order)]]


def argv_words(app: FleetApp) -> str:
    """The first row of the list."""
    return " ".join(argv_of(app)[0])


@parametrize_mostly_long("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"], quick=1)
def test_picture_of_the_fleet(revenue: Any, clock: StillClock, size, snap_compare):
    async def prepare(pilot: Any) -> None:
        await wait_until_async(lambda: pilot.app.live.board is not None)
        await keys(pilot.app, pilot)
        await pilot.pause()

    assert snap_compare(run_app(revenue, clock, Files(FILES)), terminal_size=size, run_before=prepare)


async def test_what_needs_a_human_comes_first_with_its_count():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert [path.rpartition("/")[2] for path in app.list_screen.table.order[:6]] == [
            *("revenue.db", "ledger.db", "backup.db", "warehouse-of-all-the-partners.db", "odd.db", "imports.db")
        ]
        assert [row[0] for row in argv_of(app)[:6]] == ["◆12", "◆1", "◆1", "◆1", "◆1", "imports"]
        assert "8 state files on this machine" in text_of(app) and "16 things need a human" in text_of(app)


def test_hosts_that_have_not_answered_are_no_list_of_files():
    hosts = [FileRow(f"ssh://etl{number}", has_file=False) for number in (1, 2)]
    assert heading_of(hosts, "2 hosts").startswith(" connecting to 2 hosts")
    assert heading_of([*hosts, FILES[1]], "2 hosts").startswith(" 1 state file on 2 hosts")
    refused = hosts[0]._replace(problem="refused")
    assert heading_of([refused, refused], "2 hosts").startswith(" 0 state files on 2 hosts")


def test_notices_have_a_word_and_stand_where_nothing_else_waits():
    late = RunFacts("late-1", "late", START - HOUR, START, "SUCCESS")._replace(deadline_at=START - S)
    file_rows = [file_row("late", "SUCCESS", runs=[late]), file_row("both", "FAILED", runs=[late, *failed("both")])]
    entries = fleet_entries(file_rows, START, FleetOrder.ATTENTION)
    rows = {one.flow: plain(fleet_row(one, FLEET_COLUMNS, RowContext(START, UTF8), 120)) for one in entries}
    assert [one.notice_count for one in entries] == [1, 1]
    assert rows["late"].startswith(" notice  late") and rows["both"].startswith(" ◆1      both")
    assert "1 thing needs a human · 2 notices" in heading_of(file_rows, "here")


def heading_of(file_rows: Sequence[FileRow], place: str) -> str:
    entries = fleet_entries(file_rows, START, FleetOrder.ATTENTION)
    left, _ = fleet_heading(entries, len(entries), place, "", FleetOrder.ATTENTION, UTF8, 120)
    return plain(left)


async def test_the_help_key_explains_the_counts_and_the_keys_of_the_list():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 70)) as pilot:
        await pilot.press("?")
        assert "so many need a human" in text_of(app) and "notice something to look at" in text_of(app)
        for words in ("schedule: Every schedule: what comes", "quit: "):
            assert words in text_of(app)
        await pilot.press("?")
        assert "8 state files on this machine" in text_of(app)


def test_the_keys_after_a_cut_sentence_leave_it_their_words():
    (run,) = failed("rates")
    run = run._replace(failed="sync", error="asleep at hang.py:9 in the second of its calls")
    (entry,) = fleet_entries([file_row("rates", "FAILED", runs=[run])], START)
    context = RowContext(START, UTF8, label={"requeue": "r", "ack_run": "a"}.__getitem__)
    texts = [plain(why_line(entry, context, size)) for size in (90, 34, 16)]
    assert texts[0].endswith("calls  r requeue  a acknowledge")
    assert texts[1:] == ["sync: asleep at hang.py:9 in…  r a", "asleep at…  r a"]


def test_the_reason_is_of_the_run_that_the_row_shows_and_of_another_one_names_it():
    older = RunFacts("night-1", "rates", START - 9 * HOUR, blocked_since=START - 8 * HOUR, dead_letters=1)
    (own,) = unfinished("rates", dead=1, blocked=True)
    texts = []
    for runs in ([older, own], [older]):
        (entry,) = fleet_entries([file_row("rates", "RUNNING", runs=runs)], START)
        texts.append((run_to_show(entry), why_of(entry, START)[0]))
    assert texts == [(own.run_id, "1 dead letter"), ("night-1", "1 dead letter, in run night-1")]


def test_of_several_causes_the_row_names_that_of_most_tasks_and_no_task_twice():
    (run,) = unfinished("rates", dead=3, blocked=True)
    causes = [
        NeedRow("dead letters", run.run_id, "rates", at, count, task, error, task)
        for at, count, task, error in ((START - 2, 1, "audit", "audit: 401"), (START - 1, 2, "load_1", "no column"))
    ]
    texts = []
    for listed in (causes, causes[:1]):
        (entry,) = fleet_entries([file_row("rates", "RUNNING", runs=[run], listed=listed)], START)
        texts.append(why_of(entry, START).sentence)
    assert texts == ["2 tasks: no column", "audit: 401"]


def test_a_long_name_loses_its_middle_before_its_error_is_cut():
    (run,) = failed("rates")
    run = run._replace(failed="NFCORE_VIRALRECON.ILLUMINA.GUNZIP_SCAFFOLDS_69", error="bad input")
    (entry,) = fleet_entries([file_row("rates", "FAILED", runs=[run])], START)
    text = plain(why_line(entry, RowContext(START, UTF8, label=lambda name: "r"), 40))
    assert text.startswith("NFCORE_") and "_69: bad input" in text


def test_where_a_name_has_no_room_its_row_has_the_error_alone():
    (run,) = failed("rates")
    run = run._replace(failed="load_warehouse", error="401 token expired for ana")
    (entry,) = fleet_entries([file_row("rates", "FAILED", runs=[run])], START)
    context = RowContext(START, UTF8, label={"requeue": "r", "ack_run": "a"}.__getitem__)
    texts = [plain(why_line(entry, context, size)) for size in (68, 42, 30, 26, 24)]
    assert texts[0].startswith("load_warehouse: 401 token expired for ana  r requeue")
    assert texts[1] == "load_…ouse: 401 token expired for ana  r a"
    assert texts[2:] == ["401 token expired for ana  r a", "401 token expired for ana", "401 token expired…  r a"]


@pytest.mark.parametrize(("ended_at", "mends"), [(None, ("postpone",)), (START, ("ack_run",))])
def test_a_late_run_gets_another_deadline_and_one_that_has_ended_is_acknowledged(ended_at, mends):
    run = RunFacts("rates-2026-04-25", "rates", START - HOUR, ended_at, "SUCCESS" if ended_at else "RUNNING")
    run = run._replace(deadline_at=START - 60 * S)
    (entry,) = fleet_entries([file_row("rates", run.state, ALIVE, runs=[run])], START)
    words, found, *_ = why_of(entry, START)
    assert "late" in words or "after its deadline" in words
    assert found == mends


@pytest.mark.parametrize(
    ("executor", "words", "mends"),
    [
        (GONE, f"executor gone since {wall(START - HOUR)}", ("resume_here",)),
        (ExecutorState(pid=7, original="/o/f.db"), "a copy of /o/f.db, whose executor (pid 7) lives", ()),
        (ExecutorState(original="/o/f.db"), "a copy of /o/f.db, where the run has ended", ()),
        (
            ExecutorState(True, pid=7, silent_since=START - 40 * S),
            "executor 7 silent for 40s: redrive doctor /var/lib/etl/.local/state/redrive/rates.db",
            (),
        ),
        (ExecutorState(pid=7, is_unseen=True, host="b"), "no sign of its executor on b", ()),
    ],
)
def test_no_resume_is_offered_for_a_copy_or_where_the_executor_may_live(executor, words, mends):
    (run,) = unfinished("rates")
    (entry,) = fleet_entries([file_row("rates", run.state, executor, runs=[run])], START)
    assert why_of(entry, START)[:2] == (words, mends)


async def test_a_host_that_does_not_answer_is_no_state_file():
    told = [FileRow("ssh://etl9", problem="no ssh server listens", has_file=False), FILES[1]]
    app = fleet_app(Files(told))
    async with app.run_test(size=(100, 24)) as pilot:
        await pilot.pause()
        assert rows_of(app)[0].startswith(" 1 state file on")


def test_nights_and_the_next_start_take_no_more_cells_than_they_fill():
    context = RowContext(START, UTF8)
    told = [file_row("rates", "SUCCESS", nights=[NightSummary("SUCCESS")] * nights) for nights in (1, 12)]
    most = [{one.name: one.width for one in fleet_columns(fleet_entries([one], START), context, 120)} for one in told]
    assert [columns["nights"].most for columns in most] == [1, 12]
    assert all("next_at" not in columns for columns in most)


async def test_a_narrow_screen_has_the_nights_in_place_of_a_why_without_room():
    app = fleet_app(Files([file_row("rates", "SUCCESS", nights=[NightSummary("SUCCESS")] * 12)]))
    async with app.run_test(size=(60, 16)) as pilot:
        await pilot.pause()
        (titles,) = [line for line in rows_of(app) if "FLOW" in line]
        assert titles.split()[-3:] == ["DONE", "SINCE", "NIGHTS"]


async def test_enter_opens_the_file_under_the_cursor():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("down", "enter")
        await pilot.pause()
    assert app.chosen == Opening(f"{FOLDER}/ledger.db", "ledger-2026-04-25")


async def test_a_file_that_cannot_be_read_says_why_and_is_not_opened():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 24)) as pilot:
        await pilot.pause()
        await pilot.press("down", "down", "down", "down", "enter")
        await pilot.pause()
        assert "is not a redrive state file" in rows_of(app)[-1]
        assert app.is_running and app.chosen is None


async def test_q_leaves():
    app = fleet_app(Files(FILES))
    async with app.run_test() as pilot:
        await pilot.pause()
        await pilot.press("q")
        await pilot.pause()
    assert (app.return_code, app.chosen) == (0, None)


async def test_news_change_the_rows_and_keep_the_cursor_on_its_file():
    files = Files(FILES)
    app = fleet_app(files, before=f"{FOLDER}/rates.db")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.list_screen.table.cursor_key == f"{FOLDER}/rates.db"
        assert f" {FOLDER}/rates.db " in text_of(app)
        broken = file_row("rates", "RUNNING", runs=unfinished("rates", dead=3, blocked=True))
        files.news.put_nowait([broken, *FILES[:4], *FILES[5:]])
        await files.are_shown()
        await pilot.pause()
        assert app.list_screen.table.cursor_key == app.list_screen.table.order[0] == f"{FOLDER}/rates.db"
        assert "◆3" in argv_of(app)[0] and "19 things need a human" in text_of(app)


async def test_a_lost_connection_is_said_and_the_rows_stay():
    files = Files(FILES, LinkError("far has closed the connection"))
    app = fleet_app(files, message="ledger.db is damaged")
    async with app.run_test(size=(120, 24)) as pilot:
        await files.are_shown()
        await pilot.pause()
        assert "far has closed the connection" in rows_of(app)[0]
        assert "ledger.db is damaged" in rows_of(app)[-1]
        assert len(app.list_screen.table.order) == len(FILES)


@pytest.mark.parametrize("is_of_fleet", [True, False])
async def test_esc_at_the_top_level_returns_to_the_list_that_a_console_was_opened_from(revenue, clock, is_of_fleet):
    async with shown(revenue, clock, is_of_fleet=is_of_fleet) as (app, pilot):
        assert ("Esc all state files" in rows_of(app)[-1]) == is_of_fleet
        await press(app, pilot, "d", "escape")
        assert not app.returns_to_fleet and app.is_running
        await pilot.press("escape")
        await pilot.pause()
        assert app.returns_to_fleet == is_of_fleet
        if not is_of_fleet:
            await settle(app, pilot)
            assert app.is_running


async def test_the_order_of_the_fleet_by_key_and_by_mouse():
    def flows(app: FleetApp) -> list[str]:
        return [path.rpartition("/")[2].removesuffix(".db") for path in app.list_screen.table.order]

    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert "sort: needs a human" in rows_of(app)[0]
        cursor = app.list_screen.table.cursor_key
        for words in ("latest", "next start", "name"):
            await pilot.press("e")
            await pilot.pause()
            assert f"sort: {words}" in rows_of(app)[0]
            if words == "next start":
                assert flows(app)[:2] == ["fresh", "rates"]
        assert flows(app)[:3] == ["backup", "imports", "ledger"] and app.list_screen.table.cursor_key == cursor
        await pilot.click(offset=(115, 0))
        await pilot.pause()
        assert "sort: needs a human" in rows_of(app)[0] and flows(app)[0] == "revenue"


async def test_a_run_that_was_read_while_the_cursor_left_its_row_ends_nothing(revenue: Any, clock, monkeypatch):
    async with list_on(revenue, clock, Files(FILES)) as (app, pilot):
        leave_file, board = app.leave_file, app.live.board
        assert board is not None

        def leave_late() -> None:
            leave_file()
            app.operator_actions.on_board_replaced(board)

        monkeypatch.setattr(app, "leave_file", leave_late)
        await keys(app, pilot, "j")
        assert app.is_running and not app.return_code


async def test_the_keys_act_on_the_cause_of_the_row(revenue: Any, clock: StillClock):
    """With the previews of a run: one task at once, to be taken back; why, pause, a note, its views by their keys."""
    files = Files([file_row("revenue", "RUNNING", ALIVE, runs=unfinished("revenue", dead=1)), *FILES[4:]])
    async with list_on(revenue, clock, files) as (app, pilot):
        shown = text_of(app)
        assert "── revenue ──" in shown and "clean_refunds ◆ DEAD poison" in shown and "· aggregate" in shown
        await keys(app, pilot, "u")
        assert "u does nothing here; z: Take back" in rows_of(app)[-1]
        await keys(app, pilot, "i")
        assert "clean_refunds: needs a decision" in text_of(app)
        await keys(app, pilot, "r")
        assert [(one.act, one.targets[0][0]) for one in revenue.commands] == [("requeue", "clean_refunds")]
        assert "z takes it back" in rows_of(app)[-1]
        await keys(app, pilot, "z", "p")
        assert [one.act for one in revenue.commands[1:]] == ["undo", "pause"]
        await keys(app, pilot, "s")
        assert "Skip clean_refunds" in text_of(app)
        await keys(app, pilot, "escape", "w")
        assert "Note on ZeroDivisionError" in text_of(app)
        await keys(app, pilot, "escape", "y", "escape", "n")
        assert app.list_screen.table.cursor_key == f"{FOLDER}/warehouse-of-all-the-partners.db"
        await keys(app, pilot, "N")
        await keys(app, pilot, "/", *"rat")
        assert "/rat: 1" in rows_of(app)[0] and [path.rpartition("/")[2] for path in app.list_screen.table.order] == [
            "rates.db"
        ]
        await keys(app, pilot, *"zzz")
        assert {"FLOW", "DONE", "WHY"} <= {*next(row for row in rows_of(app) if "WHY" in row).split()}
        assert "nothing matches /ratzzz; Esc shows all" in text_of(app) and "a human in all" in rows_of(app)[0]
        await keys(app, pilot, "escape", "g", "4")
    assert app.chosen == Opening(f"{FOLDER}/revenue.db", "revenue-2026-04-25", ScreenName.INBOX)
    assert len(revenue.commands) == 3


async def test_an_approval_is_answered_in_its_run_only(clock: StillClock):
    """Neither y nor n nor r answers it here: Enter opens it."""
    projection = projection_of([("go_live", []), ("publish", ["go_live"])], {"go_live": {"kind": "approval"}})
    session = FakeSession(projection)
    projection.apply(EventBuilder(projection).move("go_live", "READY"))
    waits = file_row("deploy", "RUNNING", ALIVE, runs=unfinished("deploy"))
    async with list_on(session, clock, Files([waits, FILES[4]])) as (app, pilot):
        await keys(app, pilot, "n", "y", "escape", "r")
        assert session.commands == [] and "Enter opens it" in rows_of(app)[-1]
        await keys(app, pilot, "j")
        assert "Enter opens it" not in rows_of(app)[-1], "what was said was about the row before"
        await keys(app, pilot, "k")
        await keys(app, pilot, "enter")
    assert app.chosen is not None and app.chosen.view is ScreenName.GRAPH


async def test_a_paused_run_is_unpaused_and_nothing_of_it_is_requeued(clock: StillClock):
    """Its executor has left in order: the footer, the preview, the refusal, and what the key does in the end."""
    projection = projection_of([("load", []), ("publish", ["load"])])
    projection.run = projection.run._replace(paused_since=START, blocked_since=START)
    projection.tasks["load"].state = TaskState.READY
    left = ExecutorState(pid=7, gone_at=START, stopped=True)
    session = FakeSession(projection)
    session.set_status(executor=left)
    facts = RunFacts("etl-2026-04-25", "etl", START - HOUR, blocked_since=START, paused_since=START)
    async with list_on(session, clock, Files([file_row("etl", "RUNNING", left, runs=[facts])])) as (app, pilot):
        assert "paused for" in argv_words(app) and "p unpause" in argv_words(app)
        footer = rows_of(app)[-1]
        assert "p unpause" in footer and "r requeue" not in footer and "s skip" not in footer
        await keys(app, pilot, "r")
        assert session.commands == [] and "nothing failed: the run is paused: unpause it" in rows_of(app)[-1]
        await keys(app, pilot, "p")
        assert [one.act for one in session.commands] == ["unpause"]
        assert "no executor runs it: R starts an executor" in rows_of(app)[-1]


async def test_what_a_pause_holds_is_selected_and_its_keys_come_first(clock: StillClock):
    projection = projection_of([("load", []), ("publish", ["load"])])
    projection.run = projection.run._replace(paused_since=START, blocked_since=START)
    projection.tasks["load"].state = TaskState.SUCCESS
    projection.tasks["publish"].state = TaskState.READY
    session = FakeSession(projection)
    session.set_status(executor=ExecutorState(pid=7, gone_at=START, stopped=True))
    async with shown(session, clock, (120, 40), state_path="/tmp/etl.db") as (app, pilot):
        assert app.selected == "publish"
        words = rows_of(app)[-1].split()
        assert words[:4] == ["p", "unpause", "R", "resume…"] and "requeue" not in words
        await press(app, pilot, "1")
        assert "◆ BLOCKED and paused after" in text_of(app)


async def test_hosts_and_disks_that_need_somebody_stand_above_the_rows():
    full = file_row("revenue", "RUNNING", ALIVE, runs=unfinished("revenue"), full_since=START - HOUR)
    gone = FileRow("ssh://far", problem="ssh://far: connection refused", has_file=False)
    app = fleet_app(Files([full, gone, FILES[4]]))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        above = [line.strip() for line in rows_of(app)[2:4]]
        assert above[0].startswith("◆ revenue  cannot be written for 1h00, and no task starts: the disk is full")
        assert above[1].endswith("ssh://far: connection refused") and len(app.list_screen.table.order) == 2


async def test_a_file_without_a_schedule_shows_those_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(80, 24)) as pilot:
        await keys(app, pilot, "S")
        assert "no schedule is known: redrive serve FOLDER" in text_of(app)
