"""Options that several commands share, and the completion of their values in a shell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from ...engine.errors import RedriveError
from .main import ExitCode, cli, command

if TYPE_CHECKING:
    from ...engine.statefile.state_files import ActTargets
    from ...engine.store.runs import Name
    from ..sessions.address import Endpoint, SshOptions

# --- Completion ------------------------------------------------------------------------------------------------------
#
# Shell completion: its script, and the tasks, runs and causes of the state file that the command line names.
#
# A completion that fails offers nothing: an error message would end up in the line that the user types.


_VARIABLE = "_REDRIVE_COMPLETE"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def print_script(shell: str) -> None:
    completion = get_completion_class(shell)
    assert completion is not None  # click.Choice admits only shells that click knows
    click.echo(completion(cli, {}, "redrive", _VARIABLE).source())


@add_completion_class
class BashCompletion(BashComplete):
    """Completion in bash, which inserts words as they are: each is quoted here. zsh and fish quote by themselves."""

    source_template = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def format_completion(self, item: CompletionItem) -> str:
        """Quote with backslashes, so that the word goes on as it was typed."""
        return f"{item.type},{_SHELL_UNSAFE.sub(_backslash, str(item.value))}"


@add_completion_class
class FishCompletion(FishComplete):
    """Completion in fish; click's script ends a name at its first comma."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


@add_completion_class
class ZshCompletion(ZshComplete):
    """Completion in zsh, whose ``_describe`` takes a backslash for the quote of a colon."""

    def format_completion(self, item: CompletionItem) -> str:
        value = item.value.replace("\\", "\\\\") if item.help else item.value
        return super().format_completion(CompletionItem(value, item.type, item.help))


_SHELL_UNSAFE = re.compile(r"[^\w.:/@%+,=-]")


def _backslash(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks of the run, without those that the command line has."""
    from ...engine.store import runs

    given = frozenset(context.params.get(parameter.name or "") or ())
    names = _names(context, runs.TASK_NAMES)
    return _items((name for name in names if name.name not in given), incomplete)


def complete_targets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Flows whose state files are in the default place, and files."""
    from ...engine.statefile.paths import default_paths
    from ..text.text import one_line

    names = [os.path.splitext(os.path.basename(path))[0] for path in default_paths()]
    flows = [CompletionItem(one_line(name), help="flow") for name in names if name.startswith(incomplete)]
    return [*flows, CompletionItem(incomplete, type="file")]


def complete_target_and_tasks(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Tasks; as the first word, without --state, also flows, whose tasks the words behind it name, and files."""
    words = context.params.get(parameter.name or "") or ()
    tasks = complete_tasks(context, parameter, incomplete)
    if words or context.params.get("state"):
        return tasks
    *flows, files = complete_targets(context, parameter, incomplete)
    return [*flows, *tasks] or [files]


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs, the latest first."""
    from ...engine.store import runs

    return _items(_names(context, runs.RUN_NAMES), incomplete)


def complete_causes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fingerprints of failed tasks."""
    from ...engine.store import runs

    return _items(_names(context, runs.CAUSE_NAMES), incomplete)


def _names(context: click.Context, sql: str) -> list[Name]:
    import sqlite3

    from ...engine.store.runs import read_names
    from ..sessions.target import existing_target, is_remote

    try:
        path = existing_target(_target(context))
        return [] if is_remote(path) else read_names(path, sql, context.params.get("run_id"))
    except (RedriveError, sqlite3.Error, OSError):
        return []


def _target(context: click.Context) -> str | None:
    """The state file on the command line. Click leaves it in ``args`` while an option lacks its value."""
    takes_target = any(parameter.name == "target" for parameter in context.command.params)
    positional = context.args[0] if takes_target and context.args else None
    named = context.params.get("target") or context.params.get("state") or positional
    words = context.params.get("names") or ()
    return named or (words[0] if words and _is_flow(words[0]) else None)


def _is_flow(word: str) -> bool:
    """Whether the default place has the state file of a flow of this name."""
    from ...engine.statefile.paths import default_paths

    return any(os.path.basename(path) == f"{word}.db" for path in default_paths())


def _items(names: Iterable[Name], incomplete: str) -> list[CompletionItem]:
    """Offer the names that a line of the terminal shows as they are, and that the command reads as names.

    Another cannot be typed; one that begins with a dash would be an option that a stranger chose.
    """
    from ..text.text import one_line

    def is_offered(name: str) -> bool:
        return name.startswith(incomplete) and one_line(name) == name and not name.startswith("-")

    return [CompletionItem(name.name, help=one_line(name.help)) for name in names if is_offered(name.name)]


# --- Options ---------------------------------------------------------------------------------------------------------
#


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
