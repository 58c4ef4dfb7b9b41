"""Which state file and which run a command means, and that it says so."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from redrive.console.cli.group import GONE, WORDS_OF_OTHER_TOOLS
from redrive.console.sessions.target import AmbiguousTargetError, acting_target, existing_target
from redrive.engine import Executor, Flow, PermanentError
from redrive.engine.statefile.state_files import ActTargets
from support.commands import all_commands, quoted, run_redrive

FLOW = """
import pathlib
from redrive.engine import Flow, PermanentError
flow = Flow("{name}", params={{"n": 1}})
@flow.task
def extract():
    if pathlib.Path("{broken}").exists():
        raise PermanentError("no")
@flow.task
def load(): ...
"""


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return tmp_path / "states/redrive"


def run_flow(name: str, *, fails: bool = False, run_id: str = "night", task: str = "extract") -> str:
    """Run a flow of one task in its default state file, and return the file."""
    flow = Flow(name)

    @flow.task(name=task)
    def extract() -> None:
        if fails:
            raise PermanentError("no")

    executor = Executor(run_id=run_id, flow=flow)
    executor.run()
    return executor.state_path


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flow that is blocked where ``broken`` lies beside it, and a state file with two of its runs beside it, too."""
    folder = tmp_path_factory.mktemp("nightly")
    flow, state = folder / "nightly.py", folder / "nightly.db"
    flow.write_text(FLOW.format(name="nightly", broken=folder / "broken"))
    (folder / "broken").touch()
    assert run_redrive("run", flow, "--run-id", "first", "--state", state).returncode == 3
    (folder / "broken").unlink()
    assert run_redrive("run", flow, "--run-id", "second", "--state", state).returncode == 0
    return flow


@pytest.fixture
def two_runs(nightly: Path, states: Path) -> Path:
    """A state file with two runs of one flow: ``first`` waits for a human, ``second`` is a success."""
    states.mkdir(parents=True)
    return Path(shutil.copy(nightly.with_suffix(".db"), states))


# --- The default file ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_heartbeat_does_not_change_the_default_file(states: Path) -> None:
    old, new = run_flow("old"), run_flow("new")
    os.utime(old, (4e9, 4e9))
    assert existing_target(None) == new


def test_a_file_with_something_to_do_comes_first(states: Path) -> None:
    blocked = run_flow("blocked", fails=True)
    run_flow("new")
    assert existing_target(None) == acting_target(None) == blocked


def test_an_act_that_could_mean_two_files_is_refused_with_the_commands(states: Path) -> None:
    one, other = run_flow("one", fails=True), run_flow("other", fails=True)
    with pytest.raises(AmbiguousTargetError):
        acting_target(None)
    done = run_redrive("requeue", "extract", "--reason", "it's fixed")
    assert done.returncode == 2
    message, *candidates = done.stderr.splitlines()
    assert message == "redrive: 2 state files have something to do: name one"
    tail = "extract --reason 'it'\"'\"'s fixed'"
    assert [line.partition(" · started ")[0] for line in candidates] == [
        f"  redrive requeue {quoted(path)} {tail}  # {Path(path).stem} · night · BLOCKED" for path in (other, one)
    ]
    for path in (one, other):
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT generation FROM task").fetchall() == [(0,)]


@pytest.mark.long
def test_a_file_without_the_named_task_run_or_cause_is_no_candidate(states: Path) -> None:
    run_flow("one", fails=True, run_id="monday")
    other = run_flow("other", fails=True, run_id="tuesday", task="load")
    with sqlite3.connect(other) as connection:
        ((cause,),) = connection.execute("SELECT fingerprint FROM attempt")
    with pytest.raises(AmbiguousTargetError):  # both failed at one place
        acting_target(None, ActTargets(fingerprint=cause))
    named = (ActTargets(tasks=["load"]), ActTargets(tasks=["lo*"]), ActTargets(["tuesday"], fingerprint=cause))
    assert {acting_target(None, targets) for targets in named} == {other}
    done = run_redrive("requeue", "load", "--reason", "mended")
    assert done.returncode == 0 and f"in {other}" in done.stdout
    lost = run_redrive("requeue", "laod", "--reason", "mended")
    assert lost.returncode == 2
    assert lost.stderr == "redrive: none of 2 state files has task laod in its latest run; see: redrive fleet\n"


def test_a_damaged_file_is_no_candidate(states: Path) -> None:
    good = run_flow("good", fails=True)
    (states / "odd.db").write_text("not a database")
    assert existing_target(None) == acting_target(None) == good


# --- The first line -----------------------------------------------------------------------------------------------


def test_a_listing_names_its_file_first_and_one_of_a_run_the_run(two_runs: Path) -> None:
    for word in ("tasks", "replay", "breakers", "quarantine"):
        assert run_redrive(word).stdout.splitlines()[0] == f"nightly second in {two_runs}", word
        assert run_redrive(word, "--run", "first").stdout.splitlines()[0] == f"nightly first in {two_runs}", word
    for word in ("runs", "events", "pages"):
        assert run_redrive(word).stdout.splitlines()[0] == str(two_runs), word


def test_an_answer_names_file_and_run(two_runs: Path) -> None:
    done = run_redrive("skip", "extract", "--run", "first", "--reason", "known")
    assert done.stdout.splitlines()[0] == f"nightly first in {two_runs}"
    answer = json.loads(run_redrive("pause", "--run", "first", "--json").stdout)
    assert (answer["state_file"], answer["run_id"]) == (str(two_runs), "first")


def test_the_state_in_json_is_the_word_of_the_text(two_runs: Path) -> None:
    runs = [json.loads(line) for line in run_redrive("runs", "--json").stdout.splitlines()]
    assert {run["run_id"]: run["state"] for run in runs} == {"first": "BLOCKED", "second": "SUCCESS"}
    assert {run["state_file"] for run in runs} == {str(two_runs)}


# --- The unfinished run -------------------------------------------------------------------------------------------


def test_the_advice_of_a_requeue_is_the_command_that_works(two_runs: Path) -> None:
    done = run_redrive("requeue", "--run", "first", "extract", "--reason", "fixed")
    command = done.stderr.rpartition("go on with: redrive ")[2].split()
    assert command == ["resume", f"{two_runs}@first"]
    assert run_redrive(*command, "--plain").returncode == 0
    assert "first" in run_redrive("runs").stdout and "BLOCKED" not in run_redrive("runs").stdout


def test_resume_takes_the_unfinished_run(two_runs: Path) -> None:
    assert run_redrive("requeue", "--run", "first", "extract", "--reason", "fixed").returncode == 0
    done = run_redrive("resume", two_runs, "--plain")
    assert done.returncode == 0
    assert "run first SUCCESS" in done.stdout


def test_resume_of_several_unfinished_runs_names_them(two_runs: Path, nightly: Path) -> None:
    broken = nightly.with_name("broken")
    broken.touch()
    assert run_redrive("run", nightly, "--run-id", "third").returncode == 3
    broken.unlink()
    done = run_redrive("resume", two_runs, "--plain")
    assert done.returncode == 2
    assert "2 runs are unfinished (third, first)" in done.stderr
    assert f"redrive resume {quoted(two_runs)}@third" in done.stderr


def test_a_parameter_of_an_ended_run_is_refused(two_runs: Path, nightly: Path) -> None:
    done = run_redrive("run", nightly, "--run-id", "second", "--param", "n=9")
    assert done.returncode == 2
    assert "run 'second' has ended: SUCCESS; its parameters cannot change" in done.stderr


def test_an_act_that_is_refused_in_part_is_no_success(two_runs: Path) -> None:
    done = run_redrive("cancel", "--run", "first", "extract", "load", "--reason", "x")
    assert done.returncode == 3
    assert "1 cancelled, 1 refused" in done.stdout


# --- Two flows with one name ---------------------------------------------------------------------------------------


@pytest.fixture
def namesakes(tmp_path: Path, states: Path) -> tuple[Path, Path]:
    """Two flow files whose flows have one name; the first has run."""
    flows = tmp_path / "a/flow.py", tmp_path / "b/flow.py"
    for flow in flows:
        flow.parent.mkdir()
        flow.write_text(FLOW.format(name="nightly", broken=tmp_path / "broken"))
    assert run_redrive("run", flows[0]).returncode == 0
    return flows


def test_a_second_flow_of_the_same_name_is_refused(namesakes: tuple[Path, Path], states: Path) -> None:
    one, other = namesakes
    done = run_redrive("run", other)
    assert done.returncode == 2
    for part in (str(one), str(other), str(states / "nightly.db"), "--state PATH"):
        assert part in done.stderr
    assert len(run_redrive("runs", "--json").stdout.splitlines()) == 1
    with pytest.raises(Exception, match="belongs to the flow 'nightly'"):
        Executor(run_id="r", flow=str(other))
    assert run_redrive("run", one).returncode == 0


@pytest.mark.long
def test_a_named_state_file_may_be_shared(namesakes: tuple[Path, Path], states: Path) -> None:
    assert run_redrive("run", namesakes[1], "--state", states / "nightly.db").returncode == 0
    assert run_redrive("run", namesakes[1]).returncode == 0  # from now on the file knows both
    assert run_redrive("run", namesakes[0]).returncode == 0


def test_a_flow_file_that_was_moved_keeps_its_state_file(namesakes: tuple[Path, Path]) -> None:
    one, other = namesakes
    one.rename(other)
    assert run_redrive("run", other).returncode == 0
    assert len(run_redrive("runs", "--json").stdout.splitlines()) == 2


def test_a_flow_is_named_instead_of_its_state_file(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = run_flow("orders")
    run_flow("payments")
    assert run_redrive("tasks", "payments").returncode == 0
    assert existing_target("payments") == acting_target("payments") == str(states / "payments.db")
    (tmp_path / "payments").symlink_to(state)
    assert existing_target("payments") == str(state)


def test_a_folder_or_script_of_the_name_of_a_flow_hides_no_state_file(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_flow("orders")
    (tmp_path / "orders").mkdir()
    (tmp_path / "stock").mkdir()
    assert existing_target("orders") == acting_target("orders") == str(states / "orders.db")
    assert "stock is a directory" in run_redrive("runs", "stock").stderr
    (tmp_path / "orders").rmdir()
    (tmp_path / "orders").write_text("#!/bin/sh")
    assert existing_target("orders") == acting_target("orders") == str(states / "orders.db")


def test_a_folder_in_place_of_a_state_file_is_named_as_one(states, tmp_path):
    (tmp_path / "here/below").mkdir(parents=True)
    (tmp_path / "flow.py").write_text(FLOW.format(name="f", broken=""))
    sentence = f"redrive: {tmp_path}/here is a directory; name a file in it, such as {tmp_path}/here/state.db\n"
    for words in (("run", tmp_path / "flow.py", "--state"), ("tasks",), ("resume",)):
        done = run_redrive(*words, tmp_path / "here")
        assert (done.returncode, done.stderr) == (2, sentence)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".lock")] == []


def test_the_name_of_a_flow_may_have_a_slash(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = run_flow("team/orders")
    assert existing_target("team/orders") == state
    assert "there is no state file" in run_redrive("runs", "team/stock").stderr


def test_a_mistyped_flow_is_told_with_the_one_that_is_meant(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_flow("orders")
    for command, what in (("runs", "state file"), ("tasks", "task"), ("requeue", "task")):
        done = run_redrive(command, "oders")
        sentence = f"redrive: there is no flow or {what} 'oders'; did you mean 'orders'?\n"
        assert (done.returncode, done.stderr) == (2, sentence)
    missing = "there is no flow or state file 'other'; redrive fleet lists them"
    assert missing in run_redrive("runs", "other").stderr
    assert "nor is there a flow or a state file 'other'" in run_redrive("tasks", "other").stderr


def test_a_mistyped_task_is_told_with_the_one_that_is_meant(two_runs: Path) -> None:
    for words in (("logs", "extrat"), ("why", "extrat"), ("requeue", "extrat", "--reason", "x")):
        done = run_redrive(*words)
        assert done.returncode == 2
        assert "nightly: run second has no task 'extrat'; did you mean 'extract'?" in done.stderr
    assert "; the flow comes first: redrive why nightly extract\n" in run_redrive("why", "extract", "nightly").stderr
    run_flow("other")
    assert "; the flow comes first: redrive why nightly extract\n" in run_redrive("why", "extract", "nightly").stderr
    assert "redrive: monday is no flow, and read as the run @monday\n" in run_redrive("rerun", "monday").stderr


def test_a_flow_named_by_the_environment_is_a_path_as_for_a_run(states, monkeypatch):
    run_flow("payments")
    monkeypatch.setenv("REDRIVE_STATE", "payments")
    assert existing_target(None) == "payments"


@pytest.mark.long
def test_a_flow_may_stand_before_the_tasks_whose_output_is_read(two_runs: Path, states: Path) -> None:
    """As it does in other commands; a task of that name in the usual state file comes first."""
    run_flow("load")
    run_flow("late")
    assert run_redrive("logs", "nightly", "extract").returncode == 0
    assert run_redrive("logs", str(two_runs), "load").returncode == 0
    done = run_redrive("logs", "nightly", "nosuch")
    assert done.returncode and "run second has no task 'nosuch'" in done.stderr
    assert "has no task 'nosuch'" in run_redrive("logs", "nosuch").stderr
    assert run_redrive("logs", "nightly", "load").returncode == 0


def test_a_command_that_there_is_not_is_told_with_the_one_that_is_meant() -> None:
    done = run_redrive("inbx")
    assert done.returncode == 2 and "No such command 'inbx'. (Did you mean 'inbox'?)" in done.stderr
    assert "Did you mean" not in run_redrive("zzz").stderr
    done = run_redrive("systems", "braekers")
    assert done.returncode == 2 and "no flow or list 'braekers' (Did you mean 'breakers'?)" in done.stderr
    assert "No such command 'status'. (Did you mean 'fleet' or 'tasks'?)" in run_redrive("status").stderr


def test_a_command_that_there_was_is_told_with_what_is_in_its_place() -> None:
    for old, new in GONE.items():
        done = run_redrive(old, "--json")
        assert done.returncode == 2 and f"there is no command '{old}' any more: {new} does its work" in done.stderr


def test_what_other_tools_call_a_command_is_one_here() -> None:
    commands = all_commands()
    assert not WORDS_OF_OTHER_TOOLS.keys() & commands.keys()
    assert {one.split()[0] for words in WORDS_OF_OTHER_TOOLS.values() for one in words} <= commands.keys()
