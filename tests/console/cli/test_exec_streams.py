"""``redrive exec``: the input and the output of the line are those of its command, byte by byte."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest
from support.commands import REDRIVE, run_redrive
from support.marks import parametrize_mostly_long
from support.waiting import LIMIT_SECONDS, wait_until

BYTES = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 5000)"  # more than pipes and queues hold


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "states" / "redrive"


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line as cron does: its input is empty, its output a pipe. $R is redrive."""
    environment: Mapping[str, str] = {**os.environ, "R": " ".join(REDRIVE), **variables}
    return subprocess.run(
        ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=LIMIT_SECONDS
    )


@parametrize_mostly_long("to", ["| cat > out", "> out 2>&1", "> out", ">> out"])
def test_what_a_command_writes_arrives_unchanged_and_is_in_the_log(to: str) -> None:
    done = shell(f'$R exec --name dump -- python3 -c "$CODE" {to}', CODE=BYTES)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert Path("out").read_bytes() == bytes(range(256)) * 5000
    assert run_redrive("logs", "dump").stdout


def test_a_file_is_appended_to_and_never_emptied() -> None:
    Path("out").write_text("before\n")
    assert shell("$R exec --retry 1 -- seq 1 3 >> out").returncode == 0
    assert Path("out").read_text() == "before\n1\n2\n3\n"


def test_the_command_gets_the_input_of_the_line_and_cron_what_the_command_prints() -> None:
    done = shell("echo rows | $R exec --name both -- sh -c 'cat; echo err >&2'")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"rows\n", b"err\n")


@pytest.mark.long
def test_a_report_is_on_stderr_and_repeats_no_output() -> None:
    done = shell("$R exec --name backup -- sh -c 'echo rows; echo disk is full >&2; exit 4' > out")
    assert (done.returncode, done.stdout, Path("out").read_text()) == (4, b"", "rows\n")
    report = done.stderr.decode()
    assert report.startswith("disk is full\n") and "backup | disk is full" not in report
    assert "exit status 4: disk is full" in report and "redrive requeue" in report


@pytest.mark.long
def test_log_only_prints_nothing() -> None:
    done = shell("$R exec --log-only --name quiet -- sh -c 'echo out; echo err >&2'")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "err" in run_redrive("logs", "quiet").stdout


@pytest.mark.long
def test_stdout_and_stderr_of_one_file_keep_their_order() -> None:
    line = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo $i >&2; done"
    assert shell('$R exec --name order -- sh -c "$LINE" > out 2>&1', LINE=line).returncode == 0
    assert Path("out").read_text().split() == [str(i) for i in range(1, 10) for _ in "xx"]


@pytest.mark.long
def test_of_a_command_that_is_started_again_the_last_attempt_counts() -> None:
    line = "echo half; test -e once || { touch once; exit 1; }; echo done"
    done = shell('$R exec --retry 2 --name twice -- sh -c "$LINE" > out', LINE=line)
    assert (done.returncode, Path("out").read_text()) == (0, "half\ndone\n")
    assert run_redrive("logs", "twice", "--attempt", "1").stdout.count("half") == 1


@pytest.mark.long
def test_it_is_told_that_a_second_attempt_had_no_input() -> None:
    line = "$R exec --retry 1 --name load -- 'cat; test -e once || { touch once; exit 1; }'"
    done = shell(f"echo rows | {line}")
    assert (done.returncode, done.stdout) == (0, b"") and b"the first one has read" in done.stderr
    Path("once").unlink()
    assert shell(f": | {line}").stderr == b""


@pytest.mark.long
def test_large_input_and_output_pass_a_command_that_copies() -> None:
    Path("in").write_bytes(bytes(range(256)) * 5_000)
    assert shell("$R exec --name copy -- cat < in > out").returncode == 0
    assert Path("out").read_bytes() == Path("in").read_bytes()


def test_a_reader_that_is_gone_ends_the_command_by_sigpipe() -> None:
    done = shell("{ $R exec --timeout 1m --name yes -- sh -c 'echo first; exec yes' 2> err; echo $? >&2; } | head -1")
    assert (done.stdout, done.stderr) == (b"first\n", b"141\n")
    report = Path("err").read_text()
    assert "yes FAILED ended by SIGPIPE" in report and "Traceback" not in report


def start(*words: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    process = subprocess.Popen([*REDRIVE, "exec", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, process.stdout


@pytest.mark.long
def test_a_slow_reader_stops_the_command_and_loses_nothing(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(50): sys.stdout.write('x' * 65536); open('at', 'w').write(str(n))"
    process, out = start("--name", "slow", "--", "python3", "-c", code)
    wait_until((tmp_path / "at").exists)
    assert out.read(1) == b"x"
    assert len(out.read()) == 50 * 65536 - 1
    assert process.wait(LIMIT_SECONDS) == 0


@pytest.mark.long
def test_a_timeout_comes_although_nobody_reads() -> None:
    process, out = start("--name", "stuck", "--timeout", "1s", "--", "yes")
    wait_until(lambda: "exceeded 1s" in run_redrive("tasks", "stuck").stdout)
    assert out.read()
    assert process.wait(LIMIT_SECONDS) == 124


@pytest.mark.long
def test_a_command_killed_while_it_waits_for_its_reader_is_over(tmp_path: Path) -> None:
    process, out = start("--name", "stopped", "--", "yes")
    assert out.read(1)
    process.send_signal(signal.SIGTERM)
    out.read()
    assert process.wait(LIMIT_SECONDS) == 130


def test_a_full_disk_is_told(states: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.fail("this kernel has no /dev/full")
    done = shell("$R exec --name full -- seq 1 5 > /dev/full")
    assert done.returncode == 125
    assert b"redrive: its stdout cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@parametrize_mostly_long("option", ["", "--retry 1", "--log-only"])
def test_output_for_a_closed_stdout_is_lost_and_told(option: str) -> None:
    done = shell(f"$R exec {option} --name closed -- sh -c 'echo out' >&-")
    lost = b"redrive: its stdout cannot be written: it is closed\n"
    assert (done.returncode, done.stderr) == ((0, b"") if option == "--log-only" else (125, lost))


@pytest.mark.long
def test_closed_streams_are_no_error() -> None:
    done = shell("$R exec --name closed -- sh -c 'echo err >&2' >&- 2>&- <&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
