"""Payloads of events as JSON objects, and back.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A file may come from another version: an unknown kind becomes an UnknownPayload, an unknown key is ignored, and a
missing key leaves its field blank. A value whose JSON type differs from that of its field is an error.
"""

import json
from itertools import compress
from operator import is_not
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Type

from ..errors import CorruptFileError
from . import event_payloads as payloads
from .event_payloads import Payload, TaskColumns, UnknownPayload
from .events import Event, EventKind

#: Event kind -> type of its payload.
PAYLOAD_TYPES: Dict[str, Type[Payload]] = {
    EventKind.TASK: payloads.TaskMoved,
    EventKind.TASK_CHANGED: payloads.TaskChanged,
    EventKind.MAPPED: payloads.TaskMapped,
    EventKind.RUN: payloads.RunChanged,
    EventKind.ATTEMPT_STARTED: payloads.AttemptStarted,
    EventKind.ATTEMPT_EFFECT: payloads.AttemptEffect,
    EventKind.ATTEMPT_EXTENDED: payloads.AttemptExtended,
    EventKind.ATTEMPT_DEADLINE: payloads.AttemptDeadline,
    EventKind.ATTEMPT_STACK: payloads.AttemptStack,
    EventKind.ATTEMPT_SIGTERM: payloads.AttemptSigterm,
    EventKind.ATTEMPT_SIGKILL: payloads.AttemptSigkill,
    EventKind.ATTEMPT_SWEPT: payloads.AttemptSwept,
    EventKind.ATTEMPT_LATE: payloads.AttemptLate,
    EventKind.ATTEMPT_LEAKED: payloads.AttemptLeaked,
    EventKind.ATTEMPT_SILENT: payloads.AttemptSilent,
    EventKind.ATTEMPT_RECLAIMED: payloads.AttemptReclaimed,
    EventKind.ATTEMPT_RETRY: payloads.AttemptRetry,
    EventKind.EXECUTOR: payloads.ExecutorChanged,
    EventKind.BREAKER: payloads.BreakerChanged,
    EventKind.PAGE: payloads.PageChanged,
    EventKind.QUARANTINE: payloads.RowsChanged,
    EventKind.NOTE: payloads.NoteWritten,
    EventKind.SCHEDULE: payloads.ScheduleChanged,
    EventKind.CANARY: payloads.CanaryEnded,
    EventKind.STORAGE: payloads.StorageChanged,
    EventKind.CLOCK: payloads.ClockMoved,
    EventKind.OPERATOR: payloads.OperatorActed,
}

_KINDS = {payload_type: kind for kind, payload_type in PAYLOAD_TYPES.items()}

#: Field -> its JSON key, where the names differ. If two fields share a key, the JSON type of the value decides.
_KEYS = {
    "attempt_set": "attempt",
    "occurrences": "count",
    "rows": "count",
    "runs": "count",
    "try_number": "try",
    "params_added": "added",
    "params_changed": "changed",
    "params_removed": "removed",
}

#: Annotation of a field, the classes of its JSON values, and its value if the key is missing.
_JSON_TYPES: Tuple[Tuple[object, Tuple[type, ...], object], ...] = (
    (str, (str,), ""),
    (payloads.Text, (str,), None),
    (int, (int,), 0),
    (payloads.OptionalInt, (int,), None),
    (float, (int, float), 0.0),
    (payloads.Real, (int, float), None),
    (payloads.Flag, (bool,), None),
    (payloads.NameList, (list,), ()),
    (payloads.Numbers, (list,), ()),
    (payloads.RowLists, (list,), ()),
    (TaskColumns, (dict,), payloads.EMPTY),
    (payloads.Values, (dict,), payloads.EMPTY),
    (payloads.Pairs, (dict,), payloads.EMPTY),
    (payloads.Before, (dict,), payloads.EMPTY),
)

_SHOWN_CHARACTERS = 60  # of a malformed value, in the error


class _Shape(NamedTuple):
    """The rules by which a payload type is encoded and decoded; computed once per type."""

    blank: Payload
    make: Callable[[Iterable[object]], Payload]
    keys: Tuple[str, ...]  # by place
    defaults: Tuple[object, ...]  # by place; compared by identity, because an empty value that was given is written
    places: Dict[Tuple[str, type], int]  # by key and class of the JSON value


def _shape_of(payload_type: Any) -> _Shape:
    keys: List[str] = []
    defaults: List[object] = []
    places: Dict[Tuple[str, type], int] = {}
    for place, field in enumerate(payload_type._fields):
        annotation = payload_type.__annotations__[field]
        classes, blank = next(row[1:] for row in _JSON_TYPES if row[0] == annotation)
        keys.append(_KEYS.get(field, field))
        defaults.append(payload_type._field_defaults.get(field, blank))
        places.update({(keys[-1], value_class): place for value_class in classes})
    return _Shape(payload_type._make(defaults), payload_type._make, tuple(keys), tuple(defaults), places)


_SHAPES: Dict[Type[Payload], _Shape] = {payload_type: _shape_of(payload_type) for payload_type in _KINDS}
_SHAPES_BY_KIND = {kind: _SHAPES[payload_type] for kind, payload_type in PAYLOAD_TYPES.items()}


def kind_of(payload: Payload) -> str:
    """Return the kind of the events that carry this type of payload. Raises KeyError for an UnknownPayload."""
    return _KINDS[type(payload)]


def encode(payload: Payload) -> Dict[str, object]:
    """Return the JSON object of a payload, without the fields that were not given a value."""
    shape = _SHAPES.get(type(payload))
    if shape is None:
        assert isinstance(payload, UnknownPayload)
        return payload.data
    return dict(compress(zip(shape.keys, payload), map(is_not, payload, shape.defaults)))


def decode(kind: str, data: Any) -> Payload:
    """Return the payload of an event of this kind. ``data``: its JSON object.

    Raises CorruptFileError if a value has the wrong JSON type.
    """
    shape = _SHAPES_BY_KIND.get(kind)
    if type(data) is not dict:
        raise CorruptFileError(f"an event of kind {kind!r} in the state file has no JSON object as its data")
    if shape is None:
        return _unknown(data)
    if not data:
        return shape.blank
    values: List[object] = list(shape.blank)
    places = shape.places
    for key, value in data.items():
        place = places.get((key, value.__class__))
        if place is not None:
            values[place] = value
        elif value is not None and key in shape.keys:
            sentence = "an event of kind {!r} in the state file has {} as its {!r}"
            raise CorruptFileError(sentence.format(kind, repr(value)[:_SHOWN_CHARACTERS], key))
    moved = shape.make(values)
    if isinstance(moved, payloads.TaskMoved) and moved.set.get("claim_token"):  # of an earlier version: it is private
        return moved._replace(set={column: value for column, value in moved.set.items() if column != "claim_token"})
    return moved


def event_of(row: Sequence[Any], parse: Callable[[str], Any] = json.loads) -> Event:
    """Return the event of a row of its table (``EventRow``). ``parse``: a faster parser of JSON.

    Raises CorruptFileError if its payload is malformed.
    """
    text = row[-1]
    try:
        data = {} if text == _NO_DATA else parse(text)
    except ValueError:  # what another version may have written: NaN, half of a surrogate pair
        data = json.loads(text)
    return Event._make((*row[:-1], decode(row[2], data)))


def listed_event(row: Sequence[Any]) -> Event:
    """Return the event of a row for a list, where a malformed payload must not hide the others: it is kept as it is."""
    try:
        return event_of(row)
    except (CorruptFileError, TypeError, ValueError):
        return Event._make((*row[:-1], unreadable(row[-1])))


def row_of(event: Event) -> Dict[str, object]:
    """Return an event as a row of its table; ``data`` as a JSON object."""
    row = event._asdict()
    row["data"] = encode(row.pop("payload"))
    return dict(row)


def unreadable(text: object) -> UnknownPayload:
    """Return a payload for malformed ``text``, which keeps it as it is in the file if it is a JSON object."""
    try:
        data = json.loads(text) if isinstance(text, (str, bytes)) else None
    except ValueError:
        data = None
    return _unknown(data if isinstance(data, dict) else {})


_NO_DATA = "{}"


def _unknown(data: Dict[str, object]) -> UnknownPayload:
    what: Any = data.get("what")
    columns: Any = data.get("set")
    attempt_columns: Any = data.get("attempt")
    return UnknownPayload(
        what if isinstance(what, str) else None,
        columns if isinstance(columns, dict) else {},
        attempt_columns if isinstance(attempt_columns, dict) else {},
        data,
    )
