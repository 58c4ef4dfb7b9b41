"""Map tasks at run time: one child for each element of the list that another task returned.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``expand_below`` belongs to the transaction in which that task gets its result, and ``expand`` to the one that would
start the map task: a flow that was changed for a resume may map over a task that has succeeded already. Both may be
repeated. If the result is not a list, or is too long, nothing changes here: the map task fails when it starts.

A child belongs to its element (``domain/elements.py``). When the list has changed after a requeue:

    element          child                          then
    -------------    ---------------------------    --------------------------------------------------------------
    new              none                           added, with a name that no other element of the run ever had
    as before        SUCCESS                        its result stays; not stale any more, unless another parent changed
    other value      SUCCESS, skipped itself        a new generation
    other value      SUCCESS, an effect             stays, stale, and its notice says so: nothing happens twice
    other value      FAILED, DEAD_LETTER            a new generation, but an effect waits for a human
    other value      RUNNING                        as after its success, when that comes
    any              any other                      unchanged: it gets the element as it is when it starts
    gone             RUNNING, SUCCESS               unchanged, but the map task does not wait for it or collect it
    gone             dead letter: may have happened the same: a human decides
    gone             any other                      SKIPPED; ``task.aside`` has what it was
    back             any                            what it was, and then as above

The place of an element in the list is the ``index`` in the spec of its child and orders its ``position``.
"""

import json
import sqlite3
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, cast

from ..domain import elements
from ..domain.event_payloads import TaskColumns, TaskMapped
from ..domain.states import (
    CHANGED_AFTER_EFFECT,
    FINISHED,
    MOVING,
    NEEDS_HUMAN,
    RAN,
    SkipCause,
    TaskState,
    may_have_happened,
)
from ..domain.task_options import MAX_ATTEMPTS, child_name, child_position, child_prefix
from ..domain.text import sha256_hex
from ..domain.trigger_rules import ALL_SUCCESS, edge_rule
from .action import TaskSnapshot, read_children, read_known_task
from .large_results import load
from .requeue import end_generation, run_again
from .sql import IS_MAP, in_list, task_columns
from .transitions import Transaction, hold_children, hold_if_blocked, rearm, reevaluate, resolve, unpropagate

TUPLE_TAG = "redrive:tuple"  # of ``core/result_codec.py``
IS_BACK = "the list has its element again"

#: SQL: the map tasks among the children of a task.
MAPS_BELOW = (
    "SELECT child.name FROM edge CROSS JOIN task AS child ON child.run_id = edge.run_id AND child.name = edge.child"
    " WHERE edge.run_id = {} AND edge.parent = {} AND " + IS_MAP.format("child") + " ORDER BY child.position"
)
_MAPS = MAPS_BELOW.format("?", "?")
_INPUT_HASH = "SELECT input_hash FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?"
#: The columns that a child has again when its element is back.
_ASIDE = ("state", "error", "skip_cause", "blocked_by", "ended_at", "next_retry_at", "expires_at")
# CROSS JOIN: without statistics the planner may walk all tasks of the run for the parents of one.
_INPUTS = (
    "SELECT edge.parent, parent.state, parent.result FROM edge CROSS JOIN task AS parent"
    " ON parent.run_id = edge.run_id AND parent.name = edge.parent"
    " WHERE edge.run_id = ? AND edge.child = ? ORDER BY edge.parent"
)


class _List(NamedTuple):
    """The list of a map task as it is now."""

    over: str
    elements: List[Any]
    keys: object  # of the elements, as the flow has computed them; None: not computed


def expand_below(transaction: Transaction, run_id: str, name: str) -> None:
    """Expand the map tasks over a task that has just got its result."""
    for (task,) in transaction.connection.execute(_MAPS, (run_id, name)).fetchall():
        if not name.startswith(child_prefix(task)):  # a child of the map task changes no list
            expand(transaction, run_id, task)
        else:
            _check_element(transaction, run_id, task, name)


def _check_element(transaction: Transaction, run_id: str, task: str, name: str) -> None:
    """Run a child again that has just succeeded, if its element has got another value meanwhile."""
    child = read_known_task(transaction.connection, run_id, name)
    found = _read_list(transaction.connection, run_id, task) if child.stale else None
    index = json.loads(child.spec)["item"]["index"]
    if found is not None and 0 <= index < len(found.elements):
        _run_again(transaction, run_id, child, found, index, was_linked=True)
        hold_if_blocked(transaction, run_id, task)


def expand(transaction: Transaction, run_id: str, task: str) -> Optional[str]:
    """Make the children of a map task those of the list as it is now, with one event.

    Returns why it has none, in one sentence, if its elements cannot be known; it has none as well until the keys of
    its elements are known, which its own attempt computes.
    """
    connection = transaction.connection
    state, position, text = task_columns(connection, run_id, task, "state, position, spec")
    spec = json.loads(text)
    found = _read_list(connection, run_id, task)
    if found is None or state in (TaskState.SKIPPED, TaskState.CANCELLED):
        return None
    known = read_children(connection, run_id, task)
    refusal, wanted = _identify(spec, found, known)
    linked = _linked(connection, run_id, task) & set(known)
    came = [name for name in wanted if name not in linked]
    gone = sorted(linked - set(wanted))
    has_moved = _place(transaction, run_id, spec, position, wanted, known, gone)
    insert_edges(connection, run_id, task, edge_rules(spec, came))
    connection.executemany(
        "DELETE FROM edge WHERE run_id = ? AND child = ? AND parent = ?", [(run_id, task, name) for name in gone]
    )
    if has_moved or came or gone:
        why = refusal or (None if len(wanted) == len(found.elements) else "the keys of its elements are not known yet")
        transaction.emit(
            TaskMapped(len(found.elements), names=list(wanted), came=came, gone=gone, why=why), run_id, task
        )
    for name in gone:
        _set_aside(transaction, run_id, known[name])
    for index, name in enumerate(wanted):
        if name in known:
            child = _restore_child(transaction, run_id, known[name])
            _run_again(transaction, run_id, child, found, index, was_linked=name in linked)
        if len(spec.get("parents", ())) > 1:
            reevaluate(transaction, run_id, name)  # another parent may have failed
    unpropagate(transaction, run_id, [task])  # the child that stopped it may be gone
    hold_if_blocked(transaction, run_id, task)
    reevaluate(transaction, run_id, task)  # a child that is back may have failed
    return refusal


def collect_again(transaction: Transaction, run_id: str, task: str) -> None:
    """Run a map task again that has succeeded with a list which its task has begun to make anew meanwhile."""
    sql = (
        "SELECT task.state, task.generation, task.stale, over.state, coalesce(over.ended_at > task.started_at, 1)"
        " FROM task JOIN task AS over ON over.run_id = task.run_id AND over.name = ?"
        " WHERE task.run_id = ? AND task.name = ?"
    )
    over = json.loads(_spec(transaction.connection, run_id, task))["map"]["over"]
    state, generation, stale, of_list, is_newer = transaction.connection.execute(sql, (over, run_id, task)).fetchone()
    if state == TaskState.SUCCESS and stale and (is_newer or of_list not in FINISHED):
        run_again(transaction, run_id, task, state, generation)
        hold_children(transaction, run_id, [task])


class RemappedTask(NamedTuple):
    """A map task whose list is made again."""

    name: str
    effects: int  # children whose effects have happened


def followers(connection: sqlite3.Connection, run_id: str, name: str) -> List[RemappedTask]:
    """The map tasks over a task, and those over these, that follow its list."""
    found: List[RemappedTask] = []
    queue = [name]
    while queue:
        parent = queue.pop()
        for (task,) in connection.execute(_MAPS, (run_id, parent)).fetchall():
            if json.loads(_spec(connection, run_id, task))["map"]["over"] != parent:
                continue
            children = read_children(connection, run_id, task)
            effects = sum(child.state == TaskState.SUCCESS and _has_happened(child) for child in children.values())
            if children or task_columns(connection, run_id, task, "state")[0] in elements.FOLLOWING:
                found.append(RemappedTask(task, effects))
                queue.append(task)
    return found


def set_keys(transaction: Transaction, run_id: str, task: str, keys: Sequence[str]) -> Optional[str]:
    """Store the keys of the elements that the map task has computed, and expand it; returns what ``expand`` does."""
    over = json.loads(_spec(transaction.connection, run_id, task))["map"]["over"]
    (known,) = task_columns(transaction.connection, run_id, over, "element_keys")
    found = dict(json.loads(known or "{}"))
    found[task] = list(keys)
    transaction.change(run_id, over, {"element_keys": json.dumps(found)})
    return expand(transaction, run_id, task)


# --- Which child belongs to which element ----------------------------------------------------------------------------


def _identify(
    spec: Dict[str, Any], found: _List, known: Dict[str, TaskSnapshot]
) -> Tuple[Optional[str], Dict[str, str]]:
    """Return why the elements cannot be known, if so, and each child in the order of the list.

    The values of the mapping: what the column ``element`` of the child is to be.
    """
    task, mapping = spec["name"], spec["map"]
    hashes = list(map(elements.value_hash, found.elements))
    if mapping["identity"] == elements.KEY:
        if not elements.is_key_list(found.keys, len(hashes)):
            return None, {}
        return _by_key(task, hashes, cast(List[str], found.keys or []), known)
    if mapping["child"].get("effect") and any(map(elements.has_parts, found.elements)):
        return elements.keyless_effect(task, mapping["over"]), {}
    ids = elements.numbered(hashes)
    by_id = {child.element: name for name, child in known.items() if child.element}
    return None, dict(zip(_with_numbers(task, map(by_id.get, ids), list(known)), ids))


def _by_key(
    task: str, hashes: Sequence[str], keys: Sequence[str], known: Dict[str, TaskSnapshot]
) -> Tuple[Optional[str], Dict[str, str]]:
    """An element whose value the run knows keeps its child, also when the flow computes other keys by now."""
    by_value = {child.element: name for name, child in known.items() if child.element}
    names = [by_value.get(one) or elements.child_of_key(task, key) for one, key in zip(hashes, keys)]
    wanted = dict(zip(names, hashes))
    other = [place for place, key in enumerate(keys) if names[place] != elements.child_of_key(task, key)]
    is_unclear = bool(set(names) - set(known)) and bool(set(known) - set(names))
    if len(wanted) < len(names) or (other and is_unclear):
        place = other[0] if other else 0
        return elements.other_keys(task, names[place], keys[place]), {}
    return None, wanted


def _with_numbers(task: str, names: Iterable[Optional[str]], known: Iterable[str]) -> Iterator[str]:
    """Yield the names, and for each element without one the next number that no element of the run has had."""
    free = 1 + max([-1] + [elements.number_of(task, name) for name in known])
    for name in names:
        yield child_name(task, free) if name is None else name
        free += name is None


def _has_happened(child: TaskSnapshot) -> bool:
    may_have = child.state in RAN or may_have_happened(child.state, child.dead_letter_kind)
    return may_have and bool(json.loads(child.spec).get("effect"))


# --- What follows for the children -----------------------------------------------------------------------------------


def _place(
    transaction: Transaction,
    run_id: str,
    spec: Dict[str, Any],
    position: int,
    wanted: Dict[str, str],
    known: Dict[str, TaskSnapshot],
    gone: Sequence[str],
) -> bool:
    """Insert the new children, and write of each other where its element is now; return whether one has moved."""
    places = [(name, index, element) for index, (name, element) in enumerate(wanted.items())]
    places += [(name, elements.GONE, known[name].element or "") for name in gone]
    has_moved = False
    for name, index, element in places:
        if name not in known:
            _insert(transaction.connection, run_id, spec, position, name, index, element)
            continue
        child = json.loads(known[name].spec)
        is_elsewhere = child["item"]["index"] != index
        has_moved = has_moved or is_elsewhere
        if is_elsewhere or element != (known[name].element or ""):
            child["item"]["index"] = index
            transaction.connection.execute(
                "UPDATE task SET spec = ?, position = ?, element = ? WHERE run_id = ? AND name = ?",
                (_compact(child), child_position(position, index, spec["map"]["max_size"]), element, run_id, name),
            )
    return has_moved


def set_aside(transaction: Transaction, run_id: str, name: str) -> None:
    """Skip a child that is about to start, and whose element has gone while it ran the last time."""
    _set_aside(transaction, run_id, read_known_task(transaction.connection, run_id, name))


def _set_aside(transaction: Transaction, run_id: str, child: TaskSnapshot) -> None:
    """Skip a child whose element is gone, as a branch that is not taken; what it was stays in its row."""
    if child.state in RAN or may_have_happened(child.state, child.dead_letter_kind) or child.aside is not None:
        return
    values = task_columns(transaction.connection, run_id, child.name, ", ".join(_ASIDE))
    columns: TaskColumns = {
        "aside": json.dumps(dict(zip(_ASIDE, values))),
        "error": elements.VANISHED,
        "skip_cause": str(SkipCause.CONDITION),
        "blocked_by": None,
        "ended_at": transaction.at,
    }
    if child.state == TaskState.SKIPPED:
        transaction.change(run_id, child.name, columns, why=elements.VANISHED)
    else:
        end_generation(transaction, run_id, child, TaskState.SKIPPED, columns, elements.VANISHED)
    resolve(transaction, run_id, child.name)


def _restore_child(transaction: Transaction, run_id: str, child: TaskSnapshot) -> TaskSnapshot:
    """Give a child whose element is back what it had; one that waited waits for its parents again."""
    if child.aside is None:
        return child
    columns = dict(json.loads(child.aside), aside=None)
    state = columns.pop("state")
    if state in MOVING or state == TaskState.UPSTREAM_FAILED:
        state = str(TaskState.PENDING)
        columns.update({"blocked_by": None, "ended_at": None})
    transaction.restore(run_id, child.name, child.state, state, child.generation, columns, IS_BACK)
    reevaluate(transaction, run_id, child.name)
    return read_known_task(transaction.connection, run_id, child.name)


def _run_again(
    transaction: Transaction, run_id: str, child: TaskSnapshot, found: _List, index: int, was_linked: bool
) -> None:
    """Run a child again whose element has another value now, except an effect: that has happened."""
    if not _depends_on_value(child, was_linked):
        return
    inputs = read_inputs(transaction.connection, run_id, child.name)
    all_inputs, _, element = (_input_hash_of(transaction.connection, run_id, child) or "").rpartition("-")
    if element == hash_of(found.over, _element_at(found, index)):
        _settle_stale(transaction, run_id, child, all_inputs == _hash_of_all(inputs, found, index))
    elif _has_happened(child):
        transaction.change(run_id, child.name, {"stale": 1, "notice": CHANGED_AFTER_EFFECT})
    else:
        rearm(transaction, run_id, [child.name])
        run_again(transaction, run_id, child.name, child.state, child.generation)


def _settle_stale(transaction: Transaction, run_id: str, child: TaskSnapshot, has_same_inputs: bool) -> None:
    """Say of a stale child whose element is as before whether its other inputs are."""
    if child.stale and has_same_inputs:
        transaction.change(run_id, child.name, {"stale": 0, "notice": None})
    elif child.notice == CHANGED_AFTER_EFFECT:
        transaction.change(run_id, child.name, {"notice": None})


def _depends_on_value(child: TaskSnapshot, was_linked: bool) -> bool:
    """Whether the end of a child is one of its element's value, and no human's decision."""
    if child.state == TaskState.SUCCESS:
        return bool(child.stale) or not was_linked
    if child.state == TaskState.SKIPPED:
        return child.skip_cause == SkipCause.CONDITION and child.attempt > 0  # it has skipped itself
    return child.state in NEEDS_HUMAN and child.attempt > 0 and not json.loads(child.spec).get("effect")


def read_inputs(connection: sqlite3.Connection, run_id: str, name: str) -> List[Any]:
    """Read name, state and stored result of each parent."""
    return connection.execute(_INPUTS, (run_id, name)).fetchall()


def hash_inputs(
    connection: sqlite3.Connection, run_id: str, inputs: List[Any], item: Optional[Dict[str, Any]]
) -> Optional[str]:
    """Hash the states and results of the parents, as ``read_inputs`` returns them; None for a task without parents.

    ``item``: of a child of a map task, of which only its own element of the list counts.
    """
    if item is None:
        return hash_of(inputs) if inputs else None
    stored = next((row[2] for row in inputs if row[0] == item["over"]), None)
    elements = _elements(load(connection, run_id, item["over"], stored)) or []
    found, index = _List(item["over"], elements, None), item["index"]
    # All inputs, and then the element alone: a child belongs to it, whatever other parents return.
    return f"{_hash_of_all(inputs, found, index)}-{hash_of(found.over, _element_at(found, index))}"


def _hash_of_all(inputs: List[Any], found: _List, index: int) -> str:
    return hash_of([[found.over, _element_at(found, index)] if row[0] == found.over else row for row in inputs])


def _element_at(found: _List, index: int) -> object:
    return found.elements[index] if 0 <= index < len(found.elements) else None


def hash_of(*values: object) -> str:
    """Return a short hash to compare the inputs of two attempts."""
    return sha256_hex(json.dumps(values, sort_keys=True, default=str).encode())[:12]


def _elements(result: Optional[str]) -> Optional[List[Any]]:
    """The elements of a stored result; None if it is neither a list nor a tuple."""
    found = None if result is None else json.loads(result)
    if isinstance(found, dict) and list(found) == [TUPLE_TAG]:
        found = found[TUPLE_TAG]
    return found if isinstance(found, list) else None


def _read_list(connection: sqlite3.Connection, run_id: str, task: str) -> Optional[_List]:
    """The list of a map task; None if there is none that fits."""
    mapping = json.loads(_spec(connection, run_id, task))["map"]
    sql = "SELECT result, element_keys FROM task WHERE run_id = ? AND name = ? AND state IN " + in_list(FINISHED)
    row = connection.execute(sql, (run_id, mapping["over"])).fetchone()
    elements = None if row is None else _elements(load(connection, run_id, mapping["over"], row[0]))
    if elements is None or len(elements) > mapping["max_size"]:
        return None
    return _List(mapping["over"], elements, json.loads(row[1] or "{}").get(task))


def _input_hash_of(connection: sqlite3.Connection, run_id: str, child: TaskSnapshot) -> Optional[str]:
    """The hash of the inputs of its latest attempt."""
    (found,) = connection.execute(_INPUT_HASH, (run_id, child.name, child.attempt)).fetchone() or (None,)
    return cast(Optional[str], found)


def _spec(connection: sqlite3.Connection, run_id: str, name: str) -> str:
    return str(task_columns(connection, run_id, name, "spec")[0])


def _linked(connection: sqlite3.Connection, run_id: str, task: str) -> Set[str]:
    sql = "SELECT parent FROM edge WHERE run_id = ? AND child = ?"
    return {parent for (parent,) in connection.execute(sql, (run_id, task))}


def _insert(
    connection: sqlite3.Connection,
    run_id: str,
    spec: Dict[str, Any],
    position: int,
    name: str,
    index: int,
    element: str,
) -> None:
    """Insert a child; ``core/spec.py: child_spec`` makes the same spec."""
    child, mapping = spec["map"]["child"], spec["map"]
    item = {"task": spec["name"], "over": mapping["over"], "index": index}
    place, starts = child_position(position, index, mapping["max_size"]), child.get("retry", {}).get("max_attempts")
    connection.execute(
        "INSERT INTO task (run_id, name, state, max_attempts, position, rule, spec, element)"
        " VALUES (?,?,'PENDING',?,?,?,?,?)",
        (
            run_id,
            name,
            starts or MAX_ATTEMPTS,
            place,
            child.get("rule", ALL_SUCCESS),
            _compact(dict(child, name=name, item=item)),
            element,
        ),
    )
    insert_edges(connection, run_id, name, edge_rules(dict(child, name=name, item=item), child["parents"]))


def _compact(spec: Dict[str, Any]) -> str:
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False)


def insert_edges(connection: sqlite3.Connection, run_id: str, child: str, rules: Mapping[str, str]) -> None:
    """Make a task wait for more parents. ``rules``: by parent, the rule by which it counts."""
    sql = "INSERT INTO edge (run_id, child, parent, rule) VALUES (?,?,?,?)"
    connection.executemany(sql, [(run_id, child, parent, rule) for parent, rule in rules.items()])


def edge_rules(spec: Mapping[str, Any], parents: Iterable[str]) -> Dict[str, str]:
    """The rule by which each of ``parents`` counts for a task, as ``core/spec.py: rule_of_edge`` says."""
    rule, of_list = spec.get("rule", ALL_SUCCESS), spec.get("map") or spec.get("item") or {}
    over, collect = of_list.get("over"), of_list.get("collect")
    return {parent: edge_rule(spec["name"], rule, parent, over, collect) for parent in parents}
