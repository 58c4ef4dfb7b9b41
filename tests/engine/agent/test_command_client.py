"""The commander's side: through the socket of a living executor, or under the lock of a dead one's file."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.agent import command_client, executor_socket
from redrive.engine.domain.acts import Command
from redrive.engine.errors import ExecutorBusyError, OtherFormatError, StateFileError
from redrive.engine.statefile import lock_file, open_writing
from redrive.engine.store import lock
from support.processes import socket_address
from support.waiting import LIMIT_SECONDS


def pause(id: str = "c1") -> Command:
    return Command(id, "pause", "night-1", actor="ana@desk", reason="because")


def is_paused(run_file: Any) -> bool:
    (since,) = run_file.connection.execute("SELECT paused_since FROM run").fetchone()
    return since is not None


def test_with_no_executor_the_act_is_applied_under_its_lock_which_is_free_again(run_file: Any) -> None:
    assert command_client.send_blocking(str(run_file.path), pause()).ok
    assert is_paused(run_file)
    lock.acquire(str(run_file.path), "next").release()


def test_who_serves_a_file_is_known_by_its_lock(run_file: Any) -> None:
    assert lock_file.service_pid(str(run_file.path)) is None
    service = lock.acquire(str(run_file.path) + lock_file.SERVICE, "service")
    assert lock_file.service_pid(str(run_file.path)) == os.getpid()
    service.release()
    assert lock_file.service_pid(str(run_file.path)) is None
    Path(f"{run_file.path}{lock_file.SERVICE}.lock").write_text("[]")
    again = os.open(f"{run_file.path}{lock_file.SERVICE}.lock", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX)
    assert lock_file.service_pid(str(run_file.path)) is None  # what is not ours is not believed
    os.close(again)


def test_a_living_executor_applies_it(run_file: Any, executor: Any) -> None:
    assert command_client.send_blocking(str(run_file.path), pause()).ok
    assert is_paused(run_file)


def test_the_socket_that_a_dead_executor_left_is_no_obstacle(run_file: Any, executor: Any) -> None:
    executor.die()
    assert Path(f"{run_file.path}.sock").exists()
    assert command_client.send_blocking(str(run_file.path), pause()).ok


def test_a_path_longer_than_sockets_may_have_is_reached(make_run_file: Any, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90) / ("y" * 90)
    folder.mkdir(parents=True)
    run_file = make_run_file(str((folder / "night.db").relative_to(tmp_path)))
    listener = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{descriptor}/night.db.sock")
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(b'{"ok": true, "message": "heard"}\n')
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    assert command_client.send_blocking(str(run_file.path), pause()).message == "heard"
    listener.close()
    os.close(descriptor)


def test_names_that_are_cut_for_their_socket_stay_different() -> None:
    names = [f"{'x' * 100}{number}.db" for number in range(50)] + ["ü" * 60 + ".db", "short.db"]
    paths = {executor_socket.socket_path(f"/var/lib/{name}") for name in names}
    assert len(paths) == len(names)
    assert all(len(os.fsencode(os.path.basename(path))) <= executor_socket.SOCKET_NAME_BYTES for path in paths)
    assert "/var/lib/short.db.sock" in paths and executor_socket.socket_path("short.db") == "short.db.sock"


def test_an_executor_that_dies_before_it_answers_is_replaced_by_the_lock(run_file: Any) -> None:
    """It took the command and is gone: asked again with the same id, where it may be asked safely."""
    owner = lock.acquire(str(run_file.path), "dying")
    listener = socket.socket(socket.AF_UNIX)
    with socket_address(f"{run_file.path}.sock") as address:
        listener.bind(address)
    listener.listen()

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(4096)
        listener.close()
        connection.close()
        os.close(owner.fileno())

    threading.Thread(target=die, daemon=True).start()
    assert command_client.send_blocking(str(run_file.path), pause()).ok
    assert is_paused(run_file)


def test_who_holds_the_lock_and_does_not_answer_is_named(run_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_client, "PATIENCE_SECONDS", 0.2)
    owner = lock.acquire(str(run_file.path), "hung")
    with pytest.raises(ExecutorBusyError, match=f"pid {os.getpid()}") as caught:
        command_client.send_blocking(str(run_file.path), pause())
    assert caught.value.pid == os.getpid()
    assert not is_paused(run_file)
    owner.release()


def test_nothing_is_made_where_there_is_no_state_file(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="no state file"):
        command_client.send_blocking(str(tmp_path / "none.db"), pause())
    assert list(tmp_path.iterdir()) == [tmp_path / "state-home"] or not list(tmp_path.iterdir())


def test_a_file_of_a_later_version_is_not_touched(run_file: Any) -> None:
    run_file.connection.execute("PRAGMA user_version = 99")
    run_file.close()
    before = run_file.path.read_bytes()
    with pytest.raises(OtherFormatError):
        command_client.send_blocking(str(run_file.path), pause())
    assert run_file.path.read_bytes() == before


def test_somebody_elses_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE run (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StateFileError, match="not a redrive state file"):
        command_client.send_blocking(str(path), pause())
    assert path.read_bytes() == before


def test_a_database_that_is_locked_gives_one_sentence(run_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_writing, "BUSY_SECONDS", 0.1)
    run_file.connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateFileError, match="locked"):
        command_client.send_blocking(str(run_file.path), pause())
    run_file.connection.execute("ROLLBACK")


def test_the_locks_of_a_killed_executor_are_free_one_after_the_other(
    run_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command between them said that the file is written under another name."""
    held = os.open(run_file.path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(held, fcntl.LOCK_UN))
    assert command_client.send_blocking(str(run_file.path), pause()).ok
    os.close(held)


def test_a_full_disk_is_named(run_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_writing, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(command_client, "is_full", lambda path: True)
    run_file.connection.execute("BEGIN IMMEDIATE")  # any error of SQLite
    with pytest.raises(StateFileError, match=r"nothing was changed: the disk that holds .* is full; free some space"):
        command_client.send_blocking(str(run_file.path), pause())
    run_file.connection.execute("ROLLBACK")


def test_the_end_of_an_executor_ends_the_connection(run_file: Any, executor: Any) -> None:
    presence = executor_socket.ExecutorConnection(str(run_file.path))
    presence.refresh()
    assert presence.descriptor is not None
    executor.die()
    deadline = time.monotonic() + LIMIT_SECONDS
    while presence.descriptor is not None:
        assert time.monotonic() < deadline
        presence.receive()


def test_presence_without_an_executor_is_nothing(run_file: Any) -> None:
    presence = executor_socket.ExecutorConnection(str(run_file.path))
    presence.refresh()
    assert presence.descriptor is None
    presence.receive()
    presence.close()


def test_the_reason_why_nothing_can_be_changed_names_the_obstacle(run_file: Any) -> None:
    """The obstacle must be one for root as well, who may do everything: a file that is not there."""
    assert executor_socket.read_only_reason(str(run_file.path)) is None
    shutil.rmtree(run_file.path.parent / "gone", ignore_errors=True)
    assert "gone" in str(executor_socket.read_only_reason(str(run_file.path.parent / "gone" / "x.db")))
