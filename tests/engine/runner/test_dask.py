"""Attempts on the workers of a real Dask cluster: the same rules as here, and never two at a time (003.34)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.states import LEASE_SECONDS
from redrive.engine.runner.dask_client import DaskCluster
from redrive.engine.runner.listener import AttemptListener
from redrive.engine.runner.protocol import AttemptOrder
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

PATIENCE_SECONDS = 100.0  # a limit for hangs: nothing here takes as long
pytestmark = pytest.mark.xdist_group("dask")  # one cluster for all of them

FLOW = """
import os, time
from pathlib import Path
from redrive.engine import Flow, PermanentError, RetryPolicy

flow = Flow("elsewhere")
here = Path(__file__).parent

@flow.task(isolation="dask")
def extract():
    print("hello from a worker")
    return {"rows": 3}

@flow.task(isolation="dask", after=[extract])
def load(extract):
    return extract["rows"] + 1

flow.command("tell", "echo task $REDRIVE_TASK", after=[load], isolation="dask")

@flow.task(isolation="dask", timeout=1, grace_seconds=0.2, retry=RetryPolicy(max_attempts=1), optional=True)
def hang():
    while True:
        pass

@flow.map(isolation="dask", over="parts")
def double(part):
    return part * 2

@flow.task(isolation="dask")
def parts():
    return [1, 2]

@flow.task(isolation="dask", optional=True)
def refuse():
    raise PermanentError("no such customer")
"""

#: Waits for a file the first time, and notes who starts and who ends: two at a time would show.
WAITING = """
import os, time
from pathlib import Path
from redrive.engine import Flow, RetryPolicy

flow = Flow("waiting")
here = Path(__file__).parent

@flow.task(isolation="dask", grace_seconds=0.2, retry=RetryPolicy(max_attempts=3, base=0.1))
def wait(ctx):
    with open(here / "starts", "a") as starts:
        print(os.getpid(), time.time(), file=starts)
    if ctx.attempt > 1:
        return
    try:
        while True:
            time.sleep(0.01)
            (here / "alive.new").write_text(str(time.time()))  # a kill leaves the one before
            os.replace(here / "alive.new", here / "alive")
    finally:
        (here / "unwound").touch()
"""


@dataclass
class Cluster:
    """A scheduler and its worker, as people start them."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def scheduler_file(self) -> Path:
        return self.folder / "scheduler.json"

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            self.processes.append(
                subprocess.Popen([*command, "--no-dashboard"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )

    @property
    def address(self) -> str:
        wait_until(self.scheduler_file.exists)
        return str(json.loads(self.scheduler_file.read_text())["address"])

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    file = str(cluster.scheduler_file)
    cluster.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
    cluster.start("worker", "--scheduler-file", file, "--nthreads", "4", "--local-directory", str(cluster.folder))
    try:
        yield cluster
    finally:
        cluster.end()


def rows(state: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def write(tmp_path: Path, text: str) -> tuple[Path, Path]:
    flow = tmp_path / "flow.py"
    flow.write_text(text)
    return flow, tmp_path / "state.db"


def test_a_flow_runs_on_the_workers_with_results_output_deadline_and_failures(cluster: Cluster, tmp_path: Path) -> None:
    flow, state = write(tmp_path, FLOW)
    process = start_redrive("run", flow, "--state", state, "--dask", cluster.address, "--plain", stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 3, errors + output
    tasks = dict(rows(state, "SELECT name, state FROM task"))
    assert tasks == {
        "extract": "SUCCESS", "load": "SUCCESS", "tell": "SUCCESS", "hang": "FAILED", "refuse": "DEAD_LETTER",
        "parts": "SUCCESS", "double": "SUCCESS", "double[0]": "SUCCESS", "double[1]": "SUCCESS",
    }  # fmt: skip
    assert rows(state, "SELECT result FROM task WHERE name = 'load'") == [("4",)]
    logs = dict(rows(state, "SELECT name, group_concat(text, '') FROM log GROUP BY name"))
    assert logs["extract"] == "hello from a worker\n"
    assert logs["tell"] == "task tell\n"
    assert "hang at its end: spinning at flow.py:" in output
    assert rows(state, "SELECT result FROM task WHERE name = 'double'") == [("[2,4]",)]
    hosts = dict(rows(state, "SELECT name, host FROM attempt WHERE name <> 'double'"))  # it only collects
    assert all(str(host).startswith("tcp://127.0.0.1:") for host in hosts.values()), hosts


@pytest.mark.long
def test_what_a_dead_worker_had_is_lost_and_runs_again_elsewhere_after_it(cluster: Cluster, tmp_path: Path) -> None:
    flow, state = write(tmp_path, WAITING)
    process = start_redrive("run", flow, "--state", state, "--dask", cluster.address, "--plain", stderr=subprocess.PIPE)
    wait_until((tmp_path / "alive").exists)
    attempt = psutil.Process(int((tmp_path / "starts").read_text().split()[0]))
    zygote = attempt.parent()
    assert zygote is not None
    worker = zygote.parent()
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors + output
    outcomes = rows(state, "SELECT attempt, outcome FROM attempt ORDER BY attempt")
    assert outcomes == [(1, "lost"), (2, "success")]
    starts = [float(line.split()[1]) for line in (tmp_path / "starts").read_text().splitlines()]
    assert len(starts) == 2, "Dask alone would have started it again by itself"
    assert float((tmp_path / "alive").read_text()) < starts[1]


@pytest.mark.long
def test_an_attempt_whose_executor_was_killed_ends_by_itself_before_the_next_one_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    flow, state = write(tmp_path, WAITING)
    process = start_redrive("run", flow, "--state", state, "--dask", cluster.address, "--plain", stderr=subprocess.PIPE)
    wait_until((tmp_path / "alive").exists)
    executor = psutil.Process(process.pid)
    for child in executor.children():
        if child.cmdline() == executor.cmdline():
            child.kill()  # the reaper, which reaches no attempt on another host
    process.kill()
    process.communicate()
    wait_until((tmp_path / "unwound").exists)  # nobody has told it to end
    again = start_redrive("resume", state, "--dask", cluster.address, "--plain", stderr=subprocess.PIPE)
    output, errors = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, errors + output
    starts = [float(line.split()[1]) for line in (tmp_path / "starts").read_text().splitlines()]
    assert len(starts) == 2
    assert float((tmp_path / "alive").read_text()) - starts[0] > LEASE_SECONDS / 2
    assert starts[1] - float((tmp_path / "alive").read_text()) > LEASE_SECONDS, "nobody can know earlier"


@pytest.mark.long
def test_an_operator_stops_it_on_its_worker(cluster: Cluster, tmp_path: Path) -> None:
    flow, state = write(tmp_path, WAITING)
    process = start_redrive("run", flow, "--state", state, "--dask", cluster.address, "--plain", stderr=subprocess.PIPE)
    wait_until((tmp_path / "alive").exists)
    run_redrive("cancel", "--state", state, "--reason", "x", "wait", check=True)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert rows(state, "SELECT state FROM task") == [("CANCELLED",)], errors + output
    assert (tmp_path / "unwound").exists()


@parametrize_mostly_long(
    ("words", "sentence"),
    [
        ((), "task 'extract' runs on Dask: say where with --dask tcp://HOST:8786 or REDRIVE_DASK"),
        (("--dask", "rubbish"), "no Dask scheduler answers at 'rubbish'"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    flow, state = write(tmp_path, FLOW)
    environment = {name: value for name, value in os.environ.items() if name != "REDRIVE_DASK"}
    process = start_redrive("run", flow, "--state", state, *words, "--plain", env=environment, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert sentence in errors
    assert len(errors.splitlines()) == 1


class Unreadable:
    """A client of a cluster, and the future of its one errand, which has ended and cannot be read."""

    status = "finished"

    def subscribe_topic(self, topic: str, handler: Callable[..., None]) -> None: ...

    def submit(self, *errand: object, **options: object) -> Unreadable:
        return self

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)

    async def result(self) -> bytes:
        raise RuntimeError("the result cannot be read here")

    async def close(self) -> None: ...


@pytest.mark.long
async def test_an_end_that_cannot_be_read_is_an_end() -> None:
    """Or its task would be running for ever."""
    ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    class Listener(AttemptListener):
        def ended(self, outcome: Outcome) -> None:
            ended.set_result(outcome)

    spec = TaskSpec("a")
    cluster = DaskCluster(Unreadable(), "executor", "flow.py", {}, FlowSpec("f", (spec,)))
    cluster.start(AttemptOrder("run", "a", 1, 0, "token", spec), Listener())
    outcome = await asyncio.wait_for(ended, 30)
    assert outcome.kind is OutcomeKind.LOST
    await cluster.close()
