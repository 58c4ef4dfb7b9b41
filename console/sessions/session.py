"""A session: a run just started, a local state file, or one behind ssh. One test suite covers all.

The console receives every change through ``events``; the screen changes only when the event has arrived.
"""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...engine.core.projection import RunSummary
from ...engine.domain.acts import Command, Target, clean_actor
from ...engine.domain.states import FailedTask
from ...engine.statefile.logs import AttemptText, FoundChunk, LogChunk, SelectedLines
from ..model.board import SessionStatus
from . import decode
from .decode import row_of, rows_of

if TYPE_CHECKING:
    from ...engine.core.causes import CauseHistory
    from ...engine.core.projection import RunProjection, Successes
    from ...engine.domain.acts import Answer
    from ...engine.domain.events import Event
    from ...engine.domain.states import TaskUsage
    from ...engine.statefile.dry_run import ActPreview
    from ...engine.statefile.lists import DurationStats, Listing, Option, Row
    from ...engine.statefile.pruning import PrunePreview

Value = TypeVar("Value")
Cause = tuple[str, str | None]  # loose fingerprint, downstream; None: any downstream


class Session(Protocol):
    """One connection to a state file. All methods may raise RedriveError with one sentence for the operator.

    The questions stand here, once for all kinds of session; each kind has its own ``ask``.
    """

    @property
    def address(self) -> str:
        """Host and file, for the header."""

    @property
    def ssh_arguments(self) -> Sequence[str]:
        """What a printed command needs beside the address to reach the file."""
        return ()

    @property
    def status(self) -> SessionStatus:
        """The current status; cheap."""

    async def ask(self, decode: Callable[[Any], Value], what: str, /, **options: object) -> Value:
        """Ask one of ``READS`` (``engine/statefile/reader.py``), and return the answer as ``decode`` reads it."""

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        """Return a run (default: the latest) as of the event ``seq`` of the projection.

        ``successes``: of the tasks that succeeded, "times" asks for no more than when they ran, and "states" for their
        state and how often they ran.

        With ``patience_seconds`` a slow connection returns a projection in which finished tasks lack their times;
        ``events`` raises SnapshotNeeded when the times have arrived, and the next snapshot is the complete projection.
        """

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        """Return a run with the tasks ``names`` at least; None: with what its inbox shows.

        ``has_blockers``: also with all that explains why these tasks wait.

        No events follow it. Over ssh it is the whole run.
        """
        return await self.snapshot(run_id)

    def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of the events after ``since``, without end, in order, each event once.

        An empty batch is a heartbeat or a change of ``status``; it comes only when all earlier events were yielded.
        Raises SnapshotNeeded when events no longer lead to the state of the file: it was replaced, truncated or
        pruned. A new call ends an earlier one.
        """

    async def send(self, command: Command) -> Answer:
        """Send a command. Sending it again with the same id changes nothing."""

    async def usage(self) -> Sequence[TaskUsage]:
        """Return what the running tasks use now. The executor reads it when it is asked, once a second at most."""

    async def close(self) -> None:
        """Disconnect. The run continues."""

    # --- Questions ------------------------------------------------------------------------------------------------

    async def runs(self) -> Sequence[RunSummary]:
        """Every run of the file, latest first."""
        return await self.ask(decode.decode_runs, "runs")

    async def run_events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """Return the first ``limit`` events of a run after the event ``after``, in order; independent of ``events``."""
        return await self.ask(decode.decode_events, "past", run_id=run_id, after=after, limit=limit)

    async def duration_stats(self, run_id: str) -> Mapping[str, DurationStats]:
        """Return how long the tasks of a run took in earlier runs of its flow; tasks without an earlier run are absent.
        May take the remote host 0.2 s: request it once."""
        return await self.ask(decode.decode_durations, "duration_stats", run_id=run_id)

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Return traceback, stack and diagnostic of one attempt."""
        return await self.ask(partial(row_of, AttemptText), "attempt_text", run_id=run_id, name=task, attempt=attempt)

    async def log(
        self, run_id: str, task: str, attempt: int, after: int = 0, limit: int = 500, before: int | None = None
    ) -> Sequence[LogChunk]:
        """Return ``limit`` chunks of its output: the first ones after ``after``, or the last ones before ``before``;
        with ``after`` < 0, the last ones of all."""
        where = {"run_id": run_id, "name": task, "attempt": attempt}
        return await self.ask(partial(rows_of, LogChunk), "log", **where, after=after, limit=limit, before=before)

    async def find_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, before: int | None = None
    ) -> tuple[int | None, int | None]:
        """Find the first line after the chunk ``after`` that matches a regular expression, or the last one before
        ``before``: the chunk with the match, and where to go on: None at the end of the output."""
        where = {"run_id": run_id, "name": task, "attempt": attempt}
        return await self.ask(partial(row_of, FoundChunk), "find", **where, pattern=pattern, after=after, before=before)

    async def select_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, rest: str = ""
    ) -> SelectedLines:
        """Return the lines after the chunk ``after`` that match a regular expression, of a slice of the output.
        ``rest``: of the call before."""
        where = {"run_id": run_id, "name": task, "attempt": attempt}
        return await self.ask(
            partial(row_of, SelectedLines), "select", **where, pattern=pattern, after=after, rest=rest
        )

    async def query(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """Return the rows of a list; ``statefile/lists.py`` defines the lists and the options of each."""
        return await self.ask(partial(rows_of, listing.row), "query", what=listing.name, options=options)

    async def cause_histories(self, run_id: str, causes: Sequence[Cause]) -> Sequence[CauseHistory]:
        """Return the past incidents of each of ``causes``, in their order; of very many causes only the first."""
        from ...engine.core.causes import CauseHistory

        return await self.ask(partial(rows_of, CauseHistory), "cause_history", run_id=run_id, causes=causes)

    async def failures(self, run_id: str, downstream: str | None, names: Sequence[str] = ()) -> Sequence[FailedTask]:
        """Return failed tasks that call ``downstream`` or are among ``names``, in all runs of the same flow."""
        options = {"run_id": run_id, "downstream": downstream, "names": names}
        return await self.ask(partial(rows_of, FailedTask), "failures", **options)

    async def preview(self, command: Command) -> ActPreview:
        """Return what an act on tasks would change, without applying it."""
        from ...engine.statefile.dry_run import ActPreview

        return await self.ask(partial(row_of, ActPreview), "preview", command=command.as_json())

    async def preview_prune(self, options: Mapping[str, int | float]) -> PrunePreview:
        """Return what the act ``prune`` would delete with these options."""
        from ...engine.statefile.pruning import PrunePreview

        return await self.ask(partial(row_of, PrunePreview), "preview_prune", options=options)


# --- The operator of this console, and the operators of other consoles -----------------------------------------------


def current_actor() -> str:
    """Return ``user@host``, the actor of commands from this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return clean_actor(f"{user}@{socket.gethostname()}")


def other_actors(present: Sequence[str], actor: str) -> tuple[str, ...]:
    """Return ``present`` without one entry of ``actor``, who may have a second console open."""
    rest = list(present)
    if actor in rest:
        rest.remove(actor)
    return tuple(rest)


def new_command(
    act: str,
    run_id: str | None,
    targets: Sequence[Target] = (),
    reason: str = "",
    options: Mapping[str, object] = MappingProxyType({}),
) -> Command:
    """Return a command of this operator with an id of its own. ``options``: of the act."""
    return Command(uuid.uuid4().hex, act, run_id, tuple(targets), current_actor(), reason, dict(options))
