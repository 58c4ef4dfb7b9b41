"""The log of an attempt: its end first, the rest on demand, and everything that keys do with it."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from redrive.console.screens import log
from redrive.engine.errors import LinkError
from redrive.engine.statefile.logs import AttemptText, LogChunk
from support.marks import parametrize_mostly_long
from support.waiting import LIMIT_SECONDS

from ..conftest import FakeSession, make_app
from ..model.runs import S
from .screen_driver import open_console, pressing

DEAD = "clean_refunds"
WORDS = [
    "settle: reading 4,812 refunds of 2026-04-24",
    "\x1b[32mINFO\x1b[0m connected to \x1b]8;;http://x\x07ledger\x1b]8;;\x07",
    "0 %\r40 %\r100 %",
    "[bold]4,811 rows[/bold] settled, 0 errors so far",
    "row 4,812: amount 0.00",
    "Traceback (most recent call last):",
    '  File "/srv/flows/settle.py", line 87, in settle',
    "    share = refund / order.amount",
    "ZeroDivisionError: division by zero",
]
BESIDE_THE_GRAPH = 20  # chunks that the details show there


def chunks_of(text: str, size: int = 40, start: int = 1) -> list[LogChunk]:
    """A text in pieces that end anywhere."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [LogChunk(start + number, 0, piece) for number, piece in enumerate(pieces)]


class Door(FakeSession):
    """Remembers in ``asked`` what was read: task, attempt, after which chunk, how many."""

    asked: list[Any]

    async def log(self, run_id, task, attempt, /, **window):
        if window["limit"] != BESIDE_THE_GRAPH:
            self.asked.append((task, attempt, window["after"], window["limit"]))
        self._raise()
        return await super().log(run_id, task, attempt, **window)


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that grows."""
    monkeypatch.setattr(log, "POLL_SECONDS", 0.05)


@pytest.fixture
def session(revenue):
    revenue.__class__ = Door
    revenue.asked = []
    revenue.logs = {
        (DEAD, 1): chunks_of("the first attempt\n"),
        (DEAD, 2): chunks_of("\n".join(WORDS) + "\n"),
        ("clean_orders", 1): chunks_of("".join(f"order {n:05} cleaned\n" for n in range(30))),
    }
    return revenue


@asynccontextmanager
async def at_the_log(session, clock, *keys, name=DEAD, size=(80, 24)):
    """The log of a task, after some keys."""
    async with open_console(session, clock, "5", *keys, size=size, selected=name) as driver:
        yield driver


def shown(driver):
    """The rows of the log itself, without their margin."""
    below = driver.app.console_screen.failure.row_count
    return [row.removeprefix(" ") for row in driver.lines[4 : -2 - below]]


def long_log(count: int) -> list[LogChunk]:
    """Lines with numbers, ten of them in a chunk."""
    lines = [f"row {number:06} settled\n" for number in range(count)]
    return [LogChunk(at + 1, 0, "".join(lines[at : at + 10])) for at in range(0, count, 10)]


async def test_the_log_of_the_selected_task_is_shown_as_a_person_reads_it(session, clock):
    async with at_the_log(session, clock) as driver:
        assert driver.lines[3].startswith(" clean_refunds  #2 of 2  ✗ failed 3s")
        assert shown(driver)[:9] == [
            "settle: reading 4,812 refunds of 2026-04-24",
            "INFO connected to ledger",
            "100 %",
            *WORDS[3:],
        ]


async def test_without_a_selection_it_is_the_log_of_what_needs_a_human(session, clock):
    async with open_console(session, clock, "5") as driver:
        assert driver.app.selected == DEAD
        assert "ZeroDivisionError: division by zero" in driver.text


async def test_a_failed_attempt_shows_its_failure_below_its_output(session, clock):
    calls = [f'  File "/srv/flows/settle.py", line {number}, in step' for number in range(60)]
    text = "\n".join(["Traceback (most recent call last):", *calls, "ZeroDivisionError: division by zero"])
    session.texts[DEAD, 2] = AttemptText(traceback=text)
    session.logs = {}
    async with at_the_log(session, clock) as driver:
        rows = driver.lines[-2 - driver.app.screen.failure.row_count :]
        assert rows[1] == " ✗ failed  ZeroDivisionError settle.py:87 in settle"
        assert rows[-2] == "   ZeroDivisionError: division by zero"  # the end is what counts
        assert "this attempt wrote nothing" in driver.text and "line 59, in step" in driver.text
        session.texts[DEAD, 1] = AttemptText(traceback="KeyError: 'rate'")
        await driver.press("left_square_bracket")
        assert driver.find("   KeyError: 'rate'")
    async with at_the_log(session, clock, name="clean_orders") as driver:  # it runs
        assert driver.app.screen.failure.row_count == 0


async def test_a_failure_begins_below_the_line_that_nothing_was_written(session, clock):
    session.texts[DEAD, 2] = AttemptText(traceback="ZeroDivisionError: division by zero")
    session.logs = {}
    async with at_the_log(session, clock, size=(120, 40)) as driver:
        assert "this attempt wrote nothing" in driver.lines[4]
        assert driver.lines[6:8] == [
            " ✗ failed  ZeroDivisionError settle.py:87 in settle",
            "   ZeroDivisionError: division by zero",
        ]
        await driver.press("left_square_bracket", "right_square_bracket")
        assert "✗ failed" in driver.lines[6]


async def test_an_empty_log_names_the_attempt_before_that_wrote_something(session, clock):
    session.logs = {}
    attempts = session.projection.tasks[DEAD].attempts
    attempts[2].output_bytes, attempts[1].output_bytes = 0, 20
    async with at_the_log(session, clock) as driver:
        assert shown(driver)[0] == "· this attempt wrote nothing; attempt 1 did: ["
        await driver.press("left_square_bracket")
        assert shown(driver)[0] == "· this attempt wrote nothing"
    attempts[2].outcome = "success"  # then there is nothing else to read of it
    async with at_the_log(session, clock) as driver:
        assert "#1 of 2, the latest wrote nothing" in driver.lines[3]
        await driver.press("right_square_bracket")
        assert "#2 of 2" in driver.lines[3]
        assert shown(driver)[0] == "· this attempt wrote nothing; attempt 1 did: ["
        await driver.press("left_square_bracket")
        assert "#1 of 2, the latest wrote nothing" in driver.lines[3]


async def test_a_path_longer_than_the_screen_is_shown_to_its_end(session, clock):
    path = f"/srv/{'environment/' * 9}settle.py"
    session.texts[DEAD, 2] = AttemptText(traceback=f'  File "{path}", line 87, in settle\nZeroDivisionError: no')
    async with at_the_log(session, clock) as driver:
        rows = driver.lines[-2 - driver.app.screen.failure.row_count : -1]
        assert f'File"{path}",line87,insettle' in "".join(rows).replace(" ", "")


async def test_brackets_change_the_attempt_and_say_where_they_end(session, clock):
    async with at_the_log(session, clock, "left_square_bracket") as driver:
        assert "#1 of 2" in driver.lines[3]
        assert shown(driver)[0] == "the first attempt"
        await driver.press("left_square_bracket")
        assert "this is the first attempt" in driver.lines[-1]
        await driver.press("right_square_bracket")
        assert "#2 of 2" in driver.lines[3]
        await driver.press("right_square_bracket")
        assert "this is the latest attempt" in driver.lines[-1]
        await driver.press("[")  # what was said of another attempt goes
        assert "#1 of 2" in driver.lines[3] and "this is the latest attempt" not in driver.text


async def test_a_log_without_a_line_says_why(session, clock):
    async with at_the_log(session, clock, name="extract_refunds") as driver:
        assert shown(driver)[0] == "· this attempt wrote nothing"
        driver.app.selected = "aggregate_revenue"
        await driver.press("6", "5")
        assert shown(driver)[0].startswith("· no attempt yet: ")
        assert "clean_" in shown(driver)[0]
        driver.app.selected = "clean_orders"
        await driver.press("6", "5", "e")
        assert "no line shows an error" in driver.lines[-1]


# --- Reading ---------------------------------------------------------------------------------------------------------


async def test_the_end_comes_first_and_nothing_else_unasked(session, clock):
    session.logs[DEAD, 2] = long_log(10_000)
    async with at_the_log(session, clock) as driver:
        assert shown(driver)[-1] == "row 009999 settled"
        assert session.asked == [(DEAD, 2, -1, 64)]


@pytest.mark.long
async def test_scrolling_up_reads_on_and_keeps_the_place(session, clock):
    session.logs[DEAD, 2] = long_log(10_000)
    async with at_the_log(session, clock, *["pageup"] * 45) as driver:
        first = shown(driver)[0]
        number = int(first.split()[1])
        assert number < 9_400
        await driver.press("k")
        assert shown(driver)[0] == f"row {number - 1:06} settled"
        assert session.asked[1:] == [(DEAD, 2, 0, 500)]  # before the first line that was known


async def test_g_goes_to_the_very_beginning(session, clock):
    session.logs[DEAD, 2] = long_log(10_000)
    async with at_the_log(session, clock, "g") as driver:
        assert shown(driver)[0] == "row 000000 settled"
        assert f"{len(shown(driver))} of 10,000" in driver.lines[3]
        await driver.press("G")
        assert shown(driver)[-1] == "row 009999 settled"


async def test_what_was_dropped_is_one_line(session, clock):
    head = chunks_of("first\nbroken o", size=100)
    tail = [LogChunk(7, 0, "ff\nlast\n", 1_187_000)]
    session.logs[DEAD, 2] = [*head, *tail]
    session.lists["output"] = [{"output_bytes": 1_700_000, "output_dropped_bytes": 1_187_000}]
    async with at_the_log(session, clock) as driver:
        assert shown(driver)[:5] == ["first", "broken o", "… 1.2 MB dropped here …", "ff", "last"]
        assert "1.7 MB" in driver.lines[3]


async def test_a_search_in_a_part_says_what_it_has_not_seen(session, clock):
    session.logs[DEAD, 2] = [*chunks_of("first\n", size=100), LogChunk(7, 0, "last\n", 2_900_000)]
    session.lists["output"] = [{"output_bytes": 3_400_000, "output_dropped_bytes": 2_900_000}]
    async with at_the_log(session, clock, size=(120, 30)) as driver:
        assert "3.4 MB, 2.9 MB dropped" in driver.lines[3]
        await driver.press("slash")
        await driver.submit("nonsense")
        assert "/nonsense: nowhere in what is kept; 2.9 MB dropped" in driver.lines[3]
        await driver.press("escape", "e")
        assert "no line shows an error in what is kept; 2.9 MB dropped" in driver.lines[-1]


async def test_while_it_runs_the_end_is_followed(session, clock):
    async with at_the_log(session, clock, name="clean_orders") as driver:
        assert "● running" in driver.lines[3] and "following" in driver.lines[3]
        assert shown(driver)[-1] == "order 00029 cleaned"
        session.logs["clean_orders", 1] += chunks_of("order 00030 half", start=500)
        await until(driver, lambda: shown(driver)[-1] == "order 00030 half")
        session.logs["clean_orders", 1] += chunks_of(" and whole\n", start=600)
        await until(driver, lambda: shown(driver)[-1] == "order 00030 half and whole")


async def until(driver, true):
    """Wait until something is on the screen, for longer than it can take."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, driver.text
        await driver.pilot.pause(0.05)


async def test_who_reads_further_up_is_left_in_peace(session, clock):
    async with at_the_log(session, clock, "k", "k", name="clean_orders") as driver:
        first = shown(driver)[0]
        session.logs["clean_orders", 1] += chunks_of("order 00030 cleaned\n", start=500)
        await until(driver, lambda: "of 31" in driver.lines[3])
        assert shown(driver)[0] == first
        await driver.press("f")
        assert shown(driver)[-1] == "order 00030 cleaned"


async def test_nothing_is_read_while_the_screen_is_hidden_or_nothing_runs(session, clock):
    async with at_the_log(session, clock) as driver:
        await driver.pilot.pause(0.2)
        assert len(session.asked) == 1
        driver.app.selected = "clean_orders"
        await driver.press("6", "5")
        await until(driver, lambda: len(session.asked) > 3)
        await driver.press("6")
        seen = len(session.asked)
        await driver.pilot.pause(0.2)
        assert len(session.asked) == seen


async def test_what_came_with_the_end_is_read_and_the_heading_says_how_it_ended(session, clock):
    async with at_the_log(session, clock, name="clean_orders") as driver:
        session.logs["clean_orders", 1] += chunks_of("all done\n", start=500)
        await driver.emit(session, session.builder.succeed("clean_orders", duration_us=50 * S))
        assert shown(driver)[-1] == "all done"
        assert "✓ ok 50s" in driver.lines[3]


async def test_the_next_attempt_takes_the_place_of_one_whose_end_is_followed(session, clock):
    session.logs["extract_payments", 1] = chunks_of("no answer\n")
    session.logs["extract_payments", 2] = chunks_of("trying again\n")
    async with at_the_log(session, clock, name="extract_payments") as driver:
        assert shown(driver)[0] == "no answer"
        await driver.emit(session, session.builder.start("extract_payments"))
        assert shown(driver)[0] == "trying again"
        assert "#2 of 2  ● running" in driver.lines[3]


async def test_the_next_attempt_does_not_take_away_what_is_being_read(session, clock):
    session.logs["extract_payments", 1] = long_log(100)
    async with at_the_log(session, clock, "g", name="extract_payments") as driver:
        await driver.emit(session, session.builder.start("extract_payments"))
        assert shown(driver)[0] == "row 000000 settled"
        assert "#1 of 2" in driver.lines[3]


async def test_a_session_that_fails_says_so_and_is_asked_again(session, clock):
    async with at_the_log(session, clock, name="clean_orders") as driver:
        session.error = LinkError("the line is down")
        await until(driver, lambda: "the line is down" in driver.lines[-1])
        session.error = None
        session.logs["clean_orders", 1] += chunks_of("it came back\n", start=500)
        await until(driver, lambda: shown(driver)[-1] == "it came back")


# --- Finding ---------------------------------------------------------------------------------------------------------


async def test_e_jumps_to_the_first_line_of_an_error(session, clock):
    session.logs[DEAD, 2] = long_log(2_000)
    session.logs[DEAD, 2][50] = LogChunk(51, 0, "Traceback (most recent call last):\n")
    async with at_the_log(session, clock, "e") as driver:
        assert "Traceback (most recent call last):" in shown(driver)
        await driver.press("k", "k")
        screen = driver.app.screen
        assert screen.text.lines.text_at(screen.text.search_start(1)) == "Traceback (most recent call last):"


@pytest.mark.long
async def test_a_search_finds_also_what_was_not_read_yet(session, clock):
    session.logs[DEAD, 2] = long_log(10_000)
    async with at_the_log(session, clock, "slash") as driver:
        await driver.submit("000123")
        assert "row 000123 settled" in shown(driver)
        assert "/000123" in driver.lines[3]
        await driver.press("escape", "slash")
        await driver.type("nonsense")
        assert "/nonsense: nowhere" in driver.lines[3]


async def test_n_and_its_capital_go_from_error_to_error_and_from_match_to_match(session, clock):
    async with at_the_log(session, clock, "e") as driver:
        text = driver.app.screen.text

        async def found_by(*keys: str) -> list[int]:
            found = [text.search_start(1)]
            for key in keys:
                await driver.press(key)
                found.append(text.search_start(1))
            return found

        assert await found_by("n", "n", "N") == [5, 8, 5, 8], "without a search: errors"
        await driver.press("G", "slash")
        await driver.submit("rows")
        assert await found_by() == [3]
        await driver.press("escape", "slash")
        await driver.submit("settle")
        assert await found_by("n", "n", "n", "N") == [0, 3, 6, 0, 6]


async def test_left_and_right_move_along_cut_lines_and_w_folds_them(session, clock):
    session.logs[DEAD, 2] = chunks_of("a" * 80 + "b" * 40 + "\n")
    async with at_the_log(session, clock, "right") as driver:
        assert shown(driver)[0] == "a" * 41 + "b" * 38 + "…"
        await driver.press("left")
        assert shown(driver)[0].startswith("a" * 78)
        assert shown(driver)[1] == ""
        await driver.press("w")
        assert shown(driver)[1] == "  " + "a" + "b" * 40


# --- Elsewhere -------------------------------------------------------------------------------------------------------


async def test_o_and_again_o_opens_all_of_it_in_the_pager(session, clock, monkeypatch):
    session.logs[DEAD, 2] = long_log(10_000)
    paged = []
    monkeypatch.setattr(
        "redrive.console.screens.pager.show_in_pager", lambda path: paged.append((Path(path), Path(path).read_text()))
    )
    async with open_console(session, clock) as driver:
        driver.app.selected = DEAD
        monkeypatch.setattr(type(driver.app), "suspend", lambda app: nullcontext())
        await driver.press("o")
        assert paged == []
        await driver.press("o")
        ((path, text),) = paged
        lines = text.splitlines()
        assert (lines[0], lines[-1], len(lines)) == ("row 000000 settled", "row 009999 settled", 10_000)
        assert path.name.startswith("redrive-clean_refunds-2-") and not path.exists(), "nothing is left behind"


async def test_without_a_terminal_there_is_no_pager(session, clock):
    async with at_the_log(session, clock, "o") as driver:
        assert "there is no terminal for a pager" in driver.lines[-1]


async def test_another_run_has_other_logs(session, clock):
    async with at_the_log(session, clock) as driver:
        session.projection.run = session.projection.run._replace(run_id="run-2")
        session.logs = {}
        driver.app.live.follow("run-2")
        await driver.settle()
        await driver.press("5")
        assert "ZeroDivisionError" not in "\n".join(shown(driver))


async def test_output_cannot_do_anything(session, clock):
    session.logs[DEAD, 2] = chunks_of("\x1b[2J\x1b]0;pwned\x07[red]x[/red]\x9b2J\u202ey\n", size=5)
    async with at_the_log(session, clock) as driver:
        assert "[red]x[/red]" in driver.text
        assert not any(unfit in driver.text for unfit in "\x1b\x07\x9b\u202e")


@pytest.mark.long
async def test_of_a_hundred_thousand_lines_a_window_is_in_memory_and_all_are_searched(session, clock):
    session.logs[DEAD, 2] = [LogChunk(n + 1, 0, f"row {n:06} settled\n" * 100) for n in range(2_000)]
    async with at_the_log(session, clock, "slash", size=(120, 40)) as driver:
        screen = driver.app.screen
        await driver.type("row 000777")
        await until(driver, lambda: "row 000777 settled" in shown(driver))
        await driver.press("enter")
        assert len(screen.text.lines) < 110_000
        assert "/row 000777" in driver.lines[3] and "nowhere" not in driver.lines[3]
        began = time.thread_time()
        for _ in range(50):
            screen.text.move_pages(1)
            screen.text.line(0)
        assert time.thread_time() - began < 5
        await driver.press("G")
        await until(driver, lambda: shown(driver)[-1] == "row 001999 settled")
        await driver.press("escape", "g")
        await until(driver, lambda: shown(driver)[0] == "row 000000 settled")


@pytest.mark.long
async def test_moving_on_reads_what_follows_and_keeps_the_place(session, clock):
    session.logs[DEAD, 2] = [LogChunk(n + 1, 0, f"row {n:06} {'x' * 2_000}\n") for n in range(5_000)]
    async with at_the_log(session, clock, "g") as driver:
        page = driver.app.screen.text.rows - 1
        for expected in range(1, 30):
            await driver.press("pagedown")
            assert int(shown(driver)[0].split()[1]) == expected * page, driver.text
        for expected in range(28, 0, -1):
            await driver.press("pageup")
            assert int(shown(driver)[0].split()[1]) == expected * page, driver.text
        assert len(driver.app.screen.text.lines) < 1_000


async def test_t_shows_when_each_line_was_written(session, clock):
    session.logs[DEAD, 2] = [LogChunk(1, 61 * S, "one\n"), LogChunk(2, 3_722 * S, "two\n")]
    async with at_the_log(session, clock, "t") as driver:
        assert shown(driver)[:2] == ["00:01:01 one", "01:02:02 two"]
        await driver.press("t")
        assert shown(driver)[:2] == ["one", "two"]


async def test_output_that_the_run_no_longer_keeps_is_not_called_nothing(session, clock):
    session.lists["output"] = [{"output_bytes": 3_400_000, "output_dropped_bytes": 3_400_000}]
    async with at_the_log(session, clock, name="extract_refunds") as driver:
        assert shown(driver)[0].startswith("… 3.4 MB were dropped: the run wrote more than it keeps")


async def test_lines_have_the_colours_that_the_task_gave_them(session, clock):
    session.logs[DEAD, 2] = chunks_of("plain \x1b[1;32mgreen\x1b[0m\tplain\n\x1b[38;5;208mfail\x1b[39med\n", size=7)
    async with at_the_log(session, clock) as driver:
        assert shown(driver)[:2] == ["plain green     plain", "failed"]
        lines = driver.app.screen.text.lines
        assert [(piece.text, piece.role) for piece in lines[0][1:]] == [
            ("plain ", "text"),
            ("green", "sgr bold color(2)"),
            ("     plain", "text"),
        ]
        assert [(piece.text, piece.role) for piece in lines[1][1:]] == [("fail", "sgr color(208)"), ("ed", "failed")]


# --- Pictures --------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture(size, session, clock, snap_compare):
    session.logs[DEAD, 2] = settling()
    session.lists["output"] = [{"output_bytes": 1_739_000, "output_dropped_bytes": 1_214_000}]
    app = make_app(session, clock)
    app.selected = DEAD
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "5", "slash", *"refund", "enter", "N", "G"))


def settling() -> list[LogChunk]:
    """A head, a gap, and a tail that ends in a traceback."""
    head = "".join(f"03:10:5{n} settle  INFO  batch {n:02} of 96: 50 refunds settled\n" for n in range(4))
    tail = "".join(f"03:11:0{n} settle  INFO  batch {n + 90} of 96: 50 refunds settled\n" for n in range(4))
    tail += "03:11:04 settle  WARN  refund 4812: the order has no amount\n" + "\n".join(WORDS[5:]) + "\n"
    return [LogChunk(1, 0, head), LogChunk(2, 0, tail, 1_214_000)]
