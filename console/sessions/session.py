"""The interface of a session: a run just started, a local state file, or one behind ssh. One test suite covers all.

The console receives every change through ``events``; the screen changes only when the event has arrived.
"""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ...engine.domain.acts import Command, Target, clean_actor
from ..model.status import RunSummary, SessionStatus

if TYPE_CHECKING:
    from ...engine.core.causes import CauseHistory
    from ...engine.core.projection import RunProjection
    from ...engine.domain.acts import Answer
    from ...engine.domain.events import Event
    from ...engine.domain.states import FailedTask, TaskUsage
    from ...engine.statefile.dry_run import ActPreview
    from ...engine.statefile.lists import DurationStats, Listing, Option, Row
    from ...engine.statefile.logs import AttemptText, LogChunk, SelectedLines
    from ...engine.statefile.pruning import PrunePreview

Cause = tuple[str, str | None]  # loose fingerprint, downstream; None: any downstream


class Session(Protocol):
    """One connection to a state file. All methods may raise RedriveError with one sentence for the operator."""

    @property
    def address(self) -> str:
        """Host and file, for the header."""

    @property
    def status(self) -> SessionStatus:
        """The current status; cheap."""

    async def runs(self) -> Sequence[RunSummary]:
        """Every run of the file, latest first."""

    async def snapshot(self, run_id: str | None = None, patience_seconds: float | None = None) -> RunProjection:
        """Return a run (default: the latest) as of the event ``seq`` of the projection.

        With ``patience_seconds`` a slow connection returns a projection in which finished tasks lack their times;
        ``events`` raises SnapshotNeeded when the times have arrived, and the next snapshot is the complete projection.
        """

    async def part(self, run_id: str | None = None, names: Sequence[str] = ()) -> RunProjection:
        """Return a run with the tasks ``names`` at least; without names, with what its inbox shows.

        No events follow it. Over ssh it is the whole run.
        """

    def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of the events after ``since``, without end, in order, each event once.

        An empty batch is a heartbeat or a change of ``status``; it comes only when all earlier events were yielded.
        Raises SnapshotNeeded when events no longer lead to the state of the file: it was replaced, truncated or
        pruned. A new call ends an earlier one.
        """

    async def run_events(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """Return the first ``limit`` events of a run after the event ``after``, in order; independent of ``events``."""

    async def duration_stats(self, run_id: str) -> Mapping[str, DurationStats]:
        """Return how long the tasks of a run took in earlier runs of its flow; tasks without an earlier run are absent.
        May take the remote host 0.2 s: request it once."""

    async def send(self, command: Command) -> Answer:
        """Send a command. Sending it again with the same id changes nothing."""

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Return traceback, stack and diagnostic of one attempt."""

    async def log(
        self, run_id: str, task: str, attempt: int, after: int = 0, limit: int = 500, before: int | None = None
    ) -> Sequence[LogChunk]:
        """Return ``limit`` chunks of its output: the first ones after ``after``, or the last ones before ``before``;
        with ``after`` < 0, the last ones of all."""

    async def find_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, before: int | None = None
    ) -> tuple[int | None, int | None]:
        """Find the first line after the chunk ``after`` that matches a regular expression, or the last one before
        ``before``: the chunk with the match, and where to go on: None at the end of the output."""

    async def select_in_log(
        self, run_id: str, task: str, attempt: int, pattern: str, after: int = 0, rest: str = ""
    ) -> SelectedLines:
        """Return the lines after the chunk ``after`` that match a regular expression, of a slice of the output.
        ``rest``: of the call before."""

    async def usage(self) -> Sequence[TaskUsage]:
        """Return what the running tasks use now. The executor reads it when it is asked, once a second at most."""

    async def query(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """Return the rows of a list; ``statefile/lists.py`` defines the lists and the options of each."""

    async def cause_histories(self, run_id: str, causes: Sequence[Cause]) -> Sequence[CauseHistory]:
        """Return the past incidents of each of ``causes``, in their order; of very many causes only the first."""

    async def failures(self, run_id: str, downstream: str | None, names: Sequence[str] = ()) -> Sequence[FailedTask]:
        """Return failed tasks that call ``downstream`` or are among ``names``, in all runs of the same flow."""

    async def preview(self, command: Command) -> ActPreview:
        """Return what an act on tasks would change, without applying it."""

    async def preview_prune(self, options: Mapping[str, int | float]) -> PrunePreview:
        """Return what the act ``prune`` would delete with these options."""

    async def close(self) -> None:
        """Disconnect. The run continues."""


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
