"""Logins: ssh asks for passwords on the terminal before the console starts, and several sessions share a connection.

ssh keeps that connection open for a minute, or as long as it is used. An operator whose keys suffice is asked nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ...engine.errors import LinkError
from ..text.text import is_interactive
from .address import SshAddress, SshOptions
from .ssh_errors import SILENCE_SECONDS, link_error, silent_host

Result = TypeVar("Result")

PERSIST_SECONDS = 60
POLL_SECONDS = 0.03
FOLDER_PREFIX = "redrive-ssh-"
SOCKET_FOLDER_BYTES = 60  # a socket's path may have 104; "/redrive-ssh-12345678/ssh" and 17 that ssh appends are 42
OLD_SECONDS = 3600.0  # from where on the folder of no process is removed: one that is made has no lock for an instant


class Login:
    """A login on a host, whose connection the sessions share; it ends with this process.

    ``own_options``: of the operator, with which a session logs in by itself.
    """

    def __init__(self, address: SshAddress, options: SshOptions) -> None:
        self.own_options = options
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._gives_up_at = 0.0
        self._number = 0  # of the connection: those before it hang

    async def options(self) -> SshOptions:
        """Options that use the connection; one that is lost is made again, once for all who ask.

        One that hangs is left for another, as is one of the operator's. Where there is none, the operator's: a session
        says why, or shares the connection of the operator. Raises LinkError for a host that is silent, and for one that
        a person has to answer.
        """
        if await self._does_answer(self.own_options):
            return self.own_options
        number = self._number
        hangs = self._is_open and not self._is_going_on and not await self._does_answer(self._shared)
        if hangs and number == self._number:
            self._number += 1
        if not (self._is_going_on or self._is_open):
            self._start()
        while self._is_going_on:
            if time.monotonic() > self._gives_up_at:
                self.give_up()
            await asyncio.sleep(POLL_SECONDS)
        if self._is_open:
            return self._shared
        code = None if self._process is None else self._process.returncode
        if code == -signal.SIGKILL:
            raise silent_host(self._address.place, SILENCE_SECONDS)
        said = self._stderr.read_text(errors="replace")
        error = link_error(self._address, self.own_options, code, said)
        if error.locked:
            raise error
        return self.own_options

    async def _does_answer(self, options: SshOptions) -> bool:
        """Whether the connection that these options share is there and does not hang."""
        return await asyncio.to_thread(options.control_shared_connection, self._address, "check")

    def sign_in(self) -> SshOptions:
        """Let ssh prompt on the terminal of this process. Raises LinkError when that failed."""
        if subprocess.run(self._master.argv(self._address, "true", may_prompt=True)).returncode != 0:
            raise LinkError(f"could not sign in to {self._address.place}", final=True)
        return self._shared

    def give_up(self) -> None:
        """Wait no longer, if it is still going on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def _is_going_on(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _is_open(self) -> bool:
        return self._socket.exists()

    def _start(self) -> None:
        words, nowhere = self._master.argv(self._address, "true"), subprocess.DEVNULL
        self._process, self._gives_up_at = None, time.monotonic() + SILENCE_SECONDS
        # no pipe: ssh holds it open for as long as the connection lasts
        with self._stderr.open("wb") as stderr, suppress(OSError):
            self._process = subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=stderr)

    @cached_property
    def _folder(self) -> Path:
        """The folder of the socket; mode 0700 keeps other users out."""
        parents = filter(_fits_socket, (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()))
        parent = next(parents, "/tmp")
        remove_left_folders(parent)
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent)
        _lock_folder(folder)  # for as long as this process lives
        atexit.register(self._end)
        return Path(folder)

    @property
    def _socket(self) -> Path:
        return self._folder / f"ssh{self._number}"

    @property
    def _stderr(self) -> Path:
        return self._folder / "stderr"

    @property
    def _shared(self) -> SshOptions:
        return self.own_options.with_options(f"ControlPath={self._socket}")

    @property
    def _master(self) -> SshOptions:
        return self._shared.with_options("ControlMaster=yes", f"ControlPersist={PERSIST_SECONDS}")

    def _end(self) -> None:
        self.give_up()
        if self._is_open:
            self._shared.control_shared_connection(self._address, "exit")
        shutil.rmtree(self._folder, ignore_errors=True)


def remove_left_folders(parent: str) -> None:
    """Remove the folders of this user whose process was killed: nobody holds their lock."""
    for folder in Path(parent).glob(f"{FOLDER_PREFIX}????????"):
        with suppress(OSError):
            status = folder.lstat()
            is_old = status.st_uid == os.getuid() and time.time() - status.st_mtime > OLD_SECONDS
            if is_old:
                lock = _lock_folder(str(folder))
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock_folder(folder: str) -> int:
    """Return the descriptor of a lock that ends with this process. Raises OSError if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _fits_socket(parent: str) -> bool:
    """Whether a folder, which the shell of another user may name, can be used, and is short enough for ssh."""
    return len(os.fsencode(parent)) <= SOCKET_FOLDER_BYTES and os.access(parent, os.W_OK | os.X_OK)


async def connect_with_sign_in(login: Login, use: Callable[[SshOptions], Awaitable[Result]]) -> Result:
    """Await ``use``; if ssh needs input and the terminal is interactive, let ssh prompt and await ``use`` again.

    Raises what ``use`` raises, and LinkError when the sign-in failed.
    """
    try:
        return await use(login.own_options)
    except LinkError as error:
        if not error.locked or not is_interactive():
            raise
    return await use(login.sign_in())
