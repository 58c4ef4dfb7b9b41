"""The state file of a command: a path, the name of a flow, ``ssh://...``, ``REDRIVE_STATE``, or the default file.

Also how a console was started on one.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...engine.domain.text import did_you_mean, shell_command
from ...engine.errors import RedriveError
from ...engine.statefile.paths import STATE_VARIABLE, SUFFIX, default_paths
from ...engine.store.flow_path import REMOTE, check_state_name, follow_link, path_for_run, path_of_flow

if TYPE_CHECKING:
    from ...engine.statefile.state_files import ActTargets, Offer
    from .session import Session


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """How the console was started.

    Attributes:
        state_path: the state file, where an executor can be started from here.
        started_here: whether this console started the run; leaving then asks whether to stop it.
        run_options: for executors that are started later, fields of RunOptions.
        open_for_changes: opens a session for changes once a read-only console is armed.
        is_of_fleet: whether Esc at the top level returns to the list of state files.
        has_tour: whether a line guides through the run, which is the demo's.
    """

    state_path: str | None = None
    started_here: bool = False
    run_options: Mapping[str, object] = field(default_factory=dict)
    open_for_changes: Callable[[], Awaitable[Session]] | None = None
    is_of_fleet: bool = False
    has_tour: bool = False


class AmbiguousTargetError(RedriveError):
    """No state file is named, and an act could mean several."""

    def __init__(self, message: str, candidates: Sequence[Offer]) -> None:
        super().__init__(message)
        self._candidates = candidates

    def commands(self, words: Sequence[str]) -> Iterator[str]:
        """The command ``redrive`` + ``words`` once for each candidate, with the run that it would change."""
        from ..text.text import one_line

        for offer in self._candidates:
            command = shell_command(["redrive", *words[:1], "--state", offer.path, *words[1:]])
            run = f"{offer.dag_name} {offer.run_id} {run_state(offer)}" if offer.run_id else "no run yet"
            yield f"  {command}  # {one_line(run)}"


def run_state(offer: Offer) -> str:
    """Return the state of the latest run of a state file; BLOCKED while it waits for a human."""
    is_blocked = any(run.run_id == offer.run_id and run.blocked_since is not None for run in offer.runs)
    return "BLOCKED" if is_blocked else offer.state or ""


def is_remote(target: str) -> bool:
    """Whether the target is an ssh address."""
    return target.startswith(REMOTE)


def is_one_file(target: str | None) -> bool:
    """Whether a command means one state file of this machine, and no list of them; ``target``: its argument, if any.

    A machine with schedules has a list: some flow may never have started.
    """
    named = named_target(target)
    if named is not None:
        return not is_remote(named)
    if len(default_paths()) > 1:
        return False
    from ...engine.statefile.supervisor_file import supervisor_path  # here: SQLite would delay the first frame

    return not os.path.exists(supervisor_path())


def state_for_flow(flow: str, params: Mapping[str, object], state: str | None) -> str:
    """Return the state file that a run of this flow file writes. Raises RedriveError, FlowError."""
    return path_for_run(state, lambda: _name_of(flow, params), flow)


def _name_of(flow: str, params: Mapping[str, object]) -> str:
    from ...engine.flow.source import declared_name  # imported here, because both slow down the start

    name = declared_name(flow)
    if name is not None:
        return name
    from ...engine.asyncio_log import log_asyncio
    from ...engine.executor.resume_plan import flow_name_of

    log_asyncio()
    return flow_name_of(flow, params)


def existing_target(target: str | None) -> str:
    """Return the state file that a command reads. Raises RedriveError when there is none."""
    return named_target(target) or _default_path()


def acting_target(target: str | None, targets: ActTargets | None = None) -> str:
    """Return the state file that a command changes. Raises RedriveError, AmbiguousTargetError.

    A default is taken only if no other state file could be meant: it is the only one, the only one with something to
    do, or of those the only one that has the ``targets``, else of all files.
    """
    named = named_target(target)
    if named is not None:
        return named
    from ...engine.statefile.state_files import offers

    usable = [offer for offer in offers() if offer.problem is None]
    working = [offer for offer in usable if offer.has_work]
    candidates = working or usable
    if len(candidates) > 1 and targets is not None:
        fitting = (list(_with_targets(group, targets)) for group in (working, usable))
        candidates = next(filter(None, fitting), [])
        if not candidates:
            raise RedriveError(f"none of {len(usable)} state files has {targets}; see: redrive fleet")
    if len(candidates) > 1:
        which = "have something to do" if candidates[0].has_work else "are in the default place"
        raise AmbiguousTargetError(f"{len(candidates)} state files {which}: name one with --state", candidates)
    return candidates[0].path if candidates else _default_path()


def _with_targets(found: Iterable[Offer], targets: ActTargets) -> Iterator[Offer]:
    from ...engine.statefile.state_files import has_targets

    return (offer for offer in found if has_targets(offer.path, targets))


def _default_path() -> str:
    from ...engine.statefile.state_files import default_path  # here: SQLite would delay the first frame

    return default_path()


def named_target(target: str | None) -> str | None:
    """Return the state file, flow or host that is named, also by REDRIVE_STATE; None: the default place."""
    if target == "":  # an empty shell variable must not select a file by accident
        raise RedriveError("the name of the state file is empty; name one, or leave --state out")
    given = target or os.environ.get(STATE_VARIABLE)
    if not given:
        return None
    check_state_name(given)
    if is_remote(given):
        return given
    return follow_link((target and _default_path_of(target)) or os.path.expanduser(given))


def _default_path_of(flow: str) -> str | None:
    """Return the state file in the default place of a flow; None: the word is a path, or there is no such file.

    A word that is the path of a folder is read as the name of a flow. Raises RedriveError for a word that is probably a
    mistyped flow.
    """
    if os.path.lexists(flow) and not os.path.isdir(flow):
        return None
    path = path_of_flow(flow)
    if os.path.exists(path):
        return path
    if os.sep in flow:
        return None
    flows = [os.path.basename(one).removesuffix(SUFFIX) for one in default_paths()]
    if meant := did_you_mean(flow, flows):
        raise RedriveError(f"there is no flow or state file {flow!r}{meant}")
    return None
