"""Publication of a run beside its state file: to listeners, receivers of pages and pings, readers of its health."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..domain.events import Event
from ..domain.rows import Health
from ..domain.states import TaskState
from ..notifications import notifier
from ..notifications.storage_page import StoragePager
from ..statefile.health_file import inodes_of, log_of
from ..store import pages
from .active_run import ActiveRun
from .attempts import RunningAttempts
from .health import HealthFile
from .opening import Machine, OpenRun
from .state_file_watch import StorageHealth

EventListener = Callable[[Sequence[Event]], None]


class Publisher:
    """Publishes the events of a run, and the health of its executor, which the state file cannot hold."""

    def __init__(
        self,
        opened: OpenRun,
        machine: Machine,
        run: ActiveRun,
        attempts: RunningAttempts,
        listener: EventListener | None,
    ) -> None:
        flow, clock, folder = opened.flow, machine.clock, machine.pages_folder()
        self._opened = opened
        self._clock = clock
        self._run = run
        self._attempts = attempts
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._executor_id = opened.identity.executor_id
        origin = notifier.MessageOrigin(flow.name, run.run_id, os.path.abspath(opened.state_path))
        self.notifier = notifier.Notifier(flow.pages, origin, opened.writer, clock, folder)
        self._storage_pager = StoragePager(flow.pages, origin, folder, clock)
        self._sends = notifier.BackgroundSends(clock.uniform, self._emit_send_failure)
        self._pinger = notifier.Pinger(flow.pings, self._sends)
        self._health_file = HealthFile(opened.state_path)
        self._inodes = inodes_of(opened.state_path), inodes_of(log_of(opened.state_path))
        self._ends: Mapping[str, int] = {}

    def start(self) -> None:
        run = self._run.projection.run
        self.notify_listener(self._opened.early)
        self.notifier.start()
        if run.ended_at is None and run.blocked_since is None:
            self._pinger.send(notifier.PingEvent.START)

    def on_events_durable(self, events: Sequence[Event]) -> None:
        """Publish events that no power cut undoes."""
        self.notifier.handle_events(events)
        self._pinger.handle_events(events, self._run.run_id)
        self.notify_listener(events)

    def notify_listener(self, events: Sequence[Event]) -> None:
        if self._listener is None:
            return
        try:
            self._listener(events)
        except Exception as error:  # a listener must not affect the run
            context = {"message": "a listener of events raised", "exception": error}
            self._loop.call_exception_handler(context)

    def publish_health(self, storage: StorageHealth) -> None:
        """Publish what cannot be committed, and page for it."""
        problem, since = storage.problem or "", storage.since
        self._storage_pager.check(since, problem)
        if (message := self._storage_pager.pop_past()) is not None:
            self._attempts.write(lambda transaction: pages.record_past(transaction, message))
        senders = {**self.notifier.failing, **self._storage_pager.failing}
        self._ends = {} if storage.problem is None else self._unsaved_ends()
        self._health_file.write(
            Health(self._executor_id, since, problem, self._ends, list(senders.values()), *self._inodes)
        )

    def _unsaved_ends(self) -> Mapping[str, int]:
        """Return the tasks whose attempt has ended, while the state file cannot say so, and when that was seen."""
        tasks, running, now_us = self._run.projection.tasks.values(), self._attempts.running, self._clock.now_us()
        names = (row.name for row in tasks if row.state is TaskState.RUNNING and row.name not in running)
        return {name: self._ends.get(name, now_us) for name in names}

    async def close_pages(self, *, has_failed: bool) -> None:
        await self.notifier.close(0 if has_failed else notifier.CLOSE_SECONDS)

    async def close(self, *, has_failed: bool) -> None:
        await self._sends.close(0 if has_failed else notifier.CLOSE_SECONDS)
        self._storage_pager.close()
        self._health_file.close()

    def emit_news(self, payload: ExecutorChanged) -> None:
        """Emit an event about the executor's processes that belongs to no attempt."""
        self._attempts.write(lambda transaction: transaction.emit(payload, self._run.run_id))

    def _emit_send_failure(self, sentence: str) -> None:
        self.emit_news(ExecutorChanged(ExecutorChange.PING_FAILED, self._executor_id, printed=sentence))
