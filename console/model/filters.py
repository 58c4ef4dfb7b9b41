"""The filter that the operator types after ``/``: required words, and excluded words with ``!``.

``load !timeout`` matches text with "load" and without "timeout"; case does not matter; a quoted phrase is one word.
Every input is a valid filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filter:
    """Words in lower case. An empty filter matches every text."""

    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.excluded)

    def matches(self, text: str) -> bool:
        """Whether a text matches. ``text`` must be in lower case (``casefold``): rows cache theirs."""
        return all(word in text for word in self.required) and not any(word in text for word in self.excluded)


def parse_filter(typed: str) -> Filter:
    """Parse what was typed. ``!`` alone is ignored, so that the list does not flicker during typing."""
    words = [word for word in _words(typed.casefold()) if word.removeprefix("!")]
    return Filter(
        tuple(word for word in words if not word.startswith("!")),
        tuple(word[1:] for word in words if word.startswith("!")),
    )


def _words(typed: str) -> Iterable[str]:
    """Split at spaces outside double quotes; an unclosed quote reaches to the end."""
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
