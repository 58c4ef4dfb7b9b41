"""Imports the flow inside the zygote, and says what is doubtful about forking from there."""

from __future__ import annotations

import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ...core.spec import FlowSpec
from ...errors import CycleError, FlowError, FlowImportError
from .. import process, protocol
from ..call import CallPlan, plan_of
from ..callable_check import require_callable
from ..child import FlowFacts, Termination, flush
from ..per_attempt_import import FreshImport
from .import_side_effects import ImportSurvey, single_threaded_libraries


class LoadedFlow(Protocol):
    """What a loader returns: a ``Flow``."""

    @property
    def functions(self) -> Mapping[str, Callable[..., object]]: ...

    def spec(self) -> FlowSpec: ...


Loader = Callable[[str, Mapping[str, object], Mapping[str, object]], LoadedFlow]


@dataclass(frozen=True, slots=True)
class ImportedFlow:
    """The flow as attempts need it, and the answer for the executor."""

    facts: FlowFacts
    answer: protocol.FlowOpened
    left_threads: bool  # and so nothing can be forked safely from here


def open_flow(request: protocol.Open, load: Loader) -> ImportedFlow | protocol.OpenFailed:
    """Import the flow. Whatever it raises is the answer."""
    process.set_parent_death_signal(signal.SIGKILL)  # an import that hangs does not see the executor's socket close
    try:
        imported = _import(request, load)
    except BaseException as error:
        return failure_of(error)
    process.set_parent_death_signal(0)  # from here on the end of the socket tells, and nothing below is left alive
    return imported


def fresh_flow(left: protocol.RestartState, load: Loader) -> FlowFacts:
    """What attempts need to know of a flow that each of them imports itself."""

    def plans() -> Mapping[str, CallPlan]:
        with single_threaded_libraries():
            return _plans(load(left.request.target, left.request.params, left.request.remembered))

    code_hash = msgspec.json.decode(left.opened.spec, type=FlowSpec).code_hash
    return _facts(FreshImport(plans), left.opened.project_root, code_hash)


def _import(request: protocol.Open, load: Loader) -> ImportedFlow:
    survey, before = ImportSurvey(), time.monotonic()
    with single_threaded_libraries():
        flow = load(request.target, request.params, request.remembered)
        spec = flow.spec()
        plans = _plans(flow)
        require_callable(spec, plans)
    seconds, left = time.monotonic() - before, survey.since()
    flush()  # else each attempt would print it once more
    root = _project_root(spec)
    warnings = left.warnings(seconds)
    answer = protocol.FlowOpened(msgspec.json.encode(spec), root, warnings, imports_per_attempt=False)
    return ImportedFlow(_facts(plans, root, spec.code_hash), answer, left_threads=bool(left.threads))


def _plans(flow: LoadedFlow) -> Mapping[str, CallPlan]:
    plans = {name: plan_of(function) for name, function in flow.functions.items()}
    if any(plan.is_async for plan in plans.values()):
        importlib.import_module("asyncio")  # once here, not in each attempt
    return plans


def _facts(plans: Mapping[str, CallPlan] | FreshImport, root: str, code_hash: str | None) -> FlowFacts:
    return FlowFacts(plans, root, code_hash, stack_fd=os.dup(2), termination=Termination())


def failure_of(error: BaseException) -> protocol.OpenFailed:
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
