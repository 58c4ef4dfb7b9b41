"""The executor's side of an attempt that runs in a thread: it can be asked to end, not made to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..core.events import EventKind
from ..core.outcome import Outcome
from . import stack
from .attempt import Attempt, AttemptListener, Surroundings
from .endings import Force, lost, outcome_of
from .protocol import AttemptOrder


@dataclass(frozen=True, slots=True)
class HostView:
    """What an attempt needs of the host that it runs in."""

    pid: int
    start_ticks: int
    cancel: Callable[[int], None]
    dump_stacks: Callable[[], Awaitable[str]]
    on_leak: Callable[[int], None]
    on_gone: Callable[[int], None]  # its thread has ended


class ThreadAttempt(Attempt):
    """An attempt in a thread of the host.

    At its deadline its token is set. If it has not ended after the grace it is reported as leaked and the attempt
    ends, while its slot stays taken until the thread really ends.
    """

    def __init__(
        self,
        number: int,
        order: AttemptOrder,
        listener: AttemptListener,
        shared: Surroundings,
        host: HostView,
        fds: tuple[int, int],
        started_at: float,
    ) -> None:
        super().__init__(number, order, listener, shared, started_at)
        self.pid = host.pid
        self._host = host
        self._ident: int | None = None
        self._leaked = False
        self._open(*fds)
        listener.started(host.pid, host.start_ticks)

    def _began(self, ident: int) -> None:
        self._ident = ident

    async def dump_stack(self) -> str:
        """Where its thread stands."""
        dump = await self._host.dump_stacks()
        return stack.without_engine(dump if self._ident is None else stack.of_thread(dump, self._ident))

    async def _climb(self, reason: str) -> None:
        dump = await self.dump_stack()
        self._results.drain()
        if self._ending is not None or self._over.done():
            return
        self._tell_stack(dump, stack.where(dump, self._shared.project_root))
        self._forced = self._forcing
        self._host.cancel(self.number)
        if not await self._ended_within(self.order.spec.grace_seconds):
            self._leak(reason)

    def _leak(self, reason: str) -> None:
        """Give up on it. The pipe of its results stays open: its end tells when the thread is gone."""
        self._leaked = True
        self._listener.step(EventKind.ATTEMPT_LEAKED, {"reason": reason})
        self._host.on_leak(self.number)
        self._finish(self._outcome())

    def _ending_came(self) -> None:
        """The end of its pipe follows at once."""

    def _results_end(self) -> None:
        if not self._leaked:
            self._output.drain()
            self._finish(self._outcome())
        self._release()

    def _outcome(self) -> Outcome:
        usage = {"duration_us": self._duration_us()}
        if self._ending is None and self._forced is Force.NONE:
            return lost("its thread ended without sending a result", usage)
        return outcome_of(self._evidence(usage))

    def host_died(self, why: str) -> None:
        """The host is gone, and every thread with it. A result that was sent stands."""
        self._results.drain()  # mostly finds the end of the pipe, and then all is done
        if not self._over.done():
            self._finish(lost(why, {"duration_us": self._duration_us()}))
        self._release()

    def _release(self) -> None:
        self._results.close()
        self._host.on_gone(self.number)

    def _duration_us(self) -> int:
        return round((self._loop.time() - self._started_at) * 1e6)
