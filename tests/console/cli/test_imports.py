"""What a command imports before it works: most of the time of a short command is the import of its modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click import Context
from redrive.console.cli.group import SECTIONS, cli
from redrive.engine import Executor, Flow
from support.marks import parametrize_mostly_long

_PROGRAM = """
import json, sys
from redrive.console.cli.main import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""

#: Packages and modules that a command leaves alone.
_SCREENS = {"textual", "redrive.console.app", "redrive.console.screens", "redrive.console.widgets"}
_LOOPS = {"asyncio", "sqlite3", "ssl", "logging", "subprocess", "multiprocessing"}
_IMPLEMENTATION = {"msgspec", "rich", "redrive.console.sessions", "redrive.console.model", "redrive.engine.store"}
_RUNNING = {
    "redrive.engine.executor",
    "redrive.engine.runner",
    "redrive.engine.flow",
    "aiosqlite",
    "importlib.metadata",
}


#: Where an interpreter finds everything without ``site``, whose ``.pth`` files import modules of their own.
_PATHS = os.pathsep.join([str(Path(__file__).parents[3] / ".types"), sysconfig.get_path("purelib")])


def modules_of(*words: object) -> set[str]:
    """Every module that an interpreter has imported at the end of a command, however redrive is installed."""
    command = [sys.executable, "-S", "-P", "-c", _PROGRAM, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": _PATHS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def within(modules: set[str], packages: set[str]) -> set[str]:
    """The modules in some packages."""
    return {name for name in modules for package in packages if f"{name}.".startswith(f"{package}.")}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    flow = Flow("one")
    flow.command("a", "true", timeout=10)
    assert Executor(flow=flow, state=tmp_path / "one.db").run() == "SUCCESS"
    return tmp_path / "one.db"


def test_a_report_has_the_colours_of_a_theme_and_no_widgets(state: Path) -> None:
    modules = modules_of("report", "--state", state, "-o", state.with_suffix(".html"))
    assert within(modules, {"textual", "redrive.console.widgets", "redrive.console.screens"}) == set()


def test_help_imports_the_commands_and_nothing_that_they_call() -> None:
    modules = modules_of("--help")
    assert within(modules, _SCREENS | _LOOPS | _IMPLEMENTATION | _RUNNING) == set()
    assert len(modules) < 140


def test_a_command_imports_the_module_of_no_other_command() -> None:
    commands = {f"redrive.console.cli.{one.module}" for section in SECTIONS.values() for one in section}
    shared = {f"redrive.console.cli.{name}" for name in ("main", "options")}
    assert within(modules_of("runs", "--help"), commands - shared) == {"redrive.console.cli.listings"}


def test_the_table_of_commands_names_the_module_of_each_function() -> None:
    for section in SECTIONS.values():
        for one in section:
            command = cli.get_command(Context(cli), one.name)
            assert command is not None and command.callback is not None
            assert command.callback.__module__ == f"redrive.console.cli.{one.module}"
            assert (command.help or "").startswith(f"{one.summary}.")


#: What needs time, draws or estimates: a listing of a local file reads it once, and prints it.
_LIVING = {
    "asyncio",
    "ssl",
    "hashlib",
    "logging",
    "subprocess",
    "redrive.console.sessions.live_run",
    "redrive.console.sessions.local",
    "redrive.console.sessions.open",
    "redrive.console.model.replay",
    "redrive.console.model.eta",
    "redrive.console.model.graph",
    "redrive.console.text.event_text",
}


@parametrize_mostly_long("listing", ["inbox", "fleet", "runs", "tasks", "logs", "why"], quick=2)
def test_a_listing_of_a_local_file_imports_what_it_reads_and_prints(state: Path, listing: str) -> None:
    modules = modules_of(listing, *([] if listing == "fleet" else [state]))
    assert within(modules, _SCREENS | _RUNNING | _LIVING) == set()
    assert len(modules) < 300  # by version of Python 275 to 281


@parametrize_mostly_long("listing", ["schedule", "systems"], quick=1)
def test_a_listing_with_acts_beside_it_imports_no_event_loop_and_no_executor(state: Path, listing: str) -> None:
    modules = modules_of(listing, *([] if listing == "schedule" else [state]))
    assert (
        within(modules, _SCREENS | {"asyncio", "ssl", "redrive.engine.runner", "redrive.console.sessions.live_run"})
        == set()
    )
    assert len(modules) < 330


def test_a_quiet_run_that_succeeds_imports_no_words(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from redrive.engine import Flow\nflow = Flow('one')\nflow.command('a', 'true')\n")
    modules = modules_of("run", tmp_path / "one.py", "--quiet", "--state", tmp_path / "one.db")
    words = {"redrive.console.text.event_text", "redrive.console.model", "redrive.console.present"}
    assert within(modules, _SCREENS | words) == set()


def test_the_check_of_a_flow_imports_no_executor_and_no_list(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from redrive.engine import Flow\nflow = Flow('one')\nflow.command('a', 'true')\n")
    modules = modules_of("check", tmp_path / "one.py")
    others = {"aiosqlite", "redrive.engine.executor", "redrive.engine.schedule", "redrive.console.model.runs"}
    assert within(modules, _SCREENS | others) == set()
    assert len(modules) < 400


def test_a_run_leaves_the_options_of_the_flow_to_its_zygote(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from redrive.engine import Flow\nflow = Flow('one')\nflow.command('a', 'true')\n")
    modules = modules_of("run", tmp_path / "one.py", "--state", tmp_path / "one.db", "--plain")
    flow = {"redrive.engine.flow.flow", "redrive.engine.flow.options", "redrive.engine.runner.child"}
    lists = {"redrive.console.model.runs", "redrive.console.cli.attach"}
    assert within(modules, _SCREENS | flow | lists | {"urllib.request", "zipfile", "redrive.engine.check"}) == set()
    assert len(modules) < 540


def test_a_flow_without_a_schedule_imports_no_cron() -> None:
    program = "import json, sys; from redrive.engine import Flow; Flow('a'); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert within(set(json.loads(done.stdout)), {"cronsim", "redrive.engine.core.schedule"}) == set()


def test_the_public_names_of_the_engine_are_imported_one_by_one() -> None:
    program = "import json, sys, redrive.engine; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert within(set(json.loads(done.stdout)), {"redrive"}) == {"redrive", "redrive.engine"}


def test_the_zygote_starts_before_the_executor_is_imported() -> None:
    """Both take the same time to import their modules: at the same time, on two processors."""
    program = "import json, sys, redrive.engine.executor.executor; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    later = {
        "asyncio",
        "sqlite3",
        "redrive.engine.executor.loop",
        "redrive.engine.flow",
        "redrive.engine.runner.protocol",
    }
    assert within(set(json.loads(done.stdout)), later) == set()


_DATACLASSES = """
import dataclasses, json, sys
import redrive.console.app.app, redrive.engine.executor.loop, redrive.engine.runner.zygote.zygote
own = [vars(module) for name, module in sys.modules.items() if name.startswith("redrive.")]
classes = {one for names in own for one in names.values() if isinstance(one, type) and dataclasses.is_dataclass(one)}
print(json.dumps(sorted(one.__name__ for one in classes if one.__module__.startswith("redrive."))))
"""


def test_what_starts_often_makes_hardly_a_dataclass() -> None:
    """Each takes 0.75 ms to make at import, a struct 0.02 ms."""
    done = subprocess.run([sys.executable, "-P", "-c", _DATACLASSES], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)) < 10, done.stdout


def test_an_interrupt_during_the_imports_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "redrive", "tasks"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "redrive: interrupted\n")
