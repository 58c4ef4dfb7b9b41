"""One flow has one state file, whether a command or a program runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redrive.console.sessions.target import existing_target, state_for_flow
from redrive.engine import Executor, Flow, RedriveError
from redrive.engine.core.option_types import is_text
from support.commands import run_redrive
from support.marks import parametrize_mostly_long

FLOW = """
    from redrive.engine import Flow, TaskDef

    flow = Flow({name})
    flow.add(TaskDef("one", lambda: None))
"""
PROGRAM = """
    import sys
    from redrive.engine import Executor, TaskDef

    def one():
        return None

    print(Executor(sys.argv[1], sys.argv[2], [TaskDef("one", one)]).run())
"""


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    return tmp_path / "states/redrive"


@pytest.fixture
def write_flow(tmp_path: Path) -> Callable[..., str]:
    def write(file_name: str, expression: str) -> str:
        path = tmp_path / file_name
        path.write_text(textwrap.dedent(FLOW).format(name=expression))
        return str(path)

    return write


def redrive(*words: str, code: int = 0) -> str:
    done = run_redrive(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def run_program(folder: Path, name: str, run_id: str) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(path), name, run_id], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
@given(name=st.text(min_size=1, max_size=200).filter(is_text))
@example("naïve")
@example("a  b")
@example("日本")
@example("../../etc/passwd")
@example("x" * 200)
def test_a_command_and_a_program_name_the_same_file(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "named.py"
    path.write_text(textwrap.dedent(FLOW).format(name=repr(name)))
    by_command = state_for_flow(str(path), {}, None)
    assert by_command == Executor(flow=Flow(name), run_id="r").state_path
    assert by_command == Executor(flow=str(path), run_id="r").state_path


@parametrize_mostly_long("name", ["../日本", "naïve", "a  b"])
def test_a_run_by_command_and_one_by_a_program_are_in_one_file(
    states: Path, tmp_path: Path, write_flow: Callable[..., str], name: str
) -> None:
    redrive("run", write_flow("nightly.py", repr(name)), "--run-id", "by-command", "--plain")
    assert run_program(tmp_path, name, "by-program") == "SUCCESS"
    (state,) = states.glob("*.db")
    runs = [json.loads(line) for line in redrive("runs", "--json").splitlines()]
    assert {run["run_id"]: run["dag_name"] for run in runs} == {"by-command": name, "by-program": name}
    assert existing_target(None) == str(state)


def test_flows_of_two_files_without_an_ascii_letter_have_a_file_each(
    states: Path, write_flow: Callable[..., str]
) -> None:
    for name in ("日本", "中国"):
        redrive("run", write_flow(f"{name}.py", repr(name)), "--run-id", name, "--plain")
    assert {path.name for path in states.glob("*.db")} == {"日本.db", "中国.db"}


def test_a_flow_that_was_run_by_its_file_is_found_by_the_commands_that_follow(
    states: Path, write_flow: Callable[..., str]
) -> None:
    """The file of the flow is called otherwise than the flow."""
    redrive("run", write_flow("etl_job.py", "'revenue'"), "--run-id", "night", "--plain")
    assert [path.name for path in states.glob("*.db")] == ["revenue.db"]
    assert "one" in redrive("tasks")
    assert redrive("inbox", "--json") == ""
    assert "has ended already: SUCCESS" in redrive("resume", "--plain")
    assert "one" in redrive("attach")


@pytest.mark.long
def test_a_name_that_is_computed_is_read_from_the_flow_itself(states: Path, write_flow: Callable[..., str]) -> None:
    flow = write_flow("etl.py", "'-'.join(['rev', 'enue'])")
    redrive("run", flow, "--run-id", "night", "--plain")
    assert [path.name for path in states.glob("*.db")] == ["rev-enue.db"]
    assert Executor(flow=flow, run_id="r").state_path == str(states / "rev-enue.db")


@pytest.mark.long
def test_a_name_may_depend_on_a_parameter(states: Path, tmp_path: Path) -> None:
    path = tmp_path / "etl.py"
    path.write_text(
        textwrap.dedent(
            """
            from redrive.engine import Flow, TaskDef

            def make():
                flow = Flow("etl", params={"region": "eu"})
                flow.name = f"etl-{flow.params['region']}"
                flow.add(TaskDef("one", lambda: None))
                return flow
            """
        )
    )
    for region in ("eu", "us"):
        redrive("run", f"{path}:make", "--run-id", "night", "--plain", "--param", f"region={region}")
    assert {path.name for path in states.glob("*.db")} == {"etl-eu.db", "etl-us.db"}


async def test_a_program_with_a_loop_is_asked_for_the_file_where_the_name_is_computed(
    write_flow: Callable[..., str],
) -> None:
    with pytest.raises(RedriveError, match="computed"):
        Executor(flow=write_flow("etl.py", "'-'.join('ab')"), run_id="r")


def test_a_flow_that_cannot_be_imported_leaves_no_trace(states: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no')\n")
    redrive("run", str(path), "--plain", code=2)
    assert not states.exists() or os.listdir(states) == []
