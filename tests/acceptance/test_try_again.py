"""The checks try what has failed once more, alone: what passes then is printed as unstable, three at most."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkout import ROOT
from support.marks import parametrize_mostly_long

SCRIPT = ROOT / ".ci" / "try_again.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("try_again", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # named tuples look for it
    spec.loader.exec_module(module)
    return module


try_again = load()

#: A test that fails at its first start is one that has no mark of an earlier one yet.
HELPERS = """
import os, sys, time
from pathlib import Path
import pytest

def first(name):
    mark = Path(__file__).parent / f"{abs(hash(name))}.ran"
    is_first = not mark.exists()
    mark.touch()
    return is_first
"""
LUCK = """
@pytest.mark.parametrize("text", ["[a]::b", "grün 'x' $HOME", "-k", "@f", "a/b.py::c", 'two\\nlines "'])
def test_odd(text):
    assert text != "-k" or not first(text), "the first failure, whole"

@pytest.fixture
def made():
    assert not first("made"), "in setup"

def test_setup(made): pass

def test_environment():
    assert [name for name in os.environ if name.startswith(("TRY_AGAIN", "PYTEST_ADD"))] == []
    assert os.environ.get("PYTHONPATH") == "outer"
"""


def check(folder: Path, tests: str, *options: str) -> tuple[int, str, list[str]]:
    """The exit code, what is printed, and the names of unstable tests."""
    (folder / "test_it.py").write_text(HELPERS + tests)
    plugins = ["-p", "xdist.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    words = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(folder)]
    command = [sys.executable, str(SCRIPT), "--again", shlex.join(words), "--unstable", str(folder / "unstable"), "--"]
    environment = {
        **os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": "outer", "PYTHONHASHSEED": "0"
    }  # fmt: skip
    done = subprocess.run(
        [*command, *words, *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    unstable = folder / "unstable"
    return done.returncode, done.stdout + done.stderr, unstable.read_text().splitlines() if unstable.exists() else []


@pytest.mark.long
def test_what_fails_once_is_printed_with_its_first_failure_and_fails_nothing(tmp_path: Path) -> None:
    code, output, unstable = check(tmp_path, LUCK, "-n", "2")
    assert (code, sorted(unstable)) == (0, ["test_it.py::test_odd[-k]", "test_it.py::test_setup"]), output
    assert "== unstable: test_it.py::test_odd[-k] passes now; it failed with" in output
    assert output.rpartition("unstable: test_it.py::test_odd[-k]")[2].count("the first failure, whole") > 0


@pytest.mark.long
def test_what_fails_twice_fails_the_checks(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("text", ["[a]::b", "grün $HOME", "two\\nlines", "'\\"`"])
def test_stable(text): assert False

def test_luck(): assert not first("luck")
"""
    code, output, unstable = check(tmp_path, tests)
    assert (code, unstable) == (1, ["test_it.py::test_luck"]), output
    assert output.count("== failed twice: ") == 4 and "not found" not in output


@parametrize_mostly_long("earlier", [2, 3], quick=1)
def test_more_than_three_fail_the_checks_with_those_of_earlier_commands(tmp_path: Path, earlier: int) -> None:
    (tmp_path / "unstable").write_text("another\n" * earlier)
    code, output, unstable = check(tmp_path, "def test_luck(): assert not first('luck')")
    assert (code, len(unstable)) == (earlier - 2, earlier + 1), output
    assert ("4 unstable tests: more than 3" in output) is (earlier == 3)


@pytest.mark.long
def test_a_worker_that_crashes_and_a_test_that_hangs_are_tried_again(tmp_path: Path) -> None:
    tests = """
def test_crash():
    if first("crash"): os._exit(9)

@pytest.mark.timeout(1)
def test_hang():
    if first("hang"): time.sleep(60)

def test_always(): os._exit(9)
"""
    code, output, unstable = check(tmp_path, tests, "-n", "2")
    assert (code, sorted(unstable)) == (1, ["test_it.py::test_crash", "test_it.py::test_hang"]), output
    assert "== failed twice: test_it.py::test_always" in output and "crashed while running" in output


@parametrize_mostly_long(
    ("tests", "refused"),
    [
        ("assert not first('import')\ndef test_it(): pass", "failed, and not tried again: the command ended with code"),
        ("def test_it(): pytest.exit('no more', returncode=1)", "none of them has failed"),
        ("def test_it(): assert False\ndef test_kill(): os._exit(1)", "code 1, its tests with none"),
        (
            "@pytest.fixture(scope='session')\ndef shared():\n    yield\n    assert not first('left behind')\n"
            "def test_it(shared): pass",
            "not of one test alone: test_it.py::test_it",
        ),
    ],
)
def test_what_no_second_try_can_decide_fails_at_once(tmp_path: Path, tests: str, refused: str) -> None:
    code, output, unstable = check(tmp_path, tests)
    assert (code, unstable) == (1, []), output
    assert refused in output and "once more" not in output


def record(*notes: tuple[str, str, str]) -> str:
    return "".join(json.dumps(note) + "\n" for note in notes)


@pytest.mark.parametrize(
    ("notes", "exit_code", "refused"),
    [
        ([("end", "", "0")], 0, ""),
        ([], 0, "the command ended well, but its tests did not"),
        ([], 1, "code 1, its tests with none"),
        ([("failed", "t", "why"), ("end", "", "1")], 1, ""),
        ([("failed", "t", "why"), ("end", "", "2")], 2, "code 2, its tests with [2]"),
        ([("failed", "t", "why"), ("end", "", "1")], 3, "code 3, its tests with [1]"),
        ([("failed", "t", "why"), ("collection", "u", "why"), ("end", "", "1")], 1, "not of one test alone: u"),
        ([*(("failed", f"t{number}", "why") for number in range(21)), ("end", "", "1")], 1, "21 tests failed: too"),
    ],
)
def test_the_verdict(notes: list[tuple[str, str, str]], exit_code: int, refused: str) -> None:
    verdict = try_again.judge(record(*notes), exit_code)
    assert refused in verdict.refused if refused else verdict.refused == ""


def test_a_test_that_fails_in_its_call_and_in_its_teardown_is_one_failure() -> None:
    notes = [("failed", "t", "call"), ("failed", "t", "teardown"), ("end", "", "1")]
    assert try_again.judge(record(*notes), 1).first == {"t": "call\nteardown"}


def test_what_runs_too_long_alone_is_killed_and_has_failed(tmp_path: Path) -> None:
    assert not try_again.passes(["sh", "-c", "sleep 60 & sleep 60"], 0.1)
    assert try_again.passes(["true"], 60) and not try_again.passes(["false"], 60)
