"""Results that could not be kept: tasks hand on JSON, and what is none is told apart from a task that returned nothing.

Such a task is a success, for most functions return what nobody asks for (document 003's demo does). Its row says what
it returned, and a child that asks for it fails in words instead of working on with null.
"""

from __future__ import annotations

import json

_KEY = "redrive:not-json"
_BEGIN = f'{{"{_KEY}"'
_WHY = "its result was not kept: not JSON, but a "


def unstored_result(kind: str) -> str:
    """The JSON that stands in the row for a value of this type."""
    return json.dumps({_KEY: kind})


def unstored_type(result: str | None) -> str | None:
    """The type of what was returned, where it could not be kept."""
    if result is None or not result.startswith(_BEGIN):
        return None
    return str(json.loads(result)[_KEY])


def unstored_reason(kind: str) -> str:
    """What a child is told instead of the result."""
    return f"{_WHY}{kind}"


def is_unstored_reason(why: str) -> bool:
    """Whether a result is missing for this reason, and not because its task did not succeed."""
    return why.startswith(_WHY)
