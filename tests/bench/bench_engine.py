"""The engine as a whole: lateness of retries, an idling executor's CPU, and recorded workflows end to end.

python tests/bench/bench_engine.py lateness
python tests/bench/bench_engine.py idle
python tests/bench/bench_engine.py workflows FOLDER [--scale 0.001]
"""

import argparse
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from redrive.engine import Executor, Flow, RetryPolicy, RunOptions, TransientError, examples

GRAPH_FLOW = Path(examples.__file__).with_name("graph.py")
RETRIES = 1000
SPREAD_SECONDS = 20.0
IDLE_SECONDS = 60.0


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def lateness(folder: Path) -> None:
    """From the stored due time of a retry to the commit that makes it READY."""
    flow = Flow("lateness")

    def fail_once(ctx):
        if ctx.attempt == 1:
            raise TransientError("once")

    policy = RetryPolicy(max_attempts=2, base=SPREAD_SECONDS, cap=SPREAD_SECONDS, jitter="full")
    for number in range(RETRIES):
        flow.task(fail_once, name=f"t{number}", retry=policy)
    state = folder / "state.db"
    Executor(run_id="r", flow=flow, state=state, options=RunOptions(max_parallel=8)).run()
    with sqlite3.connect(state) as connection:
        rows = connection.execute(
            "SELECT ready.at - json_extract(waiting.data, '$.set.next_retry_at') FROM event AS ready"
            " JOIN event AS waiting ON waiting.task = ready.task AND waiting.new = 'RETRYING'"
            " WHERE ready.old = 'RETRYING' AND ready.new = 'READY'"
        ).fetchall()
    late = [microseconds / 1000 for (microseconds,) in rows]
    print(f"{len(late)} retries over {SPREAD_SECONDS:g} s: late by p50 {quantile(late, 0.5):.2f} ms,", end=" ")
    print(f"p99 {quantile(late, 0.99):.2f} ms, most {max(late):.2f} ms, least {min(late):.2f} ms")


def idle(folder: Path) -> None:
    """CPU of the executor process while one task sleeps."""
    flow = Flow("idle")
    flow.task(lambda: time.sleep(IDLE_SECONDS), name="sleeper")
    marks = []

    def started(events):
        if any(event.new == "RUNNING" for event in events):
            marks.append(time.process_time())

    Executor(run_id="r", flow=flow, state=folder / "state.db", on_events=started).run()
    print(f"{time.process_time() - marks[0]:.4f} CPU s in {IDLE_SECONDS:g} s with one sleeping task")


def workflows(folder: Path, graphs: Path, scale: float) -> None:
    """Each recorded graph by ``engine/examples/graph.py``, in a process of its own."""
    print(f"{'graph':42} {'tasks':>6} {'wall s':>8} {'cpu s':>8} {'peak MB':>8}  state")
    for path in sorted(graphs.glob("*.json*")):
        state = folder / f"{path.name}.db"
        words = ["--param", f"graph={path}", "--param", f"scale={scale}", "--state", str(state), "--plain"]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [sys.executable, "-P", "-m", "redrive.console", "run", str(GRAPH_FLOW), *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with sqlite3.connect(state) as connection:
            ((tasks,),) = connection.execute("SELECT count(*) FROM task")
            ((verdict,),) = connection.execute("SELECT state FROM run")
        print(f"{path.name:42} {tasks:6} {wall:8.2f} {cpu:8.2f} {usage.ru_maxrss / 1024:8.1f}  {verdict}", end="")
        print("" if status == 0 else f" (exit status {status})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lateness", "idle", "workflows"])
    parser.add_argument("graphs", nargs="?", type=Path)
    parser.add_argument("--scale", type=float, default=0.001)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if chosen.what == "workflows":
            if chosen.graphs is None:
                parser.error("name the folder with the graphs")
            workflows(Path(folder), chosen.graphs, chosen.scale)
        else:
            {"lateness": lateness, "idle": idle}[chosen.what](Path(folder))


if __name__ == "__main__":
    main()
