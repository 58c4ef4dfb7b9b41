"""Shell completion: its script, and the tasks, runs and causes of the state file that the command line names.

A completion that fails offers nothing: an error message would end up in the line that the user types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from ...engine.errors import RedriveError

if TYPE_CHECKING:
    from ...engine.store.name_lists import Name

_VARIABLE = "_REDRIVE_COMPLETE"


def print_script(command: click.Command, shell: str) -> None:
    """Print the script that a shell evaluates once, at its start."""
    completion = get_completion_class(shell)
    assert completion is not None  # click.Choice admits only shells that click knows
    click.echo(completion(command, {}, "redrive", _VARIABLE).source())


def complete_tasks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks of the run, without those that the command line has."""
    from ...engine.store import name_lists

    given = frozenset(context.params.get(parameter.name or "") or ())
    names = _names(context, name_lists.TASKS)
    return _items((name for name in names if name.name not in given), incomplete)


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs, the latest first."""
    from ...engine.store import name_lists

    return _items(_names(context, name_lists.RUNS), incomplete)


def complete_causes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fingerprints of failed tasks."""
    from ...engine.store import name_lists

    return _items(_names(context, name_lists.CAUSES), incomplete)


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topics of the manual."""
    from .. import manual

    topics = manual.load_topics()
    return [CompletionItem(topic.name, help=topic.summary) for topic in topics if topic.name.startswith(incomplete)]


def _names(context: click.Context, sql: str) -> list[Name]:
    import sqlite3

    from ...engine.store.name_lists import read_names
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
    return context.params.get("target") or context.params.get("state") or positional


def _items(names: Iterable[Name], incomplete: str) -> list[CompletionItem]:
    from ..text.text import one_line

    return [CompletionItem(one_line(n.name), help=one_line(n.help)) for n in names if n.name.startswith(incomplete)]
