"""What the operator types after ``/``: words that must all be there, and with ``!`` words that must not.

``load !timeout`` keeps what holds "load" and not "timeout"; case does not matter; a quoted phrase is one word. A filter
never fails: whatever is typed means something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filter:
    """Words, all in lower case. An empty filter keeps everything."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.wanted or self.unwanted)

    def keeps(self, text: str) -> bool:
        """Whether a text passes. ``text`` must be in lower case (``casefold``): rows keep theirs ready."""
        for word in self.wanted:
            if word not in text:
                return False
        return all(word not in text for word in self.unwanted)


def parse_filter(typed: str) -> Filter:
    """Read what was typed. ``!`` alone is not a word yet, so that the list does not flicker while one types."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for word in _words(typed.casefold()):
        if word.startswith("!"):
            unwanted.append(word[1:])
        else:
            wanted.append(word)
    return Filter(tuple(filter(None, wanted)), tuple(filter(None, unwanted)))


def _words(typed: str) -> Iterable[str]:
    """Split at spaces, but not inside double quotes; a quote that is not closed reaches to the end."""
    word = ""
    quoted = False
    for character in typed:
        if character == '"':
            quoted = not quoted
        elif character == " " and not quoted:
            yield word
            word = ""
        else:
            word += character
    yield word
