"""Names in a sentence: the first of them, and how many follow."""

from __future__ import annotations

from redrive.console.app.confirmations import named
from redrive.engine.domain.text import first_names


def test_the_first_names_and_the_number_of_the_others() -> None:
    assert first_names(["a", "b"], 3) == "a, b"
    assert first_names(range(1_500), 2) == "0, 1 and 1,498 more"
    assert named(["a\nb", "c"]) == "a b, c"


def test_only_the_names_that_are_shown_are_made_ready() -> None:
    """A question about 100,000 tasks has several such lists."""
    shown: list[int] = []
    first_names(range(100_000), 3, lambda number: shown.append(number) or str(number))
    assert shown == [0, 1, 2]
