"""Runs a command that runs pytest, and each test that failed once more: alone, in a process of its own, afterwards.

``python3 .ci/try_again.py --again ".venv/bin/pytest OPTION..." --unstable FILE -- COMMAND...``

A test that passes then is unstable: it is printed with its first failure, its name is added to FILE, and the command
counts as passed, unless FILE has more than ``UNSTABLE_MAX`` names, those of earlier commands included. What no second
try can decide fails at once: a file that cannot be collected, a session that ended early, what several tests share,
more failures than ``TRIES_MAX``. The module is also the plugin of pytest that notes what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

UNSTABLE_MAX = 3  # in all commands of one run of the checks
TRIES_MAX = 20  # more failures than this are no bad luck
TRIES_SECONDS = 900.0  # for all second tries of a command

# --- In pytest: what failed -------------------------------------------------------------------------------------------

RECORD, OUTER_PATH = "TRY_AGAIN_RECORD", "TRY_AGAIN_OUTER_PYTHONPATH"
LAST = "the last of its process"
_record: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Note failures in the process that reports them; a process that runs tests has the environment of the caller."""
    global _record
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        _record = Path(os.environ[RECORD])
    if is_worker or not config.getoption("numprocesses", None):
        for name in (RECORD, "PYTEST_ADDOPTS", "PYTHONPATH"):
            os.environ.pop(name, None)
        if outer := os.environ.pop(OUTER_PATH, ""):
            os.environ["PYTHONPATH"] = outer


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Mark the test at whose end everything that tests share is torn down."""
    if nextitem is None:
        item.user_properties.append((LAST, True))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        shared = report.when == "teardown" and (LAST, True) in map(tuple, report.user_properties)
        note("shared" if shared else "failed", report.nodeid, text_of(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note("collection", report.nodeid, text_of(report))


def pytest_sessionfinish(exitstatus: int) -> None:
    note("end", "", str(int(exitstatus)))


def text_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The failure and what was printed, as pytest shows them."""
    printed = [f"--- {title} ---\n{content}" for title, content in report.sections if content.strip()]
    return "\n".join([report.longreprtext, *printed])


def note(kind: str, test: str, text: str) -> None:
    if _record is not None:  # workers report to the process that does
        with _record.open("a") as file:
            file.write(json.dumps([kind, test, text]) + "\n")


# --- Around pytest: what follows ------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """``refused``: why no second try can help, "" if it can; ``first``: the first failure of each test to try again."""

    refused: str
    first: dict[str, str]


def judge(record: str, exit_code: int) -> Verdict:
    """What follows from the lines that the plugin wrote, and from the exit code of the command."""
    notes = [json.loads(line) for line in record.splitlines()]
    ends = [int(text) for kind, _, text in notes if kind == "end"]
    unmendable = [test for kind, test, _ in notes if kind in ("collection", "shared")]
    first: dict[str, str] = {}
    for kind, test, text in notes:
        if kind == "failed":
            first[test] = f"{first[test]}\n{text}" if test in first else text
    if exit_code == 0:
        return Verdict("" if ends == [0] else "the command ended well, but its tests did not", {})
    if ends != [1] or exit_code != 1:
        refused = f"the command ended with code {exit_code}, its tests with {ends or 'none'}"
    elif unmendable:
        refused = f"not of one test alone: {', '.join(unmendable)}"
    elif not first:
        refused = "the tests ended with code 1, and none of them has failed"
    elif len(first) > TRIES_MAX:
        refused = f"{len(first)} tests failed: too many for bad luck"
    else:
        refused = ""
    return Verdict(refused, first)


def recorded(command: list[str]) -> tuple[int, str]:
    """The exit code of the command, and what the plugin noted in its pytest."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record")
        record.touch()
        outer = os.environ.get("PYTHONPATH", "")
        environment = {
            **os.environ,
            RECORD: str(record),
            OUTER_PATH: outer,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent), outer])),
            "PYTEST_ADDOPTS": f"-p {Path(__file__).stem}",
        }
        return subprocess.run(command, env=environment).returncode, record.read_text()


def headline(text: str) -> None:
    print(f"\n== {text}", flush=True)


def passes(command: list[str], seconds: float) -> bool:
    """What runs longer is killed with its process group, and has failed."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def try_again(first: dict[str, str], again: list[str]) -> list[str]:
    """The tests that pass now, each printed with its first failure."""
    ends, passed = time.monotonic() + TRIES_SECONDS, []
    for test, text in first.items():
        headline(f"once more, alone: {test}")
        if passes([*again, "-m", "", test], max(0.0, ends - time.monotonic())):
            passed.append(test)
            headline(f"unstable: {test} passes now; it failed with")
            print(text, flush=True)
    return passed


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", required=True, type=shlex.split)
    parser.add_argument("--unstable", required=True, type=Path)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(words)
    exit_code, record = recorded(given.command)
    verdict = judge(record, exit_code)
    if verdict.refused:
        headline(f"failed, and not tried again: {verdict.refused}")
        return 1
    unstable = try_again(verdict.first, given.again)
    with given.unstable.open("a") as file:
        file.writelines(f"{test}\n" for test in unstable)
    for test in verdict.first.keys() - set(unstable):
        headline(f"failed twice: {test}")
    count = len(given.unstable.read_text().splitlines())
    if count > UNSTABLE_MAX:
        headline(f"{count} unstable tests: more than {UNSTABLE_MAX} fail the checks")
    return 1 if len(unstable) < len(verdict.first) or count > UNSTABLE_MAX else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
