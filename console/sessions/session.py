"""A session: a run just started, a local state file, or one behind ssh; and how its answers are decoded.

The console receives every change through ``events``; the screen changes only when the event has arrived.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import islice
from threading import Lock
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import structs

from ...engine.clock import wall_time_us
from ...engine.core.projection import STATES, AttemptRow, RunProjection, TaskRow, children_of, set_columns
from ...engine.core.spec import TaskSpec, decode_task_spec
from ...engine.domain.acts import ActPreview, Command, Target, clean_actor, parse_answer
from ...engine.domain.event_codec import event_of, listed_event
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import KILL_STEPS, Event, EventRow
from ...engine.domain.rows import RunRow, RunSummary
from ...engine.domain.states import RunState, TaskState
from ...engine.domain.text import shell_command
from ...engine.errors import LinkError, NoAnswerError, RedriveError
from ...engine.statefile.durations import DurationStats
from ...engine.statefile.logs import AttemptText, FoundChunk, LogChunk
from ...engine.statefile.snapshot import unpack, unpack_table
from ..model.session_status import SessionStatus
from ..text.text import one_line

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


Value = TypeVar("Value")
Query = tuple[str, Mapping[str, object]]  # one of READS, and its options
Prefetch = Callable[[str | None], Sequence[Query]]  # what a command will ask about a run; None: the latest


def machine_now_us() -> int:
    """The clock of this machine, microseconds UTC: for what lies on it. A session has the clock of its host."""
    return wall_time_us()


class Session(Protocol):
    """A connection to a state file. All methods may raise RedriveError with one sentence for the operator.

    The questions stand here, once for all kinds of session; each kind has its own ``read``.

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

    def now_us(self) -> int:
        """Microseconds UTC by the clock of the host of the state file: what ages and countdowns are counted from."""
        return wall_time_us() + round(self.status.clock_offset_seconds * 1e6)

    async def read(self, decode: Callable[[Any], Value], question: Query) -> Value:
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

    def prefetch(self, questions: Iterable[Query]) -> None:
        """Send questions whose answers are read next: together they cost one round trip."""

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

    async def query(self, listing: Listing[Row], **options: Option) -> Sequence[Row]:
        """Return the rows of a list; ``statefile/lists.py`` defines the lists and the options of each."""
        return await self.read(partial(rows_of, listing.row), list_query(listing, **options))

    async def file_row(self) -> FileRow:
        """Return the row of the file as the list of a machine has it."""
        from ...engine.statefile.state_files import FileRow

        return await self.read(partial(row_of, FileRow), ("file", {}))

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


def no_queries(run_id: str | None) -> Sequence[Query]:
    """Nothing is asked ahead."""
    return ()


def board_query(run_id: str | None) -> Query:
    """A run with all its tasks."""
    return "board", {"run_id": run_id, "is_whole": True}


def part_query(run_id: str | None, names: Sequence[str] | None = None, has_blockers: bool = False) -> Query:
    """The question of ``Session.part``."""
    return "part", {"run_id": run_id, "names": names, "has_blockers": has_blockers}


def runs_query(run_id: str | None = None) -> Query:
    """The question of ``Session.runs``."""
    return "runs", {"run_id": run_id}


def list_query(listing: Listing[Row], **options: Option) -> Query:
    """The question of ``Session.query``."""
    return "query", {"what": listing.name, "options": options}


def log_query(run_id: str, task: str, attempt: int, /, **window: int | None) -> Query:
    """The question of ``Session.log``."""
    return "log", {"run_id": run_id, "name": task, "attempt": attempt, **window}


def causes_query(run_id: str | None, causes: Sequence[CauseKey] | None = None) -> Query:
    """The question of ``Session.cause_histories``."""
    return "cause_history", {"run_id": run_id, "causes": causes}


class LiveSession(Session, Protocol):
    """A session that yields what changes in the file: what a console and a command that follows need."""

    def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of the events after ``since``, without end, in order, each event once.

        An empty batch is a heartbeat or a change of ``status``; it comes only when all earlier events were yielded.
        Raises SnapshotNeeded when events no longer lead to the state of the file: it was replaced, truncated or
        pruned. A new call ends an earlier one.
        """


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


# --- Answers, as typed rows: each value is checked, for a far host may send anything ----------------------------------


#: What decoding raises for values of a wrong type, range or length.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Decode an answer in the block. Raises LinkError if the answer is malformed."""
    try:
        yield
    except RedriveError:
        raise
    except (*MALFORMED, msgspec.MsgspecError) as error:  # also texts that are not Unicode, and too deep values
        detail = f"{type(error).__name__}: {error}"[:200]
        raise LinkError(f"the remote host sent {what} that cannot be read: {detail}", final=True) from error


#: Several threads read local files, and msgspec (0.22) crashes the process if one of them converts a struct while
#: another prepares it, at its first use.
_one_at_a_time = Lock()


def row_of(kind: type[Value], sent: object) -> Value:
    """Convert ``sent`` to a ``kind``: a NamedTuple is sent as a list, a struct as an object.

    Raises LinkError if a value has another type.
    """
    with decoding(f"a {kind.__name__}"), _one_at_a_time:
        return msgspec.convert(sent, kind)


def rows_of(kind: type[Value], sent: object) -> list[Value]:
    """Convert ``sent`` to a list of ``kind``. Raises LinkError as ``row_of`` does."""
    with decoding(f"a list of {kind.__name__}"), _one_at_a_time:
        rows: list[Value] = msgspec.convert(sent, GenericAlias(list, kind))
    return rows


# --- The columns of a run, as a RunProjection -------------------------------------------------------------------------


_ATTEMPT_FIELDS = {*AttemptRow.__struct_fields__}

INSTANT_MAX_US = 253_370_764_800_000_000  # the year 9999, which has a local time in every zone
COLUMNS_MAX = 100  # of a table
CONSTANT_ROWS_MAX = 10_000  # of a table without a column that has one value per row

TableColumns = Mapping[str, Any]


def check_table(table: TableColumns) -> None:
    """Check that a table is not larger than the text that was sent for it: a few bytes can ask for gigabytes.

    Raises ValueError.
    """
    rows, columns = table["rows"], table["columns"]
    if len(columns) > COLUMNS_MAX:
        raise ValueError(f"a table with {len(columns):,} columns")
    if rows > max(CONSTANT_ROWS_MAX, *map(_sent_rows, columns.values()), 0):
        raise ValueError(f"a table that claims {rows:,} rows")


def _sent_rows(packed: Any) -> int:
    """The number of rows for which a column has a value of its own."""
    return len(packed) if isinstance(packed, list) else len(packed.get("step", ()))


def decode_events(rows: object) -> list[Event]:
    """Decode events from rows of their table. Raises LinkError."""
    with decoding("events"):
        found = rows_of(EventRow, rows)
        for row in found:
            check_instant(row.at)
        return [event_of(row, _parse) for row in found]


_parse = msgspec.json.Decoder().decode


async def listed_events(session: Session, listing: Listing[EventRow], **options: Option) -> list[Event]:
    """Read a list of events; a malformed payload hides no other event."""
    return list(map(listed_event, await session.query(listing, **options)))


def check_instant(instant_us: int) -> None:
    """Raises ValueError for a time that no calendar shows."""
    if not 0 <= instant_us <= INSTANT_MAX_US:
        raise ValueError(f"the time {instant_us} is out of range")


def decode_runs(sent: object) -> list[RunSummary]:
    """Decode the list of runs. Raises LinkError."""
    found = rows_of(RunSummary, sent)
    with decoding("a state of a run"):
        for one in found:
            RunState(one.run.state)
    return found


def decode_projection(board: TableColumns) -> RunProjection:
    """Decode a snapshot without the history of finished tasks, and without its edges where they are too many."""
    tasks = [_task_of(row) for row in _rows(board["tasks"])]
    names = [task.name for task in tasks]
    parents: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    if board["parents"] is not None:
        parents = _parents_of(board["parents"], names, names)
    for task, spec in zip(tasks, _specs_of(board["specs"], names, parents), strict=True):
        task.spec = spec
    _add_attempts(board, dict(enumerate(tasks)))
    run = row_of(RunRow, board["run"])
    RunState(run.state)
    return RunProjection(
        run=run,
        tasks={task.name: task for task in tasks},
        parents=parents,
        children=children_of(parents, parents),
        seq=board["seq"],
    )


def merge_history(projection: RunProjection, window: TableColumns, start: int = 0) -> bool:
    """Add the history of finished tasks, and parents that were left out. False: the tasks of the run have changed.

    ``start``: the place of the first task of the window.

    A task that has moved since keeps the columns from its events.
    """
    names = sorted(projection.tasks)
    if window["names"] != len(names):
        return False
    if window["parents"] is not None:
        _add_parents(projection, _parents_of(window["parents"], names[start : window["next"]], names))
    rows = list(_rows(window["tasks"]))
    places = unpack(window["places"], len(rows))
    tasks = {place: projection.tasks[names[place]] for place in places}
    for place, row in zip(places, rows, strict=True):
        task = tasks[place]
        if task.state is TaskState.SUCCESS and (task.attempt, task.generation) == (row["attempt"], row["generation"]):
            _set_sent(task, row)
    _add_attempts(window, tasks)
    return True


def _add_parents(projection: RunProjection, parents: dict[str, tuple[str, ...]]) -> None:
    projection.parents = projection.parents | parents
    projection.children = children_of(projection.parents, projection.parents)
    for name, found in parents.items():
        task = projection.tasks[name]
        if task.spec is not None:
            task.spec = structs.replace(task.spec, parents=found)


def _rows(table: TableColumns) -> Iterator[dict[str, Any]]:
    check_table(table)
    columns = unpack_table(dict(table))
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _task_of(row: TableColumns) -> TaskRow:
    task = TaskRow(row["name"])
    _set_sent(task, row)
    return task


def _set_sent(task: TaskRow, row: TableColumns) -> None:
    """Set the columns that were sent; those of a finished task follow with its history."""
    set_columns(task, {name: value for name, value in row.items() if value is not None})
    task.state = STATES[task.state]


def _add_attempts(sent: TableColumns, tasks: Mapping[int, TaskRow]) -> None:
    """Add attempts; those in the projection already came from events, which are newer."""
    added = set()
    for row in _rows(sent["attempts"]):
        place = row["place"]
        attempts = tasks[place].attempts
        if row["attempt"] not in attempts:
            attempts[row["attempt"]] = AttemptRow(**{name: row[name] for name in row.keys() & _ATTEMPT_FIELDS})
            added.add((place, row["attempt"]))
    for place, number, kind, value in sent["ladder"]:
        if (place, number) in added:
            setattr(tasks[place].attempts[number], KILL_STEPS[kind], value)


def _parents_of(sent: TableColumns, some: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the parents of ``some`` tasks, which are sent as indices into all ``names``."""
    check_table({"rows": sent["edges"], "columns": {"places": sent["places"]}})
    places = iter(unpack(sent["places"], sent["edges"]))
    counts = unpack(sent["counts"], len(some))
    return {
        name: tuple(names[place] for place in islice(places, count)) for name, count in zip(some, counts, strict=True)
    }


def _specs_of(sent: TableColumns, names: Sequence[str], parents: Mapping[str, tuple[str, ...]]) -> Iterator[TaskSpec]:
    """Yield the spec of each task. Most specs differ only in the name: each distinct one is decoded once."""
    distinct = [decode_task_spec(text) for text in sent["distinct"]]
    for name, place in zip(names, unpack(sent["places"], len(names)), strict=True):
        yield structs.replace(distinct[place], name=name, parents=parents[name])
