"""Real zygotes and real processes: a flow file in tmp_path, and a listener that writes down what it hears."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redrive.engine.core.outcome import Outcome
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_codec import kind_of
from redrive.engine.domain.event_payloads import AttemptRetry, ExecutorChanged, Payload
from redrive.engine.runner.protocol import AttemptControls, AttemptOrder, Open, RunnerListener
from redrive.engine.runner.runner import Runner
from redrive.engine.statefile.ownership import has_token
from redrive.engine.statefile.processes import pids
from support.forks import forked_runner, spawned_runner
from support.processes import inspect_at_leisure, wait_until_dead

HEAD = """\
import os, sys, time
from redrive.engine.flow.flow import Flow

flow = Flow("tested", params={params!r})
"""


LIMIT_SECONDS = 90.0  # for what never comes
_TRIES = 40
_TRY_SECONDS = 75.0  # for those tries and for more, on a machine that stands still often


def bearers_of(executor_id: str) -> list[int]:
    """Processes that carry the token of an executor in the environment they were executed with."""
    return [pid for pid in pids() if has_token(pid, {executor_id})]


class Recorder:
    """A listener that keeps everything, and lets a test wait for what it needs."""

    def __init__(self) -> None:
        self.attempt: AttemptControls | None = None
        self.pid = 0
        self.has_started = False
        self.start_ticks: int | None = None
        self.text = b""
        self.progresses: list[tuple[int, int | None]] = []
        self.retries: list[AttemptRetry] = []
        self.rows: list[Mapping[str, Any]] = []
        self.checkpoints: list[str] = []
        self.steps: list[Payload] = []
        self.times: dict[str, float] = {}  # when a step was told
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()

    def started(self, pid: int, start_ticks: int | None) -> None:
        self._notify()
        self.pid, self.start_ticks = pid, start_ticks
        self.has_started = True

    def output(self, data: bytes) -> None:
        self._notify()
        self.text += data

    def progress(self, done: int, total: int | None) -> None:
        self._notify()
        self.progresses.append((done, total))

    def retried(self, retry: AttemptRetry) -> None:
        self._notify()
        self.retries.append(retry)

    def quarantined(self, row: Mapping[str, Any]) -> None:
        self._notify()
        self.rows.append(row)

    def checkpointed(self, value: str) -> None:
        self._notify()
        self.checkpoints.append(value)

    def step(self, payload: Payload) -> None:
        self._notify()
        self.times[kind_of(payload)] = time.monotonic()
        self.steps.append(payload)

    def ended(self, outcome: Outcome) -> None:
        self._notify()
        self._outcome.set_result(outcome)

    def _notify(self) -> None:
        assert not self._outcome.done(), "nothing may be told after the end"
        self._news.set()

    @property
    def is_over(self) -> bool:
        return self._outcome.done()

    @property
    def kinds(self) -> list[str]:
        """The rungs of the ladder, in order, without their common beginning."""
        return [kind_of(payload).removeprefix("attempt.") for payload in self.steps]

    def payload_of(self, kind: str) -> Any:
        return {kind_of(payload): payload for payload in self.steps}[f"attempt.{kind}"]

    async def outcome(self, seconds: float = LIMIT_SECONDS) -> Outcome:
        return await asyncio.wait_for(asyncio.shield(self._outcome), seconds)

    async def wait_for_output(self, text: bytes) -> None:
        """Wait until the output contains this, and the process is known: a program may write before."""
        await self._until(lambda: text in self.text and self.has_started)

    async def stack(self, met: Callable[[str], bool]) -> str:
        """Ask for the stack until it is as meant: a busy machine answers later than a kill waits for it."""
        assert self.attempt is not None
        async with asyncio.timeout(LIMIT_SECONDS):
            while not met(dump := await self.attempt.backend.dump_stack()):  # type: ignore[attr-defined]
                pass
        return dump

    async def climbed(self, kind: str) -> None:
        """Wait for a rung of the ladder."""
        await self._until(lambda: kind in self.kinds)

    async def _until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not met():
                self._news.clear()
                await self._news.wait()


class Bench:
    """One runner and the flow that it has open."""

    def __init__(self, folder: Path, make_runner: Callable[[Mapping[str, str]], Runner]) -> None:
        self.folder = folder
        self.path = folder / "flow_under_test.py"
        self.executor_id = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.runner = make_runner({"REDRIVE_EXECUTOR": self.executor_id})
        self.spec: FlowSpec | None = None
        self.zygote_lost, self.slot_freed = asyncio.Event(), asyncio.Event()
        self.changes: list[ExecutorChanged] = []
        self.runner.listen(RunnerListener(self.zygote_lost.set, self.slot_freed.set, self.changes.append))

    async def open(
        self, source: str, params: Mapping[str, Any] | None = None, declared: Mapping[str, Any] | None = None
    ) -> FlowSpec:
        """Open a flow of this source; ``declared``: its parameters with their defaults, else what its tasks ask for."""
        source = textwrap.dedent(source)
        declared = asked_for(source) if declared is None else dict(declared)
        self.path.write_text(HEAD.format(params=declared) + source)
        self.spec = await self.runner.open(Open(str(self.path), params or {}))
        return self.spec

    def task(self, name: str) -> TaskSpec:
        assert self.spec is not None
        return next(task for task in self.spec.tasks if task.name == name)

    async def start(self, name: str, *, inputs: Mapping[str, Any] | None = None, **order: Any) -> Recorder:
        recorder = Recorder()
        values: dict[str, Any] = {
            "run_id": "run-1",
            "task": name,
            "attempt": 1,
            "generation": 0,
            "spec": self.task(name),
            "inputs": json.dumps(inputs or {}),
            **order,
        }
        recorder.attempt = await self.runner.start(AttemptOrder(**values), recorder)  # type: ignore[arg-type]
        return recorder

    async def run(self, name: str, **order: Any) -> tuple[Outcome, Recorder]:
        recorder = await self.start(name, **order)
        return await recorder.outcome(), recorder

    async def run_until(
        self, met: Callable[[Outcome, Recorder], bool], name: str, **order: Any
    ) -> tuple[Outcome, Recorder]:
        """Run it until it went as meant: deadlines of tenths of a second say what a test wants to see only where the
        machine does not stand still before they pass."""
        until, tries = time.monotonic() + _TRY_SECONDS, 0
        while tries < _TRIES or time.monotonic() < until:
            with pytest.MonkeyPatch.context() as patch:
                if tries % 2:
                    inspect_at_leisure(patch)
                outcome, recorder = await self.run(name, **order)
            if met(outcome, recorder):
                return outcome, recorder
            tries += 1
        raise AssertionError(f"not once in {tries} times: {recorder.steps} {outcome}")

    def line_of(self, mark: str) -> int:
        """The number of the line of the flow that carries the comment ``# mark``."""
        lines = self.path.read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


@pytest_asyncio.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    found = Bench(tmp_path, spawned_runner if request.node.get_closest_marker("spawns") else forked_runner)
    yield found
    await found.runner.close()


def asked_for(source: str) -> dict[str, None]:
    """The arguments of tasks that neither the engine nor another task gives."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    tasks = [one for one in functions if any(ast.unparse(each).startswith("flow.") for each in one.decorator_list)]
    given = {"ctx", *(one.name for one in tasks)}
    return {argument.arg: None for one in tasks for argument in one.args.args if argument.arg not in given}


@pytest.fixture
def survivors() -> Any:
    """``survivors(pids)``: those that do not die by themselves."""
    return wait_until_dead
