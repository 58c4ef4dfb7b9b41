"""Runs any recorded workflow graph: each task sleeps for its recorded time, scaled.

    redrive run tests/bench/recorded_graph.py --param graph=montage.json.gz --param scale=0.001

The file is JSON, plain or gzip: ``{"name": ..., "tasks": [{"name", "parents", "runtime_s"}]}``.
"""

import gzip
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from redrive.engine import Flow, FlowError, TaskDef

flow = Flow("graph", params={"graph": "", "scale": 0.001})


def read_graph(path: str) -> Any:
    if not path:
        raise FlowError("say which graph to run: --param graph=FILE.json (or .json.gz)")
    try:
        data = Path(path).read_bytes()
        return json.loads(gzip.decompress(data) if path.endswith(".gz") else data)
    except (OSError, ValueError) as error:
        raise FlowError(f"the graph {path!r} cannot be read: {error}") from error


for task in read_graph(flow.params["graph"])["tasks"]:
    seconds = (task["runtime_s"] or 0) * flow.params["scale"]
    flow.add(TaskDef(task["name"], partial(time.sleep, seconds), task["parents"]))
