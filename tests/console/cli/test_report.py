"""``redrive report``, on a state file and behind ssh."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import invoke_redrive, run_redrive
from support.state_file import StateFileBuilder


def test_the_report_is_one_file_with_the_facts_of_the_run(run_file: StateFileBuilder, tmp_path: Path) -> None:
    done = run_redrive("report", f"{run_file.path}@night-1", "-o", tmp_path / "night.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    for fact in ("task_00002", "boom", "Traceback: of task_00002", "1 of 6 done"):
        assert fact in text, fact
    assert str(tmp_path / "night.html") in done.stdout


@pytest.mark.long
def test_every_process_writes_the_same_style_sheet(run_file: StateFileBuilder) -> None:
    words = ("report", run_file.path)
    pages = [run_redrive(*words, env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in "123"]
    sheets = {page.partition("<style>")[2].partition("</style>")[0] for page in pages}
    assert len(sheets) == 1 and "" not in sheets


def test_the_report_is_for_its_owner_alone_and_an_old_file_keeps_its_mode(
    run_file: StateFileBuilder, tmp_path: Path
) -> None:
    new, old = tmp_path / "new.html", tmp_path / "old.html"
    old.touch()
    old.chmod(0o644)
    for page in (new, old):
        assert invoke_redrive("report", run_file.path, "-o", page).exit_code == 0
    assert (new.stat().st_mode & 0o777, old.stat().st_mode & 0o777) == (0o600, 0o644)


def test_without_a_file_it_is_printed(run_file: StateFileBuilder) -> None:
    assert invoke_redrive("report", run_file.path).output.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["no-such-run"], "no-such-run"), (["-o", "/dev/full"], "No space left"), (["-o", "/no/such/x.html"], "No such")],
)
def test_what_goes_wrong_is_one_sentence(run_file: StateFileBuilder, words: list[str], sentence: str) -> None:
    done = run_redrive("report", run_file.path, *words)
    assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_a_path_in_the_place_of_a_run_says_where_it_belongs(run_file: StateFileBuilder) -> None:
    done = invoke_redrive("report", run_file.path, "/var/lib/night.db")
    assert str(done.exception) == "'/var/lib/night.db' is too much: report takes [FLOW[@RUN]]"


@pytest.mark.long
def test_the_report_is_the_same_through_ssh(far: Any, make_run_file: Callable[..., StateFileBuilder]) -> None:
    run_file = make_run_file("idle.db")
    run_file.finish("task_00000")
    run_file.finish("task_00002", "DEAD_LETTER", error="boom", dead_letter_kind="poison", failures=1)

    def report(target: str) -> list[str]:
        done = run_redrive("report", target)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if str(run_file.path) not in line and "as of" not in line]
        return [re.sub(r"(\d\.|<)?\d+(ms|s|m\d\d)\b", "_", " ".join(line.split())) for line in lines]  # ages differ

    assert report(str(run_file.path)) == report(f"ssh://far{run_file.path}")
