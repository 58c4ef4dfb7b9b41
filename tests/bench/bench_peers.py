"""What a task costs beside the least that it could cost, and beside other tools: rate, and CPU by process.

python tests/bench/bench_peers.py [--count 1000] [--rounds 3] [--only process floor ...] [--peers]

Runs no-op tasks as a fan-out and as a chain through ``Executor(...).run()``, durability full, 4 at a time. The floor
forks a bare interpreter and commits twice with fsync, one task at a time. ``--peers`` installs Luigi, DBOS and Huey
with pip into the folder ``--scratch`` and runs the same shapes there. CPU columns hold on a busy machine, rates do not.
The opening of a run is left out.

"start to start": in the chain, from the start of a task's code to that of its child, median.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

if TYPE_CHECKING:
    from redrive.engine.core.spec import Isolation  # not at run time: the floor is a bare interpreter


HERE = Path(__file__).resolve()
SHAPES = ("fan-out", "chain")
PARALLEL = 4
PEERS = {"luigi": "luigi", "dbos": "dbos", "huey": "huey"}
Figures = dict[str, float]


def cpu_of(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def measured(run: Callable[[], None]) -> Figures:
    """Seconds, and the CPU seconds of this process and of its children, while ``run`` runs."""
    own, reaped, started = cpu_of(resource.RUSAGE_SELF), cpu_of(resource.RUSAGE_CHILDREN), time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "executor": cpu_of(resource.RUSAGE_SELF) - own,
        "children": cpu_of(resource.RUSAGE_CHILDREN) - reaped,
    }


def living() -> float:
    """The CPU seconds of the living children of this process."""
    pids = [pid for thread in Path("/proc/self/task").iterdir() for pid in (thread / "children").read_text().split()]
    ticks = [Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


# --- The floor --------------------------------------------------------------------------------------------------------


def floor(shape: str, count: int, folder: Path) -> Figures:
    """Fork and wait, between two commits on the disk: the same for both shapes."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE task (name TEXT PRIMARY KEY, state TEXT NOT NULL)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO task VALUES (?, 'PENDING')", [(f"t{number}",) for number in range(count)])
    connection.execute("COMMIT")

    def run() -> None:
        for number in range(count):
            connection.execute("UPDATE task SET state = 'RUNNING' WHERE name = ?", (f"t{number}",))
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            connection.execute("UPDATE task SET state = 'SUCCESS' WHERE name = ?", (f"t{number}",))

    figures = measured(run)
    figures["attempts"] = figures.pop("children")
    return figures


# --- redrive ----------------------------------------------------------------------------------------------------------


def redrive(isolation: Isolation, shape: str, count: int, folder: Path) -> Figures:
    from redrive.engine import Executor, TaskDef

    parents = [[f"t{number - 1}"] if shape == "chain" and number else [] for number in range(count)]
    tasks = [TaskDef(f"t{n}", time.monotonic_ns, above, isolation=isolation) for n, above in enumerate(parents)]
    state = folder / "state.db"
    opened: list[Figures] = []  # a run opens once, however many tasks it has

    def on_open(run_id: str) -> None:
        opened.append({"seconds": time.perf_counter(), "executor": cpu_of(resource.RUSAGE_SELF), "children": living()})

    executor = Executor("bench", "run", tasks, max_parallel=PARALLEL, state=state, on_open=on_open)
    before = {"seconds": time.perf_counter(), "executor": cpu_of(resource.RUSAGE_SELF), "children": 0.0}
    figures = measured(lambda: _succeed(executor.run()))
    figures = {key: figures[key] - (opened[0][key] - before[key]) for key in before}
    with sqlite3.connect(state) as connection:
        ((attempts,),) = connection.execute("SELECT coalesce(sum(cpu_user_us + cpu_system_us), 0) / 1e6 FROM attempt")
        ((events, logged),) = connection.execute("SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM log)")
        started = sorted(int(result) for (result,) in connection.execute("SELECT result FROM task"))
    figures |= {"attempts": attempts, "zygote": figures.pop("children") - attempts, "events": events, "log": logged}
    if shape == "chain":
        figures["start to start"] = statistics.median(after - before for before, after in pairwise(started)) / 1e9
    return figures


def _succeed(state: str) -> None:
    assert state == "SUCCESS", state


# --- Other tools: scripts for an environment of their own -------------------------------------------------------------

LUIGI = """
import luigi, logging
logging.disable(logging.CRITICAL)
class T(luigi.Task):
    number = luigi.IntParameter()
    def requires(self):
        return [T(number=self.number - 1)] if SHAPE == "chain" and self.number else []
    def output(self):
        return luigi.LocalTarget(f"{FOLDER}/{self.number}")
    def run(self):
        open(self.output().path, "w").close()
def run():
    last = [T(number=n) for n in ([COUNT - 1] if SHAPE == "chain" else range(COUNT))]
    assert luigi.build(last, workers=4, local_scheduler=True, no_lock=True, log_level="CRITICAL")
"""

DBOS = """
import asyncio, logging
from dbos import DBOS
logging.disable(logging.CRITICAL)
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite"})
@DBOS.step()
async def noop(number):
    return number
@DBOS.workflow()
async def flow():
    if SHAPE == "chain":
        for number in range(COUNT):
            await noop(number)
    else:
        await asyncio.gather(*(noop(number) for number in range(COUNT)))
DBOS.launch()
def run():
    asyncio.run(flow())
"""

HUEY = """
import logging, threading
from huey import SqliteHuey
logging.disable(logging.CRITICAL)
huey = SqliteHuey(filename=f"{FOLDER}/huey.db", fsync=True)
done = threading.Semaphore(0)
@huey.task()
def noop(number):
    if SHAPE == "chain" and number + 1 < COUNT:
        noop(number + 1)
    done.release()
    return number
consumer = huey.create_consumer(workers=4, periodic=False, initial_delay=0.001, max_delay=0.005)
consumer.start()
def run():
    for number in range(1 if SHAPE == "chain" else COUNT):
        noop(number)
    for _ in range(COUNT):
        done.acquire()
"""

_PEER_MAIN = """
import json, os, resource, sys, time
FOLDER, SHAPE, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
{script}
def cpu():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
before, started = cpu(), time.perf_counter()
run()
print("FIGURES", json.dumps({{"seconds": time.perf_counter() - started, "executor": cpu() - before}}), flush=True)
os._exit(0)
"""


def peer_python(scratch: Path, name: str) -> Path:
    """Return an interpreter that has the tool, installed on the first call."""
    folder = scratch / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PEERS[name]], check=True, stdout=sys.stderr)
    return python


# --- The table --------------------------------------------------------------------------------------------------------


def in_own_process(name: str, shape: str, count: int, scratch: Path) -> Figures:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        if name in PEERS:
            script = _PEER_MAIN.format(script={"luigi": LUIGI, "dbos": DBOS, "huey": HUEY}[name])
            command = [str(peer_python(scratch, name)), "-c", script, folder, shape, str(count)]
        else:
            command = [sys.executable, str(HERE), "--one", name, shape, folder, "--count", str(count)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=folder, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("FIGURES ")]
    if not lines:
        raise SystemExit(f"{name}, {shape}: no figures, exit status {ran.returncode}\n{ran.stdout}")
    return dict(json.loads(lines[-1].removeprefix("FIGURES ")))


def middle(rounds: list[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}


def row(name: str, shape: str, figures: Mapping[str, float], count: int, base: Mapping[str, float] | None) -> str:
    each = {key: 1000 * figures.get(key, 0.0) / count for key in ("executor", "zygote", "attempts")}
    total, rate = sum(each.values()), count / figures["seconds"]
    split = " + ".join(f"{what} {each[what]:.2f}" for what in each if what in figures)
    floors = ""
    if base is not None:
        base_cpu = sum(base.get(key, 0.0) for key in each) * 1000 / count
        floors = f"{total / base_cpu:5.2f} x CPU {rate * base['seconds'] / count:5.2f} x rate"
    gap = f"   start to start {1000 * figures['start to start']:.2f} ms" if "start to start" in figures else ""
    return f"{name:8} {shape:8} {rate:7.0f}/s  CPU {total:6.2f} ms a task  {floors:27} = {split}{gap}"


def isolations() -> list[str]:
    from redrive.engine.core.spec import Isolation

    return [name for name in get_args(Isolation) if name != "dask"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=None, metavar="NAME", help="floor, process, thread, luigi, ...")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--peers", action="store_true", help="install and run Luigi, DBOS and Huey as well")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir(), "redrive-bench-peers"))
    parser.add_argument("--one", nargs=3, metavar=("NAME", "SHAPE", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        name, shape, folder = chosen.one
        if name == "floor":
            figures = floor(shape, chosen.count, Path(folder))
        else:
            figures = redrive(cast("Isolation", name), shape, chosen.count, Path(folder))
        print("FIGURES", json.dumps(figures), flush=True)
        return
    chosen.scratch.mkdir(parents=True, exist_ok=True)
    names = chosen.only or ["floor", *isolations(), *(PEERS if chosen.peers else ())]
    for shape in chosen.shapes:
        base: Figures | None = None
        for name in names:
            figures = middle([in_own_process(name, shape, chosen.count, chosen.scratch) for _ in range(chosen.rounds)])
            base = figures if name == "floor" else base
            print(row(name, shape, figures, chosen.count, base), flush=True)


if __name__ == "__main__":
    main()
