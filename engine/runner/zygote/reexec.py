"""Executes the zygote once more, without the threads that the import of the flow left in it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from .. import protocol


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """How the zygote was before it imported anything."""

    environment: Mapping[str, str]
    folder: str | None  # None: it had been removed already

    @classmethod
    def here(cls) -> ProcessOrigin:
        """Now."""
        try:
            return cls(dict(os.environ), os.getcwd())
        except OSError:
            return cls(dict(os.environ), None)

    def reexecute(self, control: socket.socket, left: protocol.RestartState) -> NoReturn:
        """Execute this process anew. Its pid, its children and the signals that are blocked stay. Raises OSError."""
        memory = os.memfd_create("redrive", 0)  # inherited
        protocol.write_all(memory, protocol.encode(left))
        control.set_inheritable(True)
        if self.folder is not None:
            os.chdir(self.folder)
        os.execve(sys.executable, command(control.fileno(), memory), dict(self.environment))


def command(*descriptors: int) -> list[str]:
    """The command line of a zygote: its socket, and what its life before left it, if there was one."""
    return [sys.executable, "-P", "-m", "redrive.engine.runner.zygote.zygote", *map(str, descriptors)]


def read_restart_state(memory: int) -> protocol.RestartState:
    """What ``reexecute`` wrote before the execution."""
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        (payload,) = protocol.FrameReader(protocol.CONTROL_LIMIT).feed(file.read())
    return protocol.decode_restart_state(payload)
