"""The errors of the engine, and the errors that a task raises to say which kind of failure it has.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

::

    RedriveError
    ├── FlowError                  the flow file cannot be run
    │   ├── FlowImportError        its import raised; carries the traceback
    │   ├── FlowChangesError       a run needs an operator's word: its flow changed
    │   ├── UntrustedFlowError     its code needs an operator's word: others may have written it
    │   ├── OptionError            an option is not valid; a ValueError too
    │   └── CycleError             carries the tasks of one cycle, in order
    ├── StateFileError             the state file cannot be used; nothing was changed in it
    │   ├── ForeignFileError       another SQLite database, or no database
    │   ├── OtherFormatError       written by an earlier or a later version
    │   ├── CopiedFileError        the run goes on, or has ended, in the file that it is a copy of
    │   ├── CorruptFileError       damaged or cut short
    │   └── StorageError           the disk is full or read-only, or an I/O error
    │       └── UnreadableFileError  this user may not read the file, or its disk cannot
    ├── StartInterrupted           a signal arrived before the run was opened: nothing was started
    ├── NotRunError                a command of ``redrive exec`` did not run, or its output was lost
    ├── ExecutorBusyError          another executor owns the state file: carries pid, host, age
    ├── RefusedError               an operator's act does not apply any more
    │   └── NotFoundError          there is no such run in the state file
    ├── AddressError               the address of a state file is not valid, or is not safe to use
    ├── LinkError                  no connection to another host; ``final``: a retry will not help
    │   └── NoAnswerError          sent, and not answered: it may have been done
    └── SnapshotNeeded             the run must be read again: the file was replaced, or events are missing

    TaskError                      what a task may raise to say which kind of failure it has
    ├── TransientError             "the next attempt might work"
    │   └── RetryAfter             ... but not sooner than its seconds
    ├── PermanentError             "the next attempt will not work"
    │   ├── TooManyBadRows         more rows were set aside than the task allows
    │   └── AuthError              the credential is refused: no retry, which could lock the account
    ├── AmbiguousError             unknown whether a retry works: few retries, then permanent
    ├── NotReady                   a sensor's condition is not met yet: check later, no failure
    └── SkipTask                   the task decides that its branch is not taken

    TaskTerminated                 a BaseException: SIGTERM arrived, run your ``finally`` blocks
"""

from typing import Optional, Sequence


class RedriveError(Exception):
    """Base of the engine's errors. The message is one sentence that says what to do.

    Example:
        >>> from redrive.engine import Executor
        >>> try:
        ...     Executor(flow="missing.py").run()
        ... except RedriveError as error:
        ...     print(type(error).__name__)
        FlowError
    """


class FlowError(RedriveError):
    """The flow cannot be run; the message begins with the line of the flow file if it is known.

    Attributes:
        task: the name of the task with the error, or None.

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
        """Put a place (``revenue.py:12``) before the message, unless it has one, and return this error."""
        if place is not None and not self._is_placed:
            self._is_placed = True
            self.args = ("{}: {}".format(place, self), *self.args[1:])
        return self

    _is_placed = False


class FlowImportError(FlowError):
    """The flow file raised an exception while it was imported.

    Attributes:
        traceback: the traceback as text.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class FlowChangesError(FlowError):
    """A run cannot be resumed without an operator's word: its flow changed, and work of the run would be lost.

    Attributes:
        run_id: the name of the run.
    """

    def __init__(self, message: str, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class UntrustedFlowError(FlowError):
    """The flow file that a state file names is not run without an operator's word: others may have written it."""


class OptionError(FlowError, ValueError):
    """An option of a flow, a task, a policy or a downstream is not valid; the message names it.

    Example:
        >>> from redrive.engine import Flow
        >>> Flow("f", deadline="soon")
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: flow 'f': deadline is a duration of 0 or more (...), or None, not 'soon'
    """


class CycleError(FlowError):
    """The tasks depend on each other in a cycle.

    Attributes:
        cycle: the names of the tasks in order; the last is the first again.

    Example:
        >>> CycleError(["a", "b", "a"]).cycle
        ('a', 'b', 'a')
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"the tasks wait for each other in a ring: {' -> '.join(cycle)}; remove one of these edges")
        self.cycle = tuple(cycle)


class StateFileError(RedriveError):
    """The state file cannot be used: it is missing, damaged, foreign, or of another version. Nothing was written.

    Attributes:
        path: of the file of ``redrive serve``, if it is that which cannot be used.
        problem: the message without ``advice``, which is for a command that was given the file.
    """

    def __init__(self, message: str, *, path: Optional[str] = None, advice: str = "") -> None:
        super().__init__(f"{message}; {advice}" if advice else message)
        self.path, self.problem = path, message


class ForeignFileError(StateFileError):
    """The file is not a redrive state file."""


class OtherFormatError(StateFileError):
    """The file was written by an earlier or a later version of redrive."""


class CopiedFileError(StateFileError):
    """The file is a copy of one where the run goes on, or has ended: what is done here would be done twice."""


class CorruptFileError(StateFileError):
    """The file is damaged or cut short."""


class StorageError(StateFileError):
    """The disk is full or read-only, or has an input/output error."""


class UnreadableFileError(StorageError):
    """The file cannot be read, by this user or from its disk: nobody knows here what it holds."""


class ExecutorBusyError(RedriveError):
    """Another executor owns the state file; ``RunOptions(wait=True)`` waits for it.

    Attributes:
        pid: the pid of that executor, or None if it is not known.
        host: its host, or None.
    """

    def __init__(self, message: str, *, pid: Optional[int] = None, host: Optional[str] = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host


class StartInterrupted(RedriveError):
    """A signal arrived before the run was opened. Nothing was started."""


class NotRunError(RedriveError):
    """A command that ``redrive exec`` was to run did not run, or its output was lost."""


class RefusedError(RedriveError):
    """An operator's act does not apply any more, because the state has changed."""


class NotFoundError(RefusedError):
    """The state file has no such run."""


class AddressError(RedriveError):
    """The address of a state file is not valid, or is not safe to use."""


class LinkError(RedriveError):
    """No connection to another host.

    ``final``: a retry will not help, a person must act. ``locked``: that person must respond to ssh: with a password, a
    second factor, or a decision about the key of the host.
    """

    def __init__(self, message: str, *, final: bool = False, locked: bool = False) -> None:
        super().__init__(message)
        self.final = final or locked
        self.locked = locked


class NoAnswerError(LinkError):
    """A request was sent, and no answer has come: an act may have been done, or may still be."""


class SnapshotNeeded(RedriveError):
    """The events after the last snapshot are not complete; the message says why. Read a new snapshot."""


class TaskError(Exception):
    """Base of the errors that a task raises to say which kind of failure it has.

    Parameters:
        message: text for a person.
        diagnostic: text that helps to find the cause, such as the body of a response; shown first to the operator.

    Example:
        >>> TaskError("refused", diagnostic="field 'amount' is missing").diagnostic
        "field 'amount' is missing"
    """

    http_status: Optional[int] = None  # of the answer that ``classify_http`` made an error of

    def __init__(self, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        super().__init__(message)
        self.diagnostic = diagnostic


class TransientError(TaskError):
    """The next attempt might work: the task is retried by its ``RetryPolicy`` and never becomes poison.

    Example:
        >>> from redrive.engine import Flow
        >>> flow = Flow("invoices")
        >>> @flow.task(max_attempts=5)
        ... def fetch(ctx):
        ...     if ctx.attempt == 1:
        ...         raise TransientError("503 from the invoice API")
    """


class RetryAfter(TransientError):
    """The next attempt might work, but not before the time that the other system gives.

    Parameters:
        seconds: 0 or more; the wait of the ``RetryPolicy`` is added, so that retries do not coincide.
        message, diagnostic: as for TaskError.

    Example:
        >>> RetryAfter(30)
        RetryAfter('asked to wait 30 s')
    """

    def __init__(self, seconds: float, message: str = "", *, diagnostic: Optional[str] = None) -> None:
        self.seconds = float(seconds)
        super().__init__(message or f"asked to wait {self.seconds:g} s", diagnostic=diagnostic)


class PermanentError(TaskError):
    """The next attempt will not work: the task becomes a dead letter at once and waits for an operator.

    Example:
        >>> PermanentError("invoice 7 has no customer", diagnostic="customer: null")
        PermanentError('invoice 7 has no customer')
    """


class TooManyBadRows(PermanentError):
    """More rows are quarantined than ``max_bad_rows`` or ``max_bad_ratio`` allows."""


class AmbiguousError(TaskError):
    """It is unknown whether the next attempt works: ``RetryPolicy.ambiguous_attempts`` of these count as permanent.

    Example:
        >>> AmbiguousError("500 from the invoice API")
        AmbiguousError('500 from the invoice API')
    """


class AuthError(PermanentError):
    """The credential is refused. The task is not retried, because that can lock the account; the breaker opens.

    Example:
        >>> AuthError("401 unauthorized", diagnostic="token expired")
        AuthError('401 unauthorized')
    """


class NotReady(TaskError):
    """The condition of a sensor is not met yet. The sensor is called again later, and no attempt is spent.

    Parameters:
        message: text for a person.
        recheck_seconds: seconds until the next call, at least 1; None: the interval ``every`` of the sensor, which may
            be shorter.

    Example:
        >>> NotReady("no export yet", recheck_seconds=600).recheck_seconds
        600.0
    """

    def __init__(self, message: str = "", *, recheck_seconds: Optional[float] = None) -> None:
        super().__init__(message)
        self.recheck_seconds = None if recheck_seconds is None else float(recheck_seconds)


class SkipTask(TaskError):
    """The task decides that its branch is not taken. The task and the children that need its success are SKIPPED.

    Example:
        >>> from redrive.engine import Flow
        >>> flow = Flow("report")
        >>> @flow.task
        ... def only_on_mondays(ctx):
        ...     if ctx.logical_time and ctx.logical_time.weekday():
        ...         raise SkipTask("not a Monday")
    """


class TaskTerminated(BaseException):
    """The attempt must end: SIGTERM has arrived, or ``Context.check`` found that the task is cancelled.

    Raised in the main thread of the attempt, so that ``finally`` blocks run. Code that catches it must raise it again:
    after ``grace_seconds`` the process is killed.
    """
