"""Each way from a text of a task, a file or another host to a reader goes through one gate; this is each gate.

| to | gate |
|---|---|
| a terminal | `text.sanitize`, `text.printing.echo` |
| lines of JSON | `text.printing.json_line` |
| the HTML report | `present.report_html._escaped` |
| the clipboard | `terminal.clipboard.truncated_to_clipboard` |
| the environment of a page's command | `senders.environment_of` |
| a shell, to paste | `keys.actions.shell_line`, `store.pages._command_line` |
| the state file | bound values, in `statefile` and `store` |
| the log | `statefile.changes.logs.append` and `read` |
"""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from redrive.console.keys.actions import shell_line
from redrive.console.present.report import _escaped
from redrive.console.terminal.sequences import truncated_to_clipboard
from redrive.console.text.text import cells, echo, json_line, one_line, pad, sanitize, sanitize_lines
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.acts import Author, Command, Target
from redrive.engine.notifications.senders import environment_of
from redrive.engine.statefile import logs, operator_actions
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs
from redrive.engine.store.pages import _command_line
from support.hostile_text import FORBIDDEN, texts
from support.marks import parametrize_mostly_long

parametrize_count = parametrize_mostly_long("count", [200, 10_000])


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


@parametrize_count
def test_a_shell_gets_each_text_as_one_word(tmp_path: Path, count: int) -> None:
    """One shell reads all lines; a word that acts would print other words, or make a file."""
    lines: list[str] = []
    wanted: list[list[str]] = []

    def check(text: str) -> None:
        page = ["redrive", "requeue", "--state", text, "--", text]
        lines.append(_command_line(page))
        wanted.append(["".join(letter if letter.isprintable() else " " for letter in word) for word in page[1:]])
        line = shell_line("requeue", text, "r", [text], "why")
        assert line is not None and line.isprintable()
        lines.append(line)
        wanted.append([])  # of which the number of words counts: it may leave out what does not print

    for_each_text(count, check)
    script = tmp_path / "lines.sh"
    script.write_text("redrive() { printf '%s\\0' \"$@\"; }\n" + "".join(f"{line}\n{ENDS}\n" for line in lines))
    done = subprocess.run(["sh", script], cwd=tmp_path, capture_output=True, check=True)
    parsed = [part.split("\0")[:-1] for part in done.stdout.decode().split("END\0")[:-1]]
    assert done.stderr == b"" and [each.name for each in tmp_path.iterdir()] == ["lines.sh"]
    for words, expected in zip(parsed, wanted, strict=True):
        if expected:
            assert words == expected
        else:
            assert (len(words), words[0], words[-2]) == (9, "requeue", "--")


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
    assert runs.claim(transaction, text, text, 0, "token", {"executor_id": text}) == 1
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
