"""``Flow(holidays=...)``: dates and ranges at the start of lines; what is neither is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from redrive.engine import Flow
from redrive.engine.errors import OptionError

CHRISTMAS = ["2026-12-24", "2026-12-25", "2026-12-26", "2026-12-27"]


def dates(folder: Path, text: str) -> list[str]:
    (folder / "days.txt").write_bytes(text.encode())
    flow = Flow("f", schedule="@daily", timezone="UTC", holidays=str(folder / "days.txt"))
    assert flow.declared.schedule is not None
    return [str(day) for day in flow.declared.schedule.holidays]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-12-25 Christmas\n# a comment\n\n2026-01-01\n", ["2026-01-01", "2026-12-25"]),
        ("2026-12-26 2. Weihnachtstag\n", ["2026-12-26"]),
        ("2026-12-25 - Christmas\n", ["2026-12-25"]),
        ("\ufeff2026-12-25\r\n", ["2026-12-25"]),
        *((f"2026-12-24{dash}2026-12-27\n", CHRISTMAS) for dash in (" - ", "-", "..", " to ", " \u2013 ", "/")),
        ("2026-12-24 - 2026-12-27 between the years\n", CHRISTMAS),
    ],
)
def test_dates_and_ranges(tmp_path: Path, text: str, found: list[str]) -> None:
    assert dates(tmp_path, text) == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("25.12.2026", "does not begin with a date as 2026-12-25"),
        ("2026-12-24, 2026-12-25", "does not begin with a date"),
        ("2026-12-24 2026-12-25", "has more than a date and its name"),
        ("2026-12-24 - 27", "has more than a date and its name"),
        ("2026-12-27 - 2026-12-24", "is no range of at most 366 days"),
        ("2026-12-27 - 2126-12-24", "is no range of at most 366 days"),
        ("2026-02-30", "does not begin with a date"),
    ],
)
def test_a_line_that_is_neither_is_refused_with_its_number(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"days.txt': line 2 {why}"):
        dates(tmp_path, f"2026-01-01\n{line}\n")
