"""Every error that this package raises on purpose.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

::

    RedriveError
    ├── FlowError                  the flow file cannot be run as it stands
    │   ├── FlowImportError        its import raised; carries the traceback once
    │   ├── OptionError            an option is not what it must be; a ValueError too
    │   └── CycleError             carries the tasks of one cycle, in order
    ├── StateFileError             the state file cannot be used; nothing was changed in it
    │   ├── ForeignFileError       SQLite, but not ours, or not SQLite at all
    │   ├── NewerFileError         written by a later version
    │   ├── CorruptFileError       damaged or cut short
    │   └── StorageError           the disk said no: full, read-only, I/O error
    ├── StartInterrupted           a signal came before the run was opened: nothing was started
    ├── ExecutorBusyError          another executor owns the state file: carries pid, host, age
    ├── RefusedError               an operator's act that no longer holds; carries what came first
    │   └── NotFoundError          there is no such run in the state file
    ├── AddressError               the address of a state file makes no sense, or is not safe to use
    ├── LinkError                  the way to another host is closed; ``final``: trying again will not open it
    └── SnapshotNeeded             the picture must be read again: the file was replaced, or more of it is known

    TaskError                      what a task may raise to say which kind of failure it is
    ├── TransientError             "the next attempt might work"
    │   └── RetryAfter             ... but not sooner than its seconds
    ├── PermanentError             "the next attempt will not work"
    │   ├── TooManyBadRows         more rows were set aside than the task allows
    │   └── AuthError              the credential is refused: stop at once, before the account is locked
    ├── AmbiguousError             nobody can say: a small budget, then permanent
    ├── NotReady                   a sensor's answer: look again later, no failure
    └── SkipTask                   the task decides that its branch is not taken

    TaskTerminated                 a BaseException: SIGTERM arrived, run your ``finally`` blocks
"""

from typing import Optional, Sequence


class RedriveError(Exception):
    """Base of all errors meant for a person: one clear sentence that says what to do."""


class FlowError(RedriveError):
    """The flow cannot be run as it stands. ``task``: which one, where it is one."""

    def __init__(self, message: str, *, task: Optional[str] = None) -> None:
        super().__init__(message)
        self.task = task

    def at(self, place: Optional[str]) -> "FlowError":
        """The same with its place (``revenue.py:12``) in front of the sentence, unless it has none or knows one."""
        if place is not None and not self._is_placed:
            self._is_placed = True
            self.args = ("{}: {}".format(place, self), *self.args[1:])
        return self

    _is_placed = False


class FlowImportError(FlowError):
    """The flow file raised while it was imported. ``traceback`` is the text of where."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class OptionError(FlowError, ValueError):
    """An option of a flow, a task, a policy or a downstream is not what it must be."""


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

    def __init__(self, message: str, *, pid: Optional[int] = None, host: Optional[str] = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host


class StartInterrupted(RedriveError):
    """A signal came before the run was opened. Nothing was started, and nothing is left behind."""


class RefusedError(RedriveError):
    """An operator's act that no longer holds: something else came first."""


class NotFoundError(RefusedError):
    """The state file has no such run."""


class AddressError(RedriveError):
    """The address of a state file makes no sense, or is not safe to use."""


class LinkError(RedriveError):
    """The way to another host is closed.

    ``final``: trying again will not open it, a person has to do something. ``locked``: what that person has to do is
    to answer ssh: a password, a second factor, or whether a key is the right one.
    """

    def __init__(self, message: str, *, final: bool = False, locked: bool = False) -> None:
        super().__init__(message)
        self.final = final or locked
        self.locked = locked


class SnapshotNeeded(RedriveError):
    """Events alone no longer lead to the true picture; the message says why. Take a new snapshot and go on from it."""


class TaskError(Exception):
    """What a task may raise to say which kind of failure it is."""

    def __init__(self, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        super().__init__(message)
        self.diagnostic = diagnostic


class TransientError(TaskError):
    """The next attempt might work."""


class RetryAfter(TransientError):
    """Transient, and the other side named a wait: never retried sooner than ``seconds``."""

    def __init__(self, seconds: float, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        self.seconds = float(seconds)
        super().__init__(message or f"asked to wait {self.seconds:g} s", diagnostic=diagnostic)


class PermanentError(TaskError):
    """The next attempt will not work."""


class TooManyBadRows(PermanentError):
    """More rows were quarantined than ``max_bad_rows`` or ``max_bad_ratio`` allows: not the rows are broken then."""


class AmbiguousError(TaskError):
    """Nobody can say whether the next attempt works: a small budget, then permanent."""


class AuthError(PermanentError):
    """The credential is refused. Never retried: retries can lock the account."""


class NotReady(TaskError):
    """A sensor's answer: what it waits for is not there yet. Costs no attempt of the budget."""

    def __init__(self, message: str = "", *, recheck_seconds: Optional[float] = None) -> None:
        super().__init__(message)
        self.recheck_seconds = None if recheck_seconds is None else float(recheck_seconds)


class SkipTask(TaskError):
    """The task decides that its branch is not taken; its children that need success are skipped with it."""


class TaskTerminated(BaseException):
    """SIGTERM reached the attempt. Raised in the main thread so that ``finally`` blocks run; do not swallow it."""
