"""Read facts about a failure from the exceptions of other libraries, without importing those libraries.

Exceptions are inspected by the shape of their attributes. No function raises or blocks: a response body is read only if
the library has fetched it already, because reading a socket now would delay the report of the failure.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from .command_output import ProgramEnd, read_program_end
from .messages import message_of

DIAGNOSTIC_MAX = 4000  # characters
_MISSING = object()


@dataclass(frozen=True, slots=True)
class ErrorFacts:
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
        names=tuple(_spellings(kind) for kind in type(error).__mro__),
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


def _spellings(kind: type) -> tuple[str, ...]:
    package = kind.__module__.partition(".")[0]
    return (f"{kind.__module__}.{kind.__qualname__}", f"{package}.{kind.__name__}", kind.__name__)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _status(error: BaseException, response: object) -> int | None:
    """requests, httpx: response.status_code; aiohttp: status; urllib: code."""
    candidates = [safe_attribute(response, "status_code"), safe_attribute(response, "status")]
    if safe_attribute(error, "headers", _MISSING) is not _MISSING:  # otherwise the number is not an HTTP status
        candidates += [safe_attribute(error, name) for name in ("status_code", "status", "code")]
    return next((status for status in map(_as_status, candidates) if status is not None), None)


def _as_status(value: object) -> int | None:
    return int(value) if isinstance(value, int) and 100 <= value <= 599 else None


def _item(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


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


def _body(error: BaseException, response: object) -> str | None:
    for holder in (response, error):
        fields = safe_attribute(holder, "__dict__")  # stored values only: a property could fetch
        for name in ("_content", "content", "text", "body"):
            value = _item(fields, name)
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
