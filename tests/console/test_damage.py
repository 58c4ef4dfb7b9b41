"""A state file that is damaged anywhere gets one sentence from every command, and a traceback from none."""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from redrive.console.cli import main
from support.commands import run_redrive, with_file
from support.marks import parametrize_mostly_long, scaled

PAGE_BYTES = 4096
FLIPS = 25  # copies with flipped bits in one test
SECONDS_MAX = 30.0  # of one command; the machine may be busy
FLOW = """
from redrive.engine import Flow, PermanentError
flow = Flow("f")
@flow.task
def a(): print("hello")
@flow.task(after=[a])
def b(): raise PermanentError("no")
"""
COMMANDS = (
    ("tasks",),
    ("runs",),
    ("inbox",),
    ("events",),
    ("systems", "pages"),
    ("systems", "rows"),
    ("replay",),
    ("doctor",),
    ("requeue", "b", "--reason", "x"),
)


DOORS = (
    *COMMANDS,
    ("logs", "a"),
    ("report",),
    ("prune", "--keep", "1"),
    ("systems", "breakers"),
    ("pause",),
    ("report", "--short"),
    ("skip", "b", "--reason", "x"),
)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "f.py").write_text(FLOW)
    state = folder / "state.db"
    assert run_redrive("run", folder / "f.py", "--state", state).returncode == 3
    with closing(sqlite3.connect(state)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return state


def redrive(*words: str) -> int:
    """The command, in this process: there are hundreds of them."""
    with pytest.raises(SystemExit) as left, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["redrive", *words])
        main.main()
    return int(left.value.code or 0)


def damage(intact: Path, folder: Path, page: int) -> Path:
    damaged = folder / f"page_{page}.db"
    shutil.copy(intact, damaged)
    with damaged.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)
    return damaged


@parametrize_mostly_long("words", COMMANDS, ids=lambda words: words[0])
def test_damage_to_any_page_is_one_sentence(
    intact: Path, tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pages = intact.stat().st_size // PAGE_BYTES
    assert pages > 20
    refused = 0
    for page in range(1, pages):
        code = redrive(*with_file(words, damage(intact, tmp_path, page)))
        errors = capsys.readouterr().err
        assert code in (0, 1, 2, 3), page
        assert len(errors.splitlines()) <= 1, errors
        refused += "is damaged" in errors
    assert refused > 0 or words == ("doctor",)


def test_the_doctor_names_the_damage(intact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert redrive("doctor", str(damage(intact, tmp_path, 2))) == 1
    assert "error   integrity" in capsys.readouterr().out


def flip(intact: Path, folder: Path, dice: random.Random) -> Path:
    """A copy with some bits flipped: mostly in the pages that hold something."""
    content = bytearray(intact.read_bytes())
    used = [place for place, byte in enumerate(content) if byte]
    for _ in range(dice.choice((1, 1, 2, 8))):
        content[dice.choice(used)] ^= 1 << dice.randrange(8)
    flipped = folder / f"flipped_{dice.getrandbits(40)}.db"
    flipped.write_bytes(content)
    return flipped


@parametrize_mostly_long("first", range(0, scaled(100), FLIPS), quick=1)
def test_flipped_bits_are_an_answer_or_one_sentence(
    intact: Path, tmp_path: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through a random door; the file itself cannot be trusted any more, but it ends no command in a bad way."""
    for seed in range(first, first + FLIPS):
        dice = random.Random(seed)
        words, state, began = dice.choice(DOORS), flip(intact, tmp_path, dice), time.monotonic()
        code = redrive(*with_file(words, state))
        captured = capsys.readouterr()
        assert code in (0, 1, 2, 3), (seed, words)
        assert "Traceback" not in captured.err and (code == 0 or len(captured.err.splitlines()) <= 1), (
            seed,
            words,
            captured.err,
        )
        assert time.monotonic() - began < SECONDS_MAX, (seed, words)


@parametrize_mostly_long("first", range(0, 60, 20), quick=0, daily=1)
def test_a_run_is_resumed_from_flipped_bits_or_refused(intact: Path, tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        state = flip(intact, tmp_path, random.Random(f"resume {seed}"))
        ended = run_redrive("resume", state, "--plain", timeout=60)
        assert ended.returncode in (0, 1, 2, 3), (seed, ended.stderr)
        problems = [line for line in ended.stderr.splitlines() if line.startswith("redrive: ")]
        assert "Traceback" not in ended.stderr and len(problems) <= 1, (seed, ended.stderr)
