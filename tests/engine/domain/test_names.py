"""What a mistyped name probably means."""

from __future__ import annotations

import difflib

import pytest
from redrive.engine.domain.text import did_you_mean
from support.marks import for_each


@for_each(
    "wrong, sentence",
    [
        ("load_prt", "; did you mean 'load_part'?"),
        ("LoadPart", "; did you mean 'load_part'?"),
        ("clean", "; did you mean 'group.clean'?"),
        ("xyz", ""),
    ],
)
def test_the_likeliest_name_is_named(wrong: str, sentence: str) -> None:
    assert did_you_mean(wrong, ["load_part", "group.clean", "settle"]) == sentence


def test_many_names_are_not_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difflib, "get_close_matches", None)
    names = [f"load_part_{number}" for number in range(100_000)]
    assert did_you_mean("load-part-77", names) == "; did you mean 'load_part_77'?"
    assert did_you_mean("load_prt_77", names) == ""
