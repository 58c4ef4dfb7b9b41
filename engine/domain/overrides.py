"""What a requeue changes for one generation of a task: checked when it is asked for, kept with the task as JSON.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``timeout`` (seconds) and ``max_attempts`` stand in for what the flow says, ``params`` go over those of the run.
``verifies`` is the failure that a fix is meant to have ended (``decide.py``), ``rollout`` the act by which a task runs
first, or because the first has succeeded (``store/rollout.py``).
"""

import json
import math
from typing import Any, Dict, List, Mapping, Optional

TIMEOUT_SECONDS_MAX = 30 * 24 * 3600.0
NUMBER_MAX = 2**63 - 1  # what the processes that run tasks can be told

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    list: "a list in JSON",
    dict: "a mapping in JSON",
}
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def convert(value: Any, default: Any) -> Any:
    """A parameter as text, in the type of its default. Raises ValueError for a text that says no such thing.

    Where the default is a list or a mapping, the text is JSON; where it is None or a text, it stays a text.
    """
    if not isinstance(value, str) or default is None or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return _WORDS[value.lower()]
        if isinstance(default, (int, float)):
            return _number(type(default)(value))
        if isinstance(default, (list, dict)):
            return _json(value, type(default))
    except (KeyError, ValueError, OverflowError, RecursionError):
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise ValueError("wants {} like {!r}, not {!r}".format(_kind(default), default, shown)) from None
    return value


def _kind(default: Any) -> str:
    return next(words for kind, words in _KINDS.items() if isinstance(default, kind))  # True is an int as well


def _number(value: Any) -> Any:
    """Finite, and within what the state file and the frames to attempts can hold."""
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) <= NUMBER_MAX):
        raise ValueError
    return value


def _json(text: str, wanted: type) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)  # NaN and Infinity are no JSON

    value = json.loads(text, parse_constant=refuse)
    if not isinstance(value, wanted):
        raise ValueError
    json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
    return value


def chosen(options: Mapping[str, Any], params: Mapping[str, Any]) -> Dict[str, Any]:
    """The overrides that the options of a requeue ask for. ``params``: those of the run, with their values.

    Raises ValueError with one sentence for what cannot be.
    """
    found: Dict[str, Any] = {}
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
        found["params"] = {str(name): _param(str(name), value, params) for name, value in given.items()}
    found.update({name: str(options[name]) for name in ("verifies", "rollout") if options.get(name)})
    return found


def _param(name: str, value: Any, params: Mapping[str, Any]) -> Any:
    if name not in params:
        known = ", ".join(sorted(params)) or "none"
        raise ValueError("this run has no parameter {!r}; it has: {}".format(name, known))
    try:
        value = convert(value, params[name])
    except ValueError as error:
        raise ValueError("parameter {!r} {}".format(name, error)) from None
    if isinstance(value, int) and abs(value) > NUMBER_MAX:
        raise ValueError("parameter {!r} is larger than a task can be told: {}".format(name, value))
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read(text: Optional[str]) -> Dict[str, Any]:
    """The overrides of a task's row."""
    return json.loads(text) if text else {}


def in_words(overrides: Mapping[str, Any]) -> str:
    """What is different this time: ``timeout 20 min, one try, day=2``; empty where nothing is."""
    words: List[str] = []
    if "timeout" in overrides:
        words.append("timeout {}".format(_seconds(overrides["timeout"])))
    if "max_attempts" in overrides:
        starts = overrides["max_attempts"]
        words.append("one try" if starts == 1 else "{} tries".format(starts))
    words += ["{}={}".format(name, value) for name, value in sorted(overrides.get("params", {}).items())]
    return ", ".join(words)


def _seconds(seconds: float) -> str:
    if seconds >= 60 and seconds % 60 == 0:
        return "{:g} min".format(seconds / 60)
    return "{:g} s".format(seconds)
