"""Attempts on the workers of a real Dask cluster: the same rules as here, and never two at a time (003.34)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from redrive import __version__
from redrive.engine import Executor, RunOptions
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.core.spec import DaskOptions, FlowSpec, TaskSpec
from redrive.engine.domain.liveness import LEASE_SECONDS, fence_seconds
from redrive.engine.executor import dispatch
from redrive.engine.runner.dask_client import ANSWER_SECONDS, CLOSE_SECONDS, DaskCluster
from redrive.engine.runner.dask_worker import OfferMessage, RemoteFlow
from redrive.engine.runner.protocol import AttemptListener, AttemptOrder, ignore
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until, wait_until_async

PATIENCE_SECONDS = 100.0  # a limit for hangs: nothing here takes as long
GONE_SECONDS = 10.0  # for a process of Dask to end
STOP_SECONDS = 0.2 + ANSWER_SECONDS + CLOSE_SECONDS + 15  # of an executor beside a worker that does not answer
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
    port: int = 0  # of the scheduler; 0: any

    @property
    def scheduler_file(self) -> Path:
        return self.folder / "scheduler.json"

    def start(self, *words: str, version: str | None = None, **variables: str) -> None:
        """Start a scheduler or a worker. ``version``: of redrive, as it claims."""
        command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
        if version is not None:
            lines = ["import redrive", f"redrive.__version__ = {version!r}"]
            lines.append(f"from distributed.cli.dask_{words[0]} import main; main()")
            command = [sys.executable, "-c", "\n".join(lines), *words[1:], "--no-nanny"]
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [*command, "--no-dashboard"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **variables},
                )
            )

    @property
    def address(self) -> str:
        wait_until(lambda: self.scheduler_file.exists() and self.scheduler_file.read_text())
        return str(json.loads(self.scheduler_file.read_text())["address"])

    def start_scheduler(self) -> None:
        self.scheduler_file.unlink(missing_ok=True)
        file = str(self.scheduler_file)
        self.start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--scheduler-file", file)

    def start_worker(self, *, threads: int = 4, version: str | None = None, **variables: str) -> None:
        assert self.address
        words = ["--scheduler-file", str(self.scheduler_file), "--nthreads", str(threads)]
        self.start("worker", *words, "--local-directory", str(self.folder), version=version, **variables)

    def kill(self) -> None:
        """End all at once. Workers end with their scheduler."""
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_SECONDS)
        self.processes.clear()

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(GONE_SECONDS)
            except subprocess.TimeoutExpired:  # a worker may wait for ever for its scheduler
                process.kill()
                process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    cluster.start_scheduler()
    cluster.start_worker()
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


@pytest.mark.long
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
    assert re.search(r"hang (at its end: |was in )", output), output  # a busy machine leaves no time for its stack
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
    answer = run_redrive("cancel", "--state", state, "--reason", "x", "wait", check=True).stdout
    assert "20 s from now at the latest, if its Dask worker does not answer" in answer
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


class StubClient:
    """A client of a cluster with one worker, which asks for each offer at once, and whose results cannot be read."""

    status = "running"

    def __init__(self) -> None:
        self.handler: Callable[[tuple[float, bytes]], None] = lambda event: None
        self.answers: list[bytes] = []

    def subscribe_topic(self, topic: str, handler: Callable[[tuple[float, bytes]], None]) -> None:
        self.handler = handler

    def submit(self, function: object, offer: str, executor_id: str, **options: object) -> StubFuture:
        request = OfferMessage(offer, 0, "permit_requested", ("tcp://worker:1", __version__, "a machine"))
        asyncio.get_running_loop().call_soon(self.handler, (0.0, msgspec.msgpack.encode(request)))
        return StubFuture()

    async def run(self, function: object, *arguments: object, **options: object) -> dict[str, object]:
        if arguments and isinstance(arguments[-1], bytes):
            self.answers.append(arguments[-1])
        return {}

    async def nthreads(self) -> dict[str, int]:
        return {"tcp://worker:1": 1}

    async def cancel(self, futures: object, force: bool) -> None: ...

    async def close(self) -> None: ...


class StubFuture:
    """The future of an offer; ``end`` ends it with a result that cannot be read."""

    def __init__(self) -> None:
        self.status = "pending"

    def add_done_callback(self, callback: Callable[[object], object], /) -> None:
        self.status = "finished"
        asyncio.get_running_loop().call_later(0.1, callback, self)

    async def result(self) -> bytes:
        raise RuntimeError("the result cannot be read here")

    async def exception(self) -> BaseException:
        raise RuntimeError("it has none")


class Outcomes(AttemptListener):
    """Collects the outcomes of attempts."""

    def __init__(self) -> None:
        self.found: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.found.append(outcome)


def stub_cluster(client: object, told: list[str | None] | None = None) -> DaskCluster:
    report = (lambda payload: told.append(payload.how)) if told is not None else (lambda payload: None)
    flow = RemoteFlow("flow.py", FlowSpec("flow", ()), {}, {})
    return DaskCluster("tcp://etl1:8786", "executor", flow, client=client, report=report, wake=ignore)


ONE_WORKER = {"workers:": (DaskOptions(), 1)}


@pytest.mark.long
async def test_an_end_that_cannot_be_read_is_an_end() -> None:
    """Or its task would be running for ever."""
    cluster, outcomes, spec = stub_cluster(StubClient()), Outcomes(), TaskSpec("a", grace_seconds=0.0)
    cluster.demand(ONE_WORKER)
    await wait_until_async(lambda: cluster.acquire("a", "workers:"))
    cluster.start(AttemptOrder("run", "a", 1, 0, spec), outcomes)
    await wait_until_async(lambda: bool(outcomes.found), timeout_seconds=fence_seconds(0.0) + 10)
    assert outcomes.found[0].kind is OutcomeKind.LOST
    await cluster.close()


# --- A cluster that goes away -----------------------------------------------------------------------------------------


AWAY = """
import time
from pathlib import Path
from redrive.engine import Flow, RetryPolicy

flow = Flow("away", retry=RetryPolicy(max_attempts=2, base=0.1, cap=0.1))
here = Path(__file__).parent

@flow.task(isolation="dask", timeout=60, grace_seconds=0.2)
def elsewhere(ctx):
    if ctx.attempt == 1 and (here / "waits").exists():
        (here / "runs").touch()
        time.sleep(600)
    return 1

@flow.task
def here_too():
    time.sleep(3)
"""


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that a test may end. Its scheduler has a port that stays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = Cluster(tmp_path, port=port)
    try:
        yield cluster
    finally:
        cluster.end()


def start_run(cluster: Cluster, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    flow, state = write(tmp_path, AWAY)
    cluster.start_scheduler()
    address = cluster.address
    return start_redrive("run", flow, "--state", state, "--dask", address, "--plain", stderr=subprocess.PIPE), state


def rows_by_now(state: Path, sql: str) -> list[Any]:
    """The rows; none of a file that is not written yet."""
    try:
        return rows(state, sql)
    except sqlite3.OperationalError:
        return []


def sentences(state: Path) -> list[str]:
    """What people are told about the cluster."""
    data = rows_by_now(state, "SELECT data FROM event WHERE kind = 'executor' ORDER BY seq")
    return [found["how"] for found in (json.loads(text) for (text,) in data) if found["what"] == "cluster-changed"]


def wait_text(state: Path) -> str:
    """Why tasks wait for a worker, as `redrive tasks` has it."""
    waits = rows_by_now(state, "SELECT pool_waits FROM run")
    return str(json.loads(waits[0][0])["workers"].get("", "")) if waits and waits[0][0] else ""


@pytest.mark.weekly
@pytest.mark.long
def test_without_a_worker_a_task_is_ready_and_a_stop_ends_the_executor_at_once(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    process, state = start_run(own_cluster, tmp_path)
    wait_until(lambda: wait_text(state))
    assert wait_text(state) == "the Dask cluster has 0 workers"
    assert rows(state, "SELECT state, attempt FROM task WHERE name = 'elsewhere'") == [("READY", 0)]
    shown = run_redrive("tasks", state, check=True).stdout
    assert "waits for a Dask worker: the Dask cluster has 0 workers" in shown
    began = time.monotonic()
    process.terminate()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert time.monotonic() - began < 20
    assert process.returncode == 130 and "Traceback" not in errors, errors + output


@pytest.mark.long
def test_a_cluster_without_workers_pages_once_and_the_first_worker_resolves_it(
    own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LONG_OUTAGE_SECONDS", 3.0)
    flow, state = write(tmp_path, AWAY)
    own_cluster.start_scheduler()
    executor = Executor(flow=str(flow), state=state, options=RunOptions(dask=own_cluster.address))
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(executor.run)
        wait_until(lambda: rows_by_now(state, "SELECT 1 FROM page"))
        ((title, page_state, body),) = rows(state, "SELECT title, state, body FROM page")
        assert title.startswith("no Dask worker on elsewhere") and page_state == "open"
        assert "for a Dask worker: the Dask cluster has 0 workers" in json.loads(body)["why"]
        own_cluster.start_worker()
        assert ended.result(PATIENCE_SECONDS) == "SUCCESS"
    assert rows(state, "SELECT state, count FROM page") == [("resolved", 1)]


@pytest.mark.weekly
@pytest.mark.long
def test_a_resumed_run_waits_for_a_scheduler_that_is_away(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_run(own_cluster, tmp_path)
    wait_until(lambda: wait_text(state))
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    address = own_cluster.address
    own_cluster.kill()
    again = start_redrive("resume", state, "--dask", address, "--plain", stderr=subprocess.PIPE)
    wait_until(lambda: wait_text(state) == f"no Dask scheduler answers at {address}")
    own_cluster.start_scheduler()
    own_cluster.start_worker()
    output, errors = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0 and "Traceback" not in errors, errors + output


@pytest.mark.long
@pytest.mark.weekly
def test_after_an_absence_of_the_scheduler_what_waited_is_queued_again(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_run(own_cluster, tmp_path)
    wait_until(lambda: bool(rows_by_now(state, "SELECT 1 FROM task WHERE state = 'SUCCESS'")))
    own_cluster.kill()
    wait_until(lambda: "no Dask scheduler answers" in " ".join(sentences(state)))
    time.sleep(25)  # longer than Dask's client waits before it gives up for good
    own_cluster.start_scheduler()
    own_cluster.start_worker()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0 and "Traceback" not in errors, errors + output
    assert "the Dask scheduler answers again" in sentences(state)
    assert rows(state, "SELECT outcome FROM attempt WHERE name = 'elsewhere'") == [("success",)]


@pytest.mark.long
@parametrize_mostly_long("is_running", [True, False], quick=0, daily=1)
def test_a_stop_ends_the_executor_while_the_cluster_is_gone_for_ever(
    own_cluster: Cluster, tmp_path: Path, is_running: bool
) -> None:
    if is_running:
        (tmp_path / "waits").touch()
    process, state = start_run(own_cluster, tmp_path)
    if is_running:
        own_cluster.start_worker()
        wait_until((tmp_path / "runs").exists)
    wait_until(lambda: bool(rows_by_now(state, "SELECT 1 FROM task WHERE state = 'SUCCESS'")))
    own_cluster.kill()
    wait_until(lambda: "no Dask scheduler answers" in " ".join(sentences(state)))
    began = time.monotonic()
    process.terminate()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert time.monotonic() - began < (STOP_SECONDS if is_running else 20)
    assert process.returncode == 130 and "Traceback" not in errors, errors + output
    ((task_state,),) = rows(state, "SELECT state FROM task WHERE name = 'elsewhere'")
    assert task_state == ("RETRYING" if is_running else "READY")


@pytest.mark.long
async def test_a_client_that_refuses_an_offer_is_an_absence_and_no_exception() -> None:
    class Closed(StubClient):
        def submit(self, function: object, offer: str, executor_id: str, **options: object) -> StubFuture:
            raise RuntimeError("Client is closed. Can't send update-graph message.")

    told: list[str | None] = []
    cluster = stub_cluster(Closed(), told)
    cluster.demand(ONE_WORKER)
    assert len(told) == 1 and str(told[0]).startswith("no Dask scheduler answers")
    assert not cluster.acquire("a", "workers:")
    await cluster.close()


# --- Chaos: what an operator sees when a part of the cluster is away --------------------------------------------------


CHAOS = """
import os, time
from pathlib import Path
from redrive.engine import Flow, RetryPolicy

flow = Flow("chaos", retry=RetryPolicy(max_attempts=3, base=0.1, cap=0.1))
here = Path(__file__).parent

def work(ctx):
    for _ in range(500):
        time.sleep(0.01)
        (here / f"{ctx.task}-{ctx.attempt}.new").write_text(f"{os.getppid()} {time.time()}")
        os.replace(here / f"{ctx.task}-{ctx.attempt}.new", here / f"{ctx.task}-{ctx.attempt}.alive")

for number in range(8):
    flow.task(work, name=f"far{number}", isolation="dask", timeout=30, grace_seconds=0.2)

@flow.task
def near():
    time.sleep(8)
"""
FAR_TASKS = [f"far{number}" for number in range(8)]


def start_chaos(cluster: Cluster, tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a run of eight tasks on two workers with two threads each; return once four attempts run."""
    flow, state = write(tmp_path, CHAOS)
    cluster.start_scheduler()
    for _ in range(2):
        cluster.start_worker(threads=2)
    words = ("run", flow, "--state", state, "--dask", cluster.address, "--max-parallel", "9", "--plain")
    process = start_redrive(*words, stderr=subprocess.PIPE)
    wait_until(lambda: rows_by_now(state, "SELECT count(pid) >= 4 FROM attempt WHERE name LIKE 'far%'") == [(1,)])
    wait_until(lambda: any(tmp_path.glob("far*.alive")))
    return process, state


def worker_of_an_attempt(tmp_path: Path) -> psutil.Process:
    """The worker process under which an attempt runs."""
    zygote = psutil.Process(int(next(tmp_path.glob("far*.alive")).read_text().split()[0]))
    worker = zygote.parent()
    assert worker is not None
    return worker


def finish_chaos(process: subprocess.Popen[str], state: Path) -> list[tuple[str, int, int]]:
    """Wait for the success of the run; return its lost attempts: task, number, end in microseconds."""
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0 and "Traceback" not in errors, errors + output
    states = dict(rows(state, "SELECT name, state FROM task"))
    assert states == dict.fromkeys([*FAR_TASKS, "near"], "SUCCESS")
    require_one_at_a_time(state)
    return rows(state, "SELECT name, attempt, ended_at FROM attempt WHERE outcome = 'lost' ORDER BY name, attempt")


def require_one_at_a_time(state: Path) -> None:
    """An attempt has written for the last time before the next one of its task has started."""
    starts = rows(state, "SELECT name, attempt, started_at FROM attempt WHERE attempt > 1 AND name LIKE 'far%'")
    for name, attempt, started_at in starts:
        before = state.parent / f"{name}-{attempt - 1}.alive"
        if before.exists():
            assert float(before.read_text().split()[1]) * 1e6 < started_at, (name, attempt)


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize("away_seconds", [5, pytest.param(15, marks=pytest.mark.weekly)])
def test_a_run_outlasts_an_absence_of_its_scheduler(own_cluster: Cluster, tmp_path: Path, away_seconds: int) -> None:
    process, state = start_chaos(own_cluster, tmp_path)
    own_cluster.kill()
    killed_at = time.time()
    wait_until(lambda: "no Dask scheduler answers" in wait_text(state))
    assert rows(state, "SELECT count(*) FROM task WHERE state = 'RUNNING' AND name <> 'near'")[0][0] <= 4
    time.sleep(max(0.0, killed_at + away_seconds - time.time()))  # what is tested is an absence of so long
    own_cluster.start_scheduler()
    for _ in range(2):
        own_cluster.start_worker(threads=2)
    lost = finish_chaos(process, state)
    assert 1 <= len(lost) <= 4
    assert all(ended_at / 1e6 - killed_at < 15 for _, _, ended_at in lost), (
        "their processes are gone, as this host sees"
    )
    near = rows(state, "SELECT ended_at FROM task WHERE name = 'near'")[0][0]
    assert near / 1e6 < killed_at + 12
    assert "the Dask scheduler answers again" in sentences(state)


@pytest.mark.long
@pytest.mark.weekly
def test_a_scheduler_that_hangs_for_seconds_costs_no_attempt(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_chaos(own_cluster, tmp_path)
    scheduler = psutil.Process(own_cluster.processes[0].pid)
    scheduler.suspend()
    try:
        time.sleep(7)  # what is tested is a silence of so long
        assert "no Dask scheduler answers" in wait_text(state)
    finally:
        scheduler.resume()
    assert finish_chaos(process, state) == []
    assert sentences(state) == []


@pytest.mark.weekly
@pytest.mark.long
def test_the_attempts_of_a_killed_worker_are_lost_within_seconds(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_chaos(own_cluster, tmp_path)
    worker_of_an_attempt(tmp_path).kill()
    killed_at = time.time()
    lost = finish_chaos(process, state)
    assert 1 <= len(lost) <= 2
    assert all(ended_at / 1e6 - killed_at < 6 for _, _, ended_at in lost)
    errors = rows(state, "SELECT DISTINCT explain FROM attempt WHERE outcome = 'lost'")
    assert len(errors) == 1 and "is gone" in errors[0][0]


@pytest.mark.weekly
@pytest.mark.long
def test_a_frozen_worker_is_left_and_its_attempts_end_before_others_start(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_chaos(own_cluster, tmp_path)
    worker = worker_of_an_attempt(tmp_path)
    worker.suspend()
    try:
        lost = finish_chaos(process, state)
        assert 1 <= len(lost) <= 2
        errors = rows(state, "SELECT DISTINCT explain FROM attempt WHERE outcome = 'lost'")
        assert len(errors) == 1 and "has not answered for 15 s" in errors[0][0]
    finally:
        worker.resume()


@pytest.mark.long
@pytest.mark.weekly
def test_a_stop_ends_the_executor_beside_a_frozen_worker(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_chaos(own_cluster, tmp_path)
    worker = worker_of_an_attempt(tmp_path)
    worker.suspend()
    try:
        began = time.monotonic()
        process.terminate()
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert time.monotonic() - began < STOP_SECONDS
        assert process.returncode == 130 and "Traceback" not in errors, errors + output
        stopped_at = rows(state, "SELECT max(at) FROM event")[0][0]
        sql = "SELECT next_retry_at FROM task WHERE state = 'RETRYING' AND next_retry_at > ?"
        with closing(sqlite3.connect(state)) as connection:
            fenced = connection.execute(sql, (stopped_at + 5_000_000,)).fetchall()
        assert 1 <= len(fenced) <= 2, "their attempts may still live"
    finally:
        worker.resume()


@pytest.fixture
def frozen_run(own_cluster: Cluster, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run, and its state file, whose only attempt is on a worker that was stopped (SIGSTOP)."""
    flow, state = write(tmp_path, WAITING)
    own_cluster.start_scheduler()
    own_cluster.start_worker(threads=1)
    words = ("run", flow, "--state", state, "--dask", own_cluster.address, "--plain")
    process = start_redrive(*words, stderr=subprocess.PIPE)
    wait_until((tmp_path / "alive").exists)
    *_, worker = psutil.Process(int((tmp_path / "starts").read_text().split()[0])).parents()[:2]
    worker.suspend()
    yield process, state
    worker.resume()


@pytest.mark.long
@pytest.mark.weekly
def test_a_cancel_beside_a_frozen_worker_ends_the_task_when_its_lease_has_expired(
    frozen_run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, state = frozen_run
    began = time.monotonic()
    answer = run_redrive("cancel", "--state", state, "--reason", "x", "wait", check=True).stdout
    assert "20 s from now at the latest, if its Dask worker does not answer" in answer
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert time.monotonic() - began < fence_seconds(0.2) + STOP_SECONDS
    assert rows(state, "SELECT state FROM task") == [("CANCELLED",)], errors + output
    ended_at = rows(state, "SELECT ended_at FROM attempt")[0][0] / 1e6
    assert float((state.parent / "alive").read_text()) < ended_at, "it was called ended, and it ran"


@pytest.mark.long
@pytest.mark.weekly
def test_a_stop_by_the_command_ends_the_executor_beside_a_frozen_worker(
    frozen_run: tuple[subprocess.Popen[str], Path],
) -> None:
    process, state = frozen_run
    began = time.monotonic()
    run_redrive("stop", "--state", state, "--reason", "x", "--wait", check=True)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert time.monotonic() - began < STOP_SECONDS + 10, "with the start of the command"
    assert process.returncode == 130 and "Traceback" not in errors, errors + output
    sql = "SELECT next_retry_at - (SELECT max(at) FROM event) > 5000000 FROM task WHERE state = 'RETRYING'"
    assert rows(state, sql) == [(1,)], "its attempt may still live"


@pytest.mark.weekly
@pytest.mark.long
def test_a_worker_with_another_version_gets_no_attempt_and_is_named(own_cluster: Cluster, tmp_path: Path) -> None:
    process, state = start_run(own_cluster, tmp_path)
    own_cluster.start_worker(version="0.0.9")
    wait_until(lambda: "has redrive 0.0.9, and this is " in wait_text(state), describe=lambda: wait_text(state))
    assert rows(state, "SELECT state, attempt FROM task WHERE name = 'elsewhere'") == [("READY", 0)]
    own_cluster.start_worker()
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors + output


OTHER_ELSEWHERE = """
import os
from redrive.engine import Flow

flow = Flow("other")
for number in range(int(os.environ.get("PARTS", "3"))):
    @flow.task(name=f"part{number}", isolation="dask")
    def part():
        return 1
"""


@pytest.mark.weekly
@pytest.mark.long
def test_a_worker_that_imports_another_flow_is_refused_and_another_one_is_used(
    own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cluster.start_scheduler()
    own_cluster.start_worker()
    flow, state = write(tmp_path, OTHER_ELSEWHERE)
    monkeypatch.setenv("PARTS", "5")
    process = start_redrive(
        "run", flow, "--state", state, "--dask", own_cluster.address, "--plain", stderr=subprocess.PIPE
    )
    why = "imports another flow: it lacks part3, part4 (1 of 1 worker"
    wait_until(lambda: why in wait_text(state), describe=lambda: wait_text(state))
    own_cluster.start_worker(PARTS="5")
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors + output
    assert rows(state, "SELECT DISTINCT state FROM task") == [("SUCCESS",)]


DECLARED = """
import os
from redrive.engine import Flow

flow = Flow("declared", env_file=".env", secrets=["TOKEN"])

@flow.task(isolation="dask")
def read():
    print("the token is", os.environ["TOKEN"])
    return [os.environ["DAY"], len(os.environ["TOKEN"])]
"""


@pytest.mark.long
def test_the_variables_that_a_flow_declares_travel_and_secrets_stay_masked(
    own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cluster.start_scheduler()
    own_cluster.start_worker(DAY="another", TOKEN="")
    flow, state = write(tmp_path, DECLARED)
    (tmp_path / ".env").write_text("DAY=2026-03-01\n")
    monkeypatch.setenv("TOKEN", "swordfish")
    run_redrive("run", flow, "--state", state, "--dask", own_cluster.address, "--plain", check=True)
    assert rows(state, "SELECT result FROM task") == [('["2026-03-01",9]',)]
    assert "swordfish" not in run_redrive("logs", state, "read", check=True).stdout


# --- What travels, and where to ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_sources_travel_and_the_options_choose_the_worker(cluster: Cluster, tmp_path: Path) -> None:
    """The flow lies where its worker sees no files: there it is imported from what the executor has sent."""
    package = tmp_path / "etl"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helpers.py").write_text("def double(value):\n    return 2 * value\n")
    (package / "flow.py").write_text(TRAVELS)
    state = tmp_path / "state.db"
    words = ("run", package / "flow.py", "--state", state, "--dask", cluster.address, "--stay", "--plain")
    process = start_redrive(*words, stderr=subprocess.PIPE)
    try:
        wait_until((package / "begun").exists)
        package.rename(tmp_path / "moved")
        wait_until(lambda: rows_by_now(state, "SELECT 1 FROM task WHERE name = 'double' AND state = 'SUCCESS'"))
        assert rows(state, "SELECT result FROM task WHERE name = 'double'") == [("42",)]
        wait_until(lambda: "GPU=1" in str(rows(state, "SELECT pool_waits FROM run")))
        assert rows(state, "SELECT state FROM task WHERE name = 'picky'") == [("READY",)]
        run_redrive("cancel", "--state", state, "--reason", "no GPU", "picky", check=True)
        wait_until(lambda: rows(state, "SELECT state FROM task WHERE name = 'picky'") == [("CANCELLED",)])
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in errors, errors + output


TRAVELS = """
import os, time
from redrive.engine import Flow
from .helpers import double as twice

flow = Flow("travels")

@flow.task
def moved():
    open(os.path.join(os.path.dirname(__file__), "begun"), "w").close()
    while os.path.exists(__file__):
        time.sleep(0.05)

@flow.task(isolation="dask", after=[moved])
def double():
    return twice(21)

@flow.task(isolation="dask", after=[moved], dask={"resources": {"GPU": 1}})
def picky():
    return None
"""
