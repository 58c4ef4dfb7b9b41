"""``redrive new`` and the shell completion."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from redrive.console.cli.group import cli
from redrive.engine import Executor, Flow
from redrive.engine.errors import FlowError
from support.commands import REDRIVE


def completions(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    completion = ShellComplete(cli, {}, "redrive", "_REDRIVE_COMPLETE")
    return [item.value for item in completion.get_completions(list(words[:-1]), words[-1])]


def test_the_new_flow_is_named_after_its_file_and_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = CliRunner().invoke(cli, ["new", "nightly"])
    assert written.exit_code == 0 and "redrive run nightly.py" in written.output
    assert 'Flow("nightly"' in Path("nightly.py").read_text()
    ran = subprocess.run(
        [sys.executable, "-m", "redrive", "run", "nightly.py", "--plain", "--state", "x.db"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.rstrip().endswith("SUCCESS")


@pytest.mark.parametrize(("name", "why"), [("here.py", "exists already"), ("missing/x.py", "cannot be written")])
def test_a_file_that_cannot_be_written_is_one_sentence(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("precious")
    with pytest.raises(FlowError, match=why):
        cli.main(["new", name], standalone_mode=False)
    assert Path("here.py").read_text() == "precious"


@pytest.mark.parametrize("words", ["new half.py", "import crontab tab"])
def test_a_file_that_is_not_written_whole_is_not_there(words, tmp_path):
    (tmp_path / "tab").write_text("0 2 * * * /opt/half.sh\n")
    line = f"ulimit -f 0; exec {shlex.join(REDRIVE)} {words}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "cannot be written: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tab"]


@pytest.fixture
def state(tmp_path) -> str:
    flow = Flow("nightly")

    @flow.task(max_attempts=1)
    def extract():
        raise ValueError("no table")

    @flow.task
    def load():
        pass

    path = str(tmp_path / "nightly.db")
    Executor(flow=flow, state=path, run_id="night-1").run()
    return path


def test_tasks_runs_and_causes_of_the_state_file_are_offered(state):
    assert completions("requeue", "--state", state, "") == ["extract", "load"]
    assert completions("requeue", "--state", state, "extract", "") == ["load"]
    assert completions("tasks", f"{state}@ni") == [f"{state}@night-1"]
    assert len(completions("requeue", "--state", state, "--fingerprint", "")) == 1


def test_a_missing_or_damaged_file_offers_nothing(tmp_path):
    (tmp_path / "x.db").write_text("no database")
    assert completions("requeue", "--state", str(tmp_path / "x.db"), "") == []
    assert completions("requeue", "--state", str(tmp_path / "y.db"), "") == []


def test_topics_are_offered():
    assert completions("help", "sta") == ["states", "state-files"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_redrive(shell):
    printed = CliRunner().invoke(cli, ["completion", shell])
    assert printed.exit_code == 0 and "_REDRIVE_COMPLETE" in printed.output


@pytest.fixture
def default_state(tmp_path, monkeypatch, state) -> Path:
    """The same file in the default place."""
    folder = tmp_path / "states/redrive"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return Path(state).rename(folder / "nightly.db")


def test_a_target_is_completed_with_the_flows_of_the_default_place(default_state):
    assert completions("inbox", "ni") == ["nightly", "nightly@"]  # and no space before the @
    assert completions("inbox", "nightly@") == ["nightly@night-1"]
    assert completions("inbox", "x") == ["x"]  # stands for files


def test_logs_and_why_complete_flows_and_then_tasks(default_state):
    assert completions("logs", "") == ["nightly", "nightly@", "extract", "load"]
    assert completions("logs", "nightly", "ex") == ["extract"]
    assert completions("why", "nightly", "") == ["extract", "load"]
    assert completions("logs", "extract", "") == ["load"]
