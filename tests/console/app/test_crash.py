"""A crash of the console says on standard error what and where, and nothing else."""

from __future__ import annotations

from redrive.console.app.launch import crash_lines


def failure(message: str) -> BaseException:
    secret = "s3cret-token"
    try:
        raise ZeroDivisionError(message if secret else "")
    except ZeroDivisionError as error:
        return error


def test_the_lines_say_where_it_was_and_that_the_run_goes_on() -> None:
    *traced, what, then = crash_lines(failure("bad\nsecond line"), "redrive attach x.db")
    assert traced[0] == "Traceback (most recent call last):" and "test_crash.py" in traced[1]
    assert what == "The console failed: ZeroDivisionError: bad"
    assert "not touched" in then and "redrive attach x.db" in then


def test_the_lines_hold_no_values_of_variables_and_no_control_characters() -> None:
    text = "\n".join(crash_lines(failure("\x1b]0;pwned\x07\x9b31m\u202e")))
    assert "s3cret-token" not in text
    assert not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)
