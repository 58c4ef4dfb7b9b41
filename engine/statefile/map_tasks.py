"""Map tasks at run time: one child for each element of the list that another task returned.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``expand_below`` belongs to the transaction in which that task gets its result, and ``expand`` to the one that would
start the map task: a flow that was changed for a resume may map over a task that has succeeded already. Both may be
repeated. If the result is not a list, or is too long, nothing changes here: the map task fails when it starts.

When the list has changed after a requeue:

    child            element                    then
    -------------    -----------------------    ---------------------------------------------------------
    none             any                        added
    SUCCESS          the same                   its result stays, and it is not stale any more
    SUCCESS          another                    a new generation
    SKIPPED          the map task forgot it     a new generation
    any other        any                        unchanged: it gets the new element when it starts
    any              gone                       left out by the map task, and skipped unless it runs or succeeded
"""

import hashlib
import json
import sqlite3
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from ..domain.event_payloads import TaskMapped
from ..domain.states import FINISHED, RAN, SkipCause, TaskState
from ..domain.task_options import MAX_ATTEMPTS, child_name, child_position, child_prefix
from ..domain.trigger_rules import ALL_SUCCESS
from .large_results import load
from .lists import in_list
from .requeue import run_again, skip_generation
from .transitions import Transaction, hold_if_blocked, reevaluate, unpropagate

TUPLE_TAG = "redrive:tuple"  # of ``core/result_codec.py``
VANISHED = "the list has no such element any more"

#: SQL: the map tasks among the children of a task. No text inside a spec can contain these characters unescaped.
MAPS_BELOW = (
    "SELECT child.name FROM edge CROSS JOIN task AS child ON child.run_id = edge.run_id AND child.name = edge.child"
    " WHERE edge.run_id = {} AND edge.parent = {} AND instr(child.spec, '\"map\":{{') > 0 ORDER BY child.position"
)
_MAPS = MAPS_BELOW.format("?", "?")
_CHILD_COLUMNS = (
    "SELECT name, state, generation, stale, skip_cause, (SELECT input_hash FROM attempt"
    " WHERE attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt)"
    " FROM task WHERE run_id = ?"
)
_CHILD = _CHILD_COLUMNS + " AND name = ?"
_CHILDREN = _CHILD_COLUMNS + " AND name >= ? AND name < ?"
# CROSS JOIN: without statistics the planner may walk all tasks of the run for the parents of one.
_INPUTS = (
    "SELECT edge.parent, parent.state, parent.result FROM edge CROSS JOIN task AS parent"
    " ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ? ORDER BY edge.parent"
)


class _Child(NamedTuple):
    name: str
    state: str
    generation: int
    stale: int
    skip_cause: Optional[str]
    input_hash: Optional[str]  # of its latest attempt


def expand_below(transaction: Transaction, run_id: str, name: str) -> None:
    """Expand the map tasks over a task that has just got its result."""
    for (task,) in transaction.connection.execute(_MAPS, (run_id, name)).fetchall():
        if not name.startswith(child_prefix(task)):  # a child of the map task changes no list
            expand(transaction, run_id, task)
        else:
            _check_element(transaction, run_id, task, name)


def _check_element(transaction: Transaction, run_id: str, task: str, name: str) -> None:
    """Run a child again that has just succeeded, if the list has got another element for it meanwhile."""
    connection = transaction.connection
    child = _Child(*connection.execute(_CHILD, (run_id, name)).fetchone())
    if child.stale and _size(connection, run_id, json.loads(_spec(connection, run_id, task))["map"]) is not None:
        _run_again(transaction, run_id, child, True)
        hold_if_blocked(transaction, run_id, task)


def expand(transaction: Transaction, run_id: str, task: str) -> None:
    """Make the children of a map task those of the list as it is now, with one event."""
    connection = transaction.connection
    state, position, text = connection.execute(
        "SELECT state, position, spec FROM task WHERE run_id = ? AND name = ?", (run_id, task)
    ).fetchone()
    spec = json.loads(text)
    size = _size(connection, run_id, spec["map"])
    if size is None or state in (TaskState.SKIPPED, TaskState.CANCELLED):
        return
    prefix = child_prefix(task)
    rows = connection.execute(_CHILDREN, (run_id, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))
    known = {row[0]: _Child(*row) for row in rows}
    linked = _linked(connection, run_id, task) & set(known)
    wanted = {child_name(task, index): index for index in range(size)}
    added = [index for name, index in wanted.items() if name not in linked]
    removed = sorted(name for name in linked if name not in wanted)
    for index in added:
        if child_name(task, index) not in known:
            _insert(connection, run_id, spec, position, index)
    insert_edges(connection, run_id, task, [child_name(task, index) for index in added])
    connection.executemany(
        "DELETE FROM edge WHERE run_id = ? AND child = ? AND parent = ?", [(run_id, task, name) for name in removed]
    )
    if added or removed:
        numbers = sorted(int(name[len(prefix) : -1]) for name in removed)
        transaction.emit(TaskMapped(size, added, numbers), run_id, task)
    for name in removed:
        _skip_vanished(transaction, run_id, known[name])
    for name in wanted:
        if name in known:
            _run_again(transaction, run_id, known[name], name in linked)
        if len(spec.get("parents", ())) > 1:
            reevaluate(transaction, run_id, name)  # another parent may have failed
    unpropagate(transaction, run_id, [task])  # the child that stopped it may be gone
    hold_if_blocked(transaction, run_id, task)
    reevaluate(transaction, run_id, task)  # a child that is back may have failed


def input_hash(connection: sqlite3.Connection, run_id: str, name: str, item: Optional[Dict[str, Any]]) -> Optional[str]:
    """Hash the states and results of the parents; None for a task without parents.

    ``item``: of a child of a map task, of which only its own element of the list counts.
    """
    return hash_inputs(connection, run_id, read_inputs(connection, run_id, name), item)


def read_inputs(connection: sqlite3.Connection, run_id: str, name: str) -> List[Any]:
    """Read name, state and stored result of each parent."""
    return connection.execute(_INPUTS, (run_id, name)).fetchall()


def hash_inputs(
    connection: sqlite3.Connection, run_id: str, inputs: List[Any], item: Optional[Dict[str, Any]]
) -> Optional[str]:
    """Hash what ``read_inputs`` returns; see ``input_hash``."""
    if item is not None:
        inputs = [_element(connection, run_id, row, item["index"]) if row[0] == item["over"] else row for row in inputs]
    return hash_of(inputs) if inputs else None


def hash_of(*values: object) -> str:
    """Return a short hash to compare the inputs of two attempts."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _element(connection: sqlite3.Connection, run_id: str, row: Any, index: int) -> List[Any]:
    elements = _elements(load(connection, run_id, row[0], row[2]))
    return [row[0], elements[index] if elements is not None and index < len(elements) else None]


def _elements(result: Optional[str]) -> Optional[List[Any]]:
    """The elements of a stored result; None if it is neither a list nor a tuple."""
    found = None if result is None else json.loads(result)
    if isinstance(found, dict) and list(found) == [TUPLE_TAG]:
        found = found[TUPLE_TAG]
    return found if isinstance(found, list) else None


def _size(connection: sqlite3.Connection, run_id: str, mapping: Dict[str, Any]) -> Optional[int]:
    """The number of elements; None if there is no list that fits."""
    sql = "SELECT result FROM task WHERE run_id = ? AND name = ? AND state IN " + in_list(FINISHED)
    row = connection.execute(sql, (run_id, mapping["over"])).fetchone()
    elements = None if row is None else _elements(load(connection, run_id, mapping["over"], row[0]))
    return None if elements is None or len(elements) > mapping["max_size"] else len(elements)


def _spec(connection: sqlite3.Connection, run_id: str, name: str) -> str:
    (spec,) = connection.execute("SELECT spec FROM task WHERE run_id = ? AND name = ?", (run_id, name)).fetchone()
    return str(spec)


def _linked(connection: sqlite3.Connection, run_id: str, task: str) -> Set[str]:
    sql = "SELECT parent FROM edge WHERE run_id = ? AND child = ?"
    return {parent for (parent,) in connection.execute(sql, (run_id, task))}


def _insert(connection: sqlite3.Connection, run_id: str, spec: Dict[str, Any], position: int, index: int) -> None:
    """Insert a child; ``core/spec.py: child_spec`` makes the same spec."""
    child = spec["map"]["child"]
    name, item = child_name(spec["name"], index), {"task": spec["name"], "over": spec["map"]["over"], "index": index}
    text = json.dumps(dict(child, name=name, item=item), separators=(",", ":"), ensure_ascii=False)
    place, starts = child_position(position, index), child.get("retry", {}).get("max_attempts", MAX_ATTEMPTS)
    connection.execute(
        "INSERT INTO task (run_id, name, state, max_attempts, position, rule, spec) VALUES (?,?,'PENDING',?,?,?,?)",
        (run_id, name, starts, place, child.get("rule", ALL_SUCCESS), text),
    )
    insert_edges(connection, run_id, name, child["parents"])


def insert_edges(connection: sqlite3.Connection, run_id: str, child: str, parents: Iterable[str]) -> None:
    """Make a task wait for more parents."""
    sql = "INSERT INTO edge (run_id, child, parent) VALUES (?,?,?)"
    connection.executemany(sql, [(run_id, child, parent) for parent in parents])


def _skip_vanished(transaction: Transaction, run_id: str, child: _Child) -> None:
    """Skip a child whose element is gone; as a branch that is not taken, because it is not a failure."""
    if child.state == TaskState.SKIPPED and child.skip_cause == SkipCause.CASCADE:
        transaction.change(run_id, child.name, {"skip_cause": str(SkipCause.CONDITION)}, why=VANISHED)
    if child.state not in RAN and child.state != TaskState.SKIPPED:
        skip_generation(transaction, run_id, child.name, SkipCause.CONDITION, VANISHED)


def _run_again(transaction: Transaction, run_id: str, child: _Child, was_linked: bool) -> None:
    """Run a child again whose element is another one now."""
    if child.state == TaskState.SUCCESS and (child.stale or not was_linked):
        item = json.loads(_spec(transaction.connection, run_id, child.name))["item"]
        if input_hash(transaction.connection, run_id, child.name, item) == child.input_hash:
            if child.stale:
                transaction.change(run_id, child.name, {"stale": 0})
            return
    elif child.state != TaskState.SKIPPED or was_linked:
        return
    run_again(transaction, run_id, child.name, child.state, child.generation)
