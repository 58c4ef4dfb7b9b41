"""The deadline of a run as operators live it: real processes, by the command line."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine.executor import host
from redrive.engine.statefile import lock_file
from support.commands import quoted, run_redrive
from support.marks import parametrize_mostly_long
from support.processes import wait_for_end
from support.waiting import wait_until

FLOW = """
import os, subprocess, time
from pathlib import Path
from redrive.engine import Flow, PermanentError

HERE = Path(__file__).parent
flow = Flow("night", deadline={deadline!r})
flow.page("command", argv=["sh", "-c", 'cat >> "$0"; echo >> "$0"', str(HERE / "paged")])

@flow.task(timeout=60, grace_seconds=1)
def long():
    if (HERE / "mended").exists():
        return
    child = subprocess.Popen(["sleep", "1000"])
    (HERE / "child").write_text(str(child.pid))
    time.sleep(25)

@flow.task(after=long)
def after():
    (HERE / "after").touch()
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW.format(deadline="5s"))
    return tmp_path / "flow.py"


def output_of(*words: object, code: int | None = None) -> str:
    done = run_redrive(*map(str, words))
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_run_that_takes_too_long_is_ended_and_everybody_says_so(tmp_path: Path) -> None:
    for deadline in ("1s", "5s", "20s"):  # the later ones for a machine on which the task begins after the first
        flow = tmp_path / deadline / "flow.py"
        flow.parent.mkdir()
        flow.write_text(FLOW.format(deadline=deadline))
        state = flow.parent / "state.db"
        printed = output_of("run", flow, "--state", state, "--run-id", "r", "--plain", code=1)
        if (flow.parent / "child").exists():
            break
    with closing(sqlite3.connect(state)) as connection:
        ((overtime_us,),) = connection.execute("SELECT ended_at - deadline_at FROM run").fetchall()
    assert overtime_us < 20_000_000
    assert not Path("/proc", (flow.parent / "child").read_text()).exists()
    assert not (flow.parent / "after").exists()
    for line in (
        " passed: long is ended, 1 task is cancelled",
        "long sending SIGTERM",
        "long CANCELLED: deadline ",
        "after CANCELLED: deadline ",
        "run r FAILED: deadline ",
        "PAGED on-call: deadline missed",
    ):
        assert line in printed, printed
    assert (flow.parent / "paged").read_text().count('"title"') == 1
    for form in (["--short"], []):
        assert "(deadline " in output_of("report", *form, "--state", state)
    inbox = output_of("inbox", state)
    assert "2 × ended by the deadline" in inbox and "CANCELLED long" in inbox
    assert "deadline " in output_of("tasks", state)
    assert " passed: long is ended, 1 task is cancelled" in output_of("events", state)
    assert f"redrive postpone {quoted(state)}@r 1h" in output_of("systems", "pages", state, "--json")


@pytest.mark.long
def test_a_run_goes_on_after_its_deadline_when_an_operator_says_so(flow: Path) -> None:
    state = flow.parent / "state.db"
    output_of("run", flow, "--state", state, "--run-id", "r", "--plain", code=1)
    (flow.parent / "mended").touch()
    assert f"go on with: redrive resume {quoted(state)}@r --deadline 1h" in output_of(
        "resume", state, "--plain", code=1
    )
    preview = output_of("requeue", "--state", state, "long", "--dry-run")
    assert " passed: it goes on without one" in preview and "may go on (1): after" in preview
    resumed = output_of("resume", state, "--deadline", "1h", "--plain", code=0)
    assert "cancelled by the deadline, to run again" in resumed
    assert (flow.parent / "after").exists()


@pytest.mark.long
def test_a_requeue_alone_is_enough(flow: Path) -> None:
    state = flow.parent / "state.db"
    output_of("run", flow, "--state", state, "--run-id", "r", "--plain", code=1)
    (flow.parent / "mended").touch()
    answer = output_of("requeue", "--state", state, "long", "--reason", "mended", code=0)
    assert " passed: it goes on without one" in answer
    output_of("resume", state, "--plain", code=0)


@parametrize_mostly_long(("words", "code"), [((), 1), (("--deadline", "never"), 0)], quick=0)
def test_a_run_whose_executor_was_down_at_its_deadline(flow: Path, words: tuple[str, ...], code: int) -> None:
    state = flow.parent / "state.db"
    pid = host.spawn(flow=str(flow), state=str(state), run_id="r", options={})
    wait_until(lambda: (flow.parent / "child").exists())
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    wait_until(lambda: lock_file.current_holder(str(state)) is None)
    with closing(sqlite3.connect(state)) as connection:
        ((deadline_at,),) = connection.execute("SELECT deadline_at FROM run").fetchall()
    time.sleep(max(0.0, deadline_at / 1e6 - time.time()) + 0.1)
    (flow.parent / "mended").touch()
    printed = output_of("resume", state, "--plain", *words, code=code)
    assert ("the deadline of the run has passed and ends it at once" in printed) is (code == 1)
    assert (flow.parent / "after").exists() is (code == 0)


ONE_LETTER = """
from pathlib import Path
from redrive.engine import Flow, PermanentError

flow = Flow("night", deadline="2s")

@flow.task
def broken():
    if not (Path(__file__).parent / "mended").exists():
        raise PermanentError("no")

@flow.task(after=broken)
def below(): ...
"""


@pytest.mark.long
def test_a_dead_letter_of_a_run_that_is_over_is_listed_and_kept_until_somebody_decides(tmp_path: Path) -> None:
    flow, state = tmp_path / "flow.py", tmp_path / "state.db"
    flow.write_text(ONE_LETTER)
    output_of("run", flow, "--state", state, "--run-id", "late", "--stay", "--plain", code=1)
    (tmp_path / "mended").touch()
    flow.write_text(ONE_LETTER.replace('"2s"', '"1h"'))
    for run_id in ("good-1", "good-2"):
        output_of("run", flow, "--state", state, "--run-id", run_id, "--plain", code=0)
    ended = output_of("run", flow, "--state", state, "--run-id", "good-3", "--plain", code=0)
    flow.write_text(ONE_LETTER)
    assert "late (FAILED, 1 dead letter, 1 failed, 3 later runs succeeded)" in ended
    assert "DEAD_LETTER broken" in output_of("inbox", state)
    assert "late" not in output_of("prune", state, "--keep", "1", "--dry-run").partition("kept:")[0]
    answer = output_of("requeue", "--state", state, "--run", "late", "broken", "--reason", "mended", code=0)
    assert "it goes on without one" in answer
    output_of("resume", state, "--run", "late", "--plain", code=0)
