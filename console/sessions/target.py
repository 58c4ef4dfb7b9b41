"""The state file of a command: a path, ``ssh://...``, ``REDRIVE_STATE``, the one of the flow, or the latest."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ...engine.errors import RedriveError
from ...engine.statefile.default_paths import STATE_VARIABLE, latest_path
from ...engine.store.flow_path import REMOTE, path_for_run


def is_remote(target: str) -> bool:
    """Whether the target is an ssh address."""
    return target.startswith(REMOTE)


def state_for_flow(flow: str, params: Mapping[str, str], state: str | None) -> str:
    """Return the state file that a run of this flow file writes. Raises RedriveError, FlowError."""
    return path_for_run(state, lambda: _name_of(flow, params))


def _name_of(flow: str, params: Mapping[str, str]) -> str:
    from ...engine.flow.flow_name import declared_name  # imported here, because both slow down the start

    name = declared_name(flow)
    if name is not None:
        return name
    from ...engine.executor.flow_file import flow_name_of

    return flow_name_of(flow, params)


def existing_target(target: str | None) -> str:
    """Return the state file that a command reads. Raises RedriveError when there is none."""
    if target == "":  # an empty shell variable must not select the latest file by accident
        raise RedriveError("the name of the state file is empty; name one, or leave --state out")
    given = target or os.environ.get(STATE_VARIABLE)
    if given:
        return given if is_remote(given) else os.path.expanduser(given)
    return latest_path()
