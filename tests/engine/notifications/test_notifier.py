"""Pages leave the machine: real programs, a real web server, and what the state file says of it afterwards."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from redrive.console.text.event_text import lines_of_event
from redrive.engine import Executor, Flow, FlowError, PermanentError, RetryPolicy, RunOptions, TransientError
from redrive.engine.core import causes
from redrive.engine.core.policy import RetryPolicy as Policy
from redrive.engine.domain.event_payloads import PageChanged
from redrive.engine.domain.events import Event
from redrive.engine.notifications import notifier
from redrive.engine.notifications.senders import environment_of
from redrive.engine.store.pages import NOBODY
from support.commands import quoted
from support.marks import parametrize_mostly_long
from support.pty_terminal import in_time

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """No executor makes a further try, however long its run takes here, except where a test is about them."""
    monkeypatch.setattr("redrive.engine.executor.loop.LAST_TRIES_SECONDS", 0.0)
    monkeypatch.setattr(notifier, "RESEND_POLICY", Policy(base=3600.0, cap=3600.0, jitter="none"))


def run(tmp_path: Path, flow: Flow, run_id: str = "r", **options: Any) -> str:
    executor = Executor(run_id=run_id, flow=flow, state=tmp_path / "state.db", options=RunOptions(**options))
    return str(executor.run_result().state)


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        return connection.execute(sql).fetchall()


def page_changes(tmp_path: Path, what: str) -> list[dict[str, Any]]:
    rows = [json.loads(text) for (text,) in ask(tmp_path, "SELECT data FROM event WHERE kind = 'page' ORDER BY seq")]
    return [row for row in rows if row["what"] == what]


def doomed(flow: Flow, name: str = "doomed", message: str = "503") -> None:
    def body() -> None:
        raise TransientError(message)

    flow.task(body, name=name, retry=ONCE, timeout=30)


def received(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def to_file(path: Path) -> dict[str, Any]:
    """A command that appends what it gets as one line."""
    return {"line": f"printf '%s\\n' \"$(cat)\" >> {quoted(path)}"}  # in one write: others append to it too


def test_a_command_gets_the_page_as_json_and_in_its_environment(tmp_path):
    inbox, words = tmp_path / "inbox", tmp_path / "words"
    flow = Flow("night")
    doomed(flow)
    flow.page(
        "command",
        line=f'cat > "{inbox}"; printf "%s|%s|%s" "$REDRIVE_PAGE_SEVERITY" '
        f'"$REDRIVE_PAGE_TITLE" "$REDRIVE_PAGE_KEY" > "{words}"',
    )
    assert "FAILED" == run(tmp_path, flow)
    (message,) = received(inbox)
    assert ("page", "doomed", "night", 1, "r") == tuple(
        message[field] for field in ("kind", "task", "flow", "count", "run_id")
    )
    assert "503" == message["body"]["error"] and "redrive requeue" in message["text"]
    assert f"normal|budget spent on doomed|{message['key']}" == words.read_text()
    assert [(1, None, 1)] == ask(tmp_path, "SELECT sent_at IS NOT NULL, send_error, sent_count FROM page")


def test_text_from_a_task_is_never_a_word_of_the_shell(tmp_path):
    flow = Flow("night")
    touch = f"touch {quoted(tmp_path / 'pwned')}"
    evil = f"$({touch}) `{touch}` ; {touch} \x00\x1b]0;x\x07"
    doomed(flow, message=evil)
    flow.page("command", **to_file(tmp_path / "inbox"))
    run(tmp_path, flow)
    (message,) = received(tmp_path / "inbox")
    assert "touch" in message["body"]["error"]
    assert not (tmp_path / "pwned").exists()


def test_the_environment_holds_no_character_that_it_cannot_or_that_moves_a_cursor():
    environment = environment_of({"title": "a\x00b\x1b[2J", "text": "one\ntwo", "task": None, "count": 3})
    assert {"REDRIVE_PAGE_TITLE": "a b [2J", "REDRIVE_PAGE_TEXT": "one\ntwo", "REDRIVE_PAGE_COUNT": "3"} == environment


def test_a_sender_that_fails_is_stored_reported_and_holds_up_nobody(tmp_path):
    flow = Flow("night")
    doomed(flow)
    flow.page("command", line="echo 'smtp: no route to host' >&2; exit 3")
    flow.page("command", **to_file(tmp_path / "inbox"))
    assert "FAILED" == run(tmp_path, flow)
    assert 1 == len(received(tmp_path / "inbox"))
    ((sent_at, error),) = ask(tmp_path, "SELECT sent_at, send_error FROM page")
    assert (None, "command: exit status 3: smtp: no route to host") == (sent_at, error)
    (failed,) = page_changes(tmp_path, "send-failed")
    assert ("command", 1) == (failed["sender"], failed["tries"])


def test_a_sender_that_hangs_is_killed_with_its_children_while_the_run_goes_on(tmp_path):
    numbers = itertools.count()

    def goes_on() -> bool:
        """Whether the machine was quick enough for a task and a sender to start within a second."""
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        pids = folder / "pids"
        flow = Flow("night")
        doomed(flow)
        flow.command("goes_on", "sleep 0.2", after="doomed", rule="all_done", timeout=30)
        flow.page("command", line=f"sleep 300 & echo $! $$ > {quoted(pids)}; wait", timeout=1)
        assert "FAILED" == run(folder, flow)
        assert "took longer than 1 s" in ask(folder, "SELECT send_error FROM page")[0][0]
        begun = pids.read_text().split() if pids.exists() else []
        assert not [pid for pid in map(int, begun) if is_alive(pid)]
        (moment,) = ask(folder, "SELECT seq FROM event WHERE task = 'goes_on' AND new = 'SUCCESS'")
        (gave_up,) = ask(folder, "SELECT min(seq) FROM event WHERE kind = 'page' AND data LIKE '%send-failed%'")
        return bool(begun) and moment < gave_up

    in_time(goes_on)


def test_a_sender_that_hangs_does_not_keep_the_next_page_from_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr("redrive.engine.notifications.notifier.CLOSE_SECONDS", 0.1)
    inbox = tmp_path / "inbox"
    flow = Flow("night")
    doomed(flow)
    flow.command("later", f"until test -s {quoted(inbox)}; do sleep 0.05; done; exit 3", retry=ONCE, timeout=60)
    both = f"until test $(wc -l < {quoted(inbox)}) -ge 2; do sleep 0.05; done"
    flow.command("both_are_there", both, after="later", rule="all_done", retry=ONCE, timeout=60)
    flow.page("command", line="sleep 300", timeout=200)
    flow.page("command", **to_file(inbox))
    run(tmp_path, flow)
    assert [("SUCCESS",)] == ask(tmp_path, "SELECT state FROM task WHERE name = 'both_are_there'")
    assert ["doomed", "later"] == [message["task"] for message in received(inbox)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # nobody may have reaped it yet
    except psutil.NoSuchProcess:
        return False


def test_a_sender_that_recovers_gets_the_page_after_all(tmp_path, monkeypatch):
    monkeypatch.setattr(notifier, "RESEND_POLICY", Policy(base=0.05, cap=0.05, jitter="none"))
    inbox = tmp_path / "inbox"
    flow = Flow("night")
    doomed(flow)
    flow.command("long", f"while ! test -s {quoted(inbox)}; do sleep 0.05; done", timeout=60)
    line = f"test -e {quoted(tmp_path / 'third')} && cat > {quoted(inbox)} && exit 0;"
    second, third = quoted(tmp_path / "second"), quoted(tmp_path / "third")
    line += f" test -e {second} && touch {third}; touch {second}; exit 1"
    flow.page("command", line=line)
    flow.page("command", **to_file(tmp_path / "other"))
    run(tmp_path, flow)
    assert [1, 2] == [failed["tries"] for failed in page_changes(tmp_path, "send-failed")]
    assert 1 == len(received(inbox))
    assert 1 == len(received(tmp_path / "other")), "a sender that took it is not asked again"
    assert [(1, None)] == ask(tmp_path, "SELECT sent_at IS NOT NULL, send_error FROM page")


def test_what_one_executor_could_not_send_the_next_one_does(tmp_path):
    broken = Flow("night")
    doomed(broken)
    broken.page("command", line="exit 1")
    run(tmp_path, broken)
    repaired = Flow("night")
    repaired.task(lambda: None, name="fine")
    repaired.page("command", **to_file(tmp_path / "inbox"))
    assert "SUCCESS" == run(tmp_path, repaired, run_id="next-night")
    assert ["doomed"] == [message["task"] for message in received(tmp_path / "inbox")]


@pytest.mark.long
def test_two_senders_and_fifty_tasks_of_one_cause_are_one_message_each(tmp_path):
    flow = Flow("night", max_parallel=8)

    def body() -> None:
        raise TransientError("503")

    for number in range(50):
        flow.task(body, name=f"part_{number}", retry=ONCE)
    flow.page("command", **to_file(tmp_path / "one"))
    flow.page("command", **to_file(tmp_path / "two"))
    run(tmp_path, flow)
    assert (1, 1) == (len(received(tmp_path / "one")), len(received(tmp_path / "two")))
    assert [(50,)] == ask(tmp_path, "SELECT count FROM page")


def test_a_storm_of_causes_is_ten_messages_and_digests_of_the_rest(tmp_path):
    """The last digest does not wait for its window: nobody would send it after the end of the run.

    There are two, if more than ten causes came before the first message.
    """
    flow = Flow("night", max_parallel=8)
    for number in range(14):
        flow.command(f"part_{number}", f"exit {number + 1}", retry=ONCE, timeout=30)
    flow.page("command", **to_file(tmp_path / "inbox"))
    run(tmp_path, flow)
    messages = received(tmp_path / "inbox")
    digests = [message for message in messages if message["kind"] == "digest"]
    assert 1 <= len(digests) <= 2 and 10 == len(messages) - len(digests)
    assert 4 == sum(len(digest["ids"]) for digest in digests)
    assert 14 == ask(tmp_path, "SELECT count(*) FROM page WHERE sent_at IS NOT NULL")[0][0]


def test_without_a_sender_the_page_waits_in_the_inbox(tmp_path):
    flow = Flow("night")
    doomed(flow)
    flow.command("other", "exit 3", retry=ONCE, timeout=30, after="doomed", rule="all_done")
    run(tmp_path, flow)
    assert [NOBODY, None] == [opened.get("why") for opened in page_changes(tmp_path, "opened")], "said once per run"
    ask(tmp_path, "DELETE FROM page WHERE task = 'other'")
    assert [("open", None, None)] == ask(tmp_path, "SELECT state, sent_at, send_error FROM page")


def test_the_bell_is_an_event(tmp_path):
    flow = Flow("night")
    doomed(flow)
    flow.page("bell")
    run(tmp_path, flow)
    (rung,) = page_changes(tmp_path, "bell")
    assert ("budget spent on doomed", "normal") == (rung["title"], rung["severity"])


def test_a_sender_that_never_could_is_refused_when_the_flow_is_written():
    with pytest.raises(FlowError, match="no sender of pages 'pigeon'"):
        Flow("night").page("pigeon")  # type: ignore[arg-type]


# --- Over the network -----------------------------------------------------------------------------------------------


class _Hook(BaseHTTPRequestHandler):
    answers: list[int]
    received: list[tuple[str, dict[str, Any]]]
    asked: list[str]  # methods
    location: str | None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).received.append((self.headers["X-Token"], body))
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        kind = type(self)
        kind.asked.append(self.command)
        self.send_response(kind.answers.pop(0) if kind.answers else 200)
        if kind.location is not None:
            self.send_header("Location", kind.location)
        self.end_headers()

    def log_message(self, format: str, *words: Any) -> None:
        """The test asks what was received."""


@contextmanager
def serve_hook() -> Iterator[Any]:
    kind: Any = type("Hook", (_Hook,), {"answers": [], "received": [], "asked": [], "location": None})
    server = HTTPServer(("127.0.0.1", 0), kind)
    kind.url = f"http://127.0.0.1:{server.server_port}/secret-path"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield kind
    server.shutdown()
    server.server_close()


@pytest.fixture
def hook() -> Iterator[Any]:
    with serve_hook() as kind:
        yield kind


@pytest.fixture
def other_host() -> Iterator[Any]:
    with serve_hook() as kind:
        yield kind


def test_a_webhook_gets_the_page_as_its_body(tmp_path, hook):
    flow = Flow("night")

    @flow.task(timeout=30)
    def refused() -> None:
        raise PermanentError("403", diagnostic="scope is missing")

    flow.page("webhook", url=hook.url, headers={"X-Token": "t0ken"})
    run(tmp_path, flow)
    ((token, message),) = hook.received
    assert ("t0ken", "scope is missing", "high") == (token, message["body"]["diagnostic"], message["severity"])
    assert [(1,)] == ask(tmp_path, "SELECT sent_at IS NOT NULL FROM page")


def test_a_webhook_that_answers_no_is_an_error_that_keeps_the_url_to_itself(tmp_path, hook):
    hook.answers[:] = [500]
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url)
    run(tmp_path, flow)
    ((error,),) = ask(tmp_path, "SELECT send_error FROM page")
    assert "webhook: HTTP 500 Internal Server Error" == error


@parametrize_mostly_long("status", [302, 308, 301, 303, 307], quick=1)
def test_a_redirect_is_an_error_that_leads_no_secret_to_another_host(tmp_path, hook, other_host, status):
    hook.answers[:], hook.location = [status], other_host.url
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url, headers={"Authorization": "Bearer TOK-302"})
    run(tmp_path, flow)
    ((sent_at, error),) = ask(tmp_path, "SELECT sent_at, send_error FROM page")
    assert sent_at is None
    assert re.fullmatch(rf"webhook: HTTP {status} .*: a redirect to 127\.0\.0\.1 is not followed; .*", error)
    assert (["POST"], []) == (hook.asked, other_host.asked)


def test_a_redirect_to_a_file_is_an_error(tmp_path, hook):
    hook.answers[:], hook.location = [302], f"file://{tmp_path}/state.db"
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url)
    run(tmp_path, flow)
    assert [(None,)] == ask(tmp_path, "SELECT sent_at FROM page")
    with pytest.raises(FlowError, match="begins with https:// or http://"):
        flow.page("webhook", url="file:///etc/passwd")


def test_a_page_that_is_refused_at_first_is_sent_after_the_end_of_the_run(tmp_path, hook, monkeypatch):
    """The outage that ends the run has hit the pager as well."""
    monkeypatch.setattr("redrive.engine.executor.loop.LAST_TRIES_SECONDS", 60.0)
    monkeypatch.setattr(notifier, "RESEND_POLICY", Policy(base=0.05, cap=0.05, jitter="none"))
    hook.answers[:] = [503, 503, 503]
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url)
    assert "FAILED" == run(tmp_path, flow)
    assert 4 == len(hook.received)
    assert [(1, None)] == ask(tmp_path, "SELECT sent_at IS NOT NULL, send_error FROM page")
    ((ended,), (sent,)) = (
        ask(tmp_path, "SELECT seq FROM event WHERE new = 'FAILED' AND kind = 'run'"),
        ask(tmp_path, "SELECT seq FROM event WHERE kind = 'page' AND data LIKE '%\"sent\"%'"),
    )
    assert ended < sent and [] == page_changes(tmp_path, "unsent")


def test_a_page_that_is_refused_after_the_run_has_ended_is_sent_again(tmp_path, monkeypatch):
    """A pager that is slow to refuse: the run ends while a try is on its way."""
    monkeypatch.setattr("redrive.engine.executor.loop.LAST_TRIES_SECONDS", 60.0)
    monkeypatch.setattr(notifier, "RESEND_POLICY", Policy(base=0.05, cap=0.05, jitter="none"))
    inbox, started, ended, refused = (tmp_path / name for name in ("inbox", "started", "ended", "refused"))
    send_last = notifier.Notifier.send_last

    def send_last_and_say_so(sender: Any, on_idle: Any) -> None:
        send_last(sender, on_idle)
        ended.touch()

    monkeypatch.setattr(notifier.Notifier, "send_last", send_last_and_say_so)
    flow = Flow("night")
    doomed(flow)
    flow.command("last", f"while ! test -e {quoted(started)}; do sleep 0.02; done", timeout=30)
    first_try = f"touch {quoted(started)}; while ! test -e {quoted(ended)}; do sleep 0.02; done"
    first_try += f"; touch {quoted(refused)}; exit 1"
    flow.page("command", line=f"test -e {quoted(refused)} && cat > {quoted(inbox)} && exit 0; {first_try}")
    assert "FAILED" == run(tmp_path, flow)
    assert 1 == len(received(inbox))
    assert [(1, None)] == ask(tmp_path, "SELECT sent_at IS NOT NULL, send_error FROM page")


def test_a_page_that_cannot_be_sent_says_for_how_long_it_is_tried(tmp_path, monkeypatch):
    """Less than a minute: the command of the run waits for it."""
    assert causes.LAST_TRIES_SECONDS + notifier.CLOSE_SECONDS < 60
    flow, lines = Flow("night"), []
    doomed(flow)
    flow.page("webhook", url="http://127.0.0.1:9/nobody")

    def print_lines(events: Sequence[Event]) -> None:
        lines.extend(line for event in events for line in lines_of_event(event))

    Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=print_lines).run()
    (line,) = [line for line in lines if "tried again" in line]
    assert "page 1 not sent by webhook, tried again until 30 s after the end of the run: " in line


def test_a_page_that_nobody_took_is_reported_last_and_sent_by_the_next_executor(tmp_path, hook):
    hook.answers[:] = [503]
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url)
    run(tmp_path, flow)
    (unsent,) = page_changes(tmp_path, "unsent")
    assert ("webhook: HTTP 503 Service Unavailable", "budget spent on doomed") == (unsent["error"], unsent["title"])
    assert ask(tmp_path, "SELECT max(seq) FROM event WHERE kind IN ('run', 'task')") < ask(
        tmp_path, "SELECT seq FROM event WHERE data LIKE '%\"unsent\"%'"
    )
    later = Flow("night")
    later.task(lambda: None, name="fine")
    later.page("webhook", url=hook.url)
    run(tmp_path, later, run_id="later")
    assert ["doomed", "doomed"] == [message["task"] for _, message in hook.received]


def test_a_stop_ends_the_tries_after_the_end_of_the_run(tmp_path, hook, monkeypatch):
    monkeypatch.setattr("redrive.engine.executor.loop.LAST_TRIES_SECONDS", 600.0)
    hook.answers[:] = [503] * 1000
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=hook.url)

    def stop_after_refusal(events: Sequence[Event]) -> None:
        if any(isinstance(event.payload, PageChanged) and event.payload.what == "send-failed" for event in events):
            executor.stop()

    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=stop_after_refusal)
    assert ("FAILED", False) == ((result := executor.run_result()).state, result.interrupted)
    assert 1 == len(page_changes(tmp_path, "unsent"))


def test_secrets_of_senders_are_not_in_the_state_file(tmp_path, hook):
    """Nor in the events: who may read the file may not page, nor use the receiver."""
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url=f"{hook.url}/WEBHOOKSECRET?key=QUERYSECRET", headers={"Authorization": "HEADERSECRET"})
    flow.page("command", line="true COMMANDSECRET")
    flow.page("command", argv=["true", "ARGUMENTSECRET"])
    copies: list[bytes] = []

    def copy_files(events: Sequence[Event]) -> None:
        copies.extend(path.read_bytes() for path in tmp_path.glob("state.db*") if path.is_file())

    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=copy_files)
    executor.run()
    copy_files(())
    assert 1 == len(hook.received)
    assert not [copy for copy in copies if b"SECRET" in copy or b"secret-path" in copy]
    ((options,),) = ask(tmp_path, "SELECT options FROM run")
    senders = json.loads(options)["pages"]
    assert [("webhook", "127.0.0.1"), ("command", None), ("command", None)] == [
        (one["sender"], one["host"]) for one in senders
    ]
    assert 3 == len({one["hash"] for one in senders})


def test_a_webhook_that_nobody_serves_is_an_error(tmp_path, hook):
    flow = Flow("night")
    doomed(flow)
    flow.page("webhook", url="http://127.0.0.1:1/x", timeout=5)
    run(tmp_path, flow)
    assert "refused" in ask(tmp_path, "SELECT send_error FROM page")[0][0]


class FakeApprise:
    sent: ClassVar[list[tuple[str, str, str]]] = []

    def add(self, url: str) -> bool:
        return url.startswith("slack://")

    def notify(self, *, title: str, body: str, notify_type: str) -> bool:
        self.sent.append((title, body, notify_type))
        return True


def test_apprise_is_used_where_it_is_installed(tmp_path, monkeypatch):
    module: Any = types.ModuleType("apprise")
    module.Apprise = FakeApprise
    monkeypatch.setitem(sys.modules, "apprise", module)
    monkeypatch.setattr(FakeApprise, "sent", [])
    flow = Flow("night")
    doomed(flow)
    flow.page("apprise", url="slack://token")
    run(tmp_path, flow)
    ((title, body, kind),) = FakeApprise.sent
    assert ("budget spent on doomed", "warning") == (title, kind) and "redrive requeue" in body


def test_apprise_that_is_not_installed_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    flow = Flow("night")
    doomed(flow)
    flow.page("apprise", url="slack://token")
    run(tmp_path, flow)
    assert "pip install 'redrive[notify]'" in ask(tmp_path, "SELECT send_error FROM page")[0][0]
