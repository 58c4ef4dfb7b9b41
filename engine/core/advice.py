"""What a timeout should be, from what the task's own attempts took: a suggestion with its number and its reason.

A timeout that is tighter than the work kills it again and again (document 000, what goes wrong); one that is far from
what the task ever took says that more time is not what it lacks. Which of the two it is, earlier attempts and the
task's own progress tell. Nothing is ever changed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .durations import format_duration

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

ATTEMPTS_MIN = 5  # fewer say nothing about the next one
WEEKDAY_ATTEMPTS_MIN = 4
WEEKDAY_DIFFERS = 1.3  # a day is told apart when it takes so many times what the others take
TIGHT_SHARE = 0.7  # of the timeout: what ended needed so much of it at times
ROOM = 1.25  # times what was needed at most
STALL_GAPS = 3.0  # usual gaps between two reports: from then on it stands still
STALL_SECONDS = 1.0

_ALL = "attempts"

#: What people write: seconds.
_ROUND = (
    *(1, 2, 3, 5, 10, 15, 20, 30, 45),
    *(60 * minutes for minutes in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 45, 50)),
    *(3600 * hours for hours in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 36, 48, 72, 96, 168)),
)


@dataclass(frozen=True, slots=True)
class PastDuration:
    """One earlier attempt. ``ended``: it succeeded; else it was killed at its timeout, and would have taken longer."""

    weekday: int  # 0 is Monday
    seconds: float
    succeeded: bool = True


@dataclass(frozen=True, slots=True)
class DurationQuantiles:
    """How long those attempts took that ended. Seconds."""

    p50: float
    p95: float
    p99: float
    count: int
    killed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt said that it was when it was killed. Seconds. ``moved_at``: since its start."""

    done: int
    total: int | None
    elapsed: float
    moved_at: float
    reports: int

    @property
    def is_stalled(self) -> bool:
        """Whether nothing had moved for much longer than usual."""
        quiet = self.elapsed - self.moved_at
        return quiet >= max(STALL_SECONDS, STALL_GAPS * self.moved_at / max(self.reports, 1))

    @property
    def needed_seconds(self) -> float | None:
        """How long it would have taken at its pace; None where that cannot be told."""
        if self.is_stalled or not self.total or not 0 < self.done <= self.total:
            return None
        return self.elapsed * self.total / self.done

    def __str__(self) -> str:
        at = f"{self.done:,} of {self.total:,}" if self.total else f"{self.done:,}"
        if self.is_stalled:
            return f"no progress since {format_duration(round((self.elapsed - self.moved_at) * 1e6))}, at {at}"
        if self.needed_seconds is None or self.total is None:
            return f"still moving, at {at}"
        share = f"{self.done / self.total:.0%}".replace("%", " %")
        return f"{share} done by its own progress ({at}), at that pace it needed {_about(self.needed_seconds)}"


@dataclass(frozen=True, slots=True)
class TimeoutAdvice:
    """``timeout`` (seconds): the one suggested; None where more time is not what the task lacks."""

    timeout: float | None
    reason: str

    def __str__(self) -> str:
        return self.reason


def duration_stats(past: Sequence[PastDuration]) -> DurationQuantiles | None:
    """Quantiles of the attempts that ended; None where there are none."""
    ended = sorted(one.seconds for one in past if one.succeeded)
    if not ended:
        return None
    p50, p95, p99 = (ended[round(share * (len(ended) - 1))] for share in (0.5, 0.95, 0.99))
    return DurationQuantiles(p50, p95, p99, len(ended), len(past) - len(ended))


def stats_by_weekday(past: Sequence[PastDuration]) -> dict[int, DurationQuantiles]:
    """The same for each day of the week of which enough is known."""
    found = {}
    for weekday in range(7):
        seen = duration_stats([one for one in past if one.weekday == weekday])
        if seen is not None and seen.count >= WEEKDAY_ATTEMPTS_MIN:
            found[weekday] = seen
    return found


def advise_timeout(
    past: Sequence[PastDuration], timeout: float, weekday: int | None = None, needs: float | None = None
) -> TimeoutAdvice | None:
    """What earlier attempts say of a timeout (seconds); None where they say nothing.

    ``weekday``: of the attempt that was killed, which is the last of ``past``; None looks for the day that needs most.
    ``needs``: how long that attempt would have taken at its pace, in seconds.
    """
    group, days = _group(past, weekday)
    ended = [one.seconds for one in group if one.succeeded]
    if len(ended) < (ATTEMPTS_MIN if group is past else WEEKDAY_ATTEMPTS_MIN):
        return _by_progress(needs, timeout)
    longest = max(ended)
    took = f"{len(ended)} of {len(group)} {days} took {_range(min(ended), longest)}"
    if longest < TIGHT_SHARE * timeout and needs is None:
        return TimeoutAdvice(None, f"{took}: more time is not what it lacks")
    wanted = round_up_duration(ROOM * max(longest, needs or 0.0))
    if wanted <= timeout:
        return TimeoutAdvice(None, f"{took}: its timeout of {duration_literal(timeout)} has room for that")
    would = len(ended) + (needs is not None)
    return TimeoutAdvice(wanted, f"{took}: timeout={duration_literal(wanted)} {_lets(would, len(group))}")


def _by_progress(needs: float | None, timeout: float) -> TimeoutAdvice | None:
    if needs is None:
        return None
    wanted = round_up_duration(ROOM * needs)
    return (
        TimeoutAdvice(wanted, f"timeout={duration_literal(wanted)} would leave it room") if wanted > timeout else None
    )


def _group(past: Sequence[PastDuration], weekday: int | None) -> tuple[Sequence[PastDuration], str]:
    """The attempts to compare with, and what to call them: where one day needs more, it or all the others."""
    days = stats_by_weekday(past)
    if not days:
        return past, _ALL
    slowest = max(days, key=lambda day: days[day].p50)
    others = [one for one in past if one.weekday != slowest]
    usual = duration_stats(others)
    if usual is None or usual.count < WEEKDAY_ATTEMPTS_MIN or days[slowest].p50 < WEEKDAY_DIFFERS * usual.p50:
        return past, _ALL
    if weekday in (None, slowest):
        return [one for one in past if one.weekday == slowest], f"{WEEKDAYS[slowest]}s"
    return others, f"attempts on other days than {WEEKDAYS[slowest]}"


def _lets(would: int, count: int) -> str:
    rest = count - would
    if rest <= 0:
        return "would have let all of them end"
    return f"would have let all but {'one' if rest == 1 else rest} end for certain"


def _range(low: float, high: float) -> str:
    first, last = _rounded(low), _rounded(high)
    if first == last:
        return f"about {last}"
    number, _, unit = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") and " " not in unit else f"{first} to {last}"


def _rounded(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else format_duration(round(seconds / 60) * 60_000_000)


def _about(seconds: float) -> str:
    """To the next minute, or second: it needed more than it was given, and is to read like it."""
    return f"{-(-seconds // 1):.0f} s" if seconds < 120 else format_duration(round(-(-seconds // 60) * 60e6))


def round_up_duration(seconds: float) -> float:
    """The next duration that people write."""
    return next((float(step) for step in _ROUND if step >= seconds), float(-(-seconds // 86400) * 86400))


def duration_literal(seconds: float) -> str:
    """As a flow file says it: ``45s``, ``15m``, ``1h30m``."""
    if seconds % 60 or seconds < 60:
        return f"{seconds:g}s" if seconds < 120 else f"{int(seconds // 60)}m{seconds % 60:g}s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours}h{minutes}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"
