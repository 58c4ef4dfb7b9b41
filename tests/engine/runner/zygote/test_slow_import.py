"""An import that takes long says so, with the line at which it stands."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redrive.engine.check.isolated import check_in_subprocess
from redrive.engine.errors import FlowImportError
from redrive.engine.runner import process
from redrive.engine.runner.zygote import connection
from redrive.engine.runner.zygote.client import Runner
from redrive.engine.statefile.processes import EXECUTOR_VARIABLE

SLOW = """
import pathlib, time
from redrive.engine import Flow

flow = Flow("f")

def wait():
    pathlib.Path(__file__).with_name("waits").touch()
    while not pathlib.Path(__file__).with_name("go-on").exists():
        pass

@flow.task
def task(): ...

wait()
"""


@pytest.fixture
def slow_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A flow whose import ends once redrive has said that it takes long."""
    sentence = connection.slow_import_sentence

    def say(target: str, seconds: float, stack: str) -> str:
        (tmp_path / "go-on").touch()
        return sentence(target, seconds, stack)

    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.5)
    monkeypatch.setattr(connection, "slow_import_sentence", say)
    (tmp_path / "flow.py").write_text(SLOW)
    return tmp_path / "flow.py"


@pytest.fixture
def waiting_flow(slow_flow: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A slow flow that is asked where it stands once it waits: an import may be anywhere after half a second."""
    writes_stack, waits = process.writes_stack, slow_flow.with_name("waits")
    monkeypatch.setattr(process, "writes_stack", lambda *asked: waits.exists() and writes_stack(*asked))
    return slow_flow


def test_check_says_where_a_slow_import_stands(waiting_flow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_in_subprocess(str(waiting_flow), {}).spec.name == "f"
    assert_is_said(waiting_flow, capsys.readouterr().err)


def test_check_waits_no_longer_for_a_stack_that_is_complete(
    waiting_flow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STACK_WAIT_SECONDS", 3600.0)
    assert check_in_subprocess(str(waiting_flow), {}).spec.name == "f"


async def test_an_executor_says_where_a_slow_import_stands(
    waiting_flow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: "slow-import"})
    try:
        assert (await runner.open(str(waiting_flow))).name == "f"
        assert runner.printed == ""
    finally:
        await runner.close()
    assert_is_said(waiting_flow, capsys.readouterr().err)


def assert_is_said(flow: Path, printed: str) -> None:
    """Later where the import does not wait within the first half second."""
    assert re.fullmatch(
        rf"redrive: importing '{re.escape(str(flow))}' takes long: [\d.]+ s so far, at flow.py:\d+ in wait\n", printed
    )


async def test_a_process_that_cannot_say_yet_where_it_stands_is_not_ended(
    slow_flow: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with much to do an interpreter may need seconds to start."""
    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.001)
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: "slow-start"})
    try:
        assert (await runner.open(str(slow_flow))).name == "f"
    finally:
        await runner.close()
    assert capsys.readouterr().err.startswith(f"redrive: importing {str(slow_flow)!r} takes long: ")


LEFT = """
import os, time
print("printed")
if os.fork() == 0:
    time.sleep(60)
os._exit(3)
"""


async def open_in_executor(flow: Path) -> None:
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: "left"})
    try:
        await runner.open(str(flow))
    finally:
        await runner.close()


@pytest.mark.parametrize(
    "read", [lambda flow: check_in_subprocess(str(flow), {}), lambda flow: asyncio.run(open_in_executor(flow))]
)
def test_an_import_that_ends_its_process_is_over_although_another_process_is_left(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    """The process that is left holds what the ended one had open, also its connection."""
    (tmp_path / "flow.py").write_text(LEFT)
    began = time.monotonic()
    with pytest.raises(FlowImportError, match=r"ended \(exit code 3\)"):
        read(tmp_path / "flow.py")
    assert time.monotonic() - began < 30


def test_check_does_not_end_an_interpreter_that_starts(
    slow_flow: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that names its interpreter is imported by another one, which starts first."""
    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.001)
    slow_flow.write_text(SLOW.replace('Flow("f")', f'Flow("f", python={sys.executable!r})'))
    assert check_in_subprocess(str(slow_flow), {}).spec.name == "f"
    assert capsys.readouterr().err.startswith(f"redrive: importing {str(slow_flow)!r} takes long: ")
