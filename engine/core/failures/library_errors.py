"""What the exceptions of other libraries know about a failure, read without importing those libraries.

Exceptions are asked by the shape of their attributes. Nothing here may raise, and nothing may wait: a body is taken
only where the library has read it already, because reading a socket now would hang the report of the failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fingerprint import message_of

DIAGNOSTIC_MAX = 4000  # characters
_MISSING = object()


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What one exception says in the languages that the tables know."""

    names: tuple[tuple[str, ...], ...] = ()  # of each class, the exception's own first: every way to write it
    status: int | None = None  # HTTP
    retry_after: str | None = None
    date: str | None = None  # the answer's own date, to read a Retry-After that is one
    grpc: str | None = None
    sqlstate: str | None = None
    sqlite: str | None = None
    exit_code: int | None = None  # of a program that the task ran; negative: the signal
    diagnostic: str | None = None

    def has_type_name(self, name: str) -> bool:
        """Tell whether the exception is of this class: "Busy", "mylib.Busy" or "mylib.errors.Busy"."""
        return any(name in spellings for spellings in self.names)


def extract_facts(error: BaseException) -> ErrorFacts:
    """Ask one exception for all that it knows. Never raises."""
    response = safe_attribute(error, "response")
    headers = safe_attribute(error if response is None else response, "headers")
    status = _status(error, response)
    grpc, details = _grpc(error)
    exit_code = safe_attribute(error, "returncode")
    return ErrorFacts(
        names=tuple(_spellings(kind) for kind in type(error).__mro__),
        status=status,
        retry_after=_header(headers, "Retry-After") if status is not None else None,
        date=_header(headers, "Date") if status is not None else None,
        grpc=grpc,
        sqlstate=_sqlstate(error),
        sqlite=_text(safe_attribute(error, "sqlite_errorname")),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        diagnostic=_diagnostic(error, response, status, details),
    )


def clip(text: str, limit: int = DIAGNOSTIC_MAX) -> str:
    """Return a text of at most ``limit`` characters: its beginning and its end, with a word on what is left out."""
    if len(text) <= limit:
        return text
    half = (limit - 60) // 2  # the word on it needs room too, or a text clipped twice would count its own mark
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def safe_attribute(thing: object, name: str, default: object = None) -> object:
    """An attribute, or None. A property of a foreign class may raise whatever it likes: then it does not know."""
    try:
        return getattr(thing, name, default)
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
    if safe_attribute(error, "headers", _MISSING) is not _MISSING:  # else a number on the exception is not one of HTTP
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
    except Exception:  # a foreign mapping that does not know how to be asked
        return None


def _grpc(error: BaseException) -> tuple[str | None, str | None]:
    """The status code's name and the server's sentence. Both are methods; other libraries have plain ``code``s."""
    code, details = safe_attribute(error, "code"), safe_attribute(error, "details")
    if not callable(code) or not callable(details):
        return None, None
    try:
        return _text(safe_attribute(code(), "name")), _text(details())
    except Exception:  # an exception that only looks like one of gRPC
        return None, None


def _sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        value = _text(safe_attribute(error, name))
        if value is not None and len(value) == 5:
            return value
    return None


# --- the sentence that helps ------------------------------------------------------------------------------------


def _diagnostic(error: BaseException, response: object, status: int | None, details: str | None) -> str | None:
    """The first that has something to say: the task, the answer's body, the server, the database, the input."""
    own = _text(safe_attribute(error, "diagnostic"))
    texts = (own, _body(error, response), details, _database(error), _output(error), _input(error))
    text = next((text for text in texts if text), None)
    if status is not None and own is None:
        text = f"HTTP {status}" + (f"\n{text}" if text else "")
    return None if text is None else clip(text)


def _body(error: BaseException, response: object) -> str | None:
    for holder in (response, error):
        fields = safe_attribute(holder, "__dict__")  # what is stored, not what a property would fetch
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
    """What a program that the task ran said last."""
    for name in ("stderr", "stdout"):
        output = safe_attribute(error, name)
        if isinstance(output, bytes):
            output = output.decode(errors="replace")
        if isinstance(output, str) and output.strip():
            return output
    return None


def _input(error: BaseException) -> str | None:
    """The place in the input where a parser stopped."""
    if isinstance(error, UnicodeDecodeError):
        around = error.object[max(0, error.start - 20) : error.end + 20]
        return f"{message_of(error)}\nnear {bytes(around)!r}"
    document, position = safe_attribute(error, "doc"), safe_attribute(error, "pos")
    if isinstance(document, str) and isinstance(position, int):
        return f"{message_of(error)}\nnear {document[max(0, position - 40) : position + 40]!r}"
    return None
