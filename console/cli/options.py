"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

import click

from .completion import complete_causes, complete_runs, complete_targets
from .group import ExitCode

if TYPE_CHECKING:
    from ...engine.statefile.state_files import ActTargets
    from ..sessions.address import Endpoint, SshOptions

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
        from getpass import getpass

        return getpass(f"{name}: ")
    if value != "-" and not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    from pathlib import Path

    try:
        text = sys.stdin.read() if value == "-" else Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        text_like_it = f"; the text {value!r} itself is {'@' + value!r}" if value.startswith("@") else ""
        raise click.UsageError(f"--param {name}={value}: cannot be read: {why}{text_like_it}") from None
    return text.removesuffix("\n").removesuffix("\r")


def is_storable(text: str) -> bool:
    """Whether a command-line argument is valid UTF-8; SQLite and JSON cannot store other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class NamedFile:
    """The state file that a command line names. ``name``: a path or an ssh address; None for the default file.

    ``hosts``: all of several hosts, in place of one name.
    """

    name: str | None
    ssh: SshOptions
    hosts: tuple[str, ...] = ()

    def to_read(self) -> Endpoint:
        """The state file of a command that only reads. Raises RedriveError."""
        from ..sessions.address import Endpoint
        from ..sessions.target import existing_target

        return Endpoint(existing_target(self.name), self.ssh)

    def to_change(self, targets: ActTargets | None = None) -> Endpoint:
        """The state file of a command that changes a run. Of several candidates it prints the command for each.

        ``targets``: what the command names; files without it are no candidates.
        """
        from ..sessions.address import Endpoint
        from ..sessions.target import is_remote

        target = file_to_change(self.name, targets)
        if is_remote(target):
            from .state_files import choose_file

            target = choose_file(Endpoint(target, self.ssh), to_act=True)
        return Endpoint(target, self.ssh)


def file_to_change(name: str | None, targets: ActTargets | None = None) -> str:
    """The file or host that a command changes. Of several candidates it prints the command for each, and exits."""
    from ..sessions.target import AmbiguousTargetError, acting_target

    try:
        return acting_target(name, targets)
    except AmbiguousTargetError as error:
        from ..text.text import echo, echo_lines

        echo(f"redrive: {error}", err=True)
        echo_lines(error.commands(sys.argv[1:]), err=True)
        raise click.exceptions.Exit(ExitCode.BAD_USAGE) from None


def named_once(target: str | None, state: str | None) -> str | None:
    """The state file that is named as the argument or with ``--state``. Raises UsageError for two different ones."""
    if target and state and target != state:
        raise click.UsageError("name the state file once: as the argument or with --state")
    return state if target is None else target


def _hosts(first: str | None, more: tuple[str, ...]) -> tuple[str, ...]:
    """All hosts, if more than one is named. Raises UsageError for what is no host."""
    named = (first, *more) if first is not None and more else ()
    for name in named:
        if not name.startswith("ssh://") or "/" in name.removeprefix("ssh://"):
            raise click.UsageError(f"{name!r} is no host: several targets are hosts, as ssh://a ssh://b")
    return named


def with_file(function: Command) -> Command:
    """Pass a command the parameters ``target``, ``state``, ``python`` and ``ssh_option`` as one NamedFile."""

    @wraps(function)
    def command(
        *,
        target: str | None = None,
        state: str | None = None,
        python: str | None = None,
        ssh_option: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
        **given: object,
    ) -> object:
        from ..sessions.address import SshOptions

        name = named_once(target, state)
        file = NamedFile(name, SshOptions(python or "python3", ssh_option), _hosts(name, hosts))
        return function(file, **given)

    return command


state_option = click.option(
    "--state", metavar="TARGET", help="State file, or ssh://[user@]host[:port]/path.", shell_complete=complete_targets
)
target_argument = click.argument("target", required=False, shell_complete=complete_targets)
hosts_argument = click.argument("hosts", nargs=-1, metavar="[ssh://HOST]...")
run_option = click.option(
    "--run", "run_id", metavar="RUN", help="Default: the latest run.", shell_complete=complete_runs
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value a line.")
follow_option = click.option("--follow", is_flag=True, help="Continue with new events.")
reason_option = click.option("--reason", metavar="TEXT", default="", help="The reason, for the journal.")
ssh_options = options(
    click.option("--python", metavar="PATH", help="Remote Python (>= 3.6); default python3."),
    click.option("--ssh-option", multiple=True, metavar="OPTION", help="Passed to ssh as -o OPTION."),
    with_file,
)
fingerprint_option = click.option(
    "--fingerprint",
    required=True,
    metavar="FP",
    help="Of the cause, from `redrive inbox`.",
    shell_complete=complete_causes,
)
file_options = options(target_argument, state_option, json_option, ssh_options)
run_options = options(state_option, run_option, json_option, ssh_options)
reading_options = options(target_argument, run_options)

serving_options = options(
    click.option("--state", metavar="PATH", help="State file; default: <flow>.db in the default place."),
    click.option("--max-parallel", type=click.IntRange(1, 10_000), metavar="N", help="Attempts at a time."),
    click.option("--dask", metavar="ADDRESS", envvar="REDRIVE_DASK", help="Dask scheduler for isolation='dask'."),
    click.option(
        "--durability",
        type=click.Choice(["normal", "full"]),
        default="normal",
        show_default=True,
        envvar="REDRIVE_DURABILITY",
        help="Which changes wait for the disk: those that are reported, or all.",
    ),
)
running_options = options(
    serving_options,
    click.option("--plain", is_flag=True, help="One line per event instead of the console."),
    click.option("--output", is_flag=True, help="The output of the tasks, between the lines of --plain."),
    click.option("--quiet", is_flag=True, help="For cron: print nothing unless the run needs a human."),
    click.option("--detach", is_flag=True, help="Start the executor in the background."),
    click.option("--stay", is_flag=True, help="When blocked, wait for an operator instead of ending."),
    click.option("--wait", is_flag=True, help="Wait for another executor to leave the state file."),
)


def seconds_of(text: str, option: str = "") -> float:
    """Seconds of a duration as ``10m``. Raises click.UsageError, which names the option."""
    from ...engine.core.option_types import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}" if option else str(error)) from None
