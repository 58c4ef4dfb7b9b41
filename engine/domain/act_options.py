"""The types of the options of acts: one table, checked before an act reads them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Options come from a socket, so every JSON value is possible; the handlers may rely on these types. What an act refuses
beyond them (a downstream that the flow lacks, a timeout of 0) is refused where the act is applied.
"""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

WHOLE_MAX = 2**63 - 1  # what SQLite stores
NUMBER_MAX = 1e9  # seconds: about 32 years, so that no instant leaves the range of dates


class OptionCheck(NamedTuple):
    """``allows``: whether a value has the type; ``name``: the type in words, with its article."""

    allows: Callable[[object], bool]
    name: str


def is_whole(value: object) -> bool:
    """True for a whole number that SQLite can store."""
    return isinstance(value, int) and -WHOLE_MAX <= value <= WHOLE_MAX


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= NUMBER_MAX


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_group(value: object) -> bool:
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return False
    task, fingerprint, last = value
    return _is_text(task) and (fingerprint is None or _is_text(fingerprint)) and is_whole(last)


def _is_list(of: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(of(item) for item in value)


_TEXT = OptionCheck(_is_text, "a text")
_FLAG = OptionCheck(lambda value: isinstance(value, bool), "true or false")
_NUMBER = OptionCheck(_is_number, "a number from 0 to {:,.0f}".format(NUMBER_MAX))
_WHOLE_NUMBERS = OptionCheck(_is_list(is_whole), "a list of whole numbers")

OPTION_TYPES: Dict[str, OptionCheck] = {
    "canary": _FLAG,
    "cascade": _FLAG,
    "cause": _TEXT,
    "command": _TEXT,
    "downstream": _TEXT,
    "fingerprint": _TEXT,
    "groups": OptionCheck(_is_list(_is_group), "a list of (task, fingerprint, last row)"),
    "how": _TEXT,
    "max_attempts": OptionCheck(is_whole, "a whole number"),
    "new_key": _FLAG,
    "not_before": _NUMBER,
    "pages": _WHOLE_NUMBERS,
    "params": OptionCheck(lambda value: isinstance(value, dict), "an object of named values"),
    "rate_per_second": _NUMBER,
    "reset_count": _FLAG,
    "rollout": _TEXT,
    "rows": _WHOLE_NUMBERS,
    "runs": OptionCheck(is_whole, "a whole number"),
    "same_key": _FLAG,
    "seconds": _NUMBER,
    "single_shot": _FLAG,
    "text": _TEXT,
    "verifies": _TEXT,
}


def option_type_refusal(options: Mapping[str, Any]) -> Optional[str]:
    """One sentence about the first option whose value has another type; None if all have theirs. null is allowed."""
    for name, value in options.items():
        expected = OPTION_TYPES.get(name)
        if expected is not None and value is not None and not expected.allows(value):
            return "{} is {}, not {}".format(name, expected.name, _shown(value))
    return None


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, (bool, int, float, str)) else "a {}".format(type(value).__name__)
    return text if len(text) <= 60 else text[:59] + "…"
