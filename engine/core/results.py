"""Results that are not JSON. The row of the task stores a marker with the type of the value in place of the result.

The task is a success, because few functions return a value for their children. A child that needs the result fails with
a sentence instead of working on with null.
"""

from __future__ import annotations

import json

_MARKER = "redrive:not-json"
_MARKER_START = f'{{"{_MARKER}"'
_REASON_START = "its result was not kept: not JSON, but a "


def unstored_result(kind: str) -> str:
    """Return the marker, as JSON, for a value of type ``kind``."""
    return json.dumps({_MARKER: kind})


def unstored_type(result: str | None) -> str | None:
    """Return the type of a result that is not JSON; None for a stored result."""
    if result is None or not result.startswith(_MARKER_START):
        return None
    return str(json.loads(result)[_MARKER])


def unstored_reason(kind: str) -> str:
    """Return the reason that a child gets in place of the result."""
    return f"{_REASON_START}{kind}"


def is_unstored_reason(why: str) -> bool:
    """True if a result is missing because it is not JSON, not because its task did not succeed."""
    return why.startswith(_REASON_START)
