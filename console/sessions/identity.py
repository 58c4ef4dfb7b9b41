"""Who is at the keyboard, and who else is looking."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence


def me() -> str:
    """``user@host``: how acts from here are signed."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def others(present: Sequence[str], actor: str) -> tuple[str, ...]:
    """Those attached but for one of ``actor``: the same person may have a second console open."""
    rest = list(present)
    if actor in rest:
        rest.remove(actor)
    return tuple(rest)
