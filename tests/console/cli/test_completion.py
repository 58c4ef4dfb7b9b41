"""A word that Tab offers is inert in the shell: names of tasks come from files of strangers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow

HOSTILE = [
    "$(touch OWNED)zz",
    "`touch OWNED`",
    "a;touch OWNED;",
    "sp ace",
    "it's",
    'a "quote"',
    "back\\slash",
    "* ? [a]",
    "!history",
    "~root",
    "#note",
    "a&b|c>d<e",
    "grün,äöü",
    "{a,b}",
]
INVISIBLE = ["two\nlines", "esc\x1b[2J", "tab\there"]

#: Drives the function that the script defines as bash does at Tab.
BASH = """
eval "$(redrive completion bash)"
COMP_WORDS=(redrive requeue --reason x --state {state} {typed}) COMP_CWORD=6
_redrive_completion redrive requeue "" 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    flow = Flow("got")
    for name in [*HOSTILE, *INVISIBLE]:
        flow.task(lambda: None, name=name)
    Executor(flow=flow, state=str(tmp_path / "got.db"), run_id="r", max_parallel=1).run()
    return tmp_path


def run_in(shell: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_bash_gets_words_that_it_reads_as_the_names_and_none_runs(folder: Path) -> None:
    words = run_in(["bash", "--norc", "-c", BASH.format(state="got.db", typed="''")], folder).splitlines()
    for word in words:
        assert run_in(["bash", "--norc", "-c", f"printf %s {word}"], folder) == shlex.split(word)[0]
    assert sorted(shlex.split(word)[0] for word in words) == sorted(HOSTILE), "what cannot be typed is not offered"
    assert not (folder / "OWNED").exists()


def test_a_word_goes_on_as_it_was_typed(folder: Path) -> None:
    assert run_in(["bash", "--norc", "-c", BASH.format(state="got.db", typed="sp")], folder) == "sp\\ ace\n"
    assert run_in(["bash", "--norc", "-c", BASH.format(state="got.db", typed="'sp\\ a'")], folder) == "sp\\ ace\n"


def test_logs_offers_the_tasks_as_requeue_does(folder: Path) -> None:
    script = BASH.replace("requeue --reason x", "logs --lines 5").format(state="got.db", typed="sp")
    assert run_in(["bash", "--norc", "-c", script], folder) == "sp\\ ace\n"
