"""Options that several commands share."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial, wraps
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem

from ...engine.domain.text import advised, did_you_mean, place_words, shell_command
from ...engine.errors import RedriveError
from .group import ExitCode

if TYPE_CHECKING:
    from ...engine.core.projection import RunProjection, TaskRow
    from ...engine.domain.events import Json
    from ..sessions.address import Endpoint, SshOptions

CommandFunction = Callable[..., object]
CommandDecorator = Callable[[CommandFunction], CommandFunction]

_COMMAND_ID = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{7,63}")


def options(*decorators: CommandDecorator) -> CommandDecorator:
    """Several options as one decorator; help shows them in this order."""

    def decorate(function: CommandFunction) -> CommandFunction:
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
    """The state file and the run that a command line names. ``name``: a path or an ssh address; None: the default.

    ``run``: as it was typed; None: the latest. ``tasks``: names and globs. ``hosts``: all of several hosts, in place of
    one name.
    """

    name: str | None
    ssh: SshOptions
    run: str | None = None
    tasks: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def to_read(self) -> Endpoint:
        """The state file of a command that only reads. Raises RedriveError."""
        from ..sessions.address import Endpoint
        from ..sessions.target import existing_target

        return Endpoint(existing_target(self.name), self.ssh, self.run)

    def to_change(self, fingerprint: str | None = None) -> Endpoint:
        """The state file of a command that changes a run. Of several candidates it prints the command for each.

        Files without the run, the tasks or the ``fingerprint`` that the command names are no candidates.
        """
        from ...engine.statefile.state_files import ActTargets
        from ..sessions.address import Endpoint
        from ..sessions.target import acting_target, is_host

        runs = () if self.run is None else (self.run,)
        targets = ActTargets(runs, self.tasks, fingerprint) if runs or self.tasks or fingerprint else None
        with _printed_choices():
            target = acting_target(self.name, targets, self.run if f"@{self.run}" in sys.argv else None)
        endpoint = Endpoint(target, self.ssh, self.run)
        if not is_host(target):
            return endpoint
        from .hosts import choose_file

        return choose_file(endpoint, to_act=True)


@contextmanager
def _printed_choices() -> Iterator[None]:
    """Print the command for each choice, and exit, where the block finds that the command line could mean several."""
    from ..sessions.target import AmbiguousTargetError

    try:
        yield
    except AmbiguousTargetError as error:
        from ..text.text import echo, echo_lines

        names = _command_names()
        typed = sys.argv[1 + len(names) :] if sys.argv[1:2] == names[:1] else sys.argv[2:]
        echo(f"redrive: {error}", err=True)
        echo_lines(error.commands(names, typed), err=True)
        raise click.exceptions.Exit(ExitCode.BAD_USAGE) from None


class NoSuchTaskError(RedriveError):
    """The run has no task of a name that was typed."""

    def __init__(self, projection: RunProjection, name: str) -> None:
        run, self.name, self.meant = projection.run, name, did_you_mean(name, projection.tasks)
        super().__init__(f"{run.dag_name}: run {run.run_id} has no task {name!r}{self.meant}")


def rows_like(projection: RunProjection, patterns: Sequence[str]) -> list[TaskRow]:
    """The tasks of the given names and globs, in the order of the flow; without one, all.

    Raises NoSuchTaskError if one fits no task.
    """
    tasks, names = projection.tasks, set(() if patterns else projection.tasks)
    for pattern in patterns:
        found = {pattern} & tasks.keys() or {name for name in tasks if fnmatchcase(name, pattern)}
        if not found:
            raise NoSuchTaskError(projection, pattern)
        names |= found
    return sorted((tasks[name] for name in names), key=lambda row: row.position)


def _command_names() -> list[str]:
    """The words that name the command which runs, as ``systems``, ``pages``."""
    context: click.Context | None = click.get_current_context()
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    return names


@dataclass(eq=False)
class TargetWords(click.types.StringParamType):
    """The words ``[FLOW[@RUN]] [TASK]...`` of all commands; ``target.name_words`` reads them.

    Attributes:
        run: FLOW may be followed by ``@RUN``.
        tasks: tasks may follow.
        acts: the command changes runs: always, or with one of these options.
        hosts: several ``ssh://`` hosts may stand in the place of FLOW.
        old_run: a word that is no flow is a run, as the command took one before.
        several: any number of ``FLOW[@RUN]``.
        needed: the word that must be there.
        local: the command is about this machine alone.
    """

    name = "words"
    run: bool = True
    tasks: bool = False
    acts: bool | tuple[str, ...] = False
    hosts: bool = False
    old_run: bool = False
    several: bool = False
    needed: Literal["flow", "task", ""] = ""
    local: bool = False

    def usage(self) -> str:
        """The words in the line of the usage."""
        flow = "FLOW[@RUN]" if self.run else "FLOW"
        words = [flow if self.needed == "flow" else f"[{flow}]"]
        words[0] += "..." * self.several
        words += ["[ssh://HOST]..."] * self.hosts
        words += ["TASK..." if self.needed == "task" else "[TASK]..."] * self.tasks
        return " ".join(words)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete flows, then runs; then tasks."""
        from .completion import complete_words

        return complete_words(ctx, incomplete, has_runs=self.run, has_tasks=self.tasks, is_one=not self.several)

    def declare(self, function: CommandFunction) -> CommandFunction:
        """Declare the words, and pass the function what they name: a NamedFile, or several."""

        @wraps(function)
        def command(
            *,
            words: tuple[str, ...],
            python: str | None = None,
            become: str | None = None,
            ssh_option: tuple[str, ...] = (),
            state: str | None = None,
            run_id: str | None = None,
            run_ids: tuple[str, ...] = (),
            **given: object,
        ) -> object:
            from ..sessions.address import SshOptions
            from ..sessions.target import MACHINE

            ssh = SshOptions(python or "python3", ssh_option, become)
            acts = self.acts if isinstance(self.acts, bool) else any(given[name] for name in self.acts)
            if self.needed == "flow" and not (words or state or run_id):
                raise click.UsageError("name a flow")
            with _printed_choices():
                if self.several:
                    files = [self.read((word,), ssh, state, None) for word in words]
                    if any(file.name is None for file in files) and any(file.name and not state for file in files):
                        raise click.UsageError("write each run as FLOW@RUN: a run alone and a flow are two runs")
                    files += [self.read((), ssh, state, run) for run in run_ids]
                    return function(files or [self.read((), ssh, state, None)], **given)
                file = self.read(words, ssh, state, run_id, acts=acts)
            if self.needed == "task" and not file.tasks:
                raise click.UsageError("name a task")
            try:
                return function(file, **given)
            except NoSuchTaskError as error:
                flow = next(filter(MACHINE.is_place, words), None) if file.name is None else None
                if flow is not None:
                    others = [word for word in words if word != flow]
                    meant = shell_command(["redrive", *_command_names(), flow, *others])
                    raise RedriveError(f"{error}; the flow comes first: {meant}") from None
                is_first = file.name is None and error.name == words[0]
                also = f"; nor is there a flow or a state file {error.name!r}" if is_first else ""
                see = "" if error.meant else f"; see: {advised('tasks', file.name or '', file.run)}"
                raise RedriveError(f"{error}{also}{see}") from None

        named = click.argument("words", nargs=-1, type=self, metavar=self.usage())
        old = (
            click.option("--state", hidden=True),
            click.option("--run", "run_ids" if self.several else "run_id", multiple=self.several, hidden=True),
        )
        return options(named, *old[: 1 + self.run], *(() if self.local else _ssh_options))(command)

    def read(
        self, words: Sequence[str], ssh: SshOptions, state: str | None, run: str | None, *, acts: bool = False
    ) -> NamedFile:
        """Read the words, and the options that stood in their place before. Raises UsageError, RedriveError."""
        from ..sessions.target import MACHINE, NamedTargets, name_run, name_words
        from ..text.text import is_remote, split_address

        if self.hosts and len(words) > 1:
            for name in words:
                if not is_remote(name) or split_address(name)[1]:
                    raise click.UsageError(f"{name!r} is no host: several targets are hosts, as ssh://a ssh://b")
            return NamedFile(None, ssh, hosts=tuple(words))
        if self.tasks:
            named = NamedTargets(tasks=tuple(words)) if state is not None else name_words(words, MACHINE, acts=acts)
        elif len(words) > 1:
            raise click.UsageError(f"{words[1]!r} is too much: {' '.join(_command_names())} takes {self.usage()}")
        else:
            named = name_run(words[0], MACHINE) if words else NamedTargets()
        old = [part for part in (("--state", state), ("--run", run)) if part[1] is not None]
        if (
            self.old_run
            and named.run is None
            and named.state is not None
            and (state or not MACHINE.is_place(named.state))
        ):
            old, named = [(named.state or "", ""), *old], NamedTargets(run=named.state)
        if len({named.state, state, None}) > 2:
            raise click.UsageError("name the state file once: as the first word")
        if len({named.run, run, None}) > 2:
            raise click.UsageError("name the run once: behind the @ of the first word")
        found = NamedFile(named.state if state is None else state, ssh, named.run or run, named.tasks)
        if found.run is not None and not self.run:
            raise click.UsageError(f"{_command_names()[0]} is about the whole state file: leave @{found.run} out")
        _print_reading(words, found, old, named.also)
        return found


def _print_reading(
    words: Sequence[str], file: NamedFile, old: Sequence[tuple[str, str | None]], also: str | None
) -> None:
    """Say how the words are written now, and how else they could be read. ``also``: a file with a task of that name."""
    from ..text.text import echo, one_line

    place = place_words(file.name or "", file.run)
    if old and "--run" not in place:
        typed = shell_command(part for pair in old for part in pair if part)
        said = "is now the first word" if typed.startswith("--") else "is no flow, and read as the run"
        echo(f"redrive: {typed} {said} {shell_command(place)}", err=True)
    if also is not None:
        task = shell_command(["redrive", *_command_names(), also, *words])
        echo(one_line(f"redrive: {words[0]!r} is read as the flow; as a task it is: {task}"), err=True)


_ssh_options = (
    click.option("--python", metavar="PATH", help="Remote Python (>= 3.6); default python3."),
    click.option("--ssh-option", multiple=True, metavar="OPTION", help="Passed to ssh as -o OPTION."),
    click.option("--become", metavar="USER", help="The user over there who reads and acts, by sudo -n."),
)


def complete_causes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the fingerprint of a failure."""
    from .completion import complete_fingerprints

    return complete_fingerprints(context, incomplete)


class Number(click.IntRange):
    """A whole number; what is none is called so in errors."""

    name = "number"


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value a line.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
trust_option = click.option("--trust", is_flag=True, help="Run the flow file also if other users may have written it.")
follow_option = click.option("--follow", is_flag=True, help="Continue with new events.")


def cause_option(explanation: str, *, required: bool = False) -> CommandDecorator:
    """``--fingerprint`` of a command."""
    of_cause = partial(click.option, "--fingerprint", metavar="FP", shell_complete=complete_causes)
    return of_cause(help=explanation, required=required)


def param_option(explanation: str) -> CommandDecorator:
    """``--param`` of a command, read by ``params_of``."""
    return click.option("--param", multiple=True, metavar="NAME=VALUE", help=explanation)


def _give_ids(context: click.Context, option: click.Parameter, first: str | None) -> None:
    """Let the commands of this process have ``first`` as their id, the second one ``first/2``."""
    if first is not None:
        if not _COMMAND_ID.fullmatch(first):
            raise click.BadParameter("an id has 8 to 64 letters, digits, dashes and dots")
        from ..sessions.session import CommandIds, given_ids  # imports asyncio

        context.call_on_close(partial(given_ids.reset, given_ids.set(CommandIds(first))))


reason_option = options(
    click.option("--reason", metavar="TEXT", default="", help="The reason, for the journal."),
    click.option(
        "--command-id",
        metavar="ID",
        expose_value=False,
        callback=_give_ids,
        help="The id of the act: sent again with the same words, it is done once.",
    ),
)
#: The words of most commands: a run, its tasks, or a whole state file.
of_run, of_tasks, of_file = TargetWords().declare, TargetWords(tasks=True).declare, TargetWords(run=False).declare
to_tasks = TargetWords(tasks=True, acts=True).declare

written_option = click.option("--state", metavar="PATH", help="State file; default: <flow>.db in the default place.")
serving_options = options(
    click.option("--max-parallel", type=Number(1, 10_000), metavar="N", help="Attempts at a time."),
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


def json_of(option: str, text: str) -> Json:
    """Parse a JSON value. Raises UsageError if it is invalid."""
    try:
        value: Json = json.loads(text)
        return value
    except ValueError as error:
        raise click.UsageError(f"{option}: not JSON ({error}); write 42, '{{\"rows\": 0}}' or '\"a text\"'") from None
