"""Every error that this package raises on purpose.

::

    RedriveError
    ├── FlowError                  the flow file cannot be run as it stands
    │   ├── FlowImportError        its import raised; carries the traceback once
    │   └── CycleError             carries the tasks of one cycle, in order
    ├── StateFileError             the state file cannot be used; nothing was changed in it
    │   ├── ForeignFileError       SQLite, but not ours, or not SQLite at all
    │   ├── NewerFileError         written by a later version
    │   ├── CorruptFileError       damaged or cut short
    │   └── StorageError           the disk said no: full, read-only, I/O error
    ├── ExecutorBusyError          another executor owns the state file: carries pid, host, age
    ├── RefusedError               an operator's act that no longer holds; carries what came first
    └── TaskError                  what a task may raise to say which kind of failure it is
        ├── TransientError         "the next attempt might work"
        │   └── RetryAfter         ... but not sooner than its seconds
        ├── PermanentError         "the next attempt will not work"
        ├── AmbiguousError         nobody can say: a small budget, then permanent
        ├── AuthError              the credential is refused: stop at once, before the account is locked
        ├── NotReady               a sensor's answer: look again later, no failure
        └── SkipTask               the task decides that its branch is not taken

    TaskTerminated                 a BaseException: SIGTERM arrived, run your ``finally`` blocks
"""

from __future__ import annotations

from collections.abc import Sequence


class RedriveError(Exception):
    """Base of all errors meant for a person: one clear sentence that says what to do."""


class FlowError(RedriveError):
    """The flow cannot be run as it stands."""


class FlowImportError(FlowError):
    """The flow file raised while it was imported. ``traceback`` is the text of where."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class CycleError(FlowError):
    """The tasks wait for each other in a ring. ``cycle`` names them in order, the first again at the end."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"the tasks wait for each other in a ring: {' -> '.join(cycle)}; remove one of these edges")
        self.cycle = tuple(cycle)


class StateFileError(RedriveError):
    """The state file cannot be used. Nothing in it was changed."""


class ForeignFileError(StateFileError):
    """The file is not a redrive state file."""


class NewerFileError(StateFileError):
    """The file was written by a later version of redrive."""


class CorruptFileError(StateFileError):
    """The file is damaged or cut short."""


class StorageError(StateFileError):
    """The disk refused: full, read-only, or an input/output error."""


class ExecutorBusyError(RedriveError):
    """Another executor owns the state file."""

    def __init__(self, message: str, *, pid: int | None = None, host: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host


class RefusedError(RedriveError):
    """An operator's act that no longer holds: something else came first."""


class TaskError(Exception):
    """What a task may raise to say which kind of failure it is."""

    def __init__(self, message: str = "", *, diagnostic: str | None = None) -> None:
        super().__init__(message)
        self.diagnostic = diagnostic


class TransientError(TaskError):
    """The next attempt might work."""


class RetryAfter(TransientError):
    """Transient, and the other side named a wait: never retried sooner than ``seconds``."""

    def __init__(self, seconds: float, message: str = "", *, diagnostic: str | None = None) -> None:
        super().__init__(message or f"asked to wait {seconds:g} s", diagnostic=diagnostic)
        self.seconds = seconds


class PermanentError(TaskError):
    """The next attempt will not work."""


class AmbiguousError(TaskError):
    """Nobody can say whether the next attempt works: a small budget, then permanent."""


class AuthError(PermanentError):
    """The credential is refused. Never retried: retries can lock the account."""


class NotReady(TaskError):
    """A sensor's answer: what it waits for is not there yet. Costs no attempt of the budget."""

    def __init__(self, message: str = "", *, recheck_seconds: float | None = None) -> None:
        super().__init__(message)
        self.recheck_seconds = recheck_seconds


class SkipTask(TaskError):
    """The task decides that its branch is not taken; its children that need success are skipped with it."""


class TaskTerminated(BaseException):
    """SIGTERM reached the attempt. Raised in the main thread so that ``finally`` blocks run; do not swallow it."""
