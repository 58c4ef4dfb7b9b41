"""A new generation of a task: what it forgets, what its operator changes for it alone, and when it may begin; and the
end of a generation that an operator decides.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import Any, Dict, Optional

from ...domain.event_payloads import NO_TASK_COLUMNS, TaskColumns
from ...domain.overrides import chosen, read
from ...domain.states import TaskState
from .action import Seen, Work
from .canary import abandon

#: Attempts stay: their numbers go on for ever.
_FORGOTTEN: TaskColumns = {
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
    "expires_at": None,
    "overrides": None,
    "canary": None,
}
_COUNTERS: TaskColumns = {"failures": 0, "losses": 0, "deferrals": 0, "refusals": 0}

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
        "single_shot",
        "timeout",
        "verifies",
    ]
)


def overrides_of(work: Work) -> Dict[str, Any]:
    """What the options of a requeue change for its targets. Raises ValueError with one sentence for what cannot be."""
    unknown = set(work.options) - _OPTIONS
    if unknown:
        raise ValueError("a requeue takes no option {}".format(", ".join(sorted(repr(name) for name in unknown))))
    for name in ("not_before", "rate_per_second"):
        value = work.options.get(name)
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
            raise ValueError("{} is a number from 0 up, not {!r}".format(name, value))
    row = work.journal.connection.execute("SELECT params FROM run WHERE run_id = ?", (work.run_id,)).fetchone()
    return chosen(work.options, json.loads(row[0]) if row is not None else {})


def renew(work: Work, row: Seen, overrides: Optional[Dict[str, Any]] = None, new_key: bool = False) -> None:
    """Put a task back to where it has never run in this generation; its attempts stay."""
    abandon(work.journal, work.run_id, row.name, row.overrides)
    columns = _FORGOTTEN.copy()
    columns.update({"generation": row.generation + 1, "next_retry_at": None})
    if work.options.get("reset_count", True):
        columns.update(_COUNTERS)
    wait_seconds = _wait_seconds(work)
    if wait_seconds > 0:
        columns["next_retry_at"] = work.journal.at + int(wait_seconds * 1000000)
    if overrides:
        columns["overrides"] = json.dumps(overrides, ensure_ascii=False, sort_keys=True)
    starts = _max_attempts(work, row, overrides or {})
    if starts is not None:
        columns["max_attempts"] = starts
    if new_key:
        columns["key_generation"] = row.generation + 1
    work.journal.move(work.run_id, row.name, row.state, TaskState.PENDING, row.generation, set=columns)


def end(work: Work, row: Seen, state: TaskState, columns: TaskColumns = NO_TASK_COLUMNS) -> None:
    """Move a task that does not run to ``state``, for good: it waits for no instant, and no task waits for it to be the
    first to succeed. ``columns``: further ones to set."""
    abandon(work.journal, work.run_id, row.name, row.overrides)
    ended: TaskColumns = {"ended_at": work.journal.at, "next_retry_at": None, "expires_at": None, "canary": None}
    ended.update(columns)
    work.journal.move(work.run_id, row.name, row.state, state, row.generation, set=ended)


def _max_attempts(work: Work, row: Seen, overrides: Dict[str, Any]) -> Optional[int]:
    """What the column has to say now; None where it says so already."""
    if "max_attempts" in overrides:
        return int(overrides["max_attempts"])
    if "max_attempts" not in read(row.overrides):
        return None
    sql = "SELECT spec FROM task WHERE run_id = ? AND name = ?"
    (spec,) = work.journal.connection.execute(sql, (work.run_id, row.name)).fetchone()
    starts = json.loads(spec).get("retry", {}).get("max_attempts")
    return None if starts is None else int(starts)


def _wait_seconds(work: Work) -> float:
    """How long the next target waits: a redrive of a thousand tasks must not become the next outage."""
    seconds = float(work.options.get("not_before") or 0)
    rate = float(work.options.get("rate_per_second") or 0)
    return seconds + len(work.results) / rate if rate > 0 else seconds
