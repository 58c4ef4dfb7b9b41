"""Tasks of a loop that would all work on the last value of its variable."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from redrive.engine import Executor
from redrive.engine.check.tasks import late_binding
from redrive.engine.flow.loading import load_flow
from support.checks import check_flow

HEAD = "from redrive.engine import Flow, TaskDef\nflow = Flow('f')\npaths = ['a', 'b']\n"
DECORATED = HEAD + "for path in paths:\n    @flow.task(name=path)\n    def load(): return path\n"


def found(text: str) -> list[tuple[int | None, str]]:
    tree = ast.parse(text)
    findings = [finding for node in ast.walk(tree) for finding in late_binding(node)]
    return [(finding.line, finding.message.partition(" when it runs")[0]) for finding in findings]


def test_check_names_the_variable_and_the_mend_and_the_mend_mends(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(DECORATED)
    flow = load_flow(str(tmp_path / "flow.py"))
    late = next(finding for finding in check_flow(flow) if finding.rule == "late-binding")
    assert late.line == 6 and late.message.endswith("keep the value of each by a default: def load(path=path)")
    result = Executor(flow=flow, state=tmp_path / "late.db").run_result()
    assert (result["a"], result["b"]) == ("b", "b"), "what the finding is about"
    (tmp_path / "flow.py").write_text(DECORATED.replace("def load()", "def load(path=path)"))
    flow = load_flow(str(tmp_path / "flow.py"))
    assert not [finding for finding in check_flow(flow) if finding.rule == "late-binding"]
    result = Executor(flow=flow, state=tmp_path / "mended.db").run_result()
    assert (result["a"], result["b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("for p in paths:\n flow.task(lambda: p, name=p)", "'p'"),
        ("for p in paths:\n flow.task(name=p)(lambda: p)", "'p'"),
        ("[flow.task(lambda: p, name=p) for p in paths]", "'p'"),
        ("for p in paths:\n def f(): p\n flow.add(TaskDef(p, f))", "'p'"),
        ("for p in paths:\n def f(): p\n flow.add(TaskDef(p, fn=f))", "'p'"),
        ("for i, (p, q) in x:\n @flow.sensor\n async def f(): return [q for _ in range(i)]", "'i' and 'q'"),
        ("for p in paths:\n name = p.stem\n @flow.task(name=name)\n def f():\n  def inner(): return name", "'name'"),
        ("while paths:\n p = paths.pop()\n @flow.task(name=p)\n def f(): p", "'p'"),
        ("def make():\n for p in paths:\n  if p:\n   @flow.task(name=p)\n   def f(): p", "'p'"),
        ("for p in paths:\n for q in p:\n  flow.task(lambda: q, name=q)", "'q'"),
        ("for p in paths:\n for q in p:\n  flow.task(lambda: p, name=q)", "'p'"),
    ],
)
def test_each_way_to_make_tasks_in_a_loop_is_seen(text: str, names: str) -> None:
    assert [message for _, message in found(text)] == [f"reads {names}"]


@pytest.mark.parametrize(
    "text",
    [
        "for p in paths:\n flow.task(lambda p=p: p, name=p)",
        "for p in paths:\n @flow.task(name=p, after=p)\n def f(*, p=p): return p",
        "for p in paths:\n @flow.task(name=p)\n def f():\n  for p in range(3): print(p)",
        "for p in paths:\n flow.command(p, f'load {p}')",
        "for p in paths:\n make(p)",
        "for p in sorted(paths, key=lambda p: p):\n flow.task(partial(load, p), name=p)",
        "for p in paths:\n def key(): return p\n sizes.append(key())",
        "for p in paths:\n @flow.task(name=p)\n def f(): return LIMIT",
        "@flow.task\ndef f():\n for p in paths: print(p)",
        "def make(p):\n @flow.task(name=p)\n def f(): return p\nfor p in paths: make(p)",
    ],
)
def test_what_binds_its_value_is_left_alone(text: str) -> None:
    assert found(text) == []
