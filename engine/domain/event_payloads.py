"""The payloads of events: one frozen type per kind.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``set`` has exactly the changed columns of the task or the run with their new values; ``attempt_set`` has those of the
attempt. The JSON keys of an event are the names of these fields (``event_codec.py`` lists the few that differ); fields
without a value are left out.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from .event_columns import AnswerFields, AttemptColumns, PageColumns, RunColumns, TaskColumns

Text = Optional[str]
Number = Optional[int]
Real = Optional[float]
Flag = Optional[bool]
Names = Sequence[str]
Numbers = Sequence[int]
Values = Dict[str, object]  # parameters of a flow, options of an act: JSON that the engine only passes on
Pairs = Dict[str, Sequence[object]]  # parameter -> [old value, new value]
Before = Dict[str, TaskColumns]  # task -> state, generation and changed columns before an act
Rows = Sequence[List[Any]]  # before an act: [what, columns] of a run, [task, state, generation, spans] of rows

#: Defaults of payloads; never modified.
NO_TASK_COLUMNS: TaskColumns = {}
NO_ATTEMPT_COLUMNS: AttemptColumns = {}
NO_RUN_COLUMNS: RunColumns = {}
NO_PAGE_COLUMNS: PageColumns = {}
NO_ANSWER: AnswerFields = {}
NO_VALUES: Values = {}
NO_PAIRS: Pairs = {}
NO_TASKS: Before = {}


# --- Tasks and attempts ---------------------------------------------------------------------------------------------


class TaskMoved(NamedTuple):
    """A task moved from one state to another."""

    set: TaskColumns = NO_TASK_COLUMNS
    attempt_set: AttemptColumns = NO_ATTEMPT_COLUMNS
    explain: Text = None  # the failure in a few words
    why: Text = None  # the rule that decided
    changed: Names = ()  # circumstances that differ from the last failure of this kind
    due_at: Number = None  # the deadline of the run that shortened the wait, microseconds UTC
    waits_for: Text = None  # the parent that runs again
    act: Text = None  # the operator's act that moved the task


class TaskChanged(NamedTuple):
    """Columns of a task changed, but not its state."""

    set: TaskColumns
    why: Text = None
    act: Text = None


class TaskMapped(NamedTuple):
    """A map task got a child for each element of a list. Its spec says what the children are."""

    size: int  # elements of the list
    added: Numbers = ()  # the elements whose children it waits for from now on
    removed: Numbers = ()  # elements that an earlier list had: it does not wait for their children any more


class AttemptStarted(NamedTuple):
    """The process of an attempt exists."""

    attempt_set: AttemptColumns


class AttemptEffect(NamedTuple):
    """The effect of the attempt may happen from now on; written to disk before the task continues."""

    key: str


class AttemptExtended(NamedTuple):
    """An operator gave the attempt more time before its timeout."""

    seconds: float
    attempt_set: AttemptColumns


class AttemptDeadline(NamedTuple):
    """The timeout passed. ``timeout``: seconds."""

    timeout: Real = None


class AttemptStack(NamedTuple):
    """The place of the hang and its kind; the row of the attempt has the whole stack."""

    where: Text = None
    hang: Text = None
    kernel: Text = None


class AttemptSigterm(NamedTuple):
    """SIGTERM was sent."""

    reason: str
    grace_seconds: Real = None


class AttemptSigkill(NamedTuple):
    """SIGKILL was sent to ``pids``."""

    reason: str
    pids: Numbers = ()


class AttemptSwept(NamedTuple):
    """Processes outside the group of the attempt were killed; ``survivors`` could not be killed."""

    pids: Numbers = ()
    survivors: Numbers = ()


class AttemptLate(NamedTuple):
    """An outcome arrived after the task had moved on; the task did not change."""

    attempt_set: AttemptColumns


class AttemptLeaked(NamedTuple):
    """A thread ignored its cancel token and still occupies its slot."""

    reason: str


class AttemptSilent(NamedTuple):
    """The heartbeats stopped, but the process lives: ``process`` is its state."""

    pid: Number
    start_ticks: Number
    process: Text
    silent_seconds: Real


class AttemptReclaimed(NamedTuple):
    """The attempt was taken from its task because its process is gone: the evidence."""

    pid: Number
    start_ticks: Number
    process: Text
    silent_seconds: Real
    executor_id: Text = None


class AttemptRetry(NamedTuple):
    """The task's own code retried ``function`` inside the attempt."""

    try_number: Number = None
    function: Text = None
    error_type: Text = None
    message: Text = None
    delay_seconds: Real = None
    elapsed_seconds: Real = None
    untold: int = 0  # retries left out since the previous event


class AttemptProgress(NamedTuple):
    """Progress of an attempt that the board does not show."""

    done: Number = None


# --- Runs, executors, breakers, pages -------------------------------------------------------------------------------


class RunChanged(NamedTuple):
    """A run was created, moved, or changed; ``what`` is one of RunChange."""

    what: str
    set: RunColumns = NO_RUN_COLUMNS
    tasks: Number = None  # CREATED: how many
    added: Names = ()  # FLOW_CHANGED: tasks; CODE_LOADED: tasks that the next executor adds
    changed: Names = ()
    params_added: Values = NO_VALUES  # PARAMS: by name
    params_changed: Pairs = NO_PAIRS
    params_removed: Values = NO_VALUES
    removed: Names = ()  # FLOW_CHANGED: tasks that are gone; their results stay inputs
    skipped: Names = ()  # FLOW_CHANGED: unfinished tasks that are gone
    outdated: Names = ()  # FLOW_CHANGED: finished tasks with another definition now
    files: Names = ()  # CODE_CHANGED, CODE_LOADED, CODE_REFUSED: paths below the folder of the flow
    why: Text = None  # CUT_OFF, CODE_REFUSED, FLOW_REFUSED, DEADLINE, POSTPONED, ENDED; BLOCKED: who holds tasks


class ExecutorChanged(NamedTuple):
    """An executor or its processes changed; ``what`` is one of ExecutorChange."""

    what: str
    executor_id: Text = None
    pid: Number = None
    host: Text = None
    warnings: Names = ()  # STARTED: doubts about the import of the flow
    printed: Text = None  # output of that import, or of the process that died
    how: Text = None  # ZYGOTE_DIED: exit code or signal; WORKER_RETIRED: which task left what
    leaked: Names = ()  # THREADS_KILLED: tasks that ignored the cancel token
    lost: Names = ()  # THREADS_KILLED: other tasks of the same process


class BreakerChanged(NamedTuple):
    """The breaker of a downstream changed its state. Instants are microseconds UTC."""

    downstream: str
    state: str
    since: Number = None
    reopens_at: Number = None
    why: Text = None
    calls: Number = None
    failures: Number = None
    tokens: Real = None


class PageChanged(NamedTuple):
    """A page changed; ``what`` is one of PageChange."""

    what: str
    id: Number = None
    cause: Text = None
    episode: Number = None
    occurrences: Number = None  # failures of its cause so far
    title: Text = None
    severity: Text = None
    fingerprint: Text = None
    page: PageColumns = NO_PAGE_COLUMNS
    how: Text = None  # SENT: "page" or "digest"
    why: Text = None  # OPENED, the first page of a run: why nobody is paged
    sender: Text = None  # SEND_FAILED
    error: Text = None  # SEND_FAILED, UNSENT
    tries: Number = None


class RowsChanged(NamedTuple):
    """Quarantined rows of a task changed; ``what`` is one of RowsChange."""

    what: str
    rows: Number = None  # how many
    resolved: Number = None  # HELD: requeued rows that succeeded
    row_key: Text = None  # PROVISIONAL: of the latest
    error: Text = None


class NoteWritten(NamedTuple):
    """An operator wrote a note on a cause; with ``downstream`` None, for every downstream."""

    fingerprint: str
    downstream: Text
    text: str
    flow: Text = None  # its run may be deleted


class ScheduleChanged(NamedTuple):
    """The schedule of ``flow`` changed, or a run is missing or late; ``what`` is one of ScheduleChange."""

    what: str
    flow: str = ""
    expression: Text = None
    timezone: Text = None
    runs: Number = None  # MISSED, LATE_START: how many
    is_all: Flag = None  # MISSED: whether ``runs`` counts all missed runs
    first: Text = None  # logical times by the clocks of the zone, ISO 8601
    last: Text = None
    misfire: Text = None
    due_at: Number = None  # microseconds UTC


class CanaryEnded(NamedTuple):
    """A canary has ended; ``tasks`` are its followers. ``what`` is one of CanaryEnd."""

    what: str
    tasks: Names = ()


class StorageChanged(NamedTuple):
    """The state file or its lock changed; ``what`` is one of StorageChange."""

    what: str
    sentence: str = ""


class ClockMoved(NamedTuple):
    """The wall clock jumped; the instants of ``tasks`` tasks were moved with it."""

    moved_us: int
    tasks: Number = None


class OperatorActed(NamedTuple):
    """An operator's act with its answer and the state before; or a notice, whose ``what`` is one of OperatorNotice."""

    act: Text = None
    options: Values = NO_VALUES
    answer: AnswerFields = NO_ANSWER
    probes: Names = ()  # downstreams to probe with one call
    was: Before = NO_TASKS
    was_run: Rows = ()
    was_rows: Rows = ()
    notes: Names = ()  # what the operator should know of its consequences
    what: Text = None
    present: Names = ()  # who is attached
    downstream: Text = None  # BREAKER
    how: Text = None


class UnknownPayload(NamedTuple):
    """The payload of an unknown kind, from a later version. ``data``: the JSON object in the file."""

    what: Text = None
    set: TaskColumns = NO_TASK_COLUMNS
    attempt_set: AttemptColumns = NO_ATTEMPT_COLUMNS
    data: Values = NO_VALUES


Payload = Union[
    TaskMoved,
    TaskChanged,
    TaskMapped,
    AttemptStarted,
    AttemptEffect,
    AttemptExtended,
    AttemptDeadline,
    AttemptStack,
    AttemptSigterm,
    AttemptSigkill,
    AttemptSwept,
    AttemptLate,
    AttemptLeaked,
    AttemptSilent,
    AttemptReclaimed,
    AttemptRetry,
    AttemptProgress,
    RunChanged,
    ExecutorChanged,
    BreakerChanged,
    PageChanged,
    RowsChanged,
    NoteWritten,
    ScheduleChanged,
    CanaryEnded,
    StorageChanged,
    ClockMoved,
    OperatorActed,
    UnknownPayload,
]
