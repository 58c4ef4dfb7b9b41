"""``redrive help``: the pages of the manual, and all of it as a page for ``man``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import CompletionItem

from ... import __version__
from ..manual import TOPICS, Topic, load_topic, load_topics, page_lines
from ..text.pieces import Line, Role, plain
from ..text.text import echo
from .group import EXIT_CODES_HELP, GRAMMAR, SECTIONS, cli, command


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(topic.name, help=topic.summary) for topic in load_topics() if topic.name.startswith(incomplete)
    ]


@command("help")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--man", "as_man_page", is_flag=True, help="Commands, options and topics as one page for man.")
@click.pass_context
def print_topic(context: click.Context, topic: str | None, as_man_page: bool) -> None:
    found = None if topic is None else cli.get_command(context, topic)
    if as_man_page:
        echo(man_page(), nl=False)
    elif topic is None:
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


# --- The page for ``man``: the commands with their options, and the topics of the manual, as roff (man(7)) -----------
#
# A wheel installs it. Letters beyond ASCII are named, so that it can be read in every locale.


_LEFT_OUT = frozenset({"changes", "commands", "exit-codes"})  # the page has sections of its own for two of them
_SPECIAL = {"|": r"|\:", "\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}


def man_page() -> str:
    """The whole page."""
    context, summary = click.Context(cli, info_name="redrive"), (cli.help or "").partition(".")[0]
    lines = [
        f'.TH REDRIVE 1 "" "redrive {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        *_section("NAME", [f"redrive \\- {_text(summary[:1].lower() + summary[1:])}"]),
        *_section("SYNOPSIS", [r"\fBredrive\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]"]),
        *_section("DESCRIPTION", [_text(cli.help or ""), ".PP", *(_text(text) for text in GRAMMAR), ".PP"]),
        _text("Without a command: the console, if several state files are here; else the list of commands."),
        ".SH COMMANDS",
    ]
    for heading, section in SECTIONS.items():
        lines.append(f".SS {_text(heading)}")
        for listed in section:
            if (command := cli.get_command(context, listed.name)) is not None:
                lines += _command(command, click.Context(command, info_name=listed.name, parent=context))
    lines += _section("EXIT STATUS", [_text(EXIT_CODES_HELP)])
    for topic in load_topics():
        if topic.name not in _LEFT_OUT:
            lines += _topic(topic)
    return "\n".join(lines) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f'.SH "{title}"', *lines]


def _text(text: str) -> str:
    """A text as roff prints it, in one line that is no request."""
    return _raw(" ".join(text.split()))


def _raw(text: str) -> str:
    """As ``_text``, with the blanks of the text: for a part of a line."""
    escaped = "".join(_SPECIAL.get(letter) or _letter(letter) for letter in text)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def _letter(letter: str) -> str:
    return letter if letter.isascii() else rf"\[u{ord(letter):04X}]"


# --- Commands, from their declarations -------------------------------------------------------------------------------


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """A command with its help and its options; after a group, its commands."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (".TP", rf"\fB{_text(context.command_path)}\fR {_text(usage)}".rstrip())
    paragraphs = [part for part in (command.help or "").split("\n\n") if part.strip()]
    for place, paragraph in enumerate(paragraphs):
        yield from (".IP",) if place else ()
        yield _text(paragraph.replace("\b", ""))
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    options = [record for record in records if record is not None and record[1] and "--help" not in record[0]]
    if options:
        yield ".RS"
        for flags, text in options:
            yield from (".TP", rf"\fB{_text(flags)}\fR", _text(text))
        yield ".RE"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None and not below.hidden:
                yield from _command(below, click.Context(below, info_name=name, parent=context))


# --- Topics, as ``redrive help`` prints them -------------------------------------------------------------------------


_BOLD = frozenset({Role.KEY, Role.STRONG})


def _topic(topic: Topic) -> Iterator[str]:
    yield f'.SH "{_text(topic.name.upper())}"'
    yield _text(f"{topic.summary[:1].upper()}{topic.summary[1:]}.")
    yield from (".PP", ".in 2n", ".nf", *map(_line, page_lines(topic.text)[1:]), ".fi")


def _line(line: Line) -> str:
    """A line of a page, its headings and its code in bold."""
    parts = (rf"\fB{_raw(piece.text)}\fR" if piece.role in _BOLD else _raw(piece.text) for piece in line)
    return "".join(parts).rstrip()
