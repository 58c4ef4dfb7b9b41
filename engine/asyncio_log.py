"""Writes each record that asyncio logs in a process of redrive as one line where the process reports.

These are exceptions that nobody retrieved, errors in callbacks and of transports, and slow callbacks in debug mode.
Python by itself would write them on stderr as they are, with secrets, control sequences and all.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import TypeVar

from .domain.text import printable

LINE_CHARACTERS_MAX = 4000

T = TypeVar("T")
WriteLine = Callable[[str], object]  # gets a line without its newline
Mask = Callable[[str], str]


def run_with_log(coroutine: Coroutine[object, object, T], write: WriteLine | None = None) -> T:
    """Do what ``asyncio.run`` does, in a process of redrive."""
    log_asyncio(write)
    return asyncio.run(coroutine)


def log_asyncio(write: WriteLine | None = None, mask: Mask | None = None) -> None:
    """Write what asyncio logs from now on as lines, by default on stderr.

    ``mask`` removes secrets; by default the passwords of URLs. An argument that is not given leaves what an earlier
    call has set: after a run its secrets are still in memory.
    """
    _handler.write, _handler.mask = write or _handler.write, mask or _handler.mask
    logger = logging.getLogger("asyncio")
    logger.addHandler(_handler)
    logger.propagate = False  # a flow may have configured the root logger, which would write the record as it is


def print_line(line: str) -> None:
    """Print a line on stderr."""
    print(f"redrive: {line}", file=sys.stderr, flush=True)


class _LineHandler(logging.Handler):
    """Writes each record as a line."""

    def __init__(self) -> None:
        super().__init__()
        self.write: WriteLine = print_line
        self.mask: Mask = _mask_urls

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. A failure here must not end what asyncio reports about."""
        try:
            self.write(f"asyncio: {_one_line(self.mask(self.format(record)))}")
        except Exception:
            return  # stderr is closed or its disk is full: there is no other place


def _mask_urls(text: str) -> str:
    from .core.secret_mask import SecretMask  # here, because most processes log nothing

    return SecretMask().text(text)


def _one_line(text: str) -> str:
    stripped = (line.strip() for line in text.splitlines())
    line = printable(" | ".join(part for part in stripped if part.strip("~^ ")))  # without the marks below source lines
    half = LINE_CHARACTERS_MAX // 2
    return line if len(line) <= LINE_CHARACTERS_MAX else f"{line[:half]} ... {line[-half:]}"


_handler = _LineHandler()
