"""Every command that the product prints, in its sentences, pages and manual, is one that the group of today reads."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import redrive.console
import redrive.engine
from redrive.console.cli.group import GONE, MOVED, cli
from redrive.console.keys.actions import shell_line
from redrive.engine.domain.acts import ACTS, Act, Scope
from redrive.engine.domain.text import advised, place_words, shell_command
from redrive.engine.statefile.lists import LISTINGS
from support.marks import for_each

FOLDERS = [Path(one.__file__ or "").resolve().parent for one in (redrive.console, redrive.engine)]
SOURCES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py")) if "examples" not in path.parts]
TEXTS = {path: text for path in SOURCES if re.search(r"redrive[ \"']", text := path.read_text())}  # with a command
PAGES = [one for one in sorted((FOLDERS[0] / "manual").glob("*.md")) if one.stem != "changes"]  # what went is there

#: What the elements of a list of words stand for, by the end of their text.
VALUES = {
    "act": "requeue",
    "name": "resume",
    "decision": "acknowledge",
    "listing": "breakers",
    "place": "night.db@r",
    "words": "night.db@r",
    "run": "night.db@r",
    "option": "--only",
}


def parse(words: list[str]) -> click.Context:
    """Read a line as the group does, without running it. Raises UsageError; what is left out at its end is no error."""
    assert words[0] not in MOVED, f"{words[0]!r} is an old word"
    context = click.Context(cli, info_name="redrive")
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        context = command.make_context(context.info_name, list(words), parent=context.parent)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return context
    except click.BadOptionUsage as error:
        if words[-1:] != [error.option_name]:
            raise
    hidden = {one.name for one in command.params if isinstance(one, click.Option) and one.hidden}
    used = {name for name in hidden if context.params.get(name or "")}
    assert not used or (used <= {"run_id", "run_ids"} and "@" in words[words.index("--run") + 1]), used
    return context


# --- The words that are joined in the code ---------------------------------------------------------------------------


def _word(element: ast.expr) -> list[str]:
    if isinstance(element, ast.Constant):
        return [str(element.value)]
    text = ast.unparse(element.value if isinstance(element, ast.Starred) else element)
    last = re.split(r"\W", text.removesuffix("]").removesuffix(")"))
    if isinstance(element, ast.Starred):
        if "_command_names" in text or text in ("command", "MOVED[word]"):
            return ["requeue"]
        is_place = "place_words" in text or text in ("place", "words", "run")
        return ["night.db@r"] if is_place else []
    return [VALUES.get(last[-1], "night.db")]


def _joined() -> Iterator[tuple[str, list[str]]]:
    for path, text in TEXTS.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.List | ast.Tuple) or len(node.elts) < 2:
                continue
            first = node.elts[0]
            is_command = isinstance(first, ast.Constant) and first.value == "redrive"
            if is_command and not (isinstance(second := node.elts[1], ast.Constant) and not second.value):
                words = [word for element in node.elts[1:] for word in _word(element)]
                yield f"{'/'.join(path.parts[-2:])}:{node.lineno}", words


def test_the_words_of_each_command_in_the_code_are_read_by_the_group() -> None:
    joined = dict(_joined())
    assert len(joined) > 25 and {words[0] for words in joined.values()} > {"inbox", "resume", "attach", "requeue"}
    for place, words in joined.items():
        try:
            parse(words)
        except (click.UsageError, AssertionError) as error:
            error.add_note(place)
            raise


SENT = [one for one in ACTS if one.shell == one.name and one.scope in (Scope.TASKS, Scope.RUN)]


@for_each("act", SENT)
@for_each("run", [None, "2026-11-21T02:00+0530", "odd@name it's"])
def test_a_line_of_the_journal_is_read_as_the_act(act: Act, run: str | None) -> None:
    options = {"seconds": 600, "rate_per_second": 5}
    line = shell_line(act.name, "/x/it's a@b.db", run, ["-load", "a b"], "why 'not'", options)
    if line is None:
        return
    context = parse(shlex.split(line)[1:])
    place = place_words("/x/it's a@b.db", None if act.name in ("stop", "reload") else run)
    tasks = ["-load", "a b"] if act.scope is Scope.TASKS else []
    assert context.params["words"] == (place[0], *tasks)
    assert context.params["reason"] == "why 'not'"


def test_the_command_of_an_end_that_nobody_has_acknowledged() -> None:
    words = shlex.split(advised("ack", "ssh://ana@etl/x%40y.db", "night", ["--python", "/opt/py"]))
    assert parse(words[1:]).params["words"] == ("ssh://ana@etl/x%40y.db@night",)


# --- The commands in sentences ---------------------------------------------------------------------------------------


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a source, without its comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


_NAMED = re.compile(r"(?<![\w./'-])redrive ([a-z][a-z-]+)")


def test_a_sentence_of_the_product_names_commands_of_today() -> None:
    commands, found = {*cli.list_commands(click.Context(cli))}, 0
    for path, source in TEXTS.items():
        for line, text in _texts(source):
            for name in _NAMED.findall(text):
                found += name in commands
                assert name not in MOVED and name not in GONE, f"{path}:{line}: {text[:200]}"
    assert found > 100


_END = re.compile(r";|>>?|2>&1|\|\|?|&&")
_CODE = re.compile(r"`(redrive [^`]+)`")


def _lines_of_page(page: Path) -> Iterator[str]:
    text = page.read_text()
    for block in re.findall(r"```(?:console|text|crontab)\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if (found := re.match(r"(?:\$ )?(redrive [a-z].*)", line)) and "COMMAND" not in line:
                yield found[1]
    yield from _CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\n", " "))


@for_each("page", [*PAGES, FOLDERS[0].parent / "README.md"])
def test_a_page_of_the_manual_names_commands_of_today(page: Path) -> None:
    for line in _lines_of_page(page):
        words = shlex.split(line.replace("...", "x").replace(";", " ; ").replace("ID", "1"), comments=True)[1:]
        end = next((place for place, word in enumerate(words) if _END.fullmatch(word)), None)
        words = [word.strip(",") for word in words[:end]]
        if words[0] in ("COMMAND", "--help", "--man", "help", "exec"):
            continue
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{page.stem}: {line}: {error.message}")


def test_a_path_and_a_run_are_one_word_of_a_shell() -> None:
    for state in ("/x/a b.db", "it's.db", "a@b.db", "ssh://etl/x%40y.db"):
        for run in ("2026-11-21T02:00+0530", "r;rm", "a@b"):
            assert shlex.split(shell_command(place_words(state, run))) == place_words(state, run)
    assert "run_names" in LISTINGS
