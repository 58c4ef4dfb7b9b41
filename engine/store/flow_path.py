"""The path of the state file of a run: the given path, else a file named after the flow in the default folder.

The name comes from the flow, not from the flow's source file, both for commands and for programs.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable

from ..errors import StateFileError
from ..statefile.default_paths import STATE_VARIABLE, SUFFIX, default_folder

REMOTE = "ssh://"
STEM_BYTES_MAX = 120  # with all suffixes, a name fits into the 143 bytes that encrypted folders allow
STEM_CHARACTERS_KEPT = 20  # readable prefix of a longer name, followed by a hash of the whole name


def path_for_run(given: str | None, flow_name: Callable[[], str]) -> str:
    """Return the state file: ``given``, else REDRIVE_STATE, else the file of the flow.

    ``flow_name`` is called in the last case only, because it may import the flow. Raises StateFileError.
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
    """Return the state file of a flow in the default folder. Two names never share one file."""
    stem = "".join(_escape(flow_name, index) for index in range(len(flow_name)))
    if len(stem.encode("utf-8", "surrogatepass")) > STEM_BYTES_MAX:
        digest = hashlib.sha256(flow_name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        stem = f"{stem[:STEM_CHARACTERS_KEPT]}%-{digest}"  # unambiguous: an escape is % and two digits
    return os.path.join(default_folder(), stem + SUFFIX)


def _escape(name: str, index: int) -> str:
    """Escape one character: letters, marks, digits and ``._-`` stay (no leading dot), others become bytes as %XX."""
    character = name[index]
    if character in "_-" or (character == "." and index) or unicodedata.category(character)[0] in "LMN":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
