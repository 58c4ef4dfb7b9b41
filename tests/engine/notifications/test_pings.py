"""``Flow.ping``: a real web server hears of the start and the end of each run, and no run suffers from it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, FlowError, PermanentError
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.notifications import notifier
from redrive.engine.notifications.notifier import PingEvent, url_for
from support.marks import for_each

KEY = "/x9Qf3LmZr7TbW2kA"  # no other text of a run has it


class Switch(ThreadingHTTPServer):
    """Records paths; answers with the statuses in ``answers``, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.answers: list[int] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Switch

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("Location", "/stolen")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def switch() -> Iterator[Switch]:
    server = Switch()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tries of a ping."""
    monkeypatch.setattr(notifier, "RETRY_POLICY", RetryPolicy(base=0.01, cap=0.01))


def flow_to(url: str, error: type[Exception] | None = None) -> Flow:
    flow = Flow("nightly")
    flow.ping(url)

    @flow.task(timeout=30, max_attempts=1)
    def load() -> None:
        if error is not None:
            raise error("no")

    return flow


def sentences(state: Path) -> list[str]:
    with closing(sqlite3.connect(state)) as connection:
        rows = connection.execute("SELECT data FROM event WHERE kind = 'executor' AND data LIKE '%ping-failed%'")
        return [str(data) for (data,) in rows]


@pytest.mark.parametrize(
    ("error", "paths"),
    [
        (None, [f"{KEY}/start", KEY]),
        (ValueError, [f"{KEY}/start", f"{KEY}/fail"]),
        (PermanentError, [f"{KEY}/start", f"{KEY}/fail"]),
    ],
)
def test_a_run_reports_its_start_and_its_end(
    switch: Switch, tmp_path: Path, error: type[Exception] | None, paths: list[str]
) -> None:
    Executor(run_id="r", flow=flow_to(switch.url(KEY), error), state=tmp_path / "s.db").run()
    assert switch.paths == paths
    assert sentences(tmp_path / "s.db") == []
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert KEY not in "\n".join(connection.iterdump())  # whoever has the URL can silence the switch


def test_a_ping_is_tried_again(switch: Switch, tmp_path: Path) -> None:
    switch.answers = [503, 500]
    assert Executor(run_id="r", flow=flow_to(switch.url(KEY)), state=tmp_path / "s.db").run() == "SUCCESS"
    assert switch.paths == [
        f"{KEY}/start",
        f"{KEY}/start",
        f"{KEY}/start",
        KEY,
    ]
    assert sentences(tmp_path / "s.db") == []


def test_a_redirect_is_not_followed_and_the_run_succeeds(switch: Switch, tmp_path: Path) -> None:
    switch.answers = [302] * 6
    assert Executor(run_id="r", flow=flow_to(switch.url(KEY)), state=tmp_path / "s.db").run() == "SUCCESS"
    assert "/stolen" not in switch.paths
    first, second = sentences(tmp_path / "s.db")
    assert "ping start to 127.0.0.1 not accepted after 3 tries: HTTP 302" in first
    assert "ping success to 127.0.0.1" in second
    assert KEY not in first + second


def test_nobody_listens_and_the_run_succeeds(tmp_path: Path) -> None:
    flow = flow_to(f"http://127.0.0.1:9{KEY}")
    assert Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run() == "SUCCESS"
    assert all("Connection refused" in sentence and KEY not in sentence for sentence in sentences(tmp_path / "s.db"))
    assert len(sentences(tmp_path / "s.db")) == 2


def test_a_run_that_had_ended_says_nothing(switch: Switch, tmp_path: Path) -> None:
    for _ in range(2):
        Executor(run_id="r", flow=flow_to(switch.url(KEY)), state=tmp_path / "s.db").run()
    assert switch.paths == [f"{KEY}/start", KEY]


@for_each(
    "url, event, expected",
    [
        (f"https://hc-ping.com{KEY}", PingEvent.START, f"https://hc-ping.com{KEY}/start"),
        (f"https://hc-ping.com{KEY}/", PingEvent.FAIL, f"https://hc-ping.com{KEY}/fail"),
        (f"https://hc-ping.com{KEY}?rid=1", PingEvent.START, f"https://hc-ping.com{KEY}/start?rid=1"),
        (f"https://hc-ping.com{KEY}", PingEvent.SUCCESS, f"https://hc-ping.com{KEY}"),
        ("https://up.example.com/p?status={event}", PingEvent.SUCCESS, "https://up.example.com/p?status=success"),
    ],
)
def test_the_url_of_an_event(url: str, event: PingEvent, expected: str) -> None:
    assert url_for(url, event) == expected


@for_each("url", ["", "ftp://x", f"hc-ping.com{KEY}", "https://x/a b", "file:///etc/passwd", None])
def test_what_is_no_url_is_refused_without_naming_it(url: str) -> None:
    with pytest.raises(FlowError, match=r"flow 'f': ping takes a url as https://\.\.\., in ASCII and without spaces$"):
        Flow("f").ping(url)
