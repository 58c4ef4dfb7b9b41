"""A run is taken up with a flow that may have changed since: what is new joins, what is gone must be over.

Finished work is never touched. A task that is still to be done gets the specification of today: that is how a fixed
timeout or a fixed command reaches a run that failed tonight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..core.projection import RunFold
from ..core.spec import FlowSpec, TaskSpec
from ..domain.event_payloads import NO_PAIRS, NO_VALUES, Pairs, RunChange, RunChanged
from ..domain.states import MOVING, OPEN, TaskState
from ..errors import FlowError
from ..statefile.changes.action import open_run
from ..statefile.changes.propagation import reconsider, unpropagate, wait_again
from ..statefile.changes.transitions import Journal
from ..statefile.state_lists import in_list
from . import runs

NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """What a flow file says now against what the run was made of. Names in the order of the flow."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed)


def compare(fold: RunFold, flow: FlowSpec) -> Difference:
    """Compare. Raises FlowError where a task is gone that the run still has to do."""
    specs = {spec.name: spec for spec in flow.tasks}
    gone = [row for name, row in fold.tasks.items() if name not in specs]
    unfinished = [row.name for row in gone if row.state in OPEN]
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
        removed=tuple(row.name for row in gone),
    )


def _differs(fold: RunFold, spec: TaskSpec) -> bool:
    row = fold.tasks.get(spec.name)
    return row is not None and row.spec != spec and row.state is not TaskState.SUCCESS


def write(journal: Journal, run_id: str, flow: FlowSpec, difference: Difference) -> None:
    """Bring the rows up to the flow of today, and tell it in one event."""
    encode = msgspec.json.Encoder().encode
    touched = set(difference.added) | set(difference.changed)
    for position, spec in enumerate(flow.tasks):
        if spec.name not in touched:
            continue
        text = encode(spec).decode()
        values = (spec.retry.max_attempts, position, spec.rule, text, run_id, spec.name)
        if spec.name in difference.added:
            journal.connection.execute(
                "INSERT INTO task (max_attempts, position, rule, spec, run_id, name, state)"
                " VALUES (?,?,?,?,?,?,'PENDING')",
                values,
            )
        else:
            journal.connection.execute(
                "UPDATE task SET max_attempts = ?, position = ?, rule = ?, spec = ? WHERE run_id = ? AND name = ?",
                values,
            )
        journal.connection.execute("DELETE FROM edge WHERE run_id = ? AND child = ?", (run_id, spec.name))
        journal.connection.executemany(
            "INSERT INTO edge (run_id, child, parent) VALUES (?,?,?)",
            [(run_id, spec.name, parent) for parent in spec.parents],
        )
    _settle_anew(journal, run_id, [spec.name for spec in flow.tasks if spec.name in touched])
    change = RunChanged(RunChange.FLOW_CHANGED, {"code_hash": flow.code_hash})
    journal.change_run(run_id, change._replace(added=difference.added, changed=difference.changed))


def write_options(journal: Journal, run_id: str, known: str, flow: FlowSpec) -> None:
    """Keep the pools, downstreams, pages and the dead_letter_ttl that the flow declares by now."""
    now = runs.options_of(flow)
    if json.loads(now) != json.loads(known):
        journal.change_run(run_id, RunChanged(RunChange.OPTIONS, {"options": now}))


def write_params(journal: Journal, run_id: str, known: Mapping[str, object], flow: FlowSpec) -> None:
    """Keep the parameters that every attempt gets from now on, and tell what is not as it was.

    A run keeps the values that it was started with, also where the flow has other defaults by now; a value that is
    given anew is a change, and so is a parameter that the flow has gained or lost.
    """
    text = json.dumps(dict(flow.params), ensure_ascii=False)
    now: Mapping[str, object] = json.loads(text)
    if now == known:
        return
    changed: Pairs = {name: [known[name], now[name]] for name in now if name in known and known[name] != now[name]}
    change = RunChanged(
        RunChange.PARAMS,
        {"params": text},
        params_changed=changed or NO_PAIRS,
        params_added={name: now[name] for name in now if name not in known} or NO_VALUES,
        params_removed={name: known[name] for name in known if name not in now} or NO_VALUES,
    )
    journal.change_run(run_id, change)


def _settle_anew(journal: Journal, run_id: str, names: Sequence[str]) -> None:
    """Give those whose parents may be others now the state that these leave them, and open the run for what will move.

    A task that waits for nothing that can come would keep the run from ending, and a run that has ended would keep
    its verdict whatever became of a new task.
    """
    for name in names:
        wait_again(journal, run_id, name)
        reconsider(journal, run_id, name)
    unpropagate(journal, run_id, names)
    sql = f"SELECT 1 FROM task WHERE run_id = ? AND state IN {in_list(MOVING)} LIMIT 1"
    if journal.connection.execute(sql, (run_id,)).fetchone() is not None:
        open_run(journal, run_id)
