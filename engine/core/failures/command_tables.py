"""Tables for programs: which exit codes and which texts of their output mean what.

Read by ``command_output.py``, which picks the significant line of an output. The exit codes are those of the manual
pages (EXIT STATUS of curl, wget, ssh, rsync, psql, aws); the texts are what these programs, glibc, libpq and the stores
of objects print. An exit code is only trusted for the program that it belongs to; codes with one meaning for all
programs are in ``error_tables.py``. Patterns are compiled where they are used, as most runs need none of them.
"""

from __future__ import annotations

from ..outcome import FailureClass

_TRANSIENT = FailureClass.TRANSIENT
_PERMANENT = FailureClass.PERMANENT
_AMBIGUOUS = FailureClass.AMBIGUOUS
_AUTH = FailureClass.AUTH

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

#: What says that a login was refused.
REFUSED_LOGIN = "|".join(
    (
        r"password authentication failed",
        r"no pg_hba\.conf entry",
        r"no password supplied",
        r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased)",
        r"authentication fail(?:ed|ure)",
        r"auth failed on module",  # rsync daemon
        r"could not read (?:Username|Password) for",  # git without a terminal
        r"invalid (?:username or password|credentials)",
        r"login (?:incorrect|denied|failed for user)",
        r"Access denied for user",  # MySQL
        r"\b(?:AccessDenied|AuthFailure|ExpiredToken|InvalidAccessKeyId|InvalidClientTokenId|SignatureDoesNotMatch"
        r"|UnrecognizedClient|UnauthorizedOperation)(?:Exception)?\b",  # AWS
        r"Unable to locate credentials",
    )
)

#: What says that the certificate of a server is not trusted, or has expired.
BAD_CERTIFICATE = (
    r"certificate[ _]verif(?:y|ication)[ _]failed|certificate problem|certificate has expired|self-signed cert"
)

#: What the next attempt may not meet any more.
_OUTAGES = "|".join(
    (
        r"connection (?:was )?(?:refused|reset|aborted|closed by|timed out|terminated)",
        r"(?:failed|could not|couldn't|can't|unable) (?:to )?connect",
        r"no route to host|network is unreachable|host is (?:down|unreachable)",
        r"could not resolve|couldn't resolve|could not translate host name|unable to resolve|getaddrinfo",
        r"temporary failure in name resolution|name or service not known|nodename nor servname|no such host",
        r"unknown (?:mysql server )?host|UnknownHostException",
        r"connection to server (?:at|on) .* failed|broken pipe|too many open files",
        r"timed out|timeout expired|(?:i/o|handshake|read|connect|gateway) time-?out|deadline exceeded",
        r"empty reply from server|unexpected eof|early eof|hung up unexpectedly|unexpected disconnect",
        r"server closed the connection unexpectedly|connection to server was lost|connection unexpectedly closed",
        r"SSL_ERROR_SYSCALL|(?:recv|send|SSL connect) (?:failure|error)|RPC failed|non-properly terminated",
        r"\b(?:SlowDown|Throttling|ThrottlingException|ThrottledException|RequestLimitExceeded|TooManyRequests"
        r"|TooManyRequestsException|ProvisionedThroughputExceededException|RequestTimeout|ServiceUnavailable"
        r"|InternalError|InternalFailure|BandwidthLimitExceeded)\b",  # AWS and the stores that speak like it
        r"rate (?:limit )?exceeded|rate limit|too many requests|max connections \(\d+\) reached",
        r"service unavailable|temporarily unavailable|bad gateway|backend error|try again later",
        r"server has gone away|lost connection to MySQL|lock wait timeout|deadlock found|database is locked",
        r"the database system is (?:starting up|shutting down|in recovery)|too many connections|too many clients",
    )
)

_MISTAKES = rf"host key verification failed|(?:unrecognized|unknown|invalid|illegal) option|{BAD_CERTIFICATE}"

#: The same causes as those of PermissionError, FileNotFoundError, MemoryError and other errors of the system.
_PERMANENT_SYSTEM = r"permission denied|read-only file system|is a directory|not a directory"
_AMBIGUOUS_SYSTEM = r"no such file or directory|no space left on device|disk quota exceeded|address already in use"
_MEMORY_SYSTEM = r"cannot allocate memory|\bMemoryError\b|OutOfMemoryError"

#: Patterns of a significant line, without regard to case, and their class. The first that matches counts, so that a
#: refused login comes before the connection that it was refused on.
LINE_CLASSES = (
    (REFUSED_LOGIN, _AUTH),
    (_MISTAKES, _PERMANENT),
    (_OUTAGES, _TRANSIENT),
    (_PERMANENT_SYSTEM, _PERMANENT),
    (_AMBIGUOUS_SYSTEM, _AMBIGUOUS),
    (_MEMORY_SYSTEM, FailureClass.OUT_OF_MEMORY),
)

#: Messages of PostgreSQL, which psql prints without their SQLSTATE, and their SQLSTATE (appendix A of its manual).
POSTGRES_MESSAGES = (
    (r"syntax error at (?:or near|end of input)", "42601"),
    (r"relation \".*\" does not exist|table \".*\" does not exist", "42P01"),
    (r"column .* does not exist", "42703"),
    (r"(?:function|procedure|operator) .* does not exist|operator does not exist", "42883"),
    (r"type \".*\" does not exist", "42704"),
    (r"permission denied for |must be owner of ", "42501"),
    (r"relation \".*\" already exists", "42P07"),
    (r"column .* is of type .* but expression is of type", "42804"),
    (r"schema \".*\" does not exist", "3F000"),
    (r"database \".*\" does not exist", "3D000"),
    (r"role \".*\" does not exist", "28000"),
    (r"password authentication failed for user", "28P01"),
    (r"no pg_hba\.conf entry", "28000"),
    (r"duplicate key value violates unique constraint", "23505"),
    (r"violates foreign key constraint", "23503"),
    (r"violates not-null constraint", "23502"),
    (r"violates check constraint", "23514"),
    (r"invalid input syntax for", "22P02"),
    (r"value too long for type", "22001"),
    (r"out of range for type|(?:integer|numeric field) (?:out of range|overflow)", "22003"),
    (r"ERROR: +division by zero", "22012"),
    (r"missing data for column|extra data after last expected column", "22P04"),
    (r"deadlock detected", "40P01"),
    (r"could not serialize access", "40001"),
    (r"canceling statement due to (?:statement timeout|user request)", "57014"),
    (r"canceling statement due to lock timeout|could not obtain lock on", "55P03"),
    (r"terminating connection due to administrator command", "57P01"),
    (r"the database system is (?:starting up|shutting down|in recovery mode)", "57P03"),
    (r"too many clients already|remaining connection slots are reserved", "53300"),
    (r"could not extend file .*No space left|could not write to file .*No space left", "53100"),
    (r"cannot execute .* in a read-only transaction", "25006"),
    (r"current transaction is aborted", "25P02"),
)

#: An SQLSTATE as programs print it: psql with VERBOSITY verbose, the client of MySQL, JDBC and PDO.
SQLSTATES = r"\b(?:ERROR|FATAL|PANIC): +([0-9A-Z]{5}): |\bERROR \d+ \(([0-9A-Z]{5})\)|\bSQLSTATE[\[ :=]+([0-9A-Z]{5})\b"

#: An HTTP status of a failure, as curl, wget, aws, gsutil and libraries print it; without regard to case.
HTTP_STATUSES = (
    r"returned error: ([45]\d\d)\b"
    r"|\bERROR ([45]\d\d): "
    r"|\bHTTP(?:/[\d.]+)?(?:[ _](?:error|status|code|response))*[ :=]+([45]\d\d)\b"
    r"|\bstatus(?:[ _]?code)?\"?[ :=]+([45]\d\d)\b"
    r"|\(([45]\d\d)\) when calling"
    r"|(?:Exception|Error): ([45]\d\d) "
    r"|\b(4\d\d) (?:Bad Request|Unauthorized|Forbidden|Not Found|Conflict|Gone|Too Many Requests)"
    r"|\b(5\d\d) (?:Internal Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway Time-?out"
    r"|Slow Down)"
)

#: Lines that explain, repeat or follow an error: they count only if the output has no other line.
CONSEQUENCES = (
    r"^(?:psql:\S*?:\d+: )?(?:DETAIL|HINT|CONTEXT|LOCATION|STATEMENT|QUERY|NOTICE|WARNING): "
    r"|^LINE \d+: "
    r"|^[\s~^-]*$"
    r"|Is the server running (?:on|locally)"
    r"|This probably means the server terminated|before or while processing the request"
    r"|connection to server was lost$"
    r"|^fatal: (?:Could not read from remote repository|index-pack failed|fetch-pack: )"
    r"|^Please make sure you have the correct access|^and the repository exists"
    r"|^rsync error: |^rsync: .*connection unexpectedly closed"
    r"|^make(?:\[\d+\])?: \*\*\*"
    r"|CalledProcessError: .* (?:returned non-zero exit status|died with)"
    r"|^\[(?:SQL|parameters): |^\(Background on this error at"
    r"|^(?:During handling of|The above exception was)"
    r"|^(?:curl: \(22\) )?More details here: |^wget: .*help"
)

#: What marks a line as an error, without regard to case.
ERROR_MARKS = (
    r"error|fatal|panic|fail(?:ed|ure)|exception|denied|refused|cannot|can't|could not|couldn't|unable to|not found"
    r"|no such|invalid|abort|^curl: \(\d+\)|^(?:ssh|rsync|wget|psql|pg_dump|aws|gsutil)(?:\[\d+\])?: |^\w[\w.]*Exit: "
)
NO_ERRORS = r"\b(?:0|no|without) (?:error|fail|exception)"
