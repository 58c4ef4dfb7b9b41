"""What ``run``, ``resume``, ``demo`` and ``attach`` do: start an executor here or in its own process, and show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.core.states import RunState
from ..engine.flow import split_target
from .target import default_folder, state_for_flow

if TYPE_CHECKING:  # the executor and all below it take longer to import than a first screen may take to come
    from ..engine.core.events import Event
    from ..engine.executor import RunOptions, RunResult


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run was asked for on the command line."""

    state: str | None = None
    max_parallel: int | None = None
    plain: bool = False
    detach: bool = False
    stay: bool = False
    wait: bool = False
    durability: str = "full"

    def options(self, params: Mapping[str, Any], **more: Any) -> RunOptions:
        """As the executor wants them."""
        from ..engine.executor import RunOptions

        return RunOptions(
            max_parallel=self.max_parallel,
            durability=self.durability,
            params=params,
            stay=more.pop("stay", self.stay),
            wait=self.wait,
            **more,
        )


def run_flow(flow: str, run_id: str | None, params: Mapping[str, str], manner: Manner) -> int:
    """Run a flow file in the way that was asked for, or that the terminal allows."""
    path, _ = split_target(flow)
    state = state_for_flow(Path(path).stem, manner.state)
    return _start(flow, state, run_id, params, manner, resume=False)


def resume_run(state: str, run_id: str | None, manner: Manner) -> int:
    """Take up an unfinished run; its flow file is the one that the state file names."""
    return _start(None, state, run_id, {}, manner, resume=True)


def run_demo(manner: Manner) -> int:
    """The built-in flow; without a terminal the operator is played as well, and the exit code says if it worked."""
    from ..engine import examples

    flow = str(Path(examples.__file__).with_name("demo.py"))
    state = manner.state or str(default_folder() / "demo.db")
    if manner.plain or not _has_terminal():
        from .demo import play

        return play(flow, state, manner)
    return _start(flow, state, None, {}, manner, resume=False)


def attach(target: str, run_id: str | None, *, read_only: bool, python: str | None, ssh_option: Sequence[str]) -> int:
    """Open the console on a state file that somebody else writes."""
    from .show import show_target

    return show_target(target, run_id, read_only=read_only, python=python, ssh_option=ssh_option)


def _start(
    flow: str | None, state: str, run_id: str | None, params: Mapping[str, str], manner: Manner, *, resume: bool
) -> int:
    if manner.detach:
        return _detach(flow, state, run_id, params, manner, resume=resume)
    if manner.plain or not _has_terminal():
        return run_plain(flow, state, run_id, manner.options(params, resume=resume))
    from .show import first_cells, show_run

    with first_cells(f"{Path(state).name} - starting ...") as hold:
        return show_run(flow, state, run_id, manner.options(params, resume=resume, stay=True), hold)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _detach(
    flow: str | None, state: str, run_id: str | None, params: Mapping[str, str], manner: Manner, *, resume: bool
) -> int:
    from ..engine import host

    options = {
        "max_parallel": manner.max_parallel,
        "durability": manner.durability,
        "stay": manner.stay,
        "wait": manner.wait,
        "resume": resume,
    }
    pid = host.spawn(flow=flow, state=state, run_id=run_id, params=params, options=options)
    print(f"executor {pid} runs; redrive attach {state}")
    return 0


def run_plain(flow: str | None, state: str, run_id: str | None, options: RunOptions) -> int:
    """Be the executor, and print one line per event."""
    from ..engine.executor import Executor

    executor = Executor(
        run_id=run_id, flow=flow, state=state, options=options, on_events=Printer().take, handle_signals=True
    )
    return exit_code(executor.run_result())


class Printer:
    """Prints events as they are committed; a reader that went away does not stop the run."""

    def __init__(self) -> None:
        self._gone = False

    def take(self, events: Sequence[Event]) -> None:
        """Print a batch at once."""
        from . import plain

        if self._gone:
            return
        text = "".join(f"{line}\n" for event in events for line in plain.lines(event))
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(result: RunResult) -> int:
    """The exit codes of ``run`` and ``resume`` (DESIGN 6)."""
    from .cli import ExitCode

    if result.interrupted:
        return ExitCode.INTERRUPTED
    if result.blocked or result.state is RunState.PARTIAL:
        return ExitCode.PARTIAL_OR_BLOCKED
    return ExitCode.SUCCESS if result.state is RunState.SUCCESS else ExitCode.FAILED
