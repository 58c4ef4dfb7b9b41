"""Which state file a run writes: the one that was named, else the file of its flow in the default folder.

The file has the name of the flow, not of the flow's source file, whoever starts the run: a command or a program.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable

from ..errors import StateFileError
from ..statefile.default_paths import STATE_VARIABLE, SUFFIX, default_folder

REMOTE = "ssh://"
STEM_BYTES_MAX = 120  # with all that is put behind it, a name fits into the 143 bytes that encrypted folders allow
STEM_CHARACTERS_KEPT = 20  # of a longer name, for people; a hash of the whole name follows


def path_for_run(given: str | None, flow_name: Callable[[], str]) -> str:
    """The state file that a run writes: ``given``, else what REDRIVE_STATE names, else the file of its flow.

    ``flow_name`` is called in the last case only: the name may have to be imported. Raises StateFileError.
    """
    if given == "":
        raise StateFileError("the name of the state file is empty; name one, or leave --state out")
    path = given or os.environ.get(STATE_VARIABLE)
    if not path:
        return path_of_flow(flow_name())
    if path.startswith(REMOTE):
        raise StateFileError("a run writes a state file on this machine; start it over there, or give a path")
    return os.path.expanduser(path)


def path_of_flow(flow_name: str) -> str:
    """The state file of a flow in the default folder. Two names never share one file."""
    stem = "".join(_escaped(flow_name, place) for place in range(len(flow_name)))
    if len(stem.encode("utf-8", "surrogatepass")) > STEM_BYTES_MAX:
        digest = hashlib.sha256(flow_name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        stem = f"{stem[:STEM_CHARACTERS_KEPT]}%-{digest}"  # no escape: those are % and two digits
    return os.path.join(default_folder(), stem + SUFFIX)


def _escaped(name: str, place: int) -> str:
    """A letter, mark or digit of any script as it is, and ``._-`` but for a dot in front; else its bytes as %XX."""
    character = name[place]
    if character in "_-" or (character == "." and place) or unicodedata.category(character)[0] in "LMN":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
