"""Codec of task results: JSON in the state file, from which children get exactly the value that the parent returned.

Texts, finite numbers, true, false, null, lists and mappings with text keys are plain JSON. A value of another type in
``CODECS`` is an object with one key, its tag: ``{"redrive:decimal": "1.50"}``. A scalar of numpy is stored as the value
of its ``item()``. Every other value is refused, with its type and its place in the result: a subclass of a plain type
too, because JSON would silently turn it into that type.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

TAG = "redrive:"
DEPTH_MAX = 200  # nested lists and mappings
LATER = "#later"  # ends the text of a time that a change of the clocks makes twice, if it is the later one

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode_plain = json.JSONDecoder().decode
_SHORT = 10**18  # such a number needs no encoder, which costs a forked attempt 40 copied pages
_UNCHANGED = (str, bool, int, type(None))
_PLAIN_BASES = (dict, list, tuple, set, str, int, float, bytes, datetime, date)


class UnstorableError(ValueError):
    """A value that has no place in a result. The text names its type and place: ``result[3] is a Frame``."""


class UnknownClassError(LookupError):
    """A stored value belongs to a class that the flow no longer has."""


# --- Values without parts -------------------------------------------------------------------------------------------


def _dump_datetime(value: datetime) -> str:
    zone, later = value.tzinfo, LATER if value.fold else ""
    if zone is None or isinstance(zone, timezone):
        return value.isoformat() + later
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and isinstance(zone, zoneinfo.ZoneInfo) and zone.key is not None:
        return f"{value.replace(tzinfo=None).isoformat()}[{zone.key}]{later}"
    raise UnstorableError(f"has the time zone {type(zone).__qualname__}; use zoneinfo or datetime.timezone")


def _load_datetime(text: str) -> datetime:
    text, later = text.removesuffix(LATER), text.endswith(LATER)
    text, _, zone = text.removesuffix("]").partition("[")
    value = datetime.fromisoformat(text).replace(fold=int(later))
    return value.replace(tzinfo=_zone(zone)) if zone else value


def _dump_time(value: time) -> str:
    if value.tzinfo is not None and not isinstance(value.tzinfo, timezone):
        raise UnstorableError(f"has the time zone {type(value.tzinfo).__qualname__}; use datetime.timezone")
    return value.isoformat() + (LATER if value.fold else "")


def _load_time(text: str) -> time:
    return time.fromisoformat(text.removesuffix(LATER)).replace(fold=int(text.endswith(LATER)))


# The next three import where they need it: a forked attempt copies what the imported libraries map.


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _dump_bytes(value: bytes) -> str:
    from base64 import b64encode

    return b64encode(value).decode("ascii")


def _load_bytes(text: str) -> bytes:
    from base64 import b64decode

    return b64decode(text)


class ScalarCodec(NamedTuple):
    """A type without parts. ``plain``: what shell tasks get, made of the stored form."""

    tag: str
    kind: type
    dump: Callable[[Any], object]
    load: Callable[[Any], object]
    plain: Callable[[Any], object] = lambda stored: stored


#: By exact type; a float only where JSON has no form for it.
SCALARS = (
    ScalarCodec("float", float, str, _FLOATS.__getitem__),
    ScalarCodec("decimal", Decimal, str, Decimal),
    ScalarCodec("datetime", datetime, _dump_datetime, _load_datetime),
    ScalarCodec("date", date, date.isoformat, date.fromisoformat),
    ScalarCodec("time", time, _dump_time, _load_time),
    ScalarCodec(
        "timedelta",
        timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
        lambda parts: timedelta(*parts).total_seconds(),
    ),
    ScalarCodec("bytes", bytes, _dump_bytes, _load_bytes),
    ScalarCodec("bytearray", bytearray, _dump_bytes, lambda text: bytearray(_load_bytes(text))),
    ScalarCodec("uuid", UUID, str, UUID),
    ScalarCodec("path", type(Path()), str, Path),
)


# --- Values with parts ----------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """The parts of a value, each with its place, and how the stored parts become the value of a tag."""

    tag: str
    values: Sequence[tuple[str, object]]  # (place, part)
    store: Callable[[list[object]], object] = lambda parts: parts


def _class_reference(kind: type) -> str:
    """Return ``module:Class``. Raises UnstorableError for a class that cannot be found by this name."""
    reference = f"{kind.__module__}:{kind.__qualname__}"
    try:
        is_found = _find_class(reference) is kind
    except UnknownClassError:
        is_found = False
    if not is_found:
        raise UnstorableError(f"is {name_of(kind)}, which has no place at the top level of a module")
    return reference


def _find_class(reference: str) -> type:
    """Find a class in the modules that are imported; a state file must not cause imports."""
    module, _, path = reference.partition(":")
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type):
        raise UnknownClassError(f"there is no class {reference.replace(':', '.')} any more")
    return found


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and kind is not tuple and hasattr(kind, "_make") and hasattr(kind, "_fields")


def _parts_of(value: object) -> _Parts | None:
    """Return the parts of a container, a dataclass or a member of an enum; None for another value."""
    kind = type(value)
    if isinstance(value, tuple) and kind is tuple:
        return _Parts("tuple", [(f"[{position}]", part) for position, part in enumerate(value)])
    if isinstance(value, set | frozenset) and kind in (set, frozenset):
        items = [(f" (the item {item!r})"[:80], item) for item in value]
        return _Parts(kind.__name__, items, lambda parts: sorted(parts, key=_text))  # one order, whatever the hash seed
    if isinstance(value, dict) and kind is dict:
        pairs = [(f"[{key!r}]", part) for key, inner in value.items() for part in (key, inner)]
        return _Parts("mapping", pairs, _in_pairs)
    if isinstance(value, Enum):
        if value.name not in type(value).__members__:  # a sum of flags
            raise UnstorableError(f"is {value!r}, which is not a single member of its enum")
        reference = _class_reference(kind)
        return _Parts("enum", [(".name", value.name)], lambda parts: [reference, parts[0]])
    if isinstance(value, tuple) and _is_named_tuple(kind):
        names: tuple[str, ...] = getattr(kind, "_fields")  # noqa: B009
        return _of_class("namedtuple", kind, [(f".{name}", part) for name, part in zip(names, value, strict=True)])
    if is_dataclass(value) and not isinstance(value, type):
        return _of_class("dataclass", kind, _fields_of(value))
    return None


def _in_pairs(parts: list[object]) -> object:
    return [list(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def _of_class(tag: str, kind: type, values: Sequence[tuple[str, object]]) -> _Parts:
    reference = _class_reference(kind)
    names = [place.removeprefix(".") for place, _ in values]
    return _Parts(tag, values, lambda parts: [reference, dict(zip(names, parts, strict=True))])


def _fields_of(value: Any) -> list[tuple[str, object]]:
    names = [field.name for field in fields(value)]
    extra = [name for name in getattr(value, "__dict__", ()) if name not in names]
    if extra:
        raise UnstorableError(f"is {name_of(type(value))} with the attribute {extra[0]!r} beside its fields")
    return [(f".{name}", getattr(value, name)) for name in names]


def _load_enum(stored: Sequence[str]) -> object:
    members = getattr(_find_class(stored[0]), "__members__", {})
    if stored[1] not in members:
        raise UnknownClassError(f"{stored[0].replace(':', '.')} has no member {stored[1]!r} any more")
    return members[stored[1]]


def _load_named_tuple(stored: Any) -> object:
    kind = _find_class(stored[0])
    if not _is_named_tuple(kind) or list(getattr(kind, "_fields", ())) != list(stored[1]):
        raise UnknownClassError(f"{stored[0].replace(':', '.')} has other fields now")
    return kind(*stored[1].values())


def _load_dataclass(stored: Any) -> object:
    """Restore the fields without calling ``__init__``, as a copy does."""
    kind = _find_class(stored[0])
    if not is_dataclass(kind) or {field.name for field in fields(kind)} != set(stored[1]):
        raise UnknownClassError(f"{stored[0].replace(':', '.')} has other fields now")
    value = object.__new__(kind)
    for name, part in stored[1].items():
        object.__setattr__(value, name, part)
    return value


class PartsCodec(NamedTuple):
    """A type with parts, whose stored parts are decoded before ``load`` or ``plain`` is called."""

    tag: str
    load: Callable[[Any], object]
    plain: Callable[[Any], object]


CONTAINERS = (
    PartsCodec("tuple", tuple, list),
    PartsCodec("set", set, list),
    PartsCodec("frozenset", frozenset, list),
    PartsCodec("mapping", dict, lambda pairs: {_key_text(key): value for key, value in pairs}),
    PartsCodec("enum", _load_enum, lambda stored: stored[1]),
    PartsCodec("namedtuple", _load_named_tuple, lambda stored: stored[1]),
    PartsCodec("dataclass", _load_dataclass, lambda stored: stored[1]),
)

_SCALAR_BY_TYPE = {codec.kind: codec for codec in SCALARS}
_BY_TAG = {TAG + codec.tag: codec for codec in (*SCALARS, *CONTAINERS)}


def _key_text(key: object) -> str:
    return key if isinstance(key, str) else _text(key)


# --- Encoding -------------------------------------------------------------------------------------------------------


def dump_result(value: object) -> str:
    """Return the JSON of a result. Raises UnstorableError."""
    if type(value) is int and -_SHORT < value < _SHORT:
        return str(value)
    stored = _stored(value, "result", 0)
    try:
        text = _text(stored)
    except ValueError:
        raise UnstorableError("the result holds a whole number of more than 4300 digits") from None
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character
        return json.dumps(stored, allow_nan=False, separators=(",", ":"))
    return text


def _stored(value: object, place: str, depth: int) -> object:
    """Return the JSON form of one value, which is at ``place`` in the result."""
    kind = type(value)
    if kind in _UNCHANGED or (isinstance(value, float) and kind is float and math.isfinite(value)):
        return value
    if depth > DEPTH_MAX:
        raise UnstorableError(f"the result is nested more than {DEPTH_MAX} levels deep, or holds itself")
    if isinstance(value, list) and kind is list:
        return [_stored(part, f"{place}[{position}]", depth + 1) for position, part in enumerate(value)]
    if isinstance(value, dict) and kind is dict and all(type(key) is str and not key.startswith(TAG) for key in value):
        return {key: _stored(part, f"{place}[{key!r}]", depth + 1) for key, part in value.items()}
    return _tagged(value, kind, place, depth)


def _tagged(value: object, kind: type, place: str, depth: int) -> object:
    scalar = _SCALAR_BY_TYPE.get(kind)
    try:
        if scalar is not None:
            return {TAG + scalar.tag: scalar.dump(value)}
        parts = _parts_of(value)
    except UnstorableError as error:
        raise UnstorableError(f"{place} {error}") from None
    if parts is not None:
        stored = [_stored(part, place + where, depth + 1) for where, part in parts.values]
        return {TAG + parts.tag: parts.store(stored)}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _stored(_item_of(value, place), place, depth)
    raise UnstorableError(f"{place} is {name_of(kind)}{_advice(value)}")


def _item_of(scalar: Any, place: str) -> object:
    """Return the Python value of a scalar of numpy. ``item()`` of a time in nanoseconds is only a number."""
    item: object = scalar.item()
    if type(item) is type(scalar) or (type(item) is int and scalar.dtype.kind in "mM"):
        raise UnstorableError(f"{place} is {name_of(type(scalar))}, which Python's types cannot hold exactly")
    return item


def name_of(kind: type) -> str:
    """Return a type with its article and its package: ``a Frame``, ``a numpy.ndarray``."""
    package = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if package in ("builtins", "__main__") else f"{package}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _advice(value: object) -> str:
    base = next((base for base in _PLAIN_BASES if isinstance(value, base)), None)
    return "" if base is None else f": make it a {base.__name__}"


def is_storable(kind: type) -> bool:
    """Return whether results of this type are stored, as far as this depends on the type alone."""
    if kind in (*_UNCHANGED, list, dict, tuple, set, frozenset) or any(issubclass(one.kind, kind) for one in SCALARS):
        return True
    return is_dataclass(kind) or _is_named_tuple(kind) or issubclass(kind, Enum) or kind.__module__ == "numpy"


# --- Decoding -------------------------------------------------------------------------------------------------------


def load_result(text: str) -> Any:
    """Return the value of ``dump_result``. Raises UnknownClassError."""
    if TAG not in text and "\\u" not in text:  # a decoder with a hook costs a forked attempt 50 copied pages
        return _decode_plain(text)
    return json.loads(text, object_hook=_load_object)


def _load_object(stored: dict[str, Any]) -> object:
    codec = _codec_of(stored)
    return stored if codec is None else codec.load(next(iter(stored.values())))


def plain_result(text: str) -> Any:
    """Return the value as plain JSON, for programs in other languages.

    Decimal, dates, UUID, paths, NaN: texts; a timedelta: seconds; bytes: base64; tuples and sets: lists; a dataclass: a
    mapping; a member of an enum: its name; keys: texts.
    """
    return json.loads(text, object_hook=_plain_object)


def _plain_object(stored: dict[str, object]) -> object:
    codec = _codec_of(stored)
    return stored if codec is None else codec.plain(next(iter(stored.values())))


def _codec_of(stored: dict[str, object]) -> ScalarCodec | PartsCodec | None:
    return _BY_TAG.get(next(iter(stored))) if len(stored) == 1 else None
