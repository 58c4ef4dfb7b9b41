"""The name of a flow, read from the text of its file; None wherever the text leaves a doubt."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.flow.source import declared_name

IMPORT = "from redrive.engine import Flow\n"


@pytest.fixture
def name_in(tmp_path: Path):
    def read(text: str, variable: str = "") -> str | None:
        path = tmp_path / "flow.py"
        path.write_text(text)
        return declared_name(f"{path}{variable}")

    return read


@pytest.mark.parametrize(
    "text",
    [
        IMPORT + "flow = Flow('revenue')",
        IMPORT + "flow: Flow = Flow('revenue', deadline='3h')",
        IMPORT + "flow = Flow(name='revenue')",
        "from redrive.engine import Flow as F\nflow = F('revenue')",
        "from redrive.engine.flow.flow import Flow\nflow = Flow('revenue')",
        "from redrive import engine\nflow = engine.Flow('revenue')",
        "import redrive.engine\nflow = redrive.engine.Flow('revenue')",
        "import redrive.engine as engine\nflow = engine.Flow('revenue')",
        IMPORT + "flow = Flow('revenue')\n@flow.task\ndef f(): return f.name",
    ],
)
def test_a_name_that_is_written_out_is_read(name_in, text: str) -> None:
    assert name_in(text) == "revenue"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "flow = Flow('revenue')",  # whose Flow?
        "from airflow import Flow\nflow = Flow('revenue')",
        IMPORT + "flow = Flow(f'revenue-{1}')",
        IMPORT + "flow = Flow('reve' + 'nue')",
        IMPORT + "flow = Flow(*['revenue'])",
        IMPORT + "flow = Flow(**{'name': 'revenue'})",
        IMPORT + "NAME = 'revenue'\nflow = Flow(NAME)",
        IMPORT + "flow = Flow('a')\nflow = Flow('b')",
        IMPORT + "flow = Flow('a')\nflow = make()",
        IMPORT + "flow = Flow('a')\nother = Flow('b')",
        IMPORT + "flow = Flow('a')\nflow.name = 'b'",
        IMPORT + "flow = Flow('a')\ndef change():\n    global flow\n    flow = None",
        IMPORT + "flow = Flow('a')\ndel flow",
        IMPORT + "if True:\n    flow = Flow('a')",
        IMPORT + "def make():\n    return Flow('a')\nflow = make()",
        IMPORT + "class Flow:\n    pass\nflow = Flow('a')",
        IMPORT + "a = b = Flow('a')",
        IMPORT + "flow = Flow('a'",
        "\0",
    ],
)
def test_where_there_is_a_doubt_there_is_no_name(name_in, text: str) -> None:
    assert name_in(text) is None


def test_of_several_flows_the_one_that_is_named_is_read(name_in) -> None:
    text = IMPORT + "one = Flow('first')\ntwo = Flow('second')\ndef make():\n    return Flow('third')\n"
    assert (name_in(text, ":one"), name_in(text, ":two")) == ("first", "second")
    assert name_in(text) is name_in(text, ":make") is name_in(text, ":none") is None


def test_what_is_no_file_has_no_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent_process.py")
    for path in (tmp_path, tmp_path / "none.py", tmp_path / "agent_process.py"):
        assert declared_name(str(path)) is None


def test_a_warning_about_the_text_is_left_to_the_import(name_in) -> None:
    with warnings.catch_warnings(action="error"):
        assert name_in(IMPORT + "flow = Flow('revenue')\nx = '\\d' is 1\n") == "revenue"


@given(name=st.text(min_size=1))
def test_every_name_that_is_written_out_is_the_one_that_an_import_finds(tmp_path_factory, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.py"
    text = IMPORT + f"flow = Flow({name!r})\n"
    path.write_text(text)
    found: dict[str, str] = {}
    exec(compile(f"Flow = str\nflow = Flow({name!r})", "any", "exec"), found)
    assert declared_name(str(path)) == found["flow"] == name
