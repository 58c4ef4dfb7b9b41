"""Tasks that are shell lines: the exit code tells, and the whole pipeline ends with the attempt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.outcome import FailureClass, OutcomeKind


def flow(*commands: str) -> str:
    """A flow of one task ``t`` with this line."""
    (line,) = commands
    return f'flow.command("t", {line!r}, timeout=60)'


async def test_exit_code_0_is_success_with_its_output(bench: Any) -> None:
    await bench.open(flow("echo out; echo err >&2"))
    outcome, recorder = await bench.run("t")
    assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCESS, None)
    assert recorder.text == b"out\nerr\n"


@pytest.mark.parametrize(
    ("code", "failure_class"),
    [(1, None), (75, FailureClass.TRANSIENT), (127, None)],
)
async def test_another_exit_code_is_a_failure_with_the_last_line(
    bench: Any, code: int, failure_class: FailureClass | None
) -> None:
    await bench.open(flow(f"echo loading; echo 'table is locked' >&2; exit {code}"))
    outcome, _ = await bench.run("t")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.attempt_columns["exit_code"] == code
    assert outcome.failure.error_type == f"exit:{code}"
    assert "table is locked" in outcome.failure.message
    if failure_class is not None:
        assert outcome.failure.failure_class is failure_class


async def test_a_signal_that_is_not_ours_is_told(bench: Any) -> None:
    await bench.open(flow("kill -ABRT $$"))
    outcome, _ = await bench.run("t")
    assert outcome.failure.error_type == "signal:6:unknown"


async def test_a_command_runs_in_the_folder_of_its_flow_and_knows_who_it_is(bench: Any) -> None:
    await bench.open(flow("pwd; echo $REDRIVE_TASK $REDRIVE_ATTEMPT $REDRIVE_RUN_ID $REDRIVE_PARAM_DAY"))
    _, recorder = await bench.run("t", attempt=2, params={"day": "it's; $(monday)"})
    folder, who = recorder.text.decode().splitlines()
    assert Path(folder).resolve() == bench.folder.resolve()
    assert who == "t 2 run-1 it's; $(monday)"


@pytest.fixture
def started_in_the_background() -> Iterator[None]:
    """As ``nohup redrive run ... &`` of a script: the shell ignores SIGQUIT, nohup SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("started_in_the_background")
async def test_the_signals_of_a_command_are_those_of_a_fresh_shell(bench: Any) -> None:
    """Python ignores SIGPIPE, and an ignored signal stays ignored across exec: ``yes`` would never end."""
    await bench.open(flow("yes | head -1; grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    _, recorder = await bench.run("t")
    assert recorder.text.splitlines()[0] == b"y"
    assert recorder.text.count(b"0000000000000000") == 2


async def test_a_command_reads_nothing_and_holds_nothing_of_the_engine(bench: Any) -> None:
    await bench.open(flow("cat; ls -l /proc/self/fd"))
    _, recorder = await bench.run("t")
    text = recorder.text.decode()
    assert "/dev/null" in text
    assert "socket:" not in text
    assert text.count("pipe:") == 2  # stdout and stderr


async def test_a_pipeline_that_hangs_is_ended_whole_and_says_what_it_waited_for(bench: Any, survivors: Any) -> None:
    await bench.open('flow.command("t", "echo go; sleep 600 | cat", timeout=0.5, grace_seconds=0.5)')
    outcome, recorder = await bench.run("t")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    heading, *lines = outcome.attempt_columns["stack"].splitlines()
    assert heading == "Processes:"
    told = {line.split(": ", 1)[1]: line for line in lines[:3]}
    assert list(told) == ["/bin/sh -c echo go; sleep 600 | cat", "sleep 600", "cat"]
    pids = [int(standing.split()[1]) for standing in told.values()]
    message = outcome.failure.message
    assert f"waits for its child `sleep` (pid {pids[1]}, S" in message
    assert "asleep, 0 % CPU for the last" in message
    assert recorder.payload_of("stack").where == message.removeprefix("task exceeded 0.5s: ")
    assert survivors(pids, seconds=0) == []


async def test_a_command_that_ignores_sigterm_is_killed(bench: Any) -> None:
    await bench.open("""flow.command("t", "trap '' TERM; while :; do :; done", timeout=0.4, grace_seconds=0.4)""")
    outcome, recorder = await bench.run("t")
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert recorder.kinds[:4] == ["deadline", "stack", "sigterm", "sigkill"]


async def test_a_background_job_of_a_command_does_not_outlive_it(bench: Any, survivors: Any) -> None:
    await bench.open(flow("sleep 600 & echo $!"))
    outcome, recorder = await bench.run("t")
    assert outcome.kind is OutcomeKind.SUCCESS
    assert recorder.payload_of("swept").pids == [int(recorder.text)]
    assert survivors([int(recorder.text)], seconds=0) == []


async def test_a_folder_that_is_gone_is_a_failure_in_words(bench: Any, tmp_path: Path) -> None:
    bench.path = tmp_path / "gone" / "flow.py"
    bench.path.parent.mkdir()
    await bench.open(flow("true"))
    bench.path.unlink()
    for cached in bench.path.parent.rglob("*.pyc"):
        cached.unlink()
        cached.parent.rmdir()
    bench.path.parent.rmdir()
    outcome, _ = await bench.run("t")
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.failure.error_type == "FileNotFoundError"
