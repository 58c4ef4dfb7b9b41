"""``redrive help``: the pages of the manual."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ..manual import TOPICS, load_topic, load_topics, page_lines
from ..text.pieces import plain
from ..text.text import echo
from .group import cli, command


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(topic.name, help=topic.summary) for topic in load_topics() if topic.name.startswith(incomplete)
    ]


@command("help")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.pass_context
def print_topic(context: click.Context, topic: str | None) -> None:
    found = None if topic is None else cli.get_command(context, topic)
    if topic is None:
        echo(topic_list())
    elif topic in TOPICS or found is None:
        for line in page_lines(load_topic(topic).text):
            echo(plain(line).rstrip())
    else:
        echo(found.get_help(click.Context(found, info_name=topic, parent=context.parent)))


def topic_list() -> str:
    """The topics of the manual, one line each."""
    topics = load_topics()
    width = max(len(topic.name) for topic in topics)
    lines = [f"  {topic.name:{width}}  {topic.summary}" for topic in topics]
    return "\n".join(
        ["redrive help TOPIC prints a page of the manual:", "", *lines, "", "redrive COMMAND --help: options."]
    )
