"""Exclusive use of a state file: takes the lock and starts the zygote, before the event loop and before any write."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, get_args

import msgspec

from ..agent import executor_socket
from ..core.option_types import NAME, is_text, short_repr
from ..core.spec import Durability
from ..errors import ExecutorBusyError, RedriveError
from ..runner.reaper import Reaper
from ..runner.zygote.launch import SpawnedZygote, StartZygote, fork_at_once
from ..statefile import processes
from ..statefile.ownership import require_not_emptied, require_own_state_file
from ..store import lock
from .run_options import RunRequest

if TYPE_CHECKING:
    from ..runner.runner import Runner

DESCRIPTORS_MIN = 32  # an idle executor of a small flow has 18
INTERRUPTED = "interrupted before the run was opened: nothing was started"


def _ignore() -> None:
    pass


class StateFileLease(msgspec.Struct):
    """A locked state file, and the runner whose zygote inherits the lock."""

    request: RunRequest
    lock: lock.StateLock
    runner: Runner
    reaper: Reaper
    spawned: SpawnedZygote | None = None
    has_run: bool = False  # the state file holds the run: the lock file must stay
    is_interrupted: bool = False
    _on_interrupt: Callable[[], object] = _ignore

    def interrupt(self) -> None:
        """End the step of the opening that may take long: the import, or the first write."""
        self.is_interrupted = True
        self._on_interrupt()

    @contextmanager
    def interruptible(self, on_interrupt: Callable[[], object]) -> Iterator[None]:
        """Call ``on_interrupt`` at an ``interrupt`` in the block, or at once after an earlier one."""
        self._on_interrupt = on_interrupt
        try:
            if self.is_interrupted:
                on_interrupt()
            yield
        finally:
            self._on_interrupt = _ignore

    def release(self) -> None:
        """Release the lock; remove the lock file if the run was never written."""
        if self.spawned is not None:
            self.spawned.end_unused()
        self.reaper.end()
        if self.has_run:
            self.lock.release()
        else:
            self.lock.remove()


def _require_descriptors() -> None:
    """Refuse a limit of open files under which the opening of the run could end half-way."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and limit < DESCRIPTORS_MIN:
        raise RedriveError(
            f"an executor needs at least {DESCRIPTORS_MIN} open files, and this process may have {limit}:"
            " raise its hard limit (ulimit -Hn; LimitNOFILE= of systemd)"
        )


def _is_name(run_id: object) -> bool:
    try:
        NAME.parse(run_id)
    except ValueError:
        return False
    return True


def acquire_state_file(request: RunRequest) -> StateFileLease:
    """Acquire the lock and start the zygote; a flow in memory is forked here, before threads or an event loop exist.

    Raises ExecutorBusyError, StateFileError, FlowError.
    """
    _require_valid(request)
    options = request.options
    if not options.resume:  # a run that is resumed asks whether its code is trusted, too
        require_own_state_file(request.state_path)
    require_not_emptied(request.state_path)
    create_state_folder(request.state_path)
    with ExitStack() as undo:
        held = lock.acquire(request.state_path, request.executor_id, request.run_id, wait=options.wait)
        undo.callback(held.remove)
        check_sole_writer(request.state_path)
        held.lock_file(wait=options.wait)
        if request.on_lock is not None:
            request.on_lock()
        environment = {processes.EXECUTOR_VARIABLE: request.executor_id}
        inherited_fds = (held.fileno(),)
        reaper = Reaper.start(request.executor_id)
        undo.callback(reaper.end)
        spawned: SpawnedZygote | None = None
        if request.flow is None or isinstance(request.flow, str):
            spawned = SpawnedZygote(environment, inherited_fds, is_forked=options.few_tasks)
            undo.callback(spawned.end_unused)
            start_zygote: StartZygote = spawned
        else:
            start_zygote = fork_at_once(request.flow, environment, inherited_fds)
        # Now, because what is imported earlier is copied at the fork of a flow in memory and of all its attempts.
        from ..runner.runner import Runner

        runner = Runner(start_zygote, request.executor_id, reaper.add_zygote)
        undo.pop_all()
        return StateFileLease(request, held, runner, reaper, spawned=spawned)


def _require_valid(request: RunRequest) -> None:
    """Raise RedriveError for a request that no state file can serve."""
    options = request.options
    if options.max_parallel is not None and options.max_parallel < 1:
        raise RedriveError(f"max_parallel is a whole number of at least 1, not {options.max_parallel!r}")
    if options.durability not in get_args(Durability):
        raise RedriveError(f"durability is one of full, normal, not {options.durability!r}")
    if request.run_id is not None and not (is_text(request.run_id) if options.resume else _is_name(request.run_id)):
        raise RedriveError(f"the name of a run is {NAME.description}: not {short_repr(request.run_id)}")
    if options.resume and not os.path.lexists(request.state_path):
        raise RedriveError(f"there is no state file {request.state_path!r} to resume")
    _require_descriptors()
    if request.flow is not None and not isinstance(request.flow, str):
        request.flow.spec()  # raise errors here, with the caller's traceback, rather than in the zygote


def check_sole_writer(state_path: str) -> None:
    """Raise ExecutorBusyError if another executor responds at its socket although its lock file was removed."""
    try:
        response = executor_socket.ping(state_path)
    except RedriveError:
        return  # no server, or an unreadable response
    if response is not None:
        why = "its lock file was removed: stop it first, for two writers would damage the file"
        raise ExecutorBusyError(f"another executor still writes {state_path}, and {why}")


def create_state_folder(state_path: str) -> None:
    folder = os.path.dirname(os.path.abspath(state_path))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        why = f"the folder {folder!r} cannot be made: {error.strerror}; choose another with --state"
        raise RedriveError(why) from None
