"""Reports a crash of the console: a file with the traceback, and a message on the terminal. The run goes on."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from ..text.text import echo, sanitize

REPORTS_MAX = 10
_LINE_CHARACTERS_MAX = 2000


def write_report(error: BaseException, facts: Mapping[str, object], folder: Path | None = None) -> Path:
    """Write a report to a new file that only its owner can read, and delete the oldest reports above ``REPORTS_MAX``.

    The report has no values of variables: they may be secrets. ``facts``: further lines, as target, size and view.

    Raises:
        OSError: the folder (default: the user's state folder) cannot be written.
    """
    folder = folder or Path(platformdirs.user_state_path("redrive", appauthor=False))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.now(UTC)
    path = folder / f"crash-{now:%Y%m%dT%H%M%S%f}-{os.getpid()}.txt"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        for line in (*_heading(now, facts), "", *_trace(error)):
            file.write(f"{sanitize(line, _LINE_CHARACTERS_MAX)}\n")
    for old in sorted(folder.glob("crash-*.txt"))[:-REPORTS_MAX]:
        old.unlink(missing_ok=True)
    return path


def _heading(now: datetime, facts: Mapping[str, object]) -> list[str]:
    lines = {
        "time": now.isoformat(timespec="seconds"),
        "redrive": _version("redrive"),
        "textual": _version("textual"),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "terminal": f"TERM={os.environ.get('TERM', '')} LANG={os.environ.get('LANG', '')}",
        **facts,
    }
    return [f"{name}: {value}" for name, value in lines.items()]


def _trace(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def crash_message(error: BaseException, facts: Mapping[str, object], resume: str = "redrive attach") -> str:
    """Write a report and return the message for standard error, of three lines."""
    summary = sanitize(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    try:
        location = f"Report: {write_report(error, facts)}"
    except OSError as write_error:
        location = f"The report could not be written: {write_error.strerror}"
    return f"The console failed: {summary}\nThe run was not touched; come back with: {resume}\n{location}"


def print_crash(error: BaseException, facts: Mapping[str, object], resume: str = "redrive attach") -> None:
    """Write a report and print the message on standard error, on a restored terminal."""
    echo(crash_message(error, facts, resume), err=True)
