"""The output of an attempt line by line: never more of it in memory than a page."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.console.sessions.output_reader import OutputLine, OutputReader
from redrive.engine.statefile.logs import LogChunk

from ..conftest import FakeSession


class PagedSession(FakeSession):
    """Gives one chunk at a time, and counts."""

    pages = 0

    async def log(self, run_id: str, task: str, attempt: int, /, **window: int | None) -> Sequence[LogChunk]:
        self.pages += 1
        return await super().log(run_id, task, attempt, after=window["after"], limit=1)


async def test_lines_come_before_the_next_page_is_read() -> None:
    session = PagedSession(None)
    session.lists["output"] = [{"output_bytes": 1_018}]
    session.logs["load", 1] = [LogChunk(1, 5, "one\ntw"), LogChunk(2, 6, "o\n"), LogChunk(3, 7, "three\nend\n", 1_000)]
    found, pages = [], []
    async for line in OutputReader(session, "r", "load", 1).read_new(is_ended=True):
        found.append(line)
        pages.append(session.pages)
    assert found == [
        OutputLine(5, "one"),
        OutputLine(6, "two"),
        OutputLine(7, dropped_bytes=1_000),
        OutputLine(7, "three"),
        OutputLine(7, "end"),
    ]
    assert pages == [1, 2, 3, 3, 3]


async def test_output_of_which_nothing_is_kept_is_one_gap() -> None:
    session = FakeSession(None)
    session.lists["output"] = [{"output_bytes": 3_400_000}]
    found = [line async for line in OutputReader(session, "r", "load", 1).read_new(is_ended=True)]
    assert found == [OutputLine(0, dropped_bytes=3_400_000)]
