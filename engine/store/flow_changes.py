"""Resumes a run with a changed flow: new tasks are added, removed tasks must be finished.

Successful tasks never change. An unfinished task gets the current specification, so that a corrected timeout or
command applies to a run that has failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..core.projection import RunProjection
from ..core.spec import FlowSpec, TaskSpec
from ..domain.event_payloads import NO_PAIRS, NO_VALUES, Pairs, RunChange, RunChanged
from ..domain.states import MOVING, OPEN, TaskState
from ..errors import FlowError
from ..statefile.changes.action import reopen_run
from ..statefile.changes.propagation import hold_if_blocked, reevaluate, unpropagate
from ..statefile.changes.transitions import Transaction
from ..statefile.state_lists import in_list
from . import runs

NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """Names of tasks that differ between the flow file and the run, in the order of the flow."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed)


def compare(fold: RunProjection, flow: FlowSpec) -> Difference:
    """Compare a run with its flow. Raises FlowError if an unfinished task was removed from the flow."""
    specs = {spec.name: spec for spec in flow.tasks}
    removed = [row for name, row in fold.tasks.items() if name not in specs]
    unfinished = [row.name for row in removed if row.state in OPEN]
    if unfinished:
        shown = ", ".join(repr(name) for name in unfinished[:NAMES_SHOWN])
        more = f" and {len(unfinished) - NAMES_SHOWN} more" if len(unfinished) > NAMES_SHOWN else ""
        raise FlowError(
            f"run {fold.run.run_id!r} still has to do {shown}{more}, which the flow file does not define any more;"
            " bring them back, or skip or cancel them first"
        )
    return Difference(
        added=tuple(name for name in specs if name not in fold.tasks),
        changed=tuple(name for name, spec in specs.items() if _differs(fold, spec)),
        removed=tuple(row.name for row in removed),
    )


def _differs(fold: RunProjection, spec: TaskSpec) -> bool:
    row = fold.tasks.get(spec.name)
    return row is not None and row.spec != spec and row.state is not TaskState.SUCCESS


def apply(transaction: Transaction, run_id: str, flow: FlowSpec, difference: Difference) -> None:
    """Update the rows to the current flow, with one event."""
    encode = msgspec.json.Encoder().encode
    touched = set(difference.added) | set(difference.changed)
    for position, spec in enumerate(flow.tasks):
        if spec.name not in touched:
            continue
        text = encode(spec).decode()
        values = (spec.retry.max_attempts, position, spec.rule, text, run_id, spec.name)
        if spec.name in difference.added:
            transaction.connection.execute(
                "INSERT INTO task (max_attempts, position, rule, spec, run_id, name, state)"
                " VALUES (?,?,?,?,?,?,'PENDING')",
                values,
            )
        else:
            transaction.connection.execute(
                "UPDATE task SET max_attempts = ?, position = ?, rule = ?, spec = ? WHERE run_id = ? AND name = ?",
                values,
            )
        transaction.connection.execute("DELETE FROM edge WHERE run_id = ? AND child = ?", (run_id, spec.name))
        transaction.connection.executemany(
            "INSERT INTO edge (run_id, child, parent) VALUES (?,?,?)",
            [(run_id, spec.name, parent) for parent in spec.parents],
        )
    _recompute_states(transaction, run_id, [spec.name for spec in flow.tasks if spec.name in touched])
    change = RunChanged(RunChange.FLOW_CHANGED, {"code_hash": flow.code_hash})
    transaction.change_run(run_id, change._replace(added=difference.added, changed=difference.changed))


def write_options(transaction: Transaction, run_id: str, known: str, flow: FlowSpec) -> None:
    """Store the current pools, downstreams, pages and dead_letter_ttl of the flow."""
    current = runs.options_of(flow)
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
        params_changed=changed or NO_PAIRS,
        params_added={name: current[name] for name in current if name not in known} or NO_VALUES,
        params_removed={name: known[name] for name in known if name not in current} or NO_VALUES,
    )
    transaction.change_run(run_id, change)


def _recompute_states(transaction: Transaction, run_id: str, names: Sequence[str]) -> None:
    """Recompute the states of changed tasks from their parents, and reopen the run if tasks can move.

    Otherwise a task could wait for ever and keep the run from ending, and an ended run would ignore its new tasks.
    """
    for name in names:
        hold_if_blocked(transaction, run_id, name)
        reevaluate(transaction, run_id, name)
    unpropagate(transaction, run_id, names)
    sql = f"SELECT 1 FROM task WHERE run_id = ? AND state IN {in_list(MOVING)} LIMIT 1"
    if transaction.connection.execute(sql, (run_id,)).fetchone() is not None:
        reopen_run(transaction, run_id)
