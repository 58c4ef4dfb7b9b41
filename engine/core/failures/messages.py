"""Names and messages of errors, and what they have in common with others of their kind."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MESSAGE_MAX = 200  # characters
_COMMAND_MAX = 2000

_VARIABLE_PARTS = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`)"), "<text>"),
    (re.compile(r"(?<![\w.<])(?:[A-Za-z]:)?[\\/][^\s:,;)\]]+"), "<path>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+"), "<n>"),
    (re.compile(r"\s+"), " "),
)
#: In a command line the texts and the paths say what is done: only its ids and numbers vary.
_VARIABLE_WORDS = tuple(row for row in _VARIABLE_PARTS if row[1] not in ("<text>", "<path>"))


def normalize_message(message: str) -> str:
    """Replace the variable parts of a message: numbers, quoted text, paths, ids."""
    return _replaced(message[: 10 * _MESSAGE_MAX], _VARIABLE_PARTS)[:_MESSAGE_MAX]


def normalize_command(command: str) -> str:
    """Replace the variable parts of a command line: numbers and ids."""
    return _replaced(command[:_COMMAND_MAX], _VARIABLE_WORDS)


def _replaced(text: str, rows: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, stand_in in rows:
        text = pattern.sub(stand_in, text)
    return text.strip()


def type_name(error: BaseException) -> str:
    """Return ``module.qualname`` of an exception's class; builtins without their module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return ``str(error)`` with its notes (``add_note``), or a substitute if its ``__str__`` fails."""
    try:
        return "; ".join([str(error), *getattr(error, "__notes__", ())])
    except Exception as unprintable:
        return f"<{type(error).__name__} without a message: its __str__ raised {type(unprintable).__name__}>"
