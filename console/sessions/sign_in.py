"""Passwords, second factors and unknown keys: ssh itself asks for them on the terminal, before the console starts.

Afterwards ssh keeps the connection open, for a minute or as long as it is used, and the session uses it without a
prompt. An operator whose keys suffice never gets here.
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


async def connect_with_sign_in(
    address: SshAddress, options: SshOptions, use: Callable[[SshOptions], Awaitable[Result]]
) -> Result:
    """Await ``use``; if ssh needs input and the terminal is interactive, let ssh prompt and await ``use`` again.

    Raises what ``use`` raises, and LinkError when the sign-in failed.
    """
    try:
        return await use(options)
    except LinkError as error:
        if not error.locked or not is_interactive():
            raise
    return await use(sign_in(address, options))


def is_interactive() -> bool:
    """Whether a person can answer prompts on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def sign_in(address: SshAddress, options: SshOptions) -> SshOptions:
    """Let ssh prompt on the terminal of this process. Returns options that reuse the authenticated connection.

    Raises LinkError when the sign-in failed.
    """
    # Mode 0700 keeps other users out. Short: the path of a socket may have 104 bytes, and ssh appends 17.
    folder = tempfile.mkdtemp(prefix="redrive-", dir=os.environ.get("XDG_RUNTIME_DIR"))
    shared = options.with_options(f"ControlPath={os.path.join(folder, 'ssh')}")
    master = shared.with_options("ControlMaster=yes", f"ControlPersist={PERSIST_SECONDS}")
    atexit.register(_sign_out, shared.argv(address), folder)
    if subprocess.run(master.argv(address, "true", may_prompt=True)).returncode != 0:
        raise LinkError(f"could not sign in to {address.destination}", final=True)
    return shared


def _sign_out(argv: Sequence[str], folder: str) -> None:
    if os.path.exists(os.path.join(folder, "ssh")):
        subprocess.run([argv[0], "-O", "exit", *argv[1:]], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
