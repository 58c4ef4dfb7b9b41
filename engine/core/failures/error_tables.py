"""Tables from error codes and exception types to failure classes: one table for each kind of code.

Read by ``classify.py``. The rows of documents 002 and 004 are marked; the others follow RFC 9110, sysexits.h, the
SQLSTATE classes of PostgreSQL and the result codes of SQLite. A row can be overruled for one downstream by a rule
(``classification_rules.py``), because these meanings are honoured unevenly.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TypeVar

from ..outcome import FailureClass

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
ERRNOS: dict[int, FailureClass] = {
    **dict.fromkeys(
        (
            errno.EAGAIN,
            errno.EBUSY,
            errno.EINTR,
            errno.EMFILE,
            errno.ENFILE,
            errno.ENOBUFS,
            errno.ESTALE,
            errno.EHOSTDOWN,
            errno.EHOSTUNREACH,
            errno.ENETDOWN,
            errno.ENETRESET,
            errno.ENETUNREACH,
            errno.ETXTBSY,
        ),
        _TRANSIENT,
    ),
    **dict.fromkeys((errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE), _AMBIGUOUS),
    **dict.fromkeys((errno.EROFS, errno.ENAMETOOLONG, errno.ENOEXEC, errno.ELOOP, errno.EXDEV), _PERMANENT),
    errno.ENOMEM: _MEMORY,
}

#: Exceptions as "package.Class"; the most specific class of an exception that is listed counts. No library is imported.
#: What is missing stays unclassified on purpose: KeyError, ValueError, ZeroDivisionError are the fingerprint's work.
EXCEPTIONS: dict[str, FailureClass] = {
    "builtins.ConnectionError": _TRANSIENT,  # 004: reset, refused, aborted, broken pipe
    "builtins.TimeoutError": _TRANSIENT,
    "builtins.BlockingIOError": _TRANSIENT,
    "builtins.InterruptedError": _TRANSIENT,
    "builtins.FileNotFoundError": _AMBIGUOUS,  # not there yet, or never
    "builtins.IsADirectoryError": _PERMANENT,
    "builtins.NotADirectoryError": _PERMANENT,
    "builtins.PermissionError": _PERMANENT,
    "builtins.MemoryError": _MEMORY,
    "builtins.ImportError": _PERMANENT,
    "builtins.SyntaxError": _PERMANENT,
    "builtins.NotImplementedError": _PERMANENT,
    "builtins.UnicodeError": _VALIDATION,
    "json.JSONDecodeError": _VALIDATION,  # 004: permanent for that row
    "xml.ParseError": _VALIDATION,  # a SyntaxError, but of what was read
    "lxml.XMLSyntaxError": _VALIDATION,
    "socket.gaierror": _TRANSIENT,  # 002: a DNS flap
    "ssl.SSLError": _AMBIGUOUS,
    "ssl.SSLCertVerificationError": _PERMANENT,
    "ssl.SSLEOFError": _TRANSIENT,
    "ssl.SSLZeroReturnError": _TRANSIENT,
    "asyncio.IncompleteReadError": _TRANSIENT,
    "http.IncompleteRead": _TRANSIENT,
    "http.BadStatusLine": _TRANSIENT,
    "concurrent.BrokenProcessPool": _AMBIGUOUS,
    "subprocess.TimeoutExpired": _TRANSIENT,
    "requests.ConnectionError": _TRANSIENT,
    "requests.Timeout": _TRANSIENT,
    "requests.ChunkedEncodingError": _TRANSIENT,
    "requests.ContentDecodingError": _AMBIGUOUS,
    "requests.JSONDecodeError": _AMBIGUOUS,  # often a proxy's page instead of the answer
    "requests.SSLError": _AMBIGUOUS,
    "requests.TooManyRedirects": _PERMANENT,
    "requests.InvalidURL": _PERMANENT,
    "requests.MissingSchema": _PERMANENT,
    "requests.InvalidSchema": _PERMANENT,
    "urllib3.HTTPError": _TRANSIENT,
    "urllib3.SSLError": _AMBIGUOUS,
    "urllib3.LocationValueError": _PERMANENT,
    "httpx.TimeoutException": _TRANSIENT,
    "httpx.NetworkError": _TRANSIENT,
    "httpx.RemoteProtocolError": _TRANSIENT,
    "httpx.ProxyError": _TRANSIENT,
    "httpx.DecodingError": _AMBIGUOUS,
    "httpx.LocalProtocolError": _PERMANENT,
    "httpx.UnsupportedProtocol": _PERMANENT,
    "httpx.TooManyRedirects": _PERMANENT,
    "httpx.InvalidURL": _PERMANENT,
    "aiohttp.ClientConnectionError": _TRANSIENT,
    "aiohttp.ClientPayloadError": _TRANSIENT,
    "aiohttp.ClientSSLError": _AMBIGUOUS,
    "aiohttp.ClientConnectorCertificateError": _PERMANENT,
    "aiohttp.InvalidURL": _PERMANENT,
    "botocore.ConnectionError": _TRANSIENT,
    "botocore.HTTPClientError": _TRANSIENT,
    "sqlite3.DataError": _VALIDATION,
    "sqlite3.IntegrityError": _PERMANENT,
    "sqlite3.ProgrammingError": _PERMANENT,
    "sqlite3.OperationalError": _AMBIGUOUS,
    **{
        f"{driver}.{name}": failure_class
        for driver in ("psycopg", "psycopg2")
        for name, failure_class in {
            "OperationalError": _TRANSIENT,  # without an SQLSTATE: the connection was lost or never made
            "InterfaceError": _TRANSIENT,
            "DataError": _VALIDATION,
            "IntegrityError": _PERMANENT,
            "ProgrammingError": _PERMANENT,
            "NotSupportedError": _PERMANENT,
        }.items()
    },
}

#: Classes by severity, the most severe first: a group of failures counts as the most severe of its classes.
HARDEST_FIRST = (_AUTH, _PERMANENT, _VALIDATION, _MEMORY, _UNCLASSIFIED, _TIMEOUT, _AMBIGUOUS, _TRANSIENT)
