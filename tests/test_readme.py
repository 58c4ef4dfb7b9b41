"""README and maps are true today: their examples run, their paths exist, and the manual names every command and key."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
from redrive.console import manual
from redrive.console.keys.actions import ACTIONS
from redrive.console.keys.keymap import key_label
from redrive.engine import Executor
from redrive.engine.flow.loading import load_flow
from support.commands import all_commands

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
WORDS_MAX = 1100
LINK = re.compile(r"\]\(([\w/.]+)\)")


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) <= WORDS_MAX


def test_every_place_of_the_readme_exists() -> None:
    places = {*LINK.findall(README), *re.findall(r"`([\w/]+/)`", README)}
    assert places and [place for place in places if not (ROOT / place).exists()] == []


def test_every_page_that_the_readme_names_is_in_the_manual() -> None:
    pages = README.partition("lists the pages of the manual, in `console/manual/`: ")[2].partition("\n- ")[0]
    names = re.findall(r"`([\w-]+)`", pages)
    assert names and set(names) <= set(manual.TOPICS)


@pytest.mark.parametrize("package", ["engine", "console"])
def test_every_place_of_a_map_exists(package: str) -> None:
    """A name without a folder is in the folder of the name before it."""
    text = (ROOT / package / "README.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| ")][1:]
    places = {place for row in rows for place in _places(row.split("|")[2])}
    places |= {Path(name) for name in re.findall(r"`(\w+/[\w/.]+)`", text)}
    assert len(places) > len(rows)
    assert [str(place) for place in places if not any((root / place).exists() for root in (ROOT, ROOT / package))] == []


def test_every_test_that_is_said_to_prove_something_exists() -> None:
    text = (ROOT / "tests/README.md").read_text("utf-8")
    names = re.findall(r"`(tests/[\w/]+\.py)`", text)
    names += [f"{name.replace('.', '/')}/__main__.py" for name in re.findall(r"`python -m ([\w.]+)`", text)]
    assert len(names) > 10 and [name for name in names if not (ROOT / name).is_file()] == []


def _places(cell: str) -> list[Path]:
    places: list[Path] = []
    for name in re.findall(r"`([\w/]+/[\w.]*|[\w.]+\.\w+)`", cell):
        places.append(Path(name) if "/" in name else places[-1].parent / name)
    return places


def test_the_manual_names_every_command() -> None:
    text = manual.load_topic("commands").text
    named = {*re.findall(r"\bredrive ([a-z]+)", text), *re.findall(r"`([a-z]+)`", text)}
    assert set(all_commands()) - named == set()


def test_every_key_of_the_manual_is_one_of_the_console_and_has_one_line() -> None:
    rows = [row.split("|")[1] for row in manual.load_topic("keys").text.splitlines() if row.startswith("| `")]
    named = Counter(key for row in rows for key in re.findall(r"`([^`]+)`", row))
    keys = {key_label(key) for action in ACTIONS for key in action.keys}
    assert [key for key, count in named.items() if count > 1] == []
    assert set(named) <= keys and len(named) > len(rows)


def example_of(name: str) -> str:
    """The code block of the README whose first line is its file's name."""
    return README.partition(f"```python\n# {name}\n")[2].partition("```")[0]


def test_the_night_of_the_flow_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("revenue.py", "test_revenue.py"):
        (tmp_path / name).write_text(example_of(name))
    test = runpy.run_path("test_revenue.py")["test_the_bank_times_out_twice"]
    test()


def test_the_flow_runs(tmp_path: Path) -> None:
    (tmp_path / "revenue.py").write_text(example_of("revenue.py"))
    executor = Executor(flow=load_flow(str(tmp_path / "revenue.py")), state=tmp_path / "state.db")
    assert executor.run() == "SUCCESS"
