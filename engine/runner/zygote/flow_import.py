"""Imports the flow inside the zygote, and collects warnings about forking from there.

Threads and descriptors that an import leaves cannot be shared safely by forked processes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from ...core.spec import FlowSpec, collector_slowed, decode_flow_spec
from ...domain.text import counted, first_names
from ...errors import CycleError, FlowError, FlowImportError
from ...statefile.processes import open_files
from .. import process, protocol
from ..call import CallPlan, plans_of, require_callable
from ..child import FlowFacts, FreshImport, Termination, flush

NAMES_SHOWN = 5
ENDING_SECONDS = 0.2

#: BLAS and OpenMP start a pool of threads when they are loaded, and a process with threads cannot be forked safely.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class LoadedFlow(Protocol):
    """The part of a ``Flow`` that is used here."""

    @property
    def functions(self) -> Mapping[str, Callable[..., object]]: ...

    @property
    def key_functions(self) -> Mapping[str, Callable[..., object]]: ...

    def spec(self) -> FlowSpec: ...


#: Gets the target, parameters, remembered parameters, and source files that are imported in place of those on the disk.
Loader = Callable[[str, Mapping[str, object], Mapping[str, object], Mapping[str, bytes]], LoadedFlow]


class ImportedFlow(msgspec.Struct, frozen=True):
    """The values for attempts, and the response for the executor."""

    facts: FlowFacts
    response: protocol.FlowOpened
    left_threads: bool  # so forking from this process is unsafe
    uses_collector: bool  # the garbage collector, which is disabled until the answer


def open_flow(request: protocol.Open, load: Loader) -> ImportedFlow | protocol.OpenFailed:
    """Import the flow; an exception becomes the response."""
    process.set_parent_death_signal(signal.SIGKILL)  # a hanging import does not notice that the executor is gone
    try:
        imported = _import(request, load)
    except BaseException as error:
        return failure_of(error)
    process.set_parent_death_signal(0)  # from here on the zygote ends when its socket closes
    return imported


def facts_after_restart(state: protocol.RestartState, load: Loader) -> FlowFacts:
    """Return the values for processes that import the flow themselves: the code that the zygote had imported."""
    spec = decode_flow_spec(state.opened.spec)

    def plans() -> Mapping[str, CallPlan]:
        os.environ.update(state.request.variables)
        use_python_path(state.request.python_path)
        with single_threaded_libraries():
            target = spec.path or state.request.target
            return _plans(load(target, state.request.params, state.request.remembered, state.sources), spec)

    return _facts(FreshImport(plans), state.opened.project_root, spec, state.request)


def _import(request: protocol.Open, load: Loader) -> ImportedFlow:
    survey, before = ImportSurvey(), time.monotonic()
    os.environ.update(request.variables)
    use_python_path(request.python_path)
    with single_threaded_libraries():
        with collector_slowed():
            flow = load(request.target, request.params, request.remembered, request.sources)
        uses_collector = gc.isenabled()
        gc.disable()  # until the executor has its answer: all that is built here stays
        spec = flow.spec()
        plans = _plans(flow, spec)
        require_callable(spec, plans)
        if _has_commands(spec):
            importlib.import_module("..worker_loop", __package__)  # here once, not in each worker
            importlib.import_module("shutil")
    seconds, side_effects = time.monotonic() - before, survey.since()
    flush()  # else each attempt would print it again
    root = _project_root(spec)
    warnings = side_effects.warnings(seconds)
    response = protocol.FlowOpened(msgspec.json.encode(spec), root, warnings, imports_per_process=False)
    facts = _facts(plans, root, spec, request)
    return ImportedFlow(facts, response, bool(side_effects.threads), uses_collector)


def use_python_path(folders: Sequence[str]) -> None:
    """Add folders to the end of PYTHONPATH, for this process and its children."""
    own = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    missing = [folder for folder in folders if folder not in own]
    if missing:
        os.environ["PYTHONPATH"] = os.pathsep.join([*own, *missing])
        sys.path[len(own) : len(own)] = [folder for folder in missing if folder not in sys.path]


def _plans(flow: LoadedFlow, spec: FlowSpec) -> Mapping[str, CallPlan]:
    plans = plans_of(spec, flow.functions, flow.key_functions)
    if any(plan.is_async for plan in plans.values()):
        importlib.import_module("..stack", __package__)  # with asyncio: here once, not in each attempt
    return plans


def _facts(plans: Mapping[str, CallPlan] | FreshImport, root: str, spec: FlowSpec, request: protocol.Open) -> FlowFacts:
    other_folder = os.getcwd() if request.sources and not os.path.isdir(root) else None
    return FlowFacts(plans, root, spec.code_hash, os.dup(2), Termination(), _has_commands(spec), other_folder)


def _has_commands(spec: FlowSpec) -> bool:
    return any(task.kind == "command" for task in spec.tasks)


def failure_of(error: BaseException) -> protocol.OpenFailed:
    """Return the response for an exception: the class of errors.py to raise, its message and traceback."""
    text = "".join(traceback.format_exception(error))
    kind, message, cycle = "FlowImportError", f"importing the flow failed: {type(error).__name__}: {error}", []
    if isinstance(error, FlowImportError):
        message, text = str(error), error.traceback or text
    elif isinstance(error, CycleError):
        kind, message, cycle = "CycleError", str(error), list(error.cycle)
    elif isinstance(error, FlowError):
        kind, message = "FlowError", str(error)
    limit = protocol.TEXT_LIMIT
    return protocol.OpenFailed(kind, protocol.clean_text(message, limit), protocol.clean_text(text, limit), cycle)


def _project_root(spec: FlowSpec) -> str:
    if spec.path is None:
        return os.getcwd()
    path = spec.path if spec.path.endswith(".py") else spec.path.rpartition(":")[0]
    return os.path.dirname(os.path.abspath(path))


# --- Side effects of an import ----------------------------------------------------------------------------------------


class ImportSideEffects(msgspec.Struct, frozen=True):
    """Side effects of an import. ``threads``: names; ``descriptors``: number and target."""

    threads: tuple[str, ...] = ()
    descriptors: tuple[tuple[int, str], ...] = ()

    def warnings(self, seconds: float) -> list[str]:
        """Return a warning for each side effect; ``seconds``: how long the import took."""
        found = []
        if self.threads:
            found.append(
                f"importing the flow left {named_threads(self.threads)} running, beside which no process can be forked "
                f"safely: each process imports the flow itself ({seconds:.1f} s) and is reused, as with "
                'isolation="worker"; start threads inside tasks'
            )
        for fd, target in self.descriptors:
            found.append(
                f"importing the flow left descriptor {fd} open ({target}): all attempts share it; open it inside the "
                "task"
            )
        return found


class ImportSurvey:
    """Records threads and descriptors of this process on creation; ``since`` returns the new ones.

    Raises FlowError if the kernel does not list them.
    """

    def __init__(self) -> None:
        if not os.path.isdir("/proc/self/task"):
            raise FlowError("/proc is not mounted, by which redrive finds and ends processes: mount -t proc proc /proc")
        self._threads = threads()
        self._files = open_files()

    def since(self) -> ImportSideEffects:
        """Return what is new. Waits up to ``ENDING_SECONDS`` for threads that are about to end."""
        limit = time.monotonic() + ENDING_SECONDS
        while (new := self._new_threads()) and time.monotonic() < limit:
            time.sleep(0.005)  # the kernel still lists a joined thread for a moment; there is no event for its end
        return ImportSideEffects(tuple(new), tuple(sorted(open_files().items() - self._files.items())))

    def _new_threads(self) -> list[str]:
        return [name for thread, name in threads().items() if thread not in self._threads]


def threads() -> dict[int, str]:
    """Return the threads of this process, kernel id to name: Python's name if there is one, else the kernel's."""
    found = {int(thread): _kernel_name(thread) for thread in os.listdir("/proc/self/task")}
    threading = sys.modules.get("threading")
    for thread in threading.enumerate() if threading is not None else ():
        if thread.native_id in found:
            found[thread.native_id] = thread.name
    return found


def named_threads(names: Sequence[str]) -> str:
    """Return "2 threads (heartbeat, grpc)"."""
    return f"{counted(len(names), 'thread')} ({first_names(names, NAMES_SHOWN)})"


def _kernel_name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone"


@contextlib.contextmanager
def single_threaded_libraries() -> Iterator[None]:
    """Limit numerical libraries to one thread while they load; the environment of tasks is unchanged."""
    ours = [name for name in THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, "1"))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
