"""One cause, one verdict: whether Python meets it, a library in Python, or a program that a task runs."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import subprocess
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

from redrive.engine.core.failures.classify import classify
from redrive.engine.core.failures.failure import failure_of_exit
from redrive.engine.core.outcome import FailureClass
from support.marks import for_each

TRANSIENT, PERMANENT, AMBIGUOUS = FailureClass.TRANSIENT, FailureClass.PERMANENT, FailureClass.AMBIGUOUS
AUTH, OUT_OF_MEMORY = FailureClass.AUTH, FailureClass.OUT_OF_MEMORY


class Ended(NamedTuple):
    """A program that a task ran: its command line, exit code and error output."""

    command: str
    exit_code: int
    output: str


def library(name: str, message: str, base: type[BaseException] = Exception) -> BaseException:
    """An error of a library that is not installed here: ``requests.exceptions.ConnectionError``."""
    module, _, kind = name.rpartition(".")
    error: BaseException = type(kind, (base,), {"__module__": module})(message)
    return error


def system(number: int) -> OSError:
    """The error of the operating system with this number."""
    return OSError(number, os.strerror(number), "/data/x")


def http(status: int) -> urllib.error.HTTPError:
    """An HTTP error as urllib raises it."""
    return urllib.error.HTTPError("http://bank/", status, "?", {}, BytesIO())  # type: ignore[arg-type]


WGET_TIME = "2026-11-22 15:31:28"


def curl(status: int) -> Ended:
    """The same error as curl ends with it."""
    return Ended("curl -fsS http://bank/", 22, f"curl: (22) The requested URL returned error: {status}")


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
UNTRUSTED = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: expired")

CAUSES: Mapping[str, tuple[FailureClass, Sequence[BaseException | Ended]]] = {
    "a name that does not resolve": (
        TRANSIENT,  # document 002: a DNS flap
        [
            NO_NAME,
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
            socket.gaierror(-5, "No address associated with hostname"),
            urllib.error.URLError(NO_NAME),
            library("requests.exceptions.ConnectionError", "Failed to resolve 'nosuch.invalid'", OSError),
            library("httpx.NetworkError", "[Errno -2] Name or service not known"),
            library("aiohttp.client_exceptions.ClientConnectionError", "Cannot connect to host nosuch.invalid:443"),
            library("psycopg2.OperationalError", 'could not translate host name "db" to address: Name or service'),
            library("botocore.exceptions.ConnectionError", "Could not connect to the endpoint URL"),
            Ended("curl -fsS http://nosuch.invalid/", 6, "curl: (6) Could not resolve host: nosuch.invalid"),
            Ended("curl -fs http://nosuch.invalid/", 6, ""),
            Ended("wget -q http://nosuch.invalid/", 4, ""),
            Ended("wget http://nosuch.invalid/", 4, "wget: unable to resolve host address ‘nosuch.invalid’"),
            Ended("ssh nosuch.invalid true", 255, "ssh: Could not resolve hostname nosuch.invalid: Name or service"),
            Ended("psql -h nosuch.invalid -c x", 2, 'psql: error: could not translate host name "nosuch.invalid"'),
            Ended("mysql -h db", 1, "ERROR 2005 (HY000): Unknown MySQL server host 'db' (-2)"),
            Ended("git fetch", 128, "fatal: unable to access 'https://x/': Could not resolve host: x"),
            Ended("./load.py", 1, "socket.gaierror: [Errno -2] Name or service not known"),
            Ended("node load.js", 1, "Error: getaddrinfo ENOTFOUND nosuch.invalid"),
            Ended("./load", 1, "dial tcp: lookup nosuch.invalid: no such host"),
            Ended("java -jar load.jar", 1, "java.net.UnknownHostException: nosuch.invalid"),
            Ended("./mail", 68, ""),
        ],
    ),
    "a connection that is refused": (
        TRANSIENT,
        [
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            urllib.error.URLError(ConnectionRefusedError()),
            library("psycopg2.OperationalError", "connection to server at 127.0.0.1, port 5432 failed"),
            Ended("curl -fsS http://127.0.0.1:1/", 7, "curl: (7) Failed to connect to 127.0.0.1 port 1"),
            Ended("wget -q http://127.0.0.1:1/", 4, ""),
            Ended("psql -c x", 2, "psql: error: connection to server at 127.0.0.1 failed: Connection refused"),
            Ended(
                "psql -c x", 2, 'psql: error: connection to server on socket "/run/s" failed: No such file or directory'
            ),
            Ended("./load.py", 1, "ConnectionRefusedError: [Errno 111] Connection refused"),
        ],
    ),
    "a connection that breaks": (
        TRANSIENT,
        [
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            BrokenPipeError(errno.EPIPE, "Broken pipe"),
            ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
            library("requests.exceptions.ChunkedEncodingError", "Connection broken", OSError),
            Ended("curl -fsS http://bank/", 56, "curl: (56) Recv failure: Connection reset by peer"),
            Ended("rsync a b:", 12, "rsync: connection unexpectedly closed (0 bytes received so far) [sender]"),
            Ended("./send | ssh b", 255, "client_loop: send disconnect: Broken pipe"),
            Ended("./load.py", 1, "BrokenPipeError: [Errno 32] Broken pipe"),
        ],
    ),
    "a call that takes too long": (
        TRANSIENT,
        [
            TimeoutError(),
            subprocess.TimeoutExpired("load", 3),
            library("requests.exceptions.Timeout", "Read timed out.", OSError),
            Ended("curl -fsS -m 1 http://bank/", 28, "curl: (28) Operation timed out after 1001 milliseconds"),
            Ended("timeout 3 ./load", 124, ""),
        ],
    ),
    "a certificate that is not trusted": (
        PERMANENT,
        [
            UNTRUSTED,
            urllib.error.URLError(UNTRUSTED),
            library("requests.exceptions.SSLError", f"HTTPSConnectionPool: Max retries exceeded: {UNTRUSTED}", OSError),
            library("httpx.NetworkError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
            library("aiohttp.client_exceptions.ClientConnectorCertificateError", "Cannot connect to host"),
            Ended("curl -fsS https://bank/", 60, "curl: (60) SSL certificate problem: certificate has expired"),
            Ended("wget https://bank/", 5, "ERROR: cannot verify bank's certificate"),
            Ended("git fetch", 128, "fatal: unable to access 'https://x/': server certificate verification failed."),
            Ended(
                "psql -c x", 2, "psql: error: connection to server at db failed: SSL error: certificate verify failed"
            ),
        ],
    ),
    "not found, by HTTP": (
        PERMANENT,
        [http(404), curl(404), Ended("wget http://bank/", 8, f"{WGET_TIME} ERROR 404: Not Found.")],
    ),
    "broken inside, by HTTP": (
        AMBIGUOUS,
        [http(500), curl(500), Ended("wget http://b/", 8, f"{WGET_TIME} ERROR 500: Internal.")],
    ),
    "overloaded, by HTTP": (TRANSIENT, [http(503), curl(503), http(429), curl(429)]),
    "not allowed, by HTTP": (AUTH, [http(401), curl(401), http(403), curl(403)]),
    "refused input, by HTTP": (FailureClass.VALIDATION, [http(422), curl(422)]),
    "permission denied": (
        PERMANENT,
        [
            system(errno.EACCES),
            system(errno.EPERM),
            Ended("cat /data/x", 1, "cat: /data/x: Permission denied"),
            Ended("/data/x", 126, "sh: 1: /data/x: Permission denied"),
            Ended("./load.py", 1, "PermissionError: [Errno 13] Permission denied: '/data/x'"),
        ],
    ),
    "a refused login": (
        AUTH,
        [
            library("psycopg2.OperationalError", 'FATAL: password authentication failed for user "load"'),
            Ended("psql -c x", 2, 'psql: error: FATAL:  password authentication failed for user "load"'),
            Ended("ssh db true", 255, "load@db: Permission denied (publickey,password)."),
        ],
    ),
    "a full disk": (
        AMBIGUOUS,
        [
            system(errno.ENOSPC),
            system(errno.EDQUOT),
            Ended("cp a b", 1, "cp: error writing 'b': No space left on device"),
            Ended("cp a b", 1, "cp: error writing 'b': Disk quota exceeded"),
            Ended("curl -fs -o x http://bank/", 23, ""),
            Ended("./load.py", 1, "OSError: [Errno 28] No space left on device"),
        ],
    ),
    "a file that is not there": (
        AMBIGUOUS,
        [
            system(errno.ENOENT),
            Ended("cat /data/x", 1, "cat: /data/x: No such file or directory"),
            Ended("./load.py", 1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'"),
        ],
    ),
    "a disk that cannot be written": (PERMANENT, [system(errno.EROFS), Ended("touch x", 1, "Read-only file system")]),
    "an address that is in use": (AMBIGUOUS, [system(errno.EADDRINUSE), Ended("./s", 1, "Address already in use")]),
    "too many open files": (TRANSIENT, [system(errno.EMFILE), Ended("./load", 1, "x: Too many open files")]),
    "no memory": (
        OUT_OF_MEMORY,
        [MemoryError(), system(errno.ENOMEM), Ended("./load", 1, "fork: Cannot allocate memory")],
    ),
}


def class_of(one: BaseException | Ended) -> FailureClass:
    """The class of an exception in a task, or of a command task."""
    if isinstance(one, Ended):
        return failure_of_exit(one.exit_code, stderr=one.output, command=one.command).failure_class
    return classify(one).failure_class


def in_python(one: Ended) -> subprocess.CalledProcessError:
    """The same program, run by a task in Python."""
    return subprocess.CalledProcessError(one.exit_code, one.command, stderr=one.output)


def cases() -> Iterator[tuple[BaseException | Ended, FailureClass]]:
    """Each spelling of each cause."""
    for expected, spellings in CAUSES.values():
        for one in spellings:
            yield one, expected


@for_each("one, expected", cases())
def test_a_cause_has_one_verdict(one: BaseException | Ended, expected: FailureClass) -> None:
    assert expected is class_of(one), one
    if isinstance(one, Ended):
        assert expected is class_of(in_python(one)), one
