"""The page that the state file cannot be written: it needs no commit, for the disk refuses it.

It is known by host, state file and beginning. Of all executors of a user whose disk is full one sends it to a
receiver: the one that holds a lock, which the kernel frees when that executor ends. Another one sends it again then.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Mapping, Sequence

from ..clock import Clock
from ..core.causes import declared_sender
from ..core.policy import draw_delay
from ..domain.rows import FailingSender
from ..domain.text import format_duration, place_words, shell_command
from .machine_pages import may_page, open_lock
from .notifier import RESEND_POLICY, MessageOrigin, message_of, note_failure
from .senders import PageMessage, Sender, make_senders

PAGE_AFTER_US = 30_000_000  # shorter troubles are normal: logs are rotated
HOLD_US = 60_000_000  # after the end, for executors that notice it later


class StoragePager:
    """Checked once a second. ``folder``: of the locks of this user, which is made; None: nobody else pages."""

    def __init__(
        self, declared: Sequence[Mapping[str, object]], origin: MessageOrigin, folder: str | None, clock: Clock
    ) -> None:
        options = [one for one in declared if one["sender"] != "bell"]  # a bell is an event, which is a commit
        self._receivers = [
            _Receiver(sender, str(declared_sender(one)["hash"]), folder, origin.state)
            for sender, one in zip(make_senders(options), options, strict=True)
        ]
        self._origin = origin
        self._clock = clock
        self.failing: dict[str, FailingSender] = {}  # by sender
        self._since: int | None = None
        self._ended_at: int | None = None
        self._sent: PageMessage | None = None
        self._sending: dict[str, asyncio.Task[None]] = {}

    def check(self, since: int | None, why: str) -> None:
        """Page for a trouble that has lasted long enough. ``since``: microseconds UTC; None: all is written."""
        now = self._clock.now_us()
        if since is None:
            self._end(now)
            return
        if since != self._since:
            self._since, self._ended_at = since, None
        if now - since < PAGE_AFTER_US:
            return
        for receiver in self._receivers:
            if receiver.key not in self._sending and receiver.acquire():
                message = storage_message(self._origin, since, why, now)
                work = self._send(receiver.sender, message)
                self._sending[receiver.key] = asyncio.get_running_loop().create_task(work)

    def pop_past(self) -> PageMessage | None:
        """Return the page of a trouble that is over, once, for the list of pages."""
        if self._since is not None:
            return None
        past, self._sent = self._sent, None
        return past

    def _end(self, now: int) -> None:
        if self._since is not None:
            self._since, self._ended_at = None, now
            self._stop()
        if self._ended_at is not None and now - self._ended_at >= HOLD_US:
            self._ended_at = None
            for receiver in self._receivers:
                receiver.release()

    def _stop(self) -> None:
        for task in self._sending.values():
            task.cancel()
        self._sending.clear()

    def close(self) -> None:
        """Send no more, and let another executor page."""
        self._stop()
        for receiver in self._receivers:
            receiver.close()

    async def _send(self, sender: Sender, message: PageMessage) -> None:
        tries = 0
        while True:
            try:
                await sender.send(message)
                self.failing.pop(sender.name, None)
                self._sent = message
                return
            except Exception as error:  # senders run third-party code, which may raise any error
                note_failure(self.failing, sender.name, error, self._clock.now_us())
            await asyncio.sleep(draw_delay(RESEND_POLICY, tries, None, self._clock.uniform)[0])
            tries += 1


class _Receiver:
    """A sender, and the lock of those who page by it about one file system."""

    def __init__(self, sender: Sender, key: str, folder: str | None, state_path: str) -> None:
        """Make the lock file while there is room. Without one, each executor pages."""
        self.sender = sender
        self.key = key
        self._lock = -1
        if folder is None:
            return
        with contextlib.suppress(OSError):
            device = os.stat(os.path.dirname(os.path.abspath(state_path))).st_dev
            self._lock = open_lock(os.path.join(folder, f"storage-{device}-{self.key}"))

    def acquire(self) -> bool:
        """Whether this executor pages."""
        return self._lock < 0 or may_page(self._lock) is not False

    def release(self) -> None:
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def storage_message(origin: MessageOrigin, since: int, why: str, now: int) -> dict[str, object]:
    """Return the page as senders get it, with the fields of other pages."""
    title = f"{origin.flow} cannot write its state file"
    attach = shell_command(["redrive", "attach", *place_words(origin.state, origin.run_id)])
    what, run = ("task", f", run {origin.run_id}") if origin.run_id else ("run", "")
    lasted = f"for {format_duration(now - since)}; no {what} starts until it can be written"
    host = socket.gethostname()
    lines = [f"[critical] {title}", f"{origin.flow}{run} on {host}: {why}", lasted, attach]
    return message_of(
        origin,
        "page",
        lines,
        key=f"storage/{host}/{origin.state}/{since}",
        ids=[],
        cause=f"storage:{host}",
        episode=1,
        severity="critical",
        title=title,
        task=None,
        count=1,
        created_at=since,
        updated_at=now,
        body={"why": why, "attach": attach, "command": shell_command(["redrive", "doctor", origin.state])},
    )
