"""What needs a human in any unfinished run of a state file is listed, whichever run is the latest."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from support.commands import quoted, run_redrive, start_redrive
from support.waiting import wait_until

FLOW = """
import pathlib, time
from redrive.engine import Flow, PermanentError
flow = Flow("nightly")
flow.page("command", line="cat >> {pages}")
@flow.task
def extract():
    if pathlib.Path("{broken}").exists():
        raise PermanentError("no")
    if pathlib.Path("{slow}").exists():
        time.sleep(600)
@flow.task(after=[extract])
def load(): ...
"""


class NightlyFlow:
    """A flow that can be broken, or slow, in one state file."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "night.db"
        self.broken, self.slow, self.pages = folder / "broken", folder / "slow", folder / "pages"
        self.flow = folder / "nightly.py"
        self.flow.write_text(FLOW.format(broken=self.broken, slow=self.slow, pages=self.pages))

    def run(self, run_id: str, code: int = 0) -> str:
        done = run_redrive("run", self.flow, "--state", self.state, "--run-id", run_id)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def run_broken(self, run_id: str) -> None:
        self.broken.touch()
        self.run(run_id, code=3)
        self.broken.unlink()

    def run_and_kill(self, run_id: str) -> None:
        """Kill the executor with its processes while ``extract`` runs."""
        self.slow.touch()
        process = start_redrive("run", self.flow, "--state", self.state, "--run-id", run_id, start_new_session=True)
        assert process.stdout is not None
        while "extract RUNNING" not in process.stdout.readline():
            assert process.poll() is None
        process.kill()
        process.wait()
        self.slow.unlink()

    def states(self) -> dict[str, str]:
        runs = map(json.loads, self.redrive("runs", self.state, "--json").stdout.splitlines())
        return {run["run_id"]: run["state"] for run in runs}

    def redrive(self, *words: object) -> subprocess.CompletedProcess[str]:
        return run_redrive(*words)

    def inbox(self) -> list[str]:
        return self.redrive("inbox", self.state).stdout.splitlines()


@pytest.fixture
def nightly(tmp_path: Path) -> NightlyFlow:
    return NightlyFlow(tmp_path)


def test_the_inbox_lists_the_blocked_run_before_the_latest(nightly: NightlyFlow) -> None:
    nightly.run_broken("first")
    last_line = nightly.run("second").splitlines()[-1]
    assert (
        last_line == f"1 other run needs a human: first (BLOCKED, 1 dead letter): redrive inbox {quoted(nightly.state)}"
    )
    latest, nothing, blocked, cause, *_ = nightly.inbox()
    assert latest == f"nightly second in {nightly.state}: SUCCESS"
    assert nothing == "nothing in this run needs a human"
    assert blocked == f"nightly first in {nightly.state}: BLOCKED"
    assert cause.startswith("1 × PermanentError")
    (value,) = map(json.loads, nightly.redrive("inbox", nightly.state, "--json").stdout.splitlines())
    assert (value["run_id"], value["state_file"], value["tasks"]) == ("first", str(nightly.state), ["extract"])
    assert (
        f"1 run needs a human: redrive inbox {quoted(nightly.state)}" in nightly.redrive("runs", nightly.state).stdout
    )


def test_the_inbox_of_a_named_run_is_of_this_run(nightly: NightlyFlow) -> None:
    nightly.run_broken("first")
    nightly.run("second")
    lines = nightly.redrive("inbox", nightly.state, "--run", "second").stdout.splitlines()
    assert lines == [f"nightly second in {nightly.state}: SUCCESS", "nothing in this run needs a human"]


def test_a_killed_run_is_reported_paged_and_listed(nightly: NightlyFlow) -> None:
    nightly.run_and_kill("first")
    lines = [line.partition("] ")[2] for line in nightly.run("second").splitlines()]
    (messages,) = [line for line in lines if "CUT OFF" in line]
    assert messages.startswith("run first was CUT OFF: its executor (pid ")
    resume, abandon = (
        f"redrive resume {quoted(nightly.state)}@first",
        f"redrive abandon {quoted(nightly.state)}@first",
    )
    assert messages.endswith(f"; {resume} goes on with it, {abandon} ends it")
    assert "run first: extract: attempt 1 is lost: its processes are gone" in lines
    assert any(line.startswith("run first: extract RETRYING") for line in lines)
    assert "extract SUCCESS" in lines  # of the run itself, without a label
    assert "run first was cut off" in nightly.pages.read_text()
    assert f"redrive resume {quoted(nightly.state)}@first" in nightly.pages.read_text()
    inbox = nightly.inbox()
    assert f"nightly first in {nightly.state}: CUT OFF" in inbox
    assert inbox[-1] == f"or end it: redrive abandon {quoted(nightly.state)}@first"
    (value,) = map(json.loads, nightly.redrive("inbox", nightly.state, "--json").stdout.splitlines())
    assert (value["run_id"], value["title"], value["tasks"]) == ("first", "run first has no executor", [])


@pytest.mark.long
def test_every_view_says_of_a_task_that_its_executor_was_killed(nightly: NightlyFlow) -> None:
    nightly.run_and_kill("first")
    sentence = "its executor ended"
    wait_until(lambda: sentence in nightly.redrive("tasks", nightly.state).stdout)
    assert f"extract CUT OFF: {sentence}" in nightly.redrive("why", nightly.state, "extract").stdout
    now = nightly.redrive("replay", nightly.state).stdout
    assert "CUT OFF" in now and sentence in now and "RUNNING" not in now
    before = nightly.redrive("replay", nightly.state, "--at", "3").stdout
    assert sentence not in before


@pytest.mark.long
def test_a_killed_run_is_paged_once_and_until_it_is_resumed(nightly: NightlyFlow) -> None:
    nightly.run_and_kill("first")
    nightly.run("second")
    assert "CUT OFF" not in nightly.run("third")
    pages = nightly.redrive("systems", "pages", nightly.state).stdout
    assert pages.count("run first was cut off") == 1
    assert nightly.redrive("resume", nightly.state, "--plain").returncode == 0
    assert "cut off" not in nightly.redrive("systems", "pages", nightly.state).stdout
    assert nightly.states()["first"] == "SUCCESS"


@pytest.mark.long
def test_a_run_that_was_killed_while_it_was_blocked_is_not_cut_off(nightly: NightlyFlow) -> None:
    nightly.broken.touch()
    process = start_redrive("run", nightly.flow, "--state", nightly.state, "--run-id", "first", "--stay")
    assert process.stdout is not None
    while "BLOCKED" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    nightly.broken.unlink()
    assert "CUT OFF" not in nightly.run("second")


# --- Abandon -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_abandon_ends_a_run_and_keeps_who_and_why(nightly: NightlyFlow) -> None:
    nightly.run_and_kill("first")
    nightly.run("second")
    done = nightly.redrive("abandon", f"{nightly.state}@first", "--reason", "too old")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"nightly first in {nightly.state}", "run first is abandoned: 2 tasks cancelled"],
    )
    assert nightly.states() == {"first": "ABANDONED", "second": "SUCCESS"}
    assert nightly.inbox() == [f"nightly second in {nightly.state}: SUCCESS", "nothing needs a human"]
    assert "cut off" not in nightly.redrive("systems", "pages", nightly.state).stdout
    with sqlite3.connect(nightly.state) as connection:
        assert connection.execute("SELECT state FROM task WHERE run_id = 'first'").fetchall() == [("CANCELLED",)] * 2
        ((actor, reason),) = connection.execute("SELECT actor, reason FROM event WHERE new = 'ABANDONED'").fetchall()
    assert "@" in actor and reason == "too old"
    again = nightly.redrive("abandon", f"{nightly.state}@first")
    assert again.returncode == 1 and "the run has ended: ABANDONED" in again.stderr
    assert nightly.redrive("resume", nightly.state, "--run", "first", "--plain").returncode == 1


def test_abandon_all_takes_each_unfinished_run(nightly: NightlyFlow) -> None:
    nightly.run_broken("first")
    nightly.run_broken("second")
    assert nightly.redrive("abandon", nightly.state, "--all").returncode == 0
    assert set(nightly.states().values()) == {"ABANDONED"}
    assert nightly.inbox()[-1] == "nothing needs a human"


@pytest.mark.long
def test_a_run_with_a_running_task_is_not_abandoned(nightly: NightlyFlow) -> None:
    nightly.slow.touch()
    process = start_redrive("run", nightly.flow, "--state", nightly.state, "--run-id", "first")
    assert process.stdout is not None
    try:
        while "extract RUNNING" not in process.stdout.readline():
            assert process.poll() is None
        done = nightly.redrive("abandon", f"{nightly.state}@first")
        assert done.returncode == 1
        assert "extract: it runs: stop the executor of the run, or cancel the task" in done.stdout
        assert "no run is unfinished" in nightly.redrive("abandon", nightly.state, "--all").stdout
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert nightly.states() == {"first": "IDLE"}  # its executor was stopped in order


@pytest.mark.long
def test_an_executor_that_stays_ends_with_its_abandoned_run(nightly: NightlyFlow) -> None:
    nightly.broken.touch()
    process = start_redrive("run", nightly.flow, "--state", nightly.state, "--run-id", "first", "--stay")
    assert process.stdout is not None
    while "BLOCKED" not in process.stdout.readline():
        assert process.poll() is None
    assert nightly.redrive("abandon", f"{nightly.state}@first").returncode == 0
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "run first ABANDONED by " in output


@pytest.mark.long
def test_a_requeue_opens_an_abandoned_run_again(nightly: NightlyFlow) -> None:
    nightly.run_broken("first")
    nightly.redrive("abandon", f"{nightly.state}@first")
    assert nightly.redrive("requeue", nightly.state, "extract", "load", "--reason", "x").returncode == 0
    assert nightly.redrive("resume", nightly.state, "--plain").returncode == 0
    assert nightly.states() == {"first": "SUCCESS"}


@pytest.mark.long
def test_a_run_that_a_clock_ahead_has_dated_comes_before_those_that_were_started_after_it(nightly: NightlyFlow) -> None:
    """The host booted once with a clock 400 days ahead: what ran since then is the latest, and ends what failed."""
    nightly.run_broken("ahead")
    run_redrive("abandon", f"{nightly.state}@ahead", "--reason", "test")
    with sqlite3.connect(nightly.state) as connection:
        connection.execute("UPDATE run SET state = 'FAILED', started_at = started_at + 400 * 86400 * 1000000")
    nightly.run("now")
    listed = run_redrive("runs", nightly.state).stdout.splitlines()
    assert [line.split()[0] for line in listed if " nightly " in line] == ["now", "ahead"]
    assert " now " in run_redrive("tasks", nightly.state).stdout.splitlines()[0]
    inbox = run_redrive("inbox", nightly.state)
    assert inbox.returncode == 0 and "1 later run succeeded" in inbox.stdout, inbox.stdout
