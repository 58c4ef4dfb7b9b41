"""The options of a run, and the request that an ``Executor`` makes of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import RedriveError
from ..store.flow_path import path_for_run

if TYPE_CHECKING:  # a flow in a file is imported by the zygote alone
    from ..core.spec import Durability
    from ..flow.flow import Flow


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of an ``Executor``.

    Parameters:
        max_parallel: attempts at a time, at least 1. None: the flow's own setting, or 4.
        durability: "normal": a change that was reported, or the start of an effect, is on the disk before; a power cut
            undoes at most the last milliseconds of unreported changes, whose tasks run again. "full": each change is on
            the disk before anything follows from it.
        params: values for parameters of the flow, by name.
        stay: True: stay alive while the run waits for an operator, instead of ending.
        resume: True: the run must exist in the state file.
        wait: True: wait until another executor releases the state file, instead of raising ExecutorBusyError.
        dask: the address of the Dask scheduler whose workers run tasks with ``isolation="dask"``.
        logical_time: microseconds since 1970 UTC: the instant of the schedule that a new run stands for.
        accept_changes: True: a run is resumed although the flow no longer defines an unfinished task, which is then
            skipped, or defines a finished task otherwise, whose result stays.
        trust: True: the flow file that the state file names is run although other users may have written it.
        copy: True: a run goes on in a copy of a state file, although the executor of the original lives.
        replaced_run: the ended run that ``logical_time`` has now; the new run takes its place in the schedule.
        served: True: ``redrive serve`` starts the run, and its schedule waits for the run.
        few_tasks: True: the flow in a file has few tasks, and this process does nothing else: it is forked for them,
            instead of starting a clean interpreter.

    Example:
        >>> RunOptions(max_parallel=8, params={"day": "2026-04-25"}).durability
        'normal'
    """

    max_parallel: int | None = None
    durability: Durability = "normal"
    params: Mapping[str, object] = field(default_factory=dict)
    stay: bool = False
    resume: bool = False
    wait: bool = False
    dask: str | None = None
    logical_time: int | None = None
    replaced_run: str | None = None
    served: bool = False
    accept_changes: bool = False
    trust: bool = False
    copy: bool = False
    few_tasks: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The flow to run, the run that it is, and the state file."""

    flow: Flow | str | None  # None: the flow file that the run in the state file names
    run_id: str | None
    state_path: str
    executor_id: str
    options: RunOptions
    on_lock: Callable[[], None] | None = None  # called when the state file is ours, before the flow is imported


def state_path_of(flow: Flow | str | None, state: str | None, params: Mapping[str, object]) -> str:
    """Return the state file: ``state``, else REDRIVE_STATE, else a file named after the flow in the default folder."""

    def flow_name() -> str:
        if flow is None:
            raise RedriveError("name the state file to resume")
        if not isinstance(flow, str):
            return flow.name
        from .resume_plan import flow_name_of  # here: see ``executor.py``

        return flow_name_of(flow, params)

    return path_for_run(state, flow_name, flow if flow is None or isinstance(flow, str) else flow.path)
