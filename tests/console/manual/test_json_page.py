"""The page ``json`` names every field of every line that ``--json`` prints, under the name and version of the line."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.console import cli, manual
from redrive.console.cli.output import with_schema
from redrive.engine import Executor, Flow
from redrive.engine.statefile.paths import default_folder, supervisor_path
from redrive.engine.statefile.supervisor_file import Fate, LedgerRow, ServedSchedule
from redrive.engine.store.machine import MachinePools
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.commands import invoke_redrive
from support.marks import for_each

SCHEDULED = "from redrive.engine import Flow\nflow = Flow('f', schedule='0 2 * * *')\nflow.command('a', 'true')\n"
REQUEUE = ("requeue", "STATE", "broken", "--reason", "repaired")
#: Schema -> a command that prints lines of it.
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: (name, "STATE") for name in ("runs", "tasks", "inbox", "events")},
    **{name: ("systems", name, "STATE") for name in ("pages", "breakers")},
    "run_tasks": ("runs", "STATE", "--tasks"),
    "doctor": ("doctor", "STATE"),
    "pools": ("systems", "pools"),
    "logs": ("logs", "STATE"),
    "quarantine": ("systems", "rows", "STATE", "--all"),
    "preview": (*REQUEUE, "--dry-run"),
    "backoff": ("backoff",),
    "rehearsal": ("rehearse", "FLOW", "--fail", "a=exit:75x1"),
    "fleet": ("fleet",),
    "why": ("why", "STATE", "broken"),
    "backfill": ("backfill", "FLOW", "--from", "2026-01-01", "--to", "2026-01-01", "--dry-run"),
    "check": ("check", "FLOW", "--verbose"),
    "schedule": ("schedule", "FLOW"),
    "schedules": ("schedule",),
    "times": ("schedule", "times", "night"),
    "prune": ("prune", "STATE", "--keep", "1d"),
    "answer": REQUEUE,
}


@pytest.fixture
def state(recorded: Path) -> Path:
    """A copy of the recorded run, where ``redrive fleet`` looks."""
    folder = Path(default_folder())
    folder.mkdir(parents=True, exist_ok=True)
    for path in recorded.parent.iterdir():
        shutil.copy(path, folder)
    with closing(SupervisorFile(supervisor_path(), "one")) as file:
        file.register(7, "host", "[]", 0)
        id = file.claim("/flow.py:flow", "night", "night.db").id
        record = ServedSchedule(id, "/flow.py:flow", "/flow.py", "flow", "night", "night.db", "one", spec="{}")
        missed = LedgerRow(0, 0, 1, Fate.MISSED, "nothing served it then", "", 0, 1)
        file.save(record, [missed])
    return folder / recorded.name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a dead letter, a page, a breaker, output and rows in quarantine."""
    flow = Flow("night", params={"day": "2026-01-01"})
    flow.command("broken", "echo no; exit 127", timeout=30, downstream="api")

    @flow.task(timeout=30)
    def parse(ctx: Any) -> None:
        for scope in ctx.rows(["o-1"], key=str):
            with scope:
                raise ValueError("is none")

    @flow.task(timeout=30)
    def total() -> dict[str, int]:
        return {"rows": 2}

    state = tmp_path_factory.mktemp("recorded") / "night.db"
    Executor(run_id="r", flow=flow, state=state).run()
    return state


def fields_of(text: str) -> set[str]:
    """The names in the first column of tables, and in lists of prose."""
    return {name for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}


def section_of(schema: str) -> str:
    return manual.load_topic("json").text.partition(f"\n## {schema}: ")[2].partition("\n## ")[0]


def cause_of(state: Path) -> str:
    return str(json.loads(invoke_redrive("inbox", state, "--json").output.splitlines()[0])["fingerprint"])


def test_each_line_that_the_page_explains_has_a_command_here_that_prints_it() -> None:
    explained = re.findall(r"^## redrive\.([\w-]+)/1: ", manual.load_topic("json").text, re.MULTILINE)
    assert sorted(explained) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_names_every_field_of_a_line_and_no_others(state, name):
    flow = state.with_name("flow.py")
    flow.write_text(SCHEDULED)
    held = MachinePools({"warehouse": 1}, "night", "r", str(state))
    assert held.acquire("broken", "warehouse", 1)
    places = {"STATE": str(state), "FLOW": str(flow), "CAUSE": cause_of(state) if name == "rule" else ""}
    words = (places.get(word, word) for word in COMMANDS[name])
    output = invoke_redrive(*words, "--json").output.splitlines()
    lines = [json.loads(line) for line in output if line.startswith("{")]  # others are on stderr
    schema = f"redrive.{name}/1"
    assert lines and {line["schema"] for line in lines} == {schema}
    printed = {field for line in lines for field in line} - {"schema"}
    named = fields_of(section_of(schema))
    assert printed <= named
    assert named - printed <= {"dropped_bytes", "would_delete", "took_seconds"}


def test_the_page_names_every_field_of_an_attempt(state):
    lines = [json.loads(line) for line in invoke_redrive("tasks", state, "--json").output.splitlines()]
    fields = {field for line in lines for attempt in line["attempts"] for field in attempt}
    assert fields and fields <= set(re.findall(r"`(\w+)`", section_of("redrive.tasks/1")))


def test_the_results_of_a_preview_have_the_fields_of_an_answer(state):
    (preview,) = (
        json.loads(line)
        for line in invoke_redrive("requeue", state, "broken", "--dry-run", "--json").output.splitlines()
    )
    assert [set(result) for result in preview["results"]] == [{"task", "result", "message"}]


def test_every_line_of_json_has_a_schema():
    """No command prints JSON past ``with_schema``: each value is one where it is printed, or in the function called."""
    folder = Path(cli.__file__).parent
    for path in folder.rglob("*.py"):
        text = path.read_text()
        assert ("echo_json(" in text or "json_line(" in text) <= ("with_schema(" in text), path


def test_columns_of_json_text_are_printed_as_values(state):
    (run,) = (json.loads(line) for line in invoke_redrive("runs", state, "--json").output.splitlines())
    assert run["params"] == {"day": "2026-01-01"} and "downstreams" in run["options"]
    tasks = [json.loads(line) for line in invoke_redrive("tasks", state, "--json").output.splitlines()]
    assert {task["name"]: task["result"] for task in tasks} == {"broken": None, "parse": None, "total": {"rows": 2}}


@for_each("text", ["", "{", "NaN", '{"day": Infinity}', "[" * 100_000])
def test_text_that_is_no_json_is_printed_as_it_is(text):
    assert with_schema("runs", {"params": text, "options": None, "pool_waits": None})["params"] == text
