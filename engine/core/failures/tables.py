"""Tables from codes, exception types and texts of programs to failure classes: one table for each kind.

Read by ``classify.py``. The rows of documents 002 and 004 are marked; the others follow RFC 9110, sysexits.h, the
SQLSTATE classes of PostgreSQL and the result codes of SQLite. A row can be overruled for one downstream by a rule
(``classify.py``), because these meanings are honoured unevenly.
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from ..outcome import Failure, FailureClass

# --- Codes and exception types ---------------------------------------------------------------------------------------

_TRANSIENT = FailureClass.TRANSIENT
_PERMANENT = FailureClass.PERMANENT
_AMBIGUOUS = FailureClass.AMBIGUOUS
_VALIDATION = FailureClass.VALIDATION
_AUTH = FailureClass.AUTH
_MEMORY = FailureClass.OUT_OF_MEMORY
_TIMEOUT = FailureClass.TIMEOUT
_UNCLASSIFIED = FailureClass.UNCLASSIFIED

Code = TypeVar("Code", int, str)
Meaning = TypeVar("Meaning")


def by_code(table: Mapping[Meaning, tuple[Code, ...]]) -> dict[Code, Meaning]:
    return {code: meaning for meaning, codes in table.items() for code in codes}


def _errnos(names: str) -> tuple[int, ...]:
    return tuple(getattr(errno, name) for name in names.split())


#: HTTP status codes. Missing: unknown, treated as transient with a small budget.
HTTP = by_code(
    {
        # 429, 503: 004. 52x: a proxy says that the server behind it is down, unreachable or slow.
        _TRANSIENT: (408, 421, 425, 429, 502, 503, 504, 521, 522, 523, 524, 529),
        _PERMANENT: (402, 404, 405, 406, 410, 411, 412, 414, 416, 417, 426, 428, 431, 451, 501, 505, 508),
        _VALIDATION: (400, 413, 415, 422),  # 422: 004
        _AUTH: (401, 403, 407, 511),  # 401, 403: 004
        # 409: a conflict with another write, or with a permanent rule. 500 (004): overloaded, or broken for good.
        _AMBIGUOUS: (409, 423, 424, 500, 507),
    }
)

#: These are a wait and no refusal when they come with Retry-After: rate limits in disguise.
WAITS_WITH_RETRY_AFTER = frozenset([403, 413])

#: gRPC status codes by name.
GRPC = by_code(
    {
        _TRANSIENT: ("DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "ABORTED"),
        _VALIDATION: ("INVALID_ARGUMENT", "OUT_OF_RANGE"),  # a bad request will not fix itself
        _AUTH: ("PERMISSION_DENIED", "UNAUTHENTICATED"),
        _PERMANENT: ("NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "UNIMPLEMENTED", "DATA_LOSS"),
        _AMBIGUOUS: ("CANCELLED", "UNKNOWN"),
    }
)

#: SQLSTATE by its longest prefix that is listed: five characters, or the two of its class.
SQLSTATE = by_code(
    {
        # connection; rollback, as by a deadlock; resources; object in use; lock; operator intervention, as a shutdown
        _TRANSIENT: ("08", "40", "53", "55006", "55P03", "57"),
        # read-only: misdirected to a standby, or meant so; disk full; query cancelled; system and internal errors
        _AMBIGUOUS: ("25006", "53100", "57014", "58", "XX"),
        _VALIDATION: ("22",),  # data exception
        _AUTH: ("28", "42501"),  # invalid authorization, insufficient privilege
        # not supported; 004: a foreign key and other constraints; catalog; schema; syntax or access; program limit
        _PERMANENT: ("0A", "23", "3D", "3F", "42", "54"),
    }
)


def sqlstate_class(sqlstate: str, message: str = "") -> FailureClass | None:
    """Return the class of an SQLSTATE, or None if no row is for it."""
    if sqlstate == "57014" and "statement timeout" in message:  # a query is also cancelled by a user
        return _TRANSIENT
    return longest_prefix(SQLSTATE, sqlstate)


def longest_prefix(table: Mapping[str, FailureClass], value: str) -> FailureClass | None:
    """Return the class of the longest prefix of ``value`` that a table lists."""
    row = max((row for row in table if value.startswith(row)), key=len, default=None)
    return None if row is None else table[row]


#: SQLite's result code by its longest prefix that is listed (extended codes continue with an underscore).
SQLITE = by_code(
    {
        _TRANSIENT: ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
        _AMBIGUOUS: ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN"),
        _MEMORY: ("SQLITE_NOMEM",),
        _VALIDATION: ("SQLITE_MISMATCH", "SQLITE_TOOBIG"),
        _PERMANENT: (
            *("SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_MISUSE"),  # 004: a foreign key; no such table, syntax error
            *("SQLITE_AUTH", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_CORRUPT", "SQLITE_NOTADB"),
        ),
    }
)

#: Exit codes: sysexits.h, timeout(1) and the shell's own.
EXIT_CODES = by_code(
    {
        _TRANSIENT: (68, 69, 71, 75, 124),  # EX_NOHOST, EX_UNAVAILABLE, EX_OSERR (cannot fork), EX_TEMPFAIL; timeout(1)
        _AMBIGUOUS: (66, 74, 76),  # EX_NOINPUT (not there yet, or never), EX_IOERR, EX_PROTOCOL
        _VALIDATION: (65,),  # EX_DATAERR
        # EX_USAGE, EX_NOUSER, EX_OSFILE, EX_CANTCREAT, EX_NOPERM, EX_CONFIG; cannot be executed, not found
        _PERMANENT: (64, 67, 72, 73, 77, 78, 126, 127),
    }
)

#: Signals from an unknown sender. For the executor and the kernel see ``SENDERS``.
SIGNALS = by_code(
    {
        # SIGHUP, SIGINT, SIGKILL, as exit code 137: no code of the task ends itself so; SIGPIPE, SIGTERM
        _TRANSIENT: (1, 2, 9, 13, 15),
        _PERMANENT: (24, 25),  # SIGXCPU, SIGXFSZ
        _UNCLASSIFIED: (3, 4, 5, 6, 7, 8, 11, 31),  # crashes: the fingerprint decides whether they repeat
    }
)

#: Plain OSErrors by number; Python gives many of them a class of their own (EXCEPTIONS).
ERRNOS = by_code(
    {
        _TRANSIENT: _errnos(
            "EAGAIN EBUSY EINTR EMFILE ENFILE ENOBUFS ESTALE ETXTBSY"
            " EHOSTDOWN EHOSTUNREACH ENETDOWN ENETRESET ENETUNREACH"
        ),
        _AMBIGUOUS: _errnos("EIO ENOSPC EDQUOT EADDRINUSE"),
        _PERMANENT: _errnos("EROFS ENAMETOOLONG ENOEXEC ELOOP EXDEV"),
        _MEMORY: _errnos("ENOMEM"),
    }
)

_PSYCOPG = {
    _TRANSIENT: "OperationalError InterfaceError",  # without an SQLSTATE: the connection was lost or never made
    _VALIDATION: "DataError",
    _PERMANENT: "IntegrityError ProgrammingError NotSupportedError",
}
_BY_PACKAGE: dict[str, dict[FailureClass, str]] = {
    "builtins": {
        _TRANSIENT: "ConnectionError TimeoutError BlockingIOError InterruptedError",  # 004: the first one
        _AMBIGUOUS: "FileNotFoundError",  # not there yet, or never
        _PERMANENT: "IsADirectoryError NotADirectoryError PermissionError ImportError SyntaxError NotImplementedError",
        _VALIDATION: "UnicodeError",
        _MEMORY: "MemoryError",
    },
    "json": {_VALIDATION: "JSONDecodeError"},  # 004: permanent for that row
    "xml": {_VALIDATION: "ParseError"},  # a SyntaxError, but of what was read
    "lxml": {_VALIDATION: "XMLSyntaxError"},
    "socket": {_TRANSIENT: "gaierror"},  # 002: a DNS flap
    "ssl": {
        _TRANSIENT: "SSLEOFError SSLZeroReturnError",
        _AMBIGUOUS: "SSLError",
        _PERMANENT: "SSLCertVerificationError",
    },
    "asyncio": {_TRANSIENT: "IncompleteReadError"},
    "http": {_TRANSIENT: "IncompleteRead BadStatusLine"},
    "concurrent": {_AMBIGUOUS: "BrokenProcessPool"},
    "subprocess": {_TRANSIENT: "TimeoutExpired"},
    "requests": {
        _TRANSIENT: "ConnectionError Timeout ChunkedEncodingError",
        _AMBIGUOUS: "ContentDecodingError JSONDecodeError SSLError",  # often a proxy's page instead of the answer
        _PERMANENT: "TooManyRedirects InvalidURL MissingSchema InvalidSchema",
    },
    "urllib3": {_TRANSIENT: "HTTPError", _AMBIGUOUS: "SSLError", _PERMANENT: "LocationValueError"},
    "httpx": {
        _TRANSIENT: "TimeoutException NetworkError RemoteProtocolError ProxyError",
        _AMBIGUOUS: "DecodingError",
        _PERMANENT: "LocalProtocolError UnsupportedProtocol TooManyRedirects InvalidURL",
    },
    "aiohttp": {
        _TRANSIENT: "ClientConnectionError ClientPayloadError",
        _AMBIGUOUS: "ClientSSLError",
        _PERMANENT: "ClientConnectorCertificateError InvalidURL",
    },
    "botocore": {_TRANSIENT: "ConnectionError HTTPClientError"},
    "sqlite3": {
        _VALIDATION: "DataError",
        _PERMANENT: "IntegrityError ProgrammingError",
        _AMBIGUOUS: "OperationalError",
    },
    "psycopg": _PSYCOPG,
    "psycopg2": _PSYCOPG,
}

#: Exceptions as "package.Class"; the most specific class of an exception that is listed counts. No library is imported.
#: What is missing stays unclassified on purpose: KeyError, ValueError, ZeroDivisionError are the fingerprint's work.
EXCEPTIONS = {
    f"{package}.{name}": failure_class
    for package, classes in _BY_PACKAGE.items()
    for failure_class, names in classes.items()
    for name in names.split()
}

#: Classes by severity, the most severe first: a group of failures counts as the most severe of its classes.
HARDEST_FIRST = (_AUTH, _PERMANENT, _VALIDATION, _MEMORY, _UNCLASSIFIED, _TIMEOUT, _AMBIGUOUS, _TRANSIENT)


# --- The exit codes of programs --------------------------------------------------------------------------------------
#
# Those of the manual pages (EXIT STATUS of curl, wget, ssh, rsync, psql, aws). A code is only trusted for the program
# that it belongs to; codes with one meaning for all programs are in the tables above. What programs print is in
# ``phrases.py``.


#: Exit codes that no text overrules: EX_TEMPFAIL asks for another try, the shell could not start the program.
DECISIVE_EXITS = frozenset([75, 126, 127])

#: Exit codes by program. Ambiguous codes are left out, as 22 of curl and 8 of wget: there the HTTP status decides.
PROGRAM_EXITS: dict[str, dict[int, FailureClass]] = {
    "curl": by_code(
        {
            # a proxy or a host does not resolve, no connection; HTTP/2 framing, a part of a file, timeout, TLS; an
            # empty reply, sending, receiving, an HTTP/2 stream, HTTP/3
            _TRANSIENT: (5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92, 95),
            # protocol, URL; redirects; a certificate that is not trusted, or cannot be read; no such file there
            _PERMANENT: (1, 3, 47, 60, 77, 78),
            _AUTH: (9, 67),  # access denied by the server, login denied
            _AMBIGUOUS: (23,),  # writing failed: the disk is full, or the reader of the pipe is gone
        }
    ),
    "wget": by_code(
        {
            _TRANSIENT: (4,),  # network failure
            _PERMANENT: (2, 5),  # wrong options; the certificate of the server is not trusted
            _AUTH: (6,),  # user name or password refused
            _AMBIGUOUS: (3, 7),  # file I/O, protocol error
        }
    ),
    "rsync": by_code(
        {
            # socket I/O, a lost connection; interrupted; source files vanished meanwhile; timeouts; the ssh below it
            _TRANSIENT: (10, 12, 20, 24, 30, 35, 255),
            _PERMANENT: (1, 2, 4),  # usage, protocol incompatibility, unsupported action
            # the daemon refused, or is full; file I/O; a file was unreadable or missing
            _AMBIGUOUS: (5, 11, 23),
        }
    ),
    "ssh": {255: _TRANSIENT},  # of ssh itself; otherwise the code is that of the remote program
    "scp": {255: _TRANSIENT},
    "sftp": {255: _TRANSIENT},
    "psql": {2: _TRANSIENT},  # the connection was lost or never made
    "pg_isready": {1: _TRANSIENT, 2: _TRANSIENT, 3: _PERMANENT},  # starting up, no answer, wrong options
    "aws": {252: _PERMANENT, 253: _PERMANENT},  # wrong syntax, wrong configuration
}


# --- Determinism -----------------------------------------------------------------------------------------------------
#
# Which errors repeat by their nature: tables of exception types, and the rule of poison in one sentence.
#
# An error of the program (a wrong name, a division by zero) comes again as long as the code and its input stay. An
# error of shape says that the data that was read is not as expected: a missing key, a page instead of JSON. It comes
# again as well, unless the other side answers otherwise the next time, as after its maintenance. All other types may
# heal.


#: The rule of ``decide.py``, for people. The README, the manual and ``RetryPolicy`` use the same words (a test).
POISON_RULE = (
    "An error that repeats by its type (KeyError, TypeError, ZeroDivisionError, ...) is poison at the second"
    " identical failure in a row with nothing changed between; an error about what was read (KeyError,"
    " JSONDecodeError, ...) in a task with a downstream is poison only if such failures span `poison_seconds`;"
    " once three siblings are poison by one failure, that failure is poison at once"
)


class Nature(Enum):
    """The reason why a failure comes again."""

    PROGRAM = "program"
    SHAPE = "shape"  # of what was read


#: Errors of the program, with their subclasses: as "package.Class", as in ``EXCEPTIONS``.
PROGRAM_ERRORS = frozenset(
    [
        "builtins.ArithmeticError",
        "builtins.AttributeError",
        "builtins.ImportError",
        "builtins.NameError",
        "builtins.NotImplementedError",
        "builtins.RecursionError",
        "builtins.SyntaxError",
        "builtins.TypeError",
    ]
)

#: Errors about the shape of what was read, with their subclasses: UnicodeDecodeError and pydantic's are ValueErrors,
#: KeyError and IndexError are LookupErrors.
SHAPE_ERRORS = frozenset(
    [
        *("builtins.LookupError", "builtins.StopIteration", "builtins.ValueError", "decimal.InvalidOperation"),
        *("json.JSONDecodeError", "_csv.Error", "configparser.Error", "yaml.YAMLError", "struct.error"),
        *("xml.ParseError", "xml.ExpatError", "xml.SAXException", "lxml.XMLSyntaxError", "_pickle.UnpicklingError"),
        *("_lzma.LZMAError", "gzip.BadGzipFile", "tarfile.TarError", "zipfile.BadZipFile", "zlib.error"),
        *("google.DecodeError", "jsonschema.ValidationError", "marshmallow.ValidationError", "msgspec.MsgspecError"),
        "polars.PolarsError",
    ]
)

#: Errors of the program that are about the shape if their message fits: None, or a text in place of a mapping.
SHAPE_MESSAGES: Mapping[str, str] = {
    "builtins.TypeError": r"NoneType|indices must be|object is not (?:subscriptable|iterable)",
    "builtins.AttributeError": r"^'(?:NoneType|bool|bytes|dict|float|int|list|str)' object has no attribute",
}

#: The classes of which a type is evidence. A rule of the flow may name another class for it.
_JUDGED_BY_TYPE = frozenset([FailureClass.UNCLASSIFIED, FailureClass.VALIDATION, FailureClass.AMBIGUOUS])


def nature_of(failure: Failure) -> Nature | None:
    """Return why a failure comes again by its type; None: it may heal."""
    if failure.failure_class not in _JUDGED_BY_TYPE:
        return None
    if "signal" in failure.facts:  # a crash, as by SIGSEGV and SIGABRT
        return Nature.PROGRAM if failure.failure_class is FailureClass.UNCLASSIFIED else None
    names = _type_names(failure)
    patterns = [SHAPE_MESSAGES[name] for name in names if name in SHAPE_MESSAGES]
    if not SHAPE_ERRORS.isdisjoint(names) or any(re.search(pattern, failure.message) for pattern in patterns):
        return Nature.SHAPE
    return None if PROGRAM_ERRORS.isdisjoint(names) else Nature.PROGRAM


def is_shape_error(failure: Failure) -> bool:
    """Return whether a failure is about the shape of what was read: perhaps the downstream answers otherwise soon."""
    return nature_of(failure) is Nature.SHAPE


def _type_names(failure: Failure) -> list[str]:
    """Return the classes of the exception as "package.Class", its own first."""
    types = failure.facts.get("types")
    if isinstance(types, list | tuple):
        return [_short_name(str(name)) for name in types]
    name = _short_name(failure.error_type)  # a record without facts
    builtin = getattr(builtins, name.removeprefix("builtins."), None)
    return [f"builtins.{kind.__name__}" for kind in builtin.__mro__] if isinstance(builtin, type) else [name]


def _short_name(name: str) -> str:
    """Return "json.JSONDecodeError" for "json.decoder.JSONDecodeError"; builtins may come without their module."""
    package, dot, _ = name.partition(".")
    return f"{package}.{name.rpartition('.')[2]}" if dot else f"builtins.{name}"
