"""A terminal that does not read holds nothing up, costs no memory, and gets the newest picture when it reads again."""

from __future__ import annotations

import re

import pytest
from support.pty_terminal import LIMIT_SECONDS

BUSY = ("--tick", "0.02", "--full")


@pytest.mark.long
def test_while_nobody_reads_the_loop_turns_on_nothing_is_painted_and_memory_stays(demo) -> None:
    app = demo(*BUSY, ready="tick 5", columns=120, rows=40)
    before = app.until_held_up()
    memory = app.terminal.memory_bytes()
    after = app.ticked(100)
    assert after["paints"] == before["paints"]
    assert after["bytes"] == before["bytes"]
    assert app.terminal.memory_bytes() - memory < 1_000_000


@pytest.mark.long
def test_a_reader_that_wakes_up_sees_the_newest_picture_and_no_replay(demo) -> None:
    app = demo(*BUSY, ready="tick 5", columns=120, rows=40)
    app.until_held_up()
    stats = app.ticked(100)
    shown_before = len(app.terminal.raw)
    app.terminal.until(lambda: tick(app) >= stats["ticks"])
    # What the kernel had already taken, at most 20 kB, and one frame: no replay of what was ticked meanwhile.
    assert len(app.terminal.raw) - shown_before < 40_000


def tick(app) -> int:
    found = re.search(r"tick (\d+)", app.terminal.text)
    return int(found[1]) if found else 0


@pytest.mark.long
def test_leaving_while_nobody_reads_does_not_hang_and_gives_the_terminal_back(demo) -> None:
    app = demo(*BUSY, ready="tick 5", columns=120, rows=40)
    app.until_held_up()
    app.terminal.signal(15)
    assert app.terminal.process.wait(LIMIT_SECONDS) == 143
    app.terminal.until(app.terminal.is_given_back)


@pytest.mark.long
def test_an_idle_screen_writes_nothing(demo) -> None:
    app = demo()
    assert app.terminal.read_for(2.0) == 0


@pytest.mark.long
def test_five_countdowns_cost_their_cells(demo) -> None:
    app = demo("--tick", "0.25", "--per-tick", "5", ready="59:5")
    before = app.stats()
    app.terminal.until(lambda: app.stats()["ticks"] >= before["ticks"] + 5)
    after = app.stats()
    ticks = after["ticks"] - before["ticks"]
    assert 0 < after["bytes"] - before["bytes"] <= 150 * ticks
