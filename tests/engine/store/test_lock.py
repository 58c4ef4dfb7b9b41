"""Who owns a state file: one at a time, and nobody of a dead owner is left when the next one begins."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redrive.engine.errors import ExecutorBusyError, StorageError
from redrive.engine.statefile import lock_file
from redrive.engine.statefile.processes import identity
from redrive.engine.store import lock

SECOND = 1_000_000


class Child:
    """A real process. Its first lines tell what it is; it lives until its standard input ends, or is killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Runs Python code in a process of its own; whatever is left of it is ended with the test."""
    children: list[Child] = []

    def run(code: str, *arguments: str, **environment: str) -> Child:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        children.append(Child(process))
        return children[-1]

    yield run
    for child in children:
        child.kill()
        for stream in (child.process.stdin, child.process.stdout):
            assert stream is not None
            stream.close()


OWNER = """
    import sys
    from redrive.engine.store import lock
    held = lock.acquire(sys.argv[1], sys.argv[2], "monday")
    print("owner", flush=True)
    sys.stdin.read()
"""

#: An owner whose attempt leaves its session, keeps or closes the lock, and keeps or drops the token.
OWNER_WITH_ORPHAN = """
    import os, sys
    from redrive.engine.store import lock
    held = lock.acquire(sys.argv[1], sys.argv[2], "monday")
    if os.fork() == 0:
        os.setsid()
        end, other_end = os.pipe()
        if os.fork():
            os._exit(0)
        os.close(other_end)
        os.read(end, 1)  # until the parent, which has the lock as well, has ended
        keep, token = sys.argv[3] == "keeps-lock", sys.argv[4] == "bears-token"
        os.set_inheritable(held.fileno(), keep)
        environment = dict(os.environ)
        if token:
            environment["REDRIVE_EXECUTOR"] = sys.argv[2]
        os.execve("/bin/sh", ["sh", "-c", "echo $$; exec sleep 1000"], environment)
    os.wait()
    sys.stdin.read()
"""


def is_gone(pid: int) -> bool:
    return identity(pid)[0] is None


def new_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "night.db")


# --- One owner -----------------------------------------------------------------------------------------------------


def test_the_owner_says_who_it_is(state: str) -> None:
    held = lock.acquire(state, "executor-1", "monday")
    found = lock_file.current_holder(state)
    assert found == held.holder and found is not None and found.is_alive()
    assert (found.executor_id, found.pid, found.host) == ("executor-1", os.getpid(), socket.gethostname())
    assert (found.run_id, found.start_ticks) == ("monday", identity(os.getpid())[0])
    held.release()


def test_a_free_file_has_no_owner(state: str) -> None:
    assert lock_file.current_holder(state) is None
    lock.acquire(state, "executor-1").release()
    assert lock_file.current_holder(state) is None


def test_the_lock_file_is_its_owners_alone_and_stays(state: str) -> None:
    lock.acquire(state, "executor-1").release()
    assert os.stat(lock_file.lock_path(state)).st_mode & 0o777 == 0o600


def test_the_refusal_of_a_second_owner_names_pid_host_run_and_age(state: str, start: Callable[..., Child]) -> None:
    owner = start(OWNER, state, new_id())
    assert owner.line() == "owner"
    with pytest.raises(ExecutorBusyError) as caught:
        lock.acquire(state, "executor-2")
    assert (caught.value.pid, caught.value.host) == (owner.process.pid, socket.gethostname())
    for words in (f"pid {owner.process.pid}", socket.gethostname(), "run monday", "for ", "--wait"):
        assert words in str(caught.value)


def test_a_second_owner_in_the_same_process_is_refused_too(state: str) -> None:
    held = lock.acquire(state, "executor-1")
    with pytest.raises(ExecutorBusyError):
        lock.acquire(state, "executor-2")
    held.release()
    lock.acquire(state, "executor-2").release()


def test_who_waits_gets_the_file_when_its_owner_leaves(state: str, start: Callable[..., Child]) -> None:
    owner = start(OWNER, state, new_id())
    assert owner.line() == "owner"
    waiting = start(
        """
        import sys
        from redrive.engine.store import lock
        print("waiting", flush=True)
        lock.acquire(sys.argv[1], "executor-2", wait=True)
        print("owner", flush=True)
        """,
        state,
    )
    assert waiting.line() == "waiting"
    assert waiting.process.stdout is not None
    assert select.select([waiting.process.stdout], [], [], 0.3)[0] == []
    owner.kill()
    assert waiting.line() == "owner"


def test_a_killed_owner_is_dead_at_once(state: str, start: Callable[..., Child]) -> None:
    owner = start(OWNER, state, new_id())
    assert owner.line() == "owner"
    owner.kill()
    assert lock_file.current_holder(state) is None
    lock.acquire(state, "executor-2").release()


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/night\.db\.lock"):
        lock.acquire(str(tmp_path / "nowhere" / "night.db"), "executor-1")


def test_a_touch_is_seen_from_outside(state: str) -> None:
    held = lock.acquire(state, "executor-1")
    os.utime(lock_file.lock_path(state), (0, 0))
    held.touch()
    assert time.time() - os.stat(lock_file.lock_path(state)).st_mtime < 60
    held.release()


def test_a_probe_disturbs_nobody_who_wants_the_file(state: str) -> None:
    """A console that looks for a moment is not taken for an owner."""
    lock.acquire(state, "executor-1").release()
    reading = os.open(lock_file.lock_path(state), os.O_RDONLY)
    import fcntl
    import threading

    fcntl.flock(reading, fcntl.LOCK_SH)
    threading.Timer(0.2, os.close, [reading]).start()
    lock.acquire(state, "executor-2").release()


def test_a_commander_is_waited_for_and_never_taken_for_an_orphan(state: str, start: Callable[..., Child]) -> None:
    """Somebody holds the lock for one command, and the file still names an owner that died."""
    owner = start(OWNER, state, new_id())
    assert owner.line() == "owner"
    owner.kill()
    commander = start(
        """
        import fcntl, os, sys, time
        held = os.open(sys.argv[1] + ".lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        print("held", flush=True)
        time.sleep(0.3)  # its command
        """,
        state,
    )
    assert commander.line() == "held"
    held = lock.acquire(state, "executor-2")
    assert commander.process.wait() == 0
    held.release()


def test_a_lock_of_a_stranger_is_not_waited_for_for_ever(
    state: str, start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.1)
    stranger = start(
        """
        import fcntl, os, sys
        held = os.open(sys.argv[1] + ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()
        """,
        state,
    )
    assert stranger.line() == "held"
    with pytest.raises(ExecutorBusyError, match="locked by an unknown process"):
        lock.acquire(state, "executor-2")
    assert stranger.process.poll() is None


# --- Who is alive --------------------------------------------------------------------------------------------------


def holder(**changes: object) -> lock_file.LockHolder:
    start_ticks, boot_id = identity(os.getpid())
    fields: dict[str, object] = {
        "executor_id": "e",
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": boot_id,
        "host": socket.gethostname(),
        "started_at": 0,
    }
    return lock_file.LockHolder(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_pid_alone_proves_nothing() -> None:
    assert holder().is_alive()
    assert not holder(start_ticks=1).is_alive()  # the pid is somebody else's now
    assert not holder(pid=2**22 + 1).is_alive()
    assert not holder(released_at=1).is_alive()
    assert holder(host="elsewhere", pid=1).is_alive()  # who cannot be looked at is not declared dead
    assert holder(boot_id="another", pid=1).is_alive()


def test_a_zombie_is_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert identity(pid)[0] is None
    finally:
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("age_seconds", "words"), [(5, "5s"), (300, "5m00"), (10_800, "3h00")])
def test_an_age_is_reported_in_words(age_seconds: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1000
    monkeypatch.setattr(lock, "wall_time_us", lambda: now)
    started_at = now - age_seconds * SECOND
    assert lock.describe_holder(holder(started_at=started_at, run_id="r")).endswith(f", run r, for {words}")


def test_a_lock_file_with_nonsense_in_it_is_no_owner(state: str) -> None:
    Path(lock_file.lock_path(state)).write_text('{"pid": "nonsense"')
    lock.acquire(state, "executor-1").release()
    assert json.loads(Path(lock_file.lock_path(state)).read_text())["executor_id"] == "executor-1"


# --- Orphans -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keeps", "bears"), [("keeps-lock", "bears-token"), ("keeps-lock", "no-token"), ("closes-lock", "bears-token")]
)
def test_an_orphan_of_a_dead_owner_is_gone_before_the_next_one_begins(
    state: str, start: Callable[..., Child], keeps: str, bears: str
) -> None:
    """It left its session and its parents; the lock it inherited or the token it bears gives it away."""
    executor_id = new_id()
    owner = start(OWNER_WITH_ORPHAN, state, executor_id, keeps, bears)
    orphan = int(owner.line())
    owner.kill()
    assert not is_gone(orphan)
    held = lock.acquire(state, "executor-2")
    if keeps == "closes-lock":  # the lock was free, which proves nothing: the sweep of the dead finds it
        assert not is_gone(orphan)
        assert lock.sweep_orphans([executor_id], state) == [orphan]
    assert is_gone(orphan)
    held.release()


def test_an_owner_that_said_goodbye_leaves_the_file_to_its_dying_children_and_then_to_others(
    state: str, start: Callable[..., Child]
) -> None:
    held = lock.acquire(state, "executor-1")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    held.release()
    assert lock_file.current_holder(state) is not None
    assert lock.sweep_orphans(["executor-1"], state) == [pid]
    os.waitpid(pid, 0)
    lock.acquire(state, "executor-2").release()


def test_a_sweep_spares_the_living_itself_and_its_ancestors(
    state: str, start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    living, dead = new_id(), new_id()
    bystander = start("import sys; print('here', flush=True); sys.stdin.read()", REDRIVE_EXECUTOR=living)
    sweeper = start(
        """
        import os, subprocess, sys
        from redrive.engine.store import lock
        if len(sys.argv) == 3:  # the outer one bears the token as well, and must survive to tell
            inner = subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], capture_output=True, text=True)
            print(inner.stdout.strip(), flush=True)
        """,
        state,
        f"from redrive.engine.store import lock; print(lock.sweep_orphans([{dead!r}], {state!r}))",
        REDRIVE_EXECUTOR=dead,
    )
    assert bystander.line() == "here"
    assert sweeper.line() == "[]" and sweeper.process.wait() == 0
    assert bystander.process.poll() is None


def test_a_sweep_finds_children_that_are_born_while_it_sweeps(state: str, start: Callable[..., Child]) -> None:
    dead = new_id()
    breeder = start(
        """
        import itertools, os, time
        for number in itertools.count():
            if os.fork() == 0:
                time.sleep(1000)
            if number == 10:
                print("here", flush=True)
            time.sleep(0.002)
        """,
        REDRIVE_EXECUTOR=dead,
    )
    assert breeder.line() == "here"
    killed = lock.sweep_orphans([dead], state)
    assert breeder.process.pid in killed and len(killed) > 5
    assert all(is_gone(pid) for pid in killed)
    assert lock.sweep_orphans([dead], state) == []
