"""The plan of a resume: the run that it would go on with and the changes that it would make, before it does so."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping

import msgspec

from ..clock import wall_time_us
from ..core import flow_difference
from ..core.deadline import is_due
from ..core.flow_difference import FlowDifference
from ..core.spec import FlowSpec
from ..domain.text import place_words, shell_command
from ..errors import FlowChangesError, FlowError, RedriveError, UntrustedFlowError
from ..flow.source import declared_name, split_target
from ..runner.protocol import Open
from ..runner.runner import Runner
from ..statefile.open_writing import refuse_copy
from ..statefile.ownership import doubts, owner_of, user_name
from ..statefile.processes import EXECUTOR_VARIABLE
from ..store import database, runs
from ..store.database import explained_by_rows
from ..store.runs import RunSource


class ResumePlan(msgspec.Struct, frozen=True):
    """The code of a resume, who runs it, and how its flow differs from the run.

    ``doubts``: who else may have written the code; ``difference``: None if the flow was not imported because of them;
    ``is_over``: the deadline of the run has passed, and ends it at once.
    """

    run_id: str
    flow_path: str
    python_path: tuple[str, ...]
    doubts: tuple[str, ...]
    difference: FlowDifference | None
    is_over: bool = False

    def code_lines(self) -> Iterator[str]:
        """Yield which code runs, and with what."""
        file = split_target(self.flow_path)[0]
        yield f"the code: {self.flow_path}, which belongs to {owner_of(file)}"
        yield f"as {user_name(os.geteuid())}, in {_folder()}, with {sys.executable}"
        if self.python_path:
            yield f"with PYTHONPATH {os.pathsep.join(self.python_path)}"

    def difference_lines(self) -> Iterator[str]:
        """Yield how the flow differs from the run, and that the run is over, if it is."""
        if self.is_over:
            yield "the deadline of the run has passed and ends it at once: --deadline 1h goes on with it instead"
        for line in flow_difference.describe(self.difference or FlowDifference()):
            yield f"the flow changed: {line}"

    @property
    def needs_acceptance(self) -> bool:
        """Whether the difference must be accepted."""
        return self.difference is not None and self.difference.needs_acceptance


async def plan_resume(
    state_path: str,
    run_id: str | None,
    params: Mapping[str, object] | None = None,
    *,
    trusted: bool = False,
    copied: bool = False,
    run_again: Collection[str] = (),
) -> ResumePlan:
    """Plan the resume of a run (default: the unfinished one). Raises RedriveError.

    ``trusted``: import its flow also if others may have written it. ``copied``: of a copy, although the executor of
    the original lives. ``run_again``: tasks that an act lets run again before the resume.
    """
    with explained_by_rows(state_path), database.reading(state_path) as connection:
        run_id = run_id or run_to_resume(connection, state_path) or ""
        if not copied:
            refuse_copy(connection, state_path, run_id)
        source = runs.find_source(connection, run_id)
        if source is None:
            raise runs.unknown_run(run_id, state_path)
        run = runs.load_run(connection, run_id)
    path = flow_path_of(source, state_path, run_id)
    doubts = code_doubts(source, state_path)
    difference = None
    if trusted or not doubts:
        difference = flow_difference.compare(run, await read_flow(path, params, source), run_again)
    is_over = is_due(run.run, wall_time_us())
    return ResumePlan(run_id, path, source.python_path, () if trusted else doubts, difference, is_over)


def run_to_resume(connection: sqlite3.Connection, state_path: str) -> str | None:
    """Return the unfinished run, else the latest; None: no runs. Raises RedriveError if several are unfinished."""
    unfinished = runs.unfinished_run_ids(connection)
    if len(unfinished) > 1:
        command = shell_command(["redrive", "resume", *place_words(state_path, unfinished[0])])
        names = ", ".join(unfinished)
        raise RedriveError(f"{len(unfinished)} runs are unfinished ({names}): name one, as in: {command}")
    return unfinished[0] if unfinished else runs.latest_run_id(connection)


def flow_path_of(source: RunSource, state_path: str, run_id: str) -> str:
    """Return the flow file of a run. Raises FlowError if there is none."""
    if source.flow_path is None:
        raise FlowError(f"run {run_id!r} was started by a program, not from a flow file; start that program again")
    file = split_target(source.flow_path)[0]
    if not os.path.lexists(file):
        command = shell_command(["redrive", "run", "NEW.py", "--state", state_path, "--run-id", run_id])
        raise FlowError(f"there is no flow file {file!r}; if it has another place now: {command}")
    return source.flow_path


def code_doubts(source: RunSource, state_path: str) -> tuple[str, ...]:
    """Return who else may have written the code of a run, one sentence each."""
    return tuple(doubts([state_path, split_target(source.flow_path or "")[0], *source.python_path]))


def check_trust(source: RunSource, state_path: str) -> None:
    """Raise UntrustedFlowError if others may have written the code of a run."""
    if doubts := code_doubts(source, state_path):
        raise UntrustedFlowError(refusal(source.flow_path or "", doubts))


def require_accepted(plan: ResumePlan, *, accepts_changes: bool = False) -> None:
    """Raise the error of a plan that a person has to look at first. ``accepts_changes``: of the flow."""
    if plan.doubts:
        raise UntrustedFlowError(refusal(plan.flow_path, plan.doubts))
    if plan.difference is not None and plan.needs_acceptance and not accepts_changes:
        raise FlowChangesError(flow_difference.refusal(plan.run_id, plan.difference), plan.run_id)


def refusal(flow_path: str, doubts: tuple[str, ...]) -> str:
    """Return why the code of a run is not run."""
    why = "; ".join(doubts)
    return f"{flow_path} is not run without your consent, because {why}: read it, then resume with --trust"


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that was removed"


# --- Reads a flow file before a run: its text where that is enough, else a clean interpreter imports it --------------


async def read_flow(
    target: str, params: Mapping[str, object] | None = None, source: RunSource | None = None
) -> FlowSpec:
    """Import a flow file in a clean interpreter and return its flow, as for the run of ``source``. Raises FlowError."""
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: uuid.uuid4().hex})
    try:
        if source is None:
            return await runner.open(Open(target, params or {}))
        return await runner.open(Open(target, params or {}, source.params, source.python_path))
    except OSError as error:
        raise without_process(error) from None
    finally:
        await runner.close()


def without_process(error: OSError) -> RedriveError:
    """Return the error of an import for which no process could be started."""
    program = error.filename or "the process that imports the flow"
    advice = f": let uid {os.geteuid()} execute it" if isinstance(error, PermissionError) else ""
    return RedriveError(f"{program} cannot be started: {error.strerror or error}{advice}")


def flow_name_of(target: str, params: Mapping[str, object] | None = None) -> str:
    """Return the name of the flow in a flow file, which is imported only if the name is not a literal in its text.

    Raises FlowError; RedriveError if an import is needed while an event loop runs, which it would block.
    """
    name = declared_name(target)
    if name is not None:
        return name
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(read_flow(target, params)).name
    raise RedriveError(f"the name of the flow in {target!r} is computed: name its state file, state=...")
