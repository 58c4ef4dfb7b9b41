"""The faults of a night: values that say what goes wrong, where and when.

An instant (``at``) is a duration after the start of the night ("2m", "+2m", 120), or a time of day in the time zone of
the start ("03:00", "03:00:30"): the first one after the start. All dice are thrown by the seed of the night.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from email.message import Message
from http.client import responses
from typing import Literal, TypedDict, Unpack
from urllib.error import HTTPError

from ..core.option_types import Duration
from ..runner.protocol import AttemptOrder

Instant = Duration  # or a time of day: "03:00"
MakeError = Callable[[AttemptOrder], BaseException]
Error = BaseException | type[BaseException] | Callable[[], BaseException]


@dataclass(frozen=True, slots=True)
class When:
    """The time of a fault, and the attempts that it meets. ``share``: so many of them, by the dice of the night."""

    attempt: int | Collection[int] | None = None
    times: int | None = None  # the first ones of each task
    at: Instant = 0
    lasts: Duration | None = None  # None: to the end of the night
    share: float = 1.0


class WhenOptions(TypedDict, total=False):
    """The attempts of a task that a fault meets; each of them unless given."""

    attempt: int | Collection[int] | None  # these, counted from 1
    times: int | None  # so many of each task, the first ones
    at: Instant  # from this instant on
    lasts: Duration | None  # for so long; None: to the end of the night
    share: float  # so many of them, by the dice of the night


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a night, and when it happens; the functions below make its kinds."""

    when: When


@dataclass(frozen=True, slots=True)
class TaskFault(Fault):
    """Attempts fail, or take longer. ``task``: also the children of that map task; "*": every task."""

    task: str
    error: MakeError | None = None
    exit_code: int | None = None
    output: str = ""
    signal: int | None = None
    is_out_of_memory: bool = False
    hangs: bool = False
    ignores_sigterm: bool = False
    factor: float = 1.0
    more_seconds: Duration = 0
    not_started: bool = False
    seconds: Duration = 0.05  # until it fails


@dataclass(frozen=True, slots=True)
class DownstreamFault(Fault):
    """Calls of a downstream fail, but ``per_second`` calls a second."""

    downstream: str
    error: MakeError
    status: int
    per_second: float = 0.0
    seconds: Duration = 0.05


@dataclass(frozen=True, slots=True)
class MachineFault(Fault):
    """A process is killed, the disk takes no write, or the wall clock is set by ``clock_step_seconds``."""

    what: Literal["executor", "zygote", "disk", "clock"]
    clock_step_seconds: float = 0.0


def down(
    downstream: str,
    at: Instant = 0,
    lasts: Duration | None = None,
    *,
    share: float = 1.0,
    status: int = 503,
    retry_after: float | None = None,
    error: Error | None = None,
    takes: Duration = 0.05,
) -> DownstreamFault:
    """A downstream fails: each call of it, which is an attempt of a task that names it, fails after ``takes``.

    Parameters:
        lasts: None: to the end of the night.
        share: of the calls in that time, by the dice of the night.
        status: of HTTP; a command fails as curl does.
        retry_after: seconds in the header ``Retry-After`` of the answer.
        error: an exception, its class, or a function that makes one, in place of the answer with ``status``.
    """
    when = When(at=at, lasts=lasts, share=share)
    made = _error_maker(error) if error is not None else lambda order: http_error(downstream, status, retry_after)
    return DownstreamFault(when, downstream, made, status, seconds=takes)


def limited(
    downstream: str,
    per_second: float,
    *,
    at: Instant = 0,
    lasts: Duration | None = None,
    retry_after: float | None = None,
) -> DownstreamFault:
    """A downstream answers ``per_second`` calls a second, and the others with 429 and ``Retry-After``."""
    when = When(at=at, lasts=lasts)
    return DownstreamFault(when, downstream, lambda order: http_error(downstream, 429, retry_after), 429, per_second)


def error(task: str, error: Error, *, takes: Duration = 0.05, **when: Unpack[WhenOptions]) -> TaskFault:
    """Attempts of a task raise ``error`` where its function begins: an exception, its class, or what makes one."""
    return TaskFault(When(**when), task, error=_error_maker(error), seconds=takes)


def hang(task: str, *, ignores_sigterm: bool = False, **when: Unpack[WhenOptions]) -> TaskFault:
    """Attempts of a task do nothing until they are killed at their timeout."""
    return TaskFault(When(**when), task, hangs=True, ignores_sigterm=ignores_sigterm)


def slow(task: str, factor: float = 1.0, *, seconds: Duration = 0, **when: Unpack[WhenOptions]) -> TaskFault:
    """Attempts of a task take ``factor`` times as long, and ``seconds`` more."""
    if factor == 1.0 and not seconds:
        raise ValueError(f"slow({task!r}) needs a factor, or seconds=")
    return TaskFault(When(**when), task, factor=factor, more_seconds=seconds)


def exits(task: str, code: int, *, stderr: str = "", takes: Duration = 0.05, **when: Unpack[WhenOptions]) -> TaskFault:
    """Attempts of a command write ``stderr`` and exit with ``code``; so does a process that calls ``os._exit``."""
    return TaskFault(When(**when), task, exit_code=code, output=stderr, seconds=takes)


def killed(
    task: str, signal: int = 9, *, out_of_memory: bool = False, takes: Duration = 0.05, **when: Unpack[WhenOptions]
) -> TaskFault:
    """A signal ends attempts of a task: 6 of an abort, 9 from outside, or of the kernel that is ``out_of_memory``."""
    return TaskFault(When(**when), task, signal=signal, is_out_of_memory=out_of_memory, seconds=takes)


def not_started(task: str, **when: Unpack[WhenOptions]) -> TaskFault:
    """The machine has no process for attempts of a task."""
    return TaskFault(When(**when), task, not_started=True)


def crash(what: Literal["executor", "zygote"] = "executor", at: Instant = 0, lasts: Duration = "10s") -> MachineFault:
    """The "executor" is killed with all attempts, and a new one resumes the run after ``lasts``; or the "zygote" is."""
    if what not in ("executor", "zygote"):
        raise ValueError(f"what crashes is 'executor' or 'zygote', not {what!r}")
    return MachineFault(When(at=at, lasts=lasts), what)


def disk_full(at: Instant = 0, lasts: Duration = "1m") -> MachineFault:
    """The disk of the state file is full."""
    return MachineFault(When(at=at, lasts=lasts), "disk")


def clock_step(at: Instant, seconds: float) -> MachineFault:
    """The wall clock of the machine is set forward, or back by negative seconds."""
    return MachineFault(When(at=at), "clock", seconds)


def http_error(host: str, status: int, retry_after: float | None = None) -> HTTPError:
    """Return the error of urllib for an answer with ``status``."""
    headers = Message()
    if retry_after is not None:
        headers["Retry-After"] = f"{retry_after:g}"
    return HTTPError(f"https://{host}/", status, responses.get(status, "Unknown"), headers, None)


def _error_maker(error: Error) -> MakeError:
    if isinstance(error, BaseException):
        return lambda order: error.with_traceback(None)
    return lambda order: error()
