"""Getting in, and being told why not."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redrive.console.model.session_status import Link
from redrive.console.sessions import connection
from redrive.console.sessions.address import SshOptions, parse
from redrive.console.sessions.login import FOLDER_PREFIX, Login, _lock_folder, remove_left_folders
from redrive.console.sessions.open import list_state_files
from redrive.console.sessions.ssh import SshSession
from redrive.console.sessions.ssh_errors import last_line, link_error
from redrive.engine.errors import LinkError, StateFileError
from support.state_file import StateFileBuilder
from support.waiting import wait_until_async


async def refusal(path: Path, **options: Any) -> LinkError:
    with pytest.raises(LinkError) as caught:
        await SshSession.open(f"ssh://far{path}", options=SshOptions(**options))
    return caught.value


@pytest.fixture
def login_files(far: Any) -> Iterator[Path]:
    """The home over there, where a test may put what a login reads."""
    yield far.home
    for path in (".bashrc", ".profile", ".bash_profile"):
        (far.home / path).unlink(missing_ok=True)


def remote_agents(far: Any) -> list[int]:
    """Agents that run over there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-ISuc" in words and b"HOME=" + os.fsencode(far.home) in environment:
            found.append(int(folder.name))
    return found


async def test_a_key_that_is_not_accepted_wants_a_person(far: Any, run_file: StateFileBuilder) -> None:
    error = await refusal(run_file.path, options=(far.config("stranger", user_key="stranger_key"),))
    assert error.locked and "does not let you in" in str(error)


async def test_a_host_that_is_not_known_wants_a_person(far: Any, run_file: StateFileBuilder) -> None:
    error = await refusal(run_file.path, options=(far.config("unknown", known_hosts="empty_hosts"),))
    assert error.locked and "not known" in str(error)


async def test_a_host_with_another_key_than_before_is_not_trusted(far: Any, run_file: StateFileBuilder) -> None:
    stranger = (far.folder / "stranger_key.pub").read_text().split()
    (far.folder / "changed_hosts").write_text(f"[127.0.0.1]:{far.port} {stranger[0]} {stranger[1]}\n")
    error = await refusal(run_file.path, options=(far.config("changed", known_hosts="changed_hosts"),))
    assert error.final and not error.locked and "before" in str(error)


async def test_a_shared_connection_that_hangs_is_gone_around(
    far: Any, run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master of the operator's ControlMaster is there, and answers nobody."""
    run_file.close()
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 3.0)
    with far.shared_connection() as (path, master):
        master.send_signal(signal.SIGSTOP)
        options = SshOptions(options=(f"ControlPath={path}",))
        session = await SshSession.open(f"ssh://far{run_file.path}", options=options, is_console=False)
        assert (await session.snapshot()).tasks
        assert not any("ControlPath=none" in word for word in session.ssh_arguments)
        await session.close()


async def test_nobody_at_the_port_may_be_somebody_later(far: Any, run_file: StateFileBuilder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        error = await refusal(run_file.path, options=(f"Port={taken.getsockname()[1]}",))
    assert not error.final and "no ssh server listens" in str(error)


async def test_an_option_that_ssh_does_not_know_is_reported(far: Any, run_file: StateFileBuilder) -> None:
    error = await refusal(run_file.path, options=("NoSuchOption=yes",))
    assert error.final and "NoSuchOption" in str(error).casefold().replace("nosuchoption", "NoSuchOption")


async def test_without_an_ssh_program_the_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, run_file: StateFileBuilder
) -> None:
    monkeypatch.setenv("REDRIVE_SSH", "/no/such/ssh")
    error = await refusal(run_file.path)
    assert error.final and "/no/such/ssh" in str(error)


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/bin/true", "is not a Python"),
        ("/no/such/python", "there is no /no/such/python"),
        ("/etc/passwd", "there is no /etc/passwd"),
        ("$(touch executed)", "there is no"),
        ("nope; touch executed", "there is no"),
        ("`touch executed`", "there is no"),
    ],
)
async def test_what_is_no_python_is_named(far: Any, run_file: StateFileBuilder, python: str, sentence: str) -> None:
    error = await refusal(run_file.path, python=python)
    assert error.final and sentence in str(error)
    assert not (far.home / "executed").exists()


async def test_a_python_may_lie_anywhere_also_in_the_home_over_there(far: Any, run_file: StateFileBuilder) -> None:
    odd = far.home / "a b'c$(x)"
    odd.mkdir(exist_ok=True)
    python = odd / "py thon"
    python.unlink(missing_ok=True)
    python.symlink_to(sys.executable)
    for name in (str(python), f"~/{python.relative_to(far.home)}"):
        session = await SshSession.open(f"ssh://far{run_file.path}", options=SshOptions(name))
        await session.close()


async def test_a_path_in_the_home_over_there_is_expanded_there(far: Any, run_file: StateFileBuilder) -> None:
    run_file.close()
    (far.home / "night.db").write_bytes(run_file.path.read_bytes())
    session = await SshSession.open("ssh://far/~/night.db")
    assert session.address == f"ssh://far{far.home}/night.db"
    await session.close()


async def test_a_host_alone_means_its_latest_state_file_and_offers_them_all(
    far: Any, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    folder = far.home / ".local/state/redrive"
    folder.mkdir(parents=True, exist_ok=True)
    for age, name in enumerate(("new.db", "old.db")):
        run_file = make_run_file(name, run_id=f"run-of-{name}")
        run_file.close()
        (folder / name).write_bytes(run_file.path.read_bytes())
        with sqlite3.connect(folder / name) as connection:
            connection.execute("UPDATE run SET started_at = started_at - ? * 3600000000", (age,))
    (folder / "odd.db").write_text("not a database")
    try:
        new, old, odd = await list_state_files("ssh://far", SshOptions())
        assert new.latest is not None and old.latest is not None
        assert (new.path, new.latest.run_id, new.latest.state) == (
            f"ssh://far{folder}/new.db",
            "run-of-new.db",
            "RUNNING",
        )
        assert old.latest.run_id == "run-of-old.db"
        assert odd.problem is not None and "not a redrive state file" in odd.problem
        session = await SshSession.open("ssh://far")
        assert session.address == new.path
        await session.close()
    finally:
        for name in ("new.db", "old.db", "odd.db"):
            (folder / name).unlink()
    with pytest.raises(StateFileError, match=r"^far: there is no state file"):
        await SshSession.open("ssh://far/")


async def test_a_login_that_prints_is_not_listened_to(login_files: Path, run_file: StateFileBuilder) -> None:
    (login_files / ".bashrc").write_text("echo 'Welcome to far'; printf 'no end of line'\n")
    session = await SshSession.open(f"ssh://far{run_file.path}")
    assert (await session.snapshot()).run.run_id == "night-1"
    await session.close()


async def test_a_login_that_prints_for_ever_is_given_up(login_files: Path, run_file: StateFileBuilder) -> None:
    (login_files / ".bashrc").write_text("yes\n")
    error = await refusal(run_file.path)
    assert "prints without end" in str(error)


async def test_nothing_is_left_over_there(far: Any, run_file: StateFileBuilder) -> None:
    before = sorted(path for path in far.home.rglob("*"))
    session = await SshSession.open(f"ssh://far{run_file.path}")
    await session.snapshot()
    assert remote_agents(far)
    await session.close()
    await wait_until_async(lambda: not remote_agents(far))  # it is sshd that lets them go
    assert sorted(path for path in far.home.rglob("*")) == before
    assert session.status.link is Link.CLOSED and not far.connections()


async def test_ctrl_c_in_the_terminal_is_not_for_ssh(far: Any, run_file: StateFileBuilder) -> None:
    session = await SshSession.open(f"ssh://far{run_file.path}")
    (client,) = far.connections()
    assert os.getsid(client) != os.getsid(0)
    await session.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For sockets, whose paths are short."""
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as folder:
        yield Path(folder)


async def test_a_login_is_shared_whatever_folders_the_shell_of_another_user_names(
    far: Any, run_file: StateFileBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    for folder in ("/run/user/nobody", str(long)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        address = parse(f"ssh://far{run_file.path}")
        ssh, *words = (await Login(address, SshOptions()).options()).argv(address)
        subprocess.run([ssh, "-O", "exit", *words], check=True, stderr=subprocess.DEVNULL)  # fails if none is shared


def test_what_a_killed_console_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left, young, held = folders = [tmp_path / f"{FOLDER_PREFIX}{name * 8}" for name in "abc"]
    for folder in folders:
        folder.mkdir()
        os.utime(folder, (1, 1))
    os.utime(young)
    lock = _lock_folder(str(held))
    (left / "stderr").touch()
    os.utime(left, (1, 1))
    remove_left_folders(str(tmp_path))
    os.close(lock)
    assert {*tmp_path.iterdir()} == {young, held}


def test_ssh_asks_on_the_terminal_before_the_screen_starts(
    far: Any, run_file: StateFileBuilder, tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key with a passphrase: refused without a question, then asked once, then used without one."""
    locked = tmp_path / "locked_key"
    locked.write_bytes((far.folder / "user_key").read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", locked], check=True)
    option = far.config("locked", **{f"{far.folder}/user_key": str(locked), "IdentitiesOnly yes": "IdentityAgent none"})
    program = tmp_path / "attach.py"
    program.write_text(
        "import asyncio, sys\n"
        "from redrive.console.sessions.open import open_session\n"
        "from redrive.console.sessions.address import Endpoint, SshOptions\n"
        "async def look():\n"
        "    session = await open_session(Endpoint(sys.argv[1], SshOptions(options=(sys.argv[2],))))\n"
        "    print('SEEN', (await session.snapshot()).run.run_id)\n"
        "    await session.close()\n"
        "asyncio.run(look())\n"
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    output = typed([sys.executable, str(program), f"ssh://far{run_file.path}", option], b"passphrase", b"open sesame\n")
    assert output.count(b"passphrase") == 1 and b"SEEN night-1" in output
    assert not list(short_folder.iterdir())


def typed(argv: list[str], question: bytes, answer: bytes) -> bytes:
    """Run on a terminal of its own and answer one question."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    output = b""
    answered = False
    deadline = time.monotonic() + 90
    readable = select.poll()  # which takes any descriptor: this process may have more than 1,024
    readable.register(terminal, select.POLLIN)
    while time.monotonic() < deadline:
        if readable.poll(1000):
            try:
                output += os.read(terminal, 4096)
            except OSError:
                break  # its end
        if question in output and not answered:
            answered = True
            os.write(terminal, answer)
    os.waitpid(pid, 0)
    os.close(terminal)
    return output


# --- Without a network ---------------------------------------------------------------------------------------------


def test_the_operators_options_come_before_ours_and_the_host_after_a_double_dash() -> None:
    options = SshOptions(options=("ServerAliveInterval=1", "-4"))
    argv = options.argv(parse("ssh://ana@db1:2222/x.db"), "command")
    assert argv[:5] == ["ssh", "-T", "-o", "ServerAliveInterval=1", "-4"]
    assert argv.index("ServerAliveInterval=1") < argv.index("ServerAliveInterval=5")
    assert argv[-5:] == ["-p", "2222", "--", "ana@db1", "command"]
    assert "BatchMode=yes" in argv and "Compression=yes" in argv


@pytest.mark.parametrize(
    ("code", "stderr", "sentence", "final"),
    [
        (255, "ssh: Could not resolve hostname x: Name or service not known", "no host", False),
        (255, "Timeout, server far not responding.", "does not answer", False),
        (255, "ssh: connect to host far port 22: No route to host", "no way", False),
        (255, "ana@far: Permission denied (publickey).", "does not let you in", True),
        (255, "command-line: line 0: Bad configuration option: x", "does not take an option", True),
        (255, "kex_exchange_identification: Connection closed by remote host", "ended", False),
        (1, "AttributeError: 'file' object has no attribute 'buffer'", "not Python 3.6", True),
        (2, "Unknown option: -I", "not Python 3.6", True),
        (1, "ModuleNotFoundError: No module named '_sqlite3'", "without SQLite", True),
        (1, "Traceback (most recent call last):\nFileNotFoundError: No such file or directory", "agent on far", False),
        (127, "fish: Unknown command: python3", "there is no python3", True),
        (0, "", "is not a Python", True),
        (126, "rbash: line 1: exec: restricted", "restricted shell, which starts no agent", True),
        (1, "sudo: a password is required", "lets you become nobody2 without one", True),
        (1, "sudo: unknown user nobody2\nsudo: error initializing", "(sudo: unknown user nobody2)", True),
        (1, "sudo: python3: command not found", "there is no python3", True),
        (127, "sh: 1: exec: sudo: not found", "there is no sudo", True),
        (-9, "", "ended", False),
    ],
)
def test_what_ssh_says_becomes_a_sentence(code: int, stderr: str, sentence: str, final: bool) -> None:
    error = link_error(parse("ssh://far"), SshOptions(become="nobody2"), code, stderr)
    assert sentence in str(error) and "far" in str(error)  # lists of several hosts show the sentence alone
    assert error.final is final


def test_what_the_far_side_says_cannot_drive_the_terminal() -> None:
    error = link_error(
        parse("ssh://far"), SshOptions(), 255, "fine\n\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m" + "x" * 10_000
    )
    assert str(error).isprintable() and len(str(error)) < 600
    assert last_line("\x1b[2J") == "␛[2J"


def test_what_to_type_names_the_port_and_the_options_of_the_operator() -> None:
    options = SshOptions("python3.12", ("IdentityFile=/keys/a b", "-4")).with_options("ControlPath=/run/ssh")
    error = link_error(parse("ssh://ana@far:2222/x.db"), options, 255, "Host key verification failed.")
    assert "run `ssh -o 'IdentityFile=/keys/a b' -4 -p 2222 ana@far` once" in str(error)
