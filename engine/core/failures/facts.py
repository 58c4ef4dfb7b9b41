"""Facts about a failure: its message, the output of a command, and what the exceptions of libraries say."""

from __future__ import annotations

import errno
import re
import shlex
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from signal import Signals
from typing import NamedTuple

import msgspec

from ..outcome import FailureClass
from . import phrases
from .tables import DECISIVE_EXITS, HTTP, PROGRAM_EXITS, sqlstate_class

# --- Names and messages of errors, and what they have in common with others of their kind ----------------------------


_MESSAGE_MAX = 200  # characters
_COMMAND_MAX = 2000

_VARIABLE_PARTS = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"(?<!\w)(?:'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`)"), "<text>"),
    (re.compile(r"(?<![\w.<])(?:[A-Za-z]:)?[\\/][^\s:,;)\]]+"), "<path>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"), "<hex>"),
    (re.compile(r"\d+"), "<n>"),
    (re.compile(r"\s+"), " "),
)
#: In a command line the texts and the paths say what is done: only its ids and numbers vary.
_VARIABLE_WORDS = tuple(row for row in _VARIABLE_PARTS if row[1] not in ("<text>", "<path>"))


def normalize_message(message: str) -> str:
    """Replace the variable parts of a message: numbers, quoted text, paths, ids."""
    return _replaced(message[: 10 * _MESSAGE_MAX], _VARIABLE_PARTS)[:_MESSAGE_MAX]


def normalize_command(command: str) -> str:
    """Replace the variable parts of a command line: numbers and ids."""
    return _replaced(command[:_COMMAND_MAX], _VARIABLE_WORDS)


def _replaced(text: str, rows: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, stand_in in rows:
        text = pattern.sub(stand_in, text)
    return text.strip()


def type_name(error: BaseException) -> str:
    """Return ``module.qualname`` of an exception's class; builtins without their module."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return ``str(error)`` with its notes (``add_note``), or a substitute if its ``__str__`` fails."""
    try:
        return "; ".join([str(error), *getattr(error, "__notes__", ())])
    except Exception as unprintable:
        return f"<{type(error).__name__} without a message: its __str__ raised {type(unprintable).__name__}>"


# --- Programs --------------------------------------------------------------------------------------------------------
#
# Classify a program that failed by its exit code, by the significant line of its output, and by its command line.
#
# The exit code alone says little: after ``set -e``, in a pipeline or in a wrapper it is that of any program. So a line
# of the output comes first: the last one that names an error, without those that only explain or follow it.


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
    if signal_name(exit_code - 128) is not None and not _is_error(line):  # as a shell reports it
        line = ""  # what it wrote when the signal came
    text = command if command is None or isinstance(command, str) else shlex.join(map(str, command))
    status = _group(re.search(phrases.HTTP_STATUSES, line, re.IGNORECASE))
    return ProgramEnd(exit_code, line, text, None if status is None else int(status), _sqlstate_in(line, text or ""))


def signal_name(number: int) -> str | None:
    """Return the name of a signal; None for a number that is none."""
    return Signals(number).name if number in set(Signals) else None


def describe_exit_signal(end: ProgramEnd) -> str:
    """Return what a signal did to a program of a line, as a shell reports it; empty if none ended it."""
    name, programs = signal_name(end.exit_code - 128), programs_of(end.command or "")
    if name is None:
        return ""
    if name != "SIGPIPE" or "|" not in (end.command or ""):
        return f"ended by {name}"
    first, last = programs if len(programs) == 2 else ("a program", "the one after it in the pipe")
    return f"{first} was ended by SIGPIPE, because {last} had read enough"


def error_line(output: str) -> str:
    """Return the line of an output that names the error; empty if there is no output."""
    lines = [line.rstrip() for line in _ESCAPES.sub("", output).splitlines()]
    telling = [place for place, line in enumerate(lines) if line.strip() and not re.search(phrases.CONSEQUENCES, line)]
    marked = [place for place in telling if _is_error(lines[place])]
    found = next(iter(marked[-1:] or telling[-1:]), None)
    raised = _raised_at(lines)
    if raised in telling and (found is None or found >= raised):
        found = raised  # the lines below it belong to its message
    if found is None:
        return next((line.strip() for line in reversed(lines) if line.strip(" \t~^-")), "")[:_LINE_CHARACTERS]
    return lines[found].strip()[:_LINE_CHARACTERS]


def _is_error(line: str) -> bool:
    return bool(re.search(phrases.ERROR_MARKS, line, re.IGNORECASE)) and not re.search(
        phrases.NO_ERRORS, line, re.IGNORECASE
    )


def _raised_at(lines: Sequence[str]) -> int | None:
    """Return the place of the exception below the last traceback of Python."""
    heads = [place for place, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if not heads:
        return None
    return next((place for place in range(heads[-1] + 1, len(lines)) if lines[place][:1].strip()), None)


class Classification(msgspec.Struct, frozen=True):
    """The class of a failure, and what else is known of it."""

    failure_class: FailureClass
    retry_after_seconds: float | None = None
    diagnostic: str | None = None
    is_by_text: bool = False  # only the text of a program's output decided


def classify_program(end: ProgramEnd) -> Classification | None:
    """Classify a program's failure: by the text of its significant line first, then by its exit code.

    None: no table knows it.
    """
    if end.exit_code in DECISIVE_EXITS:
        return None
    if end.status is not None:
        found = HTTP.get(end.status, FailureClass.AMBIGUOUS)
        return Classification(found, is_by_text=True)
    if end.sqlstate is not None and (by_state := sqlstate_class(end.sqlstate, end.line)) is not None:
        return Classification(by_state, is_by_text=True)
    for pattern, failure_class in phrases.LINE_CLASSES:
        if re.search(pattern, end.line, re.IGNORECASE):
            return Classification(failure_class, is_by_text=True)
    for program in _programs_that_may_have_ended(end):
        if (by_exit := PROGRAM_EXITS.get(program, {}).get(end.exit_code)) is not None:
            return Classification(by_exit)
    return None


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


def _sqlstate_in(line: str, command: str) -> str | None:
    for pattern in phrases.SQLSTATES.values():
        if found := re.search(pattern, line):
            return _group(found)
    if not re.search(phrases.POSTGRES_LINE, line) and phrases.POSTGRES_PROGRAMS.isdisjoint(programs_of(command)):
        return None
    return next((sqlstate for pattern, sqlstate in phrases.POSTGRES_MESSAGES if re.search(pattern, line)), None)


def _group(match: re.Match[str] | None) -> str | None:
    return None if match is None else match[match.lastindex or 0]


# --- Read facts about a failure from the exceptions of other libraries, without importing those libraries ------------
#
# Exceptions are inspected by the shape of their attributes. No function raises or blocks: a response body is read only
# if the library has fetched it already, because reading a socket now would delay the report of the failure.


DIAGNOSTIC_MAX = 4000  # characters
_MISSING = object()


class ErrorFacts(msgspec.Struct, frozen=True):
    """Facts about one exception, in the terms of the tables."""

    names: tuple[tuple[str, ...], ...] = ()  # for each class of the exception, its own first: all spellings
    status: int | None = None  # HTTP
    retry_after: str | None = None
    date: str | None = None  # the Date of the response, for a Retry-After with a date
    grpc: str | None = None
    sqlstate: str | None = None
    sqlite: str | None = None
    errno: str | None = None  # its name, as "ENOSPC"
    exit_code: int | None = None  # of a program that the task ran; negative: the signal
    program: ProgramEnd | None = None  # that program
    diagnostic: str | None = None

    def has_type_name(self, name: str) -> bool:
        """True if the exception is of this class: "Busy", "mylib.Busy" or "mylib.errors.Busy"."""
        return any(name in spellings for spellings in self.names)


def extract_facts(error: BaseException) -> ErrorFacts:
    """Read all facts of one exception. Never raises."""
    response = safe_attribute(error, "response")
    headers = safe_attribute(error if response is None else response, "headers")
    status = _status(error, response)
    grpc, details = _grpc(error)
    program = _program(error)
    return ErrorFacts(
        names=tuple(spellings_of(f"{kind.__module__}.{kind.__qualname__}") for kind in type(error).__mro__),
        status=status,
        retry_after=_header(headers, "Retry-After") if status is not None else None,
        date=_header(headers, "Date") if status is not None else None,
        grpc=grpc,
        sqlstate=_sqlstate(error),
        sqlite=_text(safe_attribute(error, "sqlite_errorname")),
        errno=_errno(error),
        exit_code=None if program is None else program.exit_code,
        program=program,
        diagnostic=_diagnostic(error, response, status, details),
    )


def clip(text: str, limit: int = DIAGNOSTIC_MAX) -> str:
    """Cut a text to ``limit`` characters: its start and its end, with a note on the characters left out."""
    if len(text) <= limit:
        return text
    half = (limit - 60) // 2  # leaves room for the note, so that a text is not cut twice
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def safe_attribute(owner: object, name: str, default: object = None) -> object:
    """Return an attribute; ``default`` if it is missing or its property raises."""
    try:
        return getattr(owner, name, default)
    except Exception:
        return default


def spellings_of(name: str) -> tuple[str, ...]:
    """Return ``mylib.errors.Busy``, ``mylib.Busy`` and ``Busy`` for the first; a builtin may lack its module."""
    name = name if "." in name else f"builtins.{name}"
    last = name.rpartition(".")[2]
    return name, f"{name.partition('.')[0]}.{last}", last


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _status(error: BaseException, response: object) -> int | None:
    """requests, httpx: response.status_code; aiohttp: status; urllib: code."""
    candidates = [safe_attribute(response, "status_code"), safe_attribute(response, "status")]
    if safe_attribute(error, "headers", _MISSING) is not _MISSING:  # otherwise the number is not an HTTP status
        candidates += [safe_attribute(error, name) for name in ("status_code", "status", "code")]
    return next((one for one in candidates if isinstance(one, int) and 100 <= one <= 599), None)


def _header(headers: object, name: str) -> str | None:
    get = safe_attribute(headers, "get")
    if not callable(get):
        return None
    try:
        return _text(get(name)) or _text(get(name.lower()))
    except Exception:  # a third-party mapping without key lookup
        return None


def _grpc(error: BaseException) -> tuple[str | None, str | None]:
    """The status code's name and the server's sentence. Both are methods; other libraries have plain ``code``s."""
    code, details = safe_attribute(error, "code"), safe_attribute(error, "details")
    if not callable(code) or not callable(details):
        return None, None
    try:
        return _text(safe_attribute(code(), "name")), _text(details())
    except Exception:  # the exception only resembles one of gRPC
        return None, None


def _sqlstate(error: BaseException) -> str | None:
    """psycopg and asyncpg: sqlstate; psycopg2: pgcode; SQLAlchemy: that of its ``orig``."""
    for holder in (error, safe_attribute(error, "orig")):
        for name in ("sqlstate", "pgcode"):
            value = _text(safe_attribute(holder, name))
            if value is not None and len(value) == 5:
                return value
    return None


def _errno(error: BaseException) -> str | None:
    """The name of the error number; that of the SSL library and of the resolver are numbers of their own."""
    if not isinstance(error, OSError) or not isinstance(error.errno, int):
        return None
    if type(error).__module__ in ("ssl", "socket"):
        return _text(safe_attribute(error, "reason")) or str(error.errno)
    return errno.errorcode.get(error.errno, str(error.errno))


def _program(error: BaseException) -> ProgramEnd | None:
    """The program of a ``subprocess.CalledProcessError`` or of an error like it."""
    exit_code, command = safe_attribute(error, "returncode"), safe_attribute(error, "cmd")
    if not isinstance(exit_code, int):
        return None
    known = command if isinstance(command, (str, list, tuple)) else None
    return read_program_end(exit_code, _output(error) or "", known)


#: Packages that fetch; their own frames are between the caller and the parser.
_FETCHING = frozenset(["aiohttp", "httpx", "requests", "urllib3"])


def is_unfinished_answer(error: BaseException) -> bool:
    """Return whether JSON could not be read for a reason that may pass: nothing, half a text, a page instead.

    Also if a library that fetches raised the error: a server can answer otherwise the next time, a file does not.
    """
    document, position = safe_attribute(error, "doc"), safe_attribute(error, "pos")
    if isinstance(document, str) and isinstance(position, int):
        text = document.strip()
        if text[:1] in ("", "<") or position >= len(document.rstrip()) or "Unterminated" in message_of(error):
            return True
    modules = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.partition(".")[0] in _FETCHING for module in modules)


# --- diagnostic -------------------------------------------------------------------------------------------------


def _diagnostic(error: BaseException, response: object, status: int | None, details: str | None) -> str | None:
    """Return the first text among: the task, the response body, the server, the database, the input."""
    own = _text(safe_attribute(error, "diagnostic"))
    texts = (own, _body(error, response), details, _database(error), _output(error), _input(error))
    text = next((text for text in texts if text), None)
    if status is not None and own is None:
        text = f"HTTP {status}" + (f"\n{text}" if text else "")
    return None if text is None else clip(text)


_BODY_SECONDS = 0.2


def read_rest(error: BaseException) -> str:
    """Return what urllib has left unread of a response, as far as it comes at once; empty if there is none.

    Call it where nobody else reads it any more.
    """
    response = safe_attribute(error, "fp")
    connection = safe_attribute(safe_attribute(safe_attribute(response, "fp"), "raw"), "_sock")
    read, limit = safe_attribute(response, "read1"), safe_attribute(connection, "settimeout")
    if not callable(read) or not callable(limit):
        return ""
    try:
        limit(_BODY_SECONDS)
        data = read(4 * DIAGNOSTIC_MAX)
    except Exception:  # it does not come, or has been read and closed
        return ""
    return data.decode(errors="replace") if isinstance(data, bytes) else ""


def _body(error: BaseException, response: object) -> str | None:
    for holder in (response, error):
        fields = safe_attribute(holder, "__dict__")  # stored values only: a property could fetch
        if not isinstance(fields, Mapping):
            continue
        for name in ("_content", "content", "text", "body"):
            value = fields.get(name)
            if isinstance(value, bytes) and value:
                return value[: 4 * DIAGNOSTIC_MAX].decode(errors="replace")
            if isinstance(value, str) and value:
                return value
    return None


def _database(error: BaseException) -> str | None:
    diagnosis = safe_attribute(error, "diag")
    parts = [_text(safe_attribute(diagnosis, name)) for name in ("message_primary", "message_detail", "message_hint")]
    return "\n".join(part for part in parts if part) or _text(safe_attribute(error, "sqlite_errorname"))


def _output(error: BaseException) -> str | None:
    """The output of a program that the task ran."""
    for name in ("stderr", "stdout"):
        output = safe_attribute(error, name)
        if isinstance(output, bytes):
            output = output.decode(errors="replace")
        if isinstance(output, str) and output.strip():
            return output
    return None


def _input(error: BaseException) -> str | None:
    """The position in the input where a parser stopped."""
    if isinstance(error, UnicodeDecodeError):
        around = error.object[max(0, error.start - 20) : error.end + 20]
        return f"{message_of(error)}\nnear {bytes(around)!r}"
    document, position = safe_attribute(error, "doc"), safe_attribute(error, "pos")
    if isinstance(document, str) and isinstance(position, int):
        return f"{message_of(error)}\nnear {document[max(0, position - 40) : position + 40]!r}"
    return None
