"""The hosts of attempts in threads, and the rules by which a host is killed whose threads ignore their cancel token.

A thread cannot be killed, only its process, in which other attempts run. So, in this order:

1. A host in which a thread has leaked takes no new attempts: the next one that wants a thread gets a new host.
2. It is killed as soon as only leaked threads run in it.
3. It is killed, with the healthy attempts in it, once other tasks have waited ``PATIENCE_SECONDS`` without a break for
   a slot that a leaked thread holds. The healthy attempts are LOST without blame: it counts as no attempt and no loss.

Without the third rule, one healthy attempt that never ends would hold the leaked slots forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...domain.event_changes import ExecutorChange
from ...domain.event_payloads import ExecutorChanged
from .. import protocol
from ..attempt import Fork, RunnerContext
from ..listener import AttemptListener
from ..protocol import AttemptOrder
from .client import ThreadAttempt, ThreadHost

PATIENCE_SECONDS = 60.0


class ThreadHosts:
    """The host that takes new attempts, and those that are retired.

    ``on_freed()``: a slot that a leaked thread held may be free. ``on_killed(payload)``: a host was killed by the
    rules: its pid, the tasks with leaked threads, and the healthy ones that are lost.
    """

    def __init__(
        self,
        shared: RunnerContext,
        fork: Fork,
        *,
        on_freed: Callable[[], None],
        on_killed: Callable[[ExecutorChanged], object],
        patience_seconds: float,
    ) -> None:
        self._shared = shared
        self._fork = fork
        self._on_freed = on_freed
        self._on_killed = on_killed
        self._patience_seconds = patience_seconds
        self._hosts: dict[int, ThreadHost] = {}  # all living hosts, by number
        self._current: asyncio.Future[ThreadHost] | None = None
        self._leak_timer: asyncio.TimerHandle | None = None

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start_at_once(self, number: int, order: AttemptOrder, listener: AttemptListener) -> ThreadAttempt | None:
        """Run an attempt in a thread of the current host; None: there is none, or it does not keep up."""
        if self._current is None or not self._current.done() or self._is_over(self._current):
            return None
        host = self._current.result()
        return host.start(number, order, listener) if host.link.is_writable else None

    async def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> ThreadAttempt:
        """Run an attempt in a thread. Raises OSError if no process can be started."""
        while True:
            host = await self._host()
            await host.link.wait_writable()
            if not host.is_retired:
                return host.start(number, order, listener)

    async def _host(self) -> ThreadHost:
        """Return the current host; fork one for the first attempt, and when the last one was retired."""
        if self._current is None or (self._current.done() and self._is_over(self._current)):
            self._current = asyncio.ensure_future(self._new_host())
        return await asyncio.shield(self._current)

    @staticmethod
    def _is_over(host: asyncio.Future[ThreadHost]) -> bool:
        return host.cancelled() or host.exception() is not None or host.result().is_retired

    async def _new_host(self) -> ThreadHost:
        begun: list[ThreadHost] = []

        def begin(started: protocol.Started, fds: list[int]) -> None:
            host = ThreadHost(
                started,
                fds,
                self._shared,
                on_change=lambda: self._on_host_change(host),
                on_gone=lambda: self._on_host_gone(host),
            )
            self._hosts[started.number] = host
            begun.append(host)

        await self._fork(begin)
        return begun[0]

    # --- The rules ----------------------------------------------------------------------------------------------------

    @property
    def leaked_slots(self) -> int:
        """Threads that ignored their cancel token and still run."""
        return sum(len(host.leaked) for host in self._hosts.values())

    @property
    def count(self) -> int:
        """Living hosts."""
        return len(self._hosts)

    def retire(self) -> None:
        """Take no new attempts; each host ends when its last healthy attempt has ended."""
        for host in list(self._hosts.values()):
            host.is_retired = True
            self._on_host_change(host)

    def set_slot_demand(self, has_demand: bool) -> None:
        """Set whether tasks wait for slots that leaked threads hold; call it on every change."""
        if not has_demand or not self.leaked_slots:
            self._cancel_leak_timer()
        elif self._leak_timer is None:
            loop = asyncio.get_running_loop()
            self._leak_timer = loop.call_later(self._patience_seconds, self._on_leak_timeout)

    def _on_host_change(self, host: ThreadHost) -> None:
        """Apply rules 1 and 2: a thread of the host has leaked or ended."""
        if host.leaked:
            host.is_retired = True
        if host.is_retired and not host.healthy_count and not host.is_killed_by_rule:
            self._kill_by_rule(host)
        self._on_freed()

    def _cancel_leak_timer(self) -> None:
        if self._leak_timer is not None:
            self._leak_timer.cancel()
            self._leak_timer = None

    def _on_leak_timeout(self) -> None:
        """Apply rule 3."""
        self._leak_timer = None
        for host in list(self._hosts.values()):
            if host.leaked and not host.is_killed_by_rule:
                self._kill_by_rule(host)

    def _kill_by_rule(self, host: ThreadHost) -> None:
        leaked = list(host.leaked.values())
        lost = [attempt.order.task for number, attempt in host.attempts.items() if number not in host.leaked]
        host.kill_by_rule()
        if leaked:
            self._on_killed(ExecutorChanged(ExecutorChange.THREADS_KILLED, pid=host.pid, leaked=leaked, lost=lost))

    # --- The end ------------------------------------------------------------------------------------------------------

    def _on_host_gone(self, host: ThreadHost) -> None:
        """Retire and kill a host whose connection is closed."""
        if not host.is_retired:
            host.is_retired = True
            host.kill()

    def exited(self, exited: protocol.Exited) -> None:
        """Settle the attempts of a reaped process, if it was a host."""
        host = self._hosts.pop(exited.number, None)
        if host is not None:
            host.exited(exited)
            self._on_freed()

    def kill(self) -> list[int]:
        """SIGKILL all hosts at once, because the zygote is gone. Returns their pidfds, to wait for."""
        return [host.kill() for host in self._hosts.values()]

    @property
    def busy(self) -> list[ThreadHost]:
        """Hosts in which attempts run."""
        return [host for host in self._hosts.values() if host.healthy_count]

    def mark_lost(self, why: str, *, is_blameless: bool) -> None:
        """Settle all attempts as LOST: the zygote is gone, and every host with it."""
        self._cancel_leak_timer()
        hosts, self._hosts, self._current = list(self._hosts.values()), {}, None
        for host in hosts:
            host.mark_lost(why, is_blameless=is_blameless)
