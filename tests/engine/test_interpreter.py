"""A flow that names an interpreter is imported and run there; one that cannot be used is refused before the run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import venv
from pathlib import Path

import pytest
from redrive.engine import Executor, RedriveError
from redrive.engine.executor.resume_plan import read_flow
from support.commands import run_redrive
from support.marks import parametrize_mostly_long

FLOW = """
import sys
from redrive.engine import Flow
import only_there

flow = Flow("f", python={python!r})

@flow.task(timeout=60)
def where():
    return [sys.prefix, only_there.VALUE]

flow.command("shell", "true", timeout=60)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with redrive, and with a module that this one lacks."""
    folder = tmp_path_factory.mktemp("environments") / "etl"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    checkout = Path(__file__).parents[2] / ".types"  # an editable install is on no path
    (packages / "here.pth").write_text("\n".join([*(path for path in sys.path if path), str(checkout)]))
    (packages / "only_there.py").write_text("VALUE = 7\n")
    return folder


@pytest.mark.long
@parametrize_mostly_long("is_relative", [True, False])
def test_the_tasks_run_in_the_interpreter_of_the_flow(tmp_path: Path, environment: Path, is_relative: bool) -> None:
    python = str(environment / "bin" / "python")
    if is_relative:
        (tmp_path / "etl").symlink_to(environment)
        python = "etl/bin/python"
    (tmp_path / "flow.py").write_text(FLOW.format(python=python))
    done = run_redrive("run", str(tmp_path / "flow.py"), "--plain", "--state", str(tmp_path / "s.db"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = map(json.loads, run_redrive("tasks", str(tmp_path / "s.db"), "--json").stdout.splitlines())
    result = next(row["result"] for row in rows if row["name"] == "where")
    assert (Path(result[0]).resolve(), result[1]) == (environment.resolve(), 7)
    checked = run_redrive("check", str(tmp_path / "flow.py"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


OLD = '#!/bin/sh\necho \'[[3, 9], "0.1.0", ""]\'\n'
WITHOUT = "#!/bin/sh\necho '[[3, 12], null, \"ModuleNotFoundError: No module named redrive\"]'\n"
OTHER = '#!/bin/sh\necho \'[[3, 12], "9.9", ""]\'\n'


@parametrize_mostly_long(
    ("script", "sentence"),
    [
        (None, "cannot be started: No such file or directory"),
        ("#!/bin/sh\nexit 3\n", "is no Python interpreter that works"),
        (OLD, "is Python 3.9; redrive needs 3.11 or later there"),
        (WITHOUT, "cannot import redrive (ModuleNotFoundError: No module named redrive): install it there"),
        (OTHER, "has redrive 9.9, and this is"),
    ],
    quick=2,
)
def test_an_interpreter_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, script: str | None, sentence: str
) -> None:
    if script is not None:
        (tmp_path / "python").write_text(script)
        (tmp_path / "python").chmod(0o755)
    (tmp_path / "flow.py").write_text(FLOW.format(python="./python"))
    for command in (("run", "flow.py", "--plain", "--state", "s.db"), ("check", "flow.py")):
        refused = run_redrive(*command, cwd=tmp_path)
        assert (refused.returncode, sentence in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "s.db").exists()


def test_an_interpreter_that_is_computed_is_refused(tmp_path: Path) -> None:
    text = FLOW.replace("import only_there", "").replace("only_there.VALUE", "1").replace("{python!r}", "str(1)")
    (tmp_path / "flow.py").write_text(text)
    refused = run_redrive("run", "flow.py", "--plain", "--state", "s.db", cwd=tmp_path)
    assert (refused.returncode, "is read before the flow is imported" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.spawns
def test_a_python_that_this_user_may_not_execute_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n")
    (tmp_path / "flow.py").write_text("from redrive.engine import Flow\nflow = Flow('f')\nflow.command('a', 'true')\n")
    monkeypatch.setattr(sys, "executable", str(python))
    refused = f"{re.escape(str(python))} cannot be started: Permission denied: let uid {os.geteuid()} execute it"
    with pytest.raises(RedriveError, match=refused):
        Executor(flow=str(tmp_path / "flow.py"), state=tmp_path / "s.db").run()
    with pytest.raises(RedriveError, match=refused):
        asyncio.run(read_flow(str(tmp_path / "flow.py")))
