"""A host behind ssh: a real sshd on loopback, or the same pipe without a network."""

from __future__ import annotations

import getpass
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import wait_until

SSHD = "/usr/sbin/sshd"
HAS_SSHD = os.access(SSHD, os.X_OK) and shutil.which("ssh") is not None


class SshHost:
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
        """The program in the place of ``ssh``."""
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
        command = [SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        server = self._server
        wait_until(lambda: listens(self.port) or server.poll() is not None, describe=self._read_log)
        assert server.poll() is None, self._read_log()

    def _read_log(self) -> str:
        return (self.folder / "sshd.log").read_text()

    def stop(self) -> None:
        """Stop listening; connections that are open stay so."""
        assert self._server is not None
        self._server.terminate()
        self._server.wait()

    @contextmanager
    def shared_connection(self) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
        """A connection that the operator's ssh shares: its socket and its process (ControlMaster)."""
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: the path of a socket may have 104 bytes
            path = Path(folder, "ssh")
            words = [*shlex.split(self.program), "-M", "-N", "-S", str(path), "far"]
            master = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_until(path.exists)
                yield path, master
            finally:
                master.kill()
                master.wait()

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
            f'Port {self.port}\nListenAddress 127.0.0.1\nHostKey "{folder}/host_key"\nPidFile "{folder}/sshd.pid"\n'
            f'AuthorizedKeysFile "{folder}/authorized_keys"\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n'
            f'PermitRootLogin yes\nSetEnv "HOME={self.home}"\nMaxStartups 100\nLogLevel VERBOSE\n'
        )
        host_key = (folder / "host_key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key[0]} {host_key[1]}\n")
        self.client_config.write_text(
            f"Host far\n HostName 127.0.0.1\n Port {self.port}\n User {getpass.getuser()}\n"
            f' IdentityFile "{folder}/user_key"\n IdentitiesOnly yes\n UserKnownHostsFile "{folder}/known_hosts"\n'
            f" GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
        )


class LocalSshHost:
    """Stands in for ``SshHost`` where there is no sshd: the same pipe without the network."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._script = folder / "stand-in"
        lines = ["#!/bin/sh", "unset REDRIVE_STATE XDG_STATE_HOME", f"HOME={shlex.quote(str(folder))}"]
        self._script.write_text("\n".join([*lines, "for last; do :; done", 'exec sh -c "$last"', ""]))
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
