"""The generations of a task: starting a new one (requeue), and ending one by an operator's decision.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import Optional

from ...domain.event_columns import TaskColumns
from ...domain.event_payloads import NO_TASK_COLUMNS
from ...domain.overrides import Overrides, load_overrides, parse_overrides
from ...domain.spec_defaults import MAX_ATTEMPTS
from ...domain.states import TaskState
from .action import ActionContext, TaskSnapshot
from .canary import abandon_canary
from .transitions import Transaction

#: Columns of the task that a new generation resets. The attempts stay, and their numbers continue.
RESET: TaskColumns = {
    "ended_at": None,
    "error": None,
    "failure_fingerprint": None,
    "failure_class": None,
    "failure_mode": None,
    "dead_letter_kind": None,
    "delay_us": None,
    "ceiling_us": None,
    "shortened_us": None,
    "first_started_at": None,
    "blocked_by": None,
    "skip_cause": None,
    "claim_token": None,
    "result": None,
    "checkpoint": None,
    "progress_done": None,
    "progress_total": None,
    "stale": 0,
    "notice": None,
    "expires_at": None,
    "overrides": None,
    "canary": None,
}
COUNTERS: TaskColumns = {"failures": 0, "losses": 0, "deferrals": 0, "refusals": 0}

_OPTIONS = frozenset(
    [
        "canary",
        "cascade",
        "fingerprint",
        "max_attempts",
        "new_key",
        "not_before",
        "params",
        "rate_per_second",
        "reset_count",
        "rollout",
        "same_key",
        "single_shot",
        "timeout",
        "verifies",
    ]
)


def overrides_from_options(context: ActionContext) -> Overrides:
    """The overrides in the options of a requeue. Raises ValueError with one sentence."""
    unknown = set(context.options) - _OPTIONS
    if unknown:
        raise ValueError("a requeue takes no option {}".format(", ".join(sorted(repr(name) for name in unknown))))
    row = context.connection.execute("SELECT params, options FROM run WHERE run_id = ?", (context.run_id,)).fetchone()
    params, flow_options = (json.loads(text) for text in row) if row is not None else ({}, {})
    return parse_overrides(context.options, params, flow_options.get("params") or {})


def start_generation(
    context: ActionContext, row: TaskSnapshot, overrides: Optional[Overrides] = None, new_key: bool = False
) -> None:
    """Move a task to PENDING in a new generation, with its columns reset. Its attempts stay.

    Children are not changed here; ``operator_actions._update_dependents`` does that.
    """
    abandon_canary(context.transaction, context.run_id, row.name, row.overrides)
    columns = RESET.copy()
    columns.update({"generation": row.generation + 1, "next_retry_at": None})
    if context.options.get("reset_count", True):
        columns.update(COUNTERS)
    wait_seconds = _wait_seconds(context)
    if wait_seconds > 0:
        columns["next_retry_at"] = context.transaction.at + int(wait_seconds * 1000000)
    if overrides:
        columns["overrides"] = json.dumps(overrides, ensure_ascii=False, sort_keys=True)
    starts = _max_attempts(context, row, overrides or {})
    if starts is not None:
        columns["max_attempts"] = starts
    if new_key:
        columns["key_generation"] = row.generation + 1
    context.transaction.move(context.run_id, row.name, row.state, TaskState.PENDING, row.generation, set=columns)


def run_again(transaction: Transaction, run_id: str, name: str, state: str, generation: int) -> None:
    """Move a task that an operator did not name to PENDING in a new generation: another one runs again."""
    columns = RESET.copy()
    columns.update({"generation": generation + 1, "next_retry_at": None})
    columns.update(COUNTERS)
    transaction.move(run_id, name, state, TaskState.PENDING, generation, set=columns)


def end_generation(
    context: ActionContext, row: TaskSnapshot, state: TaskState, columns: TaskColumns = NO_TASK_COLUMNS
) -> None:
    """Move a task that does not run to a final ``state``, clear its instants, and release the followers of a canary.

    ``columns``: further columns to set.
    """
    abandon_canary(context.transaction, context.run_id, row.name, row.overrides)
    ended: TaskColumns = {"ended_at": context.transaction.at, "next_retry_at": None, "expires_at": None, "canary": None}
    ended.update(columns)
    context.transaction.move(context.run_id, row.name, row.state, state, row.generation, set=ended)


def _max_attempts(context: ActionContext, row: TaskSnapshot, overrides: Overrides) -> Optional[int]:
    """The new value of the column ``max_attempts``; None if it does not change."""
    if "max_attempts" in overrides:
        return int(overrides["max_attempts"])
    if "max_attempts" not in load_overrides(row.overrides):
        return None
    sql = "SELECT spec FROM task WHERE run_id = ? AND name = ?"
    (spec,) = context.connection.execute(sql, (context.run_id, row.name)).fetchone()
    return int(json.loads(spec).get("retry", {}).get("max_attempts", MAX_ATTEMPTS))


def _wait_seconds(context: ActionContext) -> float:
    """Seconds that the next target waits: a redrive of a thousand tasks must not cause the next outage."""
    seconds = float(context.options.get("not_before") or 0)
    rate = float(context.options.get("rate_per_second") or 0)
    return seconds + len(context.results) / rate if rate > 0 else seconds
