"""The executor's side of an attempt in a thread. A thread can be cancelled, but killed only with its host."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...core.outcome import Outcome
from ...domain.event_payloads import AttemptLeaked
from ...errors import StateFileError
from .. import protocol
from ..attempt import Attempt, AttemptListener, RunnerContext
from ..frame_socket import FrameSocket
from ..hang import stack
from ..hang.autopsy import Subject
from ..outcome_of_exit import Force, lost, outcome_of
from ..pipes import DrainedPipe, Pipe
from ..protocol import AttemptOrder

HOST_EXIT_SECONDS = 5.0  # how long a pipe that closed without a result waits for the exit of the host


@dataclass(frozen=True, slots=True)
class HostView:
    """The part of the host that its attempts use."""

    pid: int
    start_ticks: int
    link: FrameSocket
    cancel: Callable[[int], None]
    dump_stacks: Callable[[], Awaitable[str]]
    on_leak: Callable[[int], None]
    on_gone: Callable[[int], None]  # its thread has ended


class ThreadAttempt(Attempt):
    """An attempt in a thread of the host.

    At the deadline its cancel token is set. If it does not end within the grace period, it is reported as leaked and
    the attempt ends; its slot stays taken until the thread ends or its host is killed (``pool.py``).
    """

    def __init__(
        self, number: int, order: AttemptOrder, listener: AttemptListener, shared: RunnerContext, host: HostView
    ) -> None:
        super().__init__(number, order, listener, shared, asyncio.get_running_loop().time())
        self.pid = host.pid
        self.ident: int | None = None  # identifies the thread in a dump of all stacks
        self._native = 0
        self._host = host
        self._leaked = False
        self._exit_timer: asyncio.TimerHandle | None = None
        self._results = host.link
        self._output = DrainedPipe()
        self._is_paused = False
        self._arm()
        listener.started(host.pid, host.start_ticks)

    def handle(self, frame: protocol.AttemptFrame) -> None:
        """Handle one frame. One that no event can be made of is ignored."""
        with contextlib.suppress(StateFileError):
            self._handle_frame(frame)

    def open_output(self, fd: int) -> None:
        """Read the output of the thread from now on."""
        if self._done.done():
            os.close(fd)
            return
        self._output = Pipe(fd, self._handle_output)
        if self._is_paused:
            self._output.pause()

    def pause_output(self) -> None:
        """Stop reading the output of the thread, and the frames of all threads of the host."""
        self._is_paused = True
        super().pause_output()

    def resume_output(self) -> None:
        """Read them again."""
        self._is_paused = False
        super().resume_output()

    def _handle_task_began(self, began: protocol.TaskBegan) -> None:
        super()._handle_task_began(began)
        self.ident, self._native = began.ident, began.native

    @property
    def _subject(self) -> Subject:
        """Only the thread of this attempt, once it is known; not its neighbours in the process."""
        return Subject(self.pid, self._native, f"task {self.order.task}") if self._native else Subject(0)

    async def dump_stack(self) -> str:
        """Return the stack of the thread."""
        dump = await self._host.dump_stacks()
        return stack.without_engine(dump if self.ident is None else stack.of_thread(dump, self.ident))

    # --- The escalation -----------------------------------------------------------------------------------------------

    async def _escalate(self, reason: str) -> None:
        seen = await self._inspected()
        self._results.drain()
        if self._ending is not None or self._done.done():
            return
        self._emit_stack(seen)
        self._force_applied = self._force_requested
        self._host.cancel(self.number)
        if not await self._ended_within(self.order.spec.grace_seconds):
            self._leak(reason)

    def _leak(self, reason: str) -> None:
        """End the attempt while its thread runs on. The host reports the end of the thread (``thread_ended``)."""
        self._leaked = True
        self._listener.step(AttemptLeaked(reason))
        self._finish(self._outcome())
        self._host.on_leak(self.number)

    # --- The end ------------------------------------------------------------------------------------------------------

    def _on_ending(self, in_time: bool) -> None:
        """Settle now: the thread has nothing more to say."""
        self._output.drain()
        self._finish(self._outcome())
        self._release()

    def _on_results_closed(self) -> None:
        """Nothing: the link belongs to the host."""

    def thread_ended(self) -> None:
        """Free the slot. Without a final frame, either the host is dying and its exit decides, or sending failed."""
        if self._done.done():
            self._release()
        elif self._exit_timer is None:
            self._exit_timer = self._loop.call_later(HOST_EXIT_SECONDS, self._on_exit_timeout)

    def _on_exit_timeout(self) -> None:
        self._output.drain()
        self._finish(self._outcome())
        self._release()

    def drain_output(self) -> None:
        """Read what was written before the host died."""
        if not self._done.done():
            self._output.drain()

    def ended_host(self, exited: protocol.Exited, dump: str, out_of_memory: bool) -> None:
        """Settle the attempt whose thread ended the host."""
        if dump and not self._stack:
            self._stack = stack.without_engine(dump if self.ident is None else stack.of_thread(dump, self.ident))
        usage = {
            **self._usage(),
            "exit_code": exited.exit_code,
            "signal": exited.signal,
            "max_rss_kb": exited.max_rss_kb,
        }
        self._end_with_host(outcome_of(self._evidence(usage, exited, out_of_memory=out_of_memory)))

    def lost_host(self, why: str, *, is_blameless: bool) -> None:
        """Settle an attempt whose thread died with the host."""
        is_forced = self._force_applied is not Force.NONE
        self._end_with_host(self._outcome() if is_forced else lost(why, self._usage(), is_blameless=is_blameless))

    def _end_with_host(self, outcome: Outcome) -> None:
        if not self._done.done():
            self._finish(outcome)
        self._release()

    def _outcome(self) -> Outcome:
        if self._ending is None and self._force_applied is Force.NONE:
            return lost("its thread ended without sending a result", self._usage())
        return outcome_of(self._evidence(self._usage()))

    def _finish(self, outcome: Outcome) -> None:
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        super()._finish(outcome)

    def _release(self) -> None:
        self._host.on_gone(self.number)

    def _usage(self) -> dict[str, object]:
        return {"duration_us": round((self._loop.time() - self._started_at) * 1e6)}
