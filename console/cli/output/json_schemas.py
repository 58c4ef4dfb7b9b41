"""The name and version of each line that ``--json`` prints.

The first key of a line is ``"schema": "redrive.tasks/1"``. Within a version fields are only added; a field that changes
its meaning or goes away makes the next version. The page ``json`` of the manual explains every field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NoReturn

from ...text.printing import echo_json

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
    "rehearsal": 1,
    "herd": 1,
    "contention": 1,
    "answer": 1,
    "preview": 1,
}


#: Listing -> its columns that are JSON text in the state file. A line has their values, so that ``.params.day`` is one.
JSON_COLUMNS = {"runs": ("params", "options", "pool_waits"), "tasks": ("result", "overrides")}


def with_schema(name: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return a line with its schema as the first key."""
    decoded = {column: _decoded(value[column]) for column in JSON_COLUMNS.get(name, ())}
    return {"schema": f"redrive.{name}/{VERSIONS[name]}", **value, **decoded}


def echo_values(name: str, values: Iterable[Mapping[str, object]]) -> None:
    """Print values as JSON, each in a line of this name."""
    for value in values:
        echo_json(with_schema(name, value))


def _decoded(column: object) -> object:
    """Return the value of JSON text; the text itself if it is none, as in a malformed state file."""
    if not isinstance(column, str):
        return column
    try:
        value: object = json.loads(column, parse_constant=_reject)
        json.dumps(value)  # what is nested as deep as the parser allows cannot be printed
    except (ValueError, RecursionError):
        return column
    return value


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
