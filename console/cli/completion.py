"""Shell completion: its script, and the tasks, runs and causes of the state file that the command line names.

A completion that fails offers nothing: an error message would end up in the line that the user types.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
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
from .group import cli, command

if TYPE_CHECKING:
    from ...engine.store.runs import Name

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
