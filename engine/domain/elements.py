"""The elements of a map task's list: what each is known by, and the name of the child that belongs to it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A child belongs to its element as long as the run exists, wherever the element stands in the list. An element is known
by its key, which the flow computes (``Flow.map(key=...)``), or by its value and its number among equal ones.
"""

import json
import re
from datetime import date
from decimal import Decimal
from typing import Any, Dict, Iterable, List, Sequence

from .states import TaskState
from .task_options import child_prefix
from .text import counted, percent_encoded, sha256_hex

#: How the elements of a map task are known: ``MapSpec.identity``.
KEY = "key"  # else "value"

KEY_CHARACTERS_MAX = 80  # of a key in a name; a hash follows what is cut off
GONE = -1  # the index of a child whose element is not in the list now
#: The states in which a map task runs again when its list is made again.
FOLLOWING = frozenset([TaskState.SUCCESS, TaskState.FAILED, TaskState.DEAD_LETTER])
VANISHED = "the list has no such element any more"
VANISHED_CHILD = VANISHED + ": the task comes back with its element"

_TAG = "redrive:"  # of ``core/result_codec.py``
_SETS = frozenset([_TAG + "set", _TAG + "frozenset"])
_SCALARS = frozenset(
    _TAG + kind for kind in ("float", "decimal", "datetime", "date", "time", "timedelta", "bytes", "bytearray", "uuid")
) | frozenset([_TAG + "path", _TAG + "enum"])
_SEQUENCES = _SETS | frozenset([_TAG + "tuple"])
_ESCAPED = frozenset("%[]")
_NUMBER = re.compile("[0-9]{1,9}$")


# --- Keys ------------------------------------------------------------------------------------------------------------


def key_text(key: object) -> str:
    """The text of a key: equal numbers have one text. Raises ValueError, whose text continues "its key is"."""
    if isinstance(key, str):
        if not key:
            raise ValueError("an empty text")
        return str.__str__(key)
    if isinstance(key, date):  # or a datetime
        return key.isoformat()
    if not isinstance(key, bool) and isinstance(key, (int, float, Decimal)):
        return _number_text(key)
    scalar = getattr(key, "item", None)  # of numpy
    if callable(scalar) and type(key).__module__ == "numpy":
        return key_text(scalar())
    raise ValueError(f"{key!r:.60}, which is no text, number or date")


def _number_text(key: Any) -> str:
    exact = Decimal(repr(key)) if isinstance(key, float) else Decimal(key)
    if not exact.is_finite():
        raise ValueError(f"{key}, which is not finite")
    return str(int(exact)) if exact == exact.to_integral_value() else f"{exact.normalize():f}"


def child_of_key(task: str, key: str) -> str:
    """The name of the child of a map task for the element with this key: printable, on one line."""
    escaped = _escape(key)
    if len(escaped) > KEY_CHARACTERS_MAX:
        digest = sha256_hex(key.encode("utf-8", "surrogatepass"))[:12]
        escaped = f"{escaped[:KEY_CHARACTERS_MAX]}~{digest}"
    return f"{child_prefix(task)}{escaped}]"


def _escape(key: str) -> str:
    last = len(key) - 1
    return "".join(
        percent_encoded(one) if _needs_escape(one, is_edge=place in (0, last)) else one for place, one in enumerate(key)
    )


def _needs_escape(character: str, is_edge: bool) -> bool:
    return character in _ESCAPED or not character.isprintable() or (is_edge and character == " ")


# --- Values ----------------------------------------------------------------------------------------------------------


def value_hash(element: object) -> str:
    """A hash of the stored form of an element: the same for equal values."""
    text = json.dumps(_ordered(element), sort_keys=True, separators=(",", ":"))
    return sha256_hex(text.encode("ascii"))[:20]


def _ordered(value: Any) -> Any:
    """A stored value whose sets are in one order: each process writes the members of a set in its own."""
    if isinstance(value, dict):
        found = {name: _ordered(one) for name, one in value.items()}
        return {name: sorted(one, key=json.dumps) if name in _SETS else one for name, one in found.items()}
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def numbered(hashes: Iterable[str]) -> List[str]:
    """The identities of elements without keys: of each the hash of its value, and its number among equal ones."""
    seen: Dict[str, int] = {}
    found = []
    for one in hashes:
        found.append(f"{one}#{seen.get(one, 0)}")
        seen[one] = seen.get(one, 0) + 1
    return found


def has_parts(element: object) -> bool:
    """Whether a stored element is a mapping or an object, of which a field may change while it is the same thing."""
    if isinstance(element, list):
        return any(map(has_parts, element))
    if not isinstance(element, dict):
        return False
    tag = next(iter(element)) if len(element) == 1 else ""
    return tag not in _SCALARS and not (tag in _SEQUENCES and not has_parts(element[tag]))


def number_of(task: str, name: str) -> int:
    """The number in the name of a child; -1 for a key that is no number."""
    text = name[len(child_prefix(task)) : -1]
    return int(text) if _NUMBER.match(text) else -1


# --- What changed ----------------------------------------------------------------------------------------------------


def keyless_effect(task: str, over: str) -> str:
    """Why an effect is not mapped over mappings or objects without a key."""
    return (
        f"{task!r} has an effect for each element of {over!r}, and these are mappings or objects: say which one is"
        ' which, with key=lambda element: element["id"], so that no effect happens twice when a field changes'
    )


def other_keys(task: str, known: str, key: str) -> str:
    """Why an element is not given a child after the flow's ``key=`` has changed."""
    return (
        f"key= of {task!r} is another one than this run began with: the element of {known} has the key {key!r} now, and"
        " an element that is new cannot be told from one that this run knows; bring the key back, or start a new run"
    )


def describe_following(task: str, effects: int, later: int) -> str:
    """Say what a requeue of its list means for a map task. ``effects``: that have happened; ``later``: successful tasks
    below the map task that do not run again."""
    sentence = f"{task} follows its list: a child runs again if its element has changed"
    if effects:
        has, stays = ("has", "stays") if effects == 1 else ("have", "stay")
        sentence += f", but {counted(effects, 'effect')} {has} happened and {stays}"
    if later:
        keep, them = ("keeps the result", "it") if later == 1 else ("keep the results", "them")
        sentence += f"; {counted(later, 'task')} after it {keep} of the old list: --cascade runs {them} again"
    return sentence


def is_key_list(keys: object, size: int) -> bool:
    """Whether stored keys are those of a list of this length; an empty list has none."""
    return size == 0 or isinstance(keys, Sequence) and not isinstance(keys, str) and len(keys) == size
