"""One cause in several flows of a machine is one page for each receiver."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_redrive
from support.marks import parametrize_mostly_long

FLOW = """
from redrive.engine import Flow
from db import connect
flow = Flow("{name}")
flow.page("command", line='echo "$REDRIVE_PAGE_FLOW" >> {folder}/pages')
flow.task(connect, name="load")
"""
SHARED = """
import pathlib
from redrive.engine import AuthError
def connect():
    if not pathlib.Path("{folder}/well").exists():
        raise AuthError("password authentication failed")
"""


class Flows:
    """Flows that fail alike until the password is right, and what the receiver got."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, name: str, receiver: str = "pages") -> None:
        path = self.folder / f"{name}.py"
        path.write_text(FLOW.format(name=name, folder=self.folder).replace("/pages'", f"/{receiver}'"))
        run_redrive("run", path, "--plain")

    def told(self, receiver: str = "pages") -> list[str]:
        path = self.folder / receiver
        return path.read_text().split() if path.exists() else []

    def pages(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run_redrive("systems", "pages", name, "--json").stdout.splitlines()]

    def mend(self) -> None:
        (self.folder / "well").touch()

    def break_again(self) -> None:
        (self.folder / "well").unlink()


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    (tmp_path / "db.py").write_text(SHARED.format(folder=tmp_path))
    return Flows(tmp_path)


def test_three_flows_with_one_refused_password_are_one_page(flows: Flows) -> None:
    for name in ("a", "b", "c"):
        flows.run(name)
    assert flows.told() == ["a"]
    assert [flows.pages(name)[0]["told_by"] for name in "abc"] == [None, "a", "a"]
    assert "(also in flows b, c)" in run_redrive("systems", "pages", "a").stdout
    assert "with the page of flow a" in run_redrive("systems", "pages", "b").stdout
    assert run_redrive("inbox", "--quiet").returncode == 3, "each of them waits for a decision"


def test_another_receiver_gets_a_page_of_its_own(flows: Flows) -> None:
    flows.run("a")
    flows.run("b", "others")
    assert (flows.told(), flows.told("others")) == (["a"], ["b"])


@pytest.mark.long
def test_a_flow_that_was_well_and_fails_again_pages_though_another_goes_on_to_fail(flows: Flows) -> None:
    """It was silent, also after both pages were acknowledged: for ever, if the other flow does not run again."""
    flows.run("a")
    flows.run("b")
    for name in "ab":
        run_redrive("systems", "pages", name, "--ack", "1")
    flows.mend()
    flows.run("a")
    flows.break_again()
    flows.run("a")
    assert flows.told() == ["a", "a"] and flows.pages("a")[0]["told_by"] is None
    flows.run("a")
    flows.run("b")
    assert flows.told() == ["a", "a"], "nothing has ended since"


@pytest.mark.long
def test_flows_that_were_well_and_fail_again_are_one_page(flows: Flows) -> None:
    flows.run("a")
    flows.run("b")
    flows.mend()
    flows.run("a")
    flows.run("b")
    flows.break_again()
    flows.run("b")
    flows.run("a")
    assert flows.told() == ["a", "b"] and flows.pages("a")[0]["told_by"] == "b"


@pytest.mark.long
def test_a_page_that_was_snoozed_comes_back_though_another_flow_fails_as_well(flows: Flows) -> None:
    flows.run("a")
    flows.run("b")
    run_redrive("systems", "pages", "a", "--snooze", "1", "0.01s")
    flows.run("a")
    assert flows.told() == ["a", "a"]


@pytest.mark.long
def test_a_requeue_that_did_not_help_pages_once_for_all(flows: Flows) -> None:
    flows.run("a")
    flows.run("b")
    for name in "ab":
        run_redrive("requeue", name, "load", "--reason", "the password is new")
    for name in "ab":
        run_redrive("resume", name, "--plain")
    assert flows.told() == ["a", "a"]


@parametrize_mostly_long("harm", ["gone", "damaged", "no folder", "file in its place"])
def test_whatever_becomes_of_the_records_each_flow_is_paged_at_least_once(flows: Flows, harm: str) -> None:
    flows.run("a")
    folder = flows.folder / "states/redrive"
    if harm == "gone":
        (folder / "a.db").unlink()
    elif harm == "damaged":
        for path in (folder / "pages").iterdir():
            path.write_bytes(b"{\\x00")
    else:
        shutil.rmtree(folder / "pages")
        if harm == "file in its place":
            (folder / "pages").write_text("")
    flows.run("b")
    assert flows.told() == ["a", "b"]
