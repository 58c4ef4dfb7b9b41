"""What needs a human, in sentences: the same in lists, in the inbox and beside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...engine.domain.text import counted, format_duration, shell_command
from ...engine.statefile.needs import Need, NeedKind
from ..text.figures import DAY, wall, wall_day
from ..text.text import one_line

#: Kind of an ended run -> what became of it, after its time.
_ENDS = {NeedKind.FAILED: "failed", NeedKind.PARTIAL: "ended partially", NeedKind.LATE: "ended after its deadline"}


def need_sentence(need: Need, now_us: int) -> str:
    """One need in a few words, without its file, flow and run."""
    return one_line(_SENTENCES[need.kind](need, now_us))


def end_sentence(need: Need, now_us: int) -> str:
    """How a run ended, and what came after it: ``02:00:03 failed, 5 later runs succeeded``."""
    if need.later_successes:
        later = f", {counted(need.later_successes, 'later run')} succeeded"
    else:
        later = f": {need.detail}" if need.detail else ""
    return f"{instant(need.since, now_us)} {_ENDS[need.kind]}{later}"


def instant(at_us: int, now_us: int) -> str:
    """A time of day, with its date if it is not of the last 24 hours."""
    return (wall if now_us - at_us < DAY else wall_day)(at_us, None)


def ack_command(path: str, run_id: str) -> str:
    """The command that acknowledges the end of a run."""
    return shell_command(["redrive", "ack", "--state", path, run_id])


def summary_sentence(needs: Iterable[Need]) -> str:
    """How much needs a human, and how many notices there are: ``2 things need a human, 1 notice``."""
    found = list(needs)
    notices = sum(need.is_notice for need in found)
    count = len(found) - notices
    first = f"{counted(count, 'thing')} need{'s' if count == 1 else ''} a human" if count else "nothing needs a human"
    return f"{first}, {counted(notices, 'notice')}" if notices else first


def _due(need: Need, now_us: int) -> str:
    if need.counted > 1:
        return f"{counted(need.counted, 'start')} missed since {instant(need.since, now_us)}"
    return f"due {format_duration(now_us - need.since)} ago and not started"


def _scheduler(need: Need, now_us: int) -> str:
    due = f"{_due(need, now_us)}; " if need.since < now_us else ""
    return f"{due}no process serves its schedule: redrive serve starts one"


def _run(need: Need, now_us: int) -> str:
    is_running = need.kind is NeedKind.LATE and not need.is_notice
    return f"late by {format_duration(now_us - need.since)}" if is_running else end_sentence(need, now_us)


def _dead_letters(need: Need, now_us: int) -> str:
    return f"{counted(need.counted, 'dead letter')}{f': {need.detail}' if need.detail else ''}"


_SENTENCES: Mapping[NeedKind, Callable[[Need, int], str]] = {
    NeedKind.UNREADABLE: lambda need, now_us: need.detail,
    NeedKind.SCHEDULER_DEAD: _scheduler,
    NeedKind.FAILED_START: lambda need, now_us: f"cannot start since {instant(need.since, now_us)}: {need.detail}",
    NeedKind.NOT_STARTED: _due,
    NeedKind.DEAD_LETTERS: _dead_letters,
    NeedKind.APPROVAL: lambda need, now_us: f"{need.detail} waits for an approval: redrive approve or reject",
    NeedKind.BLOCKED: lambda need, now_us: f"blocked for {format_duration(now_us - need.since)}",
    NeedKind.LOST: lambda need, now_us: "no executor runs it",
    NeedKind.LATE: _run,
    NeedKind.FAILED: _run,
    NeedKind.PARTIAL: _run,
    NeedKind.BREAKER: lambda need, now_us: f"breaker {need.detail} open for {format_duration(now_us - need.since)}",
    NeedKind.HELD_ROWS: lambda need, now_us: f"{counted(need.counted, 'row')} held in quarantine",
}
