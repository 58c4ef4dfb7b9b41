"""A state file with everything in it that a command can list: for tests that alter its cells."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.console.cli import main
from redrive.engine import Executor, Flow, PermanentError, TransientError

RUN = "night-1"

#: Every listing, and a preview of an act; the path of the file is the last word.
LISTINGS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("tasks",),
    ("inbox",),
    ("events",),
    ("logs",),
    ("systems", "pages", "--all"),
    ("systems", "rows", "--all"),
    ("systems", "breakers"),
    ("replay",),
    ("doctor",),
    ("requeue", "broken*", "--dry-run", "--reason", "x"),
)


def write_rich_state(path: Path) -> None:
    """Run a flow whose tasks end in every way, with pages, rows in quarantine and an open breaker."""
    flow = Flow("night")
    flow.downstream("api", minimum_calls=1, open_seconds=600, shared=False)  # fixtures of a session share a home

    def broken() -> None:
        print("one line of output")
        raise PermanentError("403 forbidden")

    def calls() -> None:
        raise TransientError("503")

    def rows(ctx: Any) -> None:
        for scope in ctx.rows([f"row-{number}" for number in range(4)], key=str):
            with scope as row:
                if row == "row-2":
                    raise ValueError(row)

    first = flow.task(lambda: {"rows": 3}, name="first", timeout=30)
    flow.task(broken, name="broken", after=[first], timeout=30)
    flow.task(lambda: None, name="below", after=["broken"], timeout=30)
    flow.task(calls, name="calls", downstream="api", timeout=30, max_attempts=1)
    flow.task(rows, name="rows", timeout=30)
    flow.page("command", line="true")
    Executor(run_id=RUN, flow=flow, state=path).run()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def copy_of(source: Path, folder: Path) -> Path:
    """A copy at rest, for one test."""
    target = folder / "x.db"
    shutil.copy(source, target)
    return target


def redrive_here(*words: str) -> int:
    """Run a command in this process; an exception that is no sentence fails the test."""
    with pytest.raises(SystemExit) as left, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["redrive", *words])
        main.main()
    return int(left.value.code or 0)
