"""The standing of a run's executor: in a word, in a sentence, and what resumes the run.

A run whose executor is dead is still in state RUNNING. So every list, and every JSON value about a run or one of its
tasks, has the advice beside the state (SPEC 4.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...engine.core.views import SILENT, UNSEEN, RunLike
from ...engine.core.waiting import RunnerKind, RunnerStatus
from ...engine.domain.rows import RunRow
from ...engine.domain.text import advised, format_duration, place_words, shell_command
from ..model.session_status import SessionStatus, runner_of
from ..sessions.address import parse
from ..text.figures import SECOND, instant
from ..text.text import one_line, split_address


class _Standing(NamedTuple):
    """The word of a kind of runner; why nobody runs the run, up to since when; its process. Templates of an executor.

    ``has_subject``: the word is about the executor, which is named where there is room.
    """

    word: str
    loss: str = ""
    process: str = ""
    has_subject: bool = True


_STANDINGS: Mapping[RunnerKind, _Standing] = {
    RunnerKind.ALIVE: _Standing("alive"),
    RunnerKind.SILENT: _Standing(SILENT.word, "executor {0.pid} silent"),
    RunnerKind.BUSY: _Standing("alive", "no executor runs it: executor {0.pid} runs {0.run_id}"),
    RunnerKind.COPY: _Standing("a copy", "{0.copy_sentence}", has_subject=False),
    RunnerKind.SERVED: _Standing("served", "no executor", has_subject=False),
    RunnerKind.UNSEEN: _Standing(UNSEEN.word, "no sign of its executor{0.place}", "pid {0.pid}"),
    RunnerKind.LEFT: _Standing("no executor", "no executor", "pid {0.pid} stopped", has_subject=False),
    RunnerKind.DEAD: _Standing("dead", "executor dead", "pid {0.pid} gone"),
    RunnerKind.GONE: _Standing("gone", "executor gone"),
    RunnerKind.NONE: _Standing("no executor", "no executor runs it", has_subject=False),
}


def executor_word(runner: RunnerStatus) -> str:
    """The standing of an executor in a word."""
    return _STANDINGS[runner.kind].word


def executor_subject(runner: RunnerStatus) -> str:
    """The subject of the word, left out where there is no room; empty if the word names it."""
    return "executor " if _STANDINGS[runner.kind].has_subject else ""


class ExecutorLoss(NamedTuple):
    """Why no executor runs a run, since when, and its ``process``; the latter ones may be left out."""

    why: str
    since: str = ""
    process: str = ""

    @property
    def clause(self) -> str:
        """``executor dead since 03:11:20``."""
        return f"{self.why}{self.since}"

    @property
    def sentence(self) -> str:
        """``executor dead since 03:11:20 (pid 7 gone)``."""
        return f"{self.clause} ({self.process})" if self.process else self.clause


def executor_loss(runner: RunnerStatus, now_us: int) -> ExecutorLoss:
    """Why nobody runs an unfinished run, or nobody knows whether its executor does."""
    executor, standing = runner.executor, _STANDINGS[runner.kind]
    since = "" if executor.gone_at is None else f" since {instant(executor.gone_at, now_us)}"
    if runner.kind is RunnerKind.SILENT and executor.silent_since is not None:
        since = f" for {format_duration((now_us - executor.silent_since) // SECOND * SECOND)}"
    process = standing.process.format(executor) if executor.pid is not None else ""
    return ExecutorLoss(one_line(standing.loss.format(executor)), since, process)


def service_advice(runner: RunnerStatus, when: str = "") -> str:
    """The process that resumes a run by itself."""
    return f"redrive serve (pid {runner.service_pid}) resumes it{when}"


def executor_advice(run: RunRow, status: SessionStatus, target: str, now_us: int) -> str:
    """Why an unfinished run makes no progress, and the command to resume it; empty if an executor runs it."""
    runner, is_blocked = runner_of(run, status), run.blocked_since is not None
    if run.ended_at is not None or runner.kind is RunnerKind.ALIVE:
        return ""
    loss = executor_loss(runner, now_us).sentence
    after = "after a decision" if is_blocked else ""  # before it, a blocked run would only block again
    if runner.kind is RunnerKind.SILENT:
        return f"{loss}: {advised('doctor', target)}"
    if runner.kind is RunnerKind.COPY:
        return f"{loss}: act there"
    if runner.service_pid is not None:
        return service_advice(runner, f" {after}" if after else "")
    if status.service_pid is not None:
        command = resume_command(run, status, target, accept_changes=True)
        return f"redrive serve (pid {status.service_pid}) cannot resume it (why: redrive schedule); {command}"
    condition = after or ("if it is gone" if runner.kind is RunnerKind.UNSEEN else "")
    return f"{loss}; {f'{condition}: ' if condition else ''}{resume_command(run, status, target)}"


def resume_command(run: RunLike, status: SessionStatus, target: str, *, accept_changes: bool = False) -> str:
    """The command that resumes a run, on the host of its state file."""
    host, path = split_address(target)
    if host:
        host, path = f"on {host}: ", parse(target).path  # over there it is a path, without %20
    options = ["--wait"] * status.executor.alive + ["--accept-changes"] * accept_changes
    become = [] if status.become is None else ["sudo", "-H", "-u", status.become]
    return host + shell_command([*become, "redrive", "resume", *place_words(path, run.run_id), *options])


def executor_json(run: RunRow, status: SessionStatus, target: str, now_us: int) -> dict[str, object]:
    """The executor of a run for JSON: ``alive`` is about this run; ``advice`` is None if there is nothing to do."""
    return {
        "alive": status.has_executor_of(run),
        "pid": status.executor.pid,
        "gone_at": status.executor.gone_at,
        "stopped": status.executor.stopped,
        "advice": executor_advice(run, status, target, now_us) or None,
    }
