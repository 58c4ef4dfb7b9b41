"""A state file with values that no redrive writes gets one sentence that names the row, from every door."""

from __future__ import annotations

import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.console.app.app import ConsoleApp
from redrive.console.app.launch import _print_end
from redrive.console.sessions.address import Endpoint
from redrive.console.sessions.file_session import require_known_values
from redrive.console.sessions.open import open_session
from redrive.console.terminal.capabilities import TerminalCapabilities
from redrive.console.terminal.tty import Tty
from redrive.engine.errors import CorruptFileError, RedriveError
from support.commands import with_file
from support.malformed_state import alter
from support.marks import parametrize_mostly_long, scaled
from support.rich_state import LISTINGS, copy_of, redrive_here, write_rich_state
from textual.pilot import Pilot

from .conftest import settle

MALFORMED = {
    "a spec that is none": (
        "UPDATE task SET spec = '[1]'",
        "table task, run_id 'night-1': no redrive writes this",
    ),
    "an edge to nobody": (
        "INSERT INTO edge (run_id, child, parent) VALUES ('night-1', 'ghost', 'first')",
        "names no task",
    ),
    "a time after the calendar": ("UPDATE event SET at = 9223372036854775807", "no redrive writes this at"),
    "a text for a number": ("UPDATE run SET started_at = 'x'", "no redrive writes this started_at"),
    "a rule that is none": ("UPDATE task SET rule = 'a,l_success'", "no redrive writes this rule"),
    "bytes for a text": ("UPDATE task SET error = x'ff00'", "no redrive writes this error"),
}


def sentences_of(errors: str) -> list[str]:
    """The lines of stderr, except those of ``redrive logs`` about attempts that failed."""
    return [line for line in errors.splitlines() if not re.match(r"redrive: .*: attempt \S+ ", line)]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rich") / "rich.db"
    write_rich_state(path)
    return path


@pytest.mark.parametrize(("sql", "sentence"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_row_is_named_and_no_traceback_is_shown(
    rich: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str, sentence: str
) -> None:
    path = copy_of(rich, tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(sql)
    reported = 0
    for words in LISTINGS:
        if words[0] == "doctor":
            continue
        code = redrive_here(*with_file(words, path))
        errors = capsys.readouterr().err
        assert code in ((0, 1, 2, 3) if words[0] == "inbox" else (0, 2)), words
        assert len(sentences_of(errors)) <= 1, errors
        reported += sentence in errors
    assert reported > 0


# --- Seeded alterations --------------------------------------------------------------------------------------------

SEEDS = 10  # in one test
DOORS = (
    *LISTINGS,
    *((name, "--json") for name in ("tasks", "inbox", "events", "runs", "systems")),
    ("report", "-o", "/dev/null"),
    ("skip", "broken", "--reason", "x"),
    ("pause", "--reason", "x"),
)


def altered(rich: Path, folder: Path, seed: int) -> tuple[Path, list[object]]:
    (folder / str(seed)).mkdir()
    path = copy_of(rich, folder / str(seed))
    return path, alter(path, seed)


@parametrize_mostly_long("first", range(0, scaled(200), SEEDS), quick=1, daily=5)
def test_each_listing_of_an_altered_file_is_shown_or_refused_in_a_sentence(
    rich: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: int
) -> None:
    for seed in range(first, first + SEEDS):
        path, done = altered(rich, tmp_path, seed)
        for words in random.Random(seed).sample(DOORS, 4):
            code = redrive_here(*with_file(words, path))
            errors = capsys.readouterr().err
            assert code in (0, 1, 2, 3), (seed, words, done)
            assert len(sentences_of(errors)) <= 1, (seed, words, done, errors)


KEYS = (
    "j",
    "k",
    "enter",
    "escape",
    "i",
    "d",
    "o",
    "l",
    "[",
    "{",
    "}",
    "-",
    "0",
    "n",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
)


@parametrize_mostly_long("first", range(0, scaled(60), 2), daily=5)
async def test_the_console_of_an_altered_file_shows_it_or_ends_with_a_sentence(
    rich: Path, tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + 2):
        path, done = altered(rich, tmp_path, seed)
        keys = [*"2345671", *random.Random(seed).choices(KEYS, k=12)]
        try:
            session = await open_session(Endpoint(str(path)), read_only=True)
        except RedriveError:
            continue
        app = ConsoleApp(session, tty=Tty(TerminalCapabilities()))
        try:
            async with app.run_test(size=(100, 30)) as pilot:
                await press_until_it_fails(app, pilot, keys)
        except Exception:
            if app.failure is None:  # the pilot drew, not a timer of the console
                with pytest.raises(CorruptFileError):
                    require_known_values()
        finally:
            app.live.close()
            await session.close()
        if app.failure is not None:
            try:
                _print_end(app, None, str(path))
            except CorruptFileError as error:
                assert str(error).isprintable(), (seed, done)
            else:
                raise AssertionError(f"seed {seed}: the file is sound: {done}") from app.failure


async def press_until_it_fails(app: ConsoleApp, pilot: Pilot[Any], keys: list[str]) -> None:
    for key in keys:
        if app.failure is not None:
            return
        await pilot.press(key)
        await settle(app, pilot)
