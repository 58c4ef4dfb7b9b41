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


def _by_code(table: Mapping[FailureClass, tuple[Code, ...]]) -> dict[Code, FailureClass]:
    return {code: failure_class for failure_class, codes in table.items() for code in codes}


def _errnos(names: str) -> tuple[int, ...]:
    return tuple(getattr(errno, name) for name in names.split())


#: HTTP status codes. Missing: unknown, treated as transient with a small budget.
HTTP = _by_code(
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
GRPC = _by_code(
    {
        _TRANSIENT: ("DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "ABORTED"),
        _VALIDATION: ("INVALID_ARGUMENT", "OUT_OF_RANGE"),  # a bad request will not fix itself
        _AUTH: ("PERMISSION_DENIED", "UNAUTHENTICATED"),
        _PERMANENT: ("NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "UNIMPLEMENTED", "DATA_LOSS"),
        _AMBIGUOUS: ("CANCELLED", "UNKNOWN"),
    }
)

#: SQLSTATE by its longest prefix that is listed: five characters, or the two of its class.
SQLSTATE: dict[str, FailureClass] = {
    "08": _TRANSIENT,  # connection exception
    "0A": _PERMANENT,  # feature not supported
    "22": _VALIDATION,  # data exception
    "23": _PERMANENT,  # 004: integrity constraint, a foreign key among them
    "25006": _AMBIGUOUS,  # read-only transaction: misdirected to a standby, or meant so
    "28": _AUTH,  # invalid authorization
    "3D": _PERMANENT,  # invalid catalog name
    "3F": _PERMANENT,  # invalid schema name
    "40": _TRANSIENT,  # rollback: serialization failure, deadlock
    "42": _PERMANENT,  # syntax error or access rule violation
    "42501": _AUTH,  # insufficient privilege
    "53": _TRANSIENT,  # insufficient resources
    "53100": _AMBIGUOUS,  # disk full
    "54": _PERMANENT,  # program limit exceeded
    "55006": _TRANSIENT,  # object in use
    "55P03": _TRANSIENT,  # lock not available
    "57": _TRANSIENT,  # operator intervention: shutdown, crash, cannot connect now
    "57014": _AMBIGUOUS,  # query cancelled
    "58": _AMBIGUOUS,  # system error
    "XX": _AMBIGUOUS,  # internal error
}

#: What the message adds to an SQLSTATE with several reasons: its text, and the class.
_SQL_MESSAGES: dict[str, tuple[str, FailureClass]] = {"57014": ("statement timeout", _TRANSIENT)}


def sqlstate_class(sqlstate: str, message: str = "") -> FailureClass | None:
    """Return the class of an SQLSTATE, or None if no row is for it."""
    text, failure_class = _SQL_MESSAGES.get(sqlstate, ("", None))
    if failure_class is not None and text in message:
        return failure_class
    return longest_prefix(SQLSTATE, sqlstate)


def longest_prefix(table: Mapping[str, FailureClass], value: str) -> FailureClass | None:
    """Return the class of the longest prefix of ``value`` that a table lists."""
    row = max((row for row in table if value.startswith(row)), key=len, default=None)
    return None if row is None else table[row]


#: SQLite's result code by its longest prefix that is listed (extended codes continue with an underscore).
SQLITE = _by_code(
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
EXIT_CODES: dict[int, FailureClass] = {
    64: _PERMANENT,  # EX_USAGE
    65: _VALIDATION,  # EX_DATAERR
    66: _AMBIGUOUS,  # EX_NOINPUT: not there yet, or never
    67: _PERMANENT,  # EX_NOUSER
    68: _TRANSIENT,  # EX_NOHOST: the name does not resolve
    69: _TRANSIENT,  # EX_UNAVAILABLE
    71: _TRANSIENT,  # EX_OSERR: cannot fork, and the like
    72: _PERMANENT,  # EX_OSFILE
    73: _PERMANENT,  # EX_CANTCREAT
    74: _AMBIGUOUS,  # EX_IOERR
    75: _TRANSIENT,  # EX_TEMPFAIL
    76: _AMBIGUOUS,  # EX_PROTOCOL
    77: _PERMANENT,  # EX_NOPERM
    78: _PERMANENT,  # EX_CONFIG
    124: _TRANSIENT,  # timeout(1)
    126: _PERMANENT,  # found, but cannot be executed
    127: _PERMANENT,  # not found
}

#: Signals from an unknown sender. For the executor and the kernel see ``SENDERS``.
SIGNALS: dict[int, FailureClass] = {
    1: _TRANSIENT,  # SIGHUP: a terminal went away
    2: _TRANSIENT,  # SIGINT
    9: _TRANSIENT,  # SIGKILL, as exit code 137: from outside; no code of the task ends itself so
    13: _TRANSIENT,  # SIGPIPE
    15: _TRANSIENT,  # SIGTERM: a request to stop
    24: _PERMANENT,  # SIGXCPU
    25: _PERMANENT,  # SIGXFSZ
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 11, 31), _UNCLASSIFIED),  # crashes: the fingerprint decides whether they repeat
}

#: By sender of the signal, if it is known.
SENDERS: dict[str, FailureClass] = {"oom": _MEMORY, "executor": _TIMEOUT}

#: Plain OSErrors by number; Python gives many of them a class of their own (EXCEPTIONS).
ERRNOS = _by_code(
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
    "curl": {
        1: _PERMANENT,  # unsupported protocol
        3: _PERMANENT,  # malformed URL
        5: _TRANSIENT,  # could not resolve the proxy
        6: _TRANSIENT,  # could not resolve the host
        7: _TRANSIENT,  # could not connect
        9: _AUTH,  # access denied by the server
        16: _TRANSIENT,  # HTTP/2 framing
        18: _TRANSIENT,  # partial file
        23: _AMBIGUOUS,  # writing failed: the disk is full, or the reader of the pipe is gone
        28: _TRANSIENT,  # timeout
        35: _TRANSIENT,  # TLS handshake failed
        47: _PERMANENT,  # too many redirects
        52: _TRANSIENT,  # empty reply
        55: _TRANSIENT,  # sending failed
        56: _TRANSIENT,  # receiving failed
        60: _PERMANENT,  # the certificate of the server is not trusted
        67: _AUTH,  # login denied
        77: _PERMANENT,  # the file with the certificates cannot be read
        78: _PERMANENT,  # the remote file does not exist
        92: _TRANSIENT,  # HTTP/2 stream
        95: _TRANSIENT,  # HTTP/3
    },
    "wget": {
        2: _PERMANENT,  # wrong options
        3: _AMBIGUOUS,  # file I/O
        4: _TRANSIENT,  # network failure
        5: _PERMANENT,  # the certificate of the server is not trusted
        6: _AUTH,  # user name or password refused
        7: _AMBIGUOUS,  # protocol error
    },
    "rsync": {
        1: _PERMANENT,  # usage
        2: _PERMANENT,  # protocol incompatibility
        4: _PERMANENT,  # unsupported action
        5: _AMBIGUOUS,  # starting the protocol: the daemon refused, or is full
        10: _TRANSIENT,  # socket I/O
        11: _AMBIGUOUS,  # file I/O
        12: _TRANSIENT,  # protocol data stream: the connection was lost
        20: _TRANSIENT,  # interrupted
        23: _AMBIGUOUS,  # partial transfer: a file was unreadable or missing
        24: _TRANSIENT,  # source files vanished meanwhile
        30: _TRANSIENT,  # timeout while sending or receiving
        35: _TRANSIENT,  # timeout while waiting for the daemon
        255: _TRANSIENT,  # of the ssh below it
    },
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
    """Why a failure comes again."""

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
    if failure.error_type.startswith("signal:"):  # a crash, as by SIGSEGV and SIGABRT
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
