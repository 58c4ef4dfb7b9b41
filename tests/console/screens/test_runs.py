"""The list of runs, and above it the grid of the last ones: what was, how it went, and what is unusual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redrive.console.model.runs import TaskTrend, run_grid
from redrive.console.present.run_grid import Slot, duration_chart, grid_layout, grid_titles, slots_of
from redrive.console.present.tasks import TaskNames
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Role, plain
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.rows import RunRow, RunSummary
from redrive.engine.domain.states import RunState, TaskState
from redrive.engine.statefile.lists import RUN_TASKS, Listing, Row, RunTaskRow
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, StillClock, make_app
from ..model.runs import START, S, projection_of
from .screen_driver import ScreenDriver, open_console

DAY = 86_400 * S
NAMES = ("extract_orders", "clean_orders", "settle", "load_dashboard", "notify")
SECONDS = (12, 95, 230, 41, 0.4)


class ManyRuns(FakeSession):
    """Fourteen nights: settle failed twice, the last clean_orders took four times as long, notify is new."""

    nights: list[RunSummary]

    def __init__(self) -> None:
        projection = projection_of([(name, []) for name in NAMES])
        projection.run = projection.run._replace(run_id="night-14", dag_name="revenue")
        super().__init__(projection)
        self.nights = self.summaries = [summary(number) for number in range(14, 0, -1)]
        self.asked: list[str] = []

    async def rows(self, listing: Listing[Row], **options: Any) -> Sequence[Row]:
        if listing is not RUN_TASKS:
            return await super().rows(listing, **options)
        self.asked.append(options["run_id"])
        number = int(options["run_id"].partition("-")[2])
        return [listing.row._make(row) for row in tasks_of(number)]


def summary(number: int) -> RunSummary:
    at = START - (14 - number) * DAY
    ended = number not in (6, 11)
    state = RunState.SUCCESS if ended else RunState.RUNNING
    run = RunRow(f"night-{number}", "revenue", started_at=at, state=state)
    run = run._replace(ended_at=at + 400 * S) if ended else run._replace(blocked_since=at + 300 * S)
    return RunSummary(run, {"SUCCESS": 5} if ended else {"SUCCESS": 2, "DEAD_LETTER": 1, "PENDING": 2})


def change_run(session: ManyRuns, place: int, **columns: Any) -> None:
    night = session.nights[place]
    session.nights[place] = night._replace(run=night.run._replace(**columns))


def make_slow(session: ManyRuns, **columns: Any) -> None:
    """Let the third night take 25 minutes."""
    change_run(session, 2, ended_at=session.nights[2].run.started_at + 1500 * S, **columns)


def tasks_of(number: int) -> list[tuple[str, str, int, int | None]]:
    """Name, state, attempts, duration of each task of a night."""
    failed = number in (6, 11)
    rows: list[tuple[str, str, int, int | None]] = []
    for place, (name, seconds) in enumerate(zip(NAMES, SECONDS, strict=True)):
        lasts = round(seconds * S * (0.9 + 0.03 * ((number * (place + 3)) % 8)))
        if name == "clean_orders" and number == 14:
            lasts *= 4
        state, attempts = ("DEAD_LETTER", 2) if failed and name == "settle" else ("SUCCESS", 1)
        if name == "notify" and number < 5:
            continue
        is_pending = failed and place > 2
        rows.append((name, "PENDING", 0, None) if is_pending else (name, state, attempts, lasts))
    return rows


@pytest.fixture
def session() -> ManyRuns:
    return ManyRuns()


def row_of(driver: ScreenDriver, name: str) -> str:
    return next(line for line in driver.lines[4:-6] if line.startswith(f" {name}"))


def below(driver: ScreenDriver) -> list[str]:
    """The lines below the list: of the run under the cursor, and of its tasks."""
    rule = max(y for y, line in enumerate(driver.lines) if line.startswith("──"))
    return driver.lines[rule + 1 :]


async def test_every_task_is_shown_in_every_run(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", "=") as driver:
        assert "14 runs · 2 need a human · 5 tasks · 1 slower than usual ↑" in driver.lines[3]
        assert row_of(driver, "settle").count("◆") == 2
        assert row_of(driver, "notify")[:40].count("▒") == 3 and row_of(driver, "notify").count("·") >= 2
        assert row_of(driver, "clean_orders").endswith("5m42↑✓")
        assert row_of(driver, "the whole run").count("◆") == 2


class LongNames(ManyRuns):
    """The same nights of tasks whose names all begin alike."""

    PREFIX = "NFCORE_VIRALRECON.ILLUMINA.ASSEMBLY_UNICYCLER.BANDAGE_IMAGE_OF_EACH_SAMPLE_AND_ITS_HOST."

    async def rows(self, listing: Listing[Row], **options: Any) -> Sequence[Row]:
        rows = await super().rows(listing, **options)
        return (
            rows if listing is not RUN_TASKS else [listing.row._make((self.PREFIX + row[0], *row[1:])) for row in rows]
        )


async def test_names_without_what_all_begin_with_leave_states_their_room(clock: StillClock) -> None:
    async with open_console(LongNames(), clock, "1", size=(120, 40)) as driver:
        assert row_of(driver, "clean_orders").endswith("5m42↑✓")
        said = [" ".join(line.split()) for line in below(driver)]
        assert any(line.startswith("settle ◆ DEAD 4m15, the last of 2 attempts") for line in said)
        assert "NFCORE" not in driver.text


async def test_a_cell_of_the_heat_map_is_as_dark_as_the_task_took_long(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", size=(60, 40)) as driver:
        column = driver.lines[4].index("04-11")
        heat = {name: row_of(driver, name)[column : column + 11] for name in NAMES}
        assert heat["clean_orders"] == "▒" * 11
        assert heat["settle"] == "▒▒▒▒▒◆▒▒▒▒◆" and heat["notify"][:4] == " " * 4, "dead twice; not in the flow yet"
        (slow,) = [piece for piece in driver.app.screen.task_row("clean_orders", 60) if "5m42" in piece.text]
        assert slow.role is Role.WARNING


@pytest.mark.long
async def test_the_grid_needs_room_or_a_key(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1") as driver:
        assert "the whole run" not in driver.text and driver.lines[4].split()[:6] == [
            *("RUN", "STATE", "DONE", "TOOK", "USUAL", "NEEDS")
        ]
        assert session.asked == [], "what is not shown is not read"
        await driver.press("=")
        assert "the whole run" in driver.text and "night-14" in driver.text
        await driver.press("-")
        assert "the whole run" not in driver.text
        await driver.press("-")
        assert "only the runs are shown" in driver.lines[-1]


async def test_a_row_says_how_long_a_run_took_beside_what_is_usual(session: ManyRuns, clock: StillClock) -> None:
    make_slow(session, params='{"day": "2026-04-22", "note": "\\u001b[2Jx"}')
    async with open_console(session, clock, "1", "home", "j", "j", size=(120, 24)) as driver:
        titles, *rows = driver.lines[4:]
        row = next(line for line in rows if "night-12" in line)
        assert row[: titles.index("NEEDS")].split() == ["night-12", "✓", "success", "5/5", "25m00", "↑", "3.8×"]
        assert "day=2026-04-22  note=␛[2Jx" in row
        assert "1.0×" in next(line for line in rows if "night-13" in line)
        assert below(driver)[1].strip() == "3.8 times the usual 6m40 (11 other runs)"
        *_, usual = [piece for piece in driver.app.screen._row("night-12", 120) if "3.8×" in piece.text]
        assert usual.role is Role.WARNING, "a sign and a colour"


async def test_the_cursor_starts_where_a_human_is_needed_and_the_words_below_say_why(
    session: ManyRuns, clock: StillClock
) -> None:
    async with open_console(session, clock, "1", size=(120, 24)) as driver:
        assert driver.app.screen.table.cursor_key == "night-11"
        row = next(line for line in driver.lines[5:] if "night-11" in line)
        assert "◆ BLOCKED" in row and "◆1 dead letter" in row
        assert "night-11" in below(driver)[0] and "BLOCKED after 5m00" in below(driver)[0]
        assert below(driver)[1].strip() == "1 dead letter"


async def test_a_failed_run_says_in_words_that_nobody_has_seen_it(session: ManyRuns, clock: StillClock) -> None:
    change_run(session, 2, state=RunState.FAILED)
    session.nights[2] = session.nights[2]._replace(counts={"SUCCESS": 2, "FAILED": 1, "UPSTREAM_FAILED": 2})
    async with open_console(session, clock, "1", size=(120, 24)) as driver:
        row = next(line for line in driver.lines[5:] if "night-12" in line)
        assert "1 failed, not acknowledged" in row and "upstream" not in row


async def test_orders_of_runs(session: ManyRuns, clock: StillClock) -> None:
    make_slow(session)
    async with open_console(session, clock, "1", "e") as driver:
        assert "sort: needs a human" in driver.lines[3] and "night-11" in driver.lines[5]
        await driver.press("e")
        assert "sort: slower than usual" in driver.lines[3] and "night-12" in driver.lines[5]
        await driver.press("e")
        assert "sort: name" in driver.lines[3] and "night-1 " in driver.lines[5]


@pytest.mark.long
async def test_the_runs_before_those_with_a_duration_can_be_selected(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", *["left"] * 20, size=(120, 40)) as driver:
        assert "night-1 " in below(driver)[0] and driver.app.screen.table.cursor_key == "night-1"


async def test_the_duration_of_each_run_stands_beside_the_timeout(session: ManyRuns, clock: StillClock) -> None:
    session.projection.tasks["settle"].spec = TaskSpec("settle", timeout=600.0)
    session.projection.tasks["clean_orders"].spec = TaskSpec("clean_orders", timeout=7200.0)
    async with open_console(session, clock, "1", size=(120, 40)) as driver:
        assert "the whole run · usually 6m40 · at most 6m40" in driver.text
        await driver.press("tab", "j", "j")
        assert "settle · usually 3m54 · at most 4m15 · timeout 10m00 (2.4 times that)" in driver.text
        across = driver.find(" timeout 10m00 ┄")
        assert "┄" * 14 in across and "█" not in across
        await driver.press("k")
        assert "timeout 2h00 (2" in driver.text
        assert "┄┄" not in driver.text, "so far away, it would make all columns flat"


async def test_each_bar_stands_under_its_run(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(
        session, clock, "1", "tab", "j", size=(120, 40)
    ) as driver:  # the last clean_orders was slow
        titles, top = driver.lines[4], driver.lines[driver.lines.index(driver.find("clean_orders · usually")) + 1]
        end = titles.index("04-24") + len("04-24")
        assert [at for at, sign in enumerate(top) if sign == "█"] == [*range(end - 3, end)]


def test_a_timeout_that_cut_off_runs_crosses_their_columns() -> None:
    cells = [RunTaskRow("load", TaskState.SUCCESS, 1, 2 * S), RunTaskRow("load", TaskState.FAILED, 1, 4 * S)]
    lines = duration_chart(TaskTrend("a", tuple(cells)), 3 * S, 5, 7, [Slot(0, 0, 3), Slot(1, 1, 3)], UTF8)
    assert [plain(line).rstrip() for line in lines[1:]] == [
        "    4s     ███",
        "    3s ┄┄┄┄███",  # its first line names the timeout
        "       ███ ███",
        "       ███ ███",
    ]
    assert duration_chart(TaskTrend("a", (None,)), None, 5, 7, [], UTF8) == []


def test_each_run_is_in_the_grid_once() -> None:
    grid = run_grid([summary(13), summary(14)], {})
    layout = grid_layout(grid, TaskNames(), 80)
    assert plain(grid_titles(grid, layout)).split() == ["task", "usual", "04-23", "04-24"]
    assert [slot.at for slot in slots_of(layout)] == [0, 1]


@pytest.mark.long
async def test_wide_screens_show_durations(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", size=(200, 55)) as driver:
        assert row_of(driver, "clean_orders")[: driver.app.screen.main_columns].rstrip().endswith("  1m36 ✓  5m42↑✓")
        assert driver.lines[4].partition("│")[0].split()[2:] == [f"04-{day}" for day in range(13, 25)]


@pytest.mark.long
async def test_the_cell_under_the_cursor_is_reported_in_words(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", "home", "tab", "j", size=(120, 40)) as driver:
        assert "night-14" in below(driver)[0] and "clean_orders" in below(driver)[2]
        assert "times the usual" in below(driver)[2]
        await driver.press("j", "left", "left", "left")
        assert "night-11" in below(driver)[0] and "BLOCKED after 5m00" in below(driver)[0]
        assert "DEAD" in below(driver)[2] and ", the last of 2 attempts" in below(driver)[2]
        assert "failed in 2 of 14 runs" in below(driver)[3]


async def test_without_a_cursor_in_the_grid_the_words_name_what_was_unusual(
    session: ManyRuns, clock: StillClock
) -> None:
    async with open_console(session, clock, "1", "home", size=(120, 40)) as driver:
        assert below(driver)[2].split()[:8] == ["clean_orders", "✓", "ok", "5m42", "·", "↑", "3.5", "times"]
        await driver.press("left", "left", "left")
        assert below(driver)[2].split()[:3] == ["settle", "◆", "DEAD"]


async def test_enter_opens_the_run_at_the_task(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", "tab", "j", "j", "enter", size=(120, 40)) as driver:
        assert driver.app.selected == "settle" and driver.app.console_screen.PLACE.value == "graph"


@pytest.mark.long
async def test_each_pane_has_its_filter(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", "tab", size=(120, 40)) as driver:
        await driver.press("slash")
        await driver.submit("load")
        assert "/load: 1" in driver.lines[3] and "load_dashboard" in driver.lines[6]
        await driver.press("tab")
        assert "sort: latest" in driver.lines[3] and "/load" not in driver.lines[3] and "load_dashboard" in driver.text
        await driver.press("slash")
        await driver.submit("blocked")
        assert driver.app.screen.table.order == ["night-11", "night-6"], "by the state that the list shows"


@pytest.mark.long
async def test_a_filter_without_a_match_leaves_the_titles_and_says_how_to_go_back(
    session: ManyRuns, clock: StillClock
) -> None:
    async with open_console(session, clock, "1", size=(120, 40)) as driver:
        titles = driver.find(" RUN ").split()
        await driver.press("slash")
        await driver.submit("zzz")
        assert driver.find(" RUN ").split() == titles
        assert driver.find("nothing matches").strip() == "nothing matches /zzz; Esc shows all"
        await driver.press("escape")
        assert "nothing matches" not in driver.text
        await driver.press("tab", "slash")
        await driver.submit("zzz")
        assert driver.find("nothing matches").strip() == "nothing matches /zzz; Esc shows all"
        assert "night-13" in driver.text, "the runs are not filtered"


async def test_ended_runs_are_read_once(session: ManyRuns, clock: StillClock) -> None:
    async with open_console(session, clock, "1", "2", "1", size=(120, 40)) as driver:
        assert session.asked.count("night-3") == 1
        assert session.asked.count("night-11") > 1, "a blocked run can go on"
        assert driver.app.console_screen.PLACE.value == "runs"


async def test_the_grid_is_that_of_the_flow_of_the_run_under_the_cursor(session: ManyRuns, clock: StillClock) -> None:
    change_run(session, 3, dag_name="hourly")
    async with open_console(session, clock, "1", "home", size=(120, 40)) as driver:
        assert "FLOW" in driver.find(" RUN ") and driver.app.screen.place == 12
        await driver.press("j", "j", "j")
        assert driver.app.screen.place == 0 and len(driver.app.screen._grid.runs) == 1


@parametrize_mostly_long("size", [(80, 24), (120, 40), (200, 55)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture_of_the_runs(size: tuple[int, int], session: ManyRuns, clock: StillClock, snap_compare: Any) -> None:
    app = make_app(session, clock)

    async def prepare(pilot: Any) -> None:
        await ScreenDriver(app, pilot).press("1", "j")

    assert snap_compare(app, terminal_size=size, run_before=prepare)
