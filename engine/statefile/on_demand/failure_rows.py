"""Failed tasks and their attempts, as ``failure_queries.py`` reads them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import List, NamedTuple, Optional

from ...json_types import JsonObject


class FailedAttempt(NamedTuple):
    """One attempt of a failed task. Instants in microseconds UTC; ``facts``: the fields of its error.

    ``fields``: [name, value] of what makes its fingerprint.
    """

    attempt: int
    generation: int
    outcome: str
    started_at: int
    ended_at: Optional[int] = None
    error_type: Optional[str] = None
    error: Optional[str] = None
    diagnostic: Optional[str] = None
    failure_class: Optional[str] = None
    fingerprint: Optional[str] = None
    fingerprint_loose: Optional[str] = None
    explain: Optional[str] = None
    facts: JsonObject = {}
    delay_us: Optional[int] = None
    params_hash: Optional[str] = None
    input_hash: Optional[str] = None
    fields: List[List[str]] = []


class FailedTask(NamedTuple):
    """A task that failed at least once, with all of its attempts, the oldest first."""

    run_id: str
    name: str
    state: str
    generation: int
    skip_cause: Optional[str]
    spec: JsonObject
    attempts: List[FailedAttempt]
