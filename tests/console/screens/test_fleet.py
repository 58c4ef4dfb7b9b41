"""The list of all state files: pictures, what opens, what leaves, and news while it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redrive.console.app.fleet import FleetApp
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.engine.core.spec import FlowSpec, ParamSpec
from redrive.engine.domain.rows import ExecutorState, RunFacts
from redrive.engine.errors import LinkError, RedriveError
from redrive.engine.statefile.lists import ScheduleRow
from redrive.engine.statefile.start_requests import read_requests
from redrive.engine.statefile.state_files import Offer
from redrive.engine.statefile.supervisor_file import (
    Fate,
    LedgerRow,
    ScheduleRecord,
    ServedSchedule,
    SupervisorFile,
    read_schedules,
    supervisor_path,
)
from support.commands import run_redrive
from support.waiting import LIMIT_SECONDS, wait_until_async

from ..conftest import StillClock, press, rows_of, settle, shown
from ..model.runs import START, S

HOUR = 3600 * S
FOLDER = "/var/lib/etl/.local/state/redrive"
ALIVE, GONE = ExecutorState(True, pid=71), ExecutorState(False, gone_at=START - HOUR)


def schedule(flow: str, in_us: int, local: str) -> list[ScheduleRow]:
    at = START + in_us
    return [ScheduleRow(flow, "0 5 * * *", "Asia/Kolkata", "one", f"/srv/{flow}.py", 0, 0, at, local)]


def offer(flow: str, state: str, executor: ExecutorState = GONE, **columns: Any) -> Offer:
    run_id = f"{flow}-2026-04-25"
    latest = RunFacts(run_id, flow, START - HOUR, START if state != "RUNNING" else None, state)
    known: dict[str, Any] = {
        "latest": next((one for one in columns.get("runs", ()) if one.run_id == run_id), latest),
        "executor": executor,
        "tasks": 10,
        "finished": 8,
    }
    known |= {"nights": ["SUCCESS", "FAILED", "PARTIAL", "SUCCESS", state], **columns}
    return Offer(f"{FOLDER}/{flow}.db", flow, **known)


def unfinished(flow: str, dead: int = 0, blocked: bool = False) -> list[RunFacts]:
    since = START - HOUR if blocked else None
    return [RunFacts(f"{flow}-2026-04-25", flow, START - HOUR, blocked_since=since, dead_letters=dead)]


def failed(flow: str) -> list[RunFacts]:
    return [RunFacts(f"{flow}-2026-04-25", flow, START - HOUR, START, "FAILED")]


FILES = [
    offer(
        "revenue",
        "RUNNING",
        ALIVE,
        tasks=1002,
        finished=981,
        nights=["SUCCESS"] * 13 + ["RUNNING"],
        runs=unfinished("revenue", dead=12),
        service_pid=70,
    ),
    offer("ledger", "RUNNING", runs=unfinished("ledger", dead=1, blocked=True)),
    offer("backup", "RUNNING", runs=unfinished("backup")),
    offer("imports", "RUNNING", ALIVE, runs=unfinished("imports")),
    offer("rates", "SUCCESS", service_pid=70, schedules=schedule("rates", 2 * HOUR, "2026-04-25T05:00:00+05:30")),
    offer("warehouse-of-all-the-partners", "FAILED", runs=failed("warehouse-of-all-the-partners")),
    Offer(f"{FOLDER}/fresh.db", schedules=schedule("fresh", HOUR, "2026-04-25T04:00:00+05:30"), service_pid=72),
    Offer(f"{FOLDER}/odd.db", problem=f"{FOLDER}/odd.db is not a redrive state file"),
]


class Files:
    """The state files that a test tells of."""

    def __init__(self, *first: Sequence[Offer] | RedriveError) -> None:
        self.news: asyncio.Queue[Sequence[Offer] | RedriveError] = asyncio.Queue()
        for found in first:
            self.news.put_nowait(found)

    async def watch(self) -> AsyncIterator[Sequence[Offer]]:
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


def fleet_app(files: Files, **options: Any) -> FleetApp:
    tty = Tty(TerminalCapabilities(has_unicode=options.pop("has_unicode", True)))
    return FleetApp(files.watch, "this machine", tty=tty, clock=StillClock(), **options)


def text_of(app: FleetApp) -> str:
    return "\n".join(rows_of(app))  # type: ignore[arg-type]


def argv_of(app: FleetApp) -> list[list[str]]:
    """The words of each row of the list."""
    return [row.split() for row in rows_of(app)[3 : 3 + len(app.table.order)]]  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_picture_of_the_fleet(size, snap_compare):
    async def prepare(pilot: Any) -> None:
        await pilot.pause()

    assert snap_compare(fleet_app(Files(FILES)), terminal_size=size, run_before=prepare)


async def test_what_needs_a_human_comes_first_with_its_count():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert [path.rpartition("/")[2] for path in app.table.order[:6]] == [
            *("revenue.db", "ledger.db", "backup.db", "warehouse-of-all-the-partners.db", "odd.db", "imports.db")
        ]
        assert [row[0] for row in argv_of(app)[:6]] == ["◆12", "◆1", "◆1", "◆1", "◆1", "imports"]
        assert "8 state files on this machine" in text_of(app) and "16 things need a human" in text_of(app)


async def test_the_help_key_explains_the_counts_and_the_keys_of_the_list():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("?")
        assert "so many need a human" in text_of(app) and "(1) so many notices" in text_of(app)
        for words in ("schedule: Pause, skip or start runs", "quit: "):
            assert words in text_of(app)
        await pilot.press("?")
        assert "8 state files on this machine" in text_of(app)


async def test_enter_opens_the_file_under_the_cursor():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("down", "enter")
        await pilot.pause()
    assert app.chosen == f"{FOLDER}/ledger.db"


async def test_a_file_that_cannot_be_read_says_why_and_is_not_opened():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 24)) as pilot:
        await pilot.pause()
        await pilot.press("down", "down", "down", "down", "enter")
        await pilot.pause()
        assert "is not a redrive state file" in rows_of(app)[-1]  # type: ignore[arg-type]
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
        assert app.table.cursor_key == f"{FOLDER}/rates.db"
        assert rows_of(app)[-2].strip() == f"{FOLDER}/rates.db"  # type: ignore[arg-type]
        broken = offer("rates", "RUNNING", runs=unfinished("rates", dead=3, blocked=True))
        files.news.put_nowait([broken, *FILES[:4], *FILES[5:]])
        await files.are_shown()
        await pilot.pause()
        assert app.table.cursor_key == app.table.order[0] == f"{FOLDER}/rates.db"
        assert "◆3" in argv_of(app)[0] and "19 things need a human" in text_of(app)


async def test_a_lost_connection_is_said_and_the_rows_stay():
    files = Files(FILES, LinkError("far has closed the connection"))
    app = fleet_app(files, message="ledger.db is damaged")
    async with app.run_test(size=(120, 24)) as pilot:
        await files.are_shown()
        await pilot.pause()
        assert "far has closed the connection" in rows_of(app)[0]  # type: ignore[arg-type]
        assert "ledger.db is damaged" in rows_of(app)[-1]  # type: ignore[arg-type]
        assert len(app.table.order) == len(FILES)


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
        return [path.rpartition("/")[2].removesuffix(".db") for path in app.table.order]

    app = fleet_app(Files(FILES))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.pause()
        assert "sort: needs a human" in rows_of(app)[0]  # type: ignore[arg-type]
        cursor = app.table.cursor_key
        for words in ("latest", "next start", "name"):
            await pilot.press("e")
            await pilot.pause()
            assert f"sort: {words}" in rows_of(app)[0]  # type: ignore[arg-type]
            if words == "next start":
                assert flows(app)[:2] == ["fresh", "rates"]
        assert flows(app)[:3] == ["backup", "imports", "ledger"] and app.table.cursor_key == cursor
        await pilot.click(offset=(115, 0))
        await pilot.pause()
        assert "sort: needs a human" in rows_of(app)[0] and flows(app)[0] == "revenue"  # type: ignore[arg-type]


# --- Schedules -------------------------------------------------------------------------------------------------------

NOON, MISSED = START + 2 * HOUR, START - 3 * HOUR
SPEC = FlowSpec(
    "rates",
    (),
    params={"logical_time": None, "day": "monday", "size": 3, "mode": "full", "note": None, "password": None},
    param_types={"mode": ParamSpec("str", ("full", "partial"))},
    secrets=("password",),
)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The state file of a flow with a run and a schedule, one run of which was missed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    (tmp_path / "redrive").mkdir()
    flow, state = tmp_path / "rates.py", tmp_path / "redrive/rates.db"
    flow.write_text(
        "from redrive.engine import Flow\nflow = Flow('rates', params={'day': 'monday', 'size': 3})\n"
        "flow.command('load', 'true', timeout=60)\n"
    )
    done = run_redrive("run", flow, "--state", state, "--param", "day=friday", "--plain")
    assert done.returncode == 0, done.stderr
    file = SupervisorFile(supervisor_path(), "one")
    file.register(1, "here", "[]", START)
    spec = msgspec.json.encode(SPEC).decode()
    target = f"{flow}:flow"
    record = ScheduleRecord(0, target, str(flow), "flow", "rates", "one", spec, str(state))
    missed = LedgerRow(MISSED, MISSED, 1, Fate.MISSED, "nothing served it then", "", START, 1)
    stored = file.claim(target, "rates", str(state))
    file.save(record._replace(id=stored.id, next_at=NOON, next_logical=NOON), [missed])
    file.close()
    return str(state)


def schedule_of_rates() -> ServedSchedule:
    (row,) = read_schedules().schedules
    return row


def requests() -> list[tuple[int | None, dict[str, str]]]:
    return [(one.logical, dict(one.params)) for one in read_requests()]


@asynccontextmanager
async def fleet_of(state: str) -> AsyncIterator[tuple[FleetApp, Callable[..., Awaitable[None]]]]:
    """The list with one file, and ``press(*keys)``, which waits for what each key leads to."""
    app = fleet_app(Files([offer("rates", "SUCCESS")._replace(path=state)]))
    async with app.run_test(size=(80, 24)) as pilot:

        async def press(*keys: str) -> None:
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
                for worker in [one for one in app.workers if one.name != "follow"]:
                    await worker.wait()
                await pilot.pause()

        await wait_until_async(lambda: state in app._schedules)
        yield app, press


async def test_a_schedule_is_paused_and_unpaused_from_the_list(served: str):
    async with fleet_of(served) as (app, press):
        await press("s")
        assert "pause…" in text_of(app) and "no run starts; a run that goes on is not touched" in text_of(app)
        await press("enter")
        assert "Start no runs of rates" in text_of(app) and "until 06:00" in text_of(app)
        await press("j", "enter")
        assert schedule_of_rates().paused_until == START + HOUR
        assert "rates: paused until" in text_of(app).splitlines()[-1]
        assert "paused until" in text_of(app).splitlines()[-2]
        await press("s", "enter")
        assert not schedule_of_rates().is_paused(START)
        assert "rates: not paused any more" in text_of(app)


async def test_the_next_run_is_skipped_and_the_skip_is_taken_back(served: str):
    async with fleet_of(served) as (app, press):
        await press("s", "j", "enter")
        assert schedule_of_rates().skip_logical == NOON
        assert "skips" in text_of(app).splitlines()[-2]
        await press("s", "j", "enter")
        assert schedule_of_rates().skip_logical is None


async def test_a_missed_run_is_dismissed(served: str):
    async with fleet_of(served) as (app, press):
        await press("s", "G")
        assert "1 missed run: none of them will start" in text_of(app)
        await press("enter")
        assert schedule_of_rates().missed == ()
        assert "rates: 1 of 1 missed runs dismissed" in text_of(app)


async def test_a_run_is_started_with_typed_parameters(served: str):
    """The form has the values of the latest run, refuses what the flow would refuse, and asks for no secret."""
    async with fleet_of(served) as (app, press):
        await press("s", "j", "j", "enter")
        shown = text_of(app)
        assert "Start rates" in shown and "friday" in shown and "password" not in shown and "logical_time" not in shown
        assert "one of full, partial; default: full" in shown
        await press("enter", "x", "enter")
        assert "size wants" in text_of(app) and requests() == []
        await press("backspace", "7", "enter", *"odd", "enter")
        assert "mode" in text_of(app) and requests() == []
        await press(*["backspace"] * 3, *"partial", "enter", "enter")
        ((logical, params),) = requests()
        assert (logical, params) == (None, {"day": "friday", "size": "7", "mode": "partial"})
        assert "rates: a run is asked for" in text_of(app)


async def test_a_missed_run_is_started_with_its_own_time(served: str):
    async with fleet_of(served) as (_, press):
        await press("s", "j", "j", "j", "enter", "enter", "enter", "enter", "enter")
        assert [logical for logical, _ in requests()] == [MISSED]


async def test_a_read_only_list_acts_on_no_schedule():
    app = fleet_app(Files(FILES), is_read_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("s")
        await pilot.pause()
        assert "opened read-only" in text_of(app) and len(app.screen_stack) == 1


async def test_a_file_without_a_schedule_says_so():
    app = fleet_app(Files(FILES))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("s")
        await pilot.pause()
        assert "no schedule of this file is known here: redrive serve FOLDER" in text_of(app)
