"""The ways in which a page leaves this machine: a command, a webhook, a notification library, the terminal's bell.

A message is plain JSON. What comes from tasks travels as data, on standard input, in the environment or in a body,
never as a word of a shell line. A sender raises whatever went wrong; ``notifier.py`` keeps it and tries again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from ..core.paging import check_sender

TIMEOUT_SECONDS = 10.0
ENVIRONMENT_CHARACTERS = 2000
STDERR_BYTES = 1000

Message = Mapping[str, Any]
Ring = Callable[[Sequence[int]], Awaitable[None]]


class SendError(Exception):
    """The message was not taken, and why, in one sentence that holds no secret."""


class Sender(Protocol):
    """One way out."""

    name: str

    async def send(self, message: Message) -> None:
        """Deliver. Returns once the other side took it; raises for everything else, also for silence."""


def make_senders(declared: Sequence[Mapping[str, object]], ring: Ring) -> list[Sender]:
    """What a flow's ``page(...)`` lines mean. ``ring`` writes the event of the bell. Raises ValueError."""
    return [_make(dict(options), ring) for options in declared]


def _make(options: dict[str, Any], ring: Ring) -> Sender:
    kind = str(options.pop("sender"))
    check_sender(kind, options)
    timeout = float(options.get("timeout", TIMEOUT_SECONDS))
    if kind == "command":
        return CommandSender(options.get("argv") or ["/bin/sh", "-c", options["line"]], timeout)
    if kind == "webhook":
        return WebhookSender(options["url"], options.get("headers") or {}, timeout)
    return AppriseSender(options["url"], timeout) if kind == "apprise" else BellSender(ring)


class CommandSender:
    """Runs a program with the message as JSON on its standard input, and its main fields as ``REDRIVE_PAGE_*``."""

    name = "command"

    def __init__(self, argv: Sequence[str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._argv = tuple(argv)
        self._timeout_seconds = timeout_seconds

    async def send(self, message: Message) -> None:
        """Exit status 0 means that it was taken. Its whole process group is killed when it takes too long."""
        # Files, not pipes: a grandchild that keeps a pipe open would keep us waiting for its end.
        with tempfile.TemporaryFile() as standard_input, tempfile.TemporaryFile() as standard_error:
            standard_input.write(json.dumps(message, ensure_ascii=False).encode())
            standard_input.seek(0)
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=standard_input,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=standard_error,
                env={**os.environ, **environment_of(message)},
                start_new_session=True,
            )
            await self._end(process)
            if process.returncode:
                raise SendError(f"exit status {process.returncode}{_last_line(standard_error)}")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await process.wait()
        except TimeoutError:
            raise SendError(f"it took longer than {self._timeout_seconds:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def environment_of(message: Message) -> dict[str, str]:
    """The fields that a short script wants, without characters that an environment or a terminal cannot hold."""
    fields = ("kind", "key", "severity", "title", "text", "cause", "run_id", "task", "count", "flow", "state")
    return {
        f"REDRIVE_PAGE_{field.upper()}": _plain(str(message[field]))
        for field in fields
        if message.get(field) is not None
    }


def _plain(text: str) -> str:
    kept = (letter if letter.isprintable() or letter == "\n" else " " for letter in text[:ENVIRONMENT_CHARACTERS])
    return "".join(kept)


def _last_line(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - STDERR_BYTES))
    lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    return f": {_plain(lines[-1])}" if lines else ""


class WebhookSender:
    """Posts the message as JSON."""

    name = "webhook"

    def __init__(self, url: str, headers: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "User-Agent": "redrive", **headers}
        self._timeout_seconds = timeout_seconds

    async def send(self, message: Message) -> None:
        """Any 2xx means that it was taken."""
        data = json.dumps(message, ensure_ascii=False).encode()
        await _in_a_thread(lambda: self._post(data), self._timeout_seconds)

    def _post(self, data: bytes) -> None:
        request = urllib.request.Request(self._url, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds):
                return
        except urllib.error.HTTPError as error:
            with error:
                raise SendError(f"HTTP {error.code} {_plain(error.reason)}") from None
        except urllib.error.URLError as error:
            raise SendError(str(error.reason)) from None


_APPRISE_TYPES = {"critical": "failure", "high": "failure"}


class AppriseSender:
    """Hands the message to apprise, which knows a hundred services by their URLs. Needs ``redrive[notify]``."""

    name = "apprise"

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._url = url
        self._timeout_seconds = timeout_seconds

    async def send(self, message: Message) -> None:
        """Taken when apprise says so."""
        await _in_a_thread(lambda: self._notify(message), self._timeout_seconds)

    def _notify(self, message: Message) -> None:
        try:
            apprise: Any = importlib.import_module("apprise")
        except ImportError:
            raise SendError("apprise is not installed: pip install 'redrive[notify]'") from None
        teller = apprise.Apprise()
        if not teller.add(self._url):
            raise SendError("apprise does not understand this url")
        kind = _APPRISE_TYPES.get(str(message["severity"]), "warning")
        if not teller.notify(title=message["title"], body=message["text"], notify_type=kind):
            raise SendError("apprise could not deliver it")


class BellSender:
    """Writes an event; every console that shows the run rings its terminal."""

    name = "bell"

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    async def send(self, message: Message) -> None:
        """Taken when it is written: whether somebody listens, nobody can know."""
        await self._ring(message["ids"])


async def _in_a_thread(work: Callable[[], None], timeout_seconds: float) -> None:
    """Run what blocks in a daemon thread: one that never comes back must not keep the executor from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # whatever a library raises is why the page was not sent
            error = raised
        try:
            loop.call_soon_threadsafe(_finish, done, error)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    threading.Thread(target=run, name="redrive-page", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_seconds):
            await done
    except TimeoutError:
        raise SendError(f"it took longer than {timeout_seconds:g} s") from None


def _finish(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
