"""Types for JSON values, as in a state file or on the wire.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import TYPE_CHECKING, Any, Mapping, Sequence, Union

if TYPE_CHECKING:
    Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
else:
    Json = Any  # a recursive alias fails if annotations are evaluated at run time

JsonObject = Mapping[str, Json]
