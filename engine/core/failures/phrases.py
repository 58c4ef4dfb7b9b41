"""The output of programs that fail: patterns of the line that names the error, by name, and what they mean.

Read by ``facts.py``, which picks that line. The texts are those of glibc, libpq, OpenSSL, of the usual clients and of
the stores of objects. A line can quote, list and count anything, so a phrase counts only as a clause of its own: after
a colon, a bracket or the start of the line, and before the end or a sign of punctuation. A number is an HTTP status
only with the reason phrase of that status, with HTTP or a URL in the line, or in the words of a program that prints
statuses. A test has, for each name, sentences that match and sentences that must not.

Patterns are compiled where they are used, as most runs need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..outcome import FailureClass

# --- Clauses ---------------------------------------------------------------------------------------------------------

_START = r"(?:^|[:;,.!?()\[\]{}<>'\"|=>-])\s*(?:error |the |a |got |got an |failed with )?"
#: Words that may follow a phrase: the other side, the time, or what was done meanwhile.
_BY = r"by (?:the )?(?:peer|remote|server|host|other|foreign|\d+\.\d)"
_SPAN = r"(?:after|within|in) [\d.]+ ?(?:m?s|m|h|sec|min|milli|second|tries|attempts|retries|of \d+ tries)"
_MORE = rf" (?:{_BY}|while|when|during|waiting|before|because|due to|{_SPAN}|(?:to|at|on|from|for|by) \S*[.:/@]\S)"
#: A quote that ends a clause is followed by a sign, a field or a sentence: what is quoted as a value goes on in words.
_QUOTE = rf"['\"](?=\s*(?:$|[^\w\s])|\s+[\w.]+=|\s+(?-i:[A-Z])|{_MORE})"
_STOP = rf"\s*(?:$|[:;,!?()\[\]{{}}<>|\\-]|{_QUOTE}|\.(?![\w-]))"
_COUNT = r"\s*[:=]\s*\d[\d,.]*\s+[a-z]"  # "timed out: 12 rows"
_END = rf"(?!{_COUNT})(?={_STOP}|{_MORE})"


def _clause(*phrases: str) -> str:
    return f"{_START}(?:{'|'.join(phrases)}){_END}"


def _opening(*phrases: str) -> str:
    """Match the first words of a clause, whatever follows."""
    return f"{_START}(?:{'|'.join(phrases)})"


def _type_names(*names: str) -> str:
    """Match the name of an exception's type, with or without its package."""
    return rf"(?:^|[\s:(.])(?-i:{'|'.join(names)})(?=: |$|\s*[(\[])"


def _error_codes(*codes: str) -> str:
    """Match a code of AWS and of the stores that speak like it, where they print one."""
    code = rf"(?-i:(?:{'|'.join(codes)})(?:Exception)?)"
    places = (
        rf"An error occurred \({code}\)",
        rf"<Code>{code}</Code>",
        rf"Error Code: {code}\b",
        rf"S3 error: \d+ \({code}\)",
        rf"(?:^|: ){code}: ",
    )
    return "|".join(places)


_CANNOT = r"(?:failed to|could not|couldn't|can(?:no|')t|unable to)"

# --- Phrases ---------------------------------------------------------------------------------------------------------

#: What says that a login was refused.
REFUSED_LOGINS: Mapping[str, str] = {
    "postgres": _opening(r"\w+ authentication failed for user ", r"no pg_hba\.conf entry for "),
    "no password": _clause(r"no password supplied"),
    "ssh": r"Permission denied \((?:publickey|password|keyboard-interactive|gssapi|hostbased)",
    "ssh password": _clause(r"Permission denied, please try again", r"Too many authentication failures"),
    "authentication": _clause(r"(?:\w+ )?authentication fail(?:ed|ure)"),
    "rsync": r"@ERROR: auth failed on module ",
    "git": _opening(r"could not read (?:Username|Password) for '", r"Authentication failed for '"),
    "credentials": _clause(r"invalid (?:username or password|username/password|credentials|client secret)"),
    "login": _clause(
        r"(?:530 )?(?:login|logon) (?:incorrect|denied)", r"incorrect username or password(?: was specified)?"
    ),
    "sql server": _opening(r"Login failed for user '", r"(?-i:AADSTS)\d+: Invalid client secret"),
    "mysql": _opening(r"Access denied for user '"),
    "aws": _error_codes(
        *("AccessDenied", "AuthFailure", "ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId"),
        *("SignatureDoesNotMatch", "UnrecognizedClient", "UnauthorizedOperation"),
    ),
    "aws credentials": _clause(
        r"Unable to locate credentials", r"The security token included in the request is (?:expired|invalid)"
    ),
    "google": _opening(r"(?-i:PERMISSION_DENIED|UNAUTHENTICATED): ", r"You do not currently have an active account"),
    "kubernetes": r"Error from server \(Forbidden\): |must be logged in to the server \(",
    "docker": _clause(
        r"unauthorized: authentication required",
        r"denied: requested access to the resource is denied",
        r"no basic auth credentials",
    ),
}
REFUSED_LOGIN = "|".join(REFUSED_LOGINS.values())

#: What says that the certificate of a server is not trusted, or has expired.
BAD_CERTIFICATES: Mapping[str, str] = {
    "verify": r"certificate[ _]verif(?:y|ication)[ _]failed",
    "curl": r"\bSSL certificate problem: |\bserver certificate verification failed",
    "expired": _clause(r"(?:(?:server|peer|ssl|x509:) )?certificate has expired(?: or is not yet valid)?"),
    "self-signed": _clause(r"self[- ]signed cert(?:ificate)?(?: in certificate chain)?"),
    "authority": r"\bx509: certificate (?:signed by unknown authority|is valid for )",
}
BAD_CERTIFICATE = "|".join(BAD_CERTIFICATES.values())

_MISTAKES: Mapping[str, str] = {
    "host key": _clause(r"host key verification failed"),
    "option": r"(?:unrecognized|unknown|invalid|illegal) option:? +(?:-|['\"‘`]?-|`)",
    "kubernetes": r"Error from server \((?:NotFound|AlreadyExists|Invalid|BadRequest)\): ",
    "sqlite": _clause(
        r"no such (?:table|column|function|module|index|view|collation sequence)(?=: )",
        r"(?:UNIQUE|NOT NULL|CHECK|FOREIGN KEY) constraint failed",
        r"near \".*\": syntax error",
        r"table \S+ already exists",
        r"file is not a database",
        r"attempt to write a readonly database",
    ),
    **BAD_CERTIFICATES,
}

#: What the next attempt may not meet any more.
_OUTAGES: Mapping[str, str] = {
    "connection": _clause(
        r"(?:(?:existing |database |network |tcp |ssh |ssl |tls |http )*connection|connect)(?: attempt)?"
        r"(?: (?:to|with|from) [^\s:]\S*(?:,? port \d+)?)?(?: was| has been| got| is)?(?: forcibly| already)?"
        rf" (?:refused|reset|aborted|closed|lost|terminated|timed out)(?: {_BY}[\w. -]*| unexpectedly| abruptly)?"
    ),
    "kubernetes": r"The connection to the server \S+ was refused"
    r"|Error from server \((?:ServiceUnavailable|TooManyRequests|Timeout|ServerTimeout|InternalError)\): ",
    "connect": _opening(rf"{_CANNOT} connect (?:to|with) ", rf"{_CANNOT} connect(?={_STOP})"),
    "node": rf"(?:{_START}|\b(?:connect|read|write|getaddrinfo|code|errno|socket)[ :=]+'?)"
    r"(?-i:ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|EPIPE|ENOTFOUND)\b",
    "route": _clause(r"no route to host", r"network is (?:unreachable|down)", r"host is (?:down|unreachable)"),
    "resolve": _opening(
        rf"{_CANNOT} resolve (?:the )?(?:host|proxy|address|dns|name|'?[\w-]+\.[\w.-]+)",
        r"could not translate host name ",
    ),
    "names": _clause(
        *(r"temporary failure in name resolution", r"name or service not known", r"name does not resolve"),
        *(r"nodename nor servname provided(?:, or not known)?", r"no such host", r"server misbehaving"),
        *(r"getaddrinfo failed", r"unknown host(?: \S+)?", r"getaddrinfo \S+"),
    ),
    "mysql host": r"Unknown MySQL server host '",
    "libpq": r"\bconnection to server (?:at|on) .* failed(?=:)|\bserver closed the connection unexpectedly"
    r"|\bconnection to server was lost|\bSSL SYSCALL error: |\bcould not (?:receive data from|send data to) server: ",
    "closed": _clause(
        r"(?:remote (?:host|end|server|side)|peer|server) (?:unexpectedly )?closed (?:the )?connection"
        r"(?: without response)?"
    ),
    "system": _clause(r"broken pipe", r"too many open files(?: in system)?", r"resource temporarily unavailable"),
    "timed out": _clause(
        r"(?:(?:(?:http|tcp|tls|ssl|network|remote|dns|this|your) )?(?:connection|connect|request|operation|read|write"
        r"|send|recv|handshake|query|call|command|response|socket|rpc|wait|lookup|resolving|upload|download|transfer)"
        r"(?: (?:operation|request|attempt|query|call))? )?(?:has |have |was )?timed out"
        r"(?: (?:waiting|reading|connecting|trying)\b.*)?"
    ),
    "timeout": _clause(
        r"(?:login )?timeout expired",
        r"(?:i/o|handshake|tls handshake|read|connect|connection|gateway|socket|request|dial|network) time-?out",
        r"(?:context |rpc )?deadline exceeded",
        r"(?:\w+\.)?timeout exceeded(?: while awaiting headers)?",
    ),
    "types": _type_names(
        *("SocketTimeoutException", "Connect(?:ion)?Timeout(?:Error|Exception)?", "ReadTimeout(?:Error)?"),
        *("TimeoutError", "ConnectException", "Connection(?:Refused|Reset|Aborted)?Error", "UnknownHostException"),
        *("NoRouteToHostException", "BrokenPipeError", "ServiceUnavailable", "ServiceUnavailableException"),
    ),
    "cut": _clause(
        *(r"empty reply from server", r"early eof", r"error in the pull function", r"EOF detected"),
        *(r"(?:remote end )?hung up unexpectedly", r"connection unexpectedly closed"),
        r"unexpected disconnect while reading sideband packet",
    )
    + rf"|{_START}unexpected eof(?: while reading)?(?=\s*(?:$|[:)\]]))",
    "rsync": r"\bconnection unexpectedly closed \(\d+ bytes",
    "tls": r"\bSSL_ERROR_SYSCALL\b|\b(?:recv|send|SSL connect) (?:failure|error)[:;]|\bGnuTLS recv error \(-"
    r"|connection was non-properly terminated",
    "git": r"\bRPC failed; ",
    "aws": _error_codes(
        *("SlowDown", "Throttling", "Throttled", "RequestLimitExceeded", "TooManyRequests"),
        *("ProvisionedThroughputExceeded", "RequestTimeout", "ServiceUnavailable", "InternalError", "InternalFailure"),
        "BandwidthLimitExceeded",
    ),
    "rate": _clause(
        *(r"(?:\w+ )?rate limit (?:has been )?(?:exceeded|reached)", r"rate exceeded", r"too many requests"),
        *(r"toomanyrequests", r"rate limited", r"(?-i:rateLimitExceeded|RESOURCE_EXHAUSTED)"),
    ),
    "docker": r"\btoomanyrequests: |reached your (?:unauthenticated )?pull rate limit",
    "rsync daemon": r"max connections \(\d+\) reached",
    "unavailable": _clause(
        *(r"(?:(?:service|server|upstream|\d{3}) )?(?:is )?(?:temporarily |currently )?unavailable", r"bad gateway"),
        *(r"(?:\d{3} )?backend error", r"(?:please )?try again later", r"(?-i:UNAVAILABLE)"),
    ),
    "mysql": r"\bMySQL server has gone away|\blost connection to MySQL server|\block wait timeout exceeded"
    r"|\bdeadlock found when trying to get lock",
    "sqlite": _clause(r"(?:\(\w[\w.]*\) )?database (?:table )?is locked"),
    "starting": _clause(r"the database system is (?:starting up|shutting down|in recovery(?: mode)?)")
    + r"|the database system is (?:starting up|shutting down|in recovery mode)$",
    "slots": _clause(
        r"(?:sorry, )?too many (?:connections|clients)(?: already)?", r"remaining connection slots are reserved for .*"
    ),
    "kafka": r"\bBroker may not be available",
}

#: The same causes as those of PermissionError, FileNotFoundError, MemoryError and other errors of the system.
_PERMANENT_SYSTEM: Mapping[str, str] = {
    "permission": _clause(r"permission denied"),
    "file system": _clause(r"read-only file system", r"is a directory", r"not a directory"),
}
_AMBIGUOUS_SYSTEM: Mapping[str, str] = {
    "file": _clause(r"no such file or directory"),
    "space": _clause(r"no space left on device", r"disk quota exceeded"),
    "address": _clause(r"(?:bind: )?address already in use"),
}
_MEMORY_SYSTEM: Mapping[str, str] = {
    "memory": _clause(r"cannot allocate memory"),
    "types": _type_names(r"MemoryError", r"OutOfMemoryError"),
    "c++": r"\bstd::bad_alloc\b",
}

#: Tables of phrases in a significant line, and their class. The first that matches counts, so that a refused login
#: comes before the connection that it was refused on.
LINE_TABLES: tuple[tuple[Mapping[str, str], FailureClass], ...] = (
    (REFUSED_LOGINS, FailureClass.AUTH),
    (_MISTAKES, FailureClass.PERMANENT),
    (_OUTAGES, FailureClass.TRANSIENT),
    (_PERMANENT_SYSTEM, FailureClass.PERMANENT),
    (_AMBIGUOUS_SYSTEM, FailureClass.AMBIGUOUS),
    (_MEMORY_SYSTEM, FailureClass.OUT_OF_MEMORY),
)

#: The same as one pattern for each class, without regard to case.
LINE_CLASSES = tuple(("|".join(table.values()), failure_class) for table, failure_class in LINE_TABLES)


# --- SQL -------------------------------------------------------------------------------------------------------------

#: What marks a line as a message of PostgreSQL: its own form, with two spaces, or a client that passes it on.
POSTGRES_LINE = (
    r"^(?:psql:\S*?:\d+: )?(?:ERROR|FATAL|PANIC):  |^(?:psql|pg_\w+|createdb|dropdb|vacuumdb): (?:error|fatal): "
    r"|\bpsycopg2?\.|\basyncpg\.|PSQLException: |\bpq: |\bFATAL:  |\bSQLSTATE\b|\(SQLSTATE "
)
#: Programs that print messages of PostgreSQL without such a mark.
POSTGRES_PROGRAMS = frozenset(["psql", "pg_dump", "pg_restore", "pg_isready", "dbt", "pgloader", "sqitch"])

#: Messages of PostgreSQL, which are printed without their SQLSTATE, and their SQLSTATE (appendix A of its manual).
POSTGRES_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"syntax error at (?:or near|end of input)", "42601"),
    (r"(?:relation|table) \".*\" does not exist", "42P01"),
    (r"column \S+ (?:of relation \S+ )?does not exist", "42703"),
    (r"(?:function|procedure) \S+\(.*\) does not exist|operator does not exist: ", "42883"),
    (r"type \".*\" does not exist", "42704"),
    (
        r"permission denied for (?:table|schema|relation|database|function|sequence|view|column) |must be owner of ",
        "42501",
    ),
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
    (r"invalid input syntax for (?:type )?\w+", "22P02"),
    (r"value too long for type", "22001"),
    (r"out of range for type|(?:integer|bigint|smallint|numeric field) (?:out of range|overflow)", "22003"),
    (r"(?:ERROR|error): +division by zero$", "22012"),
    (r"missing data for column|extra data after last expected column", "22P04"),
    (r"deadlock detected", "40P01"),
    (r"could not serialize access", "40001"),
    (r"canceling statement due to (?:statement timeout|user request)", "57014"),
    (r"canceling statement due to lock timeout|could not obtain lock on", "55P03"),
    (r"terminating connection due to administrator command", "57P01"),
    (r"the database system is (?:starting up|shutting down|in recovery mode)", "57P03"),
    (r"too many clients already|remaining connection slots are reserved", "53300"),
    (r"could not (?:extend|write to) file .*No space left", "53100"),
    (r"cannot execute .* in a read-only transaction", "25006"),
    (r"current transaction is aborted", "25P02"),
)

#: An SQLSTATE as programs print it: five letters and digits.
SQLSTATES: Mapping[str, str] = {
    "psql": r"^(?:psql:\S*?:\d+: )?(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): ",  # with VERBOSITY verbose
    "mysql": r"\bERROR \d{4} \(([0-9A-Z]{5})\)(?=:| at line \d)",
    "jdbc": r"\b(?:SQLSTATE|SQLState|SQL state)[\[ :=]+([0-9A-Z]{5})\b(?! \w)",  # PDO, JDBC, DB2
    "odbc": r"\[([0-9A-Z]{5})\] ?\[(?:Microsoft|unixODBC|MySQL|Oracle|IBM|Cloudera|Simba)\b",
}


# --- HTTP ------------------------------------------------------------------------------------------------------------

#: The reason phrases of statuses, as RFC 9110 and the usual servers write them.
_REASONS: Mapping[int, str] = {
    400: "Bad Request",
    401: "Unauthorized|Authorization Required",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Time-?out",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "(?:Payload|Content|Request Entity) Too Large",
    414: "(?:Request-)?URI Too (?:Long|Large)",
    415: "Unsupported Media Type",
    416: "(?:Requested )?Range Not Satisfiable",
    421: "Misdirected Request",
    422: "Unprocessable (?:Entity|Content)",
    423: "Locked",
    424: "Failed Dependency",
    425: "Too Early",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    451: "Unavailable For Legal Reasons",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway|Proxy Error",
    503: "Service (?:Temporarily )?Unavailable|Slow Down|Backend Error",
    504: "Gateway Time-?out",
    505: "HTTP Version Not Supported",
    507: "Insufficient Storage",
    511: "Network Authentication Required",
    522: "Connection Timed Out",
}

_CODE = r"([45]\d\d)"
#: After a status: no unit, no counted thing.
_NO_COUNT = (
    r"(?![\w%]|\.\d|-\d)(?=\s*(?:$|[^\w\s])|\s+(?-i:[A-Z])"
    r"|\s+(?:for|from|when|while|on|at|by|returned|response|received|and)\b|\s+[\w.]+=)"
)


def _status_with_reason(status: int, reason: str) -> str:
    words = rf"(?-i:{reason})"
    return rf"\b({status})[ :(-]{{1,3}}{words}{_END}|{words} \(({status})\)"


#: An HTTP status of a failure, as programs and libraries print it, without regard to case; each has the status alone as
#: its group.
STATUSES: Mapping[str, str] = {
    "curl": rf"\bThe requested URL returned error: {_CODE}\b",  # git as well
    "wget": rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d ERROR {_CODE}: |\bHTTP ERROR response {_CODE}\b",
    "http": r"\bHTTPS?(?:/[\d.]+)?(?:[ _-](?:error|status|code|response|request|failed|returned|server|client|get|post"
    rf"|put|with|a|of|was|is))*(?:[ :=]+|\s*\(){_CODE}{_NO_COUNT}",
    "url": r"(?=.*https?://).*?\b(?:status|code|error|response|returned|failed with|got|received)"
    rf"(?:[ _]?code)?\"?[ :=(]+{_CODE}{_NO_COUNT}",
    "server": r"\b(?:server|request|response|endpoint|upstream|webhook|registry|gateway|proxy|unexpected|bad)\b"
    rf"[^:;,]{{0,60}}\bstatus(?:[ _]?code)?(?: of)?[ :=]+{_CODE}{_NO_COUNT}",
    "aws": rf"An error occurred \({_CODE}\) when calling|\bS3 error: {_CODE} \("
    rf"|\bStatus ?Code: {_CODE}[;,] ?(?:AWS )?(?:Request|Error|Service)",
    "gsutil": r"\b(?:Service|AccessDenied|BadRequest|NotFound|ResumableUpload|ResumableUploadAbort|Unauthorized)"
    rf"Exception: {_CODE} ",
    "google": rf"\bgoogle\.\w[\w.]*: {_CODE} ",
    "types": rf"\bHTTP(?:Status|Response|Client|Server)?(?:Error|Exception):? {_CODE}{_NO_COUNT}",
    "requests": rf"\b{_CODE} (?:Client|Server) Error: ",
    "npm": rf"\bnpm (?:ERR!|error) code E{_CODE}\b",
    "reason": "|".join(_status_with_reason(status, reason) for status, reason in _REASONS.items()),
}
HTTP_STATUSES = "|".join(STATUSES.values())


# --- Which line names the error --------------------------------------------------------------------------------------

#: Lines that explain, repeat or follow an error: they count only if the output has no other line.
CONSEQUENCES = (
    r"^(?:psql:\S*?:\d+: )?(?:DETAIL|HINT|CONTEXT|LOCATION|STATEMENT|QUERY|NOTICE|WARNING): "
    r"|^LINE \d+: "
    r"|^[\s~^-]*(?:error here[\s~^-]*)?$"  # a mark below the place in a query
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
    r"|^\s*(?:\S+: line \d+: +)?\d+ +(?:Done|Exit \d+|Running|Stopped)\b.*\| "  # a job of bash that ended a pipe
)

#: What marks a line as an error, without regard to case.
ERROR_MARKS = (
    r"error|fatal|panic|fail(?:ed|ure)|exception|denied|refused|cannot|can't|could not|couldn't|unable to|not found"
    r"|no such|invalid|abort|^curl: \(\d+\)|^(?:ssh|rsync|wget|psql|pg_dump|aws|gsutil)(?:\[\d+\])?: |^\w[\w.]*Exit: "
)
NO_ERRORS = r"\b(?:0|no|without) (?:error|fail|exception)"
