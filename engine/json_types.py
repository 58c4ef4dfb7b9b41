"""Names for values that JSON can hold, so that what a state file or the wire says has a type.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import TYPE_CHECKING, Any, Mapping, Sequence, Union

if TYPE_CHECKING:
    Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
else:
    Json = Any  # an alias that names itself means nothing to those who read annotations at run time

JsonObject = Mapping[str, Json]
