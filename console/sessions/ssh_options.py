"""The command line of ssh: the system's program, so that keys, agents, jump hosts and hardware tokens keep working."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the first frame of a console on a local file does not wait for it
    from .address import SshAddress

PROGRAM_ENVIRONMENT = "REDRIVE_SSH"

_ALWAYS = (
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=yes",  # no cost on a fast connection, an eighth of the bytes on a slow one
    "LogLevel=ERROR",
    "RemoteCommand=none",  # ssh accepts one remote command, and it is ours
    "ClearAllForwardings=yes",  # configured forwardings would be bound a second time
    "ForwardAgent=no",  # these two are not forwardings to ssh; the remote host needs neither keys nor a screen
    "ForwardX11=no",
)
_NO_PROMPTS = "BatchMode=yes"  # an invisible prompt would block forever


class SshOptions(NamedTuple):
    """``python``: the remote interpreter. ``options``: ``Key=Value``, or arguments of ssh such as ``-4``."""

    python: str = "python3"
    options: tuple[str, ...] = ()

    def with_options(self, *options: str) -> SshOptions:
        """Return a copy with these options after the operator's."""
        return self._replace(options=(*self.options, *options))

    def argv(self, address: SshAddress, *command: str, may_prompt: bool = False) -> list[str]:
        """Return the command line. The operator's options come first, because ssh uses the first value of an option.

        ``may_prompt``: ssh may ask for passwords and second factors on the terminal.
        """
        words = [*_program(), "-T"]
        for option in self.options:
            words += [option] if option.startswith("-") else ["-o", option]
        for option in _ALWAYS if may_prompt else (_NO_PROMPTS, *_ALWAYS):
            words += ["-o", option]
        if address.port is not None:
            words += ["-p", str(address.port)]
        return [*words, "--", address.destination, *command]


class Endpoint(NamedTuple):
    """A state file or a host, and the options of ssh that reach it. ``target``: a path, or ``ssh://...``."""

    target: str
    ssh: SshOptions = SshOptions()


def _program() -> list[str]:
    """``REDRIVE_SSH`` replaces ssh, as ``GIT_SSH_COMMAND`` does for git."""
    return shlex.split(os.environ.get(PROGRAM_ENVIRONMENT, "")) or ["ssh"]
