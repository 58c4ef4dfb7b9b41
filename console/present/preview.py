"""The consequences of an act, in words: one list for the shell, for the question before an act, and for the inbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...engine.core.waiting import describe_holders
from ...engine.domain.acts import HELD, RUNNING, ActPreview
from ..text.text import one_line

#: Fields of a preview -> what follows for its tasks, in the order in which it is said.
_KINDS = (
    ("run_again", "would run again"),
    ("answered", "would be answered"),
    ("skipped", "would be skipped"),
    ("cancelled", "would be cancelled"),
    ("released", "may go on"),
    ("unblocked", "would no longer be stopped"),
    ("held_back", "would wait again"),
    ("stopped", "would be stopped below"),
    ("stale", "ran before, and would be stale"),
)


class Consequence(NamedTuple):
    """A consequence for some tasks: ``words`` end a sentence about them."""

    words: str
    names: Sequence[str]


def consequences(preview: ActPreview) -> Iterator[Consequence]:
    """The consequences for each task: it is named once, but for one that is skipped and still holds others."""
    released = set(preview.released)
    held = {name: holders for name, holders in preview.holders.items() if name not in preview.stopped}
    for kind, words in _KINDS:
        names = [name for name in getattr(preview, kind) if kind == "skipped" or name not in held]
        if names := [name for name in names if kind != "unblocked" or name not in released]:
            yield Consequence(words, names)
    for holders in dict.fromkeys(held.values()):
        words = f"would stay {one_line(describe_holders(holders))}"
        yield Consequence(words, [name for name in held if held[name] == holders])
    for sentence in dict.fromkeys(one.sentence for one in preview.results if one.outcome == HELD):
        yield Consequence(f"would {sentence}", [one.task for one in preview.results if one.sentence == sentence])


def changes_anything(preview: ActPreview) -> bool:
    """Whether the act would change a task, or end an attempt."""
    return any(getattr(preview, kind) for kind, _ in _KINDS) or any(one.outcome == RUNNING for one in preview.results)
