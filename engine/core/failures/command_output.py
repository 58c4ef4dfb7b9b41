"""Classify a program that failed by its exit code, by the significant line of its output, and by its command line.

The exit code alone says little: after ``set -e``, in a pipeline or in a wrapper it is that of any program. So a line
of the output comes first: the last one that names an error, without those that only explain or follow it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from ..outcome import FailureClass
from .command_tables import (
    CONSEQUENCES,
    DECISIVE_EXITS,
    ERROR_MARKS,
    HTTP_STATUSES,
    LINE_CLASSES,
    NO_ERRORS,
    POSTGRES_MESSAGES,
    PROGRAM_EXITS,
    SQLSTATES,
)
from .error_tables import HTTP, sqlstate_class

_OUTPUT_CHARACTERS = 8192  # the end, where errors are; a program may have written gigabytes
_LINE_CHARACTERS = 500
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last):"


class ProgramEnd(NamedTuple):
    """The end of a program that failed. ``command`` None: unknown; ``status`` and ``sqlstate``: from its output."""

    exit_code: int
    line: str = ""  # the significant line; empty: there was no output
    command: str | None = None
    status: int | None = None
    sqlstate: str | None = None


def read_program_end(exit_code: int, output: str, command: str | Sequence[object] | None = None) -> ProgramEnd:
    """Return what is known of a program. ``output``: its end, where the error is; ``command``: a line or its words."""
    line = error_line(output[-_OUTPUT_CHARACTERS:])
    text = command if command is None or isinstance(command, str) else shlex.join(map(str, command))
    status = _group(re.search(HTTP_STATUSES, line, re.IGNORECASE))
    return ProgramEnd(exit_code, line, text, None if status is None else int(status), _sqlstate(line))


def error_line(output: str) -> str:
    """Return the line of an output that names the error; empty if there is no output."""
    lines = [line.rstrip() for line in _ESCAPES.sub("", output).splitlines()]
    telling = [place for place, line in enumerate(lines) if line.strip() and not re.search(CONSEQUENCES, line)]
    marked = [place for place in telling if _is_error(lines[place])]
    found = next(iter(marked[-1:] or telling[-1:]), None)
    raised = _raised_at(lines)
    if raised in telling and (found is None or found >= raised):
        found = raised  # the lines below it belong to its message
    if found is None:
        return next((line.strip() for line in reversed(lines) if line.strip(" \t~^-")), "")[:_LINE_CHARACTERS]
    return lines[found].strip()[:_LINE_CHARACTERS]


def _is_error(line: str) -> bool:
    return bool(re.search(ERROR_MARKS, line, re.IGNORECASE)) and not re.search(NO_ERRORS, line, re.IGNORECASE)


def _raised_at(lines: Sequence[str]) -> int | None:
    """Return the place of the exception below the last traceback of Python."""
    heads = [place for place, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not heads:
        return None
    return next((place for place in range(heads[-1] + 1, len(lines)) if lines[place][:1].strip()), None)


def classify_program(end: ProgramEnd) -> tuple[FailureClass, str]:
    """Return the class of a program's failure and what decided, in words; UNCLASSIFIED if no table knows it."""
    if end.exit_code not in DECISIVE_EXITS:
        if end.status is not None:
            return HTTP.get(end.status, FailureClass.AMBIGUOUS), f"HTTP {end.status} in its output"
        if end.sqlstate is not None and (found := sqlstate_class(end.sqlstate, end.line)) is not None:
            return found, f"SQLSTATE {end.sqlstate} in its output"
        for pattern, failure_class in LINE_CLASSES:
            if match := re.search(pattern, end.line, re.IGNORECASE):
                return failure_class, f"{match[0]!r} in its output"
        for program in _programs_that_may_have_ended(end):
            if (found := PROGRAM_EXITS.get(program, {}).get(end.exit_code)) is not None:
                return found, f"exit status {end.exit_code} of {program}"
    return FailureClass.UNCLASSIFIED, ""


def _programs_that_may_have_ended(end: ProgramEnd) -> list[str]:
    """The program that the line begins with, and the last one of the command: the exit code is usually its own."""
    named = re.match(r"([a-z_]+)(?:\[\d+\])?: ", end.line)
    programs = programs_of(end.command or "")
    return [*([named[1]] if named else []), *programs[-1:]]


#: Words before the program that is meant: of the shell, and programs that run another one.
_KEYWORDS = frozenset(["!", "{", "do", "done", "else", "exec", "fi", "if", "set", "then", "time", "until", "while"])
_RUNNERS = frozenset(["env", "ionice", "nice", "nohup", "sudo", "timeout"])
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_NO_PROGRAM = re.compile(r"^(?:\w+=.*|-.*|\d+[smhd]?)$")


def programs_of(command: str) -> list[str]:
    """Return the names of the programs in a shell line, in their order; quoted texts are not part of it."""
    found = []
    for part in re.split(r"[|;&\n()]+", _QUOTED.sub("''", command)):
        words = (PurePath(word).name for word in part.split() if not _NO_PROGRAM.match(word))
        program = next((word for word in words if word not in _KEYWORDS | _RUNNERS), None)
        if program is not None:
            found.append(program)
    return found


def _sqlstate(line: str) -> str | None:
    printed = _group(re.search(SQLSTATES, line))
    return printed or next((sqlstate for pattern, sqlstate in POSTGRES_MESSAGES if re.search(pattern, line)), None)


def _group(match: re.Match[str] | None) -> str | None:
    return None if match is None else match[match.lastindex or 0]
