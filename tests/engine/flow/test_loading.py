"""Whatever a flow file is, there is a Flow or one sentence with the line that it is about."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from redrive.engine.errors import CycleError, FlowError, FlowImportError
from redrive.engine.flow.loading import load_flow

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
def test_what_is_refused_is_told_with_its_line(
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
def test_what_only_the_whole_flow_tells_has_the_line_of_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(HEAD + text)
    with pytest.raises(FlowError) as caught:
        load_flow("flow.py").spec()
    assert str(caught.value).startswith(sentence)


def test_a_ring_is_still_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(HEAD + "flow.command('a', 'x', after='b')\nflow.command('b', 'x', after='a')\n")
    with pytest.raises(CycleError) as caught:
        load_flow(str(tmp_path / "flow.py")).spec()
    assert caught.value.cycle == ("a", "b", "a")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is no Python source: it holds a NUL byte in line 3"),
        (b"flow = 'caf\xe9'\n", "cannot be read as text"),
        (b"#\n" * 5 + b"x = '\xff'\n", "byte 0xff in line 6 is no utf-8; save it as UTF-8"),
        (b"# coding: klingon\n", "unknown encoding"),
        (b"", "defines no Flow"),
        (b"\n# nothing\n", "defines no Flow"),
    ],
)
def test_what_is_no_flow_is_told_in_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "flow.py").write_bytes(content)
    with pytest.raises(FlowError, match=why) as caught:
        load_flow(str(tmp_path / "flow.py"))
    assert not isinstance(caught.value, FlowImportError)


def test_a_file_that_is_not_in_utf_8_and_says_so_is_read(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_bytes(b"# coding: latin-1\n" + HEAD.encode() + b"flow.command('caf\xe9', 'true')\n")
    assert load_flow(str(tmp_path / "flow.py")).spec().tasks[0].name == "café"


def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("a\0b.py", "cannot be read: embedded null byte"),
        ("x" * 5000, "cannot be read: File name too long"),
    ):
        with pytest.raises(FlowError, match=why):
            load_flow(target)
    listening.close()
