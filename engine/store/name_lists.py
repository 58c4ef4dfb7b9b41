"""Names of runs, tasks and causes in a state file, the latest first: for shell completion."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from ..statefile.open_readonly import open_readonly

NAMES_MAX = 1000

RUNS = "SELECT run_id, dag_name FROM run ORDER BY started_at DESC, rowid DESC LIMIT :limit"
TASKS = (
    "SELECT name, state FROM task WHERE run_id = coalesce(:run_id,"
    " (SELECT run_id FROM run ORDER BY started_at DESC, rowid DESC LIMIT 1))"
    " ORDER BY name LIMIT :limit"
)
CAUSES = (
    "SELECT failure_fingerprint, min(error) FROM task WHERE failure_fingerprint IS NOT NULL"
    " GROUP BY failure_fingerprint ORDER BY max(ended_at) DESC LIMIT :limit"
)


class Name(NamedTuple):
    """A name and a word about it."""

    name: str
    help: str


def read_names(path: str, sql: str, run_id: str | None = None) -> list[Name]:
    """Read names with one of the queries of this module. Raises StateFileError."""
    options = {"run_id": run_id, "limit": NAMES_MAX}
    with closing(open_readonly(path).connection) as connection:
        return [Name(str(name), str(about or "")) for name, about in connection.execute(sql, options)]
