"""Acts from the shell hit what was meant, and say what else is needed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support.commands import quoted, run_redrive

FLOW = """
from redrive.engine import Flow, PermanentError
flow = Flow("f")
class A(PermanentError): ...
class B(PermanentError): ...
@flow.task
def a(): raise A("no")
@flow.task
def b(): raise B("no")
@flow.task(after=[a])
def c(): ...
"""
MANY = """
from redrive.engine import Flow, PermanentError
flow = Flow("m")
def failing(kind):
    def body(): raise kind("no")
    return body
for number in range(17):
    flow.task(failing(type(f"Error{number}", (PermanentError,), {})), name=f"t{number}")
"""
SLEEPING = """
import time
from redrive.engine import Flow
flow = Flow("s")
@flow.task
def sleep(): time.sleep(600)
"""


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    (tmp_path / "f.py").write_text(FLOW)
    assert run_redrive("run", tmp_path / "f.py", "--state", tmp_path / "f.db").returncode == 3
    return tmp_path / "f.db"


@pytest.mark.long
def test_a_digit_that_fits_several_causes_acts_on_none(tmp_path: Path) -> None:
    """Of seventeen causes two begin with the same digit."""
    (tmp_path / "m.py").write_text(MANY)
    state = tmp_path / "m.db"
    assert run_redrive("run", tmp_path / "m.py", "--state", state).returncode == 3
    tasks = [json.loads(line) for line in run_redrive("tasks", state, "--json").stdout.splitlines()]
    causes = [attempt["fingerprint_loose"] for task in tasks for attempt in task["attempts"]]
    ((digit, _),) = Counter(cause[0] for cause in causes).most_common(1)
    done = run_redrive("requeue", state, "--fingerprint", digit, "--reason", "x")
    assert done.returncode == 2
    assert "give more digits" in done.stderr
    assert run_redrive("tasks", state).stdout.count("DEAD_LETTER") == 17
    assert run_redrive("requeue", state, "--fingerprint", causes[0], "--reason", "x").returncode == 0
    assert run_redrive("tasks", state).stdout.count("DEAD_LETTER") == 16


def test_a_name_given_twice_counts_once_and_the_runner_is_named(blocked: Path) -> None:
    done = run_redrive("requeue", blocked, "b", "b", "--reason", "x")
    assert done.returncode == 0
    place, answer = done.stdout.splitlines()
    assert re.fullmatch(f"f \\S+ in {blocked}", place) and answer.startswith("b: runs again")
    run_id = place.split()[1]
    assert done.stderr.endswith(f"; go on with: redrive resume {quoted(blocked)}@{run_id}\n")


@pytest.mark.long
def test_what_waits_says_for_what(blocked: Path) -> None:
    (line,) = [line for line in run_redrive("tasks", blocked).stdout.splitlines() if line.startswith("c ")]
    assert "PENDING" in line and "a" in line.split("0/3")[1]


@pytest.mark.long
def test_a_removed_lock_file_lets_no_second_executor_in(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SLEEPING)
    state = tmp_path / "s.db"
    assert run_redrive("run", tmp_path / "s.py", "--state", state, "--run-id", "one", "--detach").returncode == 0
    try:
        (tmp_path / "s.db.lock").unlink()
        second = run_redrive("run", tmp_path / "s.py", "--state", state, "--run-id", "two")
        assert second.returncode == 75
        assert "another executor" in second.stderr  # its socket says so, or the lock that it has made again
        assert "sleep" in run_redrive("tasks", state).stdout
    finally:
        run_redrive("cancel", state, "--run", "one", "sleep", "--reason", "the test is over")


def test_a_rule_that_makes_no_sense_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(
        "from redrive.engine import Flow\n"
        "flow = Flow('r')\n"
        "flow.downstream('d', rules=[{'status': 'x', 'class': 'transient'}])\n"
        "flow.command('t', 'exit 4', downstream='d')\n"
    )
    done = run_redrive("run", tmp_path / "r.py", "--state", tmp_path / "r.db")
    assert done.returncode == 2
    assert "downstream 'd'" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "r.db").exists()


@pytest.mark.long
def test_a_requeue_goes_on_with_an_executor_or_changes_nothing(blocked: Path) -> None:
    """In one command, also in a dry run; if none can start, the reason is said and no task has moved."""
    previewed = run_redrive("requeue", blocked, "a", "--resume", "--dry-run")
    assert "then an executor goes on" in previewed.stderr and "would run again (1): a" in previewed.stdout
    without_reason = run_redrive("requeue", blocked, "a", "--resume")
    assert without_reason.returncode == 2 and "goes on" not in without_reason.stderr
    flow = blocked.with_name("f.py")
    flow.write_text("syntax(")
    refused = run_redrive("requeue", blocked, "a", "--resume", "--reason", "x")
    assert refused.returncode == 2 and "nothing was changed" in refused.stderr and "SyntaxError" in refused.stderr
    assert "DEAD_LETTER" in next(line for line in run_redrive("tasks", blocked).stdout.splitlines() if line[:2] == "a ")
    flow.write_text(FLOW.replace('raise A("no")', "..."))
    done = run_redrive("requeue", blocked, "a", "--resume", "--accept-changes", "--reason", "x")
    assert done.returncode == 2, "no such option: a change of the flow is accepted by redrive resume"
    flow.write_text(FLOW)
    done = run_redrive("requeue", blocked, "a", "--resume", "--reason", "x")
    assert done.returncode == 0 and "runs; redrive attach" in done.stdout and "an executor goes on" in done.stderr
