"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from getpass import getpass
from pathlib import Path

import click

from ...engine.core.durations import parse_duration
from ...engine.core.outcome import FailureClass
from ...engine.domain.states import TaskState
from .complete import complete_causes, complete_runs, complete_tasks

Command = Callable[..., object]


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator; help shows them in this order."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def params_of(given: Iterable[str]) -> dict[str, str]:
    """The values of ``--param NAME=VALUE`` options. Raises UsageError.

    ``@FILE`` is the text of a file and ``-`` that of the standard input, so that a secret is not in the command line,
    which ``ps`` shows to everybody. ``@@`` begins a value that begins with ``@``.
    """
    params: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--param {item!r}: write name=value")
        if not is_storable(item):
            raise click.UsageError(f"--param {name!r}: it is not valid UTF-8")
        if name in params:
            raise click.UsageError(f"--param {name!r} is given twice: {params[name]!r} and {value!r}")
        params[name] = _value_of(name, value)
    return params


def _value_of(name: str, value: str) -> str:
    """The value itself, the text of a file or that of the standard input, without the end of its last line."""
    if value == "-" and sys.stdin.isatty():
        return getpass(f"{name}: ")
    if value != "-" and not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        text = sys.stdin.read() if value == "-" else Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise click.UsageError(f"--param {name}={value}: cannot be read: {why}") from None
    return text.removesuffix("\n").removesuffix("\r")


def is_storable(text: str) -> bool:
    """Whether a command-line argument is valid UTF-8; SQLite and JSON cannot store other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


state_option = click.option("--state", "state", metavar="TARGET", help="State file, or ssh://[user@]host[:port]/path.")
target_argument = click.argument("target", required=False)
run_option = click.option(
    "--run", "run_id", metavar="RUN", help="Default: the latest run.", shell_complete=complete_runs
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value a line.")
follow_option = click.option("--follow", is_flag=True, help="Continue with new events.")
reason_option = click.option("--reason", metavar="TEXT", default="", help="The reason, for the journal.")
ssh_options = options(
    click.option("--python", "python", metavar="PATH", help="Remote Python (>= 3.6); default python3."),
    click.option("--ssh-option", "ssh_option", multiple=True, metavar="OPTION", help="Passed to ssh as -o OPTION."),
)
reading_options = options(target_argument, state_option, run_option, json_option, ssh_options)
running_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--plain", is_flag=True, help="One line per event instead of the console."),
    click.option("--output", is_flag=True, help="The output of the tasks, between the lines of --plain."),
    click.option("--quiet", is_flag=True, help="For cron: print nothing unless the run needs a human."),
    click.option("--detach", is_flag=True, help="Start the executor in the background."),
    click.option("--stay", is_flag=True, help="When blocked, wait for an operator instead of ending."),
    click.option("--wait", is_flag=True, help="Wait for another executor to leave the state file."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True),
)
serving_options = options(
    click.option("--state", "state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True),
)
acting_options = options(
    click.argument("names", nargs=-1, metavar="TASK...", shell_complete=complete_tasks),
    state_option,
    run_option,
    click.option(
        "--fingerprint",
        metavar="FP",
        help="All tasks that failed with this fingerprint.",
        shell_complete=complete_causes,
    ),
    click.option("--downstream", metavar="NAME", help="With --fingerprint: only tasks that call this."),
    click.option(
        "--class",
        "failure_class",
        type=click.Choice([str(one) for one in FailureClass]),
        help="Only tasks whose latest failure has this class.",
    ),
    click.option(
        "--only",
        multiple=True,
        type=click.Choice([str(one) for one in TaskState], case_sensitive=False),
        help="Only tasks in this state; repeatable.",
    ),
    click.option("--yes", is_flag=True, help="Several tasks by glob, --class or --only: do not ask."),
    reason_option,
    click.option("--dry-run", is_flag=True, help="Print the changes without making them."),
    json_option,
    ssh_options,
)
requeue_options = options(
    click.option("--canary", is_flag=True, help="One task first; the others when it has succeeded, at the rate."),
    click.option("--rate", metavar="N/s", help="At most N starts per second."),
    click.option("--not-before", metavar="DURATION", help="Start after this time."),
    click.option("--at", metavar="TIME", help="Not before this time: 06:00, or 2026-04-25T06:00."),
    click.option("--timeout", metavar="DURATION", help="Another timeout for this attempt."),
    click.option("--param", "param", multiple=True, metavar="NAME=VALUE", help="Another parameter for this attempt."),
    click.option("--single-shot", is_flag=True, help="One attempt only."),
    click.option("--keep-count", is_flag=True, help="Keep the failure count: no fresh budget."),
    click.option("--new-key", is_flag=True, help="A new idempotency key: repeat effects of earlier attempts."),
    click.option("--cascade", is_flag=True, help="Also run successful descendants again."),
)
simulating_options = options(
    click.option("--policy", "policies", multiple=True, metavar="POLICY", help="Which to compare; default: all."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the random numbers."),
    json_option,
)


def seconds_of(text: str) -> float:
    """Seconds of a duration as ``10m``. Raises click.UsageError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
