"""A crash of the console leaves a report that can be sent to somebody, and nothing else."""

from __future__ import annotations

import stat
from pathlib import Path

from redrive.console.app.launch import REPORTS_MAX, crash_message, write_report


def failure(message: str = "division by zero") -> BaseException:
    secret = "s3cret-token"
    try:
        raise ZeroDivisionError(message if secret else "")
    except ZeroDivisionError as error:
        return error


def test_the_report_says_what_and_where(tmp_path: Path) -> None:
    text = write_report(failure(), {"target": "revenue.db", "size": "80x24"}, tmp_path).read_text()
    assert "ZeroDivisionError: division by zero" in text
    assert "test_crash_report.py" in text
    assert "target: revenue.db" in text
    assert "textual: 8" in text


def test_the_report_is_for_its_owner_alone(tmp_path: Path) -> None:
    assert stat.S_IMODE(write_report(failure(), {}, tmp_path).stat().st_mode) == 0o600


def test_the_report_holds_no_values_of_variables_and_no_control_characters(tmp_path: Path) -> None:
    text = write_report(failure("\x1b]0;pwned\x07\x9b31m\u202e"), {"target": "a\x1b[2J"}, tmp_path).read_text()
    values = [line for line in text.splitlines() if "s3cret-token" in line]
    assert values == []
    assert not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)


def test_old_reports_are_forgotten(tmp_path: Path) -> None:
    paths = [write_report(failure(), {}, tmp_path) for _ in range(REPORTS_MAX + 3)]
    assert sorted(tmp_path.iterdir()) == sorted(paths[3:])


def test_the_words_say_that_the_run_goes_on_and_where_the_report_is(own_state_home: Path) -> None:
    words = crash_message(failure("bad\nsecond line"), {}, "redrive attach x.db")
    first, second, third = words.splitlines()
    assert first == "The console failed: ZeroDivisionError: bad"
    assert "not touched" in second and "redrive attach x.db" in second
    assert Path(third.removeprefix("Report: ")).is_relative_to(own_state_home)


def test_a_report_that_cannot_be_written_is_said_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "could not be written" in crash_message(failure(), {})
