"""The end of a canary: its success releases the other tasks at a limited rate, its failure holds them (``canary.py``).

Written in the transaction of that end. The release is an act of the operator who sent the canary, recorded like any
other act, so that it is visible and can be undone.
"""

from __future__ import annotations

from ..core.decide import DeadLetter, Decision, Defer, Interrupt, Retry, Succeed
from ..domain.acts import release_id
from ..domain.command import DONE, Command, Target
from ..domain.event_changes import CanaryEnd
from ..domain.event_columns import TaskColumns
from ..domain.event_payloads import CanaryEnded
from ..domain.overrides import Overrides
from ..domain.states import NEEDS_HUMAN, WAITING
from ..statefile.changes import canary, operator_actions
from ..statefile.changes.transitions import Transaction
from ..statefile.changes.undo import find_act, restore_tasks

RELEASE_PER_SECOND = 5.0

#: Options of the first act that concern the canary alone.
_CANARY_OPTIONS = frozenset(["canary", "not_before"])


def finish_canary(transaction: Transaction, run_id: str, name: str, decision: Decision, overrides: Overrides) -> None:
    """Apply the end of an attempt whose task was a canary, or was released by one. ``overrides``: of its generation."""
    if "rollout" not in overrides or isinstance(decision, Retry | Defer | Interrupt):
        return
    held = canary.release_followers(
        transaction, run_id, name
    )  # before restore, so that restored tasks wait for no canary
    if isinstance(decision, Succeed):
        if held:
            _release(transaction, run_id, name, overrides, held)
        return
    not_fixed = isinstance(decision, DeadLetter) and decision.fix_failed
    if not_fixed:
        held += _hold_released(transaction, run_id, name, overrides["rollout"])
    if held:
        _emit(transaction, run_id, name, CanaryEnd.NOT_FIXED if not_fixed else CanaryEnd.FAILED, held)


def _emit(transaction: Transaction, run_id: str, name: str, what: str, others: list[str]) -> None:
    transaction.emit(CanaryEnded(what, others), run_id, name)


def _release(transaction: Transaction, run_id: str, name: str, overrides: Overrides, waiting: list[str]) -> None:
    act = find_act(transaction.connection, overrides["rollout"])
    assert act is not None, "a rollout begins with its act, in one transaction"
    _emit(transaction, run_id, name, CanaryEnd.RELEASED, waiting)
    options = {key: value for key, value in act.payload.options.items() if key not in _CANARY_OPTIONS}
    options.setdefault("rate_per_second", RELEASE_PER_SECOND)
    options.update(rollout=overrides["rollout"], verifies=overrides.get("verifies"))
    command = Command(
        id=release_id(overrides["rollout"]),
        act="requeue",
        run_id=run_id,
        targets=_current_targets(transaction, run_id, waiting),
        actor=act.actor or "",
        reason=act.reason or "",
        options=options,
    )
    operator_actions.apply(transaction, command)


def _current_targets(transaction: Transaction, run_id: str, names: list[str]) -> tuple[Target, ...]:
    sql = "SELECT name, state, generation FROM task WHERE run_id = ? AND name = ?"
    rows = [transaction.connection.execute(sql, (run_id, name)).fetchone() for name in names]
    return tuple(Target(*row) for row in rows if row[1] in NEEDS_HUMAN)


def _hold_released(transaction: Transaction, run_id: str, name: str, rollout: str) -> list[str]:
    """Hold the released tasks that have not started yet again, and return their names."""
    act = find_act(transaction.connection, release_id(rollout))
    if act is None:
        return []
    targets = {result.task for result in act.answer.results if result.outcome == DONE}
    was = {task: before for task, before in act.payload.was.items() if task in targets}
    unstarted = {task: before for task, before in was.items() if _is_unstarted(transaction, run_id, task, before)}
    restore_tasks(transaction, run_id, unstarted, f"the fix did not help: {name} failed as before")
    return list(unstarted)


def _is_unstarted(transaction: Transaction, run_id: str, name: str, before: TaskColumns) -> bool:
    state, generation, has_started = transaction.connection.execute(
        "SELECT state, generation, EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id = task.run_id"
        " AND attempt.name = task.name AND attempt.generation = task.generation) FROM task"
        " WHERE run_id = ? AND name = ?",
        (run_id, name),
    ).fetchone()
    return state in WAITING and generation == before["generation"] + 1 and not has_started
