"""Whatever a flow file is, there is a Flow or one sentence with the line that it is about."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine.errors import CycleError, FlowError, FlowImportError
from redrive.engine.flow.loading import load_flow
from redrive.engine.flow.source import declared_name

HEAD = "from redrive.engine import Flow, RetryPolicy, TaskDef\nflow = Flow('f')\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("@flow.task(grace_seconds=-1)\ndef t(): ...", "flow.py:3: task 't': grace_seconds is a duration of 0 or more"),
        ("\nRetryPolicy(max_attempts=0)", "flow.py:4: max_attempts is a whole number of at least 1"),
        ("flow.add(TaskDef('a', print, max_attempts=0))", "flow.py:3: task 'a': max_attempts is a whole number"),
        ("\n\nflow.downstream('d', on_open='zz')", "flow.py:5: downstream 'd': on_open is one of"),
        ("flow.page('fax')", "flow.py:3: flow 'f': there is no sender of pages 'fax'"),
        ("flow.command('a', 'x')\nflow.command('a', 'y')", "flow.py:4: two tasks are named 'a', the first at"),
    ],
)
def test_what_is_refused_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(HEAD + text)
    with pytest.raises(FlowError) as caught:
        load_flow("flow.py").spec()
    assert str(caught.value).startswith(sentence)
    assert not isinstance(caught.value, FlowImportError)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nflow.command('a', 'true', after='b')", "flow.py:4: task 'a' waits for 'b', which is not a task"),
        ("flow.command('a', 'true', after=print)", "flow.py:3: task 'a' comes after 'print', which is not a task"),
        (
            "flow.command('a', 'true')\nflow.command('b', 'true', requires='a')",
            "flow.py:4: task 'b' requires the result of 'a', which it does not come after",
        ),
    ],
)
def test_what_only_the_whole_flow_reports_has_the_line_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(HEAD + text)
    with pytest.raises(FlowError) as caught:
        load_flow("flow.py").spec()
    assert str(caught.value).startswith(sentence)


def test_a_cycle_is_still_reported_as_one(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(HEAD + "flow.command('a', 'x', after='b')\nflow.command('b', 'x', after='a')\n")
    with pytest.raises(CycleError) as caught:
        load_flow(str(tmp_path / "flow.py")).spec()
    assert caught.value.cycle == ("a", "b", "a")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not Python source: it holds a NUL byte in line 3"),
        (b"flow = 'caf\xe9'\n", "cannot be read as text"),
        (b"#\n" * 5 + b"x = '\xff'\n", "byte 0xff in line 6 is not utf-8; save it as UTF-8"),
        (b"# coding: klingon\n", "unknown encoding"),
        (b"", "defines no Flow"),
        (b"\n# nothing\n", "defines no Flow"),
    ],
)
def test_what_is_no_flow_is_reported_in_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "flow.py").write_bytes(content)
    with pytest.raises(FlowError, match=why) as caught:
        load_flow(str(tmp_path / "flow.py"))
    assert not isinstance(caught.value, FlowImportError)


def test_a_file_that_is_not_in_utf_8_and_says_so_is_read(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_bytes(b"# coding: latin-1\n" + HEAD.encode() + b"flow.command('caf\xe9', 'true')\n")
    assert load_flow(str(tmp_path / "flow.py")).spec().tasks[0].name == "café"


def test_what_is_no_file_is_reported_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder.py")
    os.mkfifo("agent_process.py")
    os.symlink("loop.py", "loop.py")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket.py")
    for target, why in (
        ("folder.py", "is a folder"),
        ("agent_process.py", "is a pipe"),
        ("/dev/null", "is a device"),
        ("loop.py", "cannot be read: Too many levels of symbolic links"),
        ("socket.py", "cannot be read: No such device"),
        ("nowhere.py", "there is no flow file 'nowhere.py'"),
        ("nowhere.py:flow", "there is no flow file 'nowhere.py'"),
        ("", "there is no flow file ''"),
        ("a\0b.py", "cannot be read: .*embedded null"),
        ("x" * 5000, "cannot be read: File name too long"),
    ):
        for recorded in (None, {}):
            with pytest.raises(FlowError, match=why):
                load_flow(target, recorded=recorded)
    listening.close()


# --- The flow of a name -------------------------------------------------------------------------------------------

TWO = """
from redrive.engine import Flow
small, big = Flow("small"), Flow("big", params={"day": "monday", "limit": 3})
small.command("a", "true")
big.command("b", "true")
"""


def test_given_parameters_are_those_of_the_chosen_flow(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(TWO)
    assert load_flow(f"{path}:big", {"day": "tuesday", "limit": "5"}).spec().params == {"day": "tuesday", "limit": 5}
    for name, params, sentence in (
        ("small", {"day": "x"}, "two.py:3: flow 'small' has no parameter 'day'; it declares: none"),
        ("big", {"month": "x"}, "two.py:3: flow 'big' has no parameter 'month'; it declares: day, limit"),
        ("big", {"limit": "x"}, "two.py:3: flow 'big': parameter 'limit' wants a whole number like 3, not 'x'"),
    ):
        with pytest.raises(FlowError, match=re.escape(sentence)):
            load_flow(f"{path}:{name}", params).spec()


FACTORIES = """
from redrive.engine import Flow
def plain():
    flow = Flow("made", params={"day": "monday"})
    flow.command("a", "true")
    return flow
def of(day): return plain()
def with_default(day="x"): return plain()
def wrong(): return {}
def broken(): return 1 / 0
"""


def test_a_flow_may_come_from_a_function(tmp_path: Path) -> None:
    path = tmp_path / "cls.py"
    path.write_text(FACTORIES)
    assert load_flow(f"{path}:plain", {"day": "tuesday"}).spec().params == {"day": "tuesday"}
    assert load_flow(f"{path}:with_default").spec().name == "made"
    with pytest.raises(FlowError, match=r"'of' in ['\"].*cls.py['\"] is called without arguments, and it cannot"):
        load_flow(f"{path}:of")
    with pytest.raises(FlowError, match=r"'wrong' in ['\"].*cls.py['\"] returned {}, not a Flow"):
        load_flow(f"{path}:wrong")
    with pytest.raises(FlowImportError, match="ZeroDivisionError") as caught:
        load_flow(f"{path}:broken")
    assert "loading.py" not in caught.value.traceback and "def broken" in caught.value.traceback


# --- Packages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose flow imports from its own package, relatively."""
    files = {
        "warehouse_etl/__init__.py": "",
        "warehouse_etl/tables.py": "NAMES = ['orders', 'lines']",
        "warehouse_etl/flows/__init__.py": "",
        "warehouse_etl/flows/daily.py": HEAD
        + "from ..tables import NAMES\nfor name in NAMES: flow.command(name, 'true')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("warehouse_etl")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "target",
    [
        "warehouse_etl/flows/daily.py",
        "warehouse_etl/flows/daily.py:flow",
        "warehouse_etl.flows.daily",
        "warehouse_etl.flows.daily:flow",
    ],
)
def test_a_flow_in_a_package_imports_relatively(package: Path, target: str) -> None:
    flow = load_flow(target)
    assert [task.name for task in flow.spec().tasks] == ["orders", "lines"]
    assert flow.path is not None and flow.path.startswith(str(package / "warehouse_etl/flows/daily.py"))


def test_the_name_of_a_flow_in_a_package_is_read_without_an_import(package: Path) -> None:
    assert declared_name("warehouse_etl.flows.daily:flow") == "f"
    assert not any(name.startswith("warehouse_etl") for name in sys.modules)


@pytest.mark.parametrize("missing", ["warehouse_etl", "warehouse_etl/flows"])
def test_a_relative_import_outside_of_a_package_says_which_file_is_missing(package: Path, missing: str) -> None:
    (package / missing / "__init__.py").unlink()
    with pytest.raises(FlowImportError, match="attempted relative import") as caught:
        load_flow("warehouse_etl/flows/daily.py")
    assert f"put an empty __init__.py into {str(package / missing)!r}" in str(caught.value)


def test_a_package_that_hides_behind_another_of_its_name_is_left_out(package: Path) -> None:
    (package / "json").mkdir()
    (package / "json/__init__.py").touch()
    (package / "json/flow.py").write_text(HEAD + "flow.command('a', 'true')\n")
    assert load_flow("json/flow.py").spec().name == "f"


@pytest.mark.parametrize("target", ["warehouse_etl.flows.weekly", "nowhere.at_all:flow"])
def test_a_module_that_is_nowhere_is_reported(package: Path, target: str) -> None:
    with pytest.raises(FlowError, match="a module is looked for in the working directory and in PYTHONPATH"):
        load_flow(target)


def test_an_edit_in_the_second_of_the_import_before_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    names = []
    for name in ("first", "later"):
        (tmp_path / "edited.py").write_text(HEAD + f"flow.command({name!r}, 'true')")
        os.utime(tmp_path / "edited.py", (1_000_000_000, 1_000_000_000))
        names += [task.name for task in load_flow(str(tmp_path / "edited.py")).spec().tasks]
    assert names == ["first", "later"]
