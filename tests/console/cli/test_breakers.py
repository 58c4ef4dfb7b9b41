"""``redrive systems breakers``, and the page of help that it stands on (000.52)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redrive.console.cli.group import SECTIONS
from support.commands import all_commands, run_redrive, start_redrive

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow, TransientError

flow = Flow("calls")
flow.downstream("api", minimum_calls=1, open_seconds=600)

@flow.task(downstream="api", max_attempts=2)
def first(): raise TransientError("503")

@flow.task(downstream="api", after=["ready"])
def second(): ...

@flow.task
def ready():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def living(tmp_path: Path) -> Path:
    """The state file of a run whose executor waits, with one task held by an open breaker."""
    (tmp_path / "calls.py").write_text(FLOW)
    state = tmp_path / "calls.db"
    started = run_redrive("run", tmp_path / "calls.py", "--state", state, "--detach", "--stay")
    assert started.returncode == 0, started.stderr
    with start_redrive("events", state, "--json", "--follow") as follower:
        assert follower.stdout is not None
        seen: set[object] = set()
        for line in follower.stdout:
            event = json.loads(line)
            if event["kind"] == "breaker" and event["data"].get("state") == "OPEN":
                (tmp_path / "go").touch()
            seen.add((event["task"], event["new"]))
            if {("ready", "SUCCESS"), ("first", "RETRYING")} <= seen:
                break
        follower.terminate()
    return state


def listed(state: Path) -> dict[str, object]:
    done = run_redrive("systems", "breakers", state, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    value: dict[str, object] = json.loads(line)
    return value


@pytest.mark.long
def test_an_open_breaker_says_whom_it_holds_and_opens_by_hand(living: Path) -> None:
    try:
        before = listed(living)
        assert before["state"] == "OPEN"
        assert "second" in before["held"]  # type: ignore[operator]
        text = run_redrive("systems", "breakers", living).stdout
        assert text.splitlines()[1].split()[:2] == ["DOWNSTREAM", "STATE"]
        assert "api" in text.splitlines()[2]
        assert run_redrive("systems", "breakers", living, "--open", "api", "--reason", "maintenance").returncode == 0
        assert listed(living)["state"] == "FORCED_OPEN"
        refused = run_redrive("systems", "breakers", living, "--close", "nobody")
        assert (refused.returncode, "nobody" in refused.stderr) == (1, True)
    finally:
        run_redrive("cancel", living, "first", "second", "--reason", "the test is over")


def test_a_breaker_cannot_be_set_where_no_executor_lives(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("from redrive.engine import Flow\nflow = Flow('f')\n@flow.task\ndef a(): ...\n")
    assert run_redrive("run", tmp_path / "f.py", "--state", tmp_path / "s.db").returncode == 0
    assert run_redrive("systems", "breakers", tmp_path / "s.db").stdout.splitlines()[1:] == [
        "no task of this run names a downstream"
    ]
    done = run_redrive("systems", "breakers", tmp_path / "s.db", "--open", "api")
    assert done.returncode == 1
    assert len((done.stdout + done.stderr).splitlines()) == 2  # the place, and why


def test_every_command_stands_in_the_help_once() -> None:
    named = [one.name for section in SECTIONS.values() for one in section]
    assert sorted(named) == sorted(all_commands())


def test_the_help_says_what_each_command_does_and_what_exit_codes_mean() -> None:
    text = run_redrive("--help").stdout
    for name in all_commands():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert len(line.split()) > 2, f"{name} has no sentence"
    assert "75 another executor" in " ".join(text.split())
