"""Each way from a text of a task, a file or another host to a reader goes through one gate: see ``EXITS``.

Each gate is tried with drawn texts. What a gate is made of (``primitive``) is used in its own module, and elsewhere
only where ``also`` says why: so a way past the gate fails here. A command in a sentence comes from ``shell_command``.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from redrive.console.cli import output
from redrive.console.cli.completion import BashCompletion
from redrive.console.cli.output import painted
from redrive.console.keys.actions import shell_line
from redrive.console.present import report
from redrive.console.present.report import _escaped
from redrive.console.terminal.driver import truncated_to_clipboard
from redrive.console.text.pieces import Piece, Role
from redrive.console.text.text import cells, echo, json_line, one_line, pad, sanitize, sanitize_lines
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.acts import Author, Command, Target
from redrive.engine.domain.text import printable, shell_command
from redrive.engine.notifications.senders import environment_of
from redrive.engine.statefile import logs, operator_actions
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs
from rich.color import ColorSystem
from support.checkout import ROOT
from support.commands import all_commands
from support.hostile_text import FORBIDDEN, texts
from support.marks import parametrize_mostly_long


@dataclass(frozen=True)
class Exit:
    """Where a text leaves for another interpreter."""

    gate: Callable[..., object]
    primitive: str  # a pattern of what makes a text safe for this reader, or reaches him
    also: Mapping[str, str] = field(default_factory=dict)  # modules that use it too, each with the reason


EXITS = {
    "a shell, to paste": Exit(
        shell_command,
        r"shlex\.(quote|join)",
        {
            "engine/core/secret_mask.py": "finds a secret in its quoted form",
            "engine/core/failures/facts.py": "the command of a task, which is compared and not run",
            "engine/flow/task_def.py": "the command of a task, which its author wrote",
            "console/sessions/bundle.py": "a word of the login shell of another host, printable by a check above",
        },
    ),
    "bash, zsh and fish, completed": Exit(
        BashCompletion.format_completion,
        r"CompletionItem\(",
        dict.fromkeys(("console/cli/group.py", "console/cli/help.py"), "names of commands and topics"),
    ),
    "a page of HTML": Exit(
        _escaped,
        r"\bHtml\(|html\.escape|from html import",
        {
            "engine/core/secret_mask.py": "finds a secret in its HTML form",
        },
    ),
    "a line of JSON": Exit(json_line, r"escape_unsafe\("),
    "a terminal, line by line": Exit(
        echo,
        r"click\.s?echo\(|sys\.std(out|err)\.write\(|(?<![\w.])(?<!def )print\(",
        {
            "console/__main__.py": "a constant sentence, before anything is imported",
            "console/cli/completion.py": "its script",
            "console/cli/group.py": "constant sentences: importing the gate would delay every command",
            "console/cli/main.py": "constant sentences, also where nothing could be imported",
            "console/cli/output.py": "lines of its own gate",
            "console/cli/following.py": "lines of that gate, and sequences that redraw a list around them",
            "engine/asyncio_log.py": "through ``printable``",
            "engine/runner/call.py": "into the log of the task",
            "engine/runner/child.py": "into the log of the task",
            "engine/runner/command.py": "into the log of the task",
            "engine/runner/zygote/interpreter.py": "JSON of another interpreter, through a pipe",
            "engine/executor/host.py": "through ``printable``",
            "engine/executor/opening.py": "through ``printable``",
            "engine/flow/import_output.py": "through ``printable``",
        },
    ),
    "a terminal, in colours": Exit(
        painted,
        r"\.render\(|\\x1b\[[0-9;{]*m|\\033",
        dict.fromkeys(("console/terminal/output.py", "console/terminal/tty.py"), "the screen, cell by cell"),
    ),
    "a terminal, before the console can be imported": Exit(
        printable,
        r"(?<!_)\bprintable\(",
        dict.fromkeys(
            (
                "engine/asyncio_log.py",
                "engine/executor/host.py",
                "engine/executor/opening.py",
                "engine/flow/import_output.py",
                "engine/notifications/notifier.py",
                "engine/executor/page_test.py",
                "engine/notifications/senders.py",
                "engine/statefile/action.py",
            ),
            "calls the gate",
        ),
    ),
    "the clipboard": Exit(truncated_to_clipboard, r"\]52;"),
    "the environment of a page's command": Exit(environment_of, r"REDRIVE_PAGE_"),
}
CODE = [
    path for top in ("engine", "console") for path in sorted((ROOT / top).rglob("*.py")) if "examples" not in path.parts
]


def _module_of(gate: Callable[..., object]) -> str:
    return str(Path(inspect.getsourcefile(gate) or "").resolve().relative_to(ROOT))


@cache
def _code_of(path: Path) -> str:
    """Without comments and texts of documentation."""
    lines = path.read_text().splitlines()
    tree = ast.parse("\n".join(lines))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(line.partition("  # ")[0] for line in lines)


def test_each_reader_is_reached_through_its_gate_alone() -> None:
    texts = {path: path.read_text() for path in CODE}
    for name, where in EXITS.items():
        named = [path for path, text in texts.items() if re.search(where.primitive, text)]
        used = {str(path.relative_to(ROOT)) for path in named if re.search(where.primitive, _code_of(path))}
        assert used - {_module_of(where.gate)} == set(where.also), name


def test_a_command_in_a_sentence_is_made_of_quoted_words() -> None:
    """``f"redrive resume {path}"`` would break at a blank, and run what a name says."""
    commands = "|".join(sorted(all_commands()))
    unquoted = re.compile(rf"redrive (?:{commands})(?: [\w-]+)* \{{(?!shell_)")
    named = [path for path in CODE if unquoted.search(path.read_text())]
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path in named for match in unquoted.finditer(_code_of(path))]
    assert found == []


def test_a_part_of_the_page_is_made_of_html_alone() -> None:
    """Its templates are literals; another text in their braces is an error of types."""
    assert "-> Html:" in inspect.getsource(report._html) and "Html | int" in inspect.getsource(report._html)
    tree = ast.parse(inspect.getsource(report))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "_html"]
    assert calls and all(isinstance(call.args[0], ast.Constant) for call in calls)
    tags = [
        node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and re.search("<[a-z/]", ast.unparse(node))
    ]
    assert tags == []


parametrize_count = parametrize_mostly_long("count", [50, 200, 2_000], daily=2)


def for_each_text(count: int, check: Callable[[str], None]) -> None:
    """Try a check with so many drawn texts."""
    settings(max_examples=count, deadline=None)(given(texts)(check))()


@parametrize_count
def test_a_terminal(count: int) -> None:
    def check(text: str) -> None:
        for shown in (sanitize(text), one_line(text), pad(sanitize(text), 12)):
            assert not (FORBIDDEN | {"\n"}) & set(shown)
        assert cells(pad(sanitize(text), 12)) == 12
        assert sanitize(sanitize(text)) == sanitize(text)
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            echo(text)
        assert written.getvalue() == sanitize_lines(text) + "\n"
        assert not FORBIDDEN & set(written.getvalue())

    for_each_text(count, check)


@parametrize_count
def test_a_terminal_in_colours(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only sequences are those of the table of roles, around texts that are safe."""
    styles = output._terminal_styles()
    monkeypatch.setattr(output, "_styles", lambda: styles)
    begins = {styles[role].render("x", color_system=ColorSystem.STANDARD).split("x")[0] for role in styles}
    assert "\x1b[36m" in begins and len(styles) == len(Role) - 1  # plain text has no style

    def check(text: str) -> None:
        for role in (*Role, text, f"sgr {text}", "sgr red"):
            written = painted([Piece(text, role), Piece(text), Piece(text, role)])
            found = re.findall(r"\x1b\[[0-9;]+m", written)
            assert set(found) <= begins | {"\x1b[0m"} and found[1::2] == ["\x1b[0m"] * (len(found) // 2)
            assert re.sub(r"\x1b\[[0-9;]+m", "", written) == sanitize_lines(text) * 3
        assert painted(text) == sanitize_lines(text)

    for_each_text(count, check)


@parametrize_count
def test_a_line_of_json(count: int) -> None:
    def check(text: str) -> None:
        line = json_line({"text": text})
        assert line.isprintable() and not FORBIDDEN & set(line)
        assert json.dumps(json.loads(line)) == json.dumps({"text": text})

    for_each_text(count, check)


class _Reader(HTMLParser):
    """What a browser makes of a part of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@parametrize_count
def test_the_html_report(count: int) -> None:
    def check(text: str) -> None:
        reader = _Reader()
        reader.feed(f'<p title="{_escaped(text)}">{_escaped(text)}</p>')
        reader.close()
        assert reader.tags == [("p", [("title", sanitize(text))])]
        assert reader.text == sanitize(text)

    for_each_text(count, check)


@parametrize_count
def test_the_clipboard(count: int) -> None:
    def check(text: str) -> None:
        assert not FORBIDDEN & set(truncated_to_clipboard(text))

    for_each_text(count, check)


@parametrize_count
def test_the_environment_of_the_command_of_a_page(count: int) -> None:
    def check(text: str) -> None:
        found = environment_of({"title": text, "task": text, "count": 3})
        assert set(found) == {"REDRIVE_PAGE_TITLE", "REDRIVE_PAGE_TASK", "REDRIVE_PAGE_COUNT"}
        assert all(letter.isprintable() or letter == "\n" for value in found.values() for letter in value)

    for_each_text(count, check)


ENDS = "printf 'END\\0'"


@parametrize_mostly_long("count", [50, 2_000], daily=1)
def test_a_shell_gets_each_text_as_one_word(tmp_path: Path, count: int) -> None:
    """One shell reads all lines; a word that acts would print other words, or make a file."""
    lines: list[str] = []
    wanted: list[list[str]] = []

    def check(text: str) -> None:
        for line in (shell_command(["requeue", "--", text]), shell_line("requeue", text, "r", [text], "why") or ""):
            assert line.isprintable()
            lines.append(line.removeprefix("redrive "))
        whole = text.replace("\0", "?").encode("utf-8", "replace").decode()
        word = whole.rstrip("\n")
        wanted.append(["--", word])
        wanted.append([f"{whole}@r", "--reason", "why", "--", word])

    for_each_text(count, check)
    script = tmp_path / "lines.sh"
    script.write_text("requeue() { printf '%s\\0' \"$@\"; }\n" + "".join(f"{line}\n{ENDS}\n" for line in lines))
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, script], cwd=tmp_path, capture_output=True, check=True)
        parsed = [part.split("\0")[:-1] for part in done.stdout.decode().split("END\0")[:-1]]
        assert done.stderr == b"" and [each.name for each in tmp_path.iterdir()] == ["lines.sh"]
        assert parsed == wanted


@parametrize_count
def test_a_terminal_before_the_console_can_be_imported(count: int) -> None:
    for_each_text(count, lambda text: _require(not FORBIDDEN & set(printable(text))))


def _require(holds: bool) -> None:
    assert holds


@parametrize_count
def test_the_state_file_and_the_log(tmp_path: Path, count: int) -> None:
    """Every text comes back as it was, from every kind of value; the tables are those of before."""
    with closing(database.open_for_writing(tmp_path / "x.db")) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        tables = schema(connection)

        def check(text: str) -> None:
            stored = "x" + text.replace("\0", "").encode("utf-8", "replace").decode()  # a reason is no white space
            connection.execute("BEGIN")
            try:
                write_and_read(Transaction(connection, 1_000_000, Author("ana", stored)), stored)
            finally:
                connection.execute("ROLLBACK")

        for_each_text(count, check)
        assert schema(connection) == tables


def write_and_read(transaction: Transaction, text: str) -> None:
    connection, spec = transaction.connection, TaskSpec(text)
    flow = FlowSpec(text, (spec,))
    runs.create_run(transaction, run_id=text, flow=flow, max_parallel=1, params={}, at=1, deadline_at=None)
    transaction.move(text, text, "PENDING", "READY", 0)
    assert claims.claim(transaction, text, text, 0, "token", {"executor_id": text}) == 1
    logs.append(transaction, text, text, 1, text)
    pieces = logs.read(connection, text, text, 1)
    assert "".join(piece.text for piece in pieces) == text
    transaction.move(text, text, "RUNNING", "FAILED", 0, set={"error": text})
    command = Command("id", "requeue", text, (Target(text, "FAILED", 0),), text, text)
    assert operator_actions.apply(transaction, command).ok
    found = runs.load_run(connection, text)
    assert (found.run.dag_name, list(found.tasks), found.tasks[text].spec) == (text, [text], spec)
    assert [event.task for event in transaction.events if event.kind == "task"] == [text] * 4


def schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
