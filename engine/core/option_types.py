"""What the value of an option must be: one description each, so that every refusal reads alike and says what to write.

A ``Wanted`` reads a value: it answers with the value as the engine keeps it (a duration as seconds), or raises. Tables
of them stand where the options are: ``policy.py`` for retries, ``flow/options.py`` for flows and their tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from .durations import parse_duration

#: More than anybody can mean, and still a number that every part of the engine can hold.
LARGEST = 10**12

REPR_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class OptionType:
    """``words`` complete "this option is ..."; ``read`` answers with the value or raises ValueError, TypeError."""

    description: str
    parse: Callable[[Any], Any]


Table = Mapping[str, OptionType]


def parse_option(name: str, wanted: OptionType, value: object) -> object:
    """The value as the engine keeps it. Raises OptionError with one sentence."""
    try:
        return wanted.parse(value)
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{name} is {wanted.description}, not {short_repr(value)}") from None


def short_repr(value: object) -> str:
    """A value inside of a sentence: bounded, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # the value's own code
        text = f"a {type(value).__name__}"
    return text if len(text) <= REPR_CHARACTERS else f"{text[: REPR_CHARACTERS - 3]}..."


def is_text(value: object) -> bool:
    """False for what is empty or holds lone surrogates, as bytes from a command line that are no UTF-8."""
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


# --- Descriptions ---------------------------------------------------------------------------------------------------


def whole_number(least: int, why: str = "") -> OptionType:
    """A whole number; True is none."""
    reason = f" ({why})" if why else ""
    words = f"a whole number of at least {least}{reason}"
    return OptionType(words, lambda value: _checked(value, _is_whole(value) and least <= value <= LARGEST))


def number(least: float, most: float = LARGEST, *, above: bool = False) -> OptionType:
    """A finite number; ``above``: not ``least`` itself."""
    low = f"above {least:g}" if above else f"of at least {least:g}"
    high = "" if most == LARGEST else f" and at most {most:g}"
    words = f"a finite number {low}{high}"

    def look(value: Any) -> Any:
        return _checked(value, _is_number(value) and least <= value <= most and not (above and value == least))

    return OptionType(words, look)


def duration(*, above_zero: bool = False) -> OptionType:
    """Seconds, or a text as "90s"; answers with seconds."""
    least = "above 0" if above_zero else "of 0 or more"

    def look(value: Any) -> float:
        seconds = parse_duration(value)
        if above_zero and not seconds:
            raise ValueError
        return seconds

    return OptionType(f"a duration {least} (30, '90s', '10m', '1h30m')", look)


def choice(*words: str) -> OptionType:
    """One of these texts."""
    return OptionType(
        f"one of {', '.join(words)}", lambda value: _checked(value, isinstance(value, str) and value in words)
    )


def name_tuple(what: str, example: str) -> OptionType:
    """A tuple of texts; a list is taken for one."""

    def look(value: object) -> tuple[str, ...]:
        fits = isinstance(value, tuple | list) and all(isinstance(name, str) and name for name in value)
        return tuple(_checked(value, fits))

    return OptionType(f"a tuple of {what} such as {example}", look)


def optional(wanted: OptionType, meaning: str = "") -> OptionType:
    """The same, or None."""
    words = f"{wanted.description}, or None{f' ({meaning})' if meaning else ''}"
    return OptionType(words, lambda value: None if value is None else wanted.parse(value))


FLAG = OptionType("True or False", lambda value: _checked(value, isinstance(value, bool)))
TEXT = OptionType("a text that is not empty", lambda value: _checked(value, is_text(value)))
NAME = OptionType(
    "a text that is not empty and holds no NUL character",
    lambda value: _checked(value, is_text(value) and "\0" not in value),
)


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise ValueError
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
