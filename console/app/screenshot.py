"""Saves the screen as a picture (SVG) and as text."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Protocol

from ..text.pieces import Role
from ..text.text import one_line

_WEB_FONT = re.compile(r"@font-face\s*\{[^}]*\}")


class PicturedConsole(Protocol):
    """The console, as far as a picture needs it."""

    def export_screenshot(self, *, title: str | None = None) -> str:
        """The screen as SVG."""

    def screen_text(self) -> str:
        """The screen as text."""

    def show_message(self, text: str, role: Role = Role.TEXT) -> None:
        """Show a sentence in the last row."""


def save_screen(console: PicturedConsole, folder: Path | None = None) -> None:
    """Save the screen in ``folder`` (default: the current one) and say where. Files are never overwritten."""
    folder, stem = folder or Path.cwd(), f"redrive-{time.strftime('%Y%m%dT%H%M%S')}"
    picture = _WEB_FONT.sub("", console.export_screenshot(title="redrive"))  # the reader's font: nothing is loaded
    try:
        for suffix, text in ((".svg", picture), (".txt", f"{console.screen_text()}\n")):
            with (folder / f"{stem}{suffix}").open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        console.show_message(one_line(f"the screen was not saved in {folder}: {error.strerror}"), Role.WARNING)
        return
    console.show_message(one_line(f"the screen is saved: {folder / stem}.svg and .txt"))
