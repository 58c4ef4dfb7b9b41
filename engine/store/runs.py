"""Rows of runs: creates runs, loads a run as a projection, and counts what earlier runs took.

Writing functions take a Transaction and belong to the caller's transaction; reading functions take a connection.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from ..core.advice import PastDuration, past_duration
from ..core.causes import declared_sender
from ..core.dag import distinct
from ..core.projection import STATES, AttemptRow, RunProjection, Successes, TaskRow, children_of, order_parents
from ..core.spec import FlowSpec, ItemSpec, TaskSpec, collector_paused, decode_task_spec, positions_of, rule_of_edge
from ..domain import states
from ..domain.event_payloads import RunChange, RunChanged, RunColumns
from ..domain.events import KILL_STEPS
from ..domain.rows import RunRow
from ..domain.states import RunState, TaskState
from ..domain.task_options import child_bounds
from ..domain.text import shell_command
from ..errors import NotFoundError, RefusedError
from ..statefile import durations
from ..statefile.parts import names_of_part
from ..statefile.reader import latest_seq
from ..statefile.snapshot import kill_steps, read_run, read_snapshot
from ..statefile.sql import in_list, run_columns
from ..statefile.supervisor_file import read_known
from ..statefile.transitions import UNSATISFIED_PARENT, Transaction
from .database import path_of

_VALUES_PER_INSERT = 30_000


# --- Create --------------------------------------------------------------------------------------------------------


def create_run(
    transaction: Transaction,
    *,
    run_id: str,
    flow: FlowSpec,
    max_parallel: int,
    params: Mapping[str, object],
    at: int,
    deadline_at: int | None,
    logical_time: int | None = None,
    python_path: str | None = None,
    is_backfill: bool = False,
) -> None:
    """Insert a run with its tasks and edges, with one event. Times are microseconds UTC.

    Raises RefusedError if the file has a run of this name already.
    """
    columns: RunColumns = {
        "dag_name": flow.name,
        "started_at": at,
        "state": str(RunState.RUNNING),
        "deadline_at": deadline_at,
        "max_parallel": max_parallel,
        "flow_path": flow.path,
        "params": json.dumps(dict(params), ensure_ascii=False),
        "options": options_of(flow, is_backfill=is_backfill),
        "code_hash": flow.code_hash,
    }
    if python_path:
        columns["python_path"] = python_path
    if logical_time is not None:
        columns["logical_time"] = logical_time
    connection = transaction.connection
    if exists(connection, run_id):
        raise RefusedError(f"run {run_id!r} is in this state file already; resume it, or give another --run-id")
    from ..statefile.map_tasks import insert_edges  # here, as all that only writing needs: each list reads runs
    from ..statefile.pruning import finish_pruning

    finish_pruning(connection, run_id)
    transaction.insert("run", {"run_id": run_id, **columns})
    _insert_many(
        connection,
        "task (run_id, name, state, max_attempts, position, rule, spec)",
        f"(?,?,'{TaskState.PENDING}',?,?,?,?)",
        [value for row in _task_rows(flow.tasks) for value in (run_id, *row)],
    )
    _insert_many(
        connection,
        "edge (run_id, child, parent)",
        "(?,?,?)",
        [
            value
            for task in flow.tasks
            if task.map is None
            for parent in distinct(task.parents)
            for value in (run_id, task.name, parent)
        ],
    )
    for task in flow.tasks:
        if task.map is not None:
            insert_edges(connection, run_id, task.name, {parent: rule_of_edge(task, parent) for parent in task.parents})
    created = RunChanged(RunChange.CREATED, columns, tasks=len(flow.tasks))
    transaction.emit(created, run_id, new=str(RunState.RUNNING))


def _insert_many(connection: sqlite3.Connection, into: str, row: str, values: Sequence[object]) -> None:
    """Insert rows of a run, whose values stand one after another: two thirds of the time of a statement for each row.

    ``row``: what stands for one of them in the statement. Few long statements let other threads work.
    """
    columns = row.count("?")
    size = columns * (min(connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER), _VALUES_PER_INSERT) // columns)
    for start in range(0, len(values), size):
        some = values[start : start + size]
        connection.execute(f"INSERT INTO {into} VALUES {','.join([row] * (len(some) // columns))}", some)


def options_of(flow: FlowSpec, *, is_backfill: bool = False) -> str:
    """Return the options of a flow (pools, pages, TTL, deadline_action, ...) as JSON, as stored in the run.

    Of a sender of pages only its kind, its host and a hash: the executor takes its options from the flow file.
    """
    senders = [declared_sender(options) for options in flow.pages]
    options: dict[str, object] = {"pools": flow.pools, "downstreams": flow.downstreams, "pages": senders}
    if is_backfill:
        options["backfill"] = True
    if flow.param_types:
        options["params"] = flow.param_types
    if flow.deadline_action != states.END:
        options["deadline_action"] = flow.deadline_action
    if flow.page_after > 1:
        options["page_after"] = flow.page_after
    if flow.dead_letter_ttl is not None:
        options["dead_letter_ttl"] = flow.dead_letter_ttl
    return msgspec.json.encode(options).decode()


def _task_rows(tasks: Sequence[TaskSpec]) -> Iterator[tuple[object, ...]]:
    encode = msgspec.json.Encoder().encode
    for position, task in zip(positions_of(tasks), tasks, strict=True):
        yield task.name, task.retry.max_attempts, position, task.rule, encode(task).decode()


# --- Read ----------------------------------------------------------------------------------------------------------

_FROM_EVENTS = frozenset(KILL_STEPS.values())
_NOT_IN_TASK = ("changed_seq", "changed_at", "spec", "attempts")
_TASK_COLUMNS = [name for name in TaskRow.__struct_fields__ if name not in _NOT_IN_TASK]
_NO_SPEC = "{}"
_SHARED_SPECS_MAX = 1000
_TASKS = f"SELECT spec, {', '.join(_TASK_COLUMNS)} FROM task WHERE run_id = ?"
_ATTEMPT_COLUMNS = ", ".join(name for name in AttemptRow.__struct_fields__ if name not in _FROM_EVENTS)


def load_run(
    connection: sqlite3.Connection, run_id: str | None, *, has_attempts: bool = True, successes: Successes = "all"
) -> RunProjection:
    """Return the current state of a run (None: of the latest), perhaps without its attempts; its ``seq`` is the latest
    event of the file.

    ``successes``: with "states", tasks that succeeded have only what a list of states shows, in a third of the time,
    and no task has the instant of its latest event.

    Raises NotFoundError if the file has no such run.
    """
    with read_snapshot(connection), collector_paused():
        run = read_run(connection, run_id)
        if successes == "all":
            return _load(connection, run, None, (), has_attempts)
        names = [name for (name,) in connection.execute(_NOT_SUCCESSFUL, (run.run_id,))]
        return _load(connection, run, names, _read_successes(connection, run.run_id), has_attempts)


def load_part(
    connection: sqlite3.Connection,
    run_id: str | None,
    names: Sequence[str] | None = None,
    *,
    has_blockers: bool = False,
) -> RunProjection:
    """Return what ``load_run`` returns with the tasks ``names`` alone, without the instants of their latest events.

    ``names`` and ``has_blockers``: as of ``names_of_part``. The cost is that of the tasks, not of the run.
    """
    with read_snapshot(connection), collector_paused():
        run = read_run(connection, run_id)
        return _load(connection, run, names_of_part(connection, run, names, has_blockers))


def _load(
    connection: sqlite3.Connection,
    run: RunRow,
    names: Sequence[str] | None,
    others: Iterable[TaskRow] = (),
    has_attempts: bool = True,
) -> RunProjection:
    """Load the tasks ``names``, None: all, with the instants of their latest events. ``others``: as they were read."""
    run_id, seq = run.run_id, latest_seq(connection)
    share: Share = dict[object, object]().setdefault
    tasks = _read_tasks(connection, run_id, share, names, others)
    parents, children = _read_edges(connection, run_id, tasks, names)
    if has_attempts:
        _read_attempts(connection, run_id, tasks, share, names)
    if names is None:
        _read_changed(connection, run_id, tasks, share)
    return RunProjection(run, tasks, parents, children, seq, has_attempts)


def load_run_alone(connection: sqlite3.Connection, run_id: str) -> RunProjection:
    """Return what ``load_run`` returns, without the tasks: those of a new run are known."""
    return RunProjection(read_run(connection, run_id), seq=latest_seq(connection))


def _part_of(column: str, names: Sequence[str] | None) -> tuple[str, tuple[str, ...]]:
    """Return the end of a condition that selects rows of some tasks, and its values; None: of all tasks."""
    return ("", ()) if names is None else (f" AND {column} IN (SELECT value FROM json_each(?))", (json.dumps(names),))


#: By the index of states, which has no use for "another state than this".
_NOT_SUCCESSFUL = f"SELECT name FROM task WHERE run_id = ? AND state IN {in_list({*TaskState} - {TaskState.SUCCESS})}"
_SUCCESS_COLUMNS = "name, attempt, max_attempts, generation, failures, stale, notice, skip_cause, position"
_SUCCESSES = f"SELECT {_SUCCESS_COLUMNS} FROM task WHERE run_id = ? AND state = '{TaskState.SUCCESS}'"


def _read_successes(connection: sqlite3.Connection, run_id: str) -> list[TaskRow]:
    """Read what a list of states shows of the tasks that succeeded."""
    columns, rows = _SUCCESS_COLUMNS.split(", "), connection.execute(_SUCCESSES, (run_id,))
    return [TaskRow(**dict(zip(columns, values, strict=True)), state=TaskState.SUCCESS) for values in rows]


#: Returns the first of equal values, given twice: a run has most instants, hosts and hashes many times.
Share = Callable[[object, object], Any]


def _read_tasks(
    connection: sqlite3.Connection, run_id: str, share: Share, names: Sequence[str] | None, others: Iterable[TaskRow]
) -> dict[str, TaskRow]:
    """Read the tasks in the order of the flow. ``others``: rows beside them that were read already."""
    part, values_of_part = _part_of("name", names)
    rows, specs = list(others), dict[str, TaskSpec]()
    for spec, name, state, *values in connection.execute(_TASKS + part, (run_id, *values_of_part)):
        row = TaskRow(name, STATES[state], *map(share, values, values))
        row.spec = _spec_of(name, spec, specs)
        rows.append(row)
    rows.sort(key=attrgetter("position", "name"))
    return {row.name: row for row in rows}


def _spec_of(name: str, text: str, known: dict[str, TaskSpec]) -> TaskSpec:
    """Decode a spec. Many differ in the name alone, of which each takes the values of the first."""
    rest = text.removeprefix(f'{{"name":"{name}"')
    if len(rest) == len(text):
        return decode_task_spec(text) if text != _NO_SPEC else TaskSpec(name)
    first = known.get(rest) or decode_task_spec(text)
    if len(known) < _SHARED_SPECS_MAX:
        known[rest] = first
    return msgspec.structs.replace(first, name=name)


NamesByTask = dict[str, tuple[str, ...]]

#: In the order of the primary key: half the rows and none of the texts of a row for each edge.
_PARENTS = "SELECT child, group_concat(parent, char(0)) FROM edge WHERE run_id = ?{} GROUP BY child"


def _read_edges(
    connection: sqlite3.Connection, run_id: str, tasks: Mapping[str, TaskRow], names: Sequence[str] | None = None
) -> tuple[NamesByTask, NamesByTask]:
    """Return the parents in the order of the task's declaration, and the children in the order of the flow.

    ``names``: of these tasks alone, without parents that are not in ``tasks``.
    """
    parents: NamesByTask = dict.fromkeys(tasks, ())
    part, values = _part_of("child", names)
    for child, found in connection.execute(_PARENTS.format(part), (run_id, *values)):
        if names is not None:
            found = "\0".join(parent for parent in found.split("\0") if parent in tasks)
            if not found:
                continue
        spec = tasks[child].spec
        if spec is not None and "\0".join(sorted(spec.parents)) == found:
            parents[child] = spec.parents  # fast, and one object: most tasks of a large run
        else:
            parents[child] = order_parents(spec, found.split("\0"))
    return parents, children_of(tasks, parents)


def _read_attempts(
    connection: sqlite3.Connection, run_id: str, tasks: Mapping[str, TaskRow], share: Share, names: Sequence[str] | None
) -> None:
    """Read the attempts, and the steps of their kills, which only events record."""
    part, values_of_part = _part_of("name", names)
    for name, *values in connection.execute(_ATTEMPTS.format(part), (run_id, *values_of_part)):
        tasks[name].attempts[values[0]] = AttemptRow(*map(share, values, values))
    for name, number, kind, value in kill_steps(connection, run_id, tasks):
        attempt = tasks[name].attempts.get(number)
        if attempt is not None:
            setattr(attempt, KILL_STEPS[kind], value)


_ATTEMPTS = f"SELECT name, {_ATTEMPT_COLUMNS} FROM attempt WHERE run_id = ?{{}} ORDER BY name, attempt"


def _read_changed(connection: sqlite3.Connection, run_id: str, tasks: Mapping[str, TaskRow], share: Share) -> None:
    sql = "SELECT task, max(seq), at FROM event WHERE run_id = ? AND task IS NOT NULL GROUP BY task"
    for name, seq, at in connection.execute(sql, (run_id,)):
        if name in tasks:
            tasks[name].changed_seq, tasks[name].changed_at = seq, share(at, at)


class RunSource(NamedTuple):
    """The source of a run. ``flow_path``: where its flow is now; None: a program has built it."""

    flow_path: str | None = None
    params: Mapping[str, object] = {}
    python_path: tuple[str, ...] = ()  # PYTHONPATH of the start
    logical_time: int | None = None
    has_ended: bool = False


def find_source(connection: sqlite3.Connection, run_id: str) -> RunSource | None:
    """Return the source of a run; None: no such run."""
    columns = "dag_name, flow_path, params, python_path, logical_time, ended_at IS NOT NULL"
    row = run_columns(connection, run_id, columns)
    if row is None:
        return None
    flow, flow_path, params, python_path, logical_time, has_ended = row
    folders = tuple(python_path.split(os.pathsep)) if python_path else ()
    place = flow_path and _place_now(connection, flow, flow_path)
    return RunSource(place, json.loads(params), folders, logical_time, bool(has_ended))


def unknown_run(run_id: str, path: str) -> NotFoundError:
    """Return the error for a run that a state file does not have."""
    return NotFoundError(f"there is no run {run_id!r} in {path}; see {shell_command(['redrive', 'runs', path])}")


def _place_now(connection: sqlite3.Connection, flow: str, flow_path: str) -> str:
    """Return the target of a flow as a run has it; if its file is gone, where the flow was found since."""
    from ..flow.source import split_target  # here: listings do without

    if os.path.lexists(split_target(flow_path)[0]):
        return flow_path
    own = flow, path_of(connection)
    served = [row.target for row in read_known() if (row.flow, os.path.realpath(row.state_path or "")) == own]
    sql = "SELECT flow_path FROM run WHERE +dag_name = ? AND flow_path IS NOT NULL ORDER BY rowid DESC"
    places = served + [place for (place,) in connection.execute(sql, (flow,))]
    return next((place for place in places if os.path.lexists(split_target(place)[0])), flow_path)


def exists(connection: sqlite3.Connection, run_id: str) -> bool:
    """Return whether the file has a run of this name."""
    return run_columns(connection, run_id, "1") is not None


def run_state(connection: sqlite3.Connection, run_id: str) -> tuple[RunState, bool]:
    is_held = "blocked_since IS NOT NULL OR paused_since IS NOT NULL"
    state, is_held = run_columns(connection, run_id, f"state, {is_held}")
    return RunState(state), bool(is_held)


_AUDIT = (
    "SELECT name FROM task WHERE run_id = ? AND state = 'PENDING' AND (next_retry_at IS NULL OR next_retry_at <= ?)"
    " AND NOT EXISTS (" + UNSATISFIED_PARENT + ") ORDER BY position"
)


def ready_audit(connection: sqlite3.Connection, run_id: str, at: int = 0) -> list[str]:
    """Return the PENDING tasks that could be READY, as a reference for caches.

    ``at``: microseconds UTC, compared with ``not_before`` of the tasks.
    """
    return [name for (name,) in connection.execute(_AUDIT, (run_id, at))]


def unfinished_tasks(connection: sqlite3.Connection, run_id: str) -> list[str]:
    """Return the tasks of a run that have not ended, in the order of the flow."""
    sql = f"SELECT name FROM task WHERE run_id = ? AND state IN {in_list(states.MOVING)} ORDER BY position, name"
    return [name for (name,) in connection.execute(sql, (run_id,))]


def latest_run_id(connection: sqlite3.Connection) -> str | None:
    """Return the run that was started last; None: no runs."""
    row = connection.execute("SELECT run_id FROM run ORDER BY rowid DESC LIMIT 1").fetchone()
    return None if row is None else str(row[0])


def unfinished_run_ids(connection: sqlite3.Connection) -> list[str]:
    """Return the runs that have not ended, the latest first."""
    sql = "SELECT run_id FROM run WHERE ended_at IS NULL ORDER BY rowid DESC"
    return [run_id for (run_id,) in connection.execute(sql)]


# --- Statistics of earlier runs in the same file: durations of tasks, and failures that healed without help ----------


PAST_ATTEMPTS = 200


def past_by_task(connection: sqlite3.Connection, flow: FlowSpec) -> dict[str, list[PastDuration]]:
    """Return the latest attempts of each task of a flow; of a map task, those of all its children."""
    return {
        task.name: past_attempts(connection, task.name, flow.name)
        if task.map is None
        else _read_past(connection, _OF_CHILDREN, child_bounds(task.name), flow.name)
        for task in flow.tasks
    }


_PAST = (
    "SELECT started_at, duration_us, outcome, max_rss_kb FROM attempt WHERE {} AND outcome IN ('success', 'timed_out')"
    " AND duration_us IS NOT NULL"
    " AND (:dag_name IS NULL OR run_id IN (SELECT run_id FROM run WHERE dag_name = :dag_name))"
    " ORDER BY started_at DESC LIMIT :limit"
)


_OF_TASK, _OF_CHILDREN = "name = :first", "name >= :first AND name < :end"


def past_attempts(
    connection: sqlite3.Connection, name: str, dag_name: str | None = None, item: ItemSpec | None = None
) -> list[PastDuration]:
    """Return the latest attempts of a task that succeeded or timed out, the oldest first.

    ``item``: of a child of a map task; if it has few, the attempts of all children count.
    """
    found = _read_past(connection, _OF_TASK, (name, ""), dag_name)
    if item is None or len(found) >= durations.ELEMENT_MIN:
        return found
    return _read_past(connection, _OF_CHILDREN, child_bounds(item.task), dag_name)


def _read_past(
    connection: sqlite3.Connection, which: str, names: tuple[str, str], dag_name: str | None
) -> list[PastDuration]:
    values = {"first": names[0], "end": names[1], "dag_name": dag_name, "limit": PAST_ATTEMPTS}
    rows = connection.execute(_PAST.format(which), values).fetchall()
    return [past_duration(*row) for row in rows[::-1]]


def healed_count(connection: sqlite3.Connection, name: str, strict_fp: str) -> int:
    """Count the generations in which this failure of the task was followed by a success without an operator."""
    (count,) = connection.execute(
        "SELECT count(*) FROM (SELECT DISTINCT run_id, generation FROM attempt AS failed"
        f" WHERE name = ? AND fingerprint = ? AND outcome IN {in_list(states.FAILED_OUTCOMES)} AND EXISTS ("
        "SELECT 1 FROM attempt AS good WHERE good.run_id = failed.run_id AND good.name = failed.name"
        " AND good.generation = failed.generation AND good.attempt > failed.attempt AND good.outcome = 'success'))",
        (name, strict_fp),
    ).fetchone()
    return int(count)


# --- Names of tasks and causes in a state file, the latest first: for shell completion -------------------------


NAMES_MAX = 1000

TASK_NAMES = (
    "SELECT name, state FROM task WHERE run_id = coalesce(:run_id, (SELECT run_id FROM run ORDER BY rowid DESC"
    " LIMIT 1)) ORDER BY name LIMIT :limit"
)
CAUSE_NAMES = (
    "SELECT failure_fingerprint, min(error) FROM task WHERE failure_fingerprint IS NOT NULL"
    " GROUP BY failure_fingerprint ORDER BY max(ended_at) DESC LIMIT :limit"
)


def read_names(connection: sqlite3.Connection, sql: str, run_id: str | None = None) -> list[tuple[str, str]]:
    """Read names, each with a word about it, by one of the queries of this module."""
    options = {"run_id": run_id, "limit": NAMES_MAX}
    return [(str(name), str(about or "")) for name, about in connection.execute(sql, options)]
