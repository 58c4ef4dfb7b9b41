"""``redrive report``, on a state file and behind ssh."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browser import Browser
from support.commands import invoke_redrive, run_redrive, start_redrive
from support.state_file import StateFileBuilder
from support.waiting import LIMIT_SECONDS, wait_until


def test_the_report_is_one_file_with_the_facts_of_the_run(run_file: StateFileBuilder, tmp_path: Path) -> None:
    done = run_redrive("report", f"{run_file.path}@night-1", "-o", tmp_path / "night.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    for fact in ("task_00002", "boom", "Traceback: of task_00002", "1 of 6 done", 'id="slider"'):
        assert fact in text, fact
    assert str(tmp_path / "night.html") in done.stdout


def test_every_process_writes_the_same_style_sheet(run_file: StateFileBuilder) -> None:
    words = ("report", run_file.path)
    pages = [run_redrive(*words, env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in "123"]
    sheets = {page.partition("<style>")[2].partition("</style>")[0] for page in pages}
    assert len(sheets) == 1 and "" not in sheets


def test_the_report_is_for_its_owner_alone_and_an_old_file_keeps_its_mode(
    run_file: StateFileBuilder, tmp_path: Path
) -> None:
    new, old = tmp_path / "new.html", tmp_path / "old.html"
    old.touch()
    old.chmod(0o644)
    for page in (new, old):
        assert invoke_redrive("report", run_file.path, "-o", page).exit_code == 0
    assert (new.stat().st_mode & 0o777, old.stat().st_mode & 0o777) == (0o600, 0o644)


def test_without_a_file_it_is_printed(run_file: StateFileBuilder) -> None:
    assert invoke_redrive("report", run_file.path).output.startswith("<!DOCTYPE html>")
    assert "## Timeline" in invoke_redrive("report", run_file.path, "--markdown").output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["no-such-run"], "no-such-run"), (["-o", "/dev/full"], "No space left"), (["-o", "/no/such/x.html"], "No such")],
)
def test_what_goes_wrong_is_one_sentence(run_file: StateFileBuilder, words: list[str], sentence: str) -> None:
    done = run_redrive("report", run_file.path, *words)
    assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_a_path_in_the_place_of_a_run_says_where_it_belongs(run_file: StateFileBuilder) -> None:
    done = invoke_redrive("report", run_file.path, "/var/lib/night.db", "--markdown")
    assert "unexpected extra argument (/var/lib/night.db)" in str(done.exception)


def test_a_run_whose_start_was_pruned_has_a_report_without_a_slider(run_file: StateFileBuilder) -> None:
    run_file.connection.execute("DELETE FROM event WHERE seq < 5")
    run_file.connection.commit()
    output = invoke_redrive("report", run_file.path).output
    assert "task_00002" in output
    assert 'id="slider"' not in output


def test_the_report_is_the_same_through_ssh(far: Any, make_run_file: Callable[..., StateFileBuilder]) -> None:
    run_file = make_run_file("idle.db")
    run_file.finish("task_00000")
    run_file.finish("task_00002", "DEAD_LETTER", error="boom", dead_letter_kind="poison", failures=1)

    def report(target: str) -> list[str]:
        done = run_redrive("report", target, "--markdown")
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if str(run_file.path) not in line and "as of" not in line]
        return [re.sub(r"(\d\.|<)?\d+(ms|s|m\d\d)\b", "_", " ".join(line.split())) for line in lines]  # ages differ

    assert report(str(run_file.path)) == report(f"ssh://far{run_file.path}")


# --- In a browser ----------------------------------------------------------------------------------------------------


class Served:
    """``redrive report --serve`` of a state file."""

    def __init__(self, state: Path) -> None:
        self.process = start_redrive("report", state, "--serve")
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().partition(" ")[0]
        self.address = urlsplit(self.url)

    def get(self, path: str = "", method: str = "GET", **headers: str) -> tuple[int, str]:
        connection = self.connect()
        connection.request(method, self.address.path + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def connect(self) -> HTTPConnection:
        return HTTPConnection(str(self.address.hostname), self.address.port, timeout=60)


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Served]]:
    started: list[Served] = []

    def start(state: Path) -> Served:
        started.append(Served(state))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


GATED = """
import os, time
from redrive.engine import Flow

flow = Flow("gated")

@flow.task
def wait():
    while not os.path.exists({gate!r}):
        time.sleep(0.02)
"""


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A run that goes on while it is watched: its state file, and the file at which its task ends."""
    flow, state, gate = tmp_path / "gated.py", tmp_path / "gated.db", tmp_path / "gate"
    flow.write_text(GATED.format(gate=str(gate)))
    run = start_redrive("run", flow, "--state", state, "--plain")
    assert run.stdout is not None
    assert "wait RUNNING" in run.stdout.readline()
    yield state, gate
    gate.touch()
    run.communicate(timeout=60)


def test_the_page_follows_a_run_by_its_events(gated: tuple[Path, Path], serve: Callable[[Path], Served]) -> None:
    state, gate = gated
    served = serve(state)
    assert "running" in served.get()[1]
    connection = served.connect()
    connection.request("GET", served.address.path + "events")
    events = connection.getresponse()
    assert events.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert events.readline().startswith(b"data: ")
    gate.touch()
    versions = [0]
    while "success after" not in served.get()[1]:
        versions += next([int(line[6:])] for line in events if line.startswith(b"data: "))
    assert versions == sorted(set(versions))
    connection.close()


def test_only_readers_of_this_machine_who_know_the_address_get_the_page(
    run_file: StateFileBuilder, serve: Callable[[Path], Served]
) -> None:
    served = serve(Path(run_file.path))
    port = served.address.port
    assert served.get()[0] == served.get(Host=f"localhost:{port}")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", ""):
        for path in ("", "events"):
            assert served.get(path, Host=host)[0] == 403
    assert served.get("../")[0] == served.get("x")[0] == 404
    connection = served.connect()
    connection.request("GET", "/")
    assert connection.getresponse().status == 404
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert served.get(method=method)[0] == 501


def test_ctrl_c_ends_it_also_while_somebody_reads(run_file: StateFileBuilder, serve: Callable[[Path], Served]) -> None:
    served = serve(Path(run_file.path))
    connection = served.connect()
    connection.request("GET", served.address.path + "events")
    assert connection.getresponse().readline().startswith(b"data: ")
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(LIMIT_SECONDS) == 0
    assert served.process.stdout is not None
    assert served.process.stdout.read() == ""


def test_a_port_that_is_taken_is_one_sentence(run_file: StateFileBuilder, serve: Callable[[Path], Served]) -> None:
    port = serve(Path(run_file.path)).address.port
    done = run_redrive("report", run_file.path, "--serve", "--port", port)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"port {port} cannot be used: Address already in use" in done.stderr


@pytest.mark.long  # it needs a Chromium
def test_a_browser_shows_the_run_as_it_goes_on(
    gated: tuple[Path, Path], serve: Callable[[Path], Served], tmp_path: Path
) -> None:
    state, gate = gated
    served = serve(state)
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(served.url)
        title = browser.evaluate("document.title")
        assert "running" in title
        gate.touch()
        wait_until(lambda: "success" in browser.evaluate("document.title"))
        assert browser.evaluate("document.querySelectorAll('h1').length") == 1
        assert "success" in browser.evaluate("document.body.textContent")
        assert not browser.evaluate("document.getElementById('night').hidden")
        served.process.kill()
        wait_until(lambda: browser.evaluate("document.body.classList.contains('stale')"))
        assert all("ERR_" in one for one in browser.complaints), browser.complaints
    finally:
        browser.close()
