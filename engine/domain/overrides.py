"""Overrides: what a requeue changes for one generation of a task. Validated on request, stored with the task as JSON.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``timeout`` (seconds) and ``max_attempts`` replace the options of the flow, ``params`` those of the run. ``verifies`` is
the fingerprint of the failure that a fix should have ended (``decide.py``); ``rollout`` is the id of the act that made
the task a canary, or released it after its canary succeeded (``store/rollout.py``).
"""

import json
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from .durations import format_duration
from .params import NUMBER_MAX, convert_param

if TYPE_CHECKING:
    from typing import TypedDict

    from ..json_types import Json

    class Overrides(TypedDict, total=False):
        """``timeout``: seconds. The other keys: see the docstring of the module."""

        timeout: float
        max_attempts: int
        params: Dict[str, Json]
        verifies: str
        rollout: str

else:  # old interpreters have no TypedDict
    Overrides = dict

TIMEOUT_SECONDS_MAX = 30 * 24 * 3600.0


def masked_param(name: str) -> str:
    """What the state file holds in place of the value of a secret parameter."""
    return "***{}***".format(name)


def parse_overrides(
    options: Mapping[str, Any], params: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]
) -> Overrides:
    """The overrides in the options of a requeue. ``params``: the parameters of the run, with their values.

    ``declared``: the types that the flow declares for some of them. Raises ValueError with one sentence for an invalid
    option.
    """
    found: Overrides = {}
    timeout = options.get("timeout")
    if timeout is not None:
        if not _is_number(timeout) or not 0 < timeout <= TIMEOUT_SECONDS_MAX:
            raise ValueError("a timeout is a number of seconds above 0, not {!r}".format(timeout))
        found["timeout"] = timeout
    starts = 1 if options.get("single_shot") else options.get("max_attempts")
    if starts is not None:
        if not isinstance(starts, int) or starts < 1:
            raise ValueError("max_attempts is a whole number of at least 1, not {!r}".format(starts))
        found["max_attempts"] = starts
    given = options.get("params") or {}
    if given:
        found["params"] = {str(name): _param(str(name), value, params, declared) for name, value in given.items()}
    if options.get("verifies"):
        found["verifies"] = str(options["verifies"])
    if options.get("rollout"):
        found["rollout"] = str(options["rollout"])
    return found


def _param(name: str, value: Any, params: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> Any:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ValueError("this run has no parameter {!r}; it has: {}".format(name, known))
    if params[name] == masked_param(name):
        raise ValueError(
            "parameter {0!r} is secret, and the state file holds no secrets: resume the run with "
            "--param {0}=@FILE".format(name)
        )
    try:
        value = convert_param(value, params[name], declared.get(name))
    except ValueError as error:
        raise ValueError("parameter {!r} {}".format(name, error)) from None
    if isinstance(value, int) and abs(value) > NUMBER_MAX:
        raise ValueError("parameter {!r} is larger than a task can receive: {}".format(name, value))
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def load_overrides(text: Optional[str]) -> Overrides:
    """The overrides of a task, from its column ``overrides``."""
    return json.loads(text) if text else {}


def describe(overrides: Overrides) -> str:
    """Describe overrides in words: ``timeout 20 min, one try, day=2``; empty without overrides."""
    words: List[str] = []
    if "timeout" in overrides:
        words.append("timeout {}".format(format_duration(round(overrides["timeout"] * 1e6))))
    if "max_attempts" in overrides:
        starts = overrides["max_attempts"]
        words.append("one try" if starts == 1 else "{} tries".format(starts))
    words += ["{}={}".format(name, value) for name, value in sorted(overrides.get("params", {}).items())]
    return ", ".join(words)
