"""``redrive rerun``: an ended run once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...engine.errors import AddressError, FlowError, NotFoundError, RefusedError
from ...engine.executor.resume_plan import check_trust
from ...engine.store import database, runs
from ..sessions.target import is_remote
from .run import RunArguments, start_executor


def rerun_run(state: str, run_id: str, params: Mapping[str, str], arguments: RunArguments) -> int:
    """Start a new run with the flow file, the parameters and the logical time of an ended run."""
    if is_remote(state):
        raise AddressError("an executor runs on the machine of its state file; log in there to run it again")
    with database.reading(state) as connection:
        source = runs.find_source(connection, run_id)
    if source is None:
        raise NotFoundError(f"there is no run {run_id!r} in {state}; see redrive runs")
    if not source.has_ended:
        raise RefusedError(f"run {run_id!r} has not ended: resume it, or abandon it first")
    if source.flow_path is None:
        raise FlowError(f"run {run_id!r} was started by a program, not from a flow file; start that program again")
    if not arguments.trust:
        check_trust(source, state)
    if source.logical_time is not None:
        arguments = replace(arguments, logical_time=source.logical_time, replaced_run=run_id)
    new_id = None if source.logical_time is None else run_id  # gets a number
    return start_executor(source.flow_path, state, new_id, {**source.params, **params}, arguments, resume=False)
