"""A real full disk: each list says it, a page is sent, nothing is lost. Only root may mount the tmpfs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import run_redrive, start_redrive
from support.waiting import wait_until

pytestmark = pytest.mark.long

FLOW = """
from redrive.engine import Flow
flow = Flow("chain", timeout=60)
flow.page("command", line='printf "%s\\\\n" "$REDRIVE_PAGE_TITLE" >> {pages}')
earlier = None
for number in range(15):
    earlier = flow.command(f"t{{number}}", "sleep 0.4", after=[earlier] if earlier else [])
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "states" / "redrive"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "small", str(folder)]
    assert shutil.which("mount") and not subprocess.run(mount).returncode, "run this test as root"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        while True:
            ballast.write(b"\0" * 4096)


@pytest.mark.first
def test_a_full_disk_is_in_every_list_and_on_a_page(disk: Path, tmp_path: Path) -> None:
    path, pages, state = tmp_path / "chain.py", tmp_path / "pages", disk / "chain.db"
    path.write_text(FLOW.format(pages=pages))
    running = start_redrive("run", path, "--plain", "--run-id", "night")
    wait_until(lambda: "t2 SUCCESS" in " ".join(run_redrive("events", "chain").stdout.splitlines()))
    fill(disk / "ballast")
    wait_until(lambda: "memory" in run_redrive("inbox").stdout)
    inbox = run_redrive("inbox")
    assert f"chain night in {state}: cannot be written for " in inbox.stdout and inbox.returncode == 3
    assert run_redrive("inbox", "--quiet").returncode == 3
    (line,) = [json.loads(line) for line in run_redrive("fleet", "--json").stdout.splitlines()]
    assert line["needs_human"] == 1
    metrics = run_redrive("metrics").stdout
    assert 'redrive_needs{flow="chain",kind="unwritable file"' in metrics and "redrive_needs_human 1.0" in metrics
    tasks = run_redrive("tasks").stdout
    assert "UNSAVED" in tasks and "running: " not in tasks
    rows = [json.loads(line) for line in run_redrive("tasks", "--json").stdout.splitlines()]
    (why,) = [row["why"] for row in rows if row["state"] == "RUNNING"]
    assert why.startswith("its attempt has ended")
    below = run_redrive("why").stdout
    assert "whose attempt has ended; the outcome is in memory" in below and "running for" not in below
    wait_until(lambda: pages.exists(), timeout_seconds=90)
    assert pages.read_text() == "chain cannot write its state file\n"
    (disk / "ballast").unlink()
    assert running.wait(120) == 0
    assert run_redrive("inbox").returncode == 0 and pages.read_text().count("\n") == 1
    (page,) = [json.loads(line) for line in run_redrive("pages", "--all", "--json").stdout.splitlines()]
    assert (page["state"], page["run_id"]) == ("resolved", "night") and page["sent_at"]
    attempts = [json.loads(line)["attempt"] for line in run_redrive("tasks", "--json").stdout.splitlines()]
    assert attempts == [1] * 15


def test_a_disk_that_is_full_before_anybody_writes_is_seen(disk: Path, tmp_path: Path) -> None:
    """No executor has tried to write yet: a reader sees the disk itself."""
    path = tmp_path / "wait.py"
    path.write_text('from redrive.engine import Flow\nflow = Flow("wait")\nflow.command("w", "sleep 600")\n')
    running = start_redrive("run", path, "--plain", "--run-id", "night")
    wait_until(lambda: "RUNNING" in run_redrive("tasks").stdout)
    fill(disk / "ballast")
    assert run_redrive("inbox", "--quiet").returncode == 3
    (disk / "ballast").unlink()
    assert run_redrive("inbox", "--quiet").returncode == 0
    running.kill()
    running.wait()
