"""``redrive report``: a run as one HTML file or as Markdown."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from ...engine.errors import RedriveError
from ..app.theme import load_theme
from ..feed.report import read_report
from ..present.report import ReportData, report_markdown
from ..present.report_html import PageColours, report_html
from ..sessions.open import with_session
from ..sessions.session import Session
from ..sessions.ssh_options import Endpoint
from ..text.durations import format_bytes
from ..text.printing import echo


def write_report(endpoint: Endpoint, run_id: str | None, path: str | None, *, is_markdown: bool) -> int:
    """Write the report of a run to ``path``; None: print it."""
    if path is None and not is_markdown and sys.stdout.isatty():
        raise click.UsageError("HTML is not for a terminal: name a file with -o night.html, or say --markdown")

    async def read(session: Session) -> ReportData:
        return await read_report(session, run_id, time.time_ns() // 1000)

    data = with_session(endpoint, read)
    text = report_markdown(data) if is_markdown else report_html(data, _colours("light"), _colours("dark"))
    if path is None:
        echo(text, nl=False)
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RedriveError(f"{path} cannot be written: {error.strerror}") from error
    echo(f"{path}: {format_bytes(len(text.encode()))}")
    return 0


def _colours(name: str) -> PageColours:
    theme = load_theme(name)
    return PageColours(theme.background, theme.foreground, theme.styles)
