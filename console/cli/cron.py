"""``redrive exec``: a command as a flow of one task, for a line of cron.

The flow is a file beside the state file, so that ``resume``, ``requeue`` and the console handle its runs as any others.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from ...engine.errors import FlowError
from ...engine.executor.run_options import RunOptions
from ...engine.store.flow_path import follow_link, path_for_run, path_of_flow
from .main import command
from .options import seconds_of
from .run import has_terminal, run_plain


@command("exec")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND [ARGUMENT]...", type=click.UNPROCESSED)
@click.option("--name", metavar="NAME", help="Of the flow. Default: the name of the program.")
@click.option("--timeout", metavar="DURATION", help="Kill the command after this time, as 1h: SIGTERM, then SIGKILL.")
@click.option(
    "--retry",
    "retries",
    type=click.IntRange(0, 100),
    default=0,
    metavar="N",
    help="Start it again at most N times. Default: 0, because a command may not bear it.",
)
@click.option("--downstream", metavar="NAME", help="The system that it calls: its breaker and retry budget apply.")
@click.option("--state", metavar="FILE", help="The state file. Default: that of the flow.")
@click.option("--output", is_flag=True, help="Print what the command prints also if no terminal reads it.")
@click.option("--wait", is_flag=True, help="Wait while another executor owns the state file, instead of exit code 75.")
def run_command(
    words: tuple[str, ...],
    name: str | None,
    timeout: str | None,
    retries: int,
    downstream: str | None,
    state: str | None,
    output: bool,
    wait: bool,
) -> int:
    """One COMMAND alone is a line of the shell; with arguments it is a program, and no shell reads them.

    It runs in this folder with these variables. Without a terminal nothing is printed after a success, so that cron
    mails only failures. The exit code is that of redrive run.
    """
    name = name or _name_of(words)
    options = {
        "cwd": os.getcwd(),
        "max_attempts": retries + 1,
        "timeout": None if timeout is None else seconds_of(timeout, "--timeout"),
        "downstream": downstream,
    }
    flow = _write_flow(name, words, {key: value for key, value in options.items() if value is not None})
    path = path_for_run(state, lambda: name, flow)
    run_options = RunOptions(trust=True, wait=wait, few_tasks=True)
    if output or has_terminal():
        return run_plain(flow, path, None, run_options, output=True)
    from .quiet_run import run_quietly

    return run_quietly(flow, path, None, run_options)


def _name_of(words: tuple[str, ...]) -> str:
    """Return the name of the program. Raises FlowError if the line names none."""
    try:
        first = words[0] if len(words) > 1 else next(iter(shlex.split(words[0])), "")
    except ValueError:  # a quote without its end: the shell says so
        first = ""
    name = os.path.basename(first)
    if not name:
        raise FlowError("the command names no program; give the run a name with --name")
    return name


def _write_flow(name: str, words: tuple[str, ...], options: dict[str, object]) -> str:
    """Write the flow file of a command, all of it at once, and return its path."""
    line = words[0] if len(words) == 1 else list(words)
    arguments = "".join(f"    {key}={value!r},\n" for key, value in options.items())
    text = _FLOW.format(name=name, line=line, arguments=arguments)
    path = Path(path_of_flow(name)).with_suffix(".exec.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)
    return str(follow_link(str(path)))


_FLOW = '''"""Written by ``redrive exec``, which writes it anew when its command changes."""

from redrive.engine import Flow

flow = Flow({name!r})
flow.command(
    {name!r},
    {line!r},
{arguments})
'''
