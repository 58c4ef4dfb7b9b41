"""The state of a task, a run, an attempt and a kill at an instant: a sign, a word and a role.

Every view formats these values and decides nothing: drawings, rows, bars, lists, reports and answers. They are computed
here because pages and answers of the engine use the words that the console shows, and this is the lowest layer that
both read.

A clock or an instant is present only while somebody acts: an executor that lives runs the attempt, or will take the
next step without a human.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import msgspec

from ..domain.events import KILL_STEPS, EventKind
from ..domain.rows import RunFacts, RunRow
from ..domain.states import MOVING, NEEDS_HUMAN, RunState, TaskState
from ..domain.text import format_clock, format_duration
from .explain import fact_of
from .outcome import FailureMode
from .projection import AttemptRow, RunProjection, TaskRow
from .waiting import (
    NO_CONTEXT,
    ExplainContext,
    RunnerKind,
    RunnerStatus,
    TaskCase,
    WaitReason,
    waits_for_approval,
)


class Sign(StrEnum):
    """The sign of a state. The console has a character for each, in UTF-8 and in ASCII."""

    DONE = "done"
    RUNNING = "running"
    CUT_OFF = "cut_off"
    RETRYING = "retrying"
    SENSING = "sensing"
    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    UPSTREAM = "upstream"
    DEAD = "dead"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"
    LOST = "lost"


class StateRole(StrEnum):
    """The meaning of a state to a reader. Every theme has a style for each."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    FAILED = "failed"
    HUMAN = "human"  # the one accent: a human must decide
    SKIPPED = "skipped"
    WARNING = "warning"


class StateStyle(NamedTuple):
    """The presentation of a state, or of the outcome of an attempt.

    ``sign``, ``role``: of the enumerations above, or of the console's for its own tables.
    ``word``: at most eight cells for states of tasks and runs.
    ``verb``: of an outcome, for a sentence: ``failed after 3s``.
    """

    sign: StrEnum
    word: str
    role: StrEnum
    verb: str = ""


#: The worst first: where there is room for one state only, the first is shown.
STATE_STYLES: Mapping[TaskState, StateStyle] = {
    TaskState.DEAD_LETTER: StateStyle(Sign.DEAD, "DEAD", StateRole.HUMAN),
    TaskState.FAILED: StateStyle(Sign.FAILED, "failed", StateRole.FAILED),
    TaskState.UPSTREAM_FAILED: StateStyle(Sign.UPSTREAM, "upstream", StateRole.FAILED),
    TaskState.RUNNING: StateStyle(Sign.RUNNING, "running", StateRole.RUNNING),
    TaskState.RETRYING: StateStyle(Sign.RETRYING, "retry", StateRole.WAITING),
    TaskState.SENSING: StateStyle(Sign.SENSING, "sensing", StateRole.WAITING),
    TaskState.READY: StateStyle(Sign.READY, "ready", StateRole.WAITING),
    TaskState.CANCELLED: StateStyle(Sign.CANCELLED, "stopped", StateRole.SKIPPED),
    TaskState.SKIPPED: StateStyle(Sign.SKIPPED, "skipped", StateRole.SKIPPED),
    TaskState.SUCCESS: StateStyle(Sign.DONE, "ok", StateRole.DONE),
    TaskState.PENDING: StateStyle(Sign.PENDING, "pending", StateRole.PENDING),
}

#: A READY task that waits for an operator's answer.
ASKS = StateStyle(Sign.DEAD, "approve?", StateRole.HUMAN)


#: A task that the deadline of its run has ended.
LATE = StateStyle(Sign.CANCELLED, "deadline", StateRole.SKIPPED)


class OperatorPrompt(StrEnum):
    """A state that the state file calls READY: an operator is asked, and no executor will start it."""

    APPROVAL = "APPROVAL"


#: How a task is counted beside others: by its state, but what waits for an answer apart from what waits for a slot.
CountedState = TaskState | OperatorPrompt

#: The worst first, as above.
COUNTED_STYLES: Mapping[CountedState, StateStyle] = {
    TaskState.DEAD_LETTER: STATE_STYLES[TaskState.DEAD_LETTER],
    OperatorPrompt.APPROVAL: ASKS,
    **{state: style for state, style in STATE_STYLES.items() if state is not TaskState.DEAD_LETTER},
}

#: What needs a human, as it is counted.
PROBLEMS: Collection[CountedState] = frozenset([*NEEDS_HUMAN, OperatorPrompt.APPROVAL])

#: A RUNNING task, or an unfinished run, whose executor was killed.
CUT_OFF = StateStyle(Sign.CUT_OFF, "cut off", StateRole.WAITING)
#: The same whose executor nobody here can see: it may live.
UNSEEN = StateStyle(Sign.CUT_OFF, "not seen", StateRole.WAITING)
#: An unfinished run whose executor lives and gives no sign of life: nobody knows what goes on.
SILENT = StateStyle(Sign.CUT_OFF, "silent", StateRole.WAITING)
#: A RUNNING task whose attempt has ended, while the state file cannot be written.
UNSAVED = StateStyle(Sign.CUT_OFF, "unsaved", StateRole.WAITING)

RUN_STYLES: Mapping[str, StateStyle] = {
    RunState.RUNNING: StateStyle(Sign.RUNNING, "running", StateRole.RUNNING),
    RunState.SUCCESS: StateStyle(Sign.DONE, "success", StateRole.DONE),
    RunState.FAILED: StateStyle(Sign.FAILED, "FAILED", StateRole.FAILED),
    RunState.PARTIAL: StateStyle(Sign.SKIPPED, "partial", StateRole.WAITING),
    RunState.ABANDONED: StateStyle(Sign.CANCELLED, "abandoned", StateRole.FAILED),
}
BLOCKED = StateStyle(Sign.DEAD, "BLOCKED", StateRole.HUMAN)
PAUSED = StateStyle(Sign.READY, "paused", StateRole.WAITING)
SERVED = StateStyle(Sign.READY, "served", StateRole.WAITING)
#: An unfinished run whose executor has ended in order, as before a requeue: nothing goes on without another one.
IDLE = StateStyle(Sign.READY, "idle", StateRole.WAITING)
#: Of an unfinished run: nothing goes on, as far as anybody knows here.
HALTED = (CUT_OFF, UNSEEN, SILENT, IDLE)
ONLY_WAITS = StateStyle(Sign.SENSING, "waiting", StateRole.WAITING)


def state_style(state: CountedState, runner: RunnerStatus, name: str = "") -> StateStyle:
    """The sign, the word and the role of a state. ``name``: of the task.

    A task whose executor has ended does not run, and whether it does that of a silent one nobody knows.
    """
    if state is TaskState.RUNNING and name in runner.unsaved:
        return UNSAVED
    if state is TaskState.RUNNING and not runner.is_alive:
        return UNSEEN if runner.kind is RunnerKind.UNSEEN else CUT_OFF
    if state is TaskState.RUNNING and runner.kind is RunnerKind.SILENT:
        return SILENT
    return COUNTED_STYLES[state]


def counted_state(row: TaskRow) -> CountedState:
    """Return the state by which a task is counted beside others."""
    return OperatorPrompt.APPROVAL if waits_for_approval(row) else row.state


def counted_states(counts: Mapping[str, int], asked: int) -> dict[CountedState, int]:
    """Tasks by state as the state file counts them, without ``asked`` READY ones, which wait for an approval."""
    found: dict[CountedState, int] = {TaskState(state): count for state, count in counts.items()}
    if asked:
        found[TaskState.READY] = found.get(TaskState.READY, 0) - asked
        found[OperatorPrompt.APPROVAL] = asked
    return found


def row_style(row: TaskRow, runner: RunnerStatus) -> StateStyle:
    """The sign, the word and the role of a task: an approval that waits, or the end by a deadline, is said."""
    return LATE if row.is_ended_by_deadline else state_style(counted_state(row), runner, row.name)


def state_code(row: TaskRow, runner: RunnerStatus) -> str:
    """The state as lists for grep print it: that of the state file, or what its executor makes of it."""
    style = row_style(row, runner)
    return style.word.upper() if style in (CUT_OFF, UNSEEN, SILENT, UNSAVED) else str(row.state)


# --- Tasks -----------------------------------------------------------------------------------------------------------


class TaskView(TaskCase, frozen=True, dict=True):
    """The case of a task in words: each attribute is found when it is asked for first."""

    @cached_property
    def style(self) -> StateStyle:
        return row_style(self.row, self.context.runner)

    @cached_property
    def fact(self) -> str:
        """The reason for its state, in a few words; empty if the word says all. Names in it come in raw."""
        return fact_of(self)

    @cached_property
    def instant(self) -> int | None:
        """The instant of the next step (microseconds UTC); None if nobody takes it."""
        return _due_at(self, self.reason) if self.is_promised else None

    @property
    def clock(self) -> int | None:
        """The time of the attempt under way until now, or the end of its executor (microseconds); None without one."""
        row = self.row
        if row.state is not TaskState.RUNNING or row.started_at is None or self.is_unsaved:
            return None
        return max(end_of_work(self.now, self.context.runner, row.changed_at) - row.started_at, 0)

    @property
    def is_moving(self) -> bool:
        """Whether the clock ticks, or the instant comes nearer."""
        return self.is_promised and (self.clock is not None or self.instant is not None)


def task_view(projection: RunProjection, name: str, now_us: int, context: ExplainContext = NO_CONTEXT) -> TaskView:
    """Return the view of a task at an instant. Raises KeyError for an unknown task."""
    return TaskView(projection, projection.tasks[name], now_us, context)


def describe_task(view: TaskView) -> str:
    """``sensing, 3 checks``: the word of a task and its fact."""
    return f"{view.style.word}, {view.fact}" if view.fact else view.style.word


def part_done(row: TaskRow, view: TaskView, usual_us: int | None = None) -> float | None:
    """Return the part of the attempt under way that is over, from 0 to 1; None if nothing runs or nobody knows.

    By the progress that the task reports, else by its clock: of its usual duration (microseconds) or of its timeout.
    """
    if view.clock is None:
        return None
    attempt = row.latest
    total = usual_us or (attempt.timeout_us if attempt is not None else None)
    done: float = view.clock
    if row.progress_total:
        done, total = row.progress_done or 0, row.progress_total
    return min(max(done / total, 0.0), 1.0) if total else None


def end_of_work(now_us: int, runner: RunnerStatus, seen_at: int) -> int:
    """Until when an attempt without an end can have run: now, or the end of its executor.

    ``seen_at``: when the attempt was last heard of, which counts if nothing is known of an executor.
    """
    if runner.is_alive:
        return now_us
    return min(now_us, seen_at if runner.gone_at is None else runner.gone_at)


def _due_at(case: TaskCase, reason: WaitReason | None) -> int | None:
    """Return when the wait ends by itself; None if no instant is known."""
    if reason in (WaitReason.NOT_BEFORE, WaitReason.RETRY, WaitReason.SENSOR):
        return case.row.next_retry_at
    if reason is WaitReason.RETRY_BUDGET:
        return case.reserve_at()
    breaker = case.breaker_against() if reason is WaitReason.OUTAGE else None
    return breaker.reopens_at if breaker is not None else None


# --- Runs ------------------------------------------------------------------------------------------------------------


#: Tasks by state.
Counts = Mapping[CountedState, int] | Mapping[TaskState, int] | Mapping[str, int]


class RunView(msgspec.Struct, frozen=True):
    """The state of a run in words.

    Attributes:
        fact: what holds it and for how long, in a few words; empty while it moves, and after its end.
        clock: how long it lasted, or has lasted so far, without the time in which nothing could move (microseconds).
        is_moving: whether the clock ticks.
        is_paused: whether a pause holds it beside what the word says.
    """

    style: StateStyle
    fact: str
    clock: int
    is_moving: bool
    is_paused: bool


#: A row of a run, or its facts.
RunLike = RunRow | RunFacts


def run_style(run: RunLike, runner: RunnerStatus, counts: Counts | None = None) -> StateStyle:
    """The sign, the word and the role of a run. ``counts``: of its tasks by state, if they are known."""
    if run.state != RunState.RUNNING:
        return RUN_STYLES[run.state]
    if run.blocked_since is not None:
        return BLOCKED
    if runner.kind is not RunnerKind.ALIVE:
        return _BY_RUNNER.get(runner.kind, CUT_OFF)
    if run.paused_since is not None:
        return PAUSED
    found = {state for state, count in (counts or {}).items() if count}
    return ONLY_WAITS if found & _OPEN and not found & _AT_WORK else RUN_STYLES[RunState.RUNNING]


_BY_RUNNER = {
    RunnerKind.SILENT: SILENT,
    RunnerKind.SERVED: SERVED,
    RunnerKind.UNSEEN: UNSEEN,
    RunnerKind.LEFT: IDLE,
}
#: Each that ``run_state_code`` returns.
RUN_CODES = (
    *map(str, RunState),
    *(style.word.upper() for style in (BLOCKED, PAUSED, ONLY_WAITS, CUT_OFF, *_BY_RUNNER.values())),
)
_AT_WORK = frozenset([TaskState.RUNNING, TaskState.READY])
_OPEN = frozenset([*MOVING, OperatorPrompt.APPROVAL])


def run_view(run: RunLike, runner: RunnerStatus, now_us: int, counts: Counts | None = None) -> RunView:
    """Return the view of a run at an instant."""
    style = run_style(run, runner, counts)
    is_open = run.state == RunState.RUNNING
    stopped_at = _stopped_at(run, runner) if is_open else None
    end = run.ended_at if run.ended_at is not None else now_us if stopped_at is None else min(stopped_at, now_us)
    fact = _run_fact(run, style, stopped_at, now_us) if is_open else ""
    is_moving = is_open and style in (PAUSED, ONLY_WAITS, RUN_STYLES[RunState.RUNNING])
    is_paused = is_open and style is not PAUSED and run.paused_since is not None
    worked_us = end - run.started_at - run.waited_us
    if style is IDLE:  # of the time that it waited, that before a requeue came after the end of its executor
        worked_us = min(end - run.started_at, now_us - run.started_at - run.waited_us)
    return RunView(style, fact, max(worked_us, 0), is_moving, is_paused)


def _stopped_at(run: RunLike, runner: RunnerStatus) -> int | None:
    """Since when nothing of an unfinished run could move."""
    if run.blocked_since is not None:
        return run.blocked_since
    if runner.is_alive:
        return runner.executor.silent_since
    return runner.gone_at if runner.gone_at is not None and runner.gone_at > run.started_at else run.started_at


def _run_fact(run: RunLike, style: StateStyle, stopped_at: int | None, now_us: int) -> str:
    lasts = "" if stopped_at is None else f" for {format_duration(now_us - stopped_at)}"
    if style is BLOCKED:
        return lasts.strip()
    if style is SERVED:
        return "redrive serve starts an executor"
    if style in HALTED:
        who = "no sign of its executor" if style in (UNSEEN, SILENT) else "no executor"
        return f"{who}{lasts}" if stopped_at != run.started_at else who
    return f"for {format_duration(now_us - run.paused_since)}" if style is PAUSED and run.paused_since else ""


def describe_run(view: RunView) -> str:
    """``cut off after 20s, no executor for 8m10``, for the first line of a summary."""
    word = f"{view.style.word}{' and paused' if view.is_paused else ''}"
    return f"{word}, {view.fact}" if view.style is IDLE else f"{word} {describe_span(view)}"


def describe_span(view: RunView) -> str:
    """``after 20s, no executor for 8m10``: how long it has worked, and what holds it.

    Of an idle run only the latter: how long it waited before it was requeued is not known apart from its work.
    """
    worked = "" if view.style is IDLE else f"after {format_duration(view.clock)}"
    return ", ".join(filter(None, (worked, view.fact)))


def run_state_code(run: RunLike, runner: RunnerStatus, counts: Counts | None = None) -> str:
    """The state of a run in one of ``RUN_CODES``; of an unfinished run what holds it most."""
    style = run_style(run, runner, counts)
    return run.state if style in RUN_STYLES.values() else style.word.upper()


def run_code(run: RunLike, runner: RunnerStatus, counts: Counts | None = None) -> str:
    """The state of a run as lists for grep print it; of an unfinished run all that holds it, as ``BLOCKED PAUSED``."""
    style = run_style(run, runner, counts)
    is_paused = run.paused_since is not None and style is not PAUSED and style not in RUN_STYLES.values()
    return run_state_code(run, runner, counts) + (" PAUSED" if is_paused else "")


# --- The end of an attempt, and the steps of a kill ------------------------------------------------------------------


OUTCOME_STYLES: Mapping[str, StateStyle] = {
    "running": StateStyle(Sign.RUNNING, "running", StateRole.RUNNING, "runs"),
    "success": StateStyle(Sign.DONE, "ok", StateRole.DONE, "succeeded"),
    "error": StateStyle(Sign.FAILED, "failed", StateRole.FAILED, "failed"),
    "timed_out": StateStyle(Sign.SIGKILL, "timed out", StateRole.FAILED, "timed out"),
    "lost": StateStyle(Sign.LOST, "lost", StateRole.WAITING, "lost with its executor"),
    "cancelled": StateStyle(Sign.CANCELLED, "stopped", StateRole.SKIPPED, "stopped"),
    "deferred": StateStyle(Sign.SENSING, "not ready", StateRole.WAITING, "checked, not ready,"),
    "skipped": StateStyle(Sign.SKIPPED, "skipped", StateRole.SKIPPED, "skipped itself"),
}
_CUT_OFF_OUTCOME = CUT_OFF._replace(verb="cut off with its executor")
_UNSEEN_OUTCOME = UNSEEN._replace(verb="ran when its executor was last seen,")
_UNSAVED_OUTCOME = UNSAVED._replace(verb="ended, and its end waits for the disk")


class AttemptView(NamedTuple):
    """The state of an attempt in words. ``clock``: how long it ran (microseconds); ``is_moving``: the clock ticks."""

    style: StateStyle
    clock: int
    is_moving: bool


def attempt_view(attempt: AttemptRow, now_us: int, runner: RunnerStatus, row: TaskRow | None = None) -> AttemptView:
    """Return the view of an attempt at an instant. A later version may know more outcomes: they read as lost.

    ``row``: of its task, which may have an end that is not saved.
    """
    is_open = attempt.ended_at is None
    if is_open and row is not None and runner.keeps_end_of(row):
        return AttemptView(_UNSAVED_OUTCOME, max(runner.unsaved[row.name] - attempt.started_at, 0), False)
    style = OUTCOME_STYLES.get(attempt.outcome, OUTCOME_STYLES["lost"])
    if is_open and not runner.is_alive:
        style = _UNSEEN_OUTCOME if runner.kind is RunnerKind.UNSEEN else _CUT_OFF_OUTCOME
    return AttemptView(style, ran_us(attempt, now_us, runner), is_open and runner.is_alive)


def ran_us(attempt: AttemptRow, now_us: int, runner: RunnerStatus) -> int:
    """Return how long an attempt ran, or has run so far (microseconds)."""
    lasts = attempt.duration_us
    if lasts is None:
        lasts = (attempt.ended_at or end_of_work(now_us, runner, attempt.started_at)) - attempt.started_at
    return max(lasts, 0)


def work_us(row: TaskRow, now_us: int, runner: RunnerStatus) -> int:
    """Return how long the attempts of a task ran in all (microseconds)."""
    return sum(ran_us(attempt, now_us, runner) for attempt in row.attempts.values())


def failure_mode_word(attempt: AttemptRow) -> str:
    """The mode of a failure where it says more than its class: ``hang``, ``slow``, ``poisoned``, ``lost``; or empty."""
    mode = attempt.failure_mode or ""
    return "" if mode in (FailureMode.OTHER, (attempt.failure_class or "").lower()) else mode


def failure_word(attempt: AttemptRow) -> str:
    """The one word for a failure: its mode, or else its class; empty without either."""
    return failure_mode_word(attempt) or (attempt.failure_class or "").lower()


class KillStyle(NamedTuple):
    """The presentation of a step of a kill.

    ``now``: while it is the latest step; ``then``: as a part of a sentence, of what came before.
    """

    sign: Sign
    role: StateRole
    now: str
    then: Callable[[AttemptRow, int], str]


def _timeout_passed(attempt: AttemptRow, at: int) -> str:
    limit = f"{format_duration(attempt.timeout_us)} " if attempt.timeout_us else ""
    return f"timeout {limit}passed at {format_clock(at)}"


def _sigterm_sent(attempt: AttemptRow, at: int) -> str:
    return "SIGTERM" if attempt.deadline_at is not None else f"SIGTERM at {format_clock(at)}"


def _sigkill_sent(attempt: AttemptRow, at: int) -> str:
    ignored = "" if attempt.sigterm_at is None else f"ignored for {format_duration(at - attempt.sigterm_at)}; "
    return f"{ignored}SIGKILL at {format_clock(at)}"


#: The steps of a kill in order, by the kind of their event.
KILL_STYLES: Mapping[str, KillStyle] = {
    EventKind.ATTEMPT_DEADLINE: KillStyle(Sign.DEADLINE, StateRole.WARNING, "timeout reached", _timeout_passed),
    EventKind.ATTEMPT_SIGTERM: KillStyle(Sign.SIGTERM, StateRole.WARNING, "SIGTERM sent", _sigterm_sent),
    EventKind.ATTEMPT_SIGKILL: KillStyle(Sign.SIGKILL, StateRole.FAILED, "SIGKILL, not gone yet", _sigkill_sent),
}


def kill_steps(attempt: AttemptRow) -> list[tuple[KillStyle, int]]:
    """The steps of the kill of an attempt so far, in order, with their instants; empty if nothing kills it."""
    found = ((style, getattr(attempt, KILL_STEPS[kind])) for kind, style in KILL_STYLES.items())
    return [(style, at) for style, at in found if at is not None]


def describe_kill(attempt: AttemptRow) -> list[str]:
    """Return the steps of a kill as parts of a sentence: ``timeout 3s passed at 02:29:27``, ``SIGTERM``."""
    return [style.then(attempt, at) for style, at in kill_steps(attempt)]


def kill_ends_at(attempt: AttemptRow) -> int | None:
    """Return when SIGKILL follows SIGTERM (microseconds UTC); None outside of the grace."""
    if attempt.sigterm_at is None or attempt.sigkill_at is not None or attempt.ended_at is not None:
        return None
    return attempt.sigterm_at + (attempt.grace_us or 0)
