"""The README is true today: its example runs, its paths exist, and it names every command and key once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from redrive.engine import Executor
from redrive.engine.flow.loading import load_flow
from support.commands import all_commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def section(heading: str) -> str:
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_place_of_the_map_exists():
    """A name without a folder is in the folder of the name before it."""
    folder = Path()
    for row in section("Where things are decided").splitlines()[4:]:
        for name in re.findall(r"`([\w/.]+/[\w.]*|\w+\.py)`", row.rpartition("|")[0].rpartition("|")[2]):
            folder = Path(name).parent if "/" in name else folder
            assert (ROOT / folder / Path(name).name).exists() or (ROOT / name).exists(), name


def test_every_command_is_named():
    named = {*re.findall(r"\bredrive ([a-z]+)", README), *re.findall(r"`([a-z]+)[` ]", README)}
    assert set(all_commands()) - named == set()


def test_every_key_has_one_line():
    rows = [row.split("|") for row in section("Keys").splitlines() if row.startswith("| `")]
    keys = [key for row in rows for place in (1, 4) for key in re.findall(r"`([^`]+)`", row[place])]
    assert [key for key, count in Counter(keys).items() if count > 1] == []


def test_the_flow_runs(tmp_path):
    source = README.partition("```python\n# revenue.py\n")[2].partition("```")[0]
    (tmp_path / "revenue.py").write_text(source)
    executor = Executor(flow=load_flow(str(tmp_path / "revenue.py")), state=tmp_path / "state.db")
    assert executor.run() == "SUCCESS"
