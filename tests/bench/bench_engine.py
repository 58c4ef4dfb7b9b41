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
from itertools import pairwise
from pathlib import Path

from redrive.engine import Executor, Flow, RetryPolicy, RunOptions, TransientError

GRAPH_FLOW = Path(__file__).with_name("recorded_graph.py")
RETRIES = 1000
SPREAD_SECONDS = 20.0
PARALLEL = 8
IDLE_SECONDS = 60.0


#: What the machine alone costs: how late a process is woken that does nothing else, 1,000 times in the same 20 s.
SLEEPER = f"""
import time
for _ in range({RETRIES}):
    due = time.monotonic() + {SPREAD_SECONDS / RETRIES}
    time.sleep({SPREAD_SECONDS / RETRIES})
    print((time.monotonic() - due) * 1000)
"""


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def lateness(folder: Path) -> None:
    """From the stored due time of a retry to its claim, and to the first line of its code.

    Retries that came due while every slot was taken are counted apart: they waited for a slot, not for the executor.
    """
    flow = Flow("lateness")

    def fail_once(ctx):
        began_us = time.time_ns() // 1000
        if ctx.attempt == 1:
            raise TransientError("once")
        return began_us

    policy = RetryPolicy(max_attempts=2, base=SPREAD_SECONDS, cap=SPREAD_SECONDS, jitter="full")
    for number in range(RETRIES):
        flow.task(fail_once, name=f"t{number}", retry=policy)
    state = folder / "state.db"
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    Executor(run_id="r", flow=flow, state=state, options=RunOptions(max_parallel=PARALLEL)).run()
    slept, _ = sleeper.communicate()
    print("a process that only sleeps, beside it:")
    print("  woken   ", spread([float(line) for line in slept.split()]))
    with sqlite3.connect(state) as connection:
        rows = connection.execute(
            "SELECT json_extract(waiting.data, '$.set.next_retry_at'), claim.at, task.result FROM event AS claim"
            " JOIN event AS waiting ON waiting.task = claim.task AND waiting.new = 'RETRYING'"
            " JOIN task ON task.name = claim.task WHERE claim.new = 'RUNNING' AND claim.attempt = 2 ORDER BY 1"
        ).fetchall()
        changes = connection.execute(
            "SELECT at, CASE new WHEN 'RUNNING' THEN 1 ELSE -1 END FROM event"
            " WHERE kind = 'task' AND 'RUNNING' IN (old, new) ORDER BY seq"
        ).fetchall()
    free, taken = [], []
    running, position = 0, 0
    for due, claimed, began in rows:
        while position < len(changes) and changes[position][0] <= due:
            running += changes[position][1]
            position += 1
        (taken if running >= PARALLEL else free).append(((claimed - due) / 1000, (int(began) - due) / 1000))
    for what, found in (("a slot was free", free), ("every slot was taken", taken)):
        if found:
            print(f"{len(found)} retries over {SPREAD_SECONDS:g} s, {what}:")
            print("  claimed ", spread([claimed for claimed, _ in found]))
            print("  running ", spread([began for _, began in found]))


def spread(late: list[float]) -> str:
    """Quantiles of milliseconds, and how many in each class."""
    edges = [0, 0.5, 1, 2, 5, 10, 20, 50, float("inf")]
    classes = [sum(1 for one in late if low <= one < high) for low, high in pairwise(edges)]
    words = [f"<{high:g}:{count}" for high, count in zip(edges[1:], classes, strict=True) if count]
    early = [f"EARLY:{len(late) - sum(classes)}"] if sum(classes) < len(late) else []
    p50, p90, p99 = (quantile(late, share) for share in (0.5, 0.9, 0.99))
    return f"p50 {p50:.2f}  p90 {p90:.2f}  p99 {p99:.2f}  most {max(late):.2f} ms   {' '.join([*early, *words])}"


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
    """Each recorded graph by ``recorded_graph.py``, in a process of its own."""
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
