"""The needs of a human in sentences: the same in lists, in the inbox and beside a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...engine.domain.rows import RunFacts
from ...engine.domain.text import advised, counted, format_duration, shell_command
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need, attention_count
from ..model.session_status import Link, SessionStatus, runner_of
from ..text.figures import instant, need_human
from ..text.text import one_line
from .executors import ExecutorLoss, executor_loss

#: Kind of an ended run -> what became of it, after its time.
_ENDS = {NeedKind.FAILED: "failed", NeedKind.PARTIAL: "ended partially", NeedKind.LATE: "ended after its deadline"}


def need_sentence(need: Need, now_us: int) -> str:
    """A need in a few words, without its file, flow and run."""
    return one_line(_SENTENCES[need.kind](need, now_us))


def problem_of(path: str, problem: str) -> str:
    """Why a file cannot be read, beside its name: without its path."""
    return one_line(problem.removeprefix(f"{path} "))


def summary_sentence(needs: Iterable[Need], files: int = 0) -> str:
    """The counts in the badge of the inbox, with notices: ``2 things need a human, 1 notice in 3 state files``.

    ``files``: so many were read; hosts that could not be asked are counted beside them.
    """
    found = list(needs)
    hosts = sum(need.kind is NeedKind.UNREACHABLE for need in found)
    notices, count = sum(need.is_notice for need in found), attention_count(found) - hosts
    words = [f"{counted(count, 'thing')} {need_human(count)}"] if count else []
    words += ["nothing needs a human"] if not count and (files or not hosts) else []
    words += [f"{counted(notices, 'notice')}"] if notices else []
    if files:
        words[-1] += f" in {counted(files, 'state file')}"
    return ", ".join([*words, *([f"{counted(hosts, 'host')} could not be asked"] if hosts else [])])


def _due(need: Need, now_us: int) -> str:
    if need.is_missed:
        at = f"{'of' if need.counted == 1 else 'since'} {instant(need.since, now_us)}"
        return f"{counted(need.counted, 'start')} missed {at}"
    return f"due {format_duration(now_us - need.since)} ago and not started"


def _scheduler(need: Need, now_us: int) -> str:
    due = f"{_due(need, now_us)}; " if 0 < need.since < now_us else ""
    why = f"its supervisor {need.error}" if need.error else "no process serves its schedule: redrive serve starts one"
    return f"{due}{why}"


def _run(need: Need, now_us: int) -> str:
    """The lateness of a run; of an ended one also the runs after it: ``02:00:03 failed, 5 later runs succeeded``."""
    if need.kind is NeedKind.LATE and not need.is_notice:
        return f"late by {format_duration(now_us - need.since)}"
    failure = failure_of(need)
    later = f": {failure}" if failure else ""
    if need.later_successes:
        later = f", {counted(need.later_successes, 'later run')} succeeded"
    return f"{instant(need.since, now_us)} {_ENDS[need.kind]}{later}"


def error_of(need: Need) -> str:
    """The error of the first task; one that begins with its task does not name it again."""
    return need.error.removeprefix(f"{need.subject}: ")


def failure_of(need: Need) -> str:
    """``load: no route``: the first task and its error."""
    return ": ".join(filter(None, (need.subject, error_of(need))))


def _counted_tasks(what: str) -> Callable[[Need, int], str]:
    """The number of tasks that need somebody, and why."""
    return lambda need, now_us: ": ".join(filter(None, (counted(need.counted, what), failure_of(need))))


def loss_of(need: Need, now_us: int) -> ExecutorLoss:
    """Why nobody executes a lost run."""
    run = RunFacts(need.run_id or "", need.flow or "", 0)
    return executor_loss(runner_of(run, SessionStatus(Link.LIVE, executor=need.executor)), now_us)


def _lost(need: Need, now_us: int) -> str:
    loss = loss_of(need, now_us)
    is_silent = need.executor.silent_since is not None and need.path
    return f"{loss.clause}: {advised('doctor', need.path)}" if is_silent else loss.clause


def _act(need: Need, decision: str, *options: str) -> str:
    return shell_command(["redrive", "schedule", decision, need.flow or "", *options])


def _not_started(need: Need, now_us: int) -> str:
    if not need.is_missed:
        return f"{_due(need, now_us)}: {shell_command(['redrive', 'schedule'])} says for what it waits"
    return f"{_due(need, now_us)}: {_act(need, 'times')} says why, {_act(need, 'dismiss')} removes them"


_SENTENCES: Mapping[NeedKind, Callable[[Need, int], str]] = {
    NeedKind.UNREACHABLE: lambda need, now_us: need.error,
    NeedKind.UNREADABLE: lambda need, now_us: problem_of(need.path, need.error),
    NeedKind.STORAGE: lambda need, now_us: (
        f"cannot be written for {format_duration(now_us - need.since)}, and no task starts: {need.error}"
    ),
    NeedKind.SCHEDULER_DEAD: _scheduler,
    NeedKind.FAILED_START: lambda need, now_us: (
        f"cannot start since {instant(need.since, now_us)}, redrive serve tries again: {need.error}"
    ),
    NeedKind.NOT_STARTED: _not_started,
    NeedKind.ASKED_START: lambda need, now_us: (
        f"a start that {need.subject or 'somebody'} asked for at {instant(need.since, now_us)} was not taken:"
        f" {_act(need, 'start')} asks again, {_act(need, 'dismiss')} removes it"
    ),
    NeedKind.STUCK: lambda need, now_us: (
        f"cannot be resumed since {instant(need.since, now_us)}: {need.error};"
        f" {advised('resume', need.path or need.flow or '', need.run_id)} --accept-changes does it all the same"
    ),
    NeedKind.AFTER: lambda need, now_us: (
        f"waits for {need.subject}, which {need.error}: {_act(need, 'start', '--at', 'DAY')} does not wait,"
        f" {_act(need, 'skip-next')} leaves it out"
    ),
    NeedKind.WARNING: lambda need, now_us: f"{need.error}; {_act(need, 'acknowledge')}",
    NeedKind.DEAD_LETTERS: _counted_tasks("dead letter"),
    NeedKind.APPROVAL: lambda need, now_us: f"{need.subject} waits for an approval",
    NeedKind.BLOCKED: lambda need, now_us: f"blocked for {format_duration(now_us - need.since)}",
    NeedKind.LOST: _lost,
    NeedKind.FAILED_TASKS: _counted_tasks("failed task"),
    NeedKind.LATE: _run,
    NeedKind.FAILED: _run,
    NeedKind.PARTIAL: _run,
    NeedKind.BREAKER: lambda need, now_us: f"breaker {need.subject} open for {format_duration(now_us - need.since)}",
    NeedKind.CHANGED_EFFECTS: lambda need, now_us: (
        f"{counted(need.counted, 'effect')} happened for an element that has changed since:"
        f" {need.subject}{'' if need.counted == 1 else ', ...'}"
    ),
    NeedKind.PAGER: lambda need, now_us: (
        f"{counted(need.counted, 'page')} {'was' if need.counted == 1 else 'were'} not sent: {need.error}"
    ),
    NeedKind.HELD_ROWS: lambda need, now_us: f"{counted(need.counted, 'row')} held in quarantine",
}
