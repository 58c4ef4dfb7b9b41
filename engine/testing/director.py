"""Makes the script of each attempt of a night: by the faults, by given results and durations, else by its body."""

from __future__ import annotations

import math
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import Any, TypedDict

from msgspec.structs import replace

from ..core.option_types import parse_duration
from ..core.result_codec import dump_result
from ..core.spec import FlowSpec, TaskSpec, declared_task, work_of
from ..domain.text import sha256_hex
from ..flow.flow import Flow
from ..flow.loading import load_flow
from ..flow.options import read_params, use_params
from ..flow.source import digest_of_file
from ..runner.call import CallPlan, plan_of, plans_of, require_callable
from ..runner.child import FlowFacts, Termination
from ..runner.protocol import AttemptOrder
from .bodies import INSTANT_SECONDS, Body, StageError, play_body, stack_of
from .faults import DownstreamFault, Fault, TaskFault, When
from .played_machine import Exit, Script, VirtualClock

PlayedFlow = Flow | str | os.PathLike[str] | Callable[[], Flow]
_BELL: Mapping[str, object] = {"sender": "bell"}


ActEntry = Sequence[Any]  # (instant, act, names ..., options)


class PlayOptions(TypedDict, total=False):
    """The options that ``play`` and ``play_schedule`` have in common; ``play`` describes them."""

    params: Mapping[str, object] | None
    at: str | datetime
    faults: Sequence[Fault]
    durations: Mapping[str, object] | None
    results: Mapping[str, object] | None
    acts: Sequence[ActEntry]
    seed: object
    max_parallel: int | None


class in_turn:
    """Values for the first, second ... start of a task in a night; the last one also for all later starts."""

    def __init__(self, *values: object) -> None:
        if not values:
            raise StageError("in_turn needs at least one value")
        self._values = values

    def at(self, start: int) -> object:
        """Return the value of a start, from 1."""
        return self._values[min(start, len(self._values)) - 1]


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """A start of an attempt. ``seconds``: since the start of the night; ``declared``: its ``declared_name``."""

    seconds: float
    run_id: str
    task: str
    declared: str
    downstream: str | None


class Times:
    """Reads the instants of a night: durations after its start, and times of day."""

    def __init__(self, start: datetime) -> None:
        self._start = start

    def seconds(self, at: object) -> float:
        """Return the seconds after the start. Raises StageError."""
        text = at.strip().removeprefix("+") if isinstance(at, str) else at
        if isinstance(text, str) and ":" in text:
            return self._of_clock(text)
        try:
            return parse_duration(text)
        except ValueError as error:
            raise StageError(f"{error}, or a time of day as '03:00'") from None

    def _of_clock(self, text: str) -> float:
        try:
            instant = datetime.combine(self._start.date(), clock_time.fromisoformat(text))
        except ValueError:
            raise StageError(f"{text!r} is not a time of day; write 03:00 or 03:00:30") from None
        found = instant.replace(tzinfo=self._start.tzinfo)
        if found < self._start:
            found += timedelta(days=1)
        return found.timestamp() - self._start.timestamp()

    def span(self, when: When) -> tuple[float, float]:
        """Return the seconds at which a fault begins and ends; it may be infinite. Raises StageError."""
        start = self.seconds(when.at)
        try:
            return start, math.inf if when.lasts is None else start + parse_duration(when.lasts)
        except ValueError as error:
            raise StageError(str(error)) from None


class Director:
    """Loads the flow, and makes the script of each attempt. ``starts``: the attempts so far."""

    def __init__(
        self,
        flow: PlayedFlow,
        folder: str,
        clock: VirtualClock,
        times: Times,
        options: PlayOptions,
    ) -> None:
        self.starts: list[AttemptStart] = []
        self._flow = flow
        self._folder = folder
        self._version = 1
        self._clock = clock
        self._times = times
        self._seed = options.get("seed", 0)
        self._faults = [one for one in options.get("faults", ()) if isinstance(one, TaskFault | DownstreamFault)]
        self._durations = options.get("durations") or {}
        self._results = options.get("results") or {}
        self._counts: Counter[str] = Counter()  # starts by task
        self._met: Counter[tuple[int, str]] = Counter()  # attempts that a fault has met, by its place and the task
        self._calls: dict[int, deque[float]] = {}  # of a downstream with a limit, in the last second
        self._facts: FlowFacts | None = None
        self._write_source()

    # --- The flow --------------------------------------------------------------------------------------------------

    def change(self, flow: PlayedFlow) -> None:
        """Change the code of the flow: what is loaded from now on is ``flow``."""
        self._flow = flow
        self._version += 1
        self._write_source()

    def path_of(self, spec: FlowSpec) -> str:
        """Return the path of the flow file, as the state file has it."""
        return os.fspath(self._flow) if isinstance(self._flow, str | os.PathLike) else f"{spec.name}.py"

    @property
    def source(self) -> str:
        """The file that stands for the code of the flow, so that the executor sees each change of it."""
        return os.path.join(self._folder, "flow.py")

    def _write_source(self) -> None:
        with open(self.source, "w", encoding="utf-8") as file:
            file.write(f"# version {self._version} of a played flow\n")

    @property
    def project_root(self) -> str:
        """The folder of the flow file."""
        flow = self._flow
        return os.path.dirname(os.path.abspath(flow)) if isinstance(flow, str | os.PathLike) else os.getcwd()

    def load(self, params: Mapping[str, object], remembered: Mapping[str, object]) -> FlowSpec:
        """Return the flow with parameters, as it is played. Raises FlowError, StageError."""
        flow = self._load(params, remembered)
        spec = flow.spec()
        if isinstance(self._flow, Flow):  # was made before its parameters were given
            with use_params(remembered, params):
                values, refused = read_params(flow.name, {**flow.params, **flow.params.declared})
            if refused is not None:
                raise StageError(refused)
            spec = replace(spec, params=values.stored())
        plans = plans_of(spec, flow.functions, flow.key_functions)
        require_callable(spec, plans)
        self._require_known_names(spec)
        self._require_playable(spec)
        code_hash = flow.code_hash or sha256_hex(f"version {self._version}".encode())[:12]
        self._facts = FlowFacts(plans, self.project_root, code_hash, stack_fd=-1, termination=Termination())
        return self._played(spec, code_hash)

    def _load(self, params: Mapping[str, object], remembered: Mapping[str, object]) -> Flow:
        flow = self._flow
        if isinstance(flow, str | os.PathLike):
            return load_flow(os.fspath(flow), params, remembered)
        if isinstance(flow, Flow):
            return flow
        with use_params(remembered, params):
            return flow()

    def _played(self, spec: FlowSpec, code_hash: str) -> FlowSpec:
        """Return the flow without what reaches out of the night: senders of pages, pings, pools of the machine."""
        tasks = tuple(self._played_task(task) for task in spec.tasks)
        return replace(
            spec,
            tasks=tasks,
            pages=(_BELL,) if spec.pages else (),
            pings=(),
            machine_pools=(),
            python=None,
            path=self.path_of(spec),
            code_hash=code_hash,
            sources={self.source: str(digest_of_file(self.source))},
        )

    def _played_task(self, task: TaskSpec) -> TaskSpec:
        task = replace(task, isolation="process" if task.isolation == "dask" else task.isolation)
        listed = None if task.map is None else self._results.get(task.map.over)
        if task.map is None or not isinstance(listed, list) or listed != list(range(len(listed))):
            return task
        return replace(task, map=replace(task.map, identity="value"))  # numbers stand in for elements that have keys

    def _require_known_names(self, spec: FlowSpec) -> None:
        """Refuse a fault, result or duration of a task, or a fault of a downstream, that the flow does not have."""
        tasks = [task.name for task in spec.tasks]
        named = [*self._results, *self._durations, *(one.task for one in self._faults if isinstance(one, TaskFault))]
        for name in named:
            if name != "*" and declared_task(spec.tasks, name) is None:
                raise StageError(f"the flow has no task {name!r}; it has {', '.join(tasks)}")
        own = map(work_of, spec.tasks)
        downstreams = {task.downstream for task in own if task.downstream is not None}
        for fault in self._faults:
            if isinstance(fault, DownstreamFault) and fault.downstream not in downstreams:
                known = ", ".join(sorted(downstreams)) or "none"
                raise StageError(f"no task names the downstream {fault.downstream!r}; the flow has: {known}")

    def _require_playable(self, spec: FlowSpec) -> None:
        for task in spec.tasks:
            own = work_of(task)
            is_given = any(_names(task, name) for name in (*self._results, *self._durations))
            is_given |= any(isinstance(fault, TaskFault) and _meets(task, fault) for fault in self._faults)
            is_command = own.kind == "command"
            if (is_command or own.isolation == "dask") and not is_given:
                why = "is a command, which cannot run" if is_command else "runs on Dask, which does not run"
                raise StageError(
                    f"task {task.name!r} {why} in virtual time: say what it returns, results={{{task.name!r}: None}},"
                    f" or how it ends, exits({task.name!r}, 0)"
                )

    # --- Scripts ---------------------------------------------------------------------------------------------------

    def script_of(self, order: AttemptOrder) -> Script:
        """Return what an attempt does that starts now. Raises StageError."""
        spec, now = order.spec, self._clock.seconds
        if spec.map is not None:  # it collects what its children returned
            return self._body_script(Body(self._plan(order)), order)
        self._counts[order.task] += 1
        self.starts.append(AttemptStart(now, order.run_id, order.task, spec.declared_name, spec.downstream))
        factor, more = 1.0, 0.0
        for place, fault in enumerate(self._faults):
            if not self._meets(place, fault, order, now):
                continue
            if isinstance(fault, TaskFault) and (fault.factor != 1.0 or fault.more_seconds):
                factor, more = factor * fault.factor, more + parse_duration(fault.more_seconds)
            else:
                return self._failing_script(fault, order)
        return self._working_script(order, factor, more)

    def _meets(self, place: int, fault: TaskFault | DownstreamFault, order: AttemptOrder, now: float) -> bool:
        when = fault.when
        if isinstance(fault, TaskFault):
            is_named = _meets(order.spec, fault)
        else:
            is_named = order.spec.downstream == fault.downstream
        start, end = self._times.span(when)
        if not is_named or not start <= now < end or not self._is_attempt(place, when, order):
            return False
        dice = random.Random(f"{self._seed}:{place}:{order.run_id}:{order.task}:{order.attempt}")
        if when.share < 1.0 and dice.random() >= when.share:
            return False
        if isinstance(fault, DownstreamFault) and fault.per_second and self._is_within_limit(place, fault, now):
            return False
        self._met[place, order.task] += 1
        return True

    def _is_attempt(self, place: int, when: When, order: AttemptOrder) -> bool:
        met = [when.attempt] if isinstance(when.attempt, int) else when.attempt
        if met is not None and order.attempt not in met:
            return False
        return when.times is None or self._met[place, order.task] < when.times

    def _is_within_limit(self, place: int, fault: DownstreamFault, now: float) -> bool:
        calls = self._calls.setdefault(place, deque())
        while calls and calls[0] <= now - 1.0:
            calls.popleft()
        if len(calls) >= fault.per_second:
            return False
        calls.append(now)
        return True

    def _failing_script(self, fault: TaskFault | DownstreamFault, order: AttemptOrder) -> Script:
        spec, seconds = order.spec, parse_duration(fault.seconds)
        if isinstance(fault, DownstreamFault):
            if spec.kind == "command":
                return _exit_script(seconds, 22, f"curl: (22) The requested URL returned error: {fault.status}\n")
            return self._raising_script(fault.error(order), order, seconds)
        if fault.not_started:
            return Script(0.0, refused=BlockingIOError(11, "Resource temporarily unavailable"))
        if fault.hangs:
            if spec.timeout is None:
                raise StageError(f"task {order.task!r} hangs, and has no timeout: it would never end; give it timeout=")
            stack = "" if spec.kind == "command" else stack_of(self._plan(order).function)
            return Script(None, ends_after_sigterm=None if fault.ignores_sigterm else 0.0, stack=stack)
        if fault.signal is not None:
            return Script(seconds, Exit(None, fault.signal, is_out_of_memory=fault.is_out_of_memory))
        if fault.exit_code is not None:
            return _exit_script(seconds, fault.exit_code, fault.output)
        assert fault.error is not None
        if spec.kind == "command":
            raise StageError(f"task {order.task!r} is a command, which raises nothing: use exits({order.task!r}, 1)")
        return self._raising_script(fault.error(order), order, seconds)

    def _raising_script(self, error: BaseException, order: AttemptOrder, seconds: float) -> Script:
        return self._body_script(Body(self._plan(order), error, seconds), order)

    def _working_script(self, order: AttemptOrder, factor: float, more: float) -> Script:
        """Return the script of an attempt that meets no fault, but takes ``factor`` times as long and ``more``."""
        given = self._given(self._durations, order)
        seconds = None if given is None else factor * parse_duration(given) + more
        is_given = any(_names(order.spec, name) for name in self._results)
        result: Any = self._given(self._results, order)
        if order.spec.kind == "command":
            takes = factor * INSTANT_SECONDS + more if seconds is None else seconds
            return Script(takes, Exit(0, result=None if result is None else dump_result(result)))
        if not is_given or (callable(result) and not isinstance(result, type)):
            plan = plan_of(result) if is_given and callable(result) else self._plan(order)
            return self._body_script(Body(plan, None, seconds, factor, more), order)
        if isinstance(result, BaseException) or (isinstance(result, type) and issubclass(result, BaseException)):
            error = result if isinstance(result, BaseException) else result()
            return self._raising_script(error.with_traceback(None), order, seconds or INSTANT_SECONDS)
        return self._body_script(Body(CallPlan(lambda: result, (), False), None, seconds, factor, more), order)

    def _plan(self, order: AttemptOrder) -> CallPlan:
        assert self._facts is not None
        return self._facts.plan(order.spec)

    def _body_script(self, body: Body, order: AttemptOrder) -> Script:
        assert self._facts is not None
        return play_body(body, order, self._facts, self._clock.seconds, self._clock.now_us())

    def _given(self, values: Mapping[str, object], order: AttemptOrder) -> object:
        value = values.get(order.task, values.get(order.spec.declared_name))
        return value.at(self._counts[order.task]) if isinstance(value, in_turn) else value


def _names(task: TaskSpec, name: str) -> bool:
    """Whether a name in a table names a task: itself, or the map task of which it is a child."""
    return name in (task.name, task.declared_name)


def _meets(task: TaskSpec, fault: TaskFault) -> bool:
    return fault.task == "*" or _names(task, fault.task)


def _exit_script(seconds: float, code: int, output: str) -> Script:
    reports = [(seconds, output.encode())] if output else []
    return Script(seconds, Exit(code), reports)


@contextmanager
def modules_restored() -> Iterator[None]:
    """Forget what is imported in the block, so that a later night imports its flow anew."""
    path, known = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if not name.startswith("redrive.") and _is_of_flow(sys.modules[name], path):
                del sys.modules[name]


def _is_of_flow(module: Any, path: Sequence[str]) -> bool:
    """Whether a module comes from a folder that the import of a flow has added to the path."""
    file = getattr(module, "__file__", None)
    return file is not None and not any(folder and os.path.abspath(file).startswith(folder) for folder in path)
