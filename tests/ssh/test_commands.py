"""The same commands as for a local file, for scripts: ``redrive ... ssh://far/...``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REDRIVE = (sys.executable, "-c", "import sys; from redrive.console.cli import main; sys.exit(main())")

LIMIT_SECONDS = 90.0  # for what hangs

FLOW = """
    import time
    from redrive.engine import Flow, PermanentError

    flow = Flow("nightly")

    @flow.task()
    def bad():
        raise PermanentError("401 from payments")

    @flow.task(timeout=600)
    def long():
        time.sleep(600)
"""


def redrive(*words: str, code: int = 0) -> str:
    """Run one command without a terminal; its output."""
    result = subprocess.run(
        [*REDRIVE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def values(*words: str) -> list[Any]:
    return [json.loads(line) for line in redrive(*words, "--json").splitlines()]


@pytest.mark.parametrize("command", [("runs",), ("tasks",), ("inbox",), ("events",), ("events", "--run", "night-1")])
def test_a_listing_is_the_same_through_ssh(far: Any, night: Any, command: tuple[str, ...]) -> None:
    """An executor's night at rest, so that nothing moves between the two."""
    night.close()
    name, *options = command
    here = values(name, str(night.path), *options)
    there = values(name, f"ssh://far{night.path}", *options)
    for value in there:
        if executor := value.get("executor"):  # what to do is to be done over there
            executor["advice"] = executor["advice"].replace("on far: ", "")
    assert here == there
    assert here


def test_an_act_through_ssh_is_done_and_its_refusal_told(far: Any, night: Any) -> None:
    night.close()
    act = ("--state", f"ssh://far{night.path}", "task_00002", "--reason", "schema reloaded")
    assert "task_00002" in redrive("requeue", *act)
    (row,) = [row for row in values("tasks", f"ssh://far{night.path}") if row["name"] == "task_00002"]
    assert (row["state"], row["generation"]) == ("PENDING", 1)
    redrive("cancel", "--state", f"ssh://far{night.path}", "task_00000", "--reason", "done already", code=1)


def test_what_goes_wrong_is_one_line_and_exit_2(far: Any, night: Any) -> None:
    for target in (f"ssh://far{night.path}-no-such", "ssh://-oProxyCommand=id/x.db", "ssh://far:99999/x.db"):
        result = subprocess.run([*REDRIVE, "tasks", target], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert not result.stdout


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A state file with a real executor at work on it."""
    flow, state = tmp_path / "nightly.py", tmp_path / "live.db"
    flow.write_text(textwrap.dedent(FLOW))
    words = [*REDRIVE, "run", str(flow), "--state", str(state), "--run-id", "night-1", "--plain", "--stay"]
    executor = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not state.with_name("live.db.sock").exists():
        assert executor.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)  # its socket is the last thing that it opens
    yield state
    executor.send_signal(signal.SIGKILL)
    executor.wait()


def followed(target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*REDRIVE, "events", target, "--follow", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_an_act_through_ssh_reaches_a_living_executor_and_is_followed(far: Any, live: Path) -> None:
    target = f"ssh://far{live}"
    following = followed(target)
    assert following.stdout is not None
    try:
        until(following, lambda event: event["task"] == "bad" and event["new"] == "DEAD_LETTER")
        redrive("skip", "--state", target, "bad", "--reason", "not tonight")
        skipped = until(following, lambda event: event["task"] == "bad" and event["new"] == "SKIPPED")
        assert skipped["reason"] == "not tonight" and "@" in skipped["actor"]
        redrive("cancel", "--state", target, "long", "--reason", "takes too long")
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
