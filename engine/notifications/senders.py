"""Senders of pages: a command, a webhook, a notification library, the terminal's bell.

A message is plain JSON. Text from tasks is passed as data, on standard input, in the environment or in a body, never
within a shell command. A sender raises its error; ``notifier.py`` stores the error and retries.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from ..core.causes import check_sender
from ..domain.text import printable

if TYPE_CHECKING:  # its import takes as long as a short task; most runs send nothing
    import urllib.error
    import urllib.request

TIMEOUT_SECONDS = 10.0
ENVIRONMENT_CHARACTERS = 2000
STDERR_BYTES = 1000

PageMessage = Mapping[str, object]
Ring = Callable[[Sequence[int]], Awaitable[None]]


class SendError(Exception):
    """The message was not accepted; the text is one sentence without secrets."""


class Sender(NamedTuple):
    """A destination. ``send`` returns once it has accepted the message; it raises otherwise, also on a timeout."""

    name: str
    send: Callable[[PageMessage], Awaitable[None]]


async def _ring_nothing(ids: Sequence[int]) -> None:
    """Ring no bell: a page about the disk, or a test of a sender, is no event."""


def make_senders(declared: Sequence[Mapping[str, object]], ring: Ring = _ring_nothing) -> list[Sender]:
    """Build the senders of a flow's ``page(...)`` lines. ``ring`` emits the bell event. Raises ValueError."""
    return [_make(dict(options), ring) for options in declared]


def _make(options: dict[str, Any], ring: Ring) -> Sender:
    kind = str(options.pop("sender"))
    check_sender(kind, options)
    timeout = float(options.get("timeout", TIMEOUT_SECONDS))
    send: Callable[[PageMessage], Awaitable[None]]
    if kind == "command":
        send = partial(_run, options.get("argv") or ["/bin/sh", "-c", options["line"]], timeout)
    elif kind == "webhook":
        send = partial(_in_a_thread, timeout, _post, options["url"], options.get("headers") or {}, timeout)
    elif kind == "apprise":
        send = partial(_in_a_thread, timeout, _notify, options["url"])
    else:
        send = partial(_ring_bell, ring)
    return Sender(kind, send)


async def _run(argv: Sequence[str], timeout_seconds: float, message: PageMessage) -> None:
    """Run a program with the message as JSON on its standard input, and its main fields as ``REDRIVE_PAGE_*``.

    Exit status 0 means accepted. After the timeout the whole process group is killed.
    """
    # Files, not pipes: a grandchild that keeps a pipe open would delay the end. In memory: the disk may be full.
    with _memory_file() as standard_input, _memory_file() as standard_error:
        standard_input.write(_to_json(message))
        standard_input.seek(0)
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=standard_input,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=standard_error,
            env={**os.environ, **environment_of(message)},
            start_new_session=True,
        )
        await _wait_or_kill(process, timeout_seconds)
        if process.returncode:
            raise SendError(f"exit status {process.returncode}{_last_line(standard_error)}")


def _memory_file() -> IO[bytes]:
    return open(os.memfd_create("redrive-page"), "w+b", buffering=0)


async def _wait_or_kill(process: asyncio.subprocess.Process, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await process.wait()
    except TimeoutError:
        raise SendError(f"it took longer than {timeout_seconds:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _to_json(message: PageMessage) -> bytes:
    text = json.dumps(message, ensure_ascii=False)
    return text.encode(errors="backslashreplace")  # a path that is not UTF-8, as JSON escapes it


def environment_of(message: PageMessage) -> dict[str, str]:
    """Return the main fields as environment variables, with printable characters only."""
    fields = ("kind", "key", "severity", "title", "text", "cause", "run_id", "task", "count", "flow", "state")
    return {
        f"REDRIVE_PAGE_{field.upper()}": _printable(str(message[field]))
        for field in fields
        if message.get(field) is not None
    }


def _printable(text: str) -> str:
    return printable(text[:ENVIRONMENT_CHARACTERS])


def _last_line(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - STDERR_BYTES))
    lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    return f": {_printable(lines[-1])}" if lines else ""


def _http_opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows no redirect; each URL was checked to be HTTP or HTTPS where the flow names it."""
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        """Leaves a redirect as the answer: following it would lose the body and carry the headers to another host."""

        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
            """Follow nothing; the status becomes an HTTPError."""

    return urllib.request.build_opener(NoRedirects)


def _post(url: str, headers: Mapping[str, str], timeout_seconds: float, message: PageMessage) -> None:
    """Post the message as JSON. Any 2xx status means accepted; a redirect is an error: the page was not taken."""
    import urllib.request

    headers = {"Content-Type": "application/json", "User-Agent": "redrive", **headers}
    _open(urllib.request.Request(url, _to_json(message), headers), timeout_seconds)


async def get(url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Request a URL; any 2xx status is a success, and a redirect is an error."""
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "redrive"})
    await _in_a_thread(timeout_seconds, _open, request, timeout_seconds)


def _open(request: urllib.request.Request, timeout_seconds: float) -> None:
    """Send a request. Raises SendError."""
    import urllib.error

    try:
        with _http_opener().open(request, timeout=timeout_seconds):
            return
    except urllib.error.HTTPError as error:
        with error:
            raise SendError(f"HTTP {error.code} {_printable(error.reason)}{_redirect(error)}") from None
    except urllib.error.URLError as error:
        raise SendError(str(error.reason)) from None


def _redirect(error: urllib.error.HTTPError) -> str:
    """Say that a redirect is not followed, and to which host it leads."""
    import urllib.parse

    if not 300 <= error.code < 400:
        return ""
    host = _printable(urllib.parse.urlsplit(error.headers.get("Location") or "").hostname or "another path")
    return f": a redirect to {host} is not followed; give the flow the final url"


_APPRISE_TYPES = {"critical": "failure", "high": "failure", "info": "success"}


def _notify(url: str, message: PageMessage) -> None:
    """Send by the apprise library, which supports many services by URL. Needs ``redrive[notify]``."""
    try:
        apprise: Any = importlib.import_module("apprise")
    except ImportError:
        raise SendError("apprise is not installed: pip install 'redrive[notify]'") from None
    client = apprise.Apprise()
    if not client.add(url):
        raise SendError("apprise does not understand this url")
    kind = _APPRISE_TYPES.get(str(message["severity"]), "warning")
    if not client.notify(title=message["title"], body=message["text"], notify_type=kind):
        raise SendError("apprise could not deliver it")


async def _ring_bell(ring: Ring, message: PageMessage) -> None:
    """Write an event; every console that shows the run rings its terminal. Whether one shows it is unknown."""
    await ring(cast(Sequence[int], message["ids"]))


async def _in_a_thread(timeout_seconds: float, work: Callable[..., None], *arguments: object) -> None:
    """Run blocking work in a daemon thread, so that a hanging call cannot keep the executor from ending."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()  # what runs is not cancelled by the timeout

    def run() -> None:
        try:
            work(*arguments)
            done.set_result(None)
        except Exception as error:  # a library may raise any error
            done.set_exception(error)

    threading.Thread(target=run, name="redrive-page", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.wrap_future(done)
    except TimeoutError:
        raise SendError(f"it took longer than {timeout_seconds:g} s") from None
