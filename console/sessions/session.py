"""A session: a run just started, a local state file, or one behind ssh; its queries, and the commands it sends.

The console receives every change through ``events``; the screen changes only when the event has arrived.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ...engine.clock import wall_time_us
from ...engine.core.projection import RunProjection
from ...engine.domain.acts import ActPreview, Command, Target, clean_actor, parse_answer
from ...engine.domain.event_codec import listed_event
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event, EventRow
from ...engine.domain.rows import RunSummary
from ...engine.domain.text import shell_command
from ...engine.errors import LinkError, NoAnswerError
from ...engine.statefile.durations import DurationStats
from ...engine.statefile.logs import AttemptText, FoundChunk, LogChunk
from ..model.session_status import SessionStatus
from ..text.text import one_line
from .answers import Value, decode_events, decode_runs, row_of, rows_of

if TYPE_CHECKING:
    from ...engine.core.causes import CauseHistory
    from ...engine.core.projection import Successes
    from ...engine.domain.acts import Answer
    from ...engine.domain.liveness import TaskUsage
    from ...engine.statefile.causes import CauseKey
    from ...engine.statefile.lists import Listing, Option, Row
    from ...engine.statefile.pruning import PrunePreview
    from ...engine.statefile.state_files import FileRow
    from ...engine.statefile.supervisor_file import ServedSchedule


Query = tuple[str, Mapping[str, object]]  # one of READS, and its options


FILE_QUERY: Query = "file", {}  # of ``Session.file_row``


def machine_now_us() -> int:
    """The clock of this machine, microseconds UTC: for what lies on it. A session has the clock of its host."""
    return wall_time_us()


class Session(Protocol):
    """A connection to a state file. All methods may raise RedriveError with one sentence for the operator.

    The queries stand here, once for all kinds of session; each kind has its own ``read``.

    ``run_id``: the run that was named when the session was opened; None: the latest.
    """

    run_id: str | None = None

    @property
    def address(self) -> str:
        """Host and file, for the header."""

    @property
    def ssh_arguments(self) -> Sequence[str]:
        """The arguments that a printed command needs beside the address to reach the file."""
        return ()

    @property
    def status(self) -> SessionStatus:
        """The current status; cheap."""

    def has_executor(self) -> bool:
        """Whether an executor lives."""
        return self.status.executor.alive

    def now_us(self) -> int:
        """Microseconds UTC by the clock of the host of the state file: what ages and countdowns are counted from."""
        return wall_time_us() + round(self.status.clock_offset_seconds * 1e6)

    async def read(self, decode: Callable[[Any], Value], query: Query) -> Value:
        """Ask one of ``READS`` (``engine/statefile/reader.py``), and return the answer as ``decode`` reads it."""

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        """Return a run (default: the latest) as of the event ``seq`` of the projection.

        ``successes``: of the tasks that succeeded, "states" asks for no more than their state and how often they ran.

        With ``patience_seconds`` a slow connection returns a projection in which finished tasks lack their times;
        ``events`` raises SnapshotNeeded when the times have arrived, and the next snapshot is the complete projection.
        """

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        """Return a run with the tasks ``names`` at least; None: with what its inbox shows.

        ``has_blockers``: also with all that explains why these tasks wait.

        No events follow it.
        """
        return await self.snapshot(run_id)

    def prefetch(self, queries: Iterable[Query]) -> None:
        """Send queries whose answers are read next: together they cost one round trip."""

    async def send(self, command: Command) -> Answer:
        """Send a command. Sending it again with the same id changes nothing."""

    async def usage(self) -> Sequence[TaskUsage]:
        """Return what the running tasks use now. The executor reads it when it is asked, once a second at most."""

    async def close(self) -> None:
        """Disconnect. The run continues."""

    # --- Questions ------------------------------------------------------------------------------------------------

    async def runs(self, run_id: str | None = None) -> Sequence[RunSummary]:
        """Every run of the file, latest first; or one."""
        return await self.read(decode_runs, runs_query(run_id))

    async def run_events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """Return the first ``limit`` events of a run after the event ``after``, in order; independent of ``events``."""
        return await self.read(decode_events, ("past", {"run_id": run_id, "after": after, "limit": limit}))

    async def duration_stats(self, run_id: str) -> Mapping[str, DurationStats]:
        """Return how long the tasks of a run took in earlier runs of its flow; tasks without an earlier run are absent.
        May take the remote host 0.2 s: request it once."""
        return await self.read(partial(row_of, dict[str, DurationStats]), ("duration_stats", {"run_id": run_id}))

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Return traceback, stack and diagnostic of one attempt."""
        where = {"run_id": run_id, "name": task, "attempt": attempt}
        return await self.read(partial(row_of, AttemptText), ("attempt_text", where))

    async def log(self, run_id: str, task: str, attempt: int, /, **window: int | None) -> Sequence[LogChunk]:
        """Return ``limit`` chunks of its output: the first ones after ``after``, or the last ones before ``before``;
        with ``after`` < 0, the last ones of all; ``most``: so many characters end them as well."""
        return await self.read(partial(rows_of, LogChunk), log_query(run_id, task, attempt, **window))

    async def find_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, before: int | None = None
    ) -> tuple[int | None, int | None]:
        """Find the first line after the chunk ``after`` that matches a regular expression, or the last one before
        ``before``: the chunk with the match, and where to go on: None at the end of the output."""
        options = {"run_id": run_id, "name": task, "attempt": attempt, "pattern": pattern}
        return await self.read(partial(row_of, FoundChunk), ("find", {**options, "after": after, "before": before}))

    async def rows(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """Return the rows of a list; ``statefile/lists.py`` defines the lists and the options of each."""
        return await self.read(partial(rows_of, listing.row), rows_query(listing, **options))

    async def file_row(self) -> FileRow:
        """Return the row of the file as the list of a machine has it."""
        from ...engine.statefile.state_files import FileRow

        return await self.read(partial(row_of, FileRow), FILE_QUERY)

    async def supervised(self) -> Sequence[ServedSchedule]:
        """Return the schedules whose runs the file holds, as a supervisor knows them."""
        from ...engine.statefile.supervisor_file import ServedSchedule

        return await self.read(partial(rows_of, ServedSchedule), ("supervised", {}))

    async def cause_histories(
        self, run_id: str | None, causes: Sequence[CauseKey] | None = None
    ) -> Sequence[CauseHistory]:
        """Return the past incidents of each of ``causes``, in their order; of very many causes only the first.

        ``causes`` None: those of what needs a human.
        """
        from ...engine.core.causes import CauseHistory

        return await self.read(partial(rows_of, CauseHistory), causes_query(run_id, causes))

    async def preview(self, command: Command) -> ActPreview:
        """Return what an act on tasks would change, without applying it."""
        return await self.read(partial(row_of, ActPreview), ("preview", {"command": command.as_json()}))

    async def preview_prune(self, options: Mapping[str, int | float]) -> PrunePreview:
        """Return what the act ``prune`` would delete with these options."""
        from ...engine.statefile.pruning import PrunePreview

        return await self.read(partial(row_of, PrunePreview), ("preview_prune", {"options": options}))


# --- What ``prefetch`` takes ----------------------------------------------------------------------------------------


def about_run(query: Query, run_id: str) -> Query:
    """A query about the run that was named, which may have been made before its id was known."""
    name, options = query
    return (name, {**options, "run_id": run_id}) if "run_id" in options else query


def board_query(run_id: str | None = None) -> Query:
    """A run with all its tasks."""
    return "board", {"run_id": run_id, "is_whole": True}


def part_query(run_id: str | None = None, names: Sequence[str] | None = None, has_blockers: bool = False) -> Query:
    """The query of ``Session.part``."""
    return "part", {"run_id": run_id, "names": names, "has_blockers": has_blockers}


def runs_query(run_id: str | None = None) -> Query:
    """The query of ``Session.runs``."""
    return "runs", {"run_id": run_id}


def rows_query(listing: Listing[Row], **options: Option) -> Query:
    """The query of ``Session.rows``."""
    return "query", {"what": listing.name, "options": options}


def log_query(run_id: str, task: str, attempt: int, /, **window: int | None) -> Query:
    """The query of ``Session.log``."""
    return "log", {"run_id": run_id, "name": task, "attempt": attempt, **window}


def causes_query(run_id: str | None = None, causes: Sequence[CauseKey] | None = None) -> Query:
    """The query of ``Session.cause_histories``."""
    return "cause_history", {"run_id": run_id, "causes": causes}


class LiveSession(Session, Protocol):
    """A session that yields what changes in the file: what a console and a command that follows need."""

    def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of the events after ``since``, without end, in order, each event once.

        An empty batch is a heartbeat or a change of ``status``; it comes only when all earlier events were yielded.
        Raises SnapshotNeeded when events no longer lead to the state of the file: it was replaced, truncated or
        pruned. A new call ends an earlier one.
        """


async def listed_events(session: Session, listing: Listing[EventRow], **options: Option) -> list[Event]:
    """Read a list of events; a malformed payload hides no other event."""
    return list(map(listed_event, await session.rows(listing, **options)))


# --- The operator of this console, and the operators of other consoles -----------------------------------------------


def current_actor() -> str:
    """Return ``user@host``, the actor of commands from this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return clean_actor(f"{user}@{socket.gethostname()}")


def new_command(
    act: str,
    run_id: str | None,
    targets: Sequence[Target] = (),
    reason: str = "",
    options: Mapping[str, object] = MappingProxyType({}),
) -> Command:
    """Return a command of this operator with an id of its own, or with the next that was given. ``options``: of the
    act."""
    ids = given_ids.get()
    command_id = os.urandom(16).hex() if ids is None else ids.next()
    return Command(command_id, act, run_id, tuple(targets), current_actor(), reason, dict(options))


class CommandIds:
    """The ids of the commands that this process makes, as the operator has given them: ``first``, then ``first/2``."""

    def __init__(self, first: str) -> None:
        self.first = first
        self._made = 0

    def next(self) -> str:
        """The id of the next command."""
        self._made += 1
        return self.first if self._made == 1 else f"{self.first}/{self._made}"


given_ids: ContextVar[CommandIds | None] = ContextVar("given_ids", default=None)


async def answer_before(session: Session, act: str, names: Sequence[str], reason: str, options: Any) -> Answer | None:
    """The answer to an act whose id the operator gives again; None: it is a new one.

    Asked before the tasks are read that it means: the first one has changed them. ``options``: of the act; None: any.
    """
    from ...engine.statefile.lists import OPERATOR_ACTS
    from ...engine.statefile.undo import RecordedAct, answer_again

    ids = given_ids.get()
    found = [] if ids is None else await listed_events(session, OPERATOR_ACTS, command_id=ids.first)
    if ids is None or not found or not isinstance(acted := found[0].payload, OperatorActed):
        return None
    targets = tuple(Target(name, "", 0) for name in names)
    again = Command(ids.first, act, session.run_id, targets, "", reason, acted.options if options is None else options)
    first = found[0]
    return answer_again(
        RecordedAct(first.seq, first.run_id, first.actor, first.reason, parse_answer(acted.answer), acted), again
    )


def unanswered(command: Command, session: Session, error: LinkError) -> NoAnswerError:
    """The error for a command that was sent and not answered, with what to do."""
    place = [session.address, *session.ssh_arguments]
    ask = shell_command(["redrive", "events", *place, "--command-id", command.id])
    again = f"the same words with --command-id {command.id} do it once"
    return NoAnswerError(one_line(f"{command.act}: {error}; it may have been done: {ask} says so, and {again}"))
