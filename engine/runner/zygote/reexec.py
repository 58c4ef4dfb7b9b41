"""Re-executes the zygote, to get rid of threads that the import of the flow left running."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # the executor starts the zygote before it imports what they say to each other
    from .. import protocol


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """The environment and folder of the zygote before the import."""

    environment: Mapping[str, str]
    folder: str | None  # None: it was removed

    @classmethod
    def current(cls) -> ProcessOrigin:
        """Read the environment and the folder of this process."""
        try:
            return cls(dict(os.environ), os.getcwd())
        except OSError:
            return cls(dict(os.environ), None)

    def reexecute(self, control: socket.socket, state: protocol.RestartState) -> NoReturn:
        """Execute the zygote again. Pid, children and blocked signals stay. Raises OSError."""
        from .. import protocol

        memory = os.memfd_create("redrive", 0)  # inherited
        protocol.write_all(memory, protocol.encode(state))
        control.set_inheritable(True)
        if self.folder is not None:
            os.chdir(self.folder)
        os.execve(sys.executable, command(control.fileno(), memory), dict(self.environment))


def command(*descriptors: int, python: str | None = None) -> list[str]:
    """Return the command line of a zygote: descriptors of its socket and, after a re-execution, of its state."""
    return [python or sys.executable, "-P", "-m", "redrive.engine.runner.zygote.zygote", *map(str, descriptors)]


def read_restart_state(memory: int) -> protocol.RestartState:
    """Read the state that ``reexecute`` wrote."""
    from .. import protocol

    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        (payload,) = protocol.FrameReader(protocol.CONTROL_LIMIT).feed(file.read())
    return protocol.decode_restart_state(payload)
