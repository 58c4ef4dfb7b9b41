"""The commands of ``redrive``: in a process of their own, or in the process of the test."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
from click.testing import CliRunner, Result

REDRIVE = (sys.executable, "-P", "-m", "redrive.console")
LIMIT_SECONDS = 120.0  # for a command that hangs


def run_redrive(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one command without a terminal, to its end; ``options`` are those of ``subprocess.run``."""
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "timeout": LIMIT_SECONDS,
        **options,
    }
    return subprocess.run([*REDRIVE, *map(str, words)], **options)


def start_redrive(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start one command without a terminal; what it prints, errors included, is its ``stdout``."""
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        **options,
    }
    return subprocess.Popen([*REDRIVE, *map(str, words)], **options)


def all_commands() -> dict[str, click.Command]:
    """Every command by its name; the group itself imports commands one by one."""
    from redrive.console.cli.main import cli

    found = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
    return {name: command for name, command in found.items() if command is not None}


def invoke_redrive(*words: object, **options: Any) -> Result:
    """Run one command in this process: for what starts nothing and ends at once."""
    from redrive.console.cli.main import cli

    return CliRunner().invoke(cli, [str(word) for word in words], **{"standalone_mode": False, **options})
