"""What somebody else puts beside a state file is refused in one sentence: not followed, waited for or believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redrive.engine.errors import StateFileError, StorageError
from redrive.engine.executor import host
from redrive.engine.statefile import ownership
from redrive.engine.statefile.lock_file import lock_path
from redrive.engine.statefile.ownership import open_sidecar, require_own_state_file
from redrive.engine.store import database, lock, write_ahead_log
from support.commands import run_redrive

FLOW = "from redrive.engine import Flow\nflow = Flow('f')\nflow.task(lambda: 1, name='a')\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "victim").write_text("precious")
    return tmp_path / "x.db"


@pytest.mark.parametrize("suffix", [".lock", ".stderr"])
def test_a_link_is_not_followed(state: Path, suffix: str) -> None:
    Path(f"{state}{suffix}").symlink_to(state.parent / "victim")
    with pytest.raises(StorageError, match="is a link: remove it"):
        if suffix == ".lock":
            lock.acquire(str(state), "e")
        else:
            host._open_log(str(state))
    assert (state.parent / "victim").read_text() == "precious"


@pytest.mark.parametrize("suffix", [".lock", ".stderr"])
def test_a_pipe_is_not_waited_for(state: Path, suffix: str) -> None:
    os.mkfifo(f"{state}{suffix}")
    done = run_redrive("run", state.parent / "flow.py", "--state", state, "--detach")
    assert done.returncode and "is not a regular file: remove it" in done.stderr and "Traceback" not in done.stderr


def test_a_file_of_another_user_is_refused_and_one_of_the_owner_of_the_state_is_not(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a second user: the file is ours, and we are somebody else."""
    path = lock_path(str(state))
    Path(path).touch()
    if os.getuid() == 0:
        os.chown(path, 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StorageError, match="belongs to another user"):
        ownership.open_lock(path)
    state.touch()
    os.chown(state, os.stat(path).st_uid, -1)
    os.close(ownership.open_lock(path)[0])


@pytest.mark.parametrize("command", ["run", "serve", "resume"])
@pytest.mark.parametrize("mode", [0o666, 0o664, 0o600] if os.getuid() == 0 else [0o666])
def test_a_state_file_that_others_made_or_may_write_is_refused_before_anything_runs(
    state: Path, command: str, mode: int
) -> None:
    database.open_for_writing(state).close()
    state.chmod(mode)
    if os.getuid() == 0:
        os.chown(state, 4711 if mode == 0o600 else 0, 4711)
    before = state.read_bytes()
    flow = state.parent / "flow.py"
    words = [state] if command == "resume" else [flow, "--state", state]
    done = run_redrive(command, *words)
    assert done.returncode == 2
    if command != "resume":  # which finds no run in this file
        who = {0o666: "can be written by every user", 0o664: "can be written by the group", 0o600: "belongs to"}[mode]
        assert who in done.stderr and "nothing is run with it" in done.stderr
    assert state.read_bytes() == before


def test_nobody_is_told_to_remove_a_device() -> None:
    with pytest.raises(StateFileError, match="nothing is run with it; choose another"):
        require_own_state_file("/dev/null")


def test_the_doctor_warns_of_a_state_file_that_others_may_write(state: Path) -> None:
    database.open_for_writing(state).close()
    assert "can be written" not in run_redrive("doctor", state).stdout
    state.chmod(0o666)
    assert f"warning owner       {state} can be written by every user" in run_redrive("doctor", state).stdout


def test_a_copy_is_never_written_through_what_is_there(state: Path) -> None:
    connection = database.open_for_writing(state)
    target = f"{state}.rescued"
    Path(f"{target}.part").symlink_to(state.parent / "victim")
    write_ahead_log.copy(connection, target)
    connection.close()
    assert (state.parent / "victim").read_text() == "precious"
    assert os.stat(target).st_mode & 0o777 == 0o600


def test_a_state_file_behind_a_link_is_private(state: Path) -> None:
    state.symlink_to(state.parent / "real.db")
    before = os.umask(0)
    try:
        database.open_for_writing(state).close()
    finally:
        os.umask(before)
    assert os.stat(state.parent / "real.db").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".sock"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(state: Path, suffix: str) -> None:
    Path(f"{state}{suffix}").mkdir()
    with pytest.raises(StateFileError, match="is a folder: remove it"):
        database.open_for_writing(state)


def test_the_folder_of_a_state_is_private_by_every_way(state: Path) -> None:
    before = os.umask(0)
    try:
        os.close(host._open_log(str(state.parent / "new" / "x.db")))
    finally:
        os.umask(before)
    assert os.stat(state.parent / "new").st_mode & 0o777 == 0o700


def test_an_ordinary_file_is_opened(state: Path) -> None:
    os.close(open_sidecar(f"{state}.stderr", os.O_WRONLY | os.O_CREAT, str(state)))
    assert os.stat(f"{state}.stderr").st_mode & 0o777 == 0o600
