"""Converts messages of the agent to typed rows, and checks each value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import GenericAlias
from typing import TypeVar

import msgspec

from ...engine.errors import LinkError, RedriveError

Row = TypeVar("Row")

#: What decoding raises for values of a wrong type, range or length.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Decode an answer in the block. Raises LinkError if the answer is malformed."""
    try:
        yield
    except RedriveError:
        raise
    except (*MALFORMED, msgspec.MsgspecError) as error:
        detail = f"{type(error).__name__}: {error}"[:200]
        raise LinkError(f"the remote host sent {what} that cannot be read: {detail}", final=True) from error


def row_of(kind: type[Row], sent: object) -> Row:
    """Convert ``sent`` to a ``kind``: a NamedTuple is sent as a list, a dataclass as an object.

    Raises LinkError if a value has another type.
    """
    with _converting(kind.__name__):
        return msgspec.convert(sent, kind)


def rows_of(kind: type[Row], sent: object) -> list[Row]:
    """Convert ``sent`` to a list of ``kind``. Raises LinkError as ``row_of`` does."""
    with _converting(f"list of {kind.__name__}"):
        rows: list[Row] = msgspec.convert(sent, GenericAlias(list, kind))
    return rows


@contextmanager
def _converting(name: str) -> Iterator[None]:
    try:
        yield
    except (*MALFORMED, msgspec.MsgspecError) as error:  # also texts that are not Unicode, and too deep values
        raise LinkError(f"the remote host sent no {name}: {error}", final=True) from error
