"""Calls the function of a task, in a process or a thread: arguments by name, one outcome.

Before a run it is checked that each function can be called with the arguments that its task will have: ``redrive
check`` reports a finding, and a run refuses the flow with the same message, instead of ending with a dead letter.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import AsyncGeneratorType, CodeType, CoroutineType, FunctionType, GeneratorType

import msgspec
from msgspec.structs import replace

from ..core.failures.facts import message_of, normalize_message, type_name
from ..core.option_types import short_repr
from ..core.outcome import (
    Failure,
    FailureClass,
    Fingerprint,
    KnownCauseError,
    Outcome,
    OutcomeKind,
    is_unstored_reason,
    too_large_sentence,
    unstored_result,
)
from ..core.result_codec import UnknownClassError, UnstorableError, dump_result, load_result
from ..core.spec import FlowSpec, MapSpec, TaskSpec
from ..domain.elements import KEY, child_of_key, key_text
from ..domain.task_options import child_prefix
from ..domain.text import did_you_mean
from ..errors import FlowError, NotReady, PermanentError, SkipTask, TaskTerminated
from ..flow.options import load_param
from ..flow.source import Finding
from ..flow.task_def import parameter_of
from . import protocol
from .context import Context, Missing
from .protocol import AttemptOrder

MakeFailure = Callable[[BaseException], Failure]
RunCoroutine = Callable[[Coroutine[object, object, object]], object]

KeyFunction = Callable[..., object]

CONTEXT_NAME = "ctx"
NAME_LIMIT = 500  # characters of an error type
RECHECK_SECONDS_MAX = 366 * 86_400.0
_GENERATORS = (GeneratorType, AsyncGeneratorType)


class CallPlan(msgspec.Struct, frozen=True):
    """The facts for a call of one function. Built once, before the fork: reading a signature is slow."""

    function: Callable[..., object]
    parameters: tuple[tuple[str, bool], ...]  # name, and whether it may be left out
    is_async: bool
    positional_only: str | None = None  # a parameter that cannot be given by name, and has no default
    is_generator: bool = False
    key: KeyFunction | None = None  # of a map task: the key of an element
    maps: tuple[tuple[str, KeyFunction], ...] = ()  # the map tasks over its result that have a key

    @property
    def item_parameter(self) -> str | None:
        """The parameter that gets the element of a list, in a child of a map task: the first one beside ``ctx``."""
        return next((name for name, _ in self.parameters if name != CONTEXT_NAME), None)


_Signature = tuple[tuple[tuple[str, bool], ...], bool, str | None, bool]  # the fields of a CallPlan after the function
_signatures: dict[tuple[int, int, frozenset[str]], tuple[CodeType, _Signature]] = {}  # by the identity of the code


def plan_of(function: Callable[..., object]) -> CallPlan:
    """Read the signature. A callable without one (some in C) is called without arguments."""
    try:
        return CallPlan(function, *_signature_of(function))
    except (TypeError, ValueError):
        return CallPlan(function, (), False)


def _signature_of(function: Callable[..., object]) -> _Signature:
    """Read the signature, once for all plain functions of one code object: a loop makes many, and reading is slow."""
    if not isinstance(function, FunctionType) or vars(function):  # it may wrap another function
        return _read_signature(function)
    code = function.__code__  # by its identity, because its hash reads all of it
    key = (id(code), len(function.__defaults__ or ()), frozenset(function.__kwdefaults__ or ()))
    if key not in _signatures:
        _signatures[key] = code, _read_signature(function)
    return _signatures[key][1]


def _read_signature(function: Callable[..., object]) -> _Signature:
    signature = inspect.signature(function)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = tuple(
        (parameter.name, parameter.default is not inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.kind in by_name
    )
    positional_only = next((name for name, one in signature.parameters.items() if _is_positional_only(one)), None)
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return parameters, inspect.iscoroutinefunction(function), positional_only, is_generator


def _is_positional_only(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.default is inspect.Parameter.empty


def arguments(plan: CallPlan, context: Context) -> dict[str, object]:
    """Match parameters by name: ``ctx``, then parents, then parameters of the flow.

    In a child of a map task, the first one gets the element of the list.
    In the name of a parent, characters that an identifier cannot have become ``_``. If a parent has no result, a
    parameter with a default keeps the default. Raises PermanentError for an unknown name without a default.
    """
    results = {parameter_of(parent): value for parent, value in context.inputs.items()}
    known: dict[str, object] = {**context.params, **results, CONTEXT_NAME: context}
    if context.is_mapped and plan.item_parameter is not None:
        known[plan.item_parameter] = context.item
    task, found = context.task, {}
    for name, optional in plan.parameters:
        if optional and isinstance(known.get(name), Missing):
            continue
        if name in known:
            found[name] = _usable_input(task, name, known[name])
        elif not optional:
            raise PermanentError(
                f"task {task!r} asks for an argument {name!r}, which is neither {CONTEXT_NAME!r}, "
                "nor a task it comes after, nor a parameter of the flow"
            )
    return found


def _usable_input(task: str, name: str, value: object) -> object:
    """Return ``value``. Raises PermanentError for a result that was not stored; ``ctx.inputs`` has it as Missing."""
    if isinstance(value, Missing) and is_unstored_reason(value.why):
        raise KnownCauseError(
            f"the result of {value.task!r} was not stored",
            f"task {task!r} asks for the result of {value.task!r}, and {value.why}",
        )
    return value


def _context_for(
    order: AttemptOrder,
    send: Callable[[protocol.AttemptFrame], None],
    is_cancelled: Callable[[], bool],
    make_failure: MakeFailure,
    monotonic: Callable[[], float],
) -> Context:
    """Build the context of one attempt. Parameters of the task override those of the run."""
    params: dict[str, object] = {**order.params, **order.spec.params}
    for name, kind in order.typed.items():
        params[name] = load_param(kind, params.get(name))
    try:
        inputs = load_result(order.inputs)
    except UnknownClassError as error:
        raise PermanentError(f"task {order.task!r} cannot read the result of a parent: {error}") from None
    return Context(
        order, params, inputs, send=send, is_cancelled=is_cancelled, make_failure=make_failure, monotonic=monotonic
    )


def call_task(
    order: AttemptOrder,
    plan: CallPlan,
    make_failure: MakeFailure,
    send: Callable[[protocol.AttemptFrame], None],
    is_cancelled: Callable[[], bool],
    run_coroutine: RunCoroutine,
    monotonic: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Call the function of a task and return the outcome of its value; its exceptions pass.

    A coroutine is run; a generator, whose body would never run, is refused. A context is only built for a function with
    parameters: it costs a tenth of a forked attempt.
    """
    context = _context_for(order, send, is_cancelled, make_failure, monotonic) if plan.parameters else None
    value = plan.function() if context is None else plan.function(**arguments(plan, context))
    if isinstance(value, CoroutineType):
        value = run_coroutine(value)
    if isinstance(value, _GENERATORS):
        raise KnownCauseError(
            f"{order.task!r} returned a generator",
            f"task {order.task!r} returned a generator, whose values nobody asks for: return a list, without yield",
        )
    if context is not None:
        context.finish()
    return _outcome_of_value(order, value, plan)


def _outcome_of_value(order: AttemptOrder, value: object, plan: CallPlan) -> Outcome:
    """Return the outcome of a return value. A false value of a sensor means "try again later"."""
    if order.spec.kind == "sensor" and not value:
        return Outcome(OutcomeKind.DEFERRED)
    result = result_json(order.task, value)
    if not plan.maps or order.spec.item is not None or not isinstance(value, list | tuple):
        return Outcome(OutcomeKind.SUCCESS, result=result)
    return Outcome(OutcomeKind.SUCCESS, result=result, element_keys=_keys_of_maps(plan.maps, value))


def outcome_of_error(error: BaseException, make_failure: MakeFailure, *, is_cancelled: bool = False) -> Outcome:
    """Return the outcome of an exception. ``is_cancelled``: the attempt was told to end."""
    if isinstance(error, NotReady):
        wait = _bounded_wait(error.recheck_seconds)
        return Outcome(OutcomeKind.DEFERRED, recheck_seconds=wait, defer_reason=_text_of(error))
    if isinstance(error, _ElementsUnknownError):
        return Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0, element_keys=error.element_keys)
    if isinstance(error, SkipTask):
        return Outcome(OutcomeKind.SKIPPED, skip_reason=_text_of(error))
    if isinstance(error, TaskTerminated) or (is_cancelled and type(error).__name__ == "CancelledError"):
        return Outcome(OutcomeKind.CANCELLED)
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return Outcome(OutcomeKind.SUCCESS)
    return Outcome(OutcomeKind.ERROR, error.failure() if isinstance(error, KnownCauseError) else make_failure(error))


def _text_of(error: NotReady | SkipTask) -> str:
    return protocol.clean_text(str(error), protocol.TEXT_LIMIT)


def _bounded_wait(seconds: float | None) -> float | None:
    """Cap the seconds; NaN becomes None, the default of the sensor."""
    return None if seconds is None or math.isnan(seconds) else min(seconds, RECHECK_SECONDS_MAX)


def result_json(task: str, value: object) -> str | None:
    """Return the JSON of a result, or a marker with the reason why it cannot be stored.

    The work of the task is done, and may be an effect that must not happen again: only a child that needs the result
    fails.
    """
    if value is None:
        return None
    try:
        text = dump_result(value)
        size = len(text.encode())
        if size <= protocol.RESULT_LIMIT:
            return text
        why = too_large_sentence(size)
    except UnstorableError as error:
        why = f"{error}; return plain values, or the name of a file"
    print(f"redrive: the result of {task!r} was not stored: {why}", file=sys.stderr)
    return unstored_result(why)


def make_failure_safely(make_failure: MakeFailure, error: BaseException) -> Failure:
    """Make a failure of any exception, also if its text or attributes raise; the failure is bounded. Never raises.

    Some modules are imported, and lines of code read, for a failure alone, which takes a descriptor: if the task has
    used them all up, there is the reserved one.
    """
    try:
        failure = make_failure(error)
    except Exception as second:
        failure = _make_failure_again(make_failure, error, second)
    return _bounded(failure)


def _make_failure_again(make_failure: MakeFailure, error: BaseException, second: Exception) -> Failure:
    with _reserve_released():
        try:
            return make_failure(error)
        except Exception:
            return _failure_by_field(error, second)


def _failure_by_field(error: BaseException, second: Exception) -> Failure:
    """Describe what can be read without importing or opening anything: the type, the message and the place."""
    kind, message, frame = type_name(error), message_of(error), error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    code = None if frame is None else frame.tb_frame.f_code
    place = "" if frame is None or code is None else f" {os.path.basename(code.co_filename)}:{frame.tb_lineno}"
    words = f"{kind}{place}" + (f" in {code.co_name}" if code is not None else "")
    identity = f"{words}: {normalize_message(message)}"
    why = f"not described further: reading it raised {type(second).__name__}"
    return Failure(
        kind, message, FailureClass.UNCLASSIFIED, Fingerprint(identity, identity, explain=words), words, diagnostic=why
    )


# --- The reserved descriptor ---------------------------------------------------------------------------------------


def _open_reserve() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


reserve = _open_reserve()  # opened by the zygote: each attempt has it from its fork
_RESERVE_DEVICE = os.fstat(reserve).st_rdev


@contextmanager
def _reserve_released() -> Iterator[None]:
    """Close the reserved descriptor, unless the task has closed it and uses its number; then reserve one again."""
    global reserve
    with suppress(OSError):
        if os.fstat(reserve).st_rdev == _RESERVE_DEVICE:
            os.close(reserve)
    try:
        yield
    finally:
        with suppress(OSError):
            reserve = _open_reserve()


def _bounded(failure: Failure) -> Failure:
    """Fit for a frame: file names and messages may hold bytes that are not text."""
    limit, clean = protocol.TEXT_LIMIT, protocol.clean_text
    diagnostic, fingerprint = failure.diagnostic, failure.fingerprint
    parts = tuple(clean(part, limit // 10) for part in fingerprint.parts)  # of a chain of ten exceptions at most
    fields = tuple((name, clean(value, limit // 100)) for name, value in fingerprint.fields)
    return replace(
        failure,
        error_type=clean(failure.error_type, NAME_LIMIT),
        message=clean(failure.message, limit),
        traceback=clean(failure.traceback, limit),
        diagnostic=None if diagnostic is None else clean(diagnostic, limit),
        fingerprint=replace(fingerprint, explain=clean(fingerprint.explain, limit), parts=parts, fields=fields),
    )


# --- Before a run -----------------------------------------------------------------------------------------------------


def check_calls(flow: FlowSpec, plans: Mapping[str, CallPlan]) -> Iterator[Finding]:
    """Yield the errors, task by task in the order of the flow."""
    for task in flow.tasks:
        plan = plans.get(task.name)
        if plan is None:
            continue
        if plan.is_generator:
            message = "is a generator: its body would never run; remove the yield"
            yield Finding("error", "generator", message, task.name)
        if plan.parameters or plan.positional_only is not None or task.map is not None:
            yield from _parameters(task, plan, flow)


def require_callable(flow: FlowSpec, plans: Mapping[str, CallPlan]) -> None:
    """Raise FlowError with the first error."""
    for finding in check_calls(flow, plans):
        task = next(task for task in flow.tasks if task.name == finding.task)
        raise FlowError(f"task {task.name!r} {finding.message}", task=task.name).at(task.source)


def _parameters(task: TaskSpec, plan: CallPlan, flow: FlowSpec) -> Iterator[Finding]:
    """Match parameters by name, as at run time."""
    if plan.positional_only is not None:
        message = f"takes its argument {plan.positional_only!r} by position only, and arguments are given by name"
        yield Finding("error", "parameters", message, task.name)
    if task.map is not None and plan.item_parameter is None:
        message = "is called with each element of a list, and takes no argument for it: def f(item)"
        yield Finding("error", "parameters", message, task.name)
    needed = [name for name, may_be_left_out in plan.parameters if not may_be_left_out]
    if not needed:
        return
    known = {CONTEXT_NAME, *flow.params, *task.params, *map(parameter_of, task.parents)}
    if task.map is not None:
        known.add(plan.item_parameter or CONTEXT_NAME)
    for name in needed:
        if name not in known:
            message = f"asks for an argument {name!r}, which is neither {CONTEXT_NAME!r}, nor a task it comes after, "
            message += f"nor a parameter of the flow{_advice(name, known, flow)}"
            yield Finding("error", "parameters", message, task.name)


def _advice(name: str, known: Collection[str], flow: FlowSpec) -> str:
    """The end of a sentence about an unknown argument."""
    meant = next((one.name for one in flow.tasks if parameter_of(one.name) == name), None)
    return did_you_mean(name, known) if meant is None else f": name {meant!r} in after="


# --- Map tasks --------------------------------------------------------------------------------------------------------


def plans_of(
    flow: FlowSpec, functions: Mapping[str, Callable[..., object]], keys: Mapping[str, KeyFunction]
) -> Mapping[str, CallPlan]:
    """Return how to call each function, by the name of its task. ``keys``: of map tasks, the key of an element."""
    by_identity = {id(function): function for function in functions.values()}  # many tasks may have one function
    plans = {identity: plan_of(function) for identity, function in by_identity.items()}
    found = {name: plans[id(function)] for name, function in functions.items()}
    for task in flow.tasks:
        if task.map is not None and (key := keys.get(task.name)) is not None:
            found[task.name] = replace(found[task.name], key=key)
            if (over := found.get(task.map.over)) is not None:
                found[task.map.over] = replace(over, maps=(*over.maps, (task.name, key)))
    return found


def collecting_plan(task: TaskSpec, mapping: MapSpec, own: CallPlan | None) -> CallPlan:
    """Return how to collect the results of the children of a map task. ``own``: how to call its function."""
    key, maps = (None, ()) if own is None else (own.key, own.maps)
    return CallPlan(partial(_collect, task.name, mapping, key), ((CONTEXT_NAME, False),), False, maps=maps)


class _ElementsUnknownError(Exception):
    """A map task has no children yet, because its elements are not known. ``element_keys``: as now computed."""

    def __init__(self, element_keys: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.element_keys = element_keys


def _keys_of_maps(maps: Sequence[tuple[str, KeyFunction]], elements: Sequence[object]) -> Mapping[str, tuple[str, ...]]:
    """Return the keys of the elements for each map task; without those whose key fails, which say so themselves."""
    found = {}
    for task, key in maps:
        with suppress(Exception):
            found[task] = _keys_of(task, key, elements)
    return found


def _keys_of(task: str, key: KeyFunction, elements: Sequence[object]) -> tuple[str, ...]:
    """Return the text of the key of each element. Raises PermanentError for one that names no element."""
    known: dict[str, int] = {}
    texts = []
    for place, element in enumerate(elements):
        text = _key_of(task, key, place, element)
        first = known.setdefault(child_of_key(task, text), place)
        if first != place:
            raise _bad_key(task, f"elements {first} and {place} of its list have the same key {text!r}")
        texts.append(text)
    return tuple(texts)


def _key_of(task: str, key: KeyFunction, place: int, element: object) -> str:
    what = f"of element {place} of its list, {short_repr(element)},"
    try:
        found = key(element)
    except Exception as error:
        raise _bad_key(task, f"the key {what} raised {type_name(error)}: {message_of(error)}") from None
    try:
        return key_text(found)
    except ValueError as error:
        raise _bad_key(task, f"the key {what} is {error}") from None


def _bad_key(task: str, why: str) -> PermanentError:
    return KnownCauseError(f"key= of {task!r}", f"task {task!r}: {why}: mend key= or the list, then requeue")


def _collect(task: str, mapping: MapSpec, key: KeyFunction | None, ctx: Context) -> object:
    """Return the results of the children in the order of the list; None where there is none.

    Raises PermanentError if there is no list, one that is too long, or one whose elements have no keys.
    """
    items = ctx.inputs[mapping.over]
    if isinstance(items, Missing):
        raise PermanentError(f"task {task!r} maps over the result of {mapping.over!r}, and there is none: {items.why}")
    if not isinstance(items, list | tuple):
        kind = type(items).__name__
        raise KnownCauseError(
            f"the result of {mapping.over!r} is not a list",
            f"task {task!r} maps over the result of {mapping.over!r}, which is not a list: {kind}",
        )
    if len(items) > mapping.max_size:
        raise KnownCauseError(
            f"the list of {mapping.over!r} is too long",
            f"{mapping.over!r} returned a list of {len(items)}, and {task!r} maps over at most {mapping.max_size}: "
            "return fewer, or raise max_size, then requeue",
        )
    children = [name for name in ctx.inputs if name.startswith(child_prefix(task))]
    if len(children) < len(items):
        raise _ElementsUnknownError({task: _own_keys(task, mapping, key, items)})
    return [_result_of(ctx, child) for child in children]


def _own_keys(task: str, mapping: MapSpec, key: KeyFunction | None, items: Sequence[object]) -> tuple[str, ...]:
    if mapping.identity != KEY:
        return ()
    if key is None:
        why = "this run knows its elements by their keys, and the flow has no key= for it any more"
        raise PermanentError(f"task {task!r}: {why}: bring key= back, or start a new run")
    return _keys_of(task, key, items)


def _result_of(ctx: Context, child: str) -> object:
    """Return the result of a child; a Missing, which cannot be stored either, if its result could not be stored."""
    result = ctx.inputs[child]
    return None if isinstance(result, Missing) and not is_unstored_reason(result.why) else result
