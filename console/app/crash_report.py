"""When the console itself fails: a report on disk, one sentence on the terminal, and nothing of the run touched."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from ..text.text import sanitize

REPORTS_MAX = 10
_LINE_CHARACTERS_MAX = 2000


def write_report(error: BaseException, facts: Mapping[str, object], folder: Path | None = None) -> Path:
    """Write what happened to a new file, readable by its owner alone, and forget the oldest reports.

    Values of variables are left out: they may hold secrets. ``facts`` are lines of the caller: target, size, theme.

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


def tell(error: BaseException, facts: Mapping[str, object], resume: str = "redrive attach") -> str:
    """Report ``error`` and say so in the words for standard error, one line each. Call it on a restored terminal."""
    what = sanitize(f"{type(error).__name__}: {error}".splitlines()[0], 200)
    try:
        where = f"Report: {write_report(error, facts)}"
    except OSError as trouble:
        where = f"The report could not be written: {trouble.strerror}"
    return f"The console failed: {what}\nThe run was not touched; come back with: {resume}\n{where}"


def print_crash(error: BaseException, facts: Mapping[str, object], resume: str = "redrive attach") -> None:
    """``tell`` on standard error."""
    print(tell(error, facts, resume), file=sys.stderr)
