"""The unit of the manual, and the pings that its watchdog waits for."""

from __future__ import annotations

import configparser
import re
import socket
from pathlib import Path

import pytest
from redrive.console import manual
from redrive.engine.schedule.watchdog import SystemdWatchdog
from support.processes import socket_address

#: Key -> value; without any of them systemd gives up, starts too early, or keeps a supervisor that hangs.
UNIT = {
    "Unit": {
        "Wants": "network-online.target time-sync.target",
        "After": "network-online.target time-sync.target",
        "StartLimitIntervalSec": "0",
    },
    "Service": {
        "Restart": "always",
        "RestartSec": "5",
        "WatchdogSec": "60",
        "NotifyAccess": "main",
        "KillMode": "process",
        "Delegate": "yes",
        "DelegateSubgroup": "supervisor",
    },
}


def test_the_unit_of_the_manual_comes_back_whatever_happens() -> None:
    text = manual.load_topic("systemd").text
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    found = re.search(r"```ini\n(.*?)```", text, re.DOTALL)
    assert found is not None
    unit.read_string(found[1])
    for section, keys in UNIT.items():
        assert keys.items() <= dict(unit[section]).items()


@pytest.mark.parametrize(
    ("more", "is_pinged"),
    [({}, True), ({"WATCHDOG_PID": "1"}, False), ({"WATCHDOG_USEC": ""}, False)],
)
def test_a_watchdog_is_pinged_if_the_unit_has_one(tmp_path: Path, more: dict[str, str], is_pinged: bool) -> None:
    with (
        socket_address(tmp_path / "notify") as path,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        systemd.bind(path)
        systemd.setblocking(False)
        watchdog = SystemdWatchdog({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "60000000", **more})
        watchdog.ping()
        if is_pinged:
            assert systemd.recv(100) == b"WATCHDOG=1"
        else:
            with pytest.raises(BlockingIOError):
                systemd.recv(100)
        watchdog.close()
