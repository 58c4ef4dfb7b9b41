"""What an import prints, as lines."""

from __future__ import annotations

import pytest
from redrive.engine.flow.import_output import LINE_CHARACTERS_MAX, ImportOutput


def test_a_long_line_is_cut_between_two_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\N{EURO SIGN}" * (2 * LINE_CHARACTERS_MAX)
    data, cut = text.encode(), 3 * LINE_CHARACTERS_MAX + 4
    output = ImportOutput()
    output.feed(data[:cut])
    output.feed(data[cut:])
    output.close()
    first, second = (line.removeprefix("the import printed: ") for line in capsys.readouterr().err.splitlines())
    assert first + second == text
