"""The path of the state file of a run: the given path, else a file named after the flow in the default folder.

The name comes from the flow, not from the flow's source file, both for commands and for programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..domain.text import REMOTE, sha256_hex
from ..errors import StateFileError
from ..statefile.paths import STATE_VARIABLE, SUFFIX, default_folder

STEM_BYTES_MAX = 120  # with all suffixes, a name fits into the 143 bytes that encrypted folders allow
STEM_CHARACTERS_KEPT = 20  # readable prefix of a longer name, followed by a hash of the whole name


def path_for_run(given: str | None, flow_name: Callable[[], str], flow: str | None = None) -> str:
    """Return the state file: ``given``, else REDRIVE_STATE, else the file of the flow.

    ``flow_name`` is called in the last case only, because it may import the flow. ``flow``: its file, as the operator
    names it; None: a program builds it. Raises StateFileError, also if the file of the flow belongs to another flow of
    this name.
    """
    if given == "":
        raise StateFileError("the name of the state file is empty; name one, or leave it out")
    path = given or os.environ.get(STATE_VARIABLE)
    if not path:
        name = flow_name()
        path = path_of_flow(name)
        if flow is not None:
            _check_owner(path, name, flow)
        return follow_link(path)
    if path.startswith(REMOTE):
        raise StateFileError("a run writes a state file on this machine; start it over there, or give a path")
    check_state_name(path)
    return follow_link(os.path.expanduser(path))


def follow_link(path: str) -> str:
    """Return the state file that a link leads to: under each of its names it has one lock, one socket and one log."""
    return os.path.realpath(path) if os.path.islink(path) else path


def check_state_name(name: str) -> None:
    """Raise StateFileError for the names of SQLite that are not files: a run needs a real file."""
    if name == ":memory:" or name.startswith("file:"):
        raise StateFileError(f"{name!r} names no file; give the path of one, such as ./{name.strip(':') or 'x'}.db")


def path_of_flow(flow_name: str) -> str:
    """Return the state file of a flow in the default folder. Two names never share one file."""
    stem = "".join(_escape(flow_name, index) for index in range(len(flow_name)))
    if len(stem.encode("utf-8", "surrogatepass")) > STEM_BYTES_MAX:
        digest = sha256_hex(flow_name.encode("utf-8", "surrogatepass"))[:32]
        stem = f"{stem[:STEM_CHARACTERS_KEPT]}%-{digest}"  # unambiguous: an escape is % and two digits
    return os.path.join(default_folder(), stem + SUFFIX)


def _check_owner(path: str, name: str, flow: str) -> None:
    """Raise StateFileError if the runs of the file are of another flow file, which still exists.

    A flow file that was moved keeps its state file. A file that cannot be read is reported by those who open it.
    """
    from ..flow.source import split_target  # imported here, because it slows down the start

    ours = os.path.realpath(split_target(flow)[0])
    owners = [split_target(owner)[0] for owner in _owners(path)] if os.path.exists(ours) else []
    others = [owner for owner in owners if os.path.exists(owner)]
    if others and ours not in map(os.path.realpath, owners):
        raise StateFileError(
            f"the state file {path} belongs to the flow {name!r} of {others[0]}, and {ours} has a flow of the same"
            " name; give one of them another name, or this run another file with --state PATH"
        )


def _owners(path: str) -> list[str]:
    """The flow files of the runs in a state file, the latest first."""
    # here: a program that runs a flow of its own may fork it after this module is imported
    from ..statefile.reader import read_or

    sql = "SELECT flow_path FROM run WHERE flow_path IS NOT NULL GROUP BY flow_path ORDER BY max(rowid) DESC"
    return read_or(path, lambda connection: [owner for (owner,) in connection.execute(sql)], [])


def _escape(name: str, index: int) -> str:
    """Escape one character: letters, marks, digits and ``._-`` stay (no leading dot), others become bytes as %XX."""
    character = name[index]
    if character in "_-" or (character == "." and index) or _is_word(character):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _is_word(character: str) -> bool:
    """Whether it is a letter, a mark or a digit."""
    if character.isascii():
        return character.isalnum()
    import unicodedata  # here: a fork of this process would copy what it maps

    return unicodedata.category(character)[0] in "LMN"
