"""Passwords, second factors and unknown keys: asked by ssh itself on the terminal, before a screen is drawn on it.

Afterwards ssh keeps the connection open, for a minute or as long as it is used, and the session goes through it
without a question. An operator whose keys suffice never comes here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...engine.errors import LinkError
from .address import SshAddress
from .ssh_options import SshOptions

PERSIST_SECONDS = 60

Result = TypeVar("Result")


async def with_answers(
    address: SshAddress, options: SshOptions, use: Callable[[SshOptions], Awaitable[Result]]
) -> Result:
    """Connect by ``use``; where ssh needs answers and a person sits at the terminal, let it ask and connect again.

    Raises what ``use`` raises, and LinkError when ssh was not satisfied.
    """
    try:
        return await use(options)
    except LinkError as error:
        if not error.locked or not has_person():
            raise
    return await use(sign_in(address, options))


def has_person() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def sign_in(address: SshAddress, options: SshOptions) -> SshOptions:
    """Let ssh ask what it has to, on the terminal of this process. Returns the options that use what was answered.

    Raises LinkError when ssh was not satisfied.
    """
    # Mode 0700: nobody else goes in by it. Short: the path of a socket may have 104 bytes, ssh adds 17 for a moment.
    folder = tempfile.mkdtemp(prefix="redrive-", dir=os.environ.get("XDG_RUNTIME_DIR"))
    shared = options.adding(f"ControlPath={os.path.join(folder, 'ssh')}")
    master = shared.adding("ControlMaster=yes", f"ControlPersist={PERSIST_SECONDS}")
    atexit.register(_sign_out, shared.argv(address), folder)
    if subprocess.run(master.argv(address, "true", asking=True)).returncode != 0:
        raise LinkError(f"could not sign in to {address.destination}", final=True)
    return shared


def _sign_out(argv: Sequence[str], folder: str) -> None:
    if os.path.exists(os.path.join(folder, "ssh")):
        subprocess.run([argv[0], "-O", "exit", *argv[1:]], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
