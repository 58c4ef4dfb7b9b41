"""Bulk acts: tasks by glob, class and state, with a preview and consent first."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from redrive.console.cli.operate import ActRequest, names_in_bulk
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RedriveError
from support.commands import run_redrive
from support.marks import parametrize_mostly_long

from ..model.runs import projection_of

FLOW = """
from redrive.engine import AuthError, Flow, PermanentError
flow = Flow("f")
@flow.task
def load_a(): raise PermanentError("no")
@flow.task
def load_b(): raise AuthError("refused")
@flow.task
def load_c(): pass
@flow.task
def send(): raise PermanentError("neither")
@flow.task(after=[load_a])
def report(): pass
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended with three dead letters."""
    folder = tmp_path_factory.mktemp("ended")
    (folder / "f.py").write_text(FLOW)
    done = run_redrive("run", folder / "f.py", "--state", folder / "f.db", "--run-id", "r", "--plain")
    assert done.returncode == 3
    return folder


@pytest.fixture
def blocked(ended: Path, tmp_path: Path) -> Path:
    """The state file of the run, for one test."""
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    return tmp_path / "f.db"


def state_of(folder: Path, flow: str) -> Path:
    """The state file of a run of a flow, given as text."""
    (folder / "flow.py").write_text(flow)
    run_redrive("run", folder / "flow.py", "--state", folder / "flow.db", "--run-id", "r", "--plain")
    return folder / "flow.db"


def pending(state: Path) -> set[str]:
    """The tasks that a requeue has brought back."""
    rows = [json.loads(line) for line in run_redrive("tasks", state, "--json").stdout.splitlines()]
    return {row["name"] for row in rows if row["generation"] == 1}


@parametrize_mostly_long(
    ("words", "names"),
    [
        (["load_*"], {"load_a", "load_b"}),
        (["*"], {"load_a", "load_b", "send"}),
        (["load_*", "send"], {"load_a", "load_b", "send"}),
        (["--class", "auth"], {"load_b"}),
        (["--only", "dead_letter"], {"load_a", "load_b", "send"}),
        (["load_*", "--only", "SUCCESS"], {"load_c"}),
        (["load_*", "--class", "permanent"], {"load_a"}),
    ],
    quick=1,
)
def test_a_bulk_requeue_takes_the_tasks_that_it_previews(blocked: Path, words: list[str], names: set[str]) -> None:
    act = ("requeue", blocked, *words, "--reason", "fixed")
    refused = run_redrive(*act)
    assert refused.returncode == 2
    assert f"would run again ({len(names)}): " in refused.stderr
    assert f"this would requeue {len(names)} task" in refused.stderr
    assert "--yes" in refused.stderr
    assert pending(blocked) == set()
    done = run_redrive(*act, "--yes")
    assert done.returncode == 0, done.stderr
    assert pending(blocked) == names


def test_a_whole_cause_is_asked_about_unless_it_is_one_task(tmp_path: Path) -> None:
    flow = (
        "from redrive.engine import AuthError, Flow, PermanentError\nflow = Flow('c')\n"
        "def no(): raise PermanentError('no')\nflow.task(no, name='part_a')\nflow.task(no, name='part_b')\n"
        "@flow.task\ndef login(): raise AuthError('refused')\n"
    )
    (tmp_path / "c.py").write_text(flow)
    state = tmp_path / "c.db"
    run_redrive("run", tmp_path / "c.py", "--state", state, "--plain")
    rows = {row["name"]: row for row in map(json.loads, run_redrive("tasks", state, "--json").stdout.splitlines())}
    refused = run_redrive(*requeue_cause(state, rows["part_a"]))
    assert refused.returncode == 2
    assert "would run again (2): part_a, part_b" in refused.stderr and "this would requeue 2 tasks" in refused.stderr
    assert run_redrive(*requeue_cause(state, rows["login"])).returncode == 0
    assert pending(state) == {"login"}
    assert run_redrive(*requeue_cause(state, rows["part_a"]), "--yes").returncode == 0
    assert pending(state) == {"login", "part_a", "part_b"}


def test_every_list_names_a_cause_by_one_fingerprint_and_every_command_accepts_it(tmp_path: Path) -> None:
    flow = (
        "from redrive.engine import Flow, PermanentError\nflow = Flow('c')\n"
        "def no(first):\n    if first: raise PermanentError('no')\n    raise PermanentError('never')\n"
        "flow.task(lambda: no(True), name='part_a')\nflow.task(lambda: no(False), name='part_b')\n"
        "flow.page('command', line='true')\n"
    )
    state = state_of(tmp_path, flow)
    rows = [json.loads(line) for line in run_redrive("tasks", state, "--json").stdout.splitlines()]
    assert len({row["failure_fingerprint"] for row in rows}) == 2, "two lines of one function"
    events = run_redrive("events", state).stdout
    named = {*re.findall(r"fp=(\w+)", events), *re.findall(r"PAGED on-call: .* \((\w+)\)", events)}
    named |= {*re.findall(r"\(fp (\w+)\)", run_redrive("inbox", state).stdout)}
    (name,) = named
    assert "(2)" in run_redrive("requeue", state, "--fingerprint", name, "--dry-run").stdout
    everywhere = run_redrive("requeue", state, "--fingerprint", name, "--all-runs", "--dry-run")
    assert "(2): part_a, part_b" in everywhere.stdout
    assert run_redrive("note", state, "--fingerprint", name, "call Ana").returncode == 0
    assert "call Ana" in run_redrive("inbox", state).stdout


def test_page_line_and_inbox_name_the_cause_of_a_hang_by_one_fingerprint(tmp_path: Path) -> None:
    flow = (
        "from redrive.engine import Flow\nflow = Flow('c')\n"
        "flow.command('hangs', 'sleep 600', timeout=1, max_attempts=1)\nflow.page('command', line='true')\n"
    )
    state = state_of(tmp_path, flow)
    events = run_redrive("events", state).stdout
    (paged,) = {*re.findall(r"PAGED on-call: .* \((\w+)\)", events), *re.findall(r" FAILED .* \(fp=(\w+)\)", events)}
    assert re.findall(r"\(fp (\w+)\)", run_redrive("inbox", state).stdout) == [paged]
    assert "(1)" in run_redrive("requeue", state, "--fingerprint", paged, "--dry-run").stdout


def requeue_cause(state: Path, row: dict[str, Any]) -> tuple[object, ...]:
    cause = row["attempts"][-1]["fingerprint_loose"]
    return ("requeue", state, "--fingerprint", cause, "--reason", "fixed")


def test_a_requeue_that_may_repeat_an_effect_says_what_to_check_first(tmp_path: Path) -> None:
    flow = (
        "from redrive.engine import Flow\nflow = Flow('p')\n"
        "@flow.task(kind='effect', timeout=30)\ndef pay(): raise RuntimeError('the line went dead')\n"
    )
    state = state_of(tmp_path, flow)
    requeue = ("requeue", state, "pay", "--reason", "not paid")
    refused = run_redrive(*requeue)
    assert refused.returncode == 2
    assert "first look for the key r/pay/0 in the other system: pay may have happened" in refused.stderr
    assert "this would requeue 1 task" in refused.stderr and "--yes" in refused.stderr
    assert pending(state) == set()
    assert run_redrive(*requeue, "--yes").returncode == 0
    assert pending(state) == {"pay"}


def test_a_bulk_skip_leaves_what_has_not_failed(blocked: Path) -> None:
    assert run_redrive("skip", blocked, "*", "--yes", "--reason", "not tonight").returncode == 0
    rows = [json.loads(line) for line in run_redrive("tasks", blocked, "--json").stdout.splitlines()]
    assert {row["name"] for row in rows if row["state"] == "SKIPPED"} == {"load_a", "load_b", "send"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing_*"], "no task of run r that fits 'nothing_*' is DEAD_LETTER or FAILED"),
        (["load_c*"], "no task of run r that fits 'load_c*' is DEAD_LETTER or FAILED"),
        (["--class", "timeout"], "no task of run r that fits class timeout is"),
        (["load_*", "nothing"], "run r has no task 'nothing'"),
    ],
)
def test_a_bulk_act_on_nothing_says_so(blocked: Path, words: list[str], sentence: str) -> None:
    done = run_redrive("requeue", blocked, *words, "--yes", "--reason", "fixed")
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_dry_run_of_a_bulk_act_needs_no_consent(blocked: Path) -> None:
    done = run_redrive("requeue", blocked, "*", "--dry-run")
    assert done.returncode == 0
    assert "would run again (3): load_a, load_b, send" in done.stdout
    assert "dry run: nothing was changed" in done.stdout


def test_a_task_whose_name_is_a_glob_is_meant_in_full(tmp_path: Path) -> None:
    flow = (
        "from redrive.engine import Flow, PermanentError\nflow = Flow('g')\n"
        "def no(): raise PermanentError('no')\nflow.task(no, name='part[1]')\nflow.task(no, name='part1')\n"
    )
    (tmp_path / "g.py").write_text(flow)
    state = tmp_path / "g.db"
    run_redrive("run", tmp_path / "g.py", "--state", state, "--plain")
    assert run_redrive("requeue", state, "part[1]", "--reason", "x").returncode == 0
    assert pending(state) == {"part[1]"}


def test_a_glob_of_an_answer_means_what_waits_for_an_approval_and_nothing_that_waits_for_a_slot() -> None:
    kinds = {name: {"kind": "approval", "timeout": 60.0} for name in ("ok", "ok_later")}
    projection = projection_of([("ok", []), ("ok_later", []), ("out", [])], kinds)
    projection.tasks["ok"].state = projection.tasks["out"].state = TaskState.READY
    assert names_in_bulk(projection, ActRequest("approve", ["o*"])) == ["ok"]
    with pytest.raises(RedriveError, match=r"no task of run run-1 that fits 'out\*' waits for an approval"):
        names_in_bulk(projection, ActRequest("reject", ["out*"]))
