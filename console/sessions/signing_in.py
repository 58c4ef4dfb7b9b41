"""Passwords, second factors and unknown keys: asked by ssh itself on the terminal, before a screen is drawn on it.

Afterwards the connection is kept open by ssh for a minute, or as long as it is used, and the session goes through it
without a question. An operator whose keys suffice never comes here.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace

from ...engine.errors import LinkError
from .address import SshAddress
from .ssh_options import SshOptions

PERSIST_SECONDS = 60


def sign_in(address: SshAddress, options: SshOptions) -> SshOptions:
    """Let ssh ask what it has to, on the terminal of this process. Returns the options that use what was answered.

    Raises LinkError when ssh was not satisfied.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    # Mode 0700: nobody else signs in by it. Short: the path of a socket may have 104 bytes, ssh adds 17 for a moment.
    path = os.path.join(tempfile.mkdtemp(prefix="redrive-", dir=folder), "ssh")
    shared = replace(options, options=(*options.options, f"ControlPath={path}"))
    master = replace(shared, options=(*shared.options, "ControlMaster=yes", f"ControlPersist={PERSIST_SECONDS}"))
    result = subprocess.run(master.argv(address, "true", asking=True), check=False)
    if result.returncode != 0:
        raise LinkError(f"could not sign in to {address.destination}", final=True)
    return shared
