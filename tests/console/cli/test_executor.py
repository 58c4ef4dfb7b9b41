"""``redrive resume``: which code it runs, what changed in the flow, and what it refuses without an operator's word."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

import pytest
from support.commands import quoted, run_redrive, start_redrive
from support.marks import parametrize_mostly_long

DYNAMIC = """
from pathlib import Path
from redrive.engine import Flow, RetryPolicy

HERE = Path(__file__).parent
flow = Flow("sums")
counts = []
for path in sorted((HERE / "in").glob("*.csv")):
    def count(path=path):
        return int(path.read_text())
    flow.task(count, name=f"count_{path.stem}", retry=RetryPolicy(max_attempts=1), timeout=60)
    counts.append(f"count_{path.stem}")

@flow.task(after=counts, timeout=60)
def total(ctx):
    return sum(value for value in ctx.inputs.values())
"""
TWO = """
from redrive.engine import Flow, PermanentError

flow = Flow("two")

@flow.task(timeout=60)
def first():
    return 1

@flow.task(timeout=60)
def broken():
    raise PermanentError("no")

@flow.task(timeout=60, after=[first])
def last(first):
    return first
"""


def redrive(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str]:
    done = run_redrive(*words, env={**os.environ, **(env or {})}, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


def ask(state: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(state) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A run whose task ``broken`` is a dead letter; the folder of ``two.py`` and ``two.db``."""
    (tmp_path / "two.py").write_text(TWO)
    code, _ = redrive("run", tmp_path / "two.py", "--state", tmp_path / "two.db", "--run-id", "r", "--plain")
    assert code == 3
    return tmp_path


def resume(folder: Path, *options: object, **more: object) -> tuple[int, str]:
    return redrive("resume", folder / "two.db", "--plain", *options, **more)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_finished_task_whose_definition_vanished_stays_an_input(tmp_path: Path) -> None:
    folder, state = tmp_path / "in", tmp_path / "sums.db"
    folder.mkdir()
    (tmp_path / "dyn.py").write_text(DYNAMIC)
    for name, text in (("f1", "1"), ("f2", "5"), ("f3", "bad")):
        (folder / f"{name}.csv").write_text(text)
    code, output = redrive("run", tmp_path / "dyn.py", "--state", state, "--run-id", "r", "--plain")
    assert ask(state, "SELECT state FROM task WHERE name = 'count_f1'") == [("SUCCESS",)], output
    (folder / "f1.csv").unlink()
    (folder / "f3.csv").write_text("7")
    (folder / "f6.csv").write_text("8")
    assert redrive("requeue", "--state", state, "--reason", "mended", "count_f3")[0] == 0
    code, output = redrive("resume", state, "--plain")
    assert code == 0, output
    assert ask(state, "SELECT result FROM task WHERE name = 'total'") == [("21",)]
    assert output.count("added: count_f6") == 2, "before the start, and in the journal"
    assert "removed, a result stays an input of the tasks after it: count_f1" in output
    assert "changed, the current definition applies: total" in output
    code, output = redrive("events", state)
    assert "added: count_f6" in output


@pytest.mark.long
def test_the_changed_task_is_named_and_not_the_tasks_below_it_in_the_file(two: Path) -> None:
    text = TWO.replace('    raise PermanentError("no")', '    print("a line more")\n    return 2')
    (two / "two.py").write_text(text)
    assert redrive("requeue", "--state", two / "two.db", "--reason", "mended", "broken")[0] == 0
    code, output = resume(two)
    assert code == 0
    assert "changed, the current definition applies: broken\n" in output


def test_a_removed_unfinished_task_needs_a_word_and_is_skipped_then(two: Path) -> None:
    text = TWO.replace("def broken()", "def mended()").replace('raise PermanentError("no")', "pass")
    (two / "two.py").write_text(text)
    code, output = resume(two)
    assert code == 2
    assert "still has to do broken, which the flow no longer defines" in output and "--accept-changes" in output
    assert "resumes r" not in output
    assert ask(two / "two.db", "SELECT count(*) FROM task WHERE name = 'mended'") == [(0,)], "nothing is changed"
    code, output = resume(two, "--accept-changes")
    assert code == 3, "PARTIAL, because a task was skipped"
    assert "resumes r" in output
    assert ask(two / "two.db", "SELECT name, state FROM task WHERE name IN ('broken', 'mended') ORDER BY name") == [
        ("broken", "SKIPPED"),
        ("mended", "SUCCESS"),
    ]
    assert ask(two / "two.db", "SELECT state FROM run") == [("PARTIAL",)]


def test_an_unattended_start_that_needs_a_word_is_refused_and_the_journal_says_so(two: Path) -> None:
    (two / "two.py").write_text(TWO.replace("def broken()", "def mended()"))
    words = ("run", two / "two.py", "--state", two / "two.db", "--run-id", "r", "--plain")
    code, output = redrive(*words)
    assert code == 2 and "still has to do broken" in output
    assert "not resumed: run 'r' still has to do broken" in redrive("events", two / "two.db")[1]
    code, output = redrive(*words, "--accept-changes")
    assert "removed before it finished, skipped: broken" in output


@pytest.mark.long
def test_a_run_that_a_cancelled_task_has_failed_ends_otherwise_without_the_task(two: Path) -> None:
    assert redrive("cancel", "--state", two / "two.db", "--reason", "gone", "broken")[0] == 0
    assert resume(two)[0] == 1
    assert ask(two / "two.db", "SELECT state FROM run") == [("FAILED",)]
    (two / "two.py").write_text(TWO.replace("@flow.task(timeout=60)\ndef broken", "def broken"))
    code, output = resume(two, "--run", "r")
    assert code == 3, output
    assert ask(two / "two.db", "SELECT state FROM run") == [("PARTIAL",)]


@pytest.mark.long
def test_a_finished_task_with_another_code_needs_a_word_once(two: Path) -> None:
    (two / "two.py").write_text(TWO.replace("return 1", "return 100"))
    code, output = resume(two)
    assert code == 2 and "has finished first with another definition" in output
    assert resume(two, "--accept-changes")[0] == 3
    code, output = resume(two)
    assert code == 3 and "first" not in output


def test_a_resume_names_the_code_the_user_the_folder_and_the_interpreter(two: Path) -> None:
    _, output = resume(two, cwd=two)
    assert f"the code: {two / 'two.py'}, which belongs to " in output
    assert f", in {two}, with {sys.executable}" in output


def test_a_missing_flow_file_names_the_command_that_works(two: Path) -> None:
    (two / "two.py").rename(two / "new.py")
    code, output = resume(two)
    command = f"redrive run NEW.py --state {quoted(two / 'two.db')} --run-id r"
    assert code == 2 and f"there is no flow file '{two / 'two.py'}'; if it has another place now: {command}" in output
    words = command.replace("NEW.py", str(two / "new.py")).split()[1:]
    assert redrive(*words, "--plain")[0] == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@parametrize_mostly_long("file", ["two.py", "two.db"])
def test_code_of_another_user_is_not_run_without_a_word(two: Path, file: str) -> None:
    proof = two / "imported"
    (two / "two.py").write_text(f"open({str(proof)!r}, 'w').close()\n" + TWO)
    os.chown(two / file, 65534, -1)
    code, output = resume(two)
    assert code == 2 and not proof.exists()
    assert f"{two / 'two.py'} is not run without your consent, because {two / file} belongs to nobody" in output
    assert "--trust" in output
    assert redrive("resume", two / "two.db", "--detach")[0] == 2 and not proof.exists()
    assert resume(two, "--trust")[0] == 3 and proof.exists()


@pytest.mark.parametrize(("mode", "who"), [(0o666, "every user"), (0o664, "the group daemon")])
def test_code_that_others_can_write_is_not_run_without_a_word(two: Path, mode: int, who: str) -> None:
    if os.geteuid() == 0:
        os.chown(two / "two.py", -1, 1)
    elif mode == 0o664:
        pytest.skip("only root can give files to another group")
    (two / "two.py").chmod(mode)
    code, output = resume(two)
    assert code == 2 and f"{two / 'two.py'} can be written by {who}" in output


@pytest.mark.long  # it starts an interpreter, without the rights of root over files
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_file_that_this_user_cannot_write_is_refused_before_the_code_is_asked_about(two: Path) -> None:
    (two / "two.db").chmod(0o444)
    os.chown(two / "two.py", 12345, -1)
    prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    started = start_redrive("resume", two / "two.db", "--plain", prefix=prefix, stderr=PIPE, text=True)
    _, said = started.communicate()
    assert started.returncode == 2 and said.startswith(f"redrive: read-only: {two / 'two.db'} is not writable for ")


@pytest.mark.long
def test_a_resume_finds_the_modules_that_the_start_found_by_pythonpath(tmp_path: Path) -> None:
    library, state = tmp_path / "library", tmp_path / "p.db"
    library.mkdir()
    (library / "shared_words.py").write_text("WORD = 'found'\n")
    (tmp_path / "flows").mkdir()
    flow = tmp_path / "flows" / "p.py"
    flow.write_text("import os, shared_words\n" + TWO.replace("return first", "return os.environ['PYTHONPATH']"))
    start = redrive("run", flow, "--state", state, "--run-id", "r", "--plain", env={"PYTHONPATH": str(library)})
    assert start[0] == 3, start
    code, output = redrive("resume", state, "--plain", env={"PYTHONPATH": ""})
    assert code == 3, output
    assert f"with PYTHONPATH {library}" in output


@pytest.mark.long
def test_a_detached_demo_waits_for_its_user(tmp_path: Path) -> None:
    state = tmp_path / "demo.db"
    code, output = redrive("demo", "--detach", "--stay", "--state", state)
    try:
        assert (code, "redrive attach" in output) == (0, True), output
        code, output = redrive("runs", state, "--json")
        assert '"state": "RUNNING"' in output
        assert "'requeue'" not in redrive("events", state)[1]
    finally:
        assert redrive("stop", state, "--wait")[0] == 0
