"""Which state file a command means: a path, ``ssh://...``, ``REDRIVE_STATE``, or the latest in the default place."""

from __future__ import annotations

import os
import re
from pathlib import Path

from platformdirs import user_state_path

from ..engine.errors import RedriveError

ENVIRONMENT = "REDRIVE_STATE"
SSH = "ssh://"


def is_remote(target: str) -> bool:
    """Whether the target lies behind ssh."""
    return target.startswith(SSH)


def default_folder() -> Path:
    """Where state files lie unless told otherwise."""
    return Path(user_state_path("redrive"))


def state_for_flow(flow_name: str, state: str | None) -> str:
    """The state file that a run of this flow writes."""
    _demand_name(state)
    given = state or os.environ.get(ENVIRONMENT)
    if given:
        if is_remote(given):
            raise RedriveError("a run writes a state file on this machine; start it over there, or give a path")
        return os.path.expanduser(given)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", flow_name).strip("._") or "flow"
    return str(default_folder() / f"{safe}.db")


def existing_target(target: str | None) -> str:
    """The state file that a command reads. Raises RedriveError when there is none."""
    _demand_name(target)
    given = target or os.environ.get(ENVIRONMENT)
    if given:
        return given if is_remote(given) else os.path.expanduser(given)
    files = list(default_folder().glob("*.db"))
    if not files:
        raise RedriveError(f"there is no state file in {default_folder()}; start a run, or name one with --state")
    return str(max(files, key=_changed_at))


def _demand_name(given: str | None) -> None:
    """An empty name is a variable that was not set: never the latest file by accident."""
    if given == "":
        raise RedriveError("the name of the state file is empty; name one, or leave --state out")


def _changed_at(path: Path) -> float:
    """What a run writes is in the log beside the file first, and may stay there for hours."""
    both = (path, path.with_name(f"{path.name}-wal"))
    return max((file.stat().st_mtime for file in both if file.exists()), default=0.0)
