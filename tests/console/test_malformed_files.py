"""A state file with values that no redrive writes gets one sentence that names the row, from every listing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.rich_state import LISTINGS, copy_of, redrive_here, write_rich_state

MALFORMED = {
    "a spec that is none": (
        "UPDATE task SET spec = '[1]'",
        "table task, run_id 'night-1': no redrive writes this",
    ),
    "an edge to nobody": ("INSERT INTO edge VALUES ('night-1', 'ghost', 'first')", "names no task"),
    "a time after the calendar": ("UPDATE event SET at = 9223372036854775807", "no redrive writes this at"),
    "a text for a number": ("UPDATE run SET started_at = 'x'", "no redrive writes this started_at"),
    "bytes for a text": ("UPDATE task SET error = x'ff00'", "no redrive writes this error"),
}


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
    said = 0
    for words in LISTINGS:
        if words[0] == "doctor":
            continue
        code = redrive_here(*words, str(path))
        errors = capsys.readouterr().err
        assert code in (0, 2), words
        assert len(errors.splitlines()) <= 1, errors
        said += sentence in errors
    assert said > 0
