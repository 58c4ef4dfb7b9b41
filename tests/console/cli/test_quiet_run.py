"""``redrive run --quiet`` and ``--output``: what cron mails."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from redrive.console.cli.unattended import EVENTS_MAX, FailureRecord
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event
from support.commands import run_redrive

GOOD = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("good", retry=RetryPolicy(base=0.01))
@flow.task
def a(): print("hello")
flow.command("b", "test $REDRIVE_ATTEMPT = 2 || { echo not yet; exit 75; }", after=[a], max_attempts=2)
"""
BAD = """
from redrive.engine import Flow, PermanentError
flow = Flow("bad")
@flow.task
def fine(): print("nobody asks")
@flow.task
def load():
    print("read 7 rows")
    raise PermanentError("column 'price' is\\nmissing")
@flow.task(after=[load])
def report(): pass
"""


def test_a_run_that_succeeds_after_a_retry_is_silent(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    done = run_redrive("run", "good.py", "--quiet", "--state", "g.db", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_run_that_needs_a_human_is_reported_in_full(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    done = run_redrive("run", "bad.py", "--quiet", "--state", "b.db", "--run-id", "night", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    output = done.stdout
    assert re.search(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] load DEAD_LETTER PermanentError .*column 'price' is", output, re.M
    )
    assert "  load | read 7 rows\n" in output
    assert "run night of bad: BLOCKED, in " in output
    assert "fine" not in output
    commands = [line.strip() for line in output.splitlines() if line.strip().startswith("redrive ")]
    assert [shlex.split(line)[1] for line in commands] == ["logs", "requeue", "skip", "attach"]
    for line, options in zip(commands[:3], ([], ["--dry-run"], []), strict=True):  # they work from any folder
        _, command, *words = shlex.split(line)
        answer = run_redrive(command, *options, *words, cwd="/")
        assert answer.returncode == 0, answer.stderr


def test_a_flow_that_cannot_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    done = run_redrive("run", "bad.py", "--quiet", cwd=tmp_path)
    assert done.returncode == 2
    assert "ZeroDivisionError: division by zero" in done.stderr


def test_the_record_of_a_long_run_stays_bounded() -> None:
    record = FailureRecord("f.db")
    payload = TaskMoved(set={"next_retry_at": 2_000_000}, attempt_set={"outcome": "error"}, explain="ValueError a.py:1")
    for seq in range(EVENTS_MAX + 7):
        record.add([Event(seq, 1_000_000, "task", "r", "a", "RUNNING", "RETRYING", 1, 0, None, None, None, payload)])
    lines = list(record.lines())
    assert len(lines) == 1 + 2 * EVENTS_MAX  # each event has two lines
    assert lines[0].startswith("... 7 earlier events")


@pytest.mark.parametrize("words", [["--plain", "--output"], ["--output"]])
def test_the_output_of_tasks_is_between_the_lines_on_request(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    done = run_redrive("run", "good.py", *words, "--state", "g.db", cwd=tmp_path)
    assert done.returncode == 0
    lines = [re.sub(r"^\[.*?\] ", "", line) for line in done.stdout.splitlines()]
    assert lines[:3] == ["a RUNNING", "a | hello", "a SUCCESS"]
    assert lines.index("b | not yet") < next(place for place, line in enumerate(lines) if line.startswith("b FAILED"))


def test_output_is_not_printed_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    done = run_redrive("run", "good.py", "--plain", "--state", "g.db", cwd=tmp_path)
    assert "hello" not in done.stdout


def test_the_listing_of_events_has_dates(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    run_redrive("run", "good.py", "--quiet", "--state", "g.db", cwd=tmp_path)
    heading, *lines = run_redrive("events", "g.db", cwd=tmp_path).stdout.splitlines()
    assert "g.db" in heading and lines
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line) for line in lines)


def test_the_short_report_of_a_run_is_the_one_that_the_console_copies(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    run_redrive("run", "bad.py", "--quiet", "--state", "b.db", "--run-id", "night", cwd=tmp_path)
    done = run_redrive("report", "--short", "--state", "b.db", cwd=tmp_path)
    assert done.returncode == 0
    first, second, cause = done.stdout.splitlines()
    assert first.startswith(f"**bad** `night` on `{tmp_path}/b.db`: BLOCKED after ")
    assert second.startswith("1 of 3 done (1 DEAD, 1 ok, 1 pending)")
    assert "`load`; holds 1 task" in cause
