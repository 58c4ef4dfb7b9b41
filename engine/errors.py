"""Every error that the engine raises on purpose, and every one that a task can raise to say what its failure is worth.

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
    """Base of all errors around a run. The message is one sentence for a person, which says what to do.

    Example:
        >>> from redrive.engine import Executor
        >>> try:
        ...     Executor(flow="missing.py").run()
        ... except RedriveError as error:
        ...     print(type(error).__name__)
        FlowError
    """


class FlowError(RedriveError):
    """The flow cannot be run as it stands; the message begins with the line of the flow file where that is known.

    Attributes:
        task: the name of the task that it is about, or None.

    Example:
        >>> from redrive.engine import Flow
        >>> Flow("empty").spec()
        Traceback (most recent call last):
        ...
        redrive.engine.errors.FlowError: flow 'empty' has no tasks
    """

    def __init__(self, message: str, *, task: Optional[str] = None) -> None:
        super().__init__(message)
        self.task = task

    def at(self, place: Optional[str]) -> "FlowError":
        """Put a place (``revenue.py:12``) in front of the sentence, unless one is there, and return this error."""
        if place is not None and not self._is_placed:
            self._is_placed = True
            self.args = ("{}: {}".format(place, self), *self.args[1:])
        return self

    _is_placed = False


class FlowImportError(FlowError):
    """The flow file raised an exception while it was imported.

    Attributes:
        traceback: text: where.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class OptionError(FlowError, ValueError):
    """An option of a flow, a task, a policy or a downstream is not what it must be; the sentence names it.

    Example:
        >>> from redrive.engine import Flow
        >>> Flow("f", deadline="soon")
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: flow 'f': deadline is a duration of 0 or more (...), or None, not 'soon'
    """


class CycleError(FlowError):
    """The tasks wait for each other in a ring.

    Attributes:
        cycle: the names of the tasks in order, the first again at the end.

    Example:
        >>> CycleError(["a", "b", "a"]).cycle
        ('a', 'b', 'a')
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"the tasks wait for each other in a ring: {' -> '.join(cycle)}; remove one of these edges")
        self.cycle = tuple(cycle)


class StateFileError(RedriveError):
    """The state file cannot be used: it is missing, damaged, not ours or of a later version. Nothing in it changed."""


class ForeignFileError(StateFileError):
    """The file is not a redrive state file."""


class NewerFileError(StateFileError):
    """The file was written by a later version of redrive."""


class CorruptFileError(StateFileError):
    """The file is damaged or cut short."""


class StorageError(StateFileError):
    """The disk refused: full, read-only, or an input/output error."""


class ExecutorBusyError(RedriveError):
    """Another executor owns the state file; ``RunOptions(wait=True)`` waits for it.

    Attributes:
        pid: of that executor, or None where it is not known.
        host: its host, or None.
    """

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
    """Base of what a task can raise to say which kind of failure it is.

    Parameters:
        message: text for a person.
        diagnostic: text that helps to find the cause, as the body of an answer; shown first to the operator.

    Example:
        >>> TaskError("refused", diagnostic="field 'amount' is missing").diagnostic
        "field 'amount' is missing"
    """

    def __init__(self, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        super().__init__(message)
        self.diagnostic = diagnostic


class TransientError(TaskError):
    """The next attempt might work: the task is tried again as its ``RetryPolicy`` says, and it never counts as poison.

    Example:
        >>> from redrive.engine import Flow
        >>> flow = Flow("invoices")
        >>> @flow.task(max_attempts=5)
        ... def fetch(ctx):
        ...     if ctx.attempt == 1:
        ...         raise TransientError("503 from the invoice API")
    """


class RetryAfter(TransientError):
    """The next attempt might work, but not sooner than the other side says.

    Parameters:
        seconds: of 0 or more; the wait of the ``RetryPolicy`` comes on top, so that not all come back at once.
        message, diagnostic: as for TaskError.

    Example:
        >>> RetryAfter(30)
        RetryAfter('asked to wait 30 s')
    """

    def __init__(self, seconds: float, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        self.seconds = float(seconds)
        super().__init__(message or f"asked to wait {self.seconds:g} s", diagnostic=diagnostic)


class PermanentError(TaskError):
    """The next attempt will not work: the task is a dead letter at once, and waits for an operator.

    Example:
        >>> PermanentError("invoice 7 has no customer", diagnostic="customer: null")
        PermanentError('invoice 7 has no customer')
    """


class TooManyBadRows(PermanentError):
    """More rows are set aside than ``max_bad_rows`` or ``max_bad_ratio`` allows: then something else is broken."""


class AmbiguousError(TaskError):
    """Nobody can say whether the next attempt works: ``RetryPolicy.ambiguous_attempts`` of these are permanent.

    Example:
        >>> AmbiguousError("500 from the invoice API")
        AmbiguousError('500 from the invoice API')
    """


class AuthError(PermanentError):
    """The credential is refused. It is never tried again, because that can lock the account; the breaker opens.

    Example:
        >>> AuthError("401 unauthorized", diagnostic="token expired")
        AuthError('401 unauthorized')
    """


class NotReady(TaskError):
    """What a sensor waits for is not there yet. It is called again later, and no attempt is spent.

    Parameters:
        message: text for a person.
        recheck_seconds: seconds of 0 or more until the next call; None: as the sensor says (``every``).

    Example:
        >>> NotReady("no export yet", recheck_seconds=600).recheck_seconds
        600.0
    """

    def __init__(self, message: str = "", *, recheck_seconds: Optional[float] = None) -> None:
        super().__init__(message)
        self.recheck_seconds = None if recheck_seconds is None else float(recheck_seconds)


class SkipTask(TaskError):
    """The task decides that its branch is not taken. It is SKIPPED, and so are the children that need its success.

    Example:
        >>> from redrive.engine import Flow
        >>> flow = Flow("report")
        >>> @flow.task
        ... def only_on_mondays(ctx):
        ...     if ctx.logical_time and ctx.logical_time.weekday():
        ...         raise SkipTask("not a Monday")
    """


class TaskTerminated(BaseException):
    """The attempt has to end: SIGTERM has arrived, or ``Context.check`` found that the task is cancelled.

    It is raised in the main thread of the attempt, so that ``finally`` blocks run. Do not catch it without raising it
    again: after ``grace_seconds`` the process is killed.
    """
