"""Reads what the far side sends as rows of a type, with a check of each value."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ...engine.errors import LinkError

Row = TypeVar("Row")


def row_of(kind: type[Row], sent: object) -> Row:
    """Return ``sent`` as a ``kind``: a NamedTuple comes as a list, a dataclass as an object.

    Raises LinkError for what is none.
    """
    try:
        return msgspec.convert(sent, kind)
    except msgspec.ValidationError as error:
        raise LinkError(f"the far side sent no {kind.__name__}: {error}", final=True) from error


def rows_of(kind: type[Row], sent: object) -> list[Row]:
    """Return ``sent`` as a list of a ``kind``. Raises LinkError as ``row_of`` does."""
    try:
        return msgspec.convert(sent, list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise LinkError(f"the far side sent no list of {kind.__name__}: {error}", final=True) from error
