"""A disk that is full while a run is opened: one sentence, the lock is free again, and nothing hangs."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redrive.engine.store import lock
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.processes import catches
from support.waiting import wait_until

FLOW = """
from redrive.engine import Flow
flow = Flow("f")
flow.task(lambda: 1, name="a")
"""
BIG = "for number in range(600):\n    flow.task(lambda: 1, name=f'task_{number:03}' + 'x' * 150, isolation='worker')\n"


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "flow.py"
    path.write_text(FLOW + BIG)
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Make a file system of some kilobytes, where this user may mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted: list[Path] = []

    def make(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "small", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.xfail("this user may not mount; the limit of file sizes is tested below")
        mounted.append(folder)
        return folder

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", path], check=True)


def is_free(state: Path) -> bool:
    lock.acquire(str(state), "next").release()
    return True


@parametrize_mostly_long("kilobytes", [200, 0, 8, 120, 160, 180, 220, 240], quick=2)
def test_a_new_run_on_a_full_disk_ends_with_a_sentence(
    flow: Path, small_disk: Callable[[int], Path], kilobytes: int
) -> None:
    folder = small_disk(max(kilobytes, 4))
    started = time.monotonic()
    done = run_redrive("run", flow, "--state", folder / "x.db", "--plain")
    assert time.monotonic() - started < 60
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "is full" in done.stderr or "No space left" in done.stderr


@parametrize_mostly_long("kilobytes", [44, 8, 20, 36], quick=0, daily=2)
def test_a_resume_on_a_full_disk_ends_with_a_sentence_and_goes_on_later(
    flow: Path, small_disk: Callable[[int], Path], kilobytes: int, tmp_path: Path
) -> None:
    folder = small_disk(12_000)  # the log of changes grows to 4 MB
    state = folder / "x.db"
    failing = "from redrive.engine import PermanentError\n@flow.task\ndef no():\n    raise PermanentError('no')\n"
    flow.write_text(FLOW + BIG + failing)
    assert run_redrive("run", flow, "--run-id", "r", "--state", state, "--plain").returncode == 3
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "ballast").write_bytes(b"x" * (free - kilobytes * 1024))
    resumed = start_redrive("resume", state, "--plain")
    try:
        first = next((line for line in resumed.stdout or () if "is full" in line), "")
        resumed.send_signal(signal.SIGTERM)  # where the first write fits, the executor waits for more room
        rest, _ = resumed.communicate(timeout=60)
    finally:
        resumed.kill()
    assert resumed.returncode and "is full" in first + rest and "Traceback" not in rest, (first, rest)
    assert is_free(state)
    (folder / "ballast").unlink()
    assert run_redrive("resume", state, "--plain").returncode == 3


def limit_files(kilobytes: int) -> Callable[[], None]:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, resource.RLIM_INFINITY))

    return limit


def test_storage_that_refuses_the_first_write_ends_the_start(flow: Path, tmp_path: Path) -> None:
    """Without a mount: no file may grow beyond 400 kB, which is enough for the tables alone."""
    state = tmp_path / "x.db"
    done = run_redrive("run", flow, "--state", state, "--plain", preexec_fn=limit_files(400))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(state) in done.stderr
    assert "ulimit -f" in done.stderr
    assert is_free(state)


@pytest.mark.long
def test_sigterm_ends_a_start_whose_first_write_is_refused(flow: Path, tmp_path: Path) -> None:
    state = tmp_path / "x.db"
    patient = {**os.environ, "REDRIVE_SIGNAL_SEND_RETRIES": "1000", "REDRIVE_GRPC_TIMEOUT": "1000"}
    command = ["run", flow, "--state", state, "--plain"]
    started = start_redrive(*command, env=patient, preexec_fn=limit_files(400))
    try:
        wait_until(lambda: state.exists() and Path(f"{state}-shm").exists() and catches(started.pid, signal.SIGTERM))
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 130
        assert "interrupted before the run was opened" in started.communicate()[0]
    finally:
        started.kill()
    assert is_free(state)
