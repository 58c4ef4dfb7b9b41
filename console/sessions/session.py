"""A door to runs: the one just started, a local state file, or one behind ssh. One interface, one test suite for all.

The console learns of everything by ``events``; nothing on the screen changes before the event came back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...engine.core.cause_history import Memory
from ...engine.core.projection import RunFold, RunRow
from ...engine.domain.command import Answer, Command
from ...engine.domain.events import Event
from ...engine.statefile.duration_stats import Usual
from ...engine.statefile.on_demand.failure_queries import FailedTask
from ...engine.statefile.queries import Listing, Option, Row

Cause = tuple[str, str | None]  # loose fingerprint, downstream; None: whichever


class Link(StrEnum):
    """How the door itself is."""

    LIVE = "live"
    CONNECTING = "connecting"
    STALE = "stale"  # nothing heard for too long: the picture is the last good one
    CLOSED = "closed"  # for good; ``SessionStatus.trouble`` says why


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What the header says about the picture itself. Ages in seconds, by the local monotonic clock."""

    link: Link
    trouble: str | None = None  # one sentence
    retry_in_seconds: float | None = None
    executor_alive: bool = False
    heartbeat_age_seconds: float | None = None
    executor_gone_at: int | None = None  # microseconds UTC
    executor_pid: int | None = None  # of the latest one, alive or not
    executor_run_id: str | None = None  # that it runs, or had
    executor_stopped: bool = False  # it has left in order: it did not die
    service_pid: int | None = None  # of who starts runs by a schedule, and takes up again what can move
    storage_trouble: str | None = None  # why the executor cannot write the state file, and starts nothing
    clock_offset_seconds: float = 0.0  # theirs minus ours
    read_only: str | None = None  # why, if nothing can be sent
    others: tuple[str, ...] = ()  # who else is attached
    picture_age_seconds: float = 0.0  # since anything was heard through the door


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of the list of runs."""

    run: RunRow
    counts: dict[str, int]  # TaskState -> tasks
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class AttemptText:
    """The long texts of one attempt, read on demand."""

    traceback: str = ""
    stack: str = ""
    diagnostic: str = ""
    fingerprint_detail: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of an attempt's output, in order of ``id``. ``tail``: before the first such piece lies what was dropped,
    if anything was."""

    id: int
    at: int
    text: str
    tail: bool = False


class Session(Protocol):
    """A door. All methods may raise RedriveError with one sentence for the operator."""

    @property
    def address(self) -> str:
        """Host and file, for the header."""

    @property
    def status(self) -> SessionStatus:
        """As of now; cheap."""

    async def runs(self) -> Sequence[RunSummary]:
        """Every run of the file, latest first."""

    async def snapshot(self, run_id: str | None = None, patience_seconds: float | None = None) -> RunFold:
        """A run (default: the latest) as of ``fold.seq``.

        With ``patience_seconds`` a slow line hands out a picture in which tasks that are done do not say yet when they
        ran; ``events`` raises SnapshotNeeded when that has come, and the next snapshot is the same fold, whole.
        """

    def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Batches of what came after ``since``, for ever, in order, none twice.

        A batch may be empty: a heartbeat, or a change of ``status``; it comes only when all that was told so far has
        been given. Raises SnapshotNeeded when events no longer lead to the true picture: the file was replaced, cut
        back or pruned. One at a time: a new call ends an earlier one.
        """

    async def past(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """The first ``limit`` events of a run after ``after``, in order; beside ``events``, which goes on."""

    async def usual(self, run_id: str) -> Mapping[str, Usual]:
        """How long the tasks of a run took in the runs of its flow before it; tasks that nothing is known of are left
        out. May take the far side a fifth of a second: ask once."""

    async def send(self, command: Command) -> Answer:
        """Ask for an act. May be repeated with the same id: the second time changes nothing."""

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Traceback, stack and diagnostic of one attempt."""

    async def log(self, run_id: str, task: str, attempt: int, after: int = 0, limit: int = 500) -> Sequence[LogChunk]:
        """A window of its output: the chunks after ``after``; with ``after`` < 0, the last ``limit`` ones."""

    async def query(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """The rows of a list beside a run; ``statefile/queries.py`` has the lists, and the options of each."""

    async def memory(self, run_id: str, causes: Sequence[Cause]) -> Sequence[Memory]:
        """What came of each of ``causes`` before, in their order; of very many the first."""

    async def failures(self, run_id: str, downstream: str | None, names: Sequence[str] = ()) -> Sequence[FailedTask]:
        """Tasks that failed and call ``downstream``, or are among ``names``, in all runs of the flow of a run."""

    async def preview(self, command: Command) -> Mapping[str, object]:
        """What an act would do, without doing it."""

    async def close(self) -> None:
        """Leave. The run goes on."""
