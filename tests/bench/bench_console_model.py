"""What the console's pictures cost without a terminal: layouts, pages, single changes, the inbox, the preview.

    python tests/bench/bench_console_model.py [graph.json[.gz] ...]

Processor time, best of five. Random layered graphs are made here; files are task graphs of the form
``{"tasks": [{"name": ..., "parents": [...]}]}``. The bars are those of the console: 5,000 tasks laid out in 150 ms, a
change among 10,000 tasks in 2 ms, a page in 10 ms, an inbox of 10,000 rows filtered and sorted in 30 ms.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from redrive.console.model.board import Board
from redrive.console.model.eta import critical_path
from redrive.console.model.graph.drawing import Drawing
from redrive.console.model.graph.groups import ZoomStep
from redrive.console.model.graph.rows import TaskRows
from redrive.console.model.graph.view import Graph
from redrive.console.model.inbox import Inbox, InboxOrder
from redrive.console.model.lists import parse_filter
from redrive.console.model.preview import preview_requeue
from redrive.console.present.graph import Highlight, drawing_row, graph_row, label_width
from redrive.console.present.silhouette import critical_path_with_times, silhouette_lines
from redrive.console.present.tasks import RunContext, TaskNames
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Line
from redrive.engine.core.dag import Dag
from redrive.engine.core.projection import AttemptRow, RunProjection, TaskRow
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState

SECOND = 1_000_000
Pairs = list[tuple[str, list[str]]]


def layered(count: int, depth: int, seed: int = 1) -> Pairs:
    """One to three parents per task, eight in a hundred of them from far away."""
    dice = random.Random(seed)
    levels: list[list[str]] = [[] for _ in range(depth)]
    for number in range(count):
        levels[number * depth // count].append(f"task_{number}")
    pairs: Pairs = []
    for now, level in enumerate(levels):
        for name in level:
            far = [dice.random() < 0.08 for _ in range(dice.randint(1, 3) if now else 0)]
            pairs.append((name, sorted({dice.choice(levels[dice.randrange(now) if one else now - 1]) for one in far})))
    return pairs


def projection_of(pairs: Pairs, failed_every: int = 0) -> RunProjection:
    """Every task PENDING, or every so many dead-lettered."""
    projection = RunProjection(RunRow("run", "flow"))
    children: dict[str, list[str]] = {}
    for position, (name, parents) in enumerate(pairs):
        projection.tasks[name] = TaskRow(name, position=position)
        projection.parents[name] = tuple(parents)
        for parent in parents:
            children.setdefault(parent, []).append(name)
        if failed_every and position % failed_every == 0:
            _fail(projection.tasks[name], f"Error{position % 200}")
    projection.children = {name: tuple(children.get(name, ())) for name in projection.tasks}
    return projection


def _fail(row: TaskRow, error: str) -> None:
    row.state, row.attempt, row.ended_at, row.error = TaskState.DEAD_LETTER, 1, SECOND, f"{error} happened"
    row.attempts[1] = AttemptRow(1, ended_at=SECOND, outcome="error", error_type=error, fingerprint_loose=error)


def best(work: Callable[[], object], times: int = 5) -> float:
    """Milliseconds of processor time."""
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return 1000 * min(found)


def report(what: str, milliseconds: float, note: str = "") -> None:
    print(f"  {what:<44}{milliseconds:9.2f} ms  {note}")


def layouts(pairs: Pairs) -> None:
    dag = Dag(pairs)
    report("order, rings, levels", best(lambda: Dag(pairs).levels), f"{dag.depth} levels, {len(dag.components)} parts")
    report("descendants of every task", best(lambda: Dag(pairs).descendant_bits))
    report("rows", best(lambda: TaskRows(dag)))
    if len(dag) <= 5_000:
        drawing = Drawing(dag, [20] * len(dag))
        report(
            "whole drawing", best(lambda: Drawing(dag, [20] * len(dag))), f"{drawing.width} x {drawing.height} cells"
        )


def pages(pairs: Pairs) -> None:
    board = Board(projection_of(pairs))
    context = RunContext(board, SECOND, UTF8, names=TaskNames(board.projection.tasks))
    graph = Graph(board, lambda name: label_width(name, context))
    graph.resize(200, 60)
    for zoom in (ZoomStep.GROUPS, ZoomStep.ROWS):
        graph.zoom = zoom
        rows = range(max(graph.height // 2 - 30, 0), min(graph.height // 2 + 30, graph.height))
        work = lambda rows=rows: [graph_row(graph, y, 200, context, Highlight()) for y in rows]  # noqa: E731
        report(f"page of {zoom.name.lower()}, 200x60", best(work), f"{graph.height} rows")
    path = critical_path_with_times(critical_path(board, None, SECOND, ALIVE), context)
    lines = lambda: silhouette_lines(graph.silhouette(198), path, 16, context)  # noqa: E731
    report("silhouette, 198x16", best(lines), f"{len(graph.silhouette(198).columns)} columns")
    graph.zoom = ZoomStep.DRAWING
    rows = range(max(graph.height // 2 - 30, 0), min(graph.height // 2 + 30, graph.height))

    def draw() -> list[Line]:
        return [drawing_row(graph, y, 100, 300, context, Highlight()) for y in rows]

    report("page of the drawing, 200x60", best(draw), f"{len(graph.drawing.dag)} tasks drawn")


def changes(pairs: Pairs) -> None:
    projection = projection_of(pairs)
    board = Board(projection)
    graph = Graph(board, len)
    _ = graph.rows, graph.silhouette(200), graph.groups.rows
    events = list(_moves(list(projection.tasks)[:1000]))
    started = time.process_time()
    for event in events:
        graph.apply(board.apply([event]))
    report("one change", 1000 * (time.process_time() - started) / len(events), f"mean of {len(events)}")


def _moves(names: list[str]) -> Iterator[Event]:
    seq = 0
    for old, new in (("PENDING", "READY"), ("READY", "RUNNING"), ("RUNNING", "SUCCESS")):
        for name in names:
            seq += 1
            yield Event(seq, seq, EventKind.TASK, "run", name, old, new, None, 0, None, None, None, TaskMoved())


def inbox(count: int = 10_000) -> None:
    names = [f"load_{number:05}" for number in range(count)]
    board = Board(projection_of([*((name, []) for name in names), ("join", names)], failed_every=1))
    _ = board.dag.descendant_bits
    report("gather 10,000 dead letters", best(lambda: Inbox(board)))
    box = Inbox(board)

    def filter_and_sort() -> None:
        box.set_filter(parse_filter("error1 !load_000"))
        box.order_by(InboxOrder.COUNT)
        box.causes()

    report("filter and sort 10,000 dead letters", best(filter_and_sort), f"{len(box.causes())} causes")
    report("preview a requeue of all of them", best(lambda: preview_requeue(board, names)))


def read(path: str) -> Pairs:
    raw = Path(path).read_bytes()
    data = json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)
    return [(task["name"], task["parents"]) for task in data["tasks"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", help="task graphs as JSON")
    cases = [(f"{count:,} tasks, {depth} levels", layered(count, depth)) for count, depth in ((1000, 15), (5000, 30))]
    cases.append(("10,000 tasks, 40 levels", layered(10_000, 40)))
    cases += [(Path(path).name, read(path)) for path in parser.parse_args().graphs]
    for title, pairs in cases:
        print(f"{title}: {len(pairs):,} tasks, {sum(len(parents) for _, parents in pairs):,} edges")
        layouts(pairs)
        pages(pairs)
        changes(pairs)
    print("inbox")
    inbox()


if __name__ == "__main__":
    main()
