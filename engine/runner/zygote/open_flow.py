"""A flow that a zygote has imported, with all that runs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core.spec import FlowSpec, TaskSpec
from .. import process
from ..attempt import RunnerContext
from ..process_attempt import ProcessAttempt
from ..thread.pool import ThreadHosts
from ..worker.pool import WorkerPool
from .connection import ZygoteConnection


@dataclass(slots=True, eq=False)
class OpenFlow:
    """A flow that a zygote has imported, with the processes that were forked from it."""

    spec: FlowSpec
    connection: ZygoteConnection
    shared: RunnerContext
    hosts: ThreadHosts
    workers: WorkerPool
    warnings: tuple[str, ...]  # about forking after the import
    printed: str  # the end of the import's output
    attempts: dict[int, ProcessAttempt] = field(default_factory=dict)
    starting: int = 0  # attempts that are being forked
    others: dict[str, OpenFlow] = field(default_factory=dict)  # the same in other interpreters: ``TaskSpec.python``

    def is_busy(self) -> bool:
        """Whether a process lives in which an attempt runs."""
        pidfds = [attempt.pidfd for attempt in self.attempts.values()]
        pidfds += [host.pidfd for host in self.hosts.busy]
        pidfds += [worker.pidfd for worker in self.workers.busy]
        return not all(map(process.has_ended, pidfds))

    @property
    def is_idle(self) -> bool:
        """Whether no attempt of the flow runs."""
        is_busy = self.starting or self.attempts or self.hosts.count or self.workers.busy_count
        return not is_busy and all(other.is_idle for other in self.others.values())

    def for_task(self, spec: TaskSpec) -> OpenFlow:
        """Return the flow in the interpreter of a task. Raises ProcessLookupError if that has died."""
        if spec.python is None:
            return self
        if spec.python not in self.others:
            raise ProcessLookupError(f"the zygote of python={spec.python!r} has died")
        return self.others[spec.python]
