"""The page that a state file cannot be written: one for all executors of the disk, without a commit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from redrive.engine.clock import SystemClock
from redrive.engine.notifications.notifier import MessageOrigin
from redrive.engine.notifications.storage_page import HOLD_US, PAGE_AFTER_US, StoragePager
from support.waiting import wait_until_async


class Hands(SystemClock):
    """A clock that is set by hand."""

    now = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.now


def pager(folder: Path, flow: str, clock: Hands, line: str = "") -> StoragePager:
    line = line or f'echo "$REDRIVE_PAGE_FLOW" >> {folder}/pages'
    origin = MessageOrigin(flow, "night", str(folder / f"{flow}.db"))
    return StoragePager([{"sender": "command", "line": line}, {"sender": "bell"}], origin, str(folder / "locks"), clock)


def pages(folder: Path) -> list[str]:
    path = folder / "pages"
    return path.read_text().split() if path.exists() else []


async def test_one_executor_of_a_disk_pages_once(tmp_path: Path) -> None:
    clock = Hands()
    both = [pager(tmp_path, "a", clock), pager(tmp_path, "b", clock)]
    since = clock.now

    def check() -> None:
        for one in both:
            one.check(since, "the disk is full")

    check()
    clock.now += PAGE_AFTER_US - 1
    check()
    assert not any(one._sending for one in both), "it may pass by itself"
    clock.now += 1
    check()
    await wait_until_async(lambda: pages(tmp_path) == ["a"])
    check()
    both[0].close()  # its executor is killed: the other one takes its place
    both[1].check(since, "the disk is full")
    await wait_until_async(lambda: pages(tmp_path) == ["a", "b"])
    await wait_until_async(lambda: both[1]._sent is not None)  # its command has ended
    both[1].check(None, "")
    past = both[1].pop_past()
    assert past is not None and past["created_at"] == since and both[1].pop_past() is None
    both[1].close()


async def test_who_notices_the_end_later_does_not_page(tmp_path: Path) -> None:
    clock = Hands()
    first, second = pager(tmp_path, "a", clock), pager(tmp_path, "b", clock)
    since, clock.now = clock.now, clock.now + PAGE_AFTER_US
    first.check(since, "full")
    await wait_until_async(lambda: pages(tmp_path) == ["a"])
    first.check(None, "")
    second.check(since, "full")
    assert not second._sending
    clock.now += HOLD_US
    first.check(None, "")
    second.check(since, "full")
    await wait_until_async(lambda: pages(tmp_path) == ["a", "b"])
    first.close()
    second.close()


async def test_other_receivers_get_their_own(tmp_path: Path) -> None:
    clock = Hands()
    others = [pager(tmp_path, name, clock, f"echo {name} >> {tmp_path}/pages") for name in "ab"]
    since, clock.now = clock.now, clock.now + PAGE_AFTER_US
    for one in others:
        one.check(since, "full")
    await wait_until_async(lambda: sorted(pages(tmp_path)) == ["a", "b"])
    for one in others:
        one.close()


async def test_a_sender_that_fails_is_known_and_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("redrive.engine.notifications.storage_page.draw_delay", lambda *_: (0.01, 0.01))
    clock, go = Hands(), tmp_path / "go"
    one = pager(tmp_path, "a", clock, f"test -e {go} && echo sent >> {tmp_path}/pages")
    since, clock.now = clock.now, clock.now + PAGE_AFTER_US
    one.check(since, "full")
    await wait_until_async(lambda: bool(one.failing))
    assert one.failing["command"].error == "exit status 1"
    go.touch()
    await wait_until_async(lambda: pages(tmp_path) == ["sent"])
    await asyncio.wait(one._sending.values())
    assert not one.failing
    one.close()
