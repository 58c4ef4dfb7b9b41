"""The figures of ``redrive help figures``, as its tables: ``python tests/bench/figures.py [--peers] [--rounds 3]``.

Processor time of the whole process tree, the least of some rounds in turn: it holds on a machine with other work, wall
time does not. What a task costs is the cost of a run of ``--count`` tasks without that of a run of two, by their
number: the least of its rounds, too. ``--peers`` installs Luigi, DBOS and Huey with pip into the folder ``--scratch``.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_peers import PEERS, in_own_process
from bench_supervisor import processor_seconds, proportional_kb, start
from support.pty_terminal import PtyTerminal

REDRIVE = Path(sys.executable).with_name("redrive")
FLOW = "from redrive.engine import Flow\n\nflow = Flow('figures', max_parallel=4)\n"
TASKS = {
    "process": "@flow.task(name=f'task{number}')\n    def task():\n        pass\n",
    "worker": "@flow.task(name=f'task{number}', isolation='worker')\n    def task():\n        pass\n",
    "thread": "@flow.task(name=f'task{number}', isolation='thread')\n    def task():\n        pass\n",
    "command `true`": "flow.command(f'task{number}', 'true')\n",
}
LISTINGS = {
    "`redrive --help`": ["--help"],
    "`redrive runs`": ["runs", "STATE"],
    "`redrive inbox`": ["inbox", "STATE"],
    "`redrive tasks`": ["tasks", "STATE"],
    "`redrive logs`": ["logs", "STATE", "task0"],
    "`redrive check`": ["check", "FLOW"],
    "`redrive run`, one task": ["run", "FLOW", "--plain", "--quiet", "--state", "NEW"],
}
REST_SECONDS = 20
SERVED_FLOWS = 200


def cpu_ms(words: Sequence[object], folder: Path) -> float:
    """Run a command to its end. Returns the processor time of its process tree in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def run_of(folder: Path, body: str, tasks: int) -> float:
    """What a whole run of so many tasks costs, in milliseconds."""
    flow = write_flow(folder, tasks, body)
    (folder / "run").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder / "run") as place:
        return cpu_ms([REDRIVE, "run", flow, "--plain", "--quiet", "--state", f"{place}/run.db"], folder)


def write_flow(folder: Path, tasks: int, body: str) -> Path:
    flow = folder / "figures.py"
    flow.write_text(f"{FLOW}for number in range({tasks}):\n    {body}")
    return flow


def make_of(folder: Path, tasks: int) -> float:
    """What ``make -j4`` costs for targets that call ``true``, in milliseconds."""
    names = " ".join(f"task{number}" for number in range(tasks))
    makefile = folder / "Makefile"
    makefile.write_text(f".PHONY: all {names}\nall: {names}\n{names}:\n\t@true $@\n")
    return cpu_ms(["make", "-s", "-j4", "-f", makefile], folder)


def per_task(run: Callable[[int], float], count: int, rounds: int) -> float:
    return min((run(count) - run(2)) / (count - 2) for _ in range(rounds))


def peer_ms(name: str, count: int, rounds: int, scratch: Path) -> float:
    figures = [in_own_process(name, "fan-out", count, scratch)["executor"] for _ in range(rounds)]
    return 1000 * min(figures) / count


def tasks_table(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| a task that does nothing | ms of a processor |\n|---|---|"
    for name, body in TASKS.items():
        yield f"| {name} | {per_task(partial(run_of, folder, body), options.count, options.rounds):.1f} |"
    yield f"| `make -j4`, `true` | {per_task(partial(make_of, folder), options.count, options.rounds):.1f} |"
    for name in PEERS if options.peers else ():
        yield f"| {name} | {peer_ms(name, options.count, options.rounds, options.scratch):.1f} |"


def listings_table(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    flow, state = write_flow(folder, 1, TASKS["process"].replace("pass", "print(1)")), folder / "figures.db"
    subprocess.run([REDRIVE, "run", flow, "--plain", "--quiet", "--state", state], check=True, cwd=folder)
    yield "| a command | ms of a processor |\n|---|---|"
    for name, words in LISTINGS.items():
        costs = []
        for number in range(options.rounds + 1):  # the first compiles what it imports
            places = {"STATE": state, "FLOW": flow, "NEW": folder / f"new{number}.db"}
            costs.append(cpu_ms([REDRIVE, *(places.get(word, word) for word in words)], folder))
        yield f"| {name} | {min(costs):.0f} |"


def rest_table(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| at rest | ms of a processor in a minute | MB |\n|---|---|---|"
    console = PtyTerminal(
        [str(REDRIVE), "attach", str(folder / "figures.db")], columns=120, rows=40, environ=dict(os.environ)
    )
    try:
        console.until("figures", 30)
        console.read_for(3)
        yield f"| console, 120x40 | {at_rest(console.process.pid, console.read_for)} |"
    finally:
        console.close()
    server = start(folder, [f"rest{number}" for number in range(SERVED_FLOWS)], "0 0 1 1 *")
    try:
        time.sleep(8)
        yield f"| `redrive serve`, {SERVED_FLOWS} flows | {at_rest(server.pid, time.sleep)} |"
    finally:
        server.terminate()
        server.wait()


def at_rest(pid: int, wait: Callable[[float], object]) -> str:
    before = processor_seconds(pid)
    wait(REST_SECONDS)
    used = processor_seconds(pid) - before
    return f"{1000 * used * 60 / REST_SECONDS:.0f} | {proportional_kb(pid) / 1024:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="install and run Luigi, DBOS and Huey as well")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir(), "redrive-bench-peers"))
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each command compiles what it imports
    with tempfile.TemporaryDirectory() as folder:
        for table in (tasks_table, listings_table, rest_table):
            print(*table(options, Path(folder)), sep="\n", end="\n\n", flush=True)


if __name__ == "__main__":
    main()
