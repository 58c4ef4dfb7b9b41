"""The operator of this console, and the operators of other consoles."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ...engine.domain.command import Command, Target, clean_actor


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


def new_command(
    act: str,
    run_id: str | None,
    targets: Sequence[Target] = (),
    reason: str = "",
    options: Mapping[str, object] = MappingProxyType({}),
) -> Command:
    """Return a command of this operator with an id of its own. ``options``: of the act."""
    return Command(uuid.uuid4().hex, act, run_id, tuple(targets), current_actor(), reason, dict(options))
