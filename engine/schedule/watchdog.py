"""Tells systemd that the supervisor lives: one that hangs is killed and started again (``WatchdogSec=``)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class SystemdWatchdog:
    """The socket of systemd, if the unit has a watchdog. ``ping`` is called in each turn of the loop."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        address = variables.get("NOTIFY_SOCKET", "") if variables.get("WATCHDOG_USEC") else ""
        is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._address = address if is_ours else ""
        self._socket: socket.socket | None = None

    def ping(self) -> None:
        """Say that the loop turns."""
        if not self._address:
            return
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        with contextlib.suppress(OSError):  # systemd is restarted; a full queue holds enough pings
            self._socket.sendto(b"WATCHDOG=1", self._address.replace("@", "\0", 1))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
