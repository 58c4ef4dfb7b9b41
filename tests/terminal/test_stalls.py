"""A terminal that does not read holds nothing up, costs no memory, and gets the newest picture when it reads again."""

from __future__ import annotations

import re
import time

BUSY = ("--tick", "0.02", "--full")
STALL_SECONDS = 4.0


def test_the_event_loop_turns_on_and_memory_stays_while_nobody_reads(demo) -> None:
    app = demo(*BUSY, ready="tick 20", columns=120, rows=40)
    time.sleep(0.5)  # the kernel's buffer fills up
    app.stats()
    memory = app.terminal.memory_bytes()
    time.sleep(STALL_SECONDS)
    stats = app.stats()
    assert stats["longest_gap"] < 0.5
    assert stats["ticks"] > 50
    assert app.terminal.memory_bytes() - memory < 1_000_000


def test_while_nobody_reads_nothing_is_painted(demo) -> None:
    app = demo(*BUSY, ready="tick 20", columns=120, rows=40)
    time.sleep(2.5)  # until the kernel's buffer is full
    before = app.stats()
    time.sleep(1.0)
    after = app.stats()
    assert after["ticks"] > before["ticks"] + 10
    assert after["paints"] == before["paints"]
    assert after["bytes"] == before["bytes"]


def test_a_reader_that_wakes_up_sees_the_newest_picture_at_once(demo) -> None:
    app = demo(*BUSY, ready="tick 20", columns=120, rows=40)
    time.sleep(STALL_SECONDS)
    stats = app.stats()
    shown_before = len(app.terminal.raw)
    woken_at = time.monotonic()
    app.terminal.until(lambda: tick(app) >= stats["ticks"], seconds=5.0)
    assert time.monotonic() - woken_at < STALL_SECONDS  # a replay would take as long as what it replays
    # What the kernel had already taken, at most 20 kB, and one frame: no replay of four seconds.
    assert len(app.terminal.raw) - shown_before < 40_000


def tick(app) -> int:
    found = re.search(r"tick (\d+)", app.terminal.text)
    return int(found[1]) if found else 0


def test_leaving_while_nobody_reads_does_not_hang_and_gives_the_terminal_back(demo) -> None:
    app = demo(*BUSY, ready="tick 20", columns=120, rows=40)
    time.sleep(1.0)
    app.terminal.signal(15)
    asked_at = time.monotonic()
    while app.terminal.process.poll() is None and time.monotonic() < asked_at + 10:
        time.sleep(0.01)
    assert app.terminal.process.returncode == 143
    assert time.monotonic() - asked_at < 5.0
    app.terminal.until_quiet()
    assert app.terminal.is_given_back()


def test_an_idle_screen_writes_nothing(demo) -> None:
    app = demo()
    assert app.terminal.read_for(3.0) == 0


def test_five_countdowns_cost_their_cells(demo) -> None:
    app = demo("--tick", "1.0", "--per-tick", "5")
    app.terminal.read_for(0.5)
    written = app.stats()
    read = app.terminal.read_for(5.0)
    stats = app.stats()
    ticks = stats["ticks"] - written["ticks"]
    assert ticks >= 4
    assert 0 < read <= 150 * ticks
