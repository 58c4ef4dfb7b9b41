"""What came of a cause before, and notes on it, from the shell: in real runs of a real file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.errors import PermanentError
from support.commands import invoke_redrive
from support.state_file import copy_state_file


def run(tmp_path: Path, run_id: str, broken: bool = True) -> str:
    """Two tasks that call one helper; one of them calls another service with it."""
    flow = Flow("nightly")

    def fetch(name: str) -> None:
        if broken:
            raise PermanentError(f"{name} said \x1b[31mno")

    flow.task(lambda: fetch("orders"), name="orders", timeout=30, downstream="shop")
    flow.task(lambda: fetch("refunds"), name="refunds", timeout=30, downstream="bank")
    return Executor(run_id=run_id, flow=flow, state=tmp_path / "state.db", max_parallel=1).run()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that was repaired, and the next one, which fails alike."""
    tmp_path = tmp_path_factory.mktemp("nights")
    run(tmp_path, "first")
    path = tmp_path / "state.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redrive.console.sessions.session.current_actor", lambda: "ana@ops-1")
        for act, task, reason in (("requeue", "orders", "schema reloaded"), ("skip", "refunds", "bank shut")):
            done = invoke_redrive(act, f"{path}@first", task, "--reason", reason)
            assert done.return_value == 0, done.output
    run(tmp_path, "first", broken=False)
    run(tmp_path, "second")
    return path


@pytest.fixture
def state(two_runs: Path, tmp_path: Path) -> Path:
    return copy_state_file(two_runs, tmp_path)


def causes(state: Path) -> dict[str, dict]:
    return {
        one["downstream"]: one for one in map(json.loads, invoke_redrive("inbox", state, "--json").output.splitlines())
    }


def test_the_inbox_lists_each_downstream_with_its_outcome(state):
    lines = invoke_redrive("inbox", state).output.splitlines()
    assert [line.partition("  (fp")[0].partition(" · ")[2] for line in lines if " × " in line] == ["shop", "bank"]
    before = [line.strip() for line in lines if line.startswith("  last time at ")]
    assert [line.partition(": ")[2].split(" after ")[0] for line in before] == [
        "1 task, requeued by ana 'schema reloaded', healed",
        "1 task, skipped by ana 'bank shut'",
    ]
    assert "\x1b" not in "".join(lines)


def test_the_inbox_as_json_holds_every_episode(state):
    shop = causes(state)["shop"]["memory"]
    ((decision, healed, run_id),) = [(one["decision"], one["healed"], one["run_id"]) for one in shop["episodes"]]
    assert (decision, healed, run_id, shop["runs"]) == ("requeue", 1, "first", 1)


def test_a_task_that_needs_a_human_says_how_it_went_the_last_time(state):
    (line,) = [line for line in invoke_redrive("tasks", state).output.splitlines() if line.startswith("orders ")]
    assert "permanent: orders said" in line and " · last time at " in line and "'schema reloaded', healed" in line


def test_an_act_by_fingerprint_is_about_one_downstream(state):
    mark = causes(state)["shop"]["fingerprint"]
    words = ("requeue", state, "--fingerprint", mark, "--reason", "x")
    assert "fits 2 causes, one for each downstream (bank, shop)" in str(invoke_redrive(*words).exception)
    assert "and calls nobody" in str(invoke_redrive(*words, "--downstream", "nobody").exception)
    done = invoke_redrive(*words, "--downstream", "bank")
    assert done.return_value == 0 and done.output.splitlines()[1].startswith("refunds: runs again")
    assert [downstream for downstream, cause in causes(state).items() if cause["tasks"]] == ["shop"]
    assert invoke_redrive(*words).return_value == 0


def test_the_first_time_there_is_nothing_to_add(tmp_path):
    run(tmp_path, "first")
    lines = invoke_redrive("tasks", tmp_path / "state.db").output.splitlines()
    memories = [line.partition("permanent: ")[2] for line in lines if line.startswith(("orders ", "refunds "))]
    assert [words.split()[0] for words in memories] == ["orders", "refunds"]
    assert not any(" · " in words or "last time" in words for words in memories)


def test_a_note_stands_first_from_now_on(state):
    mark = causes(state)["shop"]["fingerprint"]
    done = invoke_redrive("note", state, "--fingerprint", mark[:6], "--downstream", "shop", "ring the\x07 shop first")
    assert (done.return_value, done.output.splitlines()[1:]) == (0, ["noted"])
    lines = invoke_redrive("inbox", state).output.splitlines()
    assert lines[2].startswith("  note by ana, at ") and lines[2].endswith(": ring the shop first")
    assert sum("note by" in line for line in lines) == 1


@pytest.mark.long
def test_a_note_can_be_written_when_all_is_well_again(state, tmp_path):
    mark = causes(state)["bank"]["fingerprint"]
    invoke_redrive("requeue", state, "orders", "refunds", "--reason", "x")
    assert run(tmp_path, "second", broken=False) == "SUCCESS"
    assert invoke_redrive("note", state, "--fingerprint", mark, "it was the schema").return_value == 0
    run(tmp_path, "third")
    assert [one["text"] for one in causes(state)["bank"]["memory"]["notes"]] == ["it was the schema"]


def test_a_note_on_what_never_failed_is_refused_and_says_so(state):
    done = invoke_redrive("note", state, "--fingerprint", "00ff00ff", "x")
    assert done.return_value == 1
    assert done.output.splitlines()[1:] == ["nothing in this state file failed with that fingerprint"]
