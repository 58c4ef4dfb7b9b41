"""How long recorded workflows take in virtual time, by the order in which ``core/ready_queue.py`` starts their tasks.

python tests/bench/bench_makespan.py FOLDER [--slots 1 2 4 8 16 32 64] [--noise 0.3]

"history": the longest path by the durations of an earlier run, which differ by ``--noise``; "first run": without
history, the longest path by the number of tasks; "first come": in the order in which tasks become ready. All are
ratios to max(critical path, work / slots), which no order can beat; "floor" is a closer bound, as that ratio: no order
can finish before the work between two levels of the graph is done, plus the way to it and from it, and
one of 75 long tasks on 64 slots runs second. Goal: history
within 1.05 of the closer one. Graphs without recorded
runtimes get random ones, of which a tenth are ten times as long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from pathlib import Path

from redrive.engine.core.dag import Dag
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState

SECONDS_MIN = 0.001


def load(path: Path) -> tuple[Dag, dict[str, float]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    tasks, dice = json.loads(text)["tasks"], random.Random(path.name)
    dag = Dag((task["name"], tuple(task["parents"])) for task in tasks)
    made = {task["name"]: dice.uniform(1, 10) * (10 if dice.random() < 0.1 else 1) for task in tasks}
    recorded = {task["name"]: task["runtime_s"] for task in tasks}
    is_recorded = any(seconds is not None for seconds in recorded.values())
    return dag, {name: max(SECONDS_MIN, (recorded[name] or 0.0) if is_recorded else made[name]) for name in made}


def run_of(dag: Dag) -> RunProjection:
    run = RunProjection(RunRow("r"))
    for number, name in enumerate(dag.names):
        parents = tuple(dag.names_of(dag.parent_numbers[number]))
        run.tasks[name] = TaskRow(name, position=number, spec=TaskSpec(name, parents))
        run.parents[name] = parents
        run.children[name] = tuple(dag.names_of(dag.child_numbers[number]))
    return run


def makespan(dag: Dag, seconds: Mapping[str, float], slots: int, remaining: Mapping[str, float]) -> float:
    """The end of the last task, if the ready queue has a claim whenever a slot is free."""
    run = run_of(dag)
    queue = ReadyQueue(run, remaining)
    now, running = 0.0, list[tuple[float, str]]()

    def move(name: str, new: TaskState) -> None:
        row = run.tasks[name]
        old, row.state = row.state, new
        queue.apply_move(row, old)

    while True:
        picked = queue.pop_startable(slots - len(running), lambda row: True)
        for name in picked:
            move(name, TaskState.RUNNING)
            heappush(running, (now + seconds[name], name))
        queue.release_claims(picked)
        if not running:
            return now
        now, name = heappop(running)
        move(name, TaskState.SUCCESS)


def first_come(dag: Dag, seconds: Mapping[str, float], slots: int) -> float:
    """The same, in the order in which tasks become ready."""
    missing = [len(parents) for parents in dag.parent_numbers]
    ready = [number for number, count in enumerate(missing) if not count]
    now, running = 0.0, list[tuple[float, int]]()
    while ready or running:
        started, ready = ready[: slots - len(running)], ready[slots - len(running) :]
        for number in started:
            heappush(running, (now + seconds[dag.names[number]], number))
        now, ended = heappop(running)
        for child in dag.child_numbers[ended]:
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    return now


def closer_bound(dag: Dag, seconds: Mapping[str, float], slots: int) -> float:
    """The largest of head + work / slots + tail, over the tasks that have at least this head and this tail."""
    tails = {name: left - seconds[name] for name, left in dag.remaining_path(seconds).items()}
    heads = dict.fromkeys(dag.names, 0.0)
    for number in dag.topological:
        name = dag.names[number]
        above = (dag.names[parent] for parent in dag.parent_numbers[number])
        heads[name] = max((heads[parent] + seconds[parent] for parent in above), default=0.0)
    best = _pigeonholes(sorted(seconds.values(), reverse=True), slots)
    for head in _quantiles(heads.values()):
        inner = sorted((name for name in dag.names if heads[name] >= head), key=lambda name: -tails[name])
        work = 0.0
        for name in inner:
            work += seconds[name]
            best = max(best, head + work / slots + tails[name])
    return best


def _pigeonholes(longest_first: list[float], slots: int) -> float:
    """Of the n * slots + 1 longest tasks one slot runs n + 1, which take at least as long as the n + 1 shortest."""
    holes = range(slots, len(longest_first), slots)
    return max((sum(longest_first[last - last // slots : last + 1]) for last in holes), default=0.0)


def _quantiles(values: Iterable[float]) -> list[float]:
    distinct = sorted(set(values))
    return distinct[:: max(1, len(distinct) // 200)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--noise", type=float, default=0.3)
    chosen = parser.parse_args()
    print(f"{'graph':40} {'slots':>5} {'bound s':>9} {'floor':>6} {'history':>8} {'first run':>9} {'first come':>10}")
    for path in sorted(chosen.folder.glob("*.json*")):
        dag, seconds = load(path)
        dice = random.Random(0)
        earlier = {name: value * dice.uniform(1 - chosen.noise, 1 + chosen.noise) for name, value in seconds.items()}
        critical, work = max(dag.remaining_path(seconds).values()), sum(seconds.values())
        by_history, by_count = dag.remaining_path(earlier), dag.remaining_path(dict.fromkeys(seconds, 1.0))
        for slots in chosen.slots:
            bound = max(critical, work / slots)
            ends = [
                makespan(dag, seconds, slots, by_history),
                makespan(dag, seconds, slots, by_count),
                first_come(dag, seconds, slots),
            ]
            closer, history, first_run, come = (
                end / bound for end in (max(bound, closer_bound(dag, seconds, slots)), *ends)
            )
            print(
                f"{path.name:40} {slots:5} {bound:9.1f} {closer:6.3f} {history:8.3f} {first_run:9.3f} {come:10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
