"""The state of a session, as the header shows it, and who runs the tasks of a run."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ...engine.core.views import RunLike
from ...engine.core.waiting import RunnerKind, RunnerStatus
from ...engine.domain.rows import NO_EXECUTOR, NO_HEALTH, ExecutorState, Health, RunFacts

STALE_SECONDS = 10.0  # from this age of the data on, acts are refused


class Link(StrEnum):
    """The state of the connection."""

    LIVE = "live"
    CONNECTING = "connecting"
    STALE = "stale"  # nothing received for too long: the screen shows the last known state
    CLOSED = "closed"  # finally; ``SessionStatus.problem`` says why


CLOCK_OFFSET_SECONDS = 2.0  # from this difference on, it is shown
OPENED_READ_ONLY = "opened read-only"  # as asked, not for a lack of rights


class SessionStatus(msgspec.Struct, frozen=True):
    """The state of the session, for the header. Ages in seconds, by the local monotonic clock."""

    link: Link
    problem: str | None = None  # one sentence
    retry_in_seconds: float | None = None
    executor: ExecutorState = NO_EXECUTOR  # its original: the file is a copy of this one
    service_pid: int | None = None  # of the scheduler, which starts runs and resumes those that can continue
    stuck_run: str | None = None  # the run that it cannot resume with the code of its flow
    health: Health = NO_HEALTH  # what a living executor knows of itself
    clock_offset_seconds: float = 0.0  # remote clock minus local clock
    read_only: str | None = None  # the reason, if commands are refused
    data_age_seconds: float = 0.0  # since the last message was received
    become: str | None = None  # the user over there who reads and acts, in place of the one who logs in
    is_missing: bool = False  # the state file is gone

    @property
    def storage_problem(self) -> str | None:
        """Why the executor cannot write the state file, and starts no task."""
        return self.health.storage_why or None

    @property
    def connection_problem(self) -> str | None:
        """Why the connection is down; None while it is not."""
        return None if self.link is Link.LIVE else self.problem or str(self.link)

    @property
    def age_seconds(self) -> float:
        """Seconds since the data was last known to be current."""
        return max(self.data_age_seconds, self.executor.silent_seconds)

    @property
    def is_late(self) -> bool:
        """Whether the data may be out of date, whatever its executor does."""
        return self.connection_problem is not None or self.data_age_seconds >= STALE_SECONDS

    @property
    def is_stale(self) -> bool:
        """Whether the screen may be out of date."""
        return self.is_late or self.executor.silent_seconds >= STALE_SECONDS

    def shown_at(self, now_us: int) -> int:
        """The instant that the data shows: now, or when the last data came over a connection that is down."""
        return now_us if self.connection_problem is None else now_us - round(self.data_age_seconds * 1_000_000)

    def has_executor_of(self, run: RunLike) -> bool:
        return self.executor.alive and self.executor.run_id in (None, run.run_id)

    def is_served(self, run: RunLike) -> bool:
        """Whether ``redrive serve`` starts an executor for the run."""
        return self.service_pid is not None and self.stuck_run != run.run_id


SHELL_REMEDY = "resume starts an executor"


def runner_of(run: RunLike | None, status: SessionStatus, remedy: str = SHELL_REMEDY) -> RunnerStatus:
    """The runner of ``run``; None: of whatever the state file holds.

    ``remedy``: how to start an executor, as the end of a sentence.
    """
    executor, known = status.executor, _NO_RUN if run is None else run
    unsaved = status.health.ended if executor.alive else {}
    service_pid = status.service_pid if status.is_served(known) else None
    kind = _runner_kind(known, executor, is_served=service_pid is not None)
    return RunnerStatus(kind, executor._replace(age_us=None), service_pid, remedy, unsaved=unsaved)


_NO_RUN = RunFacts("", "", 0)


def _runner_kind(run: RunLike, executor: ExecutorState, *, is_served: bool) -> RunnerKind:
    is_last = executor.run_id in (None, run.run_id)
    if executor.alive and not is_last:
        return RunnerKind.BUSY
    if executor.alive:
        return RunnerKind.ALIVE if executor.silent_since is None else RunnerKind.SILENT
    if executor.original is not None:
        return RunnerKind.COPY
    if is_served and (executor.stopped or executor.pid is None):
        return RunnerKind.SERVED
    if executor.is_unseen:
        return RunnerKind.UNSEEN
    if executor.stopped and (is_last or run.waited_us > 0):  # it waited: one has left it for a decision
        return RunnerKind.LEFT
    if is_last and executor.pid is not None:
        return RunnerKind.DEAD
    return RunnerKind.NONE if executor.gone_at is None else RunnerKind.GONE
