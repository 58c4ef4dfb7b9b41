"""Values of parameters: what a person gives as text becomes the type that the flow declares, or that the default has.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Values are JSON, as in the state file and in the environment of commands: a date is the text "2026-04-25"; a time, a
Decimal and a Path are texts as well. A declared type is a mapping: ``type`` (a key of ``_TYPES``), and ``choices``
where only some values are allowed.
"""

import json
import math
import re
from datetime import date, datetime, timezone
from typing import Any, Callable, Mapping, Optional, Tuple

NUMBER_MAX = 2**63 - 1  # the largest integer that a frame to a task process can hold

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def convert_param(value: Any, default: Any, declared: Optional[Mapping[str, Any]] = None) -> Any:
    """Convert the value of a parameter to its declared type, or to the type of its default.

    A text of a list or a mapping is JSON; a parameter whose default is None or a text is taken as it is. Raises
    ValueError with the end of a sentence.
    """
    if declared is not None:
        return _declared_value(value, default, declared)
    kind = _type_of(default)
    if not isinstance(value, str) or kind is None:
        return value
    return _parsed(value, kind, default)


def _declared_value(value: Any, default: Any, declared: Mapping[str, Any]) -> Any:
    choices = declared.get("choices") or ()
    if value is None and default is None:
        return None  # as the flow says: no value
    kind = declared["type"]
    if isinstance(value, str):
        value = _parsed(value, kind, choices[0] if default is None and choices else default)
    elif type(value).__name__ != kind and not (kind == "float" and type(value) is int):
        raise ValueError("wants {}, not {!r}".format(describe_type(kind), value))
    if choices and value not in choices:
        raise ValueError("is one of {}, not {!r}".format(", ".join(map(str, choices)), value))
    return value


def describe_type(kind: str) -> str:
    """Describe a declared type: ``a date like '2026-04-25'``."""
    _, words, example = _TYPES[kind]
    return "{} like {!r}".format(words, example)


def _parsed(text: str, kind: str, default: Any) -> Any:
    parse, words, example = _TYPES[kind]
    try:
        return parse(text)
    except (KeyError, ValueError, ArithmeticError, RecursionError):
        shown = text if len(text) <= 60 else text[:57] + "..."
        like = example if default is None else default
        raise ValueError("wants {} like {!r}, not {!r}".format(words, like, shown)) from None


def _type_of(default: object) -> Optional[str]:
    """Return the type by which a text is read, from the default of the parameter; None: it stays as it is."""
    if default is None or isinstance(default, str):
        return None
    kinds = ((bool, "bool"), (int, "int"), (float, "float"), (list, "list"), (dict, "dict"))  # True is an int as well
    return next((name for kind, name in kinds if isinstance(default, kind)), None)


_DATE = re.compile("([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")


def _date(text: str) -> str:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError
    year, month, day = map(int, found.groups())
    return date(year, month, day).isoformat()


_TIME = re.compile(
    "([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.]([0-9]{6}))?)?"
    "(Z|[+-]([0-9]{2}):[0-9]{2})?"
)


def _time(text: str) -> str:
    """Return a time as ``datetime.isoformat`` writes it, which Python 3.6 does not read back."""
    found = _TIME.fullmatch(text)
    if found is None or int(found.group(9) or 0) > 23:
        raise ValueError
    year, month, day, hour, minute, second, micro = (int(part or 0) for part in found.groups()[:7])
    zone = "+00:00" if found.group(8) == "Z" else found.group(8) or ""
    instant = datetime(year, month, day, hour, minute, second, micro, tzinfo=timezone.utc)
    return instant.replace(tzinfo=None).isoformat() + zone


def _decimal(text: str) -> str:
    from decimal import Decimal  # here: few flows have one, and every agent on a far host imports this module

    value = Decimal(text)
    if not value.is_finite():
        raise ValueError
    return str(value)


def _path(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _number(value: Any) -> Any:
    """Check that a number is finite, and within what the state file and the frames to attempts can hold."""
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) <= NUMBER_MAX):
        raise ValueError
    return value


def _json(text: str, wanted: type) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)  # NaN and Infinity are not JSON

    value = json.loads(text, parse_constant=refuse)
    if not isinstance(value, wanted):
        raise ValueError
    json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
    return value


#: How a text of each type is read, what the type is called, and an example.
_TYPES: Mapping[str, Tuple[Callable[[str], Any], str, Any]] = {
    "str": (str, "a text", "x"),
    "bool": (lambda text: _WORDS[text.lower()], "true or false", True),
    "int": (lambda text: _number(int(text)), "a whole number", 3),
    "float": (lambda text: _number(float(text)), "a finite number", 0.5),
    "date": (_date, "a date", "2026-04-25"),
    "datetime": (_time, "a time", "2026-04-25T02:00:00+02:00"),
    "Decimal": (_decimal, "a decimal number", "0.10"),
    "Path": (_path, "a path", "/data/orders.csv"),
    "list": (lambda text: _json(text, list), "a list in JSON", ["a"]),
    "dict": (lambda text: _json(text, dict), "a mapping in JSON", {"a": 1}),
}
