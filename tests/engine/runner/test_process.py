"""Facts about real processes, and signals that reach exactly whom they are meant for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.runner import call, process, reaper, stack
from redrive.engine.statefile import processes
from redrive.engine.statefile.ownership import has_token

from .conftest import bearers_of


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **options) as started:
        try:
            yield started
        finally:
            started.kill()


def test_a_process_reports_when_it_started_for_as_long_as_it_is_there() -> None:
    with running("sleep", "600") as started:
        assert processes.start_ticks(started.pid) >= processes.start_ticks(os.getpid())
    with pytest.raises(OSError):
        processes.start_ticks(started.pid)


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path: Any) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with running(str(program), "600") as started:
        assert int(processes.stat_fields(started.pid)[1]) == os.getpid()


def test_descendants_are_found_through_all_generations() -> None:
    with running("sh", "-c", "sh -c 'sleep 600 & echo $!; wait' & wait", stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        grandchild = int(started.stdout.readline())
        found = process.descendants(started.pid)
        assert len(found) == 2
        assert found[-1] == grandchild
        assert process.command_line(started.pid).startswith("sh -c sh -c 'sleep 600")
        process.kill_all(found)


def test_the_kernel_says_what_a_process_is_doing() -> None:
    with running("sleep", "600") as started:
        os.kill(started.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOWAIT)
        assert process.kernel_view(started.pid).startswith("T")
    assert process.kernel_view(started.pid) == ""


def test_children_are_found_where_the_kernel_lists_none() -> None:
    with running("sleep", "600") as started:
        assert started.pid in process._children_by_scan(os.getpid())


def test_a_token_is_found_in_the_environment_and_its_bearers_killed() -> None:
    token = uuid.uuid4().hex
    with (
        running("sleep", "600", env={"REDRIVE_EXECUTOR": token}) as bearer,
        running("sleep", "600", env={"REDRIVE_EXECUTOR": token + "x"}) as other,
    ):
        assert bearers_of(token) == [bearer.pid]
        assert reaper.kill_by_token(token) == [bearer.pid]
        assert bearer.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert bearers_of(token) == []


def test_a_token_is_found_while_its_bearer_calls_exec(tmp_path: Path) -> None:
    """In one of a hundred reads its environment is empty."""
    script = tmp_path / "again.sh"
    script.write_text('test "$1" -eq 0 || exec sh "$0" $(($1 - 1))\n')
    count = 0
    while count <= 100:  # a busy machine reads it less often in one life
        with running("sh", str(script), "150", env={**os.environ, "REDRIVE_EXECUTOR": "bearer"}) as bearer:
            seen = []
            while bearer.poll() is None:
                seen.append(has_token(bearer.pid, ["bearer"]))
        assert seen == sorted(seen, reverse=True), "it has a token until it ends, and none while it ends"
        count += sum(seen)


def test_a_process_without_environment_bears_no_token() -> None:
    with running("sleep", "600", env={}) as bare:
        assert not has_token(bare.pid, ["bearer"])


def test_a_group_is_signalled_whole_and_a_process_without_group_alone() -> None:
    with running("sh", "-c", "sleep 600 & echo $!; wait", stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        member = os.pidfd_open(int(leader.stdout.readline()))
        pidfd = os.pidfd_open(leader.pid)
        assert process.signal_group(pidfd, leader.pid, signal.SIGTERM)
        assert select.select([member], [], [], 10)[0] == [member]
        assert leader.wait(60) == -signal.SIGTERM
        os.close(pidfd)
        os.close(member)
    with running("sleep", "600") as alone:  # in our own group, which must not be signalled
        pidfd = os.pidfd_open(alone.pid)
        assert process.signal_group(pidfd, alone.pid, signal.SIGTERM)
        assert alone.wait(60) == -signal.SIGTERM
        os.close(pidfd)


def test_an_old_kernel_gets_the_group_signalled_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    send = signal.pidfd_send_signal

    def old(pidfd: int, number: int, info: Any = None, flags: int = 0) -> None:
        if flags:
            raise OSError(22, "Invalid argument")
        send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", old)
    with running("sleep", "600", start_new_session=True) as leader:
        pidfd = os.pidfd_open(leader.pid)
        assert process.signal_group(pidfd, leader.pid, signal.SIGTERM)
        assert leader.wait(60) == -signal.SIGTERM
        assert not process.signal_group(pidfd, leader.pid, signal.SIGTERM)
        os.close(pidfd)


def test_a_process_that_has_become_another_users_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """``sudo`` in a task: no error, for whoever asks has others to look after."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    monkeypatch.setattr(os, "kill", refuse)
    token = uuid.uuid4().hex
    with running("sleep", "600", env={"REDRIVE_EXECUTOR": token}, start_new_session=True) as other:
        pidfd = os.pidfd_open(other.pid)
        assert not reaper.signal_process(pidfd, signal.SIGTERM)
        assert not process.signal_group(pidfd, other.pid, signal.SIGTERM)
        process.kill_all([other.pid])
        assert reaper.kill_by_token(token) == []
        assert other.poll() is None
        os.close(pidfd)
        monkeypatch.undo()


def test_a_blocked_signal_is_seen_on_its_descriptor() -> None:
    code = """
import os, select, signal
from redrive.engine.runner import process
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
fd = process.open_signal_descriptor(signal.SIGCHLD)
assert select.select([fd], [], [], 0)[0] == []
if os.fork() == 0:
    os._exit(0)
assert select.select([fd], [], [], 10)[0] == [fd]
assert len(os.read(fd, 4096)) == 128
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_machine_says_which_boot_this_is() -> None:
    assert len(processes.boot_id() or "") == 36


# --- Dumps of stacks ----------------------------------------------------------------------------------------------

DUMP = """\
Thread 0x00007ff0bc0af6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/home/ana/flow/pool.py", line 5 in work

Current thread 0x00007ff0bda48b80 (most recent call first):
  File "/home/ana/flow/sub/load.py", line 9 in hang
  File "/home/ana/flow/flow.py", line 3 in task
"""


def test_where_names_the_innermost_line_relative_to_the_project() -> None:
    assert stack.frames(DUMP, "/home/ana/flow").where == "sub/load.py:9 in hang"
    assert stack.frames(DUMP, None).where == "/home/ana/flow/sub/load.py:9 in hang"
    assert not stack.frames("", None).where


def test_frames_of_the_engine_are_left_out_of_what_a_person_reads() -> None:
    engine = f'  File "{call.__file__}", line 89 in call\n  File "<frozen runpy>", line 88 in _run_code\n'
    assert stack.without_engine(DUMP + engine) == DUMP
    assert stack.without_engine(engine) == engine  # it hangs in the engine itself
    assert stack.without_engine("") == ""


def test_a_thread_is_cut_out_of_the_dump_of_all() -> None:
    assert stack.of_thread(DUMP, 0x7FF0BC0AF6C0).splitlines()[-1] == '  File "/home/ana/flow/pool.py", line 5 in work'
    assert stack.of_thread(DUMP, 0x7FF0BDA48B80).startswith("Current thread")
    assert stack.of_thread(DUMP, 1) == DUMP


# --- The heap that a fork copies -------------------------------------------------------------------------------------

#: Prints how many bytes of a heap with 96 MB of objects the kernel is asked to move, and of one without.
_COLLAPSE = """
from redrive.engine.runner import process

asked = []

class Library:
    def madvise(self, start, size, advice):
        assert start.value % process.HUGE_PAGE_BYTES == size.value % process.HUGE_PAGE_BYTES == 0
        asked.append(size.value)
        return -1  # an old kernel

process._libc = Library()
process.collapse_heap()
print(sum(asked))
objects = [[number] for number in range(1_000_000)]
process.collapse_heap()
print(sum(asked))
"""


@pytest.mark.long
def test_a_large_heap_is_moved_to_huge_pages_and_a_small_one_is_not() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _COLLAPSE], capture_output=True, text=True, check=True)
    small, large = map(int, done.stdout.split())
    assert small == 0 and large > 64_000_000
