"""The commands of ``redrive``: in a process of their own, or in the process of the test."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.testing import CliRunner, Result

from .command_server import CommandServer, ForkedCommand

REDRIVE = (sys.executable, "-P", "-m", "redrive.console")
LIMIT_SECONDS = 120.0  # for a command that hangs


#: Commands that draw: each has an interpreter of its own, as users start it. So has each that ``start_redrive`` starts.
_IN_A_FRESH_INTERPRETER = frozenset({"demo", "attach"})
_SERVED_OPTIONS = frozenset({"input", "stdin", "cwd", "env", "errors", "timeout"})
_STARTED_OPTIONS = frozenset({"stdin", "stdout", "stderr", "text", "cwd", "env"})
command_server = functools.cache(CommandServer)
may_fork = True  # False in a test that is marked ``spawns``


def run_redrive(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one command without a terminal, to its end; ``options`` are those of ``subprocess.run``."""
    if _may_be_served(words, options, _SERVED_OPTIONS):
        served = {"timeout": LIMIT_SECONDS, **options}
        served.pop("stdin", None)
        return command_server().run([str(word) for word in words], **served)
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "timeout": LIMIT_SECONDS,
        **options,
    }
    return subprocess.run([*REDRIVE, *map(str, words)], **options)


def _may_be_served(words: tuple[object, ...], options: dict[str, Any], possible: frozenset[str]) -> bool:
    """Whether a fork of a process that has imported the commands does the same as a fresh interpreter."""
    if not may_fork or not words or str(words[0]) in _IN_A_FRESH_INTERPRETER or not options.keys() <= possible:
        return False
    if options.get("stdin") not in (None, subprocess.DEVNULL):
        return False
    return startup_variables(options.get("env") or os.environ) == startup_variables(os.environ)


def startup_variables(environment: Mapping[str, str] | Mapping[bytes, bytes]) -> dict[str, str]:
    """Variables that an interpreter reads once, when it starts."""
    decoded = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return {name: value for name, value in decoded.items() if name.startswith(("PYTHON", "LC_", "LANG"))}


def start_redrive(*words: object, prefix: Sequence[str] = (), **options: Any) -> Any:
    """Start one command without a terminal; what it prints, errors included, is its ``stdout``.

    ``prefix``: a program, with its arguments, that starts it.
    """
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        **options,
    }
    if not prefix and _may_be_served(words, options, _STARTED_OPTIONS):
        return ForkedCommand(command_server(), [str(word) for word in words], options)
    return subprocess.Popen([*prefix, *REDRIVE, *map(str, words)], **options)


def with_file(words: Sequence[str], path: object) -> list[str]:
    """The words of a command with a state file in the place of FLOW."""
    names = 2 if words[0] == "systems" else 1
    return [*words[:names], str(path), *words[names:]]


def quoted(path: object) -> str:
    """A path as a word of a shell: the folder of the tests may have any name."""
    return shlex.quote(str(path))


def all_commands() -> dict[str, click.Command]:
    """Every command by its name; the group itself imports commands one by one."""
    from redrive.console.cli.group import cli

    found = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
    return {name: command for name, command in found.items() if command is not None}


def invoke_redrive(*words: object, **options: Any) -> Result:
    """Run one command in this process: for what starts nothing and ends at once."""
    from redrive.console.cli.group import cli

    return CliRunner().invoke(cli, [str(word) for word in words], **{"standalone_mode": False, **options})
