"""What a run of many tasks costs before its first attempt: ``python tests/bench/bench_opening.py [--tasks 100000]``.

Each executor is a process of its own. Printed are the processor seconds and the peak memory of executor and zygote
once the run is open, and the processor milliseconds that an attempt costs each of them afterwards (the zygote with the
attempts that it forks), of a small and of the large flow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLOW = """
from redrive.engine import Flow, TaskDef

flow = Flow("large", params={{"failed": 1}})


def work():
    pass


WIDTH = {width}
for number in range({tasks}):
    above = [f"task_{{number - WIDTH:06}}", f"task_{{number - number % WIDTH - WIDTH:06}}"] if number >= WIDTH else []
    flow.add(TaskDef(f"task_{{number:06}}", work, list(dict.fromkeys(above)), isolation="{isolation}"))
"""

EXECUTOR = """
import json, os, resource, sys, time

from redrive.engine import Executor, RunOptions

began, began_cpu = time.perf_counter(), time.process_time()


def measure():
    zygote = max(map(int, open(f"/proc/self/task/{os.getpid()}/children").read().split()), default=0)
    return {
        "wall": time.perf_counter() - began,
        "executor": time.process_time(),
        "zygote": sum(map(int, open(f"/proc/{zygote}/stat").read().rpartition(")")[2].split()[11:15])) / 100,
        "executor_mb": peak("self"),
        "zygote_mb": peak(zygote),
    }


def peak(pid):
    return next(int(line.split()[1]) // 1024 for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM"))


opened = {}
ends = int(sys.argv[3])
count = 0


def on_open(run_id):
    opened.update(measure())


def on_events(events):
    global count
    count += sum(event.new == "SUCCESS" for event in events)
    if ends and count >= ends and "peak_mb" not in opened:
        now = measure()
        for part in ("executor", "zygote"):
            opened[f"{part}_ms"] = 1000 * (now[part] - opened[part]) / count
        opened["peak_mb"] = now["executor_mb"]
        executor.stop()


executor = Executor(flow=sys.argv[1], state=sys.argv[2], options=RunOptions(), on_open=on_open, on_events=on_events)
if not ends:
    inner, on_open = on_open, lambda run_id: (inner(run_id), executor.stop())
    executor = Executor(flow=sys.argv[1], state=sys.argv[2], options=RunOptions(), on_open=on_open)
executor.run()
print(json.dumps(opened))
"""


def open_run(folder: Path, tasks: int, width: int, ends: int, isolation: str) -> dict[str, float]:
    flow = folder / f"flow_{tasks}.py"
    flow.write_text(FLOW.format(tasks=tasks, width=width, isolation=isolation))
    state = folder / f"{tasks}-{time.monotonic_ns()}.db"
    command = [sys.executable, "-c", EXECUTOR, str(flow), str(state), str(ends)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--ends", type=int, default=900, help="attempts until the executor stops; 0: none")
    parser.add_argument("--isolation", default="process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for tasks in (1000, options.tasks):
            width = min(options.width, tasks // 10)  # so that an end frees a child in both flows: the same work
            found = open_run(Path(folder), tasks, width, options.ends, options.isolation)
            print(f"{tasks:,} tasks:", "  ".join(f"{name} {value:.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
