"""Prints the output of a flow file's import: lines on stderr, none of which acts on a terminal.

Never on stdout, where a command prints its own result.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ..domain.text import printable

LINE_CHARACTERS_MAX = 4096  # a longer line becomes several
_PIECE_BYTES = 65536


class ImportOutput:
    """Prints the output of an import, line by line as it comes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def feed(self, data: bytes) -> None:
        """Print the lines that are complete."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            _print_line(line)
        if len(self._rest) > LINE_CHARACTERS_MAX:  # the decoder may hold the first bytes of the next character
            _print_line(self._rest)
            self._rest = ""

    def close(self) -> None:
        """Print a last line without its end."""
        rest, self._rest = self._rest + self._decoder.decode(b"", True), ""
        if rest:
            _print_line(rest)


def _print_line(line: str) -> None:
    if sys.stderr is not None:  # closed by the parent process
        with suppress(OSError):  # nobody reads it
            print(f"the import printed: {printable(line)}", file=sys.stderr)


@contextmanager
def printed_afterwards() -> Iterator[None]:
    """Print at the end of the block what this process printed in it, also by programs that it started and by C code."""
    held = os.memfd_create("output")
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        _redirect(dict.fromkeys(saved, held))
        yield
    finally:
        _redirect(saved)
        os.lseek(held, 0, os.SEEK_SET)
        output = ImportOutput()
        while data := os.read(held, _PIECE_BYTES):
            output.feed(data)
        output.close()
        for descriptor in (held, *saved.values()):
            os.close(descriptor)


def _redirect(targets: Mapping[int, int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    for number, target in targets.items():
        os.dup2(target, number)
