"""Results that cannot be stored. The row of the task stores a marker with the reason in place of the result.

The task is a success, because few functions return a value for their children. A child that needs the result fails with
a sentence instead of working on with null.
"""

from __future__ import annotations

import json

RESULT_BYTES_MAX = 64 * 1024  # of JSON: results are in the memory of the executor and of each console
_MARKER = "redrive:not-stored"
_MARKER_START = f'{{"{_MARKER}"'
_REASON_START = "its result was not stored: "


def unstored_result(why: str) -> str:
    """Return the marker, as JSON. ``why``: ``result[3] is a Frame``."""
    return json.dumps({_MARKER: why})


def too_large_sentence(size: int) -> str:
    """Say that a result is over the limit. ``size``: bytes of JSON."""
    advice = "write the data to a file or a table, and return its name"
    return f"it has {size} bytes of JSON, and at most {RESULT_BYTES_MAX} are handed on: {advice}"


def reason_of_unstored(result: str | None) -> str | None:
    """Return why a result was not stored; None for a stored result."""
    if result is None or not result.startswith(_MARKER_START):
        return None
    return str(json.loads(result)[_MARKER])


def unstored_reason(why: str) -> str:
    """Return the reason that a child gets in place of the result."""
    return f"{_REASON_START}{why}"


def is_unstored_reason(why: str) -> bool:
    """True if a result is missing because it could not be stored, not because its task did not succeed."""
    return why.startswith(_REASON_START)
