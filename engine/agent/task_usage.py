"""What running tasks use now, as their executor reads it from /proc on request.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, List

from .executor_request import request

ACT = "usage"
RESPONSE_SECONDS = 2.0


def read_usage(state_path: str) -> List[Any]:
    """The rows of ``TaskUsage`` of all running tasks; none without an executor. Raises LinkError, StateFileError."""
    response = request(state_path, {"act": ACT}, RESPONSE_SECONDS)
    usage = (response or {}).get("usage")
    return usage if isinstance(usage, list) else []
