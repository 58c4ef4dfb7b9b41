"""Imports the flow inside the zygote, and says what is doubtful about forking from there."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ..core.spec import FlowSpec
from ..errors import CycleError, FlowError, FlowImportError
from . import process, protocol
from .call import plan_of
from .child import FlowFacts, Termination

#: BLAS and OpenMP start a pool of threads when they are loaded, and a process with threads cannot be forked safely.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Loaded(Protocol):
    """What a loader returns: a ``Flow``."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]: ...

    def spec(self) -> FlowSpec: ...


Loader = Callable[[str, Mapping[str, Any]], Loaded]


@dataclass(frozen=True, slots=True)
class ImportedFlow:
    """The flow as attempts need it, and the answer for the executor."""

    facts: FlowFacts
    answer: protocol.Opened


def open_flow(request: protocol.Open, load: Loader) -> ImportedFlow | protocol.OpenFailed:
    """Import the flow and make the process fit to be forked from. Whatever the flow raises is the answer."""
    process.die_with_parent(signal.SIGKILL)  # an import that hangs does not see the executor's socket close
    try:
        imported = _import(request, load)
    except BaseException as error:
        return _failure(error)
    process.die_with_parent(0)  # from here on the end of the socket tells, and nothing below is left alive
    gc.collect()
    gc.freeze()  # a collection in an attempt would touch, and so copy, every page with an object
    return imported


def _import(request: protocol.Open, load: Loader) -> ImportedFlow:
    before = _open_descriptors()
    with _single_threaded_libraries():
        flow = load(request.target, request.params)
        spec = flow.spec()
        _check_params(spec.params)
        plans = {name: plan_of(function) for name, function in flow.functions.items()}
        if any(plan.is_async for plan in plans.values()):
            importlib.import_module("asyncio")  # once here, not in each attempt
    root = _project_root(spec)
    warnings = [*_thread_warnings(), *_descriptor_warnings(_open_descriptors() - before)]
    facts = FlowFacts(plans, root, spec.code_hash, stack_fd=os.dup(2), termination=Termination())
    return ImportedFlow(facts, protocol.Opened(msgspec.json.encode(spec), root, warnings))


def _check_params(params: Mapping[str, Any]) -> None:
    """Each attempt gets them in its order. Raises FlowError for what cannot travel in one."""
    for name, value in params.items():
        try:
            protocol.encode(protocol.Open("", {name: value}))
        except (TypeError, ValueError, OverflowError) as error:
            raise FlowError(f"parameter {name!r} cannot be handed to tasks: {error}") from None


def _failure(error: BaseException) -> protocol.OpenFailed:
    """As data: the class of errors.py that the executor raises, the sentence, and the traceback once."""
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


@contextlib.contextmanager
def _single_threaded_libraries() -> Iterator[None]:
    """Ask numerical libraries for one thread while they load; the programs that tasks start are not asked."""
    ours = [name for name in THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, "1"))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _open_descriptors() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def _thread_warnings() -> list[str]:
    count = len(os.listdir("/proc/self/task"))
    if count == 1:
        return []
    return [
        f"importing the flow left {count} threads running: a lock that one of them holds at a fork stays locked in the "
        "attempt; start threads inside tasks"
    ]


def _descriptor_warnings(opened: set[tuple[int, str]]) -> list[str]:
    return [
        f"importing the flow left descriptor {fd} open ({target}): all attempts share it; open it inside the task"
        for fd, target in sorted(opened)
    ]
