"""One cause is one entry: real answers of a server and real programs, from the failure to the page."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from redrive.engine import Executor, Flow, RetryPolicy, retry
from support.commands import invoke_redrive, quoted
from support.marks import needs

QUICK = RetryPolicy(max_attempts=3, base=0.01, jitter="none")


class Upstream(BaseHTTPRequestHandler):
    """Answers with the status of the path; ``/page``: with a page instead of JSON."""

    def do_GET(self) -> None:
        status = 200 if self.path == "/page" else int(self.path[1:])
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        body = b"<html>maintenance</html>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Ended(NamedTuple):
    """The last attempt of a task."""

    state: str
    kind: str | None
    failure_class: str
    loose: str
    explain: str
    attempts: int


class Page(NamedTuple):
    severity: str
    title: str
    tasks: int
    failure_class: str | None


def run(flow: Flow, state: Path) -> dict[str, Ended]:
    Executor(run_id="night", flow=flow, state=state).run()
    with sqlite3.connect(state) as connection:
        rows = connection.execute(
            "SELECT task.name, task.state, dead_letter_kind, attempt.failure_class, fingerprint_loose, explain,"
            " task.attempt FROM task JOIN attempt ON attempt.name = task.name AND attempt.attempt = task.attempt"
        )
        return {name: Ended(*row) for name, *row in rows}


def pages(state: Path) -> list[Page]:
    with sqlite3.connect(state) as connection:
        rows = connection.execute("SELECT severity, title, count, body FROM page ORDER BY title")
        return [Page(severity, title, count, json.loads(body)["class"]) for severity, title, count, body in rows]


def causes(ended: dict[str, Ended]) -> int:
    return len({one.loose for one in ended.values()})


# --- One helper that raises for every status -------------------------------------------------------------------------


def helper_flow(url: str) -> Flow:
    flow = Flow("fetches")

    def get(path: str) -> bytes:
        with urlopen(url + path, timeout=10) as answer:
            return bytes(answer.read())

    def task(status: int) -> None:
        flow.task(lambda: get(f"/{status}"), name=f"m{status}", timeout=30, retry=QUICK)

    for status in (404, 403, 503):
        task(status)
    return flow


def test_three_statuses_through_one_helper_are_three_causes(tmp_path: Path, url: str) -> None:
    ended = run(helper_flow(url), tmp_path / "state.db")
    assert causes(ended) == 3
    assert [(ended[name].state, ended[name].failure_class) for name in ("m404", "m403", "m503")] == [
        ("DEAD_LETTER", "permanent"),
        ("DEAD_LETTER", "auth"),
        ("FAILED", "transient"),
    ]
    assert ended["m404"].explain.startswith("HTTPError 404 test_causes.py:")
    assert pages(tmp_path / "state.db") == [
        ("critical", "auth on m403", 1, "auth"),
        ("normal", "budget spent on m503", 1, "transient"),
        ("high", "permanent on m404", 1, "permanent"),
    ]
    inbox = [json.loads(line) for line in invoke_redrive("inbox", tmp_path / "state.db", "--json").output.splitlines()]
    assert sorted(len(cause["tasks"]) for cause in inbox) == [1, 1, 1]


# --- Programs --------------------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def on_path(folder: Path, **programs: str) -> Path:
    """Programs with these bodies, which come first on the path of a command."""
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def python_that_opens(address: str) -> str:
    """A line that fails with the traceback of a program in Python."""
    return f"{quoted(sys.executable)} -c \"import urllib.request as u; u.urlopen('{address}')\""


def ends_of(lines: dict[str, str], state: Path) -> set[tuple[str, str | None, str, int]]:
    flow = Flow("outages")
    for name, line in lines.items():
        flow.command(name, line, timeout=60, retry=QUICK)
    return {(one.state, one.kind, one.failure_class, one.attempts) for one in run(flow, state).values()}


@pytest.mark.long
def test_an_ordinary_outage_is_no_poison(tmp_path: Path, url: str) -> None:
    port = closed_port()
    lines = {
        "unavailable": python_that_opens(f"{url}/503"),
        "refused": python_that_opens(f"http://127.0.0.1:{port}/"),
        "unknown_host": python_that_opens("http://nosuch.invalid/"),
        "wrapped": f"set -e; {python_that_opens(f'http://127.0.0.1:{port}/')} > /dev/null || exit 1",
    }
    assert ends_of(lines, tmp_path / "state.db") == {("FAILED", None, "transient", 3)}


def test_an_exit_code_a_refusal_and_a_missing_program_have_their_classes(tmp_path: Path, url: str) -> None:
    flow = Flow("refusals")
    flow.command("refuses", "exit 1", timeout=30, retry=QUICK)
    flow.command("forbidden", python_that_opens(f"{url}/403"), timeout=30, retry=QUICK)
    flow.command("missing", "nosuchprogram", timeout=30, retry=QUICK)
    ended = run(flow, tmp_path / "state.db")
    assert {name: (one.state, one.kind, one.failure_class, one.attempts) for name, one in ended.items()} == {
        "refuses": ("FAILED", None, "unclassified", 3),
        "forbidden": ("DEAD_LETTER", "auth", "auth", 1),
        "missing": ("DEAD_LETTER", "permanent", "permanent", 1),
    }


@pytest.mark.long
@needs("curl")
@needs("ssh")
@needs("git")
def test_an_ordinary_outage_is_no_poison_for_the_programs_of_a_system(tmp_path: Path, url: str) -> None:
    port = closed_port()
    lines = {
        "unavailable": f"curl -fsS {url}/503",
        "refused": f"curl -fsS http://127.0.0.1:{port}/",
        "silent": f"curl -fs http://127.0.0.1:{port}/",
        "unknown_host": "curl -fsS http://nosuch.invalid/",
        "ssh": f"ssh -o BatchMode=yes -o StrictHostKeyChecking=no -p {port} 127.0.0.1 true",
        "git": f"git ls-remote http://127.0.0.1:{port}/x.git",
        "wrapped": f"set -e; curl -fsS http://127.0.0.1:{port}/ > /dev/null || exit 1",
    }
    assert ends_of(lines, tmp_path / "state.db") == {("FAILED", None, "transient", 3)}
    refused = {"forbidden": f"curl -fsS {url}/403"}
    assert ends_of(refused, tmp_path / "refused.db") == {("DEAD_LETTER", "auth", "auth", 1)}


def test_mistakes_in_sql_are_distinguished_by_the_line_that_names_them(tmp_path: Path) -> None:
    body = """\
case "$2" in
syntax) echo 'ERROR:  syntax error at or near "selec"' ;;
table) echo 'ERROR:  relation "nope" does not exist' ;;
column) echo 'ERROR:  column "nope" does not exist' ;;
esac >&2
echo 'LINE 1: select
             ^' >&2
exit 1"""
    programs = on_path(tmp_path / "bin", psql=body)
    flow = Flow("mistakes")
    for name in ("syntax", "table", "column"):
        flow.command(name, f"PATH={quoted(programs)}:$PATH; psql -c {name}", timeout=30, retry=QUICK)
    ended = run(flow, tmp_path / "state.db")
    assert causes(ended) == 3
    assert {(one.state, one.kind, one.attempts) for one in ended.values()} == {("DEAD_LETTER", "permanent", 1)}
    assert ended["table"].explain == 'exit status 1: ERROR:  relation "nope" does not exist'
    assert {page.title for page in pages(tmp_path / "state.db")} == {f"permanent on {name}" for name in ended}


def test_commands_that_say_nothing_or_hang_are_causes_of_their_own(tmp_path: Path) -> None:
    programs = on_path(tmp_path / "bin", rsync="exec sleep 60", psql="exec sleep 61", load="exit 1", copy="exit 1")
    flow, once = Flow("silence"), RetryPolicy(max_attempts=1)
    for name in ("rsync", "psql", "load", "copy"):
        seconds = 1 if name in ("rsync", "psql") else 60
        flow.command(name, f"PATH={quoted(programs)}:$PATH; {name} -a", timeout=seconds, grace_seconds=0.1, retry=once)
    ended = run(flow, tmp_path / "state.db")
    assert causes(ended) == 4
    assert [ended[name].failure_class for name in ("rsync", "load")] == ["timeout", "unclassified"]
    assert len(pages(tmp_path / "state.db")) == 4


# --- Answers, waits, kills -------------------------------------------------------------------------------------------


def test_a_page_instead_of_json_is_tried_again(tmp_path: Path, url: str) -> None:
    flow = Flow("answers")

    @flow.task(timeout=30, retry=QUICK)
    def page() -> object:
        with urlopen(f"{url}/page", timeout=10) as answer:
            return json.load(answer)

    @flow.task(timeout=30, retry=QUICK)
    def wrong() -> object:
        return json.loads('{"amount": seventeen}')

    ended = run(flow, tmp_path / "state.db")
    assert (ended["page"].failure_class, ended["page"].attempts) == ("ambiguous", 3)
    assert (ended["wrong"].failure_class, ended["wrong"].kind, ended["wrong"].attempts) == ("validation", "poison", 2)


@pytest.mark.parametrize("program", ["python", pytest.param("curl", marks=[pytest.mark.long, needs("curl")])])
def test_one_cause_has_one_verdict_in_python_and_in_a_shell(tmp_path: Path, url: str, program: str) -> None:
    port, flow = closed_port(), Flow("one-cause")

    def ask(name: str, address: str) -> None:
        flow.task(lambda: urlopen(address, timeout=10), name=f"{name} in Python", timeout=60, retry=QUICK)
        line = f"curl -fsS {address}" if program == "curl" else python_that_opens(address)
        flow.command(f"{name} in a shell", line, timeout=60, retry=QUICK)

    addresses = {"unknown": "http://nosuch.invalid/", "refused": f"http://127.0.0.1:{port}/", "500": f"{url}/500"}
    for name, address in addresses.items():
        ask(name, address)
    ended = run(flow, tmp_path / "state.db")
    for name in addresses:
        one, other = ended[f"{name} in Python"], ended[f"{name} in a shell"]
        assert (one.state, one.kind, one.attempts) == (other.state, other.kind, other.attempts), name
    assert ended["unknown in Python"].state == "FAILED"


@pytest.mark.long
def test_siblings_that_fail_alike_need_one_start_each(tmp_path: Path) -> None:
    flow = Flow("siblings", max_parallel=2)
    for number in range(60):
        flow.task(lambda: {"rows": 3}["sum"], name=f"part {number}", timeout=30, max_attempts=5)
    ended = run(flow, tmp_path / "state.db")
    assert {(one.state, one.kind) for one in ended.values()} == {("DEAD_LETTER", "poison")}
    assert sum(one.attempts for one in ended.values()) <= 60 + 6
    (page,) = pages(tmp_path / "state.db")
    assert page.title.startswith("poison-pill on part ") and page.tasks == 60


def test_a_task_that_gets_further_each_time_is_slow(tmp_path: Path) -> None:
    flow = Flow("slow")

    @flow.task(timeout=0.5, retry=RetryPolicy(max_attempts=40, base=0.01))
    def load(ctx: Any) -> None:
        for step in range(ctx.checkpointed or 0, 40):
            time.sleep(0.025)
            ctx.checkpoint(step + 1)
            ctx.progress(step + 1, 40)

    assert run(flow, tmp_path / "state.db")["load"].state == "SUCCESS"
    with sqlite3.connect(tmp_path / "state.db") as connection:
        (said,) = connection.execute("SELECT diagnostic FROM attempt WHERE failure_mode = 'slow'").fetchone()
    assert "timeout too short: it needs about" in said


def test_the_decorator_waits_as_long_as_the_server_asks(url: str) -> None:
    waits: list[float] = []

    @retry(retries=1, base=0.1, exceptions=OSError, sleep=waits.append)
    def fetch() -> None:
        urlopen(f"{url}/429", timeout=10)

    with pytest.raises(OSError, match="429"):
        fetch()
    assert waits == [1.1]


def test_what_kills_a_task_from_outside_is_a_loss(tmp_path: Path) -> None:
    flow = Flow("storm")

    @flow.task(timeout=30, retry=RetryPolicy(max_attempts=2, base=0.01, jitter="none"))
    def killed() -> None:
        killer = f"import os, signal; os.kill({os.getpid()}, signal.SIGKILL)"
        subprocess.run([sys.executable, "-c", killer], check=True, timeout=20)

    ended = run(flow, tmp_path / "state.db")["killed"]
    assert (ended.state, ended.kind, ended.attempts) == ("DEAD_LETTER", "crash-loop", 3)
    assert ended.explain.startswith("killed from outside")
