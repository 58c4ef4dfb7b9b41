"""Executors and zygotes of tests are forks of a process that has imported their modules, as those of short flows are.

An interpreter with its imports costs more processor time than what most tests do with it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
from redrive.engine.executor import host, state_file_lease
from redrive.engine.runner.runner import Runner
from redrive.engine.runner.zygote.launch import SpawnedZygote, fork_importer, spawn_zygote
from redrive.engine.statefile.processes import EXECUTOR_VARIABLE

from . import commands


def forked_runner(environment: Mapping[str, str]) -> Runner:
    """``Runner.spawn`` without the start of an interpreter."""
    return Runner(
        lambda python: spawn_zygote(environment, (), python) if python else fork_importer(environment),
        environment[EXECUTOR_VARIABLE],
    )


def spawned_runner(environment: Mapping[str, str]) -> Runner:
    """As users have it: each zygote is an interpreter."""
    return Runner.spawn(environment=environment)


def fork_executors(patch: pytest.MonkeyPatch) -> None:
    """Let executors be forks of the command server, which are no children of this process, and their zygotes forks."""
    patch.setattr(host, "spawn", functools.partial(host.spawn, start=_start_executor))
    patch.setattr(state_file_lease, "SpawnedZygote", ForkedZygote)


def fork_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let everything that is started be an interpreter."""
    patch.setattr(commands, "may_fork", False)


def _start_executor(words: list[str], log: int, settings: int, write_end: int) -> int:
    return commands.command_server().start_executor(words, log, settings, write_end)


class ForkedZygote(SpawnedZygote):
    """The zygote of an executor of few tasks, whatever is asked for."""

    def __init__(self, environment: Mapping[str, str], inherited_fds: object = (), *, is_forked: bool = False) -> None:
        super().__init__(environment, inherited_fds, is_forked=True)  # type: ignore[arg-type]
