"""What running tasks use: asked for while a screen shows it, and shown in rows and details."""

from __future__ import annotations

import pytest
from redrive.engine.domain.liveness import TaskUsage
from redrive.engine.errors import LinkError
from redrive.engine.statefile.logs import AttemptText, LogChunk
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession
from ..model.runs import S, projection_of
from .screen_driver import open_console

RUNNING = "clean_orders"


@pytest.fixture
def session(revenue):
    revenue.running_usage = [TaskUsage(RUNNING, 98, 340_000_000, 3, "batch \x1b[2J90 of 96")]
    return revenue


async def second(driver) -> None:
    """The clock ticks twice: the first time it is asked, the second time it is shown."""
    for _ in range(2):
        driver.app.tick(driver.app.live.now_us + S)
        await driver.settle()


async def test_the_row_and_the_details_of_a_running_task_show_what_it_uses(session, clock):
    async with open_console(session, clock, size=(170, 40)) as driver:
        driver.app.selected = RUNNING
        await second(driver)
        (row,) = [line for line in driver.lines if RUNNING in line and "1/3" in line]
        assert " cpu 98% 340 MB  batch 90 of 96" in row
        await driver.press("d")
        await second(driver)
        assert "now 98 % of a CPU, 340 MB, 3 child processes" in driver.text
        assert "wrote batch 90 of 96" in driver.text


async def test_nothing_is_asked_while_no_screen_shows_it(session, clock):
    async with open_console(session, clock) as driver:
        await second(driver)
        assert session.usage_reads
        for keys in (["4"], ["5"], ["6"], ["7"]):
            await driver.press(*keys)
            asked = session.usage_reads
            await second(driver)
            assert session.usage_reads == asked


async def test_without_a_link_nothing_is_shown(session, clock, monkeypatch):
    async with open_console(session, clock, size=(160, 40)) as driver:
        await second(driver)
        assert "340 MB" in driver.text

        async def fail():
            raise LinkError("the line is down")

        monkeypatch.setattr(session, "usage", fail)
        await second(driver)
        assert "340 MB" not in driver.text


# --- The end of the log of what runs ---------------------------------------------------------------------------------


def wrote(session, *lines: str) -> None:
    """The running attempt has written these lines, each in a chunk of its own."""
    session.logs[RUNNING, 1] = [LogChunk(n, session.builder.at, f"{line}\n") for n, line in enumerate(lines, 1)]
    session.lists["output"] = [{"output_bytes": sum(len(line) + 1 for line in lines), "output_dropped_bytes": 0}]


@parametrize_mostly_long(
    ("keys", "size"),
    [((), (120, 40)), (("3",), (120, 50)), (("d",), (80, 24))],
    ids=["beside the graph", "below the timeline", "a page"],
    quick=1,
)
async def test_the_end_of_the_log_follows_what_a_running_task_writes(session, clock, keys, size):
    wrote(session, "copied block 1")
    async with open_console(session, clock, size=size) as driver:
        driver.app.selected = RUNNING
        await driver.press("2", *keys)
        await second(driver)
        screen = driver.app.screen
        page, facts = (screen.page, screen.page) if keys == ("d",) else (screen.texts, screen.detail)
        await read(driver, page)
        assert written(page) == ["copied block 1"] and "output 15 B" in " ".join(said(facts).split())
        wrote(session, "copied block 1", "copied block 2\rcopied block 3")
        await second(driver)
        await read(driver, page)
        assert written(page) == ["copied block 1", "copied block 3"] and "output 45 B" in " ".join(said(facts).split())


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
async def test_of_a_run_of_one_task_the_log_stands_below_its_row_and_follows(clock, size):
    session = FakeSession(projection_of([(RUNNING, [])]))
    for event in session.builder.start(RUNNING, timeout_us=300 * S):
        session.projection.apply(event)
    clock.now = session.builder.at
    wrote(session, "copied block 1")
    async with open_console(session, clock, size=size) as driver:
        page = driver.app.screen.texts
        for lines in (("copied block 1",), ("copied block 1", "copied block 2")):
            wrote(session, *lines)
            await second(driver)
            await read(driver, page)
            below = [line.partition("│")[0].strip() for line in driver.lines]
            assert [line for line in below if line.startswith("copied")] == [*lines]
        assert driver.text.count("copied block 2") == 1


async def test_the_log_of_an_ended_attempt_is_read_once(session, clock):
    async with open_console(session, clock, size=(120, 40)) as driver:
        await driver.press("2")
        driver.app.screen.graph_view.select("clean_refunds")
        await second(driver)
        page = driver.app.screen.texts
        await read(driver, page)
        assert page.texts is not None
        await second(driver)
        assert not page.needs_reading


async def test_a_task_that_has_not_run_shows_what_the_one_wrote_for_which_it_waits(session, clock):
    session.texts["clean_refunds", 2] = AttemptText(traceback="ZeroDivisionError: division by zero")
    async with open_console(session, clock, "2", size=(200, 50)) as driver:
        screen = driver.app.screen
        for task, first in (("notify", "clean_refunds ◆ DEAD"), ("clean_refunds", "Traceback attempt 2")):
            screen.graph_view.select(task)
            await second(driver)
            await read(driver, screen.texts)
            shown = " ".join(said(screen.texts).split())
            assert shown.startswith(first) and "ZeroDivisionError: division by zero" in shown
            assert ("#2" in said(screen.detail)) == (task == "clean_refunds")


def said(page) -> str:
    """The page as text."""
    return "\n".join("".join(piece.text for piece in line) for line in page.render_page())


def written(page) -> list[str]:
    """The lines below the heading of the log."""
    lines = said(page).splitlines()
    start = next((n for n, line in enumerate(lines) if "Log, its end" in line), len(lines))
    block = lines[start + 1 :]
    return [line.strip() for line in block[: block.index("") if "" in block else None]]


async def read(driver, page) -> None:
    """What is due to be read has been read."""
    await driver.settle()
    assert not page.needs_reading
