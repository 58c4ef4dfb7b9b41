"""The operator of this console, and the operators of other consoles."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence

from ...engine.domain.command import clean_actor


def current_actor() -> str:
    """Return ``user@host``, the actor of commands from this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return clean_actor(f"{user}@{socket.gethostname()}")


def other_actors(present: Sequence[str], actor: str) -> tuple[str, ...]:
    """Return ``present`` without one entry of ``actor``, who may have a second console open."""
    rest = list(present)
    if actor in rest:
        rest.remove(actor)
    return tuple(rest)
