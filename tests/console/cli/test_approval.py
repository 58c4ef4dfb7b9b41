"""A human's approval as a task: asked in the inbox, answered by a command, with who and why in the journal."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from redrive.engine.executor import host
from redrive.engine.statefile import lists
from support.commands import run_redrive
from support.processes import wait_for_end
from support.pty_terminal import in_time
from support.waiting import wait_until

FLOW = """
from redrive.engine import Flow
flow = Flow("release", timeout="10m")
@flow.task
def build():
    return "1.4"
flow.approval("ok", after=build{options})
@flow.task(after=["ok", build])
def publish(ok, build):
    print(build, "approved by", ok["approved_by"].partition("@")[0], "because", ok["reason"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "release.py").write_text(FLOW.format(options=""))
    return tmp_path


def redrive(folder: Path, *words: object, code: int = 0) -> CompletedProcess[str]:
    done = run_redrive(*words, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def start(folder: Path, *, code: int = 3) -> str:
    return redrive(folder, "run", "release.py", "--state", "s.db", "--plain", "--run-id", "r", code=code).stdout


def state_of(folder: Path, task: str = "ok", columns: str = "state") -> tuple[object, ...]:
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        return tuple(connection.execute(f"SELECT {columns} FROM task WHERE name = ?", (task,)).fetchone())


def test_it_waits_in_the_inbox_and_holds_no_process(folder: Path) -> None:
    said = start(folder)
    assert "ok READY: it waits for an approval" in said
    assert "BLOCKED: ok waits for an approval (redrive approve " in said
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        assert [(line.counts["READY"], line.asked) for line in lists.runs(connection)] == [(1, 1)]
    inbox = redrive(folder, "inbox", "s.db", code=3).stdout
    assert "1 × waits for an approval · holds 1" in inbox
    asked, *answers = [line for line in inbox.splitlines() if line.startswith("  ")]
    assert re.fullmatch(r"  READY ok 0/1: asked at \S+; approve or reject ok", asked)
    place = f"{folder / 's.db'}@r --resume --reason TEXT -- ok"
    assert answers == [f"  redrive approve {place}", f"  redrive reject {place}"]
    assert redrive(folder, "inbox", "--quiet", "s.db", code=3).stdout == ""
    row = json.loads(redrive(folder, "inbox", "--json", "s.db", code=3).stdout)
    assert (row["need"], row["tasks"]) == ("approval", ["ok"])
    assert "ok READY: waits for an approval for" in redrive(folder, "why", "s.db", "ok").stdout
    below = redrive(folder, "why", "s.db", "publish").stdout
    assert "publish PENDING: waits for ok, which waits for an approval\n" in below
    pages = redrive(folder, "pages", "s.db").stdout
    assert "approval on ok" in pages
    summary = redrive(folder, "report", "s.db", "--short").stdout
    assert "1 approve?" in summary and "`ok`; holds 1 task" in summary and "fingerprint" not in summary


def test_an_approval_lets_go_on_what_waits_for_it_and_says_who_and_why(folder: Path) -> None:
    start(folder)
    assert "say why" in redrive(folder, "approve", "s.db", "ok", code=2).stderr
    assert "No such option" in redrive(folder, "approve", "s.db", "--only", "READY", "--reason", "x", code=2).stderr
    refused = redrive(folder, "approve", "s.db", "build", "--reason", "x", code=1).stdout
    assert "build: it waits for no approval" in refused
    preview = redrive(folder, "approve", "s.db", "ok", "--reason", "x", "--dry-run").stdout
    assert "would be answered (1): ok" in preview
    redrive(folder, "approve", "s.db", "ok", "--reason", "numbers fit")
    assert state_of(folder, "ok", "state, attempt, expires_at") == ("SUCCESS", 0, None)
    resumed = redrive(folder, "resume", "s.db", "--plain", "--output").stdout
    assert "1.4 approved by" in resumed and "because numbers fit" in resumed
    journal = redrive(folder, "events", "s.db").stdout
    assert "ok SUCCESS by " in journal and ": numbers fit" in journal
    assert "approved" in redrive(folder, "why", "s.db", "ok").stdout
    assert redrive(folder, "inbox", "--quiet", "s.db").returncode == 0
    again = redrive(folder, "approve", "s.db", "ok", "--reason", "twice", code=1).stdout
    assert "ok: a task in SUCCESS cannot be approved" in again


@pytest.mark.long
def test_a_rejection_fails_it_for_good_in_a_class_of_its_own(folder: Path) -> None:
    start(folder)
    preview = redrive(folder, "reject", "s.db", "ok", "--reason", "x", "--dry-run").stdout
    assert "would be stopped below (1): publish" in preview
    redrive(folder, "reject", "s.db", "ok", "--reason", "not on a Friday")
    assert state_of(folder, "ok", "state, failure_class, attempt") == ("FAILED", "rejected", 0)
    assert state_of(folder, "publish") == ("UPSTREAM_FAILED",)
    redrive(folder, "resume", "s.db", "--plain", code=1)
    assert "1 × rejected" in redrive(folder, "inbox", "s.db", code=1).stdout
    redrive(folder, "requeue", "s.db", "ok", "--reason", "it is Monday")
    redrive(folder, "resume", "s.db", "--plain", code=3)
    assert state_of(folder) == ("READY",)


def test_without_an_answer_it_fails_at_its_timeout(folder: Path) -> None:
    (folder / "release.py").write_text(FLOW.format(options=', timeout="0.8s", owner="ops"'))

    def is_asked_before() -> bool:
        for file in folder.glob("s.db*"):
            file.unlink()
        said = start(folder, code=1)
        assert "ok FAILED nobody has approved it by " in said
        return re.search(r"BLOCKED: ok waits for an approval until \d\d:\d\d", said) is not None

    in_time(is_asked_before)
    assert state_of(folder, "ok", "state, failure_class") == ("FAILED", "unanswered")
    assert "nobody has approved it by" in redrive(folder, "why", "s.db", "ok").stdout


@pytest.mark.long
def test_an_answer_after_its_timeout_is_refused_also_without_an_executor(folder: Path) -> None:
    start(folder)
    with closing(sqlite3.connect(folder / "s.db")) as connection, connection:
        connection.execute("UPDATE task SET expires_at = 1 WHERE name = 'ok'")
    late = redrive(folder, "approve", "s.db", "ok", "--reason", "now", code=1).stdout
    assert "nobody has approved it by" in late
    inbox = redrive(folder, "inbox", "s.db", code=3).stdout
    assert "without an answer; until then approve or reject ok" in inbox
    redrive(folder, "resume", "s.db", "--plain", code=1)
    assert state_of(folder, "ok", "state, failure_class") == ("FAILED", "unanswered")


@pytest.fixture
def executor(folder: Path) -> Iterator[list[int]]:
    flow, state = str(folder / "release.py"), str(folder / "s.db")

    def spawn() -> int:
        return host.spawn(flow=flow, state=state, run_id="r", options={"stay": True})

    pids = [spawn()]
    wait_until(lambda: state_of(folder) == ("READY",))
    yield pids
    for pid in pids:
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)


@pytest.mark.long
def test_it_survives_the_death_of_its_executor(folder: Path, executor: list[int]) -> None:
    pid = executor.pop()
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    assert state_of(folder) == ("READY",)
    redrive(folder, "approve", "s.db", "ok", "--reason", "fits")
    redrive(folder, "resume", "s.db", "--plain")
    assert state_of(folder, "publish") == ("SUCCESS",)
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        assert connection.execute("SELECT count(*) FROM attempt WHERE name = 'ok'").fetchone() == (0,)


def test_a_living_executor_goes_on_at_once(folder: Path, executor: list[int]) -> None:
    redrive(folder, "approve", "s.db", "ok", "--reason", "fits")
    wait_until(lambda: state_of(folder, "publish") == ("SUCCESS",))


@pytest.mark.long
def test_a_parent_that_runs_again_takes_the_question_back(folder: Path, executor: list[int]) -> None:
    redrive(folder, "requeue", "s.db", "build", "--reason", "1.5")
    wait_until(lambda: state_of(folder, "build", "state, generation") == ("SUCCESS", 1))
    wait_until(lambda: state_of(folder) == ("READY",))
    redrive(
        folder,
        "skip",
        "ok",
        "--state",
        "s.db",
        "--reason",
        "no need",
        "--substitute",
        '{"approved_by": "-", "reason": "-"}',
    )
    wait_until(lambda: state_of(folder, "publish") == ("SUCCESS",))


def test_the_report_for_cron_names_the_commands_that_answer(folder: Path) -> None:
    said = redrive(folder, "run", "release.py", "--state", "s.db", "--quiet", "--run-id", "r", code=3).stdout
    place = f"{folder / 's.db'}@r --resume --reason"
    lines = [line.strip() for line in said.splitlines() if line.startswith("  redrive")]
    assert lines == [
        f"redrive approve {place} 'as it should be' -- ok",
        f"redrive reject {place} 'not as it should be' -- ok",
    ]
    redrive(folder, *shlex.split(lines[0])[1:])
    assert state_of(folder) == ("SUCCESS",)


@pytest.mark.long
def test_the_line_of_a_blocked_run_counts_what_waits_and_has_the_command(folder: Path) -> None:
    tasks = 'flow.approval("a")\nflow.approval("b")\nflow.command("broken", "exit 127", max_attempts=1)\n'
    (folder / "release.py").write_text(f"from redrive.engine import Flow\nflow = Flow('f')\n{tasks}")
    last = start(folder).splitlines()[-1]
    assert "BLOCKED: 2 approvals wait (a, b); 1 dead letter waits for a decision (redrive approve " in last
    said = redrive(folder, "resume", "s.db", "--plain", code=3).stdout
    why = "run r BLOCKED: 2 approvals wait (a, b); 1 dead letter waits for a decision"
    state = folder / "s.db"
    place = f"{state}@r --reason ... -- a b; redrive inbox {state}@r"
    assert said.splitlines()[-1] == f"{why} (redrive approve {place})"
    command, _ = last.split("(redrive ")[1].split("; redrive inbox ")
    assert "a: approved" in redrive(folder, *shlex.split(command)).stdout
