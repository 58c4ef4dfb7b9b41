"""Writes what a changed flow means for a run: when it is resumed, and when a living executor loads changed code.

``core/flow_difference.py`` says what differs, and what may be done about it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from ..core.flow_difference import FlowDifference, is_outdated, is_still_input, with_children
from ..core.projection import RunProjection
from ..core.spec import FlowSpec, TaskSpec, positions_of, rule_of_edge
from ..domain.event_payloads import EMPTY, Pairs, RunChange, RunChanged
from ..domain.states import MOVING, SkipCause, TaskState
from ..domain.task_options import child_position, child_prefix
from ..statefile.action import reopen_run
from ..statefile.map_tasks import insert_edges
from ..statefile.requeue import skip_generation
from ..statefile.sql import in_list
from ..statefile.transitions import Transaction, hold_if_blocked, propagate, reevaluate, unpropagate
from . import runs

REMOVED = "the flow no longer defines it"  # the reason with which a task is skipped


def apply(transaction: Transaction, run: RunProjection, flow: FlowSpec, difference: FlowDifference) -> None:
    """Update the rows to the current flow, with one event.

    ``difference``: of this flow; if it needs an operator's word, the operator has given it.
    """
    run_id, flow = run.run.run_id, with_children(flow, run)
    retired = _skip_removed(transaction, run, difference)
    touched = _update_rows(transaction, run, flow)
    if not difference:
        return
    change = RunChanged(
        RunChange.FLOW_CHANGED,
        {"code_hash": flow.code_hash},
        added=difference.added,
        changed=difference.changed,
        removed=difference.removed,
        skipped=difference.unfinished,
        outdated=difference.outdated,
    )
    transaction.change_run(run_id, change)
    _recompute_states(transaction, run_id, touched, retired)


def _skip_removed(transaction: Transaction, run: RunProjection, difference: FlowDifference) -> list[str]:
    """Skip tasks that nothing can run any more, so that they neither hold nor fail the run."""
    run_id, skipped = run.run.run_id, []
    for name in (*difference.removed, *difference.unfinished):
        if run.tasks[name].state is not TaskState.SUCCESS:
            skip_generation(transaction, run_id, name, SkipCause.OPERATOR, REMOVED)
            skipped.append(name)
    return skipped


def _update_rows(transaction: Transaction, run: RunProjection, flow: FlowSpec) -> list[str]:
    """Write the current definition of each task that differs, and return the names of the tasks that may move."""
    run_id, touched = run.run.run_id, []
    defined = {spec.name for spec in flow.tasks}
    places = {spec.name: place for spec, place in zip(flow.tasks, positions_of(flow.tasks), strict=True)}
    max_sizes = {spec.name: spec.map.max_size for spec in flow.tasks if spec.map is not None}
    for spec in flow.tasks:
        row = run.tasks.get(spec.name)
        if row is not None and row.spec == spec:
            continue
        if row is not None and row.state is TaskState.SUCCESS:
            if is_outdated(row, spec):  # an operator has accepted it: it does not differ any more
                _write_spec(transaction, run_id, spec)
            continue
        if row is None:
            transaction.connection.execute(
                "INSERT INTO task (run_id, name, state) VALUES (?,?,'PENDING')", (run_id, spec.name)
            )
        _write_spec(transaction, run_id, spec)
        transaction.connection.execute(
            "UPDATE task SET max_attempts = ?, position = ?, rule = ? WHERE run_id = ? AND name = ?",
            (spec.retry.max_attempts, _position(spec, places, max_sizes), spec.rule, run_id, spec.name),
        )
        transaction.connection.execute("DELETE FROM edge WHERE run_id = ? AND child = ?", (run_id, spec.name))
        rules = {parent: rule_of_edge(spec, parent) for parent in _parents(run, spec, defined)}
        insert_edges(transaction.connection, run_id, spec.name, rules)
        touched.append(spec.name)
    return touched


def _position(spec: TaskSpec, places: Mapping[str, int], max_sizes: Mapping[str, int]) -> int:
    if spec.item is None:
        return places[spec.name]
    return child_position(places[spec.item.task], spec.item.index, max_sizes[spec.item.task])


def _parents(run: RunProjection, spec: TaskSpec, defined: Collection[str]) -> Iterable[str]:
    """Return the parents by the flow, then the children of a map task, and removed tasks whose results stay inputs."""
    earlier = run.parents.get(spec.name, ())
    prefix = child_prefix(spec.name)
    mapped = (parent for parent in earlier if parent in defined and parent.startswith(prefix))
    kept = (parent for parent in earlier if parent not in defined and is_still_input(run.tasks[parent]))
    return dict.fromkeys((*spec.parents, *mapped, *kept))


def load_code(
    transaction: Transaction, run: RunProjection, flow: FlowSpec, difference: FlowDifference, files: Sequence[str]
) -> None:
    """Write the options that changed with the code of ``files``, which further attempts run, with one event."""
    run_id = run.run.run_id
    for spec in with_children(flow, run).tasks:
        row = run.tasks.get(spec.name)
        if row is None or row.spec == spec:
            continue
        _write_spec(transaction, run_id, spec)
        if row.spec is None or row.spec.retry.max_attempts != spec.retry.max_attempts:
            transaction.change(run_id, spec.name, {"max_attempts": spec.retry.max_attempts})
    change = RunChanged(
        RunChange.CODE_LOADED,
        {"code_hash": flow.code_hash, "code_changed": None},
        files=files,
        changed=difference.changed,
        added=difference.added,
        outdated=difference.outdated,
    )
    transaction.change_run(run_id, change)


def _write_spec(transaction: Transaction, run_id: str, spec: TaskSpec) -> None:
    text = msgspec.json.encode(spec).decode()
    transaction.connection.execute("UPDATE task SET spec = ? WHERE run_id = ? AND name = ?", (text, run_id, spec.name))


def write_options(transaction: Transaction, run_id: str, known: str, flow: FlowSpec) -> None:
    """Store the current pools, downstreams, pages and dead_letter_ttl of the flow."""
    current = runs.options_of(flow, is_backfill=bool(json.loads(known).get("backfill")))
    if json.loads(current) != json.loads(known):
        transaction.change_run(run_id, RunChanged(RunChange.OPTIONS, {"options": current}))


def write_params(transaction: Transaction, run_id: str, known: Mapping[str, object], flow: FlowSpec) -> None:
    """Store the parameters for all further attempts, and emit the changes.

    A run keeps the values of its start even if defaults of the flow changed; a value that is given again, and an added
    or removed parameter, are changes.
    """
    text = json.dumps(dict(flow.params), ensure_ascii=False)
    current: Mapping[str, object] = json.loads(text)
    if current == known:
        return
    changed: Pairs = {
        name: [known[name], current[name]] for name in current if name in known and known[name] != current[name]
    }
    change = RunChanged(
        RunChange.PARAMS,
        {"params": text},
        params_changed=changed or EMPTY,
        params_added={name: current[name] for name in current if name not in known} or EMPTY,
        params_removed={name: known[name] for name in known if name not in current} or EMPTY,
    )
    transaction.change_run(run_id, change)


def _recompute_states(transaction: Transaction, run_id: str, names: Sequence[str], skipped: Sequence[str]) -> None:
    """Recompute the states of changed tasks from their parents, and reopen the run if tasks can move.

    Otherwise a task could wait for ever and keep the run from ending, and an ended run would ignore its new tasks. A
    run with tasks that were skipped now ends again, with another verdict.
    """
    for name in skipped:
        propagate(transaction, run_id, name)
    for name in names:
        hold_if_blocked(transaction, run_id, name)
        reevaluate(transaction, run_id, name)
    unpropagate(transaction, run_id, [*names, *skipped])
    sql = f"SELECT 1 FROM task WHERE run_id = ? AND state IN {in_list(MOVING)} LIMIT 1"
    if skipped or transaction.connection.execute(sql, (run_id,)).fetchone() is not None:
        reopen_run(transaction, run_id)
