"""What follows from the end of a canary: the others run at a rate, or all of them are held (``canary.py``).

Written in the transaction of that end. The others run by the act of whoever sent the canary, in their name, recorded
like any other act, so that it can be seen, and taken back.
"""

from __future__ import annotations

from typing import Any

from ..core.decide import DeadLetter, Decision, Interrupt, Retry, Sense, Succeed
from ..domain.acts import release_id
from ..domain.command import DONE, Command, Target
from ..domain.event_payloads import CanaryEnd, CanaryEnded, TaskColumns
from ..domain.overrides import read
from ..domain.states import NEEDS_HUMAN, WAITING
from ..statefile.changes import canary, operator_actions
from ..statefile.changes.transitions import Journal
from ..statefile.changes.undo import find_act, restore

RELEASE_PER_SECOND = 5.0

#: Of the first act: these were about its beginning.
_NOT_FOR_THE_OTHERS = frozenset(["canary", "not_before"])


def conclude(journal: Journal, run_id: str, name: str, decision: Decision) -> None:
    """Carry the consequences of an attempt's end, if its task ran as a canary, or because one had succeeded."""
    overrides = _overrides(journal, run_id, name)
    if "rollout" not in overrides or isinstance(decision, Retry | Sense | Interrupt):
        return
    held = canary.let_go(journal, run_id, name)  # first: what is taken back or put back later waits for nobody
    if isinstance(decision, Succeed):
        if held:
            _release(journal, run_id, name, overrides, held)
        return
    not_fixed = isinstance(decision, DeadLetter) and decision.not_fixed
    if not_fixed:
        held += _put_back(journal, run_id, name, overrides["rollout"])
    if held:
        _emit(journal, run_id, name, CanaryEnd.NOT_FIXED if not_fixed else CanaryEnd.FAILED, held)


def _overrides(journal: Journal, run_id: str, name: str) -> dict[str, Any]:
    row = journal.connection.execute(
        "SELECT overrides FROM task WHERE run_id = ? AND name = ?", (run_id, name)
    ).fetchone()
    return read(row[0]) if row is not None else {}


def _emit(journal: Journal, run_id: str, name: str, what: str, others: list[str]) -> None:
    journal.emit(CanaryEnded(what, others), run_id, name)


def _release(journal: Journal, run_id: str, name: str, overrides: dict[str, Any], waiting: list[str]) -> None:
    act = find_act(journal.connection, overrides["rollout"])
    assert act is not None, "a rollout begins with its act, in one transaction"
    _emit(journal, run_id, name, CanaryEnd.RELEASED, waiting)
    options = {key: value for key, value in act.payload.options.items() if key not in _NOT_FOR_THE_OTHERS}
    options.setdefault("rate_per_second", RELEASE_PER_SECOND)
    options.update(rollout=overrides["rollout"], verifies=overrides.get("verifies"))
    command = Command(
        id=release_id(overrides["rollout"]),
        act="requeue",
        run_id=run_id,
        targets=_as_they_are(journal, run_id, waiting),
        actor=act.actor or "",
        reason=act.reason or "",
        options=options,
    )
    operator_actions.apply(journal, command)


def _as_they_are(journal: Journal, run_id: str, names: list[str]) -> tuple[Target, ...]:
    sql = "SELECT name, state, generation FROM task WHERE run_id = ? AND name = ?"
    rows = [journal.connection.execute(sql, (run_id, name)).fetchone() for name in names]
    return tuple(Target(*row) for row in rows if row[1] in NEEDS_HUMAN)


def _put_back(journal: Journal, run_id: str, name: str, rollout: str) -> list[str]:
    """Those that were let go after a success and have not begun yet are held again. Answers with their names."""
    act = find_act(journal.connection, release_id(rollout))
    if act is None:
        return []
    targets = {result.task for result in act.answer.results if result.word == DONE}
    was = {task: before for task, before in act.payload.was.items() if task in targets}
    unbegun = {task: before for task, before in was.items() if _has_not_begun(journal, run_id, task, before)}
    restore(journal, run_id, unbegun, f"the fix did not fix it: {name} failed as before")
    return list(unbegun)


def _has_not_begun(journal: Journal, run_id: str, name: str, before: TaskColumns) -> bool:
    state, generation, begun = journal.connection.execute(
        "SELECT state, generation, EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id = task.run_id"
        " AND attempt.name = task.name AND attempt.generation = task.generation) FROM task"
        " WHERE run_id = ? AND name = ?",
        (run_id, name),
    ).fetchone()
    return state in WAITING and generation == before["generation"] + 1 and not begun
