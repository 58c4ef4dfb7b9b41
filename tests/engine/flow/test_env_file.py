"""``Flow(env_file=...)``: read for each run, masked as other secrets are, refused if it is not there."""

from __future__ import annotations

import os

import pytest
from redrive.engine import Flow
from redrive.engine.errors import OptionError
from redrive.engine.flow.loading import load_flow
from support.commands import run_redrive
from support.marks import parametrize_mostly_long

FLOW = """from redrive.engine import Flow
flow = Flow("f", env_file=".env", secrets=["PASSWORD"])
@flow.task
def show():
    import os
    print(os.environ["PASSWORD"], len(os.environ["PASSWORD"]), os.environ["PLACE"])
flow.command("echo", 'echo "$PASSWORD $PLACE"')
"""


def test_each_run_reads_the_file_again_and_its_secrets_are_masked(tmp_path):
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / ".env").write_text('# of the database\nexport PASSWORD="first secret"\nPLACE=a$b\n')
    words = ["run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--output"]
    first = run_redrive(*words, env={**os.environ, "PASSWORD": "of the shell"}, cwd=tmp_path.parent)
    assert first.returncode == 0 and "***PASSWORD*** 12 a$b" in first.stdout
    assert "echo | ***PASSWORD*** a$b" in first.stdout
    (tmp_path / ".env").write_text("PASSWORD=rotated\nPLACE=c\n")
    second = run_redrive(*words)
    assert "***PASSWORD*** 7 c" in second.stdout and "rotated" not in second.stdout


def test_the_place_of_the_file_is_the_folder_of_the_flow_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", "before")
    monkeypatch.setenv("PASSWORD", "before")
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / ".env").write_text("PLACE=here\nPASSWORD=secret\n")
    assert load_flow(str(tmp_path / "flow.py")).spec().env_file == str(tmp_path / ".env")
    assert os.environ["PLACE"] == "here"


@pytest.mark.parametrize(
    ("value", "why"), [("missing.env", "cannot be read: No such file"), (7, "env_file is the path")]
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(value, why):
    with pytest.raises(OptionError, match=why):
        Flow("f", env_file=value)


def test_a_run_says_that_variables_for_commands_reach_none(tmp_path):
    source = 'flow = Flow("f", env={"PGHOST": "db1"})\n@flow.task\ndef show(): pass\n'
    (tmp_path / "flow.py").write_text(f"from redrive.engine import Flow\n{source}")
    done = run_redrive("run", tmp_path / "flow.py", "--state", tmp_path / "state.db")
    assert done.returncode == 0
    assert (
        "flow 'f': env sets PGHOST for commands, and none gets it: functions read variables of env_file" in done.stderr
    )


def test_variables_that_a_command_gets_from_any_group_reach_one():
    flow = Flow("f", env={"PGHOST": "db1"})
    with flow.group("load", env={"SCHEMA": "a"}):
        flow.command("orders", "true")
    with flow.group("load", env={"SCHEMA": "b", "MODE": "fast"}):
        flow.task(lambda: None, name="count")
    assert flow.spec().unused_env == ("MODE",)


@parametrize_mostly_long(
    ("text", "line", "why"),
    [
        ('A=1\nPASSWORD="tr0ub4dor\n', 2, "it is no NAME=value, or a quote has no end"),
        ('PASSWORD="tr0ub4dor\nB="y"\n', 1, "it is no NAME=value, or a quote has no end"),
        ("A=1\n\n\nsource other.env\n", 4, "it is no NAME=value, or a quote has no end"),
        ("if true; then A=tr0ub4dor; fi\n", 1, "it is no NAME=value, or a quote has no end"),
        ("# one\n\nA=tr0ub4dor\0x\n", 3, "it has a NUL character"),
        ("A=1\nTOKEN\n", 2, "it gives no value: NAME=value"),
    ],
    quick=3,
)
def test_a_line_that_cannot_be_read_refuses_the_start_and_is_found_by_check(tmp_path, text, line, why):
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / ".env").write_bytes(text.encode())
    sentence = f"env_file {tmp_path / '.env'}:{line}: {why}"
    for words in (["run", tmp_path / "flow.py", "--state", tmp_path / "s.db"], ["check", tmp_path / "flow.py"]):
        done = run_redrive(*words)
        shown = done.stdout + done.stderr
        assert done.returncode == (2 if words[0] == "run" else done.returncode) and done.returncode != 0
        assert sentence in " ".join(shown.split()) and "tr0ub4dor" not in shown and "Traceback" not in shown


@pytest.mark.parametrize("text", ["\ufeffPASSWORD=x\r\nPLACE=\r\n", "PASSWORD='a\nb'\nPLACE=1\nexport PLACE\n"])
def test_files_of_editors_and_shells_are_read(tmp_path, monkeypatch, text):
    monkeypatch.delenv("PASSWORD", raising=False)
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / ".env").write_text(text, newline="")
    load_flow(str(tmp_path / "flow.py"))
    assert os.environ.pop("PASSWORD") in ("x", "a\nb")
