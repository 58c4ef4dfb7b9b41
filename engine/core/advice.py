"""Judge a timeout by the durations of earlier attempts and by progress; suggest another one, with the reason.

A timeout that is shorter than the work kills it again and again; a task that exceeds a much longer one than ever needed
hangs. ``judge_timeout`` has the table that distinguishes the two. A suggestion changes no setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from ..domain.text import format_bytes, format_seconds

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

ATTEMPTS_MIN = 5  # fewer attempts give no suggestion
WEEKDAY_ATTEMPTS_MIN = 4
WEEKDAY_DIFFERS = 1.3  # a weekday is compared alone if its median is this multiple of the others
MEMORY_BYTES_MIN = 500_000_000  # a task that holds less needs no limit of memory
TIGHT_SHARE = 0.7  # of the timeout: below this, the longest success had enough time
HEADROOM = 1.25  # times the longest duration
SEASON_FACTOR = 4.0  # document 000: on Diwali night the work is four times the usual
STALL_GAPS = 3.0  # mean gaps between two reports: a task without progress for longer is stalled
STALL_SECONDS = 1.0

_ALL = "attempts"

#: Round durations in seconds.
_ROUND_SECONDS = (
    *(1, 2, 3, 5, 10, 15, 20, 30, 45),
    *(60 * minutes for minutes in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 45, 50)),
    *(3600 * hours for hours in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 36, 48, 72, 96, 168)),
)


class PastDuration(msgspec.Struct, frozen=True):
    """An earlier attempt. ``succeeded`` False: it was killed at its timeout."""

    weekday: int  # of this machine's clock; 0 is Monday
    seconds: float
    succeeded: bool = True
    memory: int = 0  # the most bytes that it held, as far as they are known


def past_duration(started_at: int, duration_us: int, outcome: str, max_rss_kb: int | None) -> PastDuration:
    """Return an attempt that succeeded or timed out, by its columns."""
    weekday = datetime.fromtimestamp(started_at / 1e6, UTC).astimezone().weekday()
    return PastDuration(weekday, duration_us / 1e6, outcome == "success", (max_rss_kb or 0) * 1024)


PastByTask = Mapping[str, Sequence[PastDuration]]  # the oldest first


class DurationQuantiles(msgspec.Struct, frozen=True):
    """Quantiles of the durations of successful attempts, in seconds."""

    p50: float
    p95: float
    p99: float
    count: int
    killed: int = 0


class Progress(msgspec.Struct, frozen=True):
    """The progress that a killed attempt had reported. Seconds; ``moved_at``: the latest change, since the start."""

    done: int
    total: int | None
    elapsed: float
    moved_at: float
    reports: int
    first_done: int = 0  # by its first report: more than one step if it resumed the work of an earlier attempt
    first_at: float = 0.0

    @property
    def is_stalled(self) -> bool:
        """True if the progress did not change for much longer than the mean gap between two reports."""
        quiet = self.elapsed - self.moved_at
        return quiet >= max(STALL_SECONDS, STALL_GAPS * self.moved_at / max(self.reports, 1))

    @property
    def needed_seconds(self) -> float | None:
        """The whole duration at the pace of this attempt; None if it is unknown."""
        if self.is_stalled or not self.total or not 0 < self.done <= self.total:
            return None
        if self.done <= self.first_done:
            return self.elapsed * self.total / self.done
        return (self.elapsed - self.first_at) * self.total / (self.done - self.first_done)

    def __str__(self) -> str:
        at = f"{self.done:,} of {self.total:,}" if self.total else f"{self.done:,}"
        if self.is_stalled:
            return f"no progress since {format_seconds(self.elapsed - self.moved_at)}, at {at}"
        if self.needed_seconds is None or self.total is None:
            return f"still moving, at {at}"
        done = f"{100 * self.done / self.total:.0f} % done by its own progress ({at})"
        return f"{done}, at that pace it needed {_rounded_up_text(self.needed_seconds)}"


class TimeoutVerdict(StrEnum):
    """The verdict on a timeout that has killed an attempt."""

    SHORT = "short"  # the timeout is the bug, or the first suspect
    AMPLE = "ample"  # far above the usual duration: the attempt hung
    UNKNOWN = "unknown"  # nothing to compare with


class TimeoutJudgement(msgspec.Struct, frozen=True):
    """``reason``: evidence and the timeout to set, in one sentence; ``timeout``: that one in seconds, if known."""

    verdict: TimeoutVerdict
    reason: str = ""
    timeout: float | None = None


NOT_JUDGED = TimeoutJudgement(TimeoutVerdict.UNKNOWN)


def duration_stats(past: Sequence[PastDuration]) -> DurationQuantiles | None:
    """Return the quantiles of the successful attempts; None without any."""
    ended = sorted(one.seconds for one in past if one.succeeded)
    if not ended:
        return None
    p50, p95, p99 = (ended[round(share * (len(ended) - 1))] for share in (0.5, 0.95, 0.99))
    return DurationQuantiles(p50, p95, p99, len(ended), len(past) - len(ended))


def stats_by_weekday(past: Sequence[PastDuration]) -> dict[int, DurationQuantiles]:
    """Return the quantiles of each weekday with enough successful attempts."""
    found = {}
    for weekday in range(7):
        seen = duration_stats([one for one in past if one.weekday == weekday])
        if seen is not None and seen.count >= WEEKDAY_ATTEMPTS_MIN:
            found[weekday] = seen
    return found


def advise_timeout(past: Sequence[PastDuration], timeout: float) -> str | None:
    """Suggest a longer timeout than ``timeout`` (seconds), with the reason; None: that is enough, or nobody knows."""
    group, days = _comparable_attempts(past, None)
    ended = [one.seconds for one in group if one.succeeded]
    if len(ended) < (ATTEMPTS_MIN if group is past else WEEKDAY_ATTEMPTS_MIN):
        return None
    longest = max(ended)
    suggested = round_up_duration(HEADROOM * longest)
    if longest < TIGHT_SHARE * timeout or suggested <= timeout:
        return None
    took = f"{len(ended)} of {len(group)} {days} took {_range(min(ended), longest)}"
    return f"{took}: timeout={duration_literal(suggested)} {_success_text(len(ended), len(group))}"


def most_memory(past: Sequence[PastDuration]) -> tuple[int, int] | None:
    """Return the median and the largest of the bytes that successful attempts held; None without any."""
    held = sorted(one.memory for one in past if one.succeeded and one.memory)
    return (held[len(held) // 2], held[-1]) if held else None


def advise_memory(past: Sequence[PastDuration], limit: int | None) -> str | None:
    """Suggest a limit of memory, with the reason; None: there is one that is enough, or attempts are few or small."""
    held, least = most_memory(past), MEMORY_BYTES_MIN if limit is None else TIGHT_SHARE * limit
    if held is None or len(past) < ATTEMPTS_MIN or held[1] < least:
        return None
    needed = HEADROOM * held[1]
    enough = f"{math.ceil(needed / 1e9)}GB" if needed >= 1e9 else f"{math.ceil(needed / 1e8)}00MB"
    most = f" of {format_bytes(limit)} allowed" if limit is not None else ""
    return f'its attempts held up to {format_bytes(held[1])}{most}: memory="{enough}"'


def is_near_limit(seconds: float, timeout: float | None, memory: int, limit: int | None) -> bool:
    """Return whether an attempt gives a reason to look at its limits: ``advise_limits`` may have a suggestion."""
    needed = MEMORY_BYTES_MIN if limit is None else TIGHT_SHARE * limit
    return memory >= needed or (timeout is not None and seconds >= TIGHT_SHARE * timeout)


def advise_limits(past: Sequence[PastDuration], timeout: float | None, limit: int | None) -> list[str]:
    """Suggest a longer timeout and a limit of memory, each with its reason."""
    longer = None if timeout is None else advise_timeout(past, timeout)
    return [advice for advice in (longer, advise_memory(past, limit)) if advice is not None]


def judge_timeout(
    past: Sequence[PastDuration], timeout: float, progress: Progress | None = None, done_before: int | None = None
) -> TimeoutJudgement:
    """Judge the timeout (seconds) that has killed an attempt, the last of ``past``. The first row that fits counts:

        progress of the attempt                earlier successes                        timeout
        -----------------------------------    -------------------------------------    -------
        moved until the kill                   any                                      short
        further than that of the one before    any                                      short
        any other, or none                     none                                     unknown
        any other, or none                     the longest is near the timeout          short
        any other, or none                     four times their median is above it      short
        any other, or none                     four times their median is not above     ample

    ``done_before``: the progress of the attempt before, if it timed out as well.
    """
    from statistics import median  # here: it imports ``random``, which does work after each fork

    group, days = _comparable_attempts(past, past[-1].weekday)
    ended = [one.seconds for one in group if one.succeeded]
    longest, busy = max(ended, default=0.0), SEASON_FACTOR * median(ended or [0.0])
    if progress is not None and progress.needed_seconds is not None:
        needs = progress.needed_seconds
        return _too_short(f"it needs about {_rounded_up_text(needs)}", HEADROOM * max(needs, longest))
    if progress is not None and (not progress.is_stalled or progress.done > (done_before or progress.done)):
        return _too_short(f"its progress still moved, to {progress.done:,}", HEADROOM * max(busy, 2 * timeout))
    if not ended:
        return NOT_JUDGED
    took = f"{len(ended)} of {len(group)} {days} took {_range(min(ended), longest)}"
    if longest >= TIGHT_SHARE * timeout and HEADROOM * longest > timeout:
        return _too_short(took, HEADROOM * longest)
    if busy > timeout:
        doubt = f"{took}, and a busy night may take four times that"
        return _too_short(doubt, HEADROOM * busy, "timeout perhaps too short")
    return TimeoutJudgement(TimeoutVerdict.AMPLE, f"{took}: more time would not help")


def _too_short(evidence: str, seconds: float, claim: str = "timeout too short") -> TimeoutJudgement:
    suggested = round_up_duration(seconds)
    reason = f"{claim}: {evidence}; set timeout={duration_literal(suggested)}"
    return TimeoutJudgement(TimeoutVerdict.SHORT, reason, suggested)


def _comparable_attempts(past: Sequence[PastDuration], weekday: int | None) -> tuple[Sequence[PastDuration], str]:
    """Return the attempts to compare with, and their name. A slow weekday is compared apart from the others.

    ``weekday``: that of the latest attempt; None takes the slowest.
    """
    days = stats_by_weekday(past)
    if not days:
        return past, _ALL
    slowest = max(days, key=lambda day: days[day].p50)
    others = [one for one in past if one.weekday != slowest]
    rest_stats = duration_stats(others)
    if (
        rest_stats is None
        or rest_stats.count < WEEKDAY_ATTEMPTS_MIN
        or days[slowest].p50 < WEEKDAY_DIFFERS * rest_stats.p50
    ):
        return past, _ALL
    if weekday in (None, slowest):
        return [one for one in past if one.weekday == slowest], f"{WEEKDAYS[slowest]}s"
    return others, f"attempts on other days than {WEEKDAYS[slowest]}"


def _success_text(would: int, count: int) -> str:
    rest = count - would
    if rest <= 0:
        return "would have let all of them end"
    return f"would have let all but {'one' if rest == 1 else rest} end for certain"


def _range(low: float, high: float) -> str:
    first, last = _rounded(low), _rounded(high)
    if first == last:
        return f"about {last}"
    return f"{first} to {last}"


def _rounded(seconds: float) -> str:
    digits = 1 if seconds < 10 else 0 if seconds < 120 else None
    return format_seconds(round(seconds, digits) if digits is not None else round(seconds / 60) * 60)


def _rounded_up_text(seconds: float) -> str:
    """Format a duration rounded up to the next minute or second, so that it stays above the timeout."""
    step = 1 if seconds < 120 else 60
    return format_seconds(-(-seconds // step) * step)


def round_up_duration(seconds: float) -> float:
    """Return the next round duration in seconds."""
    return next((float(step) for step in _ROUND_SECONDS if step >= seconds), float(-(-seconds // 86400) * 86400))


def duration_literal(seconds: float) -> str:
    """Format a duration as in a flow file: ``45s``, ``15m``, ``1h30m``."""
    if seconds % 60 or seconds < 60:
        return f"{seconds:g}s" if seconds < 120 else f"{int(seconds // 60)}m{seconds % 60:g}s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours}h{minutes}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"
