"""What a console knows of its session, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engine.core.projection import RunRow

STALE_SECONDS = 10.0  # from this age of the data on, acts are refused


class Link(StrEnum):
    """The state of the connection."""

    LIVE = "live"
    CONNECTING = "connecting"
    STALE = "stale"  # nothing received for too long: the screen shows the last known state
    CLOSED = "closed"  # finally; ``SessionStatus.problem`` says why


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """The state of the session, for the header. Ages in seconds, by the local monotonic clock."""

    link: Link
    problem: str | None = None  # one sentence
    retry_in_seconds: float | None = None
    executor_alive: bool = False
    heartbeat_age_seconds: float | None = None
    executor_gone_at: int | None = None  # microseconds UTC; None while it is alive, or if unknown
    executor_pid: int | None = None  # of the latest one, alive or not
    executor_run_id: str | None = None  # the run of that executor
    executor_stopped: bool = False  # the latest executor exited in order
    service_pid: int | None = None  # of the scheduler, which starts runs and resumes those that can continue
    storage_problem: str | None = None  # why the executor cannot write the state file and starts no task
    clock_offset_seconds: float = 0.0  # remote clock minus local clock
    read_only: str | None = None  # the reason, if commands are refused
    others: tuple[str, ...] = ()  # other consoles that are attached
    data_age_seconds: float = 0.0  # since the last message was received

    @property
    def connection_problem(self) -> str | None:
        """Why the connection is down; None while it is not."""
        return None if self.link is Link.LIVE else self.problem or str(self.link)

    @property
    def age_seconds(self) -> float:
        """Seconds since the data was last known to be current."""
        silent = self.heartbeat_age_seconds if self.executor_alive else None
        return max(self.data_age_seconds, silent or 0.0)

    @property
    def is_stale(self) -> bool:
        """Whether the screen may be out of date."""
        return self.connection_problem is not None or self.age_seconds >= STALE_SECONDS

    @property
    def dead_pid(self) -> int | None:
        """The process of an executor that ended without cleaning up."""
        return None if self.executor_alive or self.executor_stopped else self.executor_pid

    def shown_at(self, now_us: int) -> int:
        """The instant that the data shows: now, or when the last data came over a connection that is down."""
        return now_us if self.connection_problem is None else now_us - round(self.data_age_seconds * 1_000_000)

    def has_executor_of(self, run: RunRow) -> bool:
        return self.executor_alive and self.executor_run_id in (None, run.run_id)
