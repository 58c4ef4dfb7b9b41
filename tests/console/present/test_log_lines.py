"""Lines of a log: the search reads the same words that are shown, without finding the role of every line."""

import pytest
from redrive.console.model.log import LogText
from redrive.console.present import log
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.statefile.logs import LogChunk


def test_the_search_reads_what_is_shown_and_judges_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = LogText()
    text.append([LogChunk(1, 0, "start\nERROR: could not parse\n"), LogChunk(2, 0, "the end\n", 3_000_000)])
    lines = log.LogLines(text, UTF8)
    shown = [plain(line).removeprefix(" ") for line in lines]
    monkeypatch.delattr(log, "is_error_line")
    assert [lines.text_at(place) for place in range(len(lines))] == shown
    assert any("3.0 MB dropped here" in line for line in shown)
