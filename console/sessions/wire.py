"""Converts messages of the agent to typed rows, and checks each value."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ...engine.errors import LinkError

Row = TypeVar("Row")


def row_of(kind: type[Row], sent: object) -> Row:
    """Convert ``sent`` to a ``kind``: a NamedTuple is sent as a list, a dataclass as an object.

    Raises LinkError if a value has another type.
    """
    try:
        return msgspec.convert(sent, kind)
    except msgspec.ValidationError as error:
        raise LinkError(f"the remote host sent no {kind.__name__}: {error}", final=True) from error


def rows_of(kind: type[Row], sent: object) -> list[Row]:
    """Convert ``sent`` to a list of ``kind``. Raises LinkError as ``row_of`` does."""
    try:
        return msgspec.convert(sent, list[kind])  # type: ignore[valid-type]  # a type made at run time
    except msgspec.ValidationError as error:
        raise LinkError(f"the remote host sent no list of {kind.__name__}: {error}", final=True) from error
