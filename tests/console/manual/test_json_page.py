"""The page ``json`` names every field of every line that ``--json`` prints, under the name and version of the line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from redrive.console import manual
from redrive.console.cli.json_schemas import VERSIONS
from redrive.engine import Executor, Flow
from redrive.engine.store.machine_pools import MachinePools
from support.commands import invoke_redrive

SCHEDULED = "from redrive.engine import Flow\nflow = Flow('f', schedule='0 2 * * *')\nflow.command('a', 'true')\n"
REQUEUE = ("requeue", "--state", "STATE", "broken", "--reason", "repaired")
#: Schema -> a command that prints lines of it.
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: (name, "STATE") for name in VERSIONS if name not in ("logs", "quarantine", "answer", "preview", "pools")},
    "pools": ("pools",),
    "logs": ("logs", "--state", "STATE"),
    "quarantine": ("quarantine", "STATE", "--all"),
    "preview": (*REQUEUE, "--dry-run"),
    "check": ("check", "FLOW"),
    "schedule": ("schedule", "FLOW"),
    "prune": ("prune", "STATE", "--keep", "1d"),
    "answer": REQUEUE,
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A run with a dead letter, a page, a breaker, output and rows in quarantine."""
    flow = Flow("night")
    flow.command("broken", "echo no; exit 127", timeout=30, downstream="api")

    @flow.task(timeout=30)
    def parse(ctx: Any) -> None:
        for scope in ctx.rows(["o-1"], key=str):
            with scope:
                raise ValueError("is none")

    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    return tmp_path / "state.db"


def fields_of(text: str) -> set[str]:
    """The names in the first column of tables, and in lists of prose."""
    return {name for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}


def section_of(schema: str) -> str:
    return manual.load_topic("json").text.partition(f"\n## {schema}: ")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", VERSIONS)
def test_the_page_names_every_field_of_a_line_and_no_others(state, name):
    flow = state.with_name("flow.py")
    flow.write_text(SCHEDULED)
    held = MachinePools({"warehouse": 1}, "night", "r", str(state))
    assert held.acquire("broken", "warehouse", 1)
    words = ({"STATE": str(state), "FLOW": str(flow)}.get(word, word) for word in COMMANDS[name])
    output = invoke_redrive(*words, "--json").output.splitlines()
    lines = [json.loads(line) for line in output if line.startswith("{")]  # others are on stderr
    schema = f"redrive.{name}/{VERSIONS[name]}"
    assert lines and {line["schema"] for line in lines} == {schema}
    printed = {field for line in lines for field in line} - {"schema"}
    named = fields_of(section_of(schema))
    assert printed <= named
    assert named - printed <= {"dropped_bytes", "would_delete"}


def test_the_page_names_every_field_of_an_attempt(state):
    lines = [json.loads(line) for line in invoke_redrive("tasks", state, "--json").output.splitlines()]
    fields = {field for line in lines for attempt in line["attempts"] for field in attempt}
    assert fields and fields <= set(re.findall(r"`(\w+)`", section_of("redrive.tasks/1")))
