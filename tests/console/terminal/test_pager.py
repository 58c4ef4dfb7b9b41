"""A text in the operator's pager: whole, harmless, and with Ctrl-C for the pager alone."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest
from redrive.console.screens.pager import show_in_pager
from redrive.engine.errors import RedriveError
from support.commands import quoted


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pager that keeps what it was given; the path is that of the copy."""
    script = tmp_path / "my pager"
    script.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/option\necho "$2" > {tmp_path}/name\ncp "$2" {tmp_path}/seen\n'
    )
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PAGER", f"{quoted(script)} -R")
    return tmp_path / "seen"


def test_the_pager_is_given_the_file_and_its_own_options(pager: Path, tmp_path: Path) -> None:
    text = tmp_path / "load-2.txt"
    text.write_text("one\nzwei ü\n[3]\n")
    show_in_pager(str(text))
    assert pager.read_text() == "one\nzwei ü\n[3]\n"
    assert (pager.parent / "option").read_text() == "-R\n"


def test_ctrl_c_ends_the_pager_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal sends SIGINT to both of us; only the pager has the default action."""
    script = tmp_path / "pager"
    script.write_text('#!/bin/sh\nkill -INT "$PPID"\nkill -INT $$\nsleep 60\n')
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PAGER", quoted(script))
    before = signal.getsignal(signal.SIGINT)
    show_in_pager("load.txt")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("pager_of_choice", ["/nowhere/to/be/found", "'never closed"])
def test_a_pager_that_cannot_be_started_says_so(pager_of_choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", pager_of_choice)
    with pytest.raises(RedriveError, match="cannot be"):
        show_in_pager("load.txt")


def test_without_any_pager_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedriveError, match=r"set \$PAGER"):
        show_in_pager("load.txt")
