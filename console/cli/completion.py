"""Shell completion: its script, and the tasks, runs and causes of the state file that the command line names.

A completion that fails offers nothing: an error message would end up in the line that the user types.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import click
from click import shell_completion as shells
from click.shell_completion import CompletionItem

from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ...engine.statefile.paths import default_paths
from ...engine.statefile.reader import read_or
from ...engine.store import runs
from ..sessions.target import MACHINE, NamedTargets, existing_target, name_run, one_run
from ..text.text import is_remote, one_line
from .group import cli, command

RUNS_MAX = 100
Row = TypeVar("Row")
_VARIABLE = "_REDRIVE_COMPLETE"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def print_script(shell: str) -> None:
    """As: eval "$(redrive completion bash)"."""
    completion = shells.get_completion_class(shell)
    assert completion is not None  # click.Choice admits only shells that click knows
    click.echo(completion(cli, {}, "redrive", _VARIABLE).source())


@shells.add_completion_class
class BashCompletion(shells.BashComplete):
    """Completion in bash, which inserts words as they are: each is quoted here. zsh and fish quote by themselves.

    bash divides words also at ``@``, ``:`` and ``=``, and replaces what stands behind the last of them, with the ``@``.
    """

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
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_PART="${COMP_WORDS[COMP_CWORD]}" \
        COMP_BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the word at it."""
        line = os.environ.get("COMP_LINE")
        if line is None:  # a script of an earlier version
            return super().get_completion_args()
        _, *words = shells.split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        part = os.environ["COMP_PART"].strip(os.environ["COMP_BREAKS"])
        part = "".join(shells.split_arg_string(part))
        self._shell_part = incomplete.removesuffix(part).removesuffix("@") if incomplete.endswith(part) else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Quote with backslashes, so that the word goes on as it was typed, without what bash keeps of it."""
        return f"{item.type}," + _SHELL_UNSAFE.sub(r"\\\g<0>", str(item.value).removeprefix(self._shell_part))

    _shell_part = ""  # of the word, which bash leaves as it is


@shells.add_completion_class
class FishCompletion(shells.FishComplete):
    """Completion in fish; click's script ends a name at its first comma."""

    source_template = shells.FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


@shells.add_completion_class
class ZshCompletion(shells.ZshComplete):
    """Completion in zsh, whose ``_describe`` takes a backslash for the quote of a colon."""

    def format_completion(self, item: CompletionItem) -> str:
        value = item.value.replace("\\", "\\\\") if item.help else item.value
        return super().format_completion(CompletionItem(value, item.type, item.help))


_SHELL_UNSAFE = re.compile(r"[^\w.:/@%+,=-]")


def complete_words(
    context: click.Context, incomplete: str, *, has_runs: bool, has_tasks: bool, is_one: bool
) -> list[CompletionItem]:
    """Complete ``[FLOW[@RUN]] [TASK]...``: flows, behind their ``@`` runs with their states, then tasks.

    ``is_one``: only one word names a flow.
    """
    words = context.params.get("words") or ()
    is_first = not (words and is_one) and not context.params.get("state")
    if is_first and has_runs and "@" in incomplete:
        return _complete_runs(context, incomplete)
    tasks = _complete_tasks(context, incomplete) if has_tasks else []
    if not is_first:
        return tasks
    flows = [CompletionItem(name, help="flow") for name in _flows() if name.startswith(incomplete)]
    if has_runs and len(flows) == 1:  # the shell adds no space, and the next key may be @
        flows.append(CompletionItem(f"{flows[0].value}@", help="a run of it"))
    return [*flows, *tasks] or [CompletionItem(incomplete, type="file")]


def _complete_runs(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Runs of the flow before the ``@``, the latest first."""
    flow, _, _ = incomplete.rpartition("@")
    found = _read(flow or None, lambda connection: lists.query(connection, lists.RUN_NAMES, {"limit": RUNS_MAX}))
    return _items(((f"{flow}@{run.run_id}", run.state) for run in found), incomplete)


def _complete_tasks(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Tasks of the run that the command line names, without those that it has."""
    words = context.params.get("words") or ()
    names = _names(context, runs.TASK_NAMES)
    return _items(((name, state) for name, state in names if name not in words), incomplete)


def _flows() -> list[str]:
    """Flows whose state files are in the default place, with names that can be typed."""
    names = [os.path.splitext(os.path.basename(path))[0] for path in default_paths()]
    return [name for name in names if one_line(name) == name]


def complete_fingerprints(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Complete the fingerprint of a failed task."""
    return _items(_names(context, runs.CAUSE_NAMES), incomplete)


def _names(context: click.Context, sql: str) -> Sequence[tuple[str, str]]:
    """Names in the state file and the run of the command line. Click leaves words in ``args`` while an option lacks its
    value."""
    words = [*(context.params.get("words") or ()), *context.args]
    named = NamedTargets(context.params.get("state"), context.params.get("run_id"))
    try:
        if named.state is None and words and (found := name_run(words[0], MACHINE)):
            named = found if found.state is None or MACHINE.is_place(found.state) else named
    except RedriveError:
        return []

    def read(connection: sqlite3.Connection) -> list[tuple[str, str]]:
        known = lists.query(connection, lists.RUN_NAMES, {})
        run_id = None if named.run is None else one_run(named.run, known, named.state or "")
        return runs.read_names(connection, sql, run_id)

    return _read(named.state, read)


def _read(state: str | None, read: Callable[[sqlite3.Connection], Sequence[Row]]) -> Sequence[Row]:
    """Read a state file of this machine; nothing where it cannot be read."""
    try:
        path = existing_target(state)
    except (RedriveError, OSError):
        return []
    return [] if is_remote(path) else read_or(path, read, [])


def _items(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """Offer the names that a line of the terminal shows as they are, and that the command reads as names.

    Another cannot be typed; one that begins with a dash would be an option that a stranger chose.
    """

    def is_offered(name: str) -> bool:
        return name.startswith(incomplete) and one_line(name) == name and not name.startswith("-")

    return [CompletionItem(name, help=one_line(about)) for name, about in names if is_offered(name)]
