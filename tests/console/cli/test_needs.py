"""What needs a human on this machine: one answer in ``inbox``, ``fleet`` and ``runs``; ``redrive ack``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from redrive.console.cli.state_files import file_row_of_session
from redrive.console.sessions.address import Endpoint, SshOptions
from redrive.console.sessions.once import with_session
from redrive.engine.domain.states import CHANGED_AFTER_EFFECT
from redrive.engine.statefile.state_files import file_row_of
from support.commands import quoted, run_redrive, start_redrive
from support.processes import wait_until_stopped
from support.waiting import wait_until

FLOW = """
import pathlib
from redrive.engine import Flow, PermanentError, RetryPolicy
flow = Flow("{name}", schedule="0 0 1 1 *")
@flow.task(retry=RetryPolicy(max_attempts=1))
def load():
    if pathlib.Path("{folder}/blocks").exists():
        raise PermanentError("no")
    if pathlib.Path("{folder}/fails").exists():
        raise OSError("no route")
"""
ROWS = """
from redrive.engine import Flow
flow = Flow("rows")
@flow.task(max_bad_rows=5)
def load(ctx):
    for scope in ctx.rows([{"id": 1}, {"id": 2}], key="id"):
        with scope as row:
            if row["id"] == 2:
                raise ValueError("odd")
"""
SLOW = """
import time
from redrive.engine import Flow
flow = Flow("slow")
@flow.task
def wait(): time.sleep(600)
"""


class Machine:
    """Flows of one machine that can be made to fail or to block."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.states = folder, folder / "states/redrive"

    def write(self, name: str) -> Path:
        path = self.folder / f"{name}.py"
        path.write_text(FLOW.format(name=name, folder=self.folder))
        return path

    def run(self, name: str, run_id: str, how: str | None = None) -> None:
        if how is not None:
            (self.folder / how).touch()
        code = run_redrive("run", self.write(name), "--run-id", run_id).returncode
        assert code == {None: 0, "fails": 1, "blocks": 3}[how]
        if how is not None:
            (self.folder / how).unlink()

    def inbox(self, *words: object) -> subprocess.CompletedProcess[str]:
        return run_redrive("inbox", *words)

    def values(self, command: str, *words: object) -> list[dict[str, Any]]:
        return [*map(json.loads, run_redrive(command, *words, "--json").stdout.splitlines())]

    def quiet_code(self, *words: object) -> int:
        done = run_redrive("inbox", *words, "--quiet")
        assert done.stdout == ""
        return done.returncode

    def needs(self) -> dict[str, tuple[int, int]]:
        """Flow -> what needs a human, and notices, as the list of all files says it."""
        return {one["flow"]: (one["needs_human"], one["notices"]) for one in self.values("fleet")}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return Machine(tmp_path)


def test_the_inbox_answers_for_every_file_that_waits(machine: Machine) -> None:
    machine.run("first", "night", "blocks")
    machine.run("second", "night", "blocks")
    machine.run("third", "night")
    done = machine.inbox()
    lines = done.stdout.splitlines()
    assert lines[0] == "2 things need a human in 3 state files" and done.returncode == 3
    for name in ("first", "second"):
        assert f"{name} night in {machine.states / name}.db: BLOCKED" in lines
    assert not [line for line in lines if line.startswith("third")]
    assert {Path(one["state_file"]).stem for one in machine.values("inbox")} == {"first", "second"}
    assert [machine.quiet_code(*words) for words in ([], ["second"], ["third"])] == [3, 3, 0]


@pytest.mark.long
def test_runs_that_wait_for_one_cause_are_one_block_and_one_act_decides_all(machine: Machine) -> None:
    for run_id in ("mon", "tue", "wed"):
        machine.run("etl", run_id, "blocks")
    machine.run("other", "night", "blocks")
    lines = machine.inbox().stdout.splitlines()
    assert [line.partition(" in ")[0] for line in lines if line.endswith(": BLOCKED")] == ["etl wed", "other night"]
    (same,) = [line for line in lines if line.startswith("the same in 2 other runs, the first mon")]
    words = shlex.split(same.partition("all of them: redrive ")[2])
    assert words[-2:] == ["--reason", "TEXT"]
    dry = run_redrive(*words, "--dry-run")
    assert dry.stdout.count("would run again (1): load") == 3 and dry.returncode == 0
    refused = run_redrive(*words)
    assert refused.returncode == 2 and "requeue 3 tasks of 3 runs" in refused.stderr
    done = run_redrive(*words, "--yes")
    assert done.returncode == 0 and all(f"etl {run_id} in " in done.stdout for run_id in ("mon", "tue", "wed"))
    (load,) = machine.values("tasks", "etl", "--run", "mon")
    assert load["state"] == "PENDING"
    again = run_redrive(*words, "--yes")
    assert again.returncode == 2 and "no run waits with fingerprint" in again.stderr
    assert run_redrive("requeue", "etl", "load", "--all-runs").returncode == 2
    assert machine.needs()["other"] == (1, 0)


def test_a_failed_run_needs_a_human_everywhere(machine: Machine) -> None:
    machine.run("etl", "night", "fails")
    assert machine.needs() == {"etl": (1, 0)}
    done = machine.inbox()
    assert "1 × OSError" in done.stdout and done.returncode == machine.quiet_code() == 1
    assert f"or acknowledge it: redrive ack {quoted(machine.states / 'etl.db')}@night" in done.stdout
    assert "1 run needs a human: redrive inbox" in run_redrive("runs", "etl").stdout
    assert "1 run needs a human: redrive inbox" in run_redrive("runs", "etl", "--tasks").stdout
    (value,) = machine.values("inbox")
    assert (value["need"], value["is_notice"], value["tasks"]) == ("failed run", False, ["load"])


def test_a_session_reads_of_a_file_what_the_list_of_files_reads(machine: Machine) -> None:
    machine.run("etl", "night", "blocks")
    path = str(machine.states / "etl.db")
    with sqlite3.connect(path) as connection:
        stale = "UPDATE task SET state = 'SUCCESS', stale = 1, notice = ?, ended_at = 1"
        connection.execute(stale, ("its element has changed has waited for 6h in 9 checks",))
    assert not file_row_of(path).listed, "the name of a task is no element"
    with sqlite3.connect(path) as connection:
        connection.execute(stale, (CHANGED_AFTER_EFFECT,))
    file_row = with_session(Endpoint(path, SshOptions()), file_row_of_session)
    assert file_row == file_row_of(path) and [one.task for one in file_row.listed] == ["load"]


@pytest.mark.long
def test_a_task_that_a_person_has_skipped_is_decided(machine: Machine) -> None:
    machine.run("etl", "night", "blocks")
    run_redrive("skip", "etl", "load", "--reason", "a holiday")
    assert run_redrive("resume", "etl", "--plain").returncode == 3, "the run is PARTIAL all the same"
    assert machine.needs() == {"etl": (0, 0)}
    assert machine.inbox().returncode == machine.quiet_code() == 0
    first, second = machine.inbox().stdout.splitlines()
    assert first.endswith(": PARTIAL") and second == "nothing needs a human"
    assert "redrive_needs_human 0.0" in run_redrive("metrics").stdout


def test_the_inbox_prints_how_to_run_a_dead_letter_again_first(machine: Machine) -> None:
    machine.run("etl", "night", "blocks")
    _, _, task, requeue, *_ = machine.inbox("etl").stdout.splitlines()
    assert task.startswith("  DEAD_LETTER load ") and requeue.startswith("  redrive requeue ")
    words = shlex.split(requeue)[1:]
    words.remove("--resume")  # the executor has left
    assert run_redrive(*words).returncode == 0
    assert [one["state"] for one in machine.values("tasks", "etl")] == ["PENDING"]


EFFECT = """
import os, signal
from redrive.engine import Flow
flow = Flow("pay")
@flow.task(kind="effect")
def pay(): os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_inbox_names_the_key_of_an_effect_that_may_have_happened(machine: Machine) -> None:
    (machine.folder / "pay.py").write_text(EFFECT)
    run_redrive("run", machine.folder / "pay.py", "--run-id", "night")
    assert ": key night/pay/0: " in machine.inbox().stdout


PAGED = """
from redrive.engine import Flow, PermanentError
flow = Flow("paged")
flow.page("command", line='test -e {folder}/well && echo "$REDRIVE_PAGE_KIND $REDRIVE_PAGE_STATE" >> {folder}/pages')
flow.page("bell")
@flow.task
def load(): raise PermanentError("no")
"""


@pytest.mark.long
def test_a_page_that_no_sender_takes_is_a_need_until_it_is_sent(machine: Machine, monkeypatch: Any) -> None:
    flow, pages = machine.folder / "paged.py", machine.folder / "pages"
    flow.write_text(PAGED.format(folder=machine.folder))
    monkeypatch.chdir(machine.folder)
    running = start_redrive("run", flow, "--run-id", "night", "--state", "s.db", "--plain")
    wait_until(lambda: "1 page was not sent: command: exit status 1" in machine.inbox("s.db").stdout)
    assert machine.quiet_code("s.db") == 3
    values = {one["need"]: one for one in machine.values("inbox", "s.db")}
    assert set(values) == {"dead letters", "unsent pages"} and not values["unsent pages"]["is_notice"]
    failed = run_redrive("systems", "pages", "s.db", "--test")
    assert failed.returncode == 1 and "command: exit status 1" in failed.stdout
    (machine.folder / "well").touch()
    running.wait()
    tested = run_redrive("systems", "pages", "s.db", "--test")
    assert tested.returncode == 0 and "command: accepted" in tested.stdout and "bell" in tested.stdout
    run_redrive("requeue", "s.db", "load", "--reason", "again")
    run_redrive("resume", "s.db", "--plain")
    path = machine.folder / "s.db"
    assert {f"test {path}", f"page {path}"} == set(pages.read_text().splitlines()), "an absolute path"
    assert {one["need"] for one in machine.values("inbox", "s.db")} == {"dead letters"}


@pytest.mark.long
def test_a_failure_stays_a_notice_after_successes_until_it_is_acknowledged(machine: Machine) -> None:
    machine.run("etl", "bad", "fails")
    machine.run("etl", "good-1")
    machine.run("etl", "good-2")
    assert machine.needs() == {"etl": (0, 1)} and machine.quiet_code() == 0
    done = machine.inbox()
    *_, notice = done.stdout.splitlines()
    assert notice.endswith(
        f" failed, 2 later runs succeeded: redrive ack {quoted(machine.states / 'etl.db')}@bad"
    ) and notice.startswith(f"etl bad in {machine.states}/etl.db: ")
    assert done.returncode == 0 and "nothing needs a human" not in done.stdout
    (value,) = machine.values("inbox")
    assert (value["run_id"], value["need"], value["is_notice"]) == ("bad", "failed run", True)
    assert "1 run is not acknowledged: redrive inbox" in run_redrive("runs", "etl").stdout
    words = ("ack", "etl@bad", "--reason", "the router", "--command-id", "ack-0001")
    for _ in range(2):  # the second one asks what the first one did
        assert run_redrive(*words).stdout.splitlines()[-1] == "1 run acknowledged"
    assert machine.needs() == {"etl": (0, 0)}
    assert machine.inbox().stdout.splitlines()[-1] == "nothing needs a human"
    again = run_redrive("ack", "bad")
    assert again.returncode == 2 and "no run or flow 'bad' is to be acknowledged" in again.stderr


@pytest.mark.long
def test_all_ends_of_a_flow_are_acknowledged_at_once(machine: Machine) -> None:
    machine.run("etl", "one", "fails")
    machine.run("etl", "two", "fails")
    machine.run("other", "one", "fails")
    refused = run_redrive("ack", "etl")
    assert refused.returncode == 2 and "'etl' means 2 runs: give --all for all of them, or name one: " in refused.stderr
    assert f"redrive ack {quoted(machine.states / 'etl.db')}@two" in refused.stderr
    assert run_redrive("ack", "etl", "--all").returncode == 0
    assert machine.needs() == {"etl": (0, 0), "other": (1, 0)}
    assert run_redrive("ack", "--all").returncode == 0 and machine.quiet_code() == 0
    assert run_redrive("ack").returncode == 2
    with sqlite3.connect(machine.states / "etl.db") as connection:
        acts = connection.execute("SELECT run_id, actor FROM event WHERE kind = 'operator' ORDER BY seq").fetchall()
    connection.close()
    assert [run_id for run_id, _ in acts] == ["two"] and all("@" in actor for _, actor in acts)
    dry = run_redrive("undo", "etl", "--dry-run").stdout.splitlines()[-1]
    assert dry.startswith("would take back: ack-run by ") and dry.endswith(" ago (2 runs acknowledged)")
    assert run_redrive("undo", "etl").stdout.splitlines()[-1].endswith("(2 runs acknowledged): changed back")
    assert machine.needs() == {"etl": (2, 0), "other": (0, 0)}
    nothing = run_redrive("undo", "etl")
    assert nothing.returncode == 2 and "there is no act in this file that can be taken back" in nothing.stderr


@pytest.mark.long
def test_a_run_that_goes_on_is_no_longer_acknowledged(machine: Machine) -> None:
    machine.run("etl", "night", "fails")
    assert run_redrive("ack", "night").returncode == 0 and machine.quiet_code() == 0
    state = machine.states / "etl.db"
    assert run_redrive("requeue", state, "load", "--reason", "again").returncode == 0
    (machine.folder / "fails").touch()
    assert run_redrive("resume", state, "--plain").returncode == 1
    assert machine.quiet_code() == 1


def test_an_unfinished_run_is_not_acknowledged(machine: Machine) -> None:
    machine.run("etl", "night", "blocks")
    done = run_redrive("ack", "night")
    assert done.returncode == 2 and "no run or flow 'night' is to be acknowledged" in done.stderr


def test_held_rows_of_earlier_runs_are_counted(machine: Machine) -> None:
    path = machine.folder / "rows.py"
    path.write_text(ROWS)
    for run_id in ("one", "two"):
        run_redrive("run", path, "--run-id", run_id)
    assert machine.needs() == {"rows": (0, 2)}
    lines = machine.inbox().stdout.splitlines()
    for run_id in ("one", "two"):
        state = machine.states / "rows.db"
        command = f"redrive systems rows {quoted(state)}@{run_id}"
        assert f"rows {run_id} in {state}: 1 row held in quarantine: {command}" in lines


@pytest.mark.long
def test_a_killed_scheduler_needs_a_human_and_a_stopped_one_does_not(machine: Machine) -> None:
    for end, code in ((signal.SIGTERM, 0), (signal.SIGKILL, 3)):
        service = start_redrive("serve", machine.write("etl"))
        assert service.stdout is not None
        while "next " not in service.stdout.readline():
            assert service.poll() is None
        assert machine.quiet_code() == 0
        assert machine.inbox().stdout == "nothing needs a human\n"
        service.send_signal(end)
        service.communicate(timeout=60)
        assert machine.quiet_code() == code
    (fleet,) = machine.values("fleet")
    assert (fleet["needs_human"], fleet["service_pid"]) == (1, None)
    lines = machine.inbox().stdout
    assert "no process serves its schedule: redrive serve starts one" in lines
    assert "not served" in run_redrive("fleet").stdout


def test_a_supervisor_that_hangs_is_one_true_sentence_everywhere(machine: Machine) -> None:
    """It holds its lock, so that a second one stands by: only its end, or a signal, helps."""
    with start_redrive("serve", machine.write("etl")) as service:
        try:
            wait_until(lambda: any(row["next_at"] for row in machine.values("schedule")))
            with sqlite3.connect(machine.states / "schedules.supervisor", isolation_level=None) as file:
                file.execute("BEGIN IMMEDIATE")  # so that it is not stopped while it writes
                service.send_signal(signal.SIGSTOP)
                wait_until_stopped(service.pid)
                file.execute("UPDATE supervisor SET heartbeat_at = heartbeat_at - 60000000")
                file.execute("COMMIT")
            what = f"(pid {service.pid}) is stopped: kill -CONT {service.pid}"
            assert f"its supervisor {what}" in machine.inbox().stdout
            assert f"its supervisor {what}" in run_redrive("doctor", "etl").stdout
            assert what in run_redrive("schedule").stdout
            (fleet,) = machine.values("fleet")
            assert (fleet["needs_human"], fleet["service_pid"]) == (1, None)
            assert machine.quiet_code() == 3
        finally:
            service.kill()


def test_an_executor_that_is_silent_needs_a_human_in_its_own_inbox_too(machine: Machine) -> None:
    path, state = machine.folder / "slow.py", machine.folder / "slow.db"
    path.write_text(SLOW)
    with start_redrive("run", path, "--state", state, "--plain") as executor:
        try:
            wait_until(lambda: "RUNNING" in run_redrive("tasks", state).stdout)
            executor.send_signal(signal.SIGSTOP)
            wait_until_stopped(executor.pid)
            os.utime(f"{state}.lock", (1, 1))
            done = machine.inbox(state)
            assert done.returncode == 3 and f"executor {executor.pid} silent for" in done.stdout
            assert "nothing" not in done.stdout
        finally:
            executor.kill()


def test_the_death_of_a_supervisor_is_one_line_for_all_its_schedules(machine: Machine) -> None:
    service = start_redrive("serve", machine.write("bank"), machine.write("etl"))
    assert service.stdout is not None
    served = 0
    while served < 2:
        line = service.stdout.readline()
        assert line
        served += "next " in line
    service.kill()
    service.communicate(timeout=60)
    assert machine.quiet_code() == 3
    done = machine.inbox().stdout.splitlines()
    assert done == [
        "2 things need a human in 2 state files",
        "no process serves 2 schedules (bank, etl): redrive serve starts one",
    ]


def test_a_file_that_cannot_be_read_is_no_reason_for_silence(machine: Machine) -> None:
    machine.run("etl", "night")
    (machine.states / "odd.db").write_text("no database")
    done = machine.inbox()
    assert done.returncode == machine.quiet_code() == 3
    assert "odd.db: is not a redrive state file" in done.stdout
    assert machine.inbox(machine.states / "odd.db").returncode == 2


def test_quiet_goes_with_no_option_that_prints(machine: Machine) -> None:
    machine.run("etl", "night")
    for words in (["--json"], ["--follow"], ["--run", "night"]):
        assert machine.inbox("--quiet", *words).returncode == 2


@pytest.mark.long
def test_a_lost_run_is_one_of_the_answer(machine: Machine) -> None:
    flow = machine.folder / "slow.py"
    flow.write_text(SLOW)
    machine.run("etl", "night")
    process = start_redrive("run", flow, "--run-id", "night")
    assert process.stdout is not None
    while "wait RUNNING" not in process.stdout.readline():
        assert process.poll() is None
    assert machine.quiet_code() == 0
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: machine.quiet_code() == 3)
    assert f"or end it: redrive abandon {quoted(machine.states / 'slow.db')}@night" in machine.inbox().stdout


@pytest.mark.long
def test_a_release_that_cannot_be_imported_is_a_failure_until_it_is_mended(machine: Machine) -> None:
    flow = machine.write("etl")
    good = flow.read_text()
    service = start_redrive("serve", flow)
    try:
        assert service.stdout is not None
        while "next " not in service.stdout.readline():
            assert service.poll() is None
        flow.write_text(good.replace("def load():", "def load(:"))
        wait_until(lambda: machine.quiet_code() == 1)
        assert "cannot start since" in machine.inbox().stdout and "SyntaxError" in machine.inbox().stdout
        flow.write_text(good)
        wait_until(lambda: machine.quiet_code() == 0)
    finally:
        service.terminate()
        service.communicate(timeout=60)
