"""Addresses of state files on other hosts: ``ssh://[user@]host[:port]/path``.

Only host, user and port reach a command line; each is checked here against its allowed characters (older ssh clients
pass the host name to a shell, and every client takes a name with a leading dash for an option). The path is sent as
data and may contain any character but NUL.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...engine.domain.text import REMOTE, shell_command
from ...engine.errors import AddressError
from ..text.text import is_remote

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ADDRESS_V6 = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?)\]")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+-]*")
_AUTHORITY = re.compile(r"(?:(?P<user>.*)@)?(?P<host>\[[^\]]*\]|[^:@\[\]]*)(?::(?P<port>[^:@]*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SshAddress:
    """The address of a state file. ``path`` "" is the default path on that host, which also expands "~"."""

    host: str
    path: str = ""
    user: str | None = None
    port: int | None = None

    @property
    def destination(self) -> str:
        """The host argument of ssh."""
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def place(self) -> str:
        """The host as sentences name it."""
        return f"{self.destination}:{self.port}" if self.port else self.destination

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        port = f":{self.port}" if self.port else ""
        path = self.path if self.path.startswith("/") or not self.path else f"/{self.path}"
        return f"{REMOTE}{user}{host}{port}{quote(path, safe='/~')}"


def parse(target: str) -> SshAddress:
    """Parse an address. ``/~/x`` is in the home folder, ``/~ana/x`` in that of ana, and ``%20`` is a space.

    Raises AddressError with a sentence that names the invalid part.
    """
    authority, slash, rest = target.removeprefix(REMOTE).partition("/")
    parts = _AUTHORITY.fullmatch(authority)
    if not is_remote(target) or parts is None:
        raise AddressError(f"{target!r} is not an address such as ssh://user@host:22/path/state.db")
    user, host, port = parts["user"], parts["host"], parts["port"]
    return SshAddress(
        host=_checked_host(host),
        path=_checked_path(slash + rest),
        user=None if user is None else checked_user(user),
        port=None if port is None else _checked_port(port),
    )


def _checked_host(host: str) -> str:
    if not host:
        raise AddressError("the address names no host: ssh://host/path")
    literal = _ADDRESS_V6.fullmatch(host.replace("%25", "%", 1))  # RFC 6874 writes the zone of an address so
    if literal:
        return literal[1]
    if not _HOST.fullmatch(host):
        raise AddressError(f"{host!r} is not a host name: letters, digits, dots and dashes, no dash at the start")
    return host


def checked_user(user: str) -> str:
    """Raise AddressError for what is no name of a user."""
    if not _USER.fullmatch(user):
        raise AddressError(f"{user!r} is not a user name that can be carried safely to ssh")
    return user


def _checked_port(port: str) -> int:
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise AddressError(f"{port!r} is not a port: 1 to 65535")
    return int(port)


def _checked_path(path: str) -> str:
    path = unquote(path, errors="surrogateescape")
    if "\0" in path:
        raise AddressError("a path cannot hold a zero byte")
    if path == "/":
        return ""
    return path[1:] if path.startswith("/~") else path


# --- The command line of ssh -----------------------------------------------------------------------------------------
#
# The system's program, so that keys, agents, jump hosts and hardware tokens keep working.


PROGRAM_ENVIRONMENT = "REDRIVE_SSH"

_ALWAYS = (
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=yes",  # no cost on a fast connection, an eighth of the bytes on a slow one
    "LogLevel=ERROR",
    "RemoteCommand=none",  # ssh accepts one remote command, and it is ours
    "ClearAllForwardings=yes",  # configured forwardings would be bound a second time
    "ForwardAgent=no",  # these two are not forwardings to ssh; the remote host needs neither keys nor a screen
    "ForwardX11=no",
)
ANSWER_SECONDS = 2.0  # of ssh, to a question that it answers without the host
AROUND = "ControlPath=none"  # a login of its own, beside a connection that is shared
_NO_PROMPTS = "BatchMode=yes"  # an invisible prompt would block forever


_PYTHON = "python3"


class SshOptions(NamedTuple):
    """``python``: the remote interpreter. ``options``: ``Key=Value``, or arguments of ssh such as ``-4``.

    ``become``: the user over there who reads and acts. ``added``: options of the console, such as the socket of a
    connection that is open.
    """

    python: str = _PYTHON
    options: tuple[str, ...] = ()
    become: str | None = None
    added: tuple[str, ...] = ()

    def with_options(self, *options: str) -> SshOptions:
        """Return a copy with these options after the operator's."""
        return self._replace(added=(*self.added, *options))

    @property
    def arguments(self) -> list[str]:
        """The arguments with which a command of redrive gets the operator's options."""
        python = ["--python", self.python] if self.python != _PYTHON else []
        become = ["--become", self.become] if self.become is not None else []
        return [*python, *become, *(f"--ssh-option={option}" for option in self.options)]

    def login(self, address: SshAddress) -> str:
        """The command that a person types to log in."""
        port = ["-p", str(address.port)] if address.port is not None else []
        return shell_command([*_program(), *_words(self.options), *port, address.destination])

    def argv(self, address: SshAddress, *command: str, may_prompt: bool = False) -> list[str]:
        """Return the command line. The operator's options come first, because ssh uses the first value of an option.

        ``may_prompt``: ssh may ask for passwords and second factors on the terminal.
        """
        options = sorted((*self.options, *self.added), key=AROUND.__ne__)  # ahead even of the operator's
        words = [*_program(), "-T", *_words(options)]
        for option in _ALWAYS if may_prompt else (_NO_PROMPTS, *_ALWAYS):
            words += ["-o", option]
        if address.port is not None:
            words += ["-p", str(address.port)]
        return [*words, "--", address.destination, *command]

    def has_shared_connection(self, address: SshAddress) -> bool:
        """Whether ssh would use a connection that the operator's configuration shares (ControlMaster)."""
        said = self._query(address, "-G")
        lines = [] if said is None else said.splitlines()
        return any(os.path.exists(line.partition(" ")[2]) for line in lines if line.startswith("controlpath "))

    def control_shared_connection(self, address: SshAddress, command: str) -> bool:
        """Send ``check`` or ``exit`` to the connection that ssh would share. False: there is none, or it hangs."""
        return self._query(address, "-O", command) is not None

    def _query(self, address: SshAddress, *question: str) -> str | None:
        """The answer of ssh to a question that needs no host; None if ssh fails, or is silent for too long."""
        import subprocess  # here: a listing of a local file starts no program

        words, before = self.argv(address), len(_program())
        asked = [*words[:before], *question, *words[before:]]
        nowhere, seconds = subprocess.DEVNULL, ANSWER_SECONDS
        try:
            done = subprocess.run(asked, stdin=nowhere, capture_output=True, timeout=seconds, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.decode(errors="replace")


DEFAULT_OPTIONS = SshOptions()


def _words(options: Iterable[str]) -> Iterator[str]:
    for option in options:
        yield from (option,) if option.startswith("-") else ("-o", option)


class Endpoint(NamedTuple):
    """A state file or a host, and the options of ssh that reach it. ``target``: a path, or ``ssh://...``.

    ``run``: the run that is meant, as it was typed; None: the latest.
    """

    target: str
    ssh: SshOptions = DEFAULT_OPTIONS
    run: str | None = None


def _program() -> list[str]:
    """``REDRIVE_SSH`` replaces ssh, as ``GIT_SSH_COMMAND`` does for git."""
    return shlex.split(os.environ.get(PROGRAM_ENVIRONMENT, "")) or ["ssh"]
