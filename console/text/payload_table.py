"""Tables of functions by the type of an event's payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...engine.domain.event_payloads import Payload
from ...engine.domain.events import Event

_P = TypeVar("_P", bound=Payload)
_Result = TypeVar("_Result")

#: Payload type -> function of the event and its payload.
PayloadTable = Mapping[type, Callable[[Event, Any], _Result]]


def payload_row(
    payload_type: type[_P], describe: Callable[[Event, _P], _Result]
) -> tuple[type, Callable[[Event, Any], _Result]]:
    """A row of a table by payload type; the type checker compares the function with the payload type."""
    return payload_type, describe
