"""The name and version of each line that ``--json`` prints.

The first key of a line is ``"schema": "redrive.tasks/1"``. Within a version fields are only added; a field that changes
its meaning or goes away makes the next version. The page ``json`` of the manual explains every field.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Listing or answer -> the version of its lines.
VERSIONS = {
    "runs": 1,
    "tasks": 1,
    "history": 1,
    "inbox": 1,
    "events": 1,
    "logs": 1,
    "pages": 1,
    "breakers": 1,
    "pools": 1,
    "quarantine": 1,
    "summary": 1,
    "doctor": 1,
    "check": 1,
    "schedule": 1,
    "backfill": 1,
    "prune": 1,
    "fleet": 1,
    "costs": 1,
    "what-if": 1,
    "rule": 1,
    "backoff": 1,
    "jitters": 1,
    "herd": 1,
    "contention": 1,
    "answer": 1,
    "preview": 1,
}


def with_schema(name: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return a line with its schema as the first key."""
    return {"schema": f"redrive.{name}/{VERSIONS[name]}", **value}
