"""The same commands as for a local file, for scripts: ``redrive ... ssh://far/...``."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.state_file import StateFileBuilder
from support.waiting import wait_until

FLOW = """
    import time
    from redrive.engine import Flow, PermanentError

    flow = Flow("nightly")

    @flow.task()
    def bad():
        raise PermanentError("401 from payments")

    flow.approval("ready")

    @flow.task(timeout=600)
    def long():
        time.sleep(600)
"""


def output_of(*words: str, code: int = 0) -> str:
    """Run one command without a terminal; its output."""
    result = run_redrive(*words)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def values(*words: str) -> list[Any]:
    code = 3 if words[0] == "inbox" else 0  # a run waits
    return [json.loads(line) for line in output_of(*words, "--json", code=code).splitlines()]


@parametrize_mostly_long("command", [("runs",), ("tasks",), ("inbox",), ("events",), ("events", "task_00001")])
def test_a_listing_is_the_same_through_ssh(far: Any, run_file: StateFileBuilder, command: tuple[str, ...]) -> None:
    """An executor's night at rest, so that nothing moves between the two."""
    run_file.close()
    name, *options = command
    here = values(name, str(run_file.path), *options)
    there = values(name, f"ssh://far{run_file.path}", *options)
    for value in (*here, *there):
        if value.get("why"):
            value["why"] = re.sub(r" for [\d.]+\w+$", "", value["why"])  # an age
    for value in there:
        if executor := value.get("executor"):  # what to do is to be done over there
            executor["advice"] = executor["advice"].replace("on far: ", "")
        if "state_file" in value:
            value["state_file"] = value["state_file"].removeprefix("ssh://far")
        if value.get("title", "").endswith("has no executor"):
            value["message"] = value["message"].replace("on far: ", "")
    assert here == there
    assert here


STAND_IN = """#!/bin/sh
case "$*" in
    *hung*) exec sleep 300 ;;
    *gone*) echo "ssh: connect to host gone port 22: Connection refused" >&2; exit 255 ;;
esac
echo x >> {folder}/logins
for last; do :; done
exec sh -c "$last"
"""


@pytest.mark.first
@pytest.mark.long
def test_a_host_that_hangs_or_fails_takes_nothing_from_the_others(
    tmp_path: Path, make_run_file: Callable[..., StateFileBuilder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent host is given up after 15 s, and not after 60; the files of another take one login."""
    states = tmp_path / "states/redrive"
    states.mkdir(parents=True)
    for name in ("one.db", "two.db"):
        run_file = make_run_file(name, run_id=f"run-of-{name}")
        run_file.close()
        (states / name).write_bytes(run_file.path.read_bytes())
    program = tmp_path / "stand-in"
    program.write_text(STAND_IN.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.setenv("REDRIVE_SSH", str(program))
    lines = output_of("inbox", "ssh://near", "ssh://hung", "ssh://gone", code=3)
    assert "run-of-two.db" in lines and "run-of-one.db" in lines
    assert (tmp_path / "logins").read_text() == "x\n"
    assert "started no agent for 15 s" in lines and "no ssh server listens" in lines
    assert output_of("inbox", "--quiet", "ssh://gone", "ssh://hung", code=69) == ""
    assert "no ssh server listens" in output_of("inbox", "ssh://gone", code=69)


def logins(far: Any) -> int:
    return (far.folder / "sshd.log").read_text().count("Accepted publickey")


def sessions(far: Any) -> int:
    return (far.folder / "sshd.log").read_text().count("Starting session: command")


def test_the_inbox_of_a_host_answers_for_all_its_files(
    far: Any, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    folder = far.home / ".local/state/redrive"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "one.db", folder / "two.db"]
    for path in paths:
        run_file = make_run_file(path.name, run_id=f"run-of-{path.stem}")
        run_file.close()
        path.write_bytes(run_file.path.read_bytes())
    try:
        before = logins(far), sessions(far)
        lines = output_of("inbox", "ssh://far", code=3).splitlines()
        assert (logins(far), sessions(far)) == (before[0] + 1, before[1] + 1)
        assert lines[0].endswith("in 2 state files")
        for path in paths:
            assert [line for line in lines if line.startswith(f"nightly run-of-{path.stem} in ssh://far{path}: ")], (
                lines
            )
        assert output_of("inbox", "ssh://far", "--quiet", code=3) == ""
    finally:
        for path in paths:
            path.unlink()


def test_an_act_through_ssh_is_done_and_its_refusal_reported(far: Any, run_file: StateFileBuilder) -> None:
    run_file.close()
    act = (f"ssh://far{run_file.path}", "task_00002", "--reason", "schema reloaded")
    assert "task_00002" in output_of("requeue", *act)
    (row,) = [row for row in values("tasks", f"ssh://far{run_file.path}") if row["name"] == "task_00002"]
    assert (row["state"], row["generation"]) == ("PENDING", 1)
    output_of("cancel", f"ssh://far{run_file.path}", "task_00000", "--reason", "done already", code=1)


@pytest.mark.long
def test_what_goes_wrong_is_one_line_and_exit_2(far: Any, run_file: StateFileBuilder) -> None:
    for target in (f"ssh://far{run_file.path}-no-such", "ssh://-oProxyCommand=id/x.db", "ssh://far:99999/x.db"):
        result = run_redrive("tasks", target)
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert not result.stdout


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A state file with a real executor at work on it."""
    flow, state = tmp_path / "nightly.py", tmp_path / "live.db"
    flow.write_text(textwrap.dedent(FLOW))
    words = ["run", flow, "--state", state, "--run-id", "night-1", "--plain", "--stay"]
    executor = start_redrive(*words, stdout=subprocess.DEVNULL)
    socket = state.with_name("live.db.sock")  # the last thing that it opens
    wait_until(lambda: socket.exists() or executor.poll() is not None)
    assert executor.poll() is None
    yield state
    executor.send_signal(signal.SIGKILL)
    executor.wait()


def followed(target: str) -> subprocess.Popen[str]:
    return start_redrive("events", target, "--follow", "--json", env={**os.environ, "PYTHONUNBUFFERED": "1"})


@pytest.mark.long
def test_an_act_through_ssh_reaches_a_living_executor_and_is_followed(far: Any, live: Path) -> None:
    target = f"ssh://far{live}"
    following = followed(target)
    assert following.stdout is not None
    try:
        until(following, lambda event: event["task"] == "bad" and event["new"] == "DEAD_LETTER")
        output_of("skip", target, "bad", "--reason", "not tonight")
        skipped = until(following, lambda event: event["task"] == "bad" and event["new"] == "SKIPPED")
        assert skipped["reason"] == "not tonight" and "@" in skipped["actor"]
        assert "waits for an approval" in output_of("inbox", target, code=3)
        output_of("approve", target, "ready", "--reason", "numbers fit")
        approved = until(following, lambda event: event["task"] == "ready" and event["new"] == "SUCCESS")
        assert approved["reason"] == "numbers fit" and "@" in approved["actor"]
        output_of("cancel", target, "long", "--reason", "takes too long")
        until(following, lambda event: event["task"] == "long" and event["new"] == "CANCELLED")
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def until(following: subprocess.Popen[str], what: Any) -> Any:
    """Read events until there is such a one."""
    assert following.stdout is not None
    for line in following.stdout:
        event = json.loads(line)
        if what(event):
            return event
    raise AssertionError("the events ended")


def test_the_output_of_tasks_is_the_same_through_ssh(far: Any, run_file: StateFileBuilder) -> None:
    run_file.close()
    here = output_of("logs", str(run_file.path), "task_*")
    assert here == output_of("logs", f"ssh://far{run_file.path}", "task_*")
    assert " | " in here


# --- A host whose clock is wrong --------------------------------------------------------------------------------------


@parametrize_mostly_long("words", [("tasks",), ("why", "task_00002"), ("report", "--short"), ("inbox",)])
def test_ages_are_counted_by_the_clock_of_the_host(
    far: Any, run_file: StateFileBuilder, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The file was written a moment ago by a host whose clock is three hours behind."""
    run_file.close()
    with sqlite3.connect(run_file.path) as connection:
        for place in ("task started_at", "task ended_at", "run started_at", "event at", "attempt started_at"):
            table, column = place.split()
            connection.execute(f"UPDATE {table} SET {column} = {column} - 3 * 3600 * 1000000")
    behind = tmp_path / "python-three-hours-behind"
    program = "import time;now=time.time;time.time=lambda:now()-3*3600"
    behind.write_text(f'#!/bin/sh\nshift\nexec {shlex.quote(sys.executable)} -ISuc "{program};$1"\n')
    behind.chmod(0o700)
    name, *more = words
    target = f"ssh://far{run_file.path}"
    given = ["--state", target, *more] if name in ("why", "report") else [target, *more]
    result = run_redrive(name, *given, "--python", str(behind))
    said = result.stdout + result.stderr
    assert "the clock of far is 3h00 behind: ages are counted by it" in result.stderr
    assert said.count("3h0") == 1, said


# --- FLOW@RUN ---------------------------------------------------------------------------------------------------------

WAYS_TO_NAME = ("", "@-0", "@night", "@night-1")


def test_a_run_is_named_behind_the_path_and_a_file_of_the_whole_name_wins(far: Any, run_file: StateFileBuilder) -> None:
    run_file.close()
    target = f"ssh://far{run_file.path}"
    latest, *named = (re.sub(r"for [\d.]+s", "", output_of("tasks", f"{target}{word}")) for word in WAYS_TO_NAME)
    assert named == [latest] * 3
    assert "there is no run 'noon'" in run_redrive("tasks", f"{target}@noon").stderr
    whole = run_file.path.with_name("x@night")
    whole.write_bytes(run_file.path.read_bytes())
    assert f"in ssh://far{run_file.path.parent}/x%40night" in output_of("tasks", f"ssh://far{whole}")
    assert f"in ssh://far{run_file.path.parent}/x%40night" in output_of("tasks", f"ssh://far{whole}@night-1")
    assert f"in ssh://far{run_file.path.parent}/x%40night" in output_of("tasks", f"ssh://far{whole}@night-1")


def test_doctor_says_what_each_step_of_reaching_a_host_takes(far: Any, run_file: StateFileBuilder) -> None:
    output = output_of("doctor", "ssh://far").splitlines()
    assert [line.split()[:2] for line in output] == [["ok", "login"], ["ok", "python"], ["ok", "agent"]]
    assert all(re.search(r" \d+\.\d s: ", line) for line in output)
    *_, named = output_of("doctor", f"ssh://far{run_file.path}").splitlines()
    assert named.startswith("ok      state") and "night-1" in named
    *_, missing = output_of("doctor", "ssh://far/none.db", code=1).splitlines()
    assert missing.startswith("error   state") and "/none.db" in missing
    lost = output_of("doctor", "ssh://far:1", code=1)
    assert lost.startswith("error   login") and "no ssh server listens on far:1" in lost


def test_doctor_uses_the_connection_that_the_operator_shares(far: Any, run_file: StateFileBuilder) -> None:
    with far.shared_connection() as (path, _):
        option = ("--ssh-option", f"ControlPath={path}")
        login, python, agent = output_of("doctor", "ssh://far", *option).splitlines()
    assert login.startswith("ok      login") and login.endswith("s: by the shared connection (ControlMaster)")
    assert python.startswith("ok      python") and agent.startswith("ok      agent")


def test_a_damaged_file_is_one_sentence_everywhere(far: Any, run_file: StateFileBuilder) -> None:
    run_file.close()
    with open(run_file.path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (os.path.getsize(run_file.path) - 4096))
    said = f"{run_file.path} is damaged (database disk image is malformed); restore a copy; .backup of sqlite3"
    for words in (("tasks",), ("inbox",), ("runs",)):
        for address in (str(run_file.path), f"ssh://far{run_file.path}"):
            done = run_redrive(*words, address)
            assert said in done.stdout + done.stderr, (words, address)
            assert "the agent could not" not in done.stderr
