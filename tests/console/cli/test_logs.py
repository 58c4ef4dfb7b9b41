"""``redrive logs``: the output of tasks, once, in order, safe for a terminal; gaps are told."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.statefile import logs
from support.commands import REDRIVE, run_redrive, start_redrive
from support.state_file import StateFileBuilder


@pytest.fixture
def run_file(tmp_path: Path) -> Iterator[StateFileBuilder]:
    state = StateFileBuilder(tmp_path / "night.db", tasks=3)
    yield state
    state.close()


def lines_of(*words: object) -> list[str]:
    done = run_redrive("logs", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_output_of_one_task_is_printed_as_it_is(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="first\nsecond\r25 %\r100 %\nno newline")
    assert lines_of(run_file.path, "task_00000") == ["first", "100 %", "no newline"]
    assert lines_of(run_file.path, "task_00000", "--lines", "1") == ["no newline"]


def test_several_tasks_get_their_names_in_a_column(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="a\n")
    run_file.finish("task_00001", text="b\nc\n")
    expected = ["task_00000 | a", "task_00001 | b", "task_00001 | c"]
    assert lines_of(run_file.path) == lines_of(run_file.path, "task_*") == expected
    values = [json.loads(line) for line in lines_of(run_file.path, "--json")]
    assert [(one["task"], one["attempt"], one["text"]) for one in values] == [
        ("task_00000", 1, "a"),
        ("task_00001", 1, "b"),
        ("task_00001", 1, "c"),
    ]


def test_a_failure_follows_the_output_on_stderr(run_file: StateFileBuilder) -> None:
    """Of an attempt that printed nothing, it is all that there is to see."""
    run_file.finish("task_00000", "FAILED", text="", error="no \x1b[31mroute to the ledger")
    done = run_redrive("logs", run_file.path, "task_00000")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("redrive: task_00000: attempt 1 failed: ")
    assert "route to the ledger" in done.stderr and "\x1b" not in done.stderr


def test_a_task_that_printed_nothing_says_in_which_run(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="")
    done = run_redrive("logs", run_file.path, "task_00000")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("redrive: no output of task_00000 in ") and "night-1" in done.stderr


def test_output_cannot_steer_the_terminal(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="\x1b]0;owned\x07\x1b[2Jred\u202eevil\n")
    (line,) = lines_of(run_file.path, "task_00000")
    assert line == "red\ufffdevil"


def raw_output(*words: object) -> tuple[str, str]:
    done = subprocess.run([*REDRIVE, "logs", *map(str, words), "--raw"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode(), done.stderr.decode()


def test_raw_output_is_what_the_task_wrote(run_file: StateFileBuilder) -> None:
    """What is dropped is said beside it."""
    parts = ["\x1b[31mred\x1b[0m\r 5 %\r99 %\tend\n", "é\x07\x00no newline"]
    attempt = run_file.start("task_00000")
    write = partial(logs.append, run_id="night-1", name="task_00000", attempt=attempt)
    run_file.write(partial(write, text=parts[0]))
    run_file.write(partial(write, text=parts[1], dropped=7))
    assert raw_output(run_file.path, "task_00000") == ("".join(parts), "... 7 B dropped here ...\n")


def test_raw_output_of_several_tasks_has_no_names(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="\x1b[1mbold")
    run_file.finish("task_00001", "FAILED", text="end\r\n", error="no route")
    stdout, stderr = raw_output(run_file.path)
    assert stdout == "\x1b[1mboldend\r\n" and stderr.startswith("redrive: task_00001: attempt 1 failed: ")


@pytest.mark.parametrize("option", [["--json"], ["--lines", "3"]])
def test_raw_output_is_neither_parsed_nor_cut(run_file: StateFileBuilder, option: list[str]) -> None:
    done = run_redrive("logs", run_file.path, "--raw", *option)
    assert done.returncode == 2 and "leave --json and --lines out" in done.stderr


def test_raw_output_is_refused_on_a_terminal(run_file: StateFileBuilder) -> None:
    run_file.finish("task_00000", text="\x1b[2J")
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", 0), os.fdopen(terminal, "wb", 0) as screen:
        done = start_redrive("logs", run_file.path, "--raw", stdout=screen, stderr=subprocess.PIPE)
        _, said = done.communicate(timeout=60)
    assert done.returncode == 2 and "--raw may hold what acts on a terminal" in said


@pytest.mark.long
def test_dropped_output_is_reported_with_its_size(run_file: StateFileBuilder) -> None:
    attempt = run_file.start("task_00000")
    rows = [f"row {number:07}\n" for number in range(60_000)]
    for start in range(0, len(rows), 5_000):
        text = "".join(rows[start : start + 5_000])
        write = partial(logs.append, run_id="night-1", name="task_00000", attempt=attempt, limit_bytes=120_000)
        run_file.write(partial(write, text=text))
    values = [json.loads(line) for line in lines_of(run_file.path, "task_00000", "--json")]
    (place,) = [number for number, one in enumerate(values) if "dropped_bytes" in one]
    kept = [one["text"] for one in values if "text" in one]
    # The edges of the gap may cut a line in two.
    read = sum(len(text) + 1 for text in kept)
    assert abs(read + values[place]["dropped_bytes"] - 60_000 * len(rows[0])) <= 2
    assert kept[0] == "row 0000000"
    assert kept[-1] == "row 0059999"
    gap_line = lines_of(run_file.path, "task_00000")[place]
    assert re.fullmatch(r"\.\.\. \d+ kB dropped here \.\.\.", gap_line)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "run night-1 has no task 'nothing'"),
        (["task_00001"], "task_00001 has not started in run night-1: queued; no executor runs it"),
        (["task_00000", "--attempt", "7"], "task_00000 has no attempt 7 in run night-1; it had 1"),
    ],
)
def test_what_has_no_output_says_why(run_file: StateFileBuilder, words: list[str], sentence: str) -> None:
    run_file.finish("task_00000")
    done = run_redrive("logs", run_file.path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr


FLOW = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("f")
flow.command("a", "echo begun; while ! test -e go; do sleep 0.05; done; echo end of $REDRIVE_ATTEMPT;"
    " test $REDRIVE_ATTEMPT = 2 || exit 75", retry=RetryPolicy(max_attempts=2, base=0.1, cap=0.1), timeout=60)
"""


def test_follow_prints_as_the_task_writes_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(FLOW)
    running = start_redrive("run", "f.py", "--plain", "--state", "s.db", cwd=tmp_path)
    assert running.stdout is not None
    assert "a RUNNING" in running.stdout.readline()
    following = start_redrive("logs", "s.db", "-f", "a", cwd=tmp_path)
    assert following.stdout is not None
    assert following.stdout.readline() == "begun\n"
    (tmp_path / "go").touch()
    rest, _ = following.communicate(timeout=60)
    failed = "redrive: a: attempt 1 failed: exit status 75: end of 1"
    assert rest.splitlines() == ["end of 1", failed, "redrive: a: attempt 2", "begun", "end of 2"]
    assert following.returncode == 0
    assert lines_of(tmp_path / "s.db", "a", "--attempt", "1") == ["begun", "end of 1"]
    running.communicate(timeout=60)


def test_a_long_line_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(
        "from redrive.engine import Flow\nflow = Flow('f')\n"
        "@flow.task(timeout=60)\ndef rows():\n    print(list(range(20_000)))\n    print('end')\n"
    )
    state = str(tmp_path / "s.db")
    assert run_redrive("run", tmp_path / "f.py", "--state", state, "--plain").returncode == 0
    first, last = run_redrive("logs", state, "rows").stdout.splitlines()
    assert json.loads(first) == list(range(20_000)) and last == "end"
    texts = [json.loads(line)["text"] for line in run_redrive("logs", state, "rows", "--json").stdout.splitlines()]
    assert texts == [first, "end"]


def test_where_an_attempt_hung_is_said_once(tmp_path: Path) -> None:
    flow = Flow("night")
    flow.command("hangs", "sleep 60", timeout=0.5, retry=RetryPolicy(max_attempts=1))
    Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run()
    (line,) = run_redrive("logs", tmp_path / "s.db", "hangs").stderr.splitlines()
    assert line.startswith("redrive: hangs: attempt 1 timed out: task exceeded ") and line.count("asleep") <= 1
