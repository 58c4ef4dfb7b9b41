"""Values of a task beside its code: parameters, overrides, defaults, and the children of map tasks.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import math
import re
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from .text import format_seconds, unknown_parameter

# --- Options of a task that its stored spec leaves out if they are the default ---------------------------------------


MAX_ATTEMPTS = 3
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL


# --- Values of parameters --------------------------------------------------------------------------------------------
#
# What a person gives as text becomes the type that the flow declares, or that the default has.
#
# Values are JSON, as in the state file and in the environment of commands: a date is the text "2026-04-25"; a time, a
# Decimal and a Path are texts as well. A declared type is a mapping: ``type`` (a key of ``_TYPES``), and ``choices``
# where only some values are allowed.


WHOLE_MAX = 2**63 - 1  # the largest integer that a frame to a task process can hold

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
        raise ValueError(f"wants {describe_type(kind)}, not {value!r}")
    if choices and value not in choices:
        raise ValueError("is one of {}, not {!r}".format(", ".join(map(str, choices)), value))
    return value


def describe_type(kind: str) -> str:
    """Describe a declared type: ``a date like '2026-04-25'``."""
    _, words, example = _TYPES[kind]
    return f"{words} like {example!r}"


def _parsed(text: str, kind: str, default: Any) -> Any:
    parse, words, example = _TYPES[kind]
    try:
        return parse(text)
    except (KeyError, ValueError, ArithmeticError, RecursionError):
        shown = text if len(text) <= 60 else text[:57] + "..."
        like = example if default is None else default
        raise ValueError(f"wants {words} like {like!r}, not {shown!r}") from None


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
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) <= WHOLE_MAX):
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


# --- Overrides: what a requeue changes for one generation of a task --------------------------------------------------
#
# Validated on request, stored with the task as JSON.
#
# ``timeout`` (seconds) and ``max_attempts`` replace the options of the flow, ``params`` those of the run. ``verifies``
# is the fingerprint of the failure that a fix should have ended (``decide.py``); ``rollout`` is the id of the act that
# made the task a canary, or released it after its canary succeeded (``store/settle.py``).


if TYPE_CHECKING:
    from typing import TypedDict

    from .events import Json

    class Overrides(TypedDict, total=False):
        """``timeout``: seconds. The other keys: see the docstring of the module."""

        timeout: float
        max_attempts: int
        params: Dict[str, Json]
        verifies: str
        rollout: str

else:  # old interpreters have no TypedDict
    Overrides = dict

TIMEOUT_SECONDS_MAX = 30 * 24 * 3600.0


def masked_param(name: str) -> str:
    """The text that the state file holds in place of the value of a secret parameter."""
    return f"***{name}***"


def parse_overrides(
    options: Mapping[str, Any], params: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]
) -> Overrides:
    """The overrides in the options of a requeue. ``params``: the parameters of the run, with their values.

    ``declared``: the types that the flow declares for some of them. Raises ValueError with one sentence for an invalid
    option.
    """
    found: Overrides = {}
    timeout = options.get("timeout")
    if timeout is not None:
        if not _is_number(timeout) or not 0 < timeout <= TIMEOUT_SECONDS_MAX:
            raise ValueError(f"a timeout is a number of seconds above 0, not {timeout!r}")
        found["timeout"] = timeout
    starts = 1 if options.get("single_shot") else options.get("max_attempts")
    if starts is not None:
        if not isinstance(starts, int) or starts < 1:
            raise ValueError(f"max_attempts is a whole number of at least 1, not {starts!r}")
        found["max_attempts"] = starts
    given = options.get("params") or {}
    if given:
        found["params"] = {str(name): _param(str(name), value, params, declared) for name, value in given.items()}
    if options.get("verifies"):
        found["verifies"] = str(options["verifies"])
    if options.get("rollout"):
        found["rollout"] = str(options["rollout"])
    return found


def _param(name: str, value: Any, params: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> Any:
    if name not in params:
        raise ValueError(unknown_parameter("this run", name, params))
    if params[name] == masked_param(name):
        raise ValueError(
            f"parameter {name!r} is secret, and the state file holds no secrets: resume the run with "
            f"--param {name}=@FILE"
        )
    try:
        value = convert_param(value, params[name], declared.get(name))
    except ValueError as error:
        raise ValueError(f"parameter {name!r} {error}") from None
    if isinstance(value, int) and abs(value) > WHOLE_MAX:
        raise ValueError(f"parameter {name!r} is larger than a task can receive: {value}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def load_overrides(text: Optional[str]) -> Overrides:
    """The overrides of a task, from its column ``overrides``."""
    return json.loads(text) if text else {}


def describe_overrides(overrides: Overrides) -> str:
    """Describe overrides in words: ``timeout 20 min, one try, day=2``; empty without overrides."""
    words: List[str] = []
    if "timeout" in overrides:
        words.append("timeout {}".format(format_seconds(overrides["timeout"])))
    if "max_attempts" in overrides:
        starts = overrides["max_attempts"]
        words.append("one try" if starts == 1 else f"{starts} tries")
    words += [f"{name}={value}" for name, value in sorted(overrides.get("params", {}).items())]
    return ", ".join(words)


# --- The names and positions of the children that a map task gets at run time ----------------------------------------


def child_prefix(task: str) -> str:
    """The beginning of the names of the children of a map task. No other task of a flow has such a name."""
    return task + "["


def child_bounds(task: str) -> Tuple[str, str]:
    """The first possible name of a child of a map task, and the first name behind all of them."""
    prefix = child_prefix(task)
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def child_name(task: str, number: int) -> str:
    """The name of a child whose element has no key: its number, which no other element of the run ever gets."""
    return f"{child_prefix(task)}{number}]"


def child_position(position: int, index: int, max_size: int) -> int:
    """The position of a child of the map task at ``position``, for the order of the flow; those that are gone last.

    ``index``: its place in the list as it is now, -1 without one.
    """
    return position + (1 + index if index >= 0 else max_size)


def positions(max_sizes: Iterable[Optional[int]]) -> Iterator[int]:
    """The positions of tasks in the order of the flow. ``max_sizes``: of the map tasks; None for other tasks."""
    position = 0
    for size in max_sizes:
        yield position
        position += 1 + (size or 0)
