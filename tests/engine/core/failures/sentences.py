"""Sentences of programs for each phrase of ``phrases.py``: those that match it, and those that must not.

A sentence that must not match is of a program as well: it lists, counts, quotes or names what the phrase is about. No
phrase at all may match it, so that it says nothing about the class of the failure.
"""

from __future__ import annotations

from typing import NamedTuple


class Sentences(NamedTuple):
    """Of one phrase."""

    matching: tuple[str, ...]
    others: tuple[str, ...]


REFUSED_LOGINS = {
    "postgres": Sentences(
        (
            'psql: error: connection to server at "db", port 5432 failed: FATAL:  password authentication failed for'
            ' user "etl"',
            'FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "etl", database "dwh", no encryption',
            'psql: error: FATAL:  Peer authentication failed for user "postgres"',
        ),
        (
            "Error: report 'password authentication failed for user' has 12 rows too many",
            "ERROR: 3 lines of the log name no pg_hba.conf entry for host",
        ),
    ),
    "no password": Sentences(
        ("psql: error: fe_sendauth: no password supplied", "pg_dump: error: FATAL: no password supplied"),
        ("Error: 4 users with no password supplied by the source", "error: no password supplied column in users.csv"),
    ),
    "ssh": Sentences(
        ("deploy@host: Permission denied (publickey).", "git@github.com: Permission denied (publickey,password)."),
        ("Error: 7 rows of auth.log: class permission denied publickey", "ERROR: publickey column not found"),
    ),
    "ssh password": Sentences(
        (
            "Permission denied, please try again.",
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
        ),
        ("Error: too many authentication failures table rows: 17",),
    ),
    "authentication": Sentences(
        (
            "MongoServerError: Authentication failed.",
            "535 5.7.8 Error: authentication failed: UGFzc3dvcmQ6",
            "rabbitmq: ACCESS_REFUSED: authentication failure",
        ),
        (
            "Error: 12 rows of authentication failed events could not be matched",
            "error: authentication failed_logins.csv has 3 columns",
            "FAILED: table authentication_failures has duplicates",
        ),
    ),
    "rsync": Sentences(("@ERROR: auth failed on module backup",), ("error: auth failed on 3 of 7 modules in report",)),
    "git": Sentences(
        (
            "fatal: could not read Username for 'https://github.com': No such device or address",
            "fatal: Authentication failed for 'https://github.com/a/b.git/'",
        ),
        ("Error: could not read Username column of users.csv", "Error: 3 lines with Authentication failed for users"),
    ),
    "credentials": Sentences(
        (
            "remote: Invalid username or password.",
            "ldap_bind: Invalid credentials (49)",
            "ORA-01017: invalid username/password; logon denied",
        ),
        (
            "Error: invalid credentials table: 3 rows too many",
            "Error: invalid credentials: 3 rows",
            "ERROR: 7 invalid credentials rows were found in the import",
        ),
    ),
    "login": Sentences(
        ("Login incorrect", "530 Login incorrect.", "curl: (67) login denied"),
        ("Error: login denied list has 40 rows", "ERROR: 12 login incorrect events in audit.csv"),
    ),
    "sql server": Sentences(
        (
            "Sqlcmd: Error: Microsoft ODBC Driver 18 : Login failed for user 'etl'.",
            "Msg 18456: Login failed for user 'sa'",
        ),
        ("Error: 31 events 'Login failed' for user groups could not be loaded",),
    ),
    "mysql": Sentences(
        (
            "ERROR 1045 (28000): Access denied for user 'etl'@'localhost' (using password: YES)",
            "java.sql.SQLException: Access denied for user 'etl'@'10.0.0.3'",
        ),
        ("Error: access denied for user groups: 12 rows", "ERROR: 3 of access denied for user events differ"),
    ),
    "aws": Sentences(
        (
            "An error occurred (AccessDenied) when calling the ListBuckets operation: Access Denied",
            "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject operation",
            "ERROR: S3 error: 403 (AccessDenied): Access Denied",
            "AccessDenied: Access Denied status code: 403, request id: 4F2",
        ),
        (
            "Error: 403 AccessDenied events in cloudtrail.json could not be matched",
            "error: column AccessDeniedException not found",
            "An error occurred when 12 AccessDenied rows were loaded",
        ),
    ),
    "aws credentials": Sentences(
        (
            'Unable to locate credentials. You can configure credentials by running "aws configure".',
            "An error occurred (X) when calling the Y operation: The security token included in the request is expired",
        ),
        ("Error: unable to locate credentials.csv", "ERROR: unable to locate credentials rows: 3"),
    ),
    "google": Sentences(
        (
            "ERROR: (gcloud.compute.instances.list) PERMISSION_DENIED: Required 'compute.instances.list' permission",
            "ERROR: (gcloud.auth) You do not currently have an active account selected.",
            "rpc error: code = 16 desc = UNAUTHENTICATED: token expired",
        ),
        ("Error: 12 rows with PERMISSION_DENIED in audit.json", "ERROR: enum has no PERMISSION_DENIED_COUNT"),
    ),
    "kubernetes": Sentences(
        (
            'Error from server (Forbidden): pods is forbidden: User "ci" cannot list resource "pods"',
            "error: You must be logged in to the server (Unauthorized)",
        ),
        ("Error from server logs: 12 lines forbidden by policy", "error: 3 users must be logged in to the report"),
    ),
    "docker": Sentences(
        (
            "Error response from daemon: unauthorized: authentication required",
            "denied: requested access to the resource is denied",
            "Error response from daemon: Head https://x.dkr.ecr.eu-west-1.amazonaws.com: no basic auth credentials",
        ),
        ("Error: state 'unauthorized' of 3 authentications required", "denied: 12 of 40 requested rows"),
    ),
}

MISTAKES = {
    "host key": Sentences(
        ("Host key verification failed.", "fatal: Host key verification failed."),
        ("Error: 3 hosts where host key verification failed last night",),
    ),
    "option": Sentences(
        (
            "rsync: --foo: unknown option: --foo",
            "tar: unrecognized option '--zstdx'",
            "sort: invalid option -- 'q'",
            "sed: illegal option -- r",
            "error: unknown option `porcelainx'",
        ),
        (
            "Error: invalid option in row 17 of trades.csv",
            "ERROR: unknown option type C in 12 trades",
            "FAILED: illegal option exercise dates: 3",
        ),
    ),
    "kubernetes": Sentences(
        (
            'Error from server (NotFound): deployments.apps "etl" not found',
            'Error from server (AlreadyExists): jobs.batch "etl" already exists',
        ),
        ("Error from server report (3 NotFound): see log",),
    ),
    "sqlite": Sentences(
        (
            "Error: in prepare, no such table: daly",
            "Parse error near line 1: no such column: amuont",
            "sqlite3.OperationalError: no such table: nope",
            'Error: in prepare, near "selct": syntax error',
            "Error: stepping, UNIQUE constraint failed: u.a (19)",
            "Error: in prepare, file is not a database (26)",
            "Runtime error: attempt to write a readonly database (8)",
            "Error: in prepare, table raw already exists",
        ),
        (
            "Error: no such table in the report of 12 rows",
            "ERROR: 3 rows for which UNIQUE constraint failed last night",
            "FAILED: file is not a database_dump",
        ),
    ),
    "verify": Sentences(
        (
            "ssl.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer",
            "wget: certificate verification failed for 'x'",
        ),
        ("Error: certificate rows to verify: 12 failed", "ERROR: 3 verify steps of certificates failed"),
    ),
    "curl": Sentences(
        (
            "curl: (60) SSL certificate problem: unable to get local issuer certificate",
            "fatal: unable to access 'https://x/': server certificate verification failed. CAfile: none CRLfile: none",
        ),
        ("Error: ssl certificates: problem in 12 rows",),
    ),
    "expired": Sentences(
        (
            "Error: certificate has expired",
            "x509: certificate has expired or is not yet valid: current time 2026-01-01 is after 2025",
            "npm ERR! request to https://r/ failed, reason: certificate has expired",
        ),
        (
            "Error: 3 customers whose certificate has expired in 2025",
            "ERROR: certificate has expired date 2025-01-01 in row 7",
        ),
    ),
    "self-signed": Sentences(
        (
            "npm ERR! self-signed certificate in certificate chain",
            "Error: self signed certificate",
        ),
        ("Error: 12 self-signed certificates in the inventory could not be matched",),
    ),
    "authority": Sentences(
        (
            "Get https://x/: x509: certificate signed by unknown authority",
            "x509: certificate is valid for a.example, not b.example",
        ),
        ("Error: 3 certificates signed by unknown authority in list.csv",),
    ),
}

OUTAGES = {
    "connection": Sentences(
        (
            "ssh: connect to host 127.0.0.1 port 1: Connection refused",
            "dial tcp 10.0.0.5:5432: connect: connection refused",
            "urllib3.exceptions.NewConnectionError: <x>: Failed to establish a new connection: [Errno 111] Connection"
            " refused",
            "kex_exchange_identification: Connection closed by remote host",
            "java.net.SocketException: Connection reset",
            "curl: (56) Recv failure: Connection reset by peer",
            "org.postgresql.util.PSQLException: Connection to db:5432 refused. Check that the hostname is correct",
            "psycopg.OperationalError: the connection is closed",
            "Connection to 10.0.0.1 closed by remote host.",
            "nginx: connect() failed (111: Connection refused) while connecting to upstream",
            'level=error msg="connection refused" host=db',
            '{"error":"connection refused","host":"db"}',
            "request failed with 'Connection refused' while connecting to db",
        ),
        (
            "Error: connection refused count is 12, expected 0",
            "Error: 'connection refused' is no valid status of an order",
            'Error: report "Connection refused" has 3 rows',
            "ERROR: 7 rows of the connection closed table differ",
            "Error: column connection_lost not found",
            "FAILED: connection reset statistics: 3 missing days",
            "Error: the connection refused report is missing",
            "Error: connection refused in 3 of 400 probes",
            "Error: connection closed by 3 users",
            "ValueError: unknown reason 'connection reset' in row 12",
        ),
    ),
    "kubernetes": Sentences(
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
        ),
        ("Error from server statistics: 3 ServiceUnavailable rows too many",),
    ),
    "connect": Sentences(
        (
            "psql: error: could not connect to server: Connection timed out",
            "curl: (7) Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server",
            "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
            "ERROR 2003 (HY000): Can't connect to MySQL server on 'db' (111)",
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        ),
        (
            "Error: 12 orders could not connect to a customer",
            "ERROR: rows that failed to connect accounts: 7",
            "Error: unable to connect_by_id: no column",
        ),
    ),
    "node": Sentences(
        (
            "Error: connect ECONNREFUSED 127.0.0.1:5432",
            "npm ERR! code ETIMEDOUT",
            "Error: read ECONNRESET",
            "Error: getaddrinfo EAI_AGAIN registry.npmjs.org",
        ),
        ("Error: 12 ECONNREFUSED_EVENTS rows differ", "Error: 3 lines with ECONNRESET in app.log"),
    ),
    "route": Sentences(
        (
            "ssh: connect to host db port 22: No route to host",
            "connect: Network is unreachable",
            "java.net.NoRouteToHostException: No route to host (Host unreachable)",
        ),
        ("Error: 3 shipments with no route to host country", "ERROR: network is unreachable_nodes: no column"),
    ),
    "resolve": Sentences(
        (
            "curl: (6) Could not resolve host: nosuch.invalid",
            "ssh: Could not resolve hostname nosuch: Name or service not known",
            "wget: unable to resolve host address 'nosuch.invalid'",
            'could not translate host name "db" to address: Temporary failure in name resolution',
        ),
        (
            "Error: could not resolve 12 merge conflicts",
            "pip: ERROR: could not resolve dependencies for x",
            "ERROR: 3 tickets that support could not resolve: hosts",
        ),
    ),
    "names": Sentences(
        (
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "socket.gaierror: [Errno -2] Name or service not known",
            "dial tcp: lookup db.internal on 10.0.0.2:53: no such host",
            "dial tcp: lookup db on 127.0.0.53:53: server misbehaving",
            "socket.gaierror: [Errno 11001] getaddrinfo failed",
        ),
        ("Error: no such host_id 12 in hosts.csv", "ERROR: 4 rows: name or service not known_names"),
    ),
    "mysql host": Sentences(
        ("ERROR 2005 (HY000): Unknown MySQL server host 'db' (-2)",), ("Error: unknown MySQL server in 3 rows",)
    ),
    "libpq": Sentences(
        (
            'psql: error: connection to server at "10.0.0.5", port 5432 failed: Connection refused',
            "server closed the connection unexpectedly",
            "could not receive data from server: Connection timed out",
            "psycopg2.OperationalError: SSL SYSCALL error: EOF detected",
        ),
        ("Error: 3 rows: could not receive data from server_list",),
    ),
    "closed": Sentences(
        (
            "client: remote host closed connection",
            "http.client: Remote end closed connection without response",
        ),
        ("Error: 12 tickets: server closed connections list",),
    ),
    "system": Sentences(
        (
            "write: Broken pipe",
            "OSError: [Errno 24] Too many open files: 'x.csv'",
            "accept4() failed (24: Too many open files)",
            "fork: retry: Resource temporarily unavailable",
        ),
        (
            "Error: too many open files in archive",
            "ERROR: a broken pipe was reported for pump station 7",
            "Error: 12 too many open files_per_user rows",
            "Error: broken pipe segments: 3",
        ),
    ),
    "timed out": Sentences(
        (
            "curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received",
            "ssh: connect to host db port 22: Connection timed out",
            "java.net.SocketTimeoutException: Read timed out",
            "requests.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out. (read timeout=5)",
            "TimeoutError: [Errno 110] Connection timed out",
            "rsync error: error in socket IO: timed out waiting for daemon",
            "TimeoutError: The read operation timed out",
        ),
        (
            "Error: see the timed out list",
            "ERROR: timed out: 12 rows",
            "ERROR: 12 jobs are in the timed out state",
            "Error: timed out orders: 7",
            "FAILED: column timed_out not found",
            "Error: 3 sessions timed out yesterday and were not closed",
        ),
    ),
    "timeout": Sentences(
        (
            "psql: error: timeout expired",
            "dial tcp 10.0.0.1:443: i/o timeout",
            "net/http: TLS handshake timeout",
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "Client.Timeout exceeded while awaiting headers",
        ),
        (
            "Error: read timeout column is empty",
            "ERROR: 12 orders whose deadline exceeded the plan",
            "Error: connect timeout_ms is not a number",
            "Error: 7 contracts with timeout expired in May",
        ),
    ),
    "types": Sentences(
        (
            "java.net.ConnectException: failed",
            "google.api_core.exceptions.ServiceUnavailable: down",
            "Caused by: java.net.UnknownHostException: db",
            "builtins.TimeoutError",
        ),
        ("Error: 3 rows of kind TimeoutErrors", "ERROR: class ConnectExceptionMapper is missing"),
    ),
    "cut": Sentences(
        (
            "curl: (52) Empty reply from server",
            "fatal: early EOF",
            "fatal: the remote end hung up unexpectedly",
            "Get https://x/: unexpected EOF",
            "OpenSSL: error:0A000126:SSL routines::unexpected eof while reading",
        ),
        (
            "tar: Unexpected EOF in archive",
            "bash: line 3: unexpected EOF while looking for matching `\"'",
            "Error: unexpected EOF while parsing orders.json",
            "Error: early EOF marker in row 7",
        ),
    ),
    "rsync": Sentences(
        ("rsync: connection unexpectedly closed (0 bytes received so far) [sender]",),
        ("Error: 3 accounts: connection unexpectedly closed_at",),
    ),
    "tls": Sentences(
        (
            "curl: (35) OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to x:443",
            "curl: (55) Send failure: pipe",
            "error: RPC failed; curl 56 GnuTLS recv error (-54): Error in the pull function.",
        ),
        ("Error: 3 send failures in mails.csv", "ERROR: recv error rates are missing"),
    ),
    "git": Sentences(
        ("error: RPC failed; HTTP 502 curl 22", "error: RPC failed; result=22, HTTP code = 0"),
        ("Error: 3 calls whose RPC failed are missing in the report",),
    ),
    "aws": Sentences(
        (
            "An error occurred (ThrottlingException) when calling the StartQuery operation (reached max retries: 4)",
            "upload failed: An error occurred (SlowDown) when calling the PutObject operation",
            "<Error><Code>InternalError</Code></Error>",
            "RequestLimitExceeded: Request limit exceeded.",
        ),
        (
            "Error: 12 InternalError rows in app.log could not be matched",
            "ERROR: Throttling rules differ: 3",
            "Error: column ServiceUnavailable not found",
        ),
    ),
    "rate": Sentences(
        (
            "Error: API rate limit exceeded for 10.0.0.1",
            "botocore: An error occurred: Rate exceeded",
            "remote: Too many requests. Please wait",
            "rpc error: code = ResourceExhausted desc = RESOURCE_EXHAUSTED: quota",
        ),
        (
            "Error: rate limit exceeded rows: 12",
            "ERROR: interest rate exceeded 12 percent in 3 rows",
            "Error: 7 customers with too many requests per year",
        ),
    ),
    "docker": Sentences(
        (
            "toomanyrequests: You have reached your pull rate limit.",
            "You have reached your unauthenticated pull rate limit",
        ),
        ("Error: table toomanyrequests_log not found",),
    ),
    "rsync daemon": Sentences(
        ("@ERROR: max connections (4) reached -- try again later",), ("Error: max connections reached by 3 devices",)
    ),
    "unavailable": Sentences(
        (
            "Error: service unavailable",
            "smtp: temporarily unavailable",
            "upstream: Bad Gateway",
            "451 4.7.1: Please try again later",
        ),
        (
            "Error: 12 products are temporarily unavailable in the shop",
            "ERROR: service unavailable hours: 3 rows differ",
            "Error: bad gateway ids: 7",
        ),
    ),
    "mysql": Sentences(
        (
            "ERROR 2006 (HY000) at line 1: MySQL server has gone away",
            "ERROR 2013 (HY000): Lost connection to MySQL server during query",
            "ERROR 1205 (HY000): Lock wait timeout exceeded; try restarting transaction",
            "Deadlock found when trying to get lock; try restarting transaction",
        ),
        ("Error: 3 servers have gone away", "ERROR: deadlock found rows: 4"),
    ),
    "sqlite": Sentences(
        (
            "Error: database is locked",
            "sqlite3.OperationalError: database is locked",
            "Runtime error: database table is locked",
        ),
        ("Error: 3 tenants whose database is locked by contract", "ERROR: database is locked_by 7"),
    ),
    "starting": Sentences(
        ("psql: error: FATAL:  the database system is starting up", "FATAL:  the database system is shutting down"),
        ("Error: 3 hosts where the database system is starting up slowly",),
    ),
    "slots": Sentences(
        (
            "FATAL:  sorry, too many clients already",
            "ERROR 1040 (HY000): Too many connections",
            "FATAL:  remaining connection slots are reserved for non-replication superuser connections",
        ),
        ("Error: too many connections per station: 12", "ERROR: 3 agents with too many clients in crm.csv"),
    ),
    "kafka": Sentences(
        ("WARN Connection to node -1 could not be established. Broker may not be available.",),
        ("Error: 3 brokers may be unavailable on sunday",),
    ),
}

PERMANENT_SYSTEM = {
    "permission": Sentences(
        (
            "mkdir: cannot create directory '/data': Permission denied",
            "bash: ./load.sh: Permission denied",
            'rsync: send_files failed to open "/x": Permission denied (13)',
            "PermissionError: [Errno 13] Permission denied: '/x'",
            "docker: Got permission denied while trying to connect to the Docker daemon socket",
        ),
        (
            "Error: 12 users with permission denied in the report",
            "ERROR: permission denied rows: 4",
            "Error: column permission_denied not found",
        ),
    ),
    "file system": Sentences(
        ("touch: cannot touch 'x': Read-only file system", "cat: /tmp: Is a directory", "cd: x: Not a directory"),
        ("Error: the third argument is a directory of users", "ERROR: 3 hosts with a read-only file system last week"),
    ),
}

AMBIGUOUS_SYSTEM = {
    "file": Sentences(
        (
            "cat: orders.csv: No such file or directory",
            "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
            "open /x: no such file or directory",
        ),
        ("Error: 3 messages of no such file or directory kind were counted",),
    ),
    "space": Sentences(
        ("write error: No space left on device", "cp: error writing 'x': Disk quota exceeded"),
        ("Error: 12 devices with no space left on device type B", "ERROR: disk quota exceeded_by is no number"),
    ),
    "address": Sentences(
        ("OSError: [Errno 98] Address already in use", "listen tcp :8080: bind: address already in use"),
        ("Error: 4 customers with an address already in use by others",),
    ),
}

MEMORY_SYSTEM = {
    "memory": Sentences(
        ("fork: Cannot allocate memory", "mmap: Cannot allocate memory (os error 12)"),
        ("Error: cannot allocate memory_slots to 3 jobs",),
    ),
    "types": Sentences(
        (
            "MemoryError",
            "java.lang.OutOfMemoryError: Java heap space",
            'Exception in thread "main" java.lang.OutOfMemoryError',
        ),
        ("Error: 3 rows of class OutOfMemoryErrorReport", "ERROR: MemoryErrors: see report"),
    ),
    "c++": Sentences(
        ("terminate called after throwing an instance of 'std::bad_alloc'",), ("Error: bad_alloc rows: 3",)
    ),
}

#: Of HTTP statuses: sentences with the status that they say.
STATUSES: dict[str, tuple[tuple[tuple[str, int], ...], tuple[str, ...]]] = {
    "curl": (
        (
            ("curl: (22) The requested URL returned error: 503", 503),
            ("fatal: unable to access 'https://x/a.git/': The requested URL returned error: 403", 403),
        ),
        ("Error: the check returned error: 401 rows", "ERROR: the import returned error: 404"),
    ),
    "wget": (
        (
            ("2026-11-22 15:31:28 ERROR 404: Not Found.", 404),
            ("2026-11-22 15:31:28 ERROR 520: (no description).", 520),
            ("HTTP ERROR response 503  [https://x/]", 503),
        ),
        ("ERROR 404: rows differ", "2026-11-22 ERROR 503: files are missing"),
    ),
    "http": (
        (
            ("HTTP Error 404: Not Found", 404),
            ("Server returned HTTP response code: 503 for URL: https://x/", 503),
            ("request failed: HTTP/1.1 502", 502),
            ("http_status=429", 429),
            ("ERROR: HTTP error 404 while getting https://x/", 404),
            ("upload failed (HTTP 500)", 500),
        ),
        (
            "Error: HTTP 404 rows in access.log could not be matched",
            "ERROR: http log: 503 lines differ",
            "Error: 500 HTTP calls are missing in the report",
        ),
    ),
    "url": (
        (
            ("Error: GET https://x/y: status 503", 503),
            ("level=error status=502 url=https://x/y", 502),
            ("Error: HEAD https://r/v2/: failed with 401", 401),
            ("error: https://x/y returned 404", 404),
        ),
        (
            "Error: 401 rows of https://dwh/x could not be matched",
            "ERROR: https://x/report has status: 404 rows are missing",
            "Error: https://x/a.csv: error: 500 lines differ",
        ),
    ),
    "server": (
        (
            ("Error: Request failed with status code 503", 503),
            ("Failed to load resource: the server responded with a status of 404 ()", 404),
            ("error: unexpected status code 429", 429),
        ),
        (
            "Error: order status 404 is unknown",
            "ERROR: status: 401 rows",
            "Error: 12 requests with status 500 rows",
            "FAILED: exit status 503",
        ),
    ),
    "aws": (
        (
            ("An error occurred (503) when calling the ListBuckets operation", 503),
            ("ERROR: S3 error: 404 (NoSuchKey): The specified key does not exist.", 404),
            ("(Service: Amazon S3; Status Code: 400; Error Code: X; Request ID: Y)", 400),
            ("RequestError: send failed status code: 403, request id: 4F2", 403),
        ),
        ("An error occurred (503) times", "Error: status code: 404, rows: 3"),
    ),
    "gsutil": (
        (
            ("ServiceException: 503 We encountered an internal error", 503),
            ("AccessDeniedException: 403 etl does not have storage.objects.list access", 403),
            ("BadRequestException: 400 Invalid argument.", 400),
        ),
        ("LoadException: 401 rows could not be matched", "Exception: 503 files differ"),
    ),
    "google": (
        (
            ("google.api_core.exceptions.Forbidden: 403 Access denied", 403),
            ("google.cloud.exceptions.NotFound: 404 Not found: Table x", 404),
        ),
        ("google: 404 rows differ", "Error in google sheet: 500 rows"),
    ),
    "types": (
        (
            ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://x/", 404),
            ("ERROR: (gcloud.storage.cp) HTTPError 403: etl does not have access", 403),
            ('<HttpError 503 when requesting https://x/ returned "down">', 503),
        ),
        ("ValueError: 401 rows could not be matched", "RuntimeError: 503 orders"),
    ),
    "requests": (
        (("500 Server Error: Internal for url: https://x/", 500), ("403 Client Error: Forbidden for url: x", 403)),
        ("Error: 404 client errors in support.csv",),
    ),
    "npm": (
        (("npm ERR! code E404", 404), ("npm error code E503", 503)),
        ("Error: article code E404 not found", "npm ERR! 404 modules differ"),
    ),
    "reason": (
        (
            ("upload: 401 Unauthorized", 401),
            ("npm ERR! 404 Not Found - GET https://registry.npmjs.org/nosuch", 404),
            ("Response status code does not indicate success: 503 (Service Unavailable).", 503),
            ("Error: Forbidden (403)", 403),
            ("received unexpected HTTP status: 500 Internal Server Error", 500),
            ("HTTP request sent, awaiting response... 429 Too Many Requests", 429),
            ("nginx: 504 Gateway Time-out", 504),
        ),
        (
            "Error: 401 rows could not be matched",
            "Error: 404 not found in the list of orders",
            "ERROR: 409 conflicts in 3 files",
            "Error: 410 gone customers",
            "error: 401 files differ",
            "Error: 423 locked accounts",
            "Error: 429 requests were too many",
            "Error: 503 rows could not be matched",
        ),
    ),
}

#: Of SQL: sentences with the SQLSTATE that they say.
SQLSTATES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "psql": (
        (
            ('psql:load.sql:2: ERROR:  42P01: relation "nope" does not exist', "42P01"),
            ("FATAL:  57P03: the database system is starting up", "57P03"),
        ),
        ("ERROR: 40001: rows differ", "ERROR: HOUSE: 3 rows", "Error: 23505: article not found"),
    ),
    "mysql": (
        (
            ("ERROR 1213 (40001) at line 1: Deadlock found when trying to get lock", "40001"),
            ("ERROR 1146 (42S02): Table 'a.b' doesn't exist", "42S02"),
        ),
        ("ERROR 12 (EUROS) are missing", "ERROR 1213 (40001) rows differ"),
    ),
    "jdbc": (
        (
            ("SQLSTATE[42S02]: Base table or view not found", "42S02"),
            ("DB2 SQL Error: SQLCODE=-204, SQLSTATE=42704", "42704"),
            ("SQL state: 23505", "23505"),
        ),
        ("Error: SQLSTATE 40001 rows were counted", "ERROR: SQLSTATES 23505"),
    ),
    "odbc": (
        (("[42S02] [Microsoft][ODBC Driver 18 for SQL Server]Invalid object name", "42S02"),),
        ("Error: [40001] [Berlin] rows differ",),
    ),
}

#: Messages of PostgreSQL by SQLSTATE: as psql prints them, and sentences that no message of it are.
POSTGRES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "42601": (('ERROR:  syntax error at or near "selec"',), ("Error: syntax error at or near row 7",)),
    "42P01": (('ERROR:  relation "nope" does not exist',), ('Error: relation "parent" does not exist in tree.csv',)),
    "42703": (('ERROR:  column "x" does not exist',), ("Error: column total does not exist in orders.csv",)),
    "42883": (("ERROR:  function f(integer) does not exist",), ("Error: function f of staff 7 does not exist",)),
    "42704": (('ERROR:  type "money2" does not exist',), ('Error: order type "X" does not exist in codes.csv',)),
    "42501": (
        ("ERROR:  permission denied for table orders", "ERROR:  must be owner of table orders"),
        ("Error: permission denied for 3 users", "Error: customers must be owner of a card"),
    ),
    "42P07": (('ERROR:  relation "x" already exists',), ('Error: relation "x" already exists in graph.json',)),
    "42804": (
        ('ERROR:  column "a" is of type integer but expression is of type text',),
        ("Error: column a is of type 3",),
    ),
    "3F000": (('ERROR:  schema "x" does not exist',), ('Error: schema "x" does not exist in catalog.json',)),
    "3D000": (('psql: error: FATAL:  database "x" does not exist',), ('Error: database "x" does not exist in list',)),
    "28000": (
        ('psql: error: FATAL:  role "x" does not exist', 'FATAL:  no pg_hba.conf entry for host "10.0.0.1"'),
        ('Error: role "x" does not exist in roles.csv',),
    ),
    "28P01": (
        ('FATAL:  password authentication failed for user "x"',),
        ("Error: password authentication failed_total",),
    ),
    "23505": (
        ('ERROR:  duplicate key value violates unique constraint "x"',),
        ("Error: row 7 violates unique constraint of the report",),
    ),
    "23503": (
        ('ERROR:  insert or update on table "a" violates foreign key constraint "b"',),
        ("Error: 3 rows: rule 'violates foreign key constraint' of the check",),
    ),
    "23502": (
        ('ERROR:  null value in column "a" of relation "b" violates not-null constraint',),
        ("Error: 3 rows: rule violates not-null constraint",),
    ),
    "23514": (
        ('ERROR:  new row for relation "a" violates check constraint "b"',),
        ("Error: cell B7 violates check constraint 3",),
    ),
    "22P02": (('ERROR:  invalid input syntax for type integer: "x"',), ("Error: invalid input syntax for row 7",)),
    "22001": (("ERROR:  value too long for type character varying(3)",), ("Error: value too long for type B parcels",)),
    "22003": (
        ("ERROR:  integer out of range", 'ERROR:  value "9" is out of range for type integer'),
        ("Error: integer out of range in row 7",),
    ),
    "22012": (("ERROR:  division by zero",), ("Error: division by zero in cell B7",)),
    "22P04": (
        ("ERROR:  extra data after last expected column",),
        ("Error: extra data after last expected column of x",),
    ),
    "40P01": (("ERROR:  deadlock detected",), ("Error: deadlock detected in simulation 7",)),
    "40001": (
        ("ERROR:  could not serialize access due to concurrent update",),
        ("Error: could not serialize access list",),
    ),
    "57014": (
        ("ERROR:  canceling statement due to statement timeout",),
        ("Error: 3 lines of canceling statement due to user request",),
    ),
    "55P03": (
        ('ERROR:  could not obtain lock on row in relation "x"', "ERROR:  canceling statement due to lock timeout"),
        ("Error: 3 bikes: could not obtain lock on arrival",),
    ),
    "57P01": (
        ("FATAL:  terminating connection due to administrator command",),
        ("Error: 3 lines of terminating connection due to administrator command",),
    ),
    "57P03": (("FATAL:  the database system is starting up",), ("Error: is the database system is starting up late",)),
    "53300": (("FATAL:  sorry, too many clients already",), ("Error: agent 7 has too many clients already this year",)),
    "53100": (
        ('ERROR:  could not extend file "base/1/2": No space left on device',),
        ("Error: could not extend file cabinet 7",),
    ),
    "25006": (
        ("ERROR:  cannot execute INSERT in a read-only transaction",),
        ("Error: cannot execute order 7 in a read-only transaction book",),
    ),
    "25P02": (
        ("ERROR:  current transaction is aborted, commands ignored until end of transaction block",),
        ("Error: customer 7: current transaction is aborted by phone",),
    ),
}
