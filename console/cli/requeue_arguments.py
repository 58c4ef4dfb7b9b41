"""What ``redrive requeue`` asks for beside the tasks: when they run again, how many at a time, and what is changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from typing import Any

import click

from ...engine.core.durations import parse_duration
from .options import params_of

#: Parameters of the command that are read here.
NAMES = (
    *("canary", "rate", "not_before", "at", "timeout"),
    *("param", "single_shot", "keep_count", "new_key", "cascade"),
)


def changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the act. Raises UsageError for what makes no sense."""
    if given["not_before"] and given["at"]:
        raise click.UsageError("either --not-before or --at")
    found: dict[str, object] = {name: True for name in ("canary", "cascade", "single_shot", "new_key") if given[name]}
    if given["rate"]:
        found["rate_per_second"] = _rate(given["rate"])
    if given["not_before"]:
        found["not_before"] = _seconds("--not-before", given["not_before"])
    if given["at"]:
        found["not_before"] = seconds_until(given["at"], datetime.now().astimezone())
    if given["timeout"]:
        found["timeout"] = _seconds("--timeout", given["timeout"])
    if given["param"]:
        found["params"] = params_of(given["param"])
    if given["keep_count"]:
        found["reset_count"] = False
    return found


def seconds_until(text: str, now: datetime) -> float:
    """How long until a time of day comes next, by this machine's zone, or until an instant. Raises UsageError."""
    instant = _next(text, now) or _instant(text)
    if instant is None:
        raise click.UsageError(f"--at {text!r}: write a time of day, as 06:00, or an instant, as 2026-04-25T06:00")
    seconds = (instant - now).total_seconds()
    if seconds < 0:
        raise click.UsageError(f"--at {text!r} has passed")
    return seconds


def _next(text: str, now: datetime) -> datetime | None:
    try:
        clock = time.fromisoformat(text.strip().zfill(5))  # 6:00 is 06:00
    except ValueError:
        return None
    # Wall clocks, not hours: between today's 06:00 and tomorrow's there may be 23 or 25.
    today, tomorrow = (datetime.combine(now.date() + timedelta(days=days), clock).astimezone() for days in (0, 1))
    return today if today > now else tomorrow


def _instant(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except ValueError:
        return None


def _rate(text: str) -> float:
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise click.UsageError(f"--rate {text!r}: write a number above 0 a second, as 5/s")
    return rate


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
