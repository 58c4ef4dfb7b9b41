"""Texts of tasks, and of state files of strangers, are data: no command prints a control sequence from them."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redrive.console.sessions.session import Session
from redrive.console.text.text import json_line, sanitize_lines
from redrive.engine.domain.acts import Answer
from support.commands import run_redrive, with_file
from support.hostile_text import FORBIDDEN, HOSTILE, texts
from support.marks import parametrize_mostly_long
from support.rich_state import LISTINGS, copy_of, redrive_here, write_rich_state

CLI = Path(__file__).resolve().parents[2] / "console/cli"

#: Columns with free text. The values of the others come from lists of the program, or are JSON.
FREE = {
    "run": ("dag_name", "paused_by", "code_changed"),
    "task": ("error", "failure_fingerprint", "blocked_by"),
    "attempt": ("host", "error_type", "error", "diagnostic", "traceback", "stack", "fingerprint", "fingerprint_loose"),
    "event": ("actor", "reason"),
    "log": ("text",),
    "quarantine": ("row_key", "payload", "error", "fingerprint"),
    "page": ("cause", "title", "send_error", "acked_by"),
}
#: Where the name of a task stands; ``run_id`` is in all of these and in ``run``.
NAMES = {
    "task": "name",
    "edge": "child",
    "attempt": "name",
    "event": "task",
    "log": "name",
    "quarantine": "name",
    "page": "task",
    "page_task": "task",
}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rich") / "rich.db"
    write_rich_state(path)
    return path


def poison(path: Path, text: str) -> None:
    """Put ``text`` into every name and every free text of a file."""
    stored = text.replace("\0", "").encode("utf-8", "replace").decode()
    json_text = json.dumps(text)[1:-1]  # which may name half a character
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, columns in FREE.items():
            for place, column in enumerate(columns):
                is_key = (table, column) in {("page", "cause"), ("quarantine", "row_key")}
                value = f"{column} || ?" if is_key else "?"
                connection.execute(f"UPDATE {table} SET {column} = {value}", (f"{stored}{place}",))
        for table, column in NAMES.items():
            connection.execute(f"UPDATE {table} SET run_id = run_id || ?, {column} = {column} || ?", (stored, stored))
        connection.execute("UPDATE edge SET parent = parent || ?", (stored,))
        connection.execute("UPDATE run SET run_id = run_id || ?", (stored,))
        connection.execute("UPDATE breaker SET downstream = downstream || ?", (stored,))
        connection.execute("UPDATE event SET data = replace(data, 'forbidden', ?)", (json_text,))
        connection.execute("UPDATE page SET body = replace(body, 'forbidden', ?)", (json_text,))


def printed(*words: str) -> tuple[int, str]:
    """The exit code of a command, and what it wrote on both streams."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        code = redrive_here(*words)
    return code, written.getvalue()


@parametrize_mostly_long("format_words", [(), ("--json",)], ids=["plain", "json"])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=texts)
@example(text="".join(HOSTILE))
def test_no_listing_prints_a_control_sequence(
    rich: Path, tmp_path: Path, format_words: tuple[str, ...], text: str
) -> None:
    path = copy_of(rich, tmp_path)
    poison(path, text)
    for words in LISTINGS:
        code, output = printed(*with_file(words, path), *format_words)
        assert sorted(FORBIDDEN & set(output)) == [], words
        assert code == (3 if words[0] == "inbox" else 0), (words, output)  # a dead letter waits
        assert output
        if format_words:
            for line in output.splitlines():
                json.loads(line)


@pytest.mark.parametrize("format_words", [(), ("--json",)], ids=["plain", "json"])
def test_the_answer_to_an_act_is_printed_without_control_sequences(
    rich: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_words: tuple[str, ...]
) -> None:
    """An executor, or the agent of another host, writes the answer."""

    async def send(self: Session, command: Any) -> Answer:
        return Answer(ok=True, message="".join(HOSTILE))

    monkeypatch.setattr("redrive.console.sessions.local.LocalSession.send", send)
    path = str(copy_of(rich, tmp_path))
    for words in (
        ("systems", "pages", "--ack", "1"),
        ("systems", "pages", "--snooze", "1", "2h"),
        ("pause", "--reason", "x"),
    ):
        _, output = printed(*with_file(words, path), *format_words)
        assert output
        assert not FORBIDDEN & set(output), words


@given(st.recursive(texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)))
def test_a_line_of_json_means_what_it_meant_and_is_one_plain_line(value: object) -> None:
    line = json_line(value)
    assert line.splitlines() == [line]
    assert not FORBIDDEN & set(line)
    assert sanitize_lines(line) == line
    assert json.dumps(json.loads(line)) == json.dumps(value)  # two halves of a character become one, in both


@parametrize_mostly_long("words", [("tasks",), ("inbox",), ("events",), ("tasks", "--json")], ids=" ".join, quick=1)
def test_a_narrow_stdout_shows_other_characters_as_escapes(rich: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = copy_of(rich, tmp_path)
    poison(path, "…␛世")
    done = run_redrive(*words, path, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert (done.returncode, done.stderr) == (3 if words[0] == "inbox" else 0, "")
    assert "\\u2026\\u241b\\u4e16" in done.stdout


def _calls(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_commands_print_through_two_gates() -> None:
    """``text/text.py`` cleans each line, ``output.py`` each text within the colours of a list.

    The words of click, and a script for the shell, are the program's own.
    """
    allowed = {name: {"click.echo"} for name in ("main", "group", "completion")} | {
        "output": {"click.echo", "json.dumps"}
    }
    for module in sorted(CLI.rglob("*.py")):
        calls = _calls(ast.parse(module.read_text()))
        assert calls & {"print", "click.echo", "click.secho", "json.dumps"} <= allowed.get(module.stem, set()), module
