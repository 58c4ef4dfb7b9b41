"""The schedules beside the first screen: pictures, what is said of each, and the acts with their questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redrive.console.app.fleet import FleetApp, Opening
from redrive.console.present.schedules import next_times
from redrive.console.screens.schedules import SchedulesScreen
from redrive.engine.core.spec import FlowSpec, ParamSpec, ScheduleSpec
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.start_requests import read_requests
from redrive.engine.statefile.state_files import file_row_of
from redrive.engine.statefile.supervisor_file import (
    FOREVER,
    Fate,
    FlowBefore,
    LedgerRow,
    PastRun,
    ServedSchedule,
    pause,
    read_ledger,
    read_schedules,
    skip,
)
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.commands import run_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until_async

from ..conftest import rows_of
from ..model.runs import START, S
from .test_fleet import Files, fleet_app, keys, text_of

HOUR, DAY = 3600 * S, 24 * 3600 * S
NOON, MISSED = START + 2 * HOUR, START - 3 * HOUR
SPEC = FlowSpec(
    "rates",
    (),
    params={"logical_time": None, "day": "monday", "size": 3, "mode": "full", "note": None, "password": None},
    param_types={"mode": ParamSpec("str", ("full", "partial"))},
    secrets=("password",),
    schedule=ScheduleSpec("0 2 * * *", "UTC"),
)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The state file of a flow with a run and a schedule, one run of which was missed; others beside it."""
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
    save(file, "rates", str(state), flow, spec=msgspec.json.encode(SPEC).decode())
    file.close()
    return str(state)


def save(file: SupervisorFile, flow: str, state: str, path: Any, **known: Any) -> None:
    """A schedule of 02:00 with four nights in its ledger."""
    target = f"{path}:flow"
    decided = [
        LedgerRow(MISSED - 3 * DAY, MISSED - 3 * DAY, 1, Fate.RUN, "", "", START, 0),
        LedgerRow(MISSED - 2 * DAY, MISSED - 2 * DAY, 1, Fate.SKIPPED, "", "eva@db1", START, 0),
        LedgerRow(MISSED - DAY, MISSED - DAY, 1, Fate.DROPPED, "a mount was late", "ana@db1", START, 0),
        LedgerRow(MISSED, MISSED, 1, Fate.MISSED, "nothing served it then", "", START, 1),
    ]
    facts: dict[str, Any] = {"expression": "0 2 * * *", "timezone": "UTC", "next_at": NOON, "next_logical": NOON}
    facts |= {"last_started_at": START - DAY, "last_state": "SUCCESS", "last_run_id": "r1", "usual_us": 95 * S}
    row = ServedSchedule(
        0, target, str(path), "flow", flow, state, "one", known.pop("spec", "{}"), **{**facts, **known}
    )
    stored = file.claim(target, flow, state)
    file.save(row._replace(id=stored.id), decided)
    file.note_runs(stored.id, [PastRun("r1", decided[0].first, decided[0].first, "FAILED", 95 * S)])


def others(tmp_path: Path) -> None:
    """Schedules that are paused, gone, broken, and a file that is left out."""
    file = SupervisorFile(supervisor_path(), "two")
    file.register(2, "here", "[2]", START)
    for flow, known in {
        "prices": {},
        "old_load": {"gone_since": START - HOUR, "start_error": "it is in no file any more", "failed_since": START},
        "backup": {"start_error": "No module named 'pandas'", "failed_since": START - HOUR},
        "hourly_sync_of_all_the_partners": {"expression": "every 15m", "late_since": START - HOUR},
        "ledger": {},
    }.items():
        save(file, flow, str(tmp_path / f"redrive/{flow}.db"), tmp_path / f"{flow}.py", **known)
    file.leave_out({str(tmp_path / "nightly.py"): "its flow comes from the module house: name it in this file"})
    file.close()
    pause([schedule_of("prices").id], FOREVER, "migration", "ana@db1")
    skip(schedule_of("ledger").id, NOON, "eva@db1")


def schedule_of(flow: str = "rates") -> ServedSchedule:
    return next(row for row in read_schedules().schedules if row.flow == flow)


def requests() -> list[tuple[int | None, dict[str, str]]]:
    return [(one.logical, dict(one.params)) for one in read_requests()]


@asynccontextmanager
async def schedules_of(
    state: str, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[tuple[FleetApp, Callable[..., Awaitable[None]]]]:
    """The schedules over the list with one file, and ``press(*keys)``, which waits for what each key leads to."""
    app = fleet_app(Files([file_row_of(state)]), **options)
    async with app.run_test(size=size) as pilot:

        async def press(*pressed: str) -> None:
            await keys(app, pilot, *pressed)

        await press("S")
        yield app, press


@parametrize_mostly_long("size", [(80, 24), (120, 40), (200, 50)], ids=["80x24", "120x40", "200x50"], quick=1)
def test_picture_of_the_schedules(served: str, tmp_path: Path, size, snap_compare, monkeypatch):
    others(tmp_path)
    monkeypatch.setattr("redrive.console.present.schedules.named_rule", lambda name, path, *rest: named(name, *rest))

    async def prepare(pilot: Any) -> None:
        await keys(pilot.app, pilot, "S")

    from redrive.console.present.states import named_rule

    def named(name: str, *rest: Any) -> Any:
        return named_rule(name, "/srv/flows/file.py", *rest)

    assert snap_compare(fleet_app(Files([file_row_of(served)])), terminal_size=size, run_before=prepare)


async def test_a_flow_after_another_has_the_times_of_that_one(served: str, tmp_path: Path):
    file = SupervisorFile(supervisor_path(), "two")
    file.register(2, "here", "[2]", START)
    known = {"after": (FlowBefore("rates", "has not started", None, ""),), "next_at": None, "next_logical": None}
    save(file, "build", str(tmp_path / "redrive/build.db"), tmp_path / "build.py", **known)
    file.close()
    async with schedules_of(served, (160, 40)) as (app, press):
        assert "NEXT TIMES OF" not in text_of(app)
        await press("g")
        await wait_until_async(lambda: "NEXT TIMES OF rates" in text_of(app))  # once the cursor rests
        assert "waits for rates" in rows_of(app)[3], "the state of its row"
        assert text_of(app).partition("NEXT TIMES OF rates")[2].count("  in ") == 10


def test_a_schedule_of_another_machine_is_told_where_it_cannot_be_decided_about():
    row = ServedSchedule(
        1, "a.py:flow", "a.py", "flow", "rates", None, "one", "", heartbeat_at=START, paused_until=FOREVER
    )
    told = "decided about on its own machine: redrive schedule"
    assert next_times([row], START) == f"rates: paused ({told})"
    assert next_times([], START) == f"no schedule of it is known ({told})"


async def test_every_schedule_has_a_row_with_what_comes_and_what_became_of_it(served: str, tmp_path: Path):
    others(tmp_path)
    async with schedules_of(served, (200, 50)) as (app, press):
        text = text_of(app)
        assert "7 schedules of this machine" in text and "1 paused" in text
        assert "── rates  At 02:00 every day (0 2 * * * UTC) ──" in text, "the row of the first screen comes first"
        for words in (
            "paused by ana@db1: migration",
            "left out: its flow comes from the module house",
            "gone",
            "cannot start",
            "skips",
            "At 02:00 every day",
            "every 15m",
        ):
            assert words in text, words
        below = text.partition("NEXT TIMES")[2]
        assert below.count("  in ") == 10
        said = " ".join(below.split())
        for words in (
            "missed nothing served it then",
            "dropped a mount was late",
            "skipped eva@db1",
            "run FAILED 1m35",
        ):
            assert words in said, words
        await press("/", *"pandas", "enter")
        assert "/pandas: 0" in rows_of(app)[0]
        await press("escape", "/", *"!house", "enter", "g", "n")
        assert "/!house: 6" in rows_of(app)[0]
        await press("escape", "/", *"rates", "enter", "enter")
    assert isinstance(app.chosen, Opening) and app.chosen.run_id == "r1"


async def test_a_schedule_is_paused_with_a_reason_and_unpaused(served: str):
    async with schedules_of(served) as (app, press):
        await press("p")
        assert "Start no runs of rates" in text_of(app) and "until 06:00" in text_of(app)
        await press("j", "enter")
        assert "for an hour" in text_of(app) and "no run starts; a run that goes on is not touched" in text_of(app)
        await press(*"disk", "enter")
        row = schedule_of()
        assert (row.paused_until, row.pause_reason) == (START + HOUR, "disk")
        assert "rates: paused until" in rows_of(app)[-1]
        assert " by " in text_of(app) and ": disk" in text_of(app)
        await press("p")
        assert "runs that were due are started" in text_of(app)
        await press("a")
        assert not schedule_of().is_paused(START) and "rates: not paused any more" in rows_of(app)[-1]


@pytest.mark.long
async def test_the_next_run_is_skipped_and_the_skip_is_taken_back(served: str):
    async with schedules_of(served) as (app, press):
        await press("s")
        assert "does not start; the one after it does" in text_of(app)
        await press("escape")
        assert schedule_of().skip_logical is None
        await press("s", "a")
        assert schedule_of().skip_logical == NOON and "skips" in text_of(app)
        await press("s", "a")
        assert schedule_of().skip_logical is None


@pytest.mark.long
async def test_missed_runs_are_dismissed_after_their_list(served: str):
    async with schedules_of(served) as (app, press):
        await press("x")
        assert "1 missed run: none of them will start" in text_of(app) and "2026-04-24T00:06" in text_of(app)
        await press("a")
        assert schedule_of().missed == () and read_ledger(schedule_of().id)[-1].fate == Fate.DROPPED
        assert "rates: 1 of 1 missed runs dismissed" in rows_of(app)[-1]
        await press("x")
        assert "rates: no run of it was missed" in rows_of(app)[-1]


async def test_a_run_is_started_with_the_parameters_of_its_flow(served: str):
    async with schedules_of(served) as (app, press):
        await press("r", "enter")
        assert "a run of this instant" in text_of(app) and requests() == []
        await press("a")
        assert requests() == [(None, {})]
        assert "rates: a run is asked for" in rows_of(app)[-1]


@pytest.mark.long
async def test_a_missed_run_is_started_with_its_own_time(served: str):
    async with schedules_of(served) as (_, press):
        await press("r", "j", "enter", "a")
        assert [logical for logical, _ in requests()] == [MISSED]


@pytest.mark.long
async def test_a_flow_that_is_gone_is_forgotten_and_a_failed_start_acknowledged(served: str, tmp_path: Path):
    others(tmp_path)
    async with schedules_of(served) as (app, press):
        await press("f")
        assert "it is served: remove it from its file first" in rows_of(app)[-1]
        await press("/", *"backup", "enter", "a", "escape")
        assert schedule_of("backup").acknowledged_at == START
        await press("/", *"old_load", "enter", "f", "a", "escape")
        assert "old_load" not in {row.flow for row in read_schedules().schedules}


async def test_a_read_only_list_acts_on_no_schedule(served: str):
    async with schedules_of(served, is_read_only=True) as (app, press):
        await press("p")
        assert "opened read-only" in rows_of(app)[-1] and isinstance(app.screen, SchedulesScreen)
        await press("q")
        assert app.is_running and app.screen is app.list_screen
