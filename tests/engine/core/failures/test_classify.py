"""What a failure is worth, table by table: documents 002 and 004, Python, the operating system, foreign libraries."""

from __future__ import annotations

import errno
import json
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from email.message import Message
from http.client import IncompleteRead, RemoteDisconnected
from types import SimpleNamespace

import pytest
from redrive.engine.core.failures.classify import (
    RETRY_AFTER_MAX_SECONDS,
    InvalidRequestError,
    classify,
    classify_exit,
    classify_grpc,
    classify_http,
    classify_signal,
    parse_retry_after,
    parse_rules,
)
from redrive.engine.core.failures.facts import Classification
from redrive.engine.core.failures.tables import HARDEST_FIRST
from redrive.engine.core.outcome import FailureClass
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.errors import AmbiguousError, AuthError, PermanentError, RetryAfter, TransientError
from support.marks import for_each

TRANSIENT, PERMANENT, AMBIGUOUS = FailureClass.TRANSIENT, FailureClass.PERMANENT, FailureClass.AMBIGUOUS
VALIDATION, AUTH, UNCLASSIFIED = FailureClass.VALIDATION, FailureClass.AUTH, FailureClass.UNCLASSIFIED

#: The three buckets of document 004.
BUCKETS = {
    TRANSIENT: TRANSIENT,
    FailureClass.TIMEOUT: TRANSIENT,
    PERMANENT: PERMANENT,
    VALIDATION: PERMANENT,
    AUTH: PERMANENT,
    AMBIGUOUS: AMBIGUOUS,
    UNCLASSIFIED: AMBIGUOUS,
    FailureClass.OUT_OF_MEMORY: AMBIGUOUS,
}


def foreign(module: str, name: str, *bases: type, **attributes: object) -> type:
    """A class of a library that is not installed, as its exceptions look from outside."""
    return type(name, bases or (Exception,), {"__module__": module, **attributes})


def classed(error: BaseException, **options: object) -> FailureClass:
    return classify(error, **options).failure_class  # type: ignore[arg-type]


class TestBuckets:
    @for_each(
        "error, expected",
        [
            (classify_http(503), TRANSIENT),
            (classify_http(401), PERMANENT),
            (classify_http(429, retry_after=30), TRANSIENT),
            (json.JSONDecodeError("Expecting value", "{,}", 1), PERMANENT),
            (ConnectionResetError(104, "Connection reset by peer"), TRANSIENT),
            (sqlite3.IntegrityError("FOREIGN KEY constraint failed"), PERMANENT),
        ],
    )
    def test_the_six_rows_of_document_004(self, error, expected):
        """004.03: 503, 401, 429, bad row, connection reset, foreign key."""
        assert BUCKETS[classed(error)] is expected

    def test_every_class_has_a_bucket_and_a_place_in_the_order_of_hardness(self):
        """004.02: transient, permanent, ambiguous; nothing is outside of the three."""
        assert set(BUCKETS) == set(FailureClass) == set(HARDEST_FIRST)
        assert set(BUCKETS.values()) == {TRANSIENT, PERMANENT, AMBIGUOUS}

    def test_a_real_foreign_key_violation_is_permanent(self):
        """004.03, by the error that SQLite itself raises."""
        connection = sqlite3.connect(":memory:")
        connection.executescript(
            "PRAGMA foreign_keys=ON; CREATE TABLE a (id PRIMARY KEY); CREATE TABLE b (a REFERENCES a(id));"
        )
        with pytest.raises(sqlite3.IntegrityError) as caught:
            connection.execute("INSERT INTO b VALUES (1)")
        assert classify(caught.value) == Classification(PERMANENT, None, "SQLITE_CONSTRAINT_FOREIGNKEY")


class TestHttp:
    @for_each(
        "status, kind",
        [
            (408, TransientError),
            (425, TransientError),
            (429, TransientError),
            (502, TransientError),
            (503, TransientError),
            (504, TransientError),
            (401, AuthError),
            (403, AuthError),
            (407, AuthError),
            (400, InvalidRequestError),
            (422, InvalidRequestError),
            (404, PermanentError),
            (405, PermanentError),
            (410, PermanentError),
            (501, PermanentError),
        ],
    )
    def test_a_status_becomes_the_exception_to_raise(self, status, kind):
        """004.03, 004.07, 004.08."""
        assert type(classify_http(status)) is kind

    @for_each("status", [200, 302, 418, 599, 999])
    def test_an_unknown_status_is_treated_as_transient_and_counted_as_ambiguous(self, status):
        """004.07: the message is the document's, the budget is the small one; 200 looks wrong on purpose."""
        error = classify_http(status)
        assert isinstance(error, TransientError)
        assert str(error) == f"unknown HTTP {status}, treating as transient"
        assert classed(error) is AMBIGUOUS

    def test_a_500_is_the_ambiguous_case(self):
        """004.02: briefly overloaded or permanently broken: nobody can say."""
        assert isinstance(classify_http(500), (TransientError, AmbiguousError))
        assert classed(classify_http(500)) is AMBIGUOUS

    def test_a_429_waits_as_long_as_the_answer_says(self):
        """004.04: Retry-After, never sooner."""
        error = classify_http(429, retry_after="120", body="slow down")
        assert isinstance(error, RetryAfter)
        assert (error.seconds, error.diagnostic) == (120, "slow down")
        assert classify(error) == Classification(TRANSIENT, 120, "slow down")

    def test_a_rate_limit_disguised_as_403_is_a_wait(self):
        assert isinstance(classify_http(403, retry_after=60), RetryAfter)
        assert isinstance(classify_http(401, retry_after=60), AuthError)

    def test_the_body_of_a_422_is_the_diagnostic(self):
        """004.09: permanent errors are helpful about what was wrong; nothing of that is swallowed."""
        verdict = classify(classify_http(422, body=b'{"amount": "must be positive"}'))
        assert verdict.failure_class is VALIDATION
        assert verdict.diagnostic == '{"amount": "must be positive"}'

    def test_a_huge_body_is_cut_in_the_middle(self):
        diagnostic = classify(classify_http(422, body="a" * 5000 + "z" * 5000)).diagnostic
        assert diagnostic is not None
        assert diagnostic.startswith("aaa")
        assert diagnostic.endswith("zzz")
        assert len(diagnostic) < 4100
        assert "6060 characters left out" in diagnostic

    @for_each(
        "header, date, seconds",
        [
            ("30", None, 30),
            (" 1.5 ", None, 1.5),
            ("-5", None, 0),
            ("999999999", None, RETRY_AFTER_MAX_SECONDS),
            ("nan", None, 0),
            ("soon", None, None),
            ("Wed, 21 Oct 2026 07:30:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT", 120),
            ("Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:30:00 GMT", 0),
            ("Wed, 21 Oct 2026 07:30:00 GMT", None, None),
            ("Wed, 21 Oct 2026 07:30:00 GMT", "yesterday", None),
        ],
    )
    def test_retry_after_is_read_as_seconds_or_by_the_answers_own_date(self, header, date, seconds):
        assert parse_retry_after(header, date) == seconds


class TestGrpc:
    @for_each(
        "code, expected",
        [
            ("DEADLINE_EXCEEDED", TRANSIENT),
            ("UNAVAILABLE", TRANSIENT),
            ("INTERNAL", TRANSIENT),
            ("INVALID_ARGUMENT", PERMANENT),
            ("NOT_FOUND", PERMANENT),
            ("PERMISSION_DENIED", PERMANENT),
        ],
    )
    def test_the_codes_of_document_002(self, code, expected):
        """002.17: the six rows of codes; tests/engine/toolkit/test_send_buffer.py has the other exceptions."""
        assert BUCKETS[classify_grpc(code)] is expected

    def test_an_exception_of_grpc_is_read_without_importing_grpc(self):
        """002.17: code() and details() are methods; the sentence of the server is the diagnostic."""
        kind = foreign(
            "grpc.aio._call",
            "AioRpcError",
            code=lambda self: SimpleNamespace(name="DEADLINE_EXCEEDED"),
            details=lambda self: "services-provider was slow",
        )
        assert classify(kind()) == Classification(TRANSIENT, None, "services-provider was slow")

    def test_the_call_credential_is_auth(self):
        assert classify_grpc("PERMISSION_DENIED") is classify_grpc("UNAUTHENTICATED") is AUTH
        assert classify_grpc("SOMETHING_NEW") is AMBIGUOUS


class TestPython:
    @for_each(
        "error, expected",
        [
            (TimeoutError(), TRANSIENT),
            (TimeoutError(), TRANSIENT),
            (BrokenPipeError(), TRANSIENT),
            (ConnectionRefusedError(), TRANSIENT),
            (RemoteDisconnected("closed"), TRANSIENT),
            (IncompleteRead(b""), TRANSIENT),
            (OSError(errno.EHOSTUNREACH, "no route"), TRANSIENT),
            (OSError(errno.ENOSPC, "disk full"), AMBIGUOUS),
            (OSError(errno.EROFS, "read-only"), PERMANENT),
            (OSError(errno.ENOMEM, "no memory"), FailureClass.OUT_OF_MEMORY),
            (OSError("without a number"), UNCLASSIFIED),
            (socket.gaierror(socket.EAI_AGAIN, "try again"), TRANSIENT),
            (socket.gaierror(socket.EAI_NONAME, "unknown name"), TRANSIENT),
            (ssl.SSLCertVerificationError(1, "expired"), PERMANENT),
            (FileNotFoundError(2, "gone"), AMBIGUOUS),
            (PermissionError(13, "denied"), PERMANENT),
            (ModuleNotFoundError("numpy"), PERMANENT),
            (MemoryError(), FailureClass.OUT_OF_MEMORY),
            (UnicodeDecodeError("utf-8", b"caf\xe9", 3, 4, "invalid"), VALIDATION),
            (ZeroDivisionError(), UNCLASSIFIED),
            (KeyError(42), UNCLASSIFIED),
            (ValueError("x"), UNCLASSIFIED),
            (AssertionError(), UNCLASSIFIED),
            (RecursionError(), UNCLASSIFIED),
        ],
    )
    def test_exceptions_of_python(self, error, expected):
        """4.1, 004.10: what no row names stays unclassified and is the fingerprint's work."""
        assert classed(error) is expected

    @for_each(
        "error, expected, wait",
        [
            (TransientError("t"), TRANSIENT, None),
            (RetryAfter(7), TRANSIENT, 7),
            (PermanentError("p"), PERMANENT, None),
            (AmbiguousError("a"), AMBIGUOUS, None),
            (AuthError("a"), AUTH, None),
        ],
    )
    def test_what_a_task_says_itself_counts(self, error, expected, wait):
        """004.06: TransientError, PermanentError and their kin; subclasses included."""
        assert (classed(error), classify(error).retry_after_seconds) == (expected, wait)
        own = type("Own", (type(error),), {})
        assert classed(own(1)) is expected

    def test_the_diagnostic_that_a_task_gives_is_kept(self):
        """004.09."""
        assert classify(PermanentError("no", diagnostic="row 7 has no key")).diagnostic == "row 7 has no key"

    def test_a_latin1_row_is_shown_at_the_place_that_fails(self):
        """000.28, 004.09: the byte and its neighbourhood, not only a position."""
        with pytest.raises(UnicodeDecodeError) as caught:
            "Müller, café, 12".encode("latin-1").decode("utf-8")
        assert "near b'M\\xfcller" in (classify(caught.value).diagnostic or "")

    def test_bad_json_is_shown_at_the_place_that_fails(self):
        with pytest.raises(json.JSONDecodeError) as caught:
            json.loads('{"amount": 12, "currency": }')
        assert '"currency": }' in (classify(caught.value).diagnostic or "")

    def test_a_wrapper_is_as_transient_as_what_it_wraps(self):
        """An explicit cause counts; what merely happened before does not."""
        explicit, implicit = RuntimeError("load failed"), RuntimeError("load failed")
        explicit.__cause__ = ConnectionResetError()
        implicit.__context__ = ConnectionResetError()
        assert classed(explicit) is TRANSIENT
        assert classed(implicit) is UNCLASSIFIED

    def test_causes_in_a_ring_end(self):
        first, second = RuntimeError("a"), RuntimeError("b")
        first.__cause__, second.__cause__ = second, first
        assert classed(first) is UNCLASSIFIED

    def test_a_group_counts_as_its_hardest_failure(self):
        """004.32: one refused credential among transient failures still stops at once."""
        group = ExceptionGroup("two", [RetryAfter(9), ExceptionGroup("inner", [AuthError("no")])])
        assert classify(group).failure_class is AUTH
        assert classify(ExceptionGroup("two", [RetryAfter(9), TimeoutError()])).retry_after_seconds == 9
        assert classed(ExceptionGroup("two", [KeyError(1), TimeoutError()])) is UNCLASSIFIED


class TestForeignLibraries:
    """Adapters by shape: none of these libraries is imported."""

    def test_requests(self):
        answer = SimpleNamespace(
            status_code=429, headers={"Retry-After": "17"}, _content=b"too many requests", text=None
        )
        kind = foreign("requests.exceptions", "HTTPError", OSError)
        error = kind("429 Client Error")
        error.response = answer
        assert classify(error) == Classification(TRANSIENT, 17, "HTTP 429\ntoo many requests")

    @for_each(
        "module, name, bases, expected",
        [
            ("requests.exceptions", "ConnectionError", (OSError,), TRANSIENT),
            ("requests.exceptions", "JSONDecodeError", (ValueError,), AMBIGUOUS),
            ("requests.exceptions", "InvalidURL", (ValueError,), PERMANENT),
            ("httpx", "ReadTimeout", (foreign("httpx", "TimeoutException"),), TRANSIENT),
            ("httpx._exceptions", "ConnectError", (foreign("httpx._exceptions", "NetworkError"),), TRANSIENT),
            ("httpx", "UnsupportedProtocol", (), PERMANENT),
            (
                "aiohttp.client_exceptions",
                "ServerDisconnectedError",
                (foreign("aiohttp.x", "ClientConnectionError"),),
                TRANSIENT,
            ),
            ("aiohttp.client_exceptions", "ClientPayloadError", (), TRANSIENT),
            ("urllib3.exceptions", "ProtocolError", (foreign("urllib3.exceptions", "HTTPError"),), TRANSIENT),
            ("mylib", "ConnectionError", (), UNCLASSIFIED),
        ],
    )
    def test_transport_errors_are_known_by_package_and_class(self, module, name, bases, expected):
        assert classed(foreign(module, name, *bases)("x")) is expected

    def test_httpx(self):
        """A body that was not read is not fetched now: asking must not block on a socket."""

        class Response:
            status_code = 503

            def __init__(self) -> None:
                self.headers = {
                    "retry-after": "Wed, 21 Oct 2026 07:30:00 GMT",
                    "date": "Wed, 21 Oct 2026 07:29:00 GMT",
                }

            @property
            def content(self) -> bytes:
                raise AssertionError("a property of the response was asked")

            text = content

        kind = foreign("httpx", "HTTPStatusError", response=Response())
        assert classify(kind("x")) == Classification(TRANSIENT, 60, "HTTP 503")

    def test_aiohttp(self):
        """The status and the headers are on the exception itself; headers may be None."""
        kind = foreign("aiohttp.client_exceptions", "ClientResponseError", status=401, headers=None)
        assert classify(kind("x")) == Classification(AUTH, None, "HTTP 401")

    def test_urllib(self):
        headers = Message()
        headers["Retry-After"] = "3"
        error = urllib.error.HTTPError("http://x", 503, "busy", headers, None)
        assert classify(error).retry_after_seconds == 3
        assert classed(urllib.error.URLError(ConnectionRefusedError())) is TRANSIENT
        assert classed(urllib.error.URLError("unknown url type")) is UNCLASSIFIED

    def test_a_number_called_code_is_not_a_status_of_http(self):
        assert classed(foreign("mylib", "Failure", code=503, status=503)("x")) is UNCLASSIFIED

    @for_each(
        "sqlstate, expected",
        [
            ("40001", TRANSIENT),
            ("40P01", TRANSIENT),
            ("08006", TRANSIENT),
            ("57P01", TRANSIENT),
            ("55P03", TRANSIENT),
            ("57014", AMBIGUOUS),
            ("23503", PERMANENT),
            ("22P02", VALIDATION),
            ("28P01", AUTH),
            ("42501", AUTH),
            ("42P01", PERMANENT),
            ("ZZ999", UNCLASSIFIED),
        ],
    )
    @for_each("attribute", ["sqlstate", "pgcode"])
    def test_psycopg_by_sqlstate(self, sqlstate, expected, attribute):
        """004.03: psycopg 3 says sqlstate, psycopg 2 pgcode."""
        assert classed(foreign("mydriver.errors", "Error", **{attribute: sqlstate})("x")) is expected

    def test_psycopg_without_an_sqlstate(self):
        """A connection that failed has none: it was lost, unless the sentence says that the login was refused."""
        kind = foreign("psycopg", "OperationalError", sqlstate=None)
        assert classed(kind("server closed the connection unexpectedly")) is TRANSIENT
        assert classed(kind('FATAL: password authentication failed for user "etl"')) is AUTH

    def test_the_detail_of_postgres_is_the_diagnostic(self):
        """004.09."""
        diagnosis = SimpleNamespace(message_primary="violates foreign key", message_detail="Key (id)=(7) is missing")
        kind = foreign("psycopg.errors", "ForeignKeyViolation", sqlstate="23503", diag=diagnosis)
        assert classify(kind("x")).diagnostic == "violates foreign key\nKey (id)=(7) is missing"

    def test_sqlalchemy_is_as_the_driver_says(self):
        kind = foreign("sqlalchemy.exc", "OperationalError", orig=foreign("psycopg", "Error", sqlstate="40P01")("x"))
        assert classed(kind("x")) is TRANSIENT

    def test_a_locked_sqlite_file_is_transient_and_a_missing_table_is_not(self, tmp_path):
        """002.02, by the errors that SQLite itself raises."""
        first = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        second = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as locked:
            second.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as missing:
            first.execute("SELECT * FROM nothing")
        assert classed(locked.value) is TRANSIENT
        assert classed(missing.value) is PERMANENT

    def test_an_exception_whose_attributes_raise_is_still_judged(self):
        def broken(self: object) -> object:
            raise RuntimeError("detached")

        names = ("response", "headers", "code", "details", "diag", "sqlstate", "stderr", "doc", "diagnostic", "orig")
        kind = foreign("mylib", "Detached", ConnectionError, **{name: property(broken) for name in names})
        assert classed(kind("x")) is TRANSIENT


class TestProcesses:
    @for_each(
        "code, expected",
        [
            (1, UNCLASSIFIED),
            (2, UNCLASSIFIED),
            (64, PERMANENT),
            (65, VALIDATION),
            (69, TRANSIENT),
            (75, TRANSIENT),
            (78, PERMANENT),
            (124, TRANSIENT),
            (126, PERMANENT),
            (127, PERMANENT),
            (143, TRANSIENT),
            (137, TRANSIENT),
            (139, UNCLASSIFIED),
            (255, UNCLASSIFIED),
        ],
    )
    def test_exit_codes(self, code, expected):
        """sysexits.h: 75 asks to be tried again."""
        assert classify_exit(code) is expected

    @for_each(
        "signal, expected",
        [
            (9, TRANSIENT),
            (15, TRANSIENT),
            (11, UNCLASSIFIED),
            (25, PERMANENT),
            (64, AMBIGUOUS),
        ],
    )
    def test_signals(self, signal, expected):
        assert classify_signal(signal) is expected

    def test_a_program_that_the_task_ran_counts_by_its_exit_code(self):
        program = [sys.executable, "-c", "import sys; sys.stderr.write('try later'); sys.exit(75)"]
        with pytest.raises(subprocess.CalledProcessError) as caught:
            subprocess.run(program, check=True, capture_output=True)
        assert classify(caught.value) == Classification(TRANSIENT, None, "try later")
        assert classed(subprocess.CalledProcessError(-15, "x")) is TRANSIENT
        assert classed(SystemExit(75)) is TRANSIENT
        assert classed(SystemExit("message")) is UNCLASSIFIED
        assert classed(subprocess.CalledProcessError(1, "x")) is UNCLASSIFIED


class TestRules:
    """004.08: judgement per endpoint, as data."""

    BUSY = foreign("mylib.errors", "Busy", RuntimeError)

    @for_each(
        "rule, error",
        [
            ({"error": "Busy"}, BUSY("x")),
            ({"error": "mylib.Busy"}, BUSY("x")),
            ({"error": "mylib.errors.Busy"}, BUSY("x")),
            ({"error": "RuntimeError"}, BUSY("x")),
            ({"message": "QUOTA"}, ValueError("daily quota exceeded")),
            ({"sqlstate": "23"}, foreign("d", "E", sqlstate="23505")("x")),
            (
                {"grpc": "NOT_FOUND"},
                foreign("grpc", "E", code=lambda s: SimpleNamespace(name="NOT_FOUND"), details=str)(),
            ),
            ({"status": 404}, foreign("httpx", "E", response=SimpleNamespace(status_code=404, headers={}))("x")),
            ({"exit_code": 3}, subprocess.CalledProcessError(3, "x")),
            ({"error": "TransientError"}, TransientError("the task says so, the downstream's rule says more")),
        ],
    )
    def test_a_rule_overrules_every_table(self, rule, error):
        rules = parse_rules([{**rule, "class": "auth", "retry_after": 5}])
        verdict = classify(error, rules=rules)
        assert (verdict.failure_class, verdict.retry_after_seconds) == (AUTH, 5)

    def test_all_conditions_must_hold_and_the_first_rule_wins(self):
        rules = parse_rules(
            [
                {"error": "mylib.Busy", "message": "never", "class": "permanent"},
                {"error": "mylib.Busy", "message": "later", "class": "transient"},
                {"error": "mylib.Busy", "class": "validation"},
            ]
        )
        assert classed(self.BUSY("try later"), rules=rules) is TRANSIENT
        assert classed(self.BUSY("?"), rules=rules) is VALIDATION
        assert classed(KeyError("later"), rules=rules) is UNCLASSIFIED

    @for_each(
        "rule, words",
        [
            ({"class": "transient"}, "no condition"),
            ({"class": "transient", "retry_after": 5}, "no condition"),
            ({"status": 409}, "class must be one of"),
            ({"status": 409, "class": "maybe"}, "class must be one of"),
            ({"stauts": 409, "class": "transient"}, "no condition is called 'stauts'"),
            ({"status": "409", "class": "transient"}, "status is not a number"),
            ({"error": 409, "class": "transient"}, "error is not a text"),
            ({"error": "", "class": "transient"}, "error is not a text"),
        ],
    )
    def test_a_rule_that_cannot_be_meant_is_refused(self, rule, words):
        with pytest.raises(ValueError, match=words):
            parse_rules([rule])


class TestPolicy:
    """Which failures deserve a retry: ``retry_on`` and ``never_retry`` (004.13, 004.15)."""

    def test_only_what_is_named_is_retried(self):
        """004.12: nothing but TransientError."""
        only = RetryPolicy(retry_on=("TransientError",))
        assert classed(TransientError("x"), policy=only) is TRANSIENT
        assert classed(RetryAfter(5), policy=only) is TRANSIENT
        assert classed(ConnectionResetError(), policy=only) is PERMANENT
        assert classed(ValueError("x"), policy=only) is PERMANENT

    def test_a_named_error_is_transient_even_at_the_same_line_twice(self):
        policy = RetryPolicy(retry_on=("builtins.LookupError",))
        assert classed(KeyError(1), policy=policy) is TRANSIENT

    def test_retrying_everything_does_not_turn_off_the_poison_rule(self):
        """001.13: a broad Exception names nothing: failures stay as they were classified."""
        policy = RetryPolicy(retry_on=("Exception",))
        assert classed(ZeroDivisionError(), policy=policy) is UNCLASSIFIED
        assert classed(TimeoutError(), policy=policy) is TRANSIENT

    def test_a_refused_credential_is_never_retried(self):
        """004.32: retries can lock the account."""
        assert classed(AuthError("x"), policy=RetryPolicy(retry_on=("PermanentError",))) is AUTH

    def test_never_retry_comes_first(self):
        policy = RetryPolicy(retry_on=("ConnectionError",), never_retry=("builtins.ConnectionRefusedError",))
        assert classed(ConnectionRefusedError(), policy=policy) is PERMANENT
        assert classed(ConnectionResetError(), policy=policy) is TRANSIENT

    def test_the_children_of_a_group_are_asked_one_by_one(self):
        policy = RetryPolicy(retry_on=("builtins.KeyError",))
        assert classed(ExceptionGroup("g", [KeyError(1), KeyError(2)]), policy=policy) is TRANSIENT
        assert classed(ExceptionGroup("g", [KeyError(1), IndexError(2)]), policy=policy) is PERMANENT


def page_parser(name: str) -> Callable[[str], object]:
    """A function of a library that fetches, which parses what it got."""
    namespace: dict[str, object] = {"__name__": name, "json": json}
    exec("def parse(text):\n    return json.loads(text)", namespace)
    parse = namespace["parse"]
    assert callable(parse)
    return parse


@for_each(
    "parse, text, expected",
    [
        (json.loads, "<html>maintenance</html>", AMBIGUOUS),  # a page instead of the answer
        (json.loads, "", AMBIGUOUS),  # nothing
        (json.loads, '{"rows": [1, 2,', AMBIGUOUS),  # half of it
        (json.loads, '{"name": "an', AMBIGUOUS),
        (page_parser("httpx._models"), "service busy", AMBIGUOUS),  # whatever it is, it was fetched
        (json.loads, '{"amount": seventeen}', VALIDATION),  # a bad row
        (json.loads, "not JSON", VALIDATION),
    ],
)
def test_json_that_another_request_may_answer_is_tried_again(
    parse: Callable[[str], object], text: str, expected: FailureClass
) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        parse(text)
    assert classify(caught.value).failure_class is expected


def test_a_command_that_python_runs_is_classified_by_what_it_said() -> None:
    """As the task of a shell line would be."""
    error = subprocess.CalledProcessError(7, ["curl", "-fs", "http://x"])
    assert classed(error) is TRANSIENT
    assert classed(subprocess.CalledProcessError(1, "x", stderr=b"psql: error: Connection refused")) is TRANSIENT
    assert classed(subprocess.CalledProcessError(7, ["./load"])) is UNCLASSIFIED
