"""Reads the dump that faulthandler writes: whose stack it is, and where it stands."""

from __future__ import annotations

import os
import re

from ..core.fingerprint import innermost_of_stack

_HEAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-fA-F]+)", re.MULTILINE)


def where(dump: str, project_root: str | None) -> str | None:
    """ "file:line in function" of the innermost frame that is the user's own; None when there is no frame."""
    frame = innermost_of_stack(dump)
    if frame is None:
        return None
    path = frame.path
    if project_root is not None and path.startswith(project_root + os.sep):
        path = path[len(project_root) + 1 :]
    return f"{path}:{frame.line} in {frame.function}"


def of_thread(dump: str, ident: int) -> str:
    """The part of a dump of all threads that tells one of them; the whole dump when it is not there."""
    heads = list(_HEAD.finditer(dump))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if int(head["ident"], 16) == ident:
            return dump[head.start() : following.start() if following else len(dump)].rstrip() + "\n"
    return dump
