"""``redrive help``: the pages of the manual."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from ..manual import TOPICS, UnknownTopic, load_topic, load_topics, page_lines
from ..text.pieces import plain
from ..text.text import echo
from .group import cli, command


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(topic.name, help=topic.summary) for topic in load_topics() if topic.name.startswith(incomplete)
    ]


@command("help")
@click.argument("words", nargs=-1, metavar="[TOPIC|COMMAND]", shell_complete=complete_topics)
@click.pass_context
def print_topic(context: click.Context, words: tuple[str, ...]) -> None:
    if not words:
        echo(topic_list())
    elif words[0] in TOPICS:
        for line in page_lines(load_topic(words[0]).text):
            echo(plain(line).rstrip())
    else:
        echo(_command_help(context, words))


def _command_help(context: click.Context, words: Sequence[str]) -> str:
    """The help of a command, as ``schedule start``. Raises UnknownTopic."""
    found: click.Command = cli
    at = context.parent
    for word in words:
        inner = found.get_command(context, word) if isinstance(found, click.Group) else None
        if inner is None:
            raise UnknownTopic(" ".join(words), cli.list_commands(context))
        found, at = inner, click.Context(inner, info_name=word, parent=at)
    return found.get_help(at or context)


def topic_list() -> str:
    """The topics of the manual, one line each."""
    topics = load_topics()
    width = max(len(topic.name) for topic in topics)
    lines = [f"  {topic.name:{width}}  {topic.summary}" for topic in topics]
    return "\n".join(
        ["redrive help TOPIC prints a page of the manual:", "", *lines, "", "redrive COMMAND --help: options."]
    )
