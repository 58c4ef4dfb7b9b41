"""Whatever arrives at the executor's socket: it answers with a sentence, and its tasks go on to their end."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.agent import executor_socket
from redrive.engine.domain.acts import ACTS, OPTION_TYPES
from redrive.engine.executor import host, server
from support.commands import run_redrive
from support.hostile_values import altered
from support.marks import parametrize_mostly_long, scaled
from support.processes import socket_address, wait_for_end
from support.waiting import wait_until

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow, PermanentError, RetryPolicy

flow = Flow("attacked", max_parallel=4)

@flow.task(downstream="api")
def victim():
    raise PermanentError("no")

@flow.task(timeout=600)
def long():
    time.sleep(600)

@flow.task
def gate():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.02)

flow.task(lambda: None, name="last", after=gate)
"""

DEEP = "[" * 5000 + "]" * 5000
SURROGATE = '"\\ud800"'

#: JSON texts, because Python's values cannot say all of them.
HOSTILE = {
    "surrogate": SURROGATE,
    "surrogate in a list": f"[{SURROGATE}]",
    "surrogate as a name": f"{{{SURROGATE}: 1}}",
    "list": '["x"]',
    "list of three": '[["victim", "DEAD_LETTER", 0]]',
    "object": '{"x": 1}',
    "number": "5",
    "negative": "-1",
    "huge number": "1" + "0" * 400,
    "beyond 64 bits": "9223372036854775808",
    "list beyond 64 bits": "[9223372036854775808]",
    "infinite": "1e999",
    "NaN": "NaN",
    "list of NaN": "[NaN]",
    "true": "true",
    "null": "null",
    "empty": '""',
    "NUL": '"\\u0000"',
    "controls": '"\\u001b]0;x\\u0007\\u009b2J\\u202e"',
    "huge": json.dumps("x" * 100_000),
    "wide": json.dumps([["t", "RUNNING", 0]] * 3000),
    "deep": DEEP,
    "deeper than sane": "[" * 300 + "]" * 300,
}

LINES, LINES_AT_ONCE = 1000, 50
FIELDS = ("id", "act", "run_id", "targets", "actor", "reason", "options")


class Attacked:
    """A real executor in its own process, and a raw connection to its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = str(folder / "state.db")
        (folder / "flow.py").write_text(FLOW)
        options = {"durability": "normal"}
        self.pid = host.spawn(flow=str(folder / "flow.py"), state=self.state, run_id="r", options=options)
        wait_until(lambda: self.states().get("victim") == "DEAD_LETTER" and self.states()["gate"] == "RUNNING")
        self._connection = self.connect()
        self._lines = self._connection.makefile("rb")

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        with socket_address(executor_socket.socket_path(self.state)) as address:
            connection.connect(address)
        return connection

    def states(self) -> dict[str, str]:
        with sqlite3.connect(self.state) as connection:
            return dict(connection.execute("SELECT name, state FROM task"))

    def send(self, *texts: str) -> list[dict[str, Any]]:
        self._connection.sendall("".join(text + "\n" for text in texts).encode("utf-8", "surrogatepass"))
        return [json.loads(self._lines.readline()) for _ in texts]

    def act(self, act: str, *targets: tuple[str, str, int], **options: Any) -> dict[str, Any]:
        fields = {"id": uuid.uuid4().hex, "run_id": "r", "actor": "ana@desk", "reason": "why", "targets": targets}
        (answer,) = self.send(json.dumps({"act": act, **fields, "options": options}))
        return answer

    def finish(self) -> None:
        """The executor still answers, starts what comes next, and ends its run."""
        self.act("unpause")
        (self.folder / "go").touch()
        wait_until(lambda: self.states()["last"] == "SUCCESS", describe=self.complaint)
        (generation,) = self.ask("SELECT generation FROM task WHERE name = 'long'")
        self.act("cancel", ("long", "RUNNING", generation[0]))
        wait_until(lambda: self.states()["long"] == "CANCELLED", describe=self.complaint)
        assert self.complaint() == ""

    def ask(self, sql: str) -> list[Any]:
        with sqlite3.connect(self.state) as connection:
            return connection.execute(sql).fetchall()

    def complaint(self) -> str:
        return Path(f"{self.state}.stderr").read_text()

    def end(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            wait_for_end(self.pid)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    executor = Attacked(tmp_path)
    yield executor
    executor.end()


def message(act: str, field: str, value: str | None, option: str = "") -> str:
    """A whole command of ``act`` in which one field, or one option, is the JSON text ``value``; None: left out."""
    fields = {
        "act": json.dumps(act),
        "id": json.dumps(uuid.uuid4().hex),
        "run_id": '"r"',
        "targets": '[["victim", "DEAD_LETTER", 0]]' if act not in ("skip", "requeue") else "[]",
        "actor": '"ana@desk"',
        "reason": '"why"',
        "options": '{"how": "open", "downstream": "api"}',
    }
    if option:
        value = f"{{{json.dumps(option)}: {value}}}"
    fields.pop(field)
    text = ", ".join(f'"{name}": {text}' for name, text in fields.items())
    return f"{{{text}}}" if value is None else f'{{{text}, "{field}": {value}}}'


@parametrize_mostly_long("step", [21, 5, 1], daily=2)
def test_no_field_of_any_message_ends_the_executor(attacked: Attacked, step: int) -> None:
    """By default every 21st message of an act, from another one on for each: together every value in every field."""
    for number, act in enumerate([*[act.name for act in ACTS], "ping", "no-such-act"]):
        messages = [message(act, field, value) for field in FIELDS for value in [None, *HOSTILE.values()]]
        for option in [*OPTION_TYPES, "substitute", "timeout"]:
            messages += [message(act, "options", value, option) for value in HOSTILE.values()]
        for sent in messages[number % step :: step]:
            (answer,) = attacked.send(sent)
            assert isinstance(answer["message"], str) and "a fault of redrive" not in answer["message"], sent[:300]
    attacked.finish()


@parametrize_mostly_long("first", range(0, scaled(10_000), LINES), daily=2)
def test_altered_commands_get_one_answer_each_and_in_order(attacked: Attacked, first: int) -> None:
    """Several at once, on two connections, some of them twice."""
    dice = random.Random(first)
    for _ in range(LINES // LINES_AT_ONCE):
        commands = [json.loads(message(dice.choice(ACTS).name, "reason", '"why"')) for _ in range(LINES_AT_ONCE)]
        for command in commands:
            command["targets"] = [["victim", "DEAD_LETTER", 0]]
        texts = [json.dumps(altered(command, dice)) for command in commands]
        texts += [texts[0], '{"act": "ping"}']
        answers = attacked.send(*texts)
        for text, answer in zip(texts[:-1], answers, strict=False):
            assert isinstance(answer["message"], str), text[:300]
            assert "a fault of redrive" not in answer["message"], text[:300]
        assert answers[-1]["pid"] == attacked.pid
        with attacked.connect() as other:
            other.sendall(texts[0].encode()[: dice.randrange(len(texts[0]))])  # and it hangs up
    peak = Path(f"/proc/{attacked.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 200_000
    attacked.finish()


def test_what_is_no_message_gets_a_sentence(attacked: Attacked) -> None:
    texts = [*HOSTILE.values(), "", "{", "\x00", "\udcfc", '{"act": ' + DEEP + "}", "{}"]
    for answer in attacked.send(*texts):
        assert not answer["ok"] and "not a command" in answer["message"]
    attacked.finish()


def test_half_lines_are_bounded_in_sum(attacked: Attacked) -> None:
    """Forty connections with 15 MB each once took 600 MB."""
    refused = 0
    connections = [attacked.connect() for _ in range(40)]
    for connection in connections:
        try:
            connection.sendall(b"x" * (server.LINE_BYTES_MAX - 1000))
        except (BrokenPipeError, ConnectionResetError):
            refused += 1
    held = server.HELD_BYTES_MAX // server.LINE_BYTES_MAX + 1
    wait_until(lambda: attacked.send('{"act": "ping"}')[0]["ok"])
    assert len(connections) - held <= refused + sum(_is_refused(connection) for connection in connections[held:])
    peak = Path(f"/proc/{attacked.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 200_000
    attacked.finish()


def _is_refused(connection: socket.socket) -> bool:
    try:
        return b"at most" in connection.recv(4096)
    except ConnectionError:
        return False


def test_a_line_that_is_too_long_is_answered_and_the_next_client_served(attacked: Attacked) -> None:
    connection = attacked.connect()
    connection.sendall(b" " * (server.LINE_BYTES_MAX + 1))
    assert b"at most" in connection.recv(4096)
    attacked.finish()


@pytest.mark.long
def test_an_operator_whose_login_name_is_not_utf8_does_no_harm(attacked: Attacked) -> None:
    for word in ("events", "tasks", "doctor", "inbox", "runs", "unpause", "pause", "unpause"):
        done = run_redrive(word, "--state", attacked.state, env=named(b"J\xfcrgen"))
        assert done.stdout or done.stderr == "the run is not paused\n", word
        assert "Traceback" not in done.stderr, word
    attacked.finish()


def test_a_run_may_be_started_under_such_a_name(tmp_path: Path) -> None:
    flow = "from redrive.engine import Flow\nflow = Flow('f')\nflow.task(lambda: 1, name='a')\n"
    (tmp_path / "flow.py").write_text(flow)
    command = ["run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--plain"]
    done = run_redrive(*command, env=named(b"J\xfcrgen"))
    assert (done.returncode, done.stderr) == (0, "")


def named(login: bytes) -> dict[bytes, bytes]:
    return {**os.environb, **dict.fromkeys((b"LOGNAME", b"USER", b"LNAME", b"USERNAME"), login)}
