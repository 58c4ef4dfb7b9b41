"""A task that has used up all descriptors: its failure keeps its type, message and place, and its success counts."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Literal

import pytest
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.core.outcome import Failure
from redrive.engine.core.projection import RunProjection
from redrive.engine.runner.call import make_failure_safely
from redrive.engine.store import database, runs


def use_up() -> list[object]:
    """Open files until no more can be opened."""
    inherited = max(map(int, os.listdir("/proc/self/fd")))  # of the process that runs the tests, which has some
    resource.setrlimit(resource.RLIMIT_NOFILE, (inherited + 40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files: list[object] = []
    while True:
        try:
            files.append(open("/etc/hostname"))
        except OSError:
            return files


def run(tmp_path: Path, isolation: Literal["process", "worker"]) -> RunProjection:
    flow = Flow("f", max_parallel=1)
    once = RetryPolicy(1)

    @flow.task(retry=once, isolation=isolation)
    def opens() -> None:
        kept = use_up()
        kept.append(open("/etc/passwd"))

    @flow.task(retry=once, isolation=isolation)
    def fails() -> None:
        kept = use_up()
        raise ValueError(f"bad row 17 of {len(kept) > 1}")

    @flow.task(retry=once, isolation=isolation)
    def succeeds() -> int:
        globals()["kept"] = use_up()
        return 1

    state = tmp_path / "s.db"
    Executor(run_id="r", flow=flow, state=state).run()
    with database.reading(state) as connection:
        return runs.load_run(connection, "r")


@pytest.mark.parametrize("isolation", ["process", "worker"])
def test_a_failure_keeps_its_type_message_and_place(tmp_path: Path, isolation: Literal["process", "worker"]) -> None:
    tasks = run(tmp_path, isolation).tasks
    opens, fails = tasks["opens"].attempts[1], tasks["fails"].attempts[1]
    assert opens.error == "[Errno 24] Too many open files: '/etc/passwd'"
    assert (opens.error_type, fails.error_type, fails.error) == ("OSError", "ValueError", "bad row 17 of True")
    assert fails.explain is not None and fails.explain.startswith("ValueError test_used_up_descriptors.py:")
    assert len({opens.fingerprint_loose, fails.fingerprint_loose}) == 2
    assert tasks["succeeds"].state == "SUCCESS"


def test_what_cannot_be_described_further_keeps_its_type_message_and_place() -> None:
    """Two failures of one type are two causes also then."""

    def make_failure(error: BaseException) -> Failure:
        raise OSError(24, "Too many open files")

    found = []
    for message in ("bad row 17", "no such table"):
        try:
            raise ValueError(message)
        except ValueError as error:
            found.append(make_failure_safely(make_failure, error))
    assert [failure.message for failure in found] == ["bad row 17", "no such table"]
    assert all(failure.fingerprint.explain.startswith("ValueError test_used_up_descriptors.py:") for failure in found)
    assert found[0].fingerprint.loose != found[1].fingerprint.loose
    assert found[0].diagnostic == "not described further: reading it raised OSError"
