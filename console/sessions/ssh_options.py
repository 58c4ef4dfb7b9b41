"""How ssh is run: the system's own program, so that keys, agents, jump hosts and hardware tokens keep working."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace

from .address import SshAddress

PROGRAM_ENVIRONMENT = "REDRIVE_SSH"

_ALWAYS = (
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=yes",  # nothing on a fast line, eight times less on a slow one
    "LogLevel=ERROR",
    "RemoteCommand=none",  # ours is the only one
    "ClearAllForwardings=yes",  # theirs would be bound a second time
)
_QUESTIONS_REFUSED = "BatchMode=yes"  # a question that nobody sees would wait for ever


@dataclass(frozen=True, slots=True)
class SshOptions:
    """``python``: the interpreter over there. ``options``: ``Key=Value``, or words for ssh itself, such as ``-4``."""

    python: str = "python3"
    options: tuple[str, ...] = ()

    def adding(self, *options: str) -> SshOptions:
        """The same, and these behind the operator's."""
        return replace(self, options=(*self.options, *options))

    def argv(self, address: SshAddress, *command: str, asking: bool = False) -> list[str]:
        """The command line. The operator's options come first, because ssh keeps the first that it meets.

        ``asking``: ssh may ask for passwords and second factors on the terminal.
        """
        words = [*_program(), "-T"]
        for option in self.options:
            words += [option] if option.startswith("-") else ["-o", option]
        for option in _ALWAYS if asking else (_QUESTIONS_REFUSED, *_ALWAYS):
            words += ["-o", option]
        if address.port is not None:
            words += ["-p", str(address.port)]
        return [*words, "--", address.destination, *command]


def _program() -> list[str]:
    """``REDRIVE_SSH`` stands in for ssh, as ``GIT_SSH_COMMAND`` does for git."""
    return shlex.split(os.environ.get(PROGRAM_ENVIRONMENT, "")) or ["ssh"]
