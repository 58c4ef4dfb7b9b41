"""Tasks of a loop that would all work on the last value of its variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from redrive.engine import Executor
from redrive.engine.flow.loading import load_flow
from support.checks import check_flow

HEAD = (
    "from functools import partial\nfrom redrive.engine import Flow, TaskDef\n"
    "flow = Flow('f')\npaths = ['a', 'b']\npairs = [(1, 'ab'), (2, 'cd')]\nsizes, LIMIT = [], 3\n"
    "flow.command('own', 'true')\n"
)
DECORATED = HEAD + "for path in paths:\n    @flow.task(name=path)\n    def load(): return path\n"


def found(folder: Path, text: str) -> list[tuple[int | None, str]]:
    (folder / "flow.py").write_text(text)
    findings = check_flow(load_flow(str(folder / "flow.py")))
    return [(one.line, one.message) for one in findings if one.rule == "late-binding"]


def test_check_names_the_variable_and_the_mend_and_the_mend_mends(tmp_path: Path) -> None:
    ((line, message),) = found(tmp_path, DECORATED)
    assert line == 9 and message.endswith("keep the value of each by a default: def load(path=path)")
    result = Executor(flow=load_flow(str(tmp_path / "flow.py")), state=tmp_path / "late.db").run_result()
    assert (result["a"], result["b"]) == ("b", "b"), "what the finding is about"
    assert found(tmp_path, DECORATED.replace("def load()", "def load(path=path)")) == []
    result = Executor(flow=load_flow(str(tmp_path / "flow.py")), state=tmp_path / "mended.db").run_result()
    assert (result["a"], result["b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("for p in paths:\n flow.task(lambda: p, name=p)", "'p'"),
        ("for p in paths:\n flow.task(name=p)(lambda: p)", "'p'"),
        ("[flow.task(lambda: p, name=p) for p in paths]", "'p'"),
        ("for p in paths:\n def f(): p\n flow.add(TaskDef(p, f))", "'p'"),
        ("for p in paths:\n def f(): p\n flow.add(TaskDef(p, fn=f))", "'p'"),
        ("for i, (p, q) in pairs:\n @flow.sensor(name=p)\n def f(): return [q for _ in range(i)]", "'i' and 'q'"),
        ("for p in paths:\n name = p * 2\n @flow.task(name=name)\n def f():\n  def inner(): return name", "'name'"),
        ("while paths:\n p = paths.pop()\n @flow.task(name=p)\n def f(): p", "'p'"),
        ("def make():\n for p in paths:\n  if p:\n   @flow.task(name=p)\n   def f(): p\nmake()", "'p'"),
        ("for _, p in pairs:\n for q in p:\n  flow.task(lambda: q, name=q)", "'q'"),
        ("for _, p in pairs:\n for q in p:\n  flow.task(lambda: p, name=q)", "'p'"),
    ],
)
def test_each_way_to_make_tasks_in_a_loop_is_seen(tmp_path: Path, text: str, names: str) -> None:
    ((_, message),) = found(tmp_path, HEAD + text)
    assert message.startswith(f"reads {names} when it runs")


@pytest.mark.parametrize(
    "text",
    [
        "for p in paths:\n flow.task(lambda p=p: p, name=p)",
        "for p in paths:\n @flow.task(name=p)\n def f(*, p=p): return p",
        "for p in paths:\n @flow.task(name=p)\n def f():\n  for p in range(3): print(p)",
        "for p in paths:\n flow.command(p, f'load {p}')",
        "for p in paths:\n sizes.append(p)",
        "def load(p): ...\nfor p in sorted(paths, key=lambda p: p):\n flow.task(partial(load, p), name=p)",
        "for p in paths:\n def key(): return p\n sizes.append(key())",
        "for p in paths:\n @flow.task(name=p)\n def f(): return LIMIT",
        "@flow.task\ndef f():\n for p in paths: print(p)",
        "def make(p):\n @flow.task(name=p)\n def f(): return p\nfor p in paths: make(p)",
        "for client in paths: sizes.append(client)\ndef f(): return client\nfor p in paths: flow.task(f, name=p)",
    ],
)
def test_what_binds_its_value_is_left_alone(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, HEAD + text) == []
