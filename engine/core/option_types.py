"""Types of option values: each parses a value and describes what it accepts, so that all refusals read alike.

``OptionType.parse`` returns the value as the engine stores it (a duration as seconds), or raises. A class of options
annotates each with its type (``table_of``): ``policy.py`` for retries, ``flow/options.py`` for flows and their tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Generic, TypeGuard, TypeVar, cast, get_origin, get_type_hints

import msgspec

from ..errors import OptionError

#: The largest number that every part of the engine can store.
LARGEST = 10**12

NAME_CHARACTERS_MAX = 200  # a name stands in rows, pages and command lines
REPR_CHARACTERS = 80

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Word = TypeVar("Word", bound=str)


class OptionType(msgspec.Struct, Generic[T_co], frozen=True):
    """``description`` completes "this option is ..."; ``parse`` returns the value or raises ValueError or TypeError."""

    description: str
    parse: Callable[[object], T_co]


OptionTable = Mapping[str, OptionType[object]]


def table_of(declared: type) -> OptionTable:
    """Return the options that a class declares by its annotations: ``pool: Annotated[str | None, optional(NAME)]``."""
    hints = get_type_hints(declared, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def parse_option(name: str, option_type: OptionType[T], value: object) -> T:
    """Parse the value of an option. Raises OptionError with one sentence."""
    try:
        return option_type.parse(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{name} is {option_type.description}, not {short_repr(value)}") from None


def read_number(text: str) -> int | float | str:
    """Return the number that a text is; the text itself, which no number option takes, if it is none."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def short_repr(value: object) -> str:
    """Return ``repr(value)``, cut to ``REPR_CHARACTERS``. Never raises."""
    try:
        text = repr(value)
    except Exception:  # raised by the value's own __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= REPR_CHARACTERS else f"{text[: REPR_CHARACTERS - 3]}..."


def is_text(value: object) -> TypeGuard[str]:
    """False for an empty text, and for one with lone surrogates: bytes of a command line that are not UTF-8."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


# --- Descriptions ---------------------------------------------------------------------------------------------------


def whole_number(least: int, why: str = "") -> OptionType[int]:
    """An int of at least ``least``. Booleans are refused."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
            raise ValueError
        return value

    reason = f" ({why})" if why else ""
    return OptionType(f"a whole number of at least {least}{reason}", parse)


def number(least: float, most: float = LARGEST, *, above: bool = False) -> OptionType[float]:
    """A finite number; ``above``: greater than ``least``."""

    def parse(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError
        if not least <= value <= most or (above and value == least):
            raise ValueError
        return value

    low = f"above {least:g}" if above else f"of at least {least:g}"
    high = "" if most == LARGEST else f" and at most {most:g}"
    return OptionType(f"a finite number {low}{high}", parse)


def duration(*, above_zero: bool = False) -> OptionType[float]:
    """Seconds, or a text such as "90s"; parsed to seconds."""

    def parse(value: object) -> float:
        seconds = parse_duration(value)
        if above_zero and not seconds:
            raise ValueError
        return seconds

    least = "above 0" if above_zero else "of 0 or more"
    return OptionType(f"a duration {least} (30, '90s', '10m', '1h30m')", parse)


def choice(*words: Word) -> OptionType[Word]:
    """Accept these texts alone."""

    def parse(value: object) -> Word:
        return words[words.index(cast("Word", value))]

    return OptionType(f"one of {', '.join(words)}", parse)


def name_tuple(what: str, example: str) -> OptionType[tuple[str, ...]]:
    """A tuple of texts; a list is accepted as well."""

    def parse(value: object) -> tuple[str, ...]:
        if not isinstance(value, tuple | list) or not all(isinstance(name, str) and name for name in value):
            raise ValueError
        return tuple(value)

    return OptionType(f"a tuple of {what} such as {example}", parse)


def either(word: Word, option_type: OptionType[T]) -> OptionType[Word | T]:
    return OptionType(
        f"{word!r} or {option_type.description}", lambda value: word if value == word else option_type.parse(value)
    )


def optional(option_type: OptionType[T], meaning: str = "") -> OptionType[T | None]:
    """``option_type`` or None."""
    description = f"{option_type.description}, or None{f' ({meaning})' if meaning else ''}"
    return OptionType(description, lambda value: None if value is None else option_type.parse(value))


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _parse_text(value: object) -> str:
    if not is_text(value):
        raise ValueError
    return value


def _parse_name(value: object) -> str:
    if not is_text(value) or "\0" in value or value.isspace() or len(value) > NAME_CHARACTERS_MAX:
        raise ValueError
    return value


FLAG = OptionType("True or False", _parse_flag)
TEXT = OptionType("a text that is not empty", _parse_text)
NAME = OptionType(
    f"a text that is not blank and holds no NUL character, of at most {NAME_CHARACTERS_MAX} characters", _parse_name
)


# --- Parse durations: ``90``, ``"45s"``, ``"10m"``, ``"1h30m"``, ``"2d"`` --------------------------------------------


#: Seconds, or a text with units.
Duration = float | str

_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")


#: 100 years. Longer durations are mistakes, and their instants in microseconds exceed the integers of the state file.
LONGEST_SECONDS = 100 * 365 * 86400.0


def parse_duration(value: object) -> float:
    """Return seconds. Raises ValueError for a text that is not a duration, a negative one, or more than 100 years."""
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f"{short_repr(value)} is not a duration; give seconds, or text like '90s', '10m', '1h30m'")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{short_repr(value)} is longer than 100 years")
    return float(seconds)


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?")
LARGEST_BYTES = 2**53


def _parse_size(value: object) -> int:
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    amount = (
        value if found is None else float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " ")
    )
    if not isinstance(amount, int | float) or isinstance(amount, bool) or not 1 <= amount <= LARGEST_BYTES:
        raise ValueError
    return int(amount)


#: Bytes, above 0.
SIZE = OptionType("bytes above 0, or a text as '512MB', '2GB' or '2GiB'", _parse_size)


def parse_retention(value: object) -> dict[str, int | float]:
    """Return ``{"runs": 20}`` for a whole number, ``{"seconds": 2592000.0}`` for a text as "30d". Raises ValueError."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return {"runs": text}
    if isinstance(text, str) and text.isdecimal():
        return {"runs": int(text)}
    if not isinstance(text, str):
        raise ValueError(
            f"{short_repr(value)} is not a retention; give a number of runs, as 20, or a duration, as '30d'"
        )
    return {"seconds": parse_duration(text)}


def _seconds(value: object) -> float | None:
    """Return seconds; None if the value is not a duration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if 0 <= value < float("inf") else None
    if not isinstance(value, str):
        return None
    text = value.strip().lower().replace(" ", "")
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
