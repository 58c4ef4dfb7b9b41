"""Shell tasks in a whole run: results handed on, the folder of the flow, what ``check`` says."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import run_redrive

FLOW = """
import os
from decimal import Decimal
from redrive.engine import Flow

flow = Flow("f", params={"day": "2026-04-25", "full": True})

@flow.task
def extract():
    return {"rows": 42, "total": Decimal("1.10"), "text": open("note.txt").read()}

flow.command("count", 'echo "$REDRIVE_RESULT_EXTRACT" > "$REDRIVE_RESULT"', after=extract)
flow.command("last", "echo working; echo '[1, 2]'", result="last-line", env={"TZ": "UTC"}, cwd="sub")

@flow.task(after=["count", "last"])
def reads(count, last):
    return [count, last, os.getcwd()]
"""


def test_a_run_from_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    (folder / "sub").mkdir(parents=True)
    (folder / "flow.py").write_text(FLOW)
    (folder / "note.txt").write_text("note")
    done = run_redrive("run", str(folder / "flow.py"), "--plain", "--state", str(tmp_path / "s.db"), cwd=Path("/"))
    assert done.returncode == 0, done.stdout + done.stderr
    listed = run_redrive("tasks", str(tmp_path / "s.db"), "--json").stdout.splitlines()
    rows = {row["name"]: row for row in map(json.loads, listed)}
    expected = [{"rows": 42, "total": "1.10", "text": "note"}, [1, 2], str(folder.resolve())]
    assert rows["reads"]["result"] == expected


def test_check_names_a_secret_in_a_command_line_and_does_not_print_it(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from redrive.engine import Flow\n"
        "flow = Flow('f')\n"
        "flow.command('a', 'psql -f x.sql --password=hunter2', timeout=1)\n"
    )
    checked = run_redrive("check", "flow.py", cwd=tmp_path)
    output = checked.stdout + checked.stderr
    assert "a secret is written in its command line" in output and "hunter2" not in output
