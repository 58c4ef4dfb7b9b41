"""Parse durations: ``90``, ``"45s"``, ``"10m"``, ``"1h30m"``, ``"2d"``."""

from __future__ import annotations

import re

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
        raise ValueError(f"{_shown(value)} is not a duration; give seconds, or text like '90s', '10m', '1h30m'")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{_shown(value)} is longer than 100 years")
    return float(seconds)


def parse_retention(value: object) -> dict[str, int | float]:
    """Return ``{"runs": 20}`` for a whole number, ``{"seconds": 2592000.0}`` for a text as "30d". Raises ValueError."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return {"runs": text}
    if isinstance(text, str) and text.isdecimal():
        return {"runs": int(text)}
    if not isinstance(text, str):
        raise ValueError(f"{_shown(value)} is not a retention; give a number of runs, as 20, or a duration, as '30d'")
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


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
