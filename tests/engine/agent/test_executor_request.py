"""What listens on the socket of a state file may be anything: each request ends with an answer or one sentence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redrive.engine.agent import command_client, executor_socket
from redrive.engine.domain.acts import Command
from redrive.engine.errors import LinkError
from support.commands import run_redrive
from support.processes import socket_address

PAUSE = Command("c1", "pause", "night-1", actor="ana@desk", reason="because")
NO_EXECUTOR = [b"{}", b"[]", b"no JSON", b"[" * 100_000, b"\xff\xfe", b"null", b'{"ok": 1, "message": 2}']


@pytest.fixture
def planted(run_file: Any) -> Iterator[Callable[[bytes], None]]:
    """Make something else listen that sends ``answer`` to whoever connects."""
    listeners: list[tuple[socket.socket, threading.Thread]] = []

    def listen(answer: bytes, pause_seconds: float = 0.0) -> None:
        listener = socket.socket(socket.AF_UNIX)
        with socket_address(f"{run_file.path}.sock") as address:
            listener.bind(address)
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                connection.recv(4096)
                try:
                    for byte in [answer] if not pause_seconds else [answer] * 1000:
                        connection.sendall(byte)
                        time.sleep(pause_seconds)
                except OSError:
                    pass
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        listeners.append((listener, thread))

    yield listen
    for listener, thread in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


@pytest.mark.parametrize("answer", [*NO_EXECUTOR, b'{"ok": true, "message": "x", "results": [1]}'])
def test_an_answer_of_no_executor_is_one_sentence(run_file: Any, planted: Any, answer: bytes) -> None:
    planted(answer + b"\n")
    with pytest.raises(LinkError, match="is not an executor"):
        command_client.send_blocking(str(run_file.path), PAUSE)


@pytest.mark.parametrize("words", [["pause"], ["doctor"], ["tasks"]])
def test_the_commands_show_no_traceback(run_file: Any, planted: Any, words: list[str]) -> None:
    planted(b"[]\n")
    done = run_redrive(*words, "--state", run_file.path)
    assert "Traceback" not in done.stderr + done.stdout


def test_an_answer_byte_by_byte_ends_at_its_deadline(run_file: Any, planted: Any) -> None:
    planted(b"x", 0.05)
    started = time.monotonic()
    with pytest.raises(LinkError, match="no answer from the executor"):
        executor_socket.request(str(run_file.path), {"act": "ping"}, 0.3)
    assert time.monotonic() - started < 30  # of the 50 that the answer takes


def test_an_answer_without_an_end_is_cut(run_file: Any, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_socket, "RESPONSE_BYTES_MAX", 100_000)
    planted(b"x" * 65536, 0.001)
    with pytest.raises(LinkError, match="too long"):
        executor_socket.ping(str(run_file.path))


def test_a_socket_of_another_user_gets_no_command(run_file: Any, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second user: the socket is ours, and we are somebody else, as is the owner of the file."""
    planted(b'{"ok": true, "message": "done"}\n')
    monkeypatch.setattr("redrive.engine.agent.executor_socket.struct.unpack", lambda *words: (1, 4711, 4711))
    with pytest.raises(LinkError, match="belongs to uid 4711"):
        command_client.send_blocking(str(run_file.path), PAUSE)
