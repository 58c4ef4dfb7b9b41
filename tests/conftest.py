"""What every test may ask for: a place of its own, a state file that somebody writes, and a host behind ssh."""

from __future__ import annotations

import getpass
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from redrive.engine import client
from redrive.engine.core.event_payloads import AttemptProgress, TaskMoved
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.store import database, lock, logs, operator, runs
from redrive.engine.store.journal import Journal

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# A script's ``&`` ignores SIGINT and SIGQUIT, nohup SIGHUP, and whoever is started by a test would ignore them as well.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)

# The same examples for everybody who runs the tests; how long one of them took says nothing on a busy machine.
# ``--hypothesis-profile=default`` goes looking for new ones.
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def own_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the state files of the person who runs it."""
    home = tmp_path / "state-home"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    return home


# --- No test is skipped, and none leaves a process behind ----------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped keeps no promise: it has failed."""
    report = yield
    return _failed_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Nor does a file of which nothing is collected."""
    report = yield
    return _failed_if_skipped(report)


def _failed_if_skipped(report: Report) -> Report:
    if report.skipped:
        report.outcome, report.longrepr = "failed", f"not to be skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def nobody_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test starts ends with it, or soon after. What does not is killed, and named."""
    yield
    folder = tmp_path_factory.getbasetemp()
    deadline = time.monotonic() + 60
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)  # they are nobody's children any more: there is no event to wait for
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def processes_in(folder: Path) -> dict[int, tuple[str, str]]:
    """Other processes whose words, environment or open files name something in the folder: what, and their words."""
    of_a_test = re.compile(re.escape(os.fsencode(folder)) + rb"/([^/\0]+)")
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            files = [os.readlink(os.fsencode(file)) for file in (process / "fd").iterdir()]
            named = of_a_test.search(b"\0".join([words, (process / "environ").read_bytes(), *files]))
        except OSError:
            continue  # it has ended, or is somebody else's
        if named is not None and process.name != str(os.getpid()):
            found[int(process.name)] = os.fsdecode(named[1]), os.fsdecode(words.replace(b"\0", b" "))
    return found


# --- A state file that somebody writes -----------------------------------------------------------------------------


class Night:
    """A state file with one run in it, written by this process as an executor would."""

    def __init__(self, path: Path, tasks: int = 6, run_id: str = "night-1") -> None:
        self.path = path
        self.run_id = run_id
        self.connection = database.open_for_writing(str(path))
        self._lock = threading.Lock()
        names = [f"task_{number:05}" for number in range(tasks)]
        specs = tuple(
            TaskSpec(name, parents=(names[(number - 1) // 2],) if number else (), timeout=30.0)
            for number, name in enumerate(names)
        )
        self.write(
            lambda journal: runs.create_run(
                journal,
                run_id=run_id,
                flow=FlowSpec("nightly", specs),
                max_parallel=4,
                params={},
                at=journal.at,
                deadline_at=None,
            )
        )

    def write(self, item: Callable[[Journal], Any], **signed: Any) -> Any:
        """One transaction."""
        with self._lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                result = item(Journal(self.connection, time.time_ns() // 1000, **signed))
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")
            return result

    def tell(self, count: int = 1) -> None:
        """Events without consequence, each in a transaction of its own."""
        for _ in range(count):
            self.write(lambda journal: journal.emit(AttemptProgress(1), self.run_id))

    def start(self, name: str) -> int:
        """Claim a task; answers with the number of the attempt."""

        def item(journal: Journal) -> int:
            runs.promote(journal, self.run_id, {name: 0})
            return runs.claim(journal, self.run_id, name, 0, f"token-{name}", {"pid": 4711, "host": "far"})

        attempt: int = self.write(item)
        assert attempt
        return attempt

    def finish(self, name: str, state: str = "SUCCESS", text: str = "one line\n", **columns: Any) -> None:
        """Start a task and end it in ``state``."""
        attempt = self.start(name)

        def item(journal: Journal) -> None:
            logs.append(journal, self.run_id, name, attempt, text)
            outcome = "success" if state == "SUCCESS" else "error"
            ended = {"ended_at": journal.at, "duration_us": 1234, "outcome": outcome, "error": columns.get("error")}
            ended["output_bytes"] = len(text)
            journal.change_attempt(self.run_id, name, attempt, {**ended, "traceback": "Traceback: of " + name})
            journal.move(
                self.run_id,
                name,
                "RUNNING",
                state,
                0,
                set={"ended_at": journal.at, **columns},
                attempt=attempt,
                payload=TaskMoved(attempt_set=ended),
            )

        self.write(item)

    def head(self) -> int:
        """The number of the latest event."""
        return int(self.connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])

    def close(self) -> None:
        """Leave the file at rest."""
        self.connection.close()


@pytest.fixture
def make_night(tmp_path: Path) -> Iterator[Callable[..., Night]]:
    """State files, closed at the end."""
    made: list[Night] = []

    def make(name: str = "night.db", **options: Any) -> Night:
        night = Night(tmp_path / name, **options)
        made.append(night)
        return night

    yield make
    for night in made:
        night.close()


@pytest.fixture
def night(make_night: Callable[..., Night]) -> Night:
    """A state file with a run of six tasks: one done, one running, one dead letter, three pending."""
    night = make_night()
    night.finish("task_00000")
    night.start("task_00001")
    night.finish("task_00002", "DEAD_LETTER", error="boom", dead_letter_kind="poison", failures=1)
    return night


class StandInExecutor(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Holds the lock of a night and takes commands on its socket, as ``engine/server.py`` does."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, night: Night) -> None:
        self.night = night
        self.present: dict[int, str] = {}
        self.executor_id = f"executor-{time.time_ns()}"
        self._state = str(night.path)
        self._lock = lock.acquire(self._state, self.executor_id)
        self._connections: list[socket.socket] = []
        self._dead = False
        night.write(self._sign_in)
        super().__init__(client.socket_path(self._state), _Conversation)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def _sign_in(self, journal: Journal) -> None:
        journal.connection.execute(
            "INSERT INTO executor (executor_id, pid, host, version, started_at, heartbeat_at) VALUES (?,?,?,?,?,?)",
            (self.executor_id, os.getpid(), "here", "0", journal.at, journal.at),
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def die(self) -> None:
        """As by SIGKILL: the socket stays behind. Once only: its lock may be another's descriptor by then."""
        if self._dead:
            return
        self._dead = True
        self.shutdown()
        self.server_close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        os.close(self._lock.fileno())


class _Conversation(socketserver.StreamRequestHandler):
    server: StandInExecutor

    def handle(self) -> None:
        for line in self.rfile:
            command = json.loads(line)
            self.wfile.write(json.dumps(self._answer(command)).encode() + b"\n")

    def finish(self) -> None:
        self.server.present.pop(id(self), None)
        super().finish()

    def _answer(self, command: dict[str, Any]) -> Any:
        if command["act"] == "hello":
            self.server.present[id(self)] = command["actor"]
            return {"ok": True, "message": "hello", "present": sorted(self.server.present.values())}
        return self.server.night.write(
            lambda journal: operator.apply(journal, command), actor=command["actor"], command_id=command["id"]
        )


@pytest.fixture
def executor(night: Night) -> Iterator[StandInExecutor]:
    """Somebody who owns ``night`` and listens."""
    executor = StandInExecutor(night)
    yield executor
    executor.die()


# --- A host behind ssh ---------------------------------------------------------------------------------------------

SSHD = "/usr/sbin/sshd"
HAS_SSHD = os.access(SSHD, os.X_OK) and shutil.which("ssh") is not None


class Far:
    """A real sshd on loopback with keys of its own; the client knows it as the host ``far``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        for key in ("host_key", "user_key", "stranger_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        self.port = free_port()
        self.client_config = folder / "ssh_config"
        self._write_configs()
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def program(self) -> str:
        """What stands for ``ssh``."""
        return shlex.join(["ssh", "-F", str(self.client_config)])

    def config(self, name: str, **changes: str) -> str:
        """An option that makes ssh use another configuration, in which these words are replaced."""
        text = self.client_config.read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path = self.folder / f"{name}.config"
        path.write_text(text)
        return f"-F{path}"

    def start(self) -> None:
        """Listen, until ``stop``."""
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)
        command = [SSHD, "-D", "-f", self.folder / "sshd_config", "-E", self.folder / "sshd.log"]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 90
        while not listens(self.port):
            assert self._server.poll() is None and time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)  # it says nothing when it is ready

    def stop(self) -> None:
        """Stop listening; connections that are open stay so."""
        assert self._server is not None
        self._server.terminate()
        self._server.wait()

    def connections(self) -> list[int]:
        """Pids of ssh clients that are connected here, and not the processes of anybody else."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == b"ssh" and os.fsencode(self.client_config) in words:
                found.append(int(folder.name))
        return found

    def cut(self) -> None:
        """kill -9 to every ssh client."""
        for pid in self.connections():
            os.kill(pid, signal.SIGKILL)

    def _write_configs(self) -> None:
        folder = self.folder
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile {folder}/sshd.pid\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"PermitRootLogin yes\nSetEnv HOME={self.home}\nMaxStartups 100\nLogLevel VERBOSE\n"
        )
        host_key = (folder / "host_key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key[0]} {host_key[1]}\n")
        self.client_config.write_text(
            f"Host far\n HostName 127.0.0.1\n Port {self.port}\n User {getpass.getuser()}\n"
            f" IdentityFile {folder}/user_key\n IdentitiesOnly yes\n UserKnownHostsFile {folder}/known_hosts\n"
            f" GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
        )


class NearBy:
    """Stands in for ``Far`` where there is no sshd: the same pipe without the network."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._script = folder / "stand-in"
        self._script.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
        self._script.chmod(0o700)

    @property
    def program(self) -> str:
        return shlex.quote(str(self._script))


def free_port() -> int:
    """One that stays free while nobody listens on it: not of those that connections which go out are given."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, max(first_given, 20_000))
        if not listens(port):
            return port


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def far_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """An sshd for this process of the test run."""
    far = Far(tmp_path_factory.mktemp("far"))
    yield far
    far.stop()


@pytest.fixture
def far(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Far | NearBy:
    """The host ``far`` of ``ssh://far/...``: behind a real sshd wherever there is one."""
    if HAS_SSHD or os.environ.get("CI"):
        host: Far | NearBy = request.getfixturevalue("far_host")
    else:
        host = NearBy(tmp_path)
    monkeypatch.setenv("REDRIVE_SSH", host.program)
    return host
