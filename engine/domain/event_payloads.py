"""The payloads of events: one frozen type per kind.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``set`` has exactly the changed columns of the task or the run with their new values; ``attempt_set`` has those of the
attempt. The JSON keys of an event are the names of these fields (``event_codec.py`` lists the few that differ); fields
without a value are left out.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

# --- Names for the field ``what`` of payloads: what changed ----------------------------------------------------------


class RunChange(object):
    """Names for ``RunChanged.what``."""

    CREATED = "created"
    OPENED = "opened"
    ENDED = "ended"
    CUT_OFF = "cut-off"
    REOPENED = "reopened"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    PAUSED = "paused"
    UNPAUSED = "unpaused"
    DEADLINE = "deadline"  # it has passed and ends the run
    ABANDONED = "abandoned"  # an operator has ended it; its clean-ups run
    POSTPONED = "postponed"  # the run has another deadline, or none
    ACKNOWLEDGED = "acknowledged"  # an operator took note of its end, or takes that back
    CLOCK = "clock"
    PARAMS = "params"
    OPTIONS = "options"
    FLOW_CHANGED = "flow-changed"  # at the start of an executor
    FLOW_REFUSED = "flow-refused"  # the run is not resumed: an operator must accept the changed flow
    POOL_WAITS = "pool-waits"  # the pools of the machine, and of Dask workers, that tasks wait for
    CODE_CHANGED = "code-changed"  # on the disk: the executor still uses the code that it loaded
    CODE_LOADED = "code-loaded"  # by a living executor
    CODE_REFUSED = "code-refused"  # it could not be loaded: the old code stays in use


class ExecutorChange(object):
    """Names for ``ExecutorChanged.what``."""

    STARTED = "started"
    STOPPED = "stopped"
    LOST = "lost"
    ZYGOTE_DIED = "zygote-died"
    THREADS_KILLED = "threads-killed"
    WORKER_RETIRED = "worker-retired"
    PING_FAILED = "ping-failed"
    CLUSTER_CHANGED = "cluster-changed"


class PageChange(object):
    """Names for ``PageChanged.what``."""

    OPENED = "opened"
    FOLDED = "folded"
    WOKEN = "woken"
    SENT = "sent"
    SEND_FAILED = "send-failed"
    UNSENT = "unsent"  # the executor ended before a sender took it
    BELL = "bell"
    ACKED = "acked"
    SNOOZED = "snoozed"
    REARMED = "rearmed"
    RESOLVED = "resolved"
    REOPENED = "reopened"  # what has resolved or re-armed it was undone


class RowsChange(object):
    """Names for ``RowsChanged.what``."""

    PROVISIONAL = "provisional"
    HELD = "held"
    REQUEUED = "requeued"
    DROPPED = "dropped"  # the attempt that set them aside failed; the next one reads them again
    DISCARDED = "discarded"  # by an operator
    PUT_BACK = "put back"


class ScheduleChange(object):
    """Names for ``ScheduleChanged.what``."""

    BEGUN = "begun"
    CHANGED = "changed"
    MISSED = "missed"
    LATE_START = "late-start"
    LATE_END = "late-end"
    TAKEN_BACK = "taken-back"


class CanaryEnd(object):
    """Names for ``CanaryEnded.what``."""

    RELEASED = "released"
    NOT_FIXED = "not-fixed"
    FAILED = "failed"


class StorageChange(object):
    """Names for ``StorageChanged.what``."""

    DEGRADED = "degraded"
    RECOVERED = "recovered"
    LOCK = "lock"


class OperatorNotice(object):
    """Names for ``OperatorActed.what``; an act with an answer has an ``act`` instead."""

    BREAKER = "breaker"


# --- The columns that events carry: the keys of the mappings ``set`` and ``attempt_set`` of payloads -----------------


#: Columns that change, each with its new value, by the names in ``store/schema.sql``.
TaskColumns = Dict[str, Any]
AttemptColumns = Dict[str, Any]  # without the long texts and the identity of processes
RunColumns = Dict[str, Any]
PageColumns = Dict[str, Any]
#: The answer to an operator's act: ``ok``, ``message``, and ``results``: [task, outcome, sentence] of each target.
AnswerFields = Dict[str, Any]


# --- Payloads --------------------------------------------------------------------------------------------------------


Text = Optional[str]
OptionalInt = Optional[int]
Real = Optional[float]
Flag = Optional[bool]
NameList = Sequence[str]
Numbers = Sequence[int]
Values = Dict[str, object]  # parameters of a flow, options of an act: JSON that the engine only passes on
Pairs = Dict[str, Sequence[object]]  # parameter -> [old value, new value]
Before = Dict[str, TaskColumns]  # task -> state, generation and changed columns before an act
RowLists = Sequence[
    List[Any]
]  # before an act: [what, columns(, run)] of a run, [task, state, generation, spans] of rows

#: Default of payloads; never modified.
EMPTY: Dict[str, Any] = {}


# --- Tasks and attempts ---------------------------------------------------------------------------------------------


class TaskMoved(NamedTuple):
    """A task moved from one state to another."""

    set: TaskColumns = EMPTY
    attempt_set: AttemptColumns = EMPTY
    explain: Text = None  # the failure in a few words
    why: Text = None  # the rule that decided
    changed: NameList = ()  # circumstances that differ from the last failure of this kind
    due_at: OptionalInt = None  # the deadline of the run that shortened the wait, microseconds UTC
    act: Text = None  # the operator's act that moved the task


class TaskChanged(NamedTuple):
    """Columns of a task changed, but not its state."""

    set: TaskColumns
    why: Text = None
    act: Text = None
    attempt_set: AttemptColumns = EMPTY


class TaskMapped(NamedTuple):
    """A map task got a child for each element of a list. Its spec says what the children are."""

    size: int  # elements of the list
    names: NameList = ()  # the children, in the order of the list
    came: NameList = ()  # of these, the ones that it waits for from now on
    gone: NameList = ()  # it does not wait for these any more: the list has no such element
    why: Text = None  # no child starts yet


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

    pid: OptionalInt
    start_ticks: OptionalInt
    process: Text
    silent_seconds: Real


class AttemptReclaimed(NamedTuple):
    """The attempt was taken from its task because its process is gone: the evidence."""

    pid: OptionalInt
    start_ticks: OptionalInt
    process: Text
    silent_seconds: Real
    executor_id: Text = None


class AttemptRetry(NamedTuple):
    """The task's own code retried ``function`` inside the attempt."""

    try_number: OptionalInt = None
    function: Text = None
    error_type: Text = None
    message: Text = None
    delay_seconds: Real = None
    elapsed_seconds: Real = None
    untold: int = 0  # retries left out since the previous event


# --- Runs, executors, breakers, pages -------------------------------------------------------------------------------


class RunChanged(NamedTuple):
    """A run was created, moved, or changed; ``what`` is one of RunChange."""

    what: str
    set: RunColumns = EMPTY
    tasks: OptionalInt = None  # CREATED: how many
    added: NameList = ()  # FLOW_CHANGED: tasks; CODE_LOADED: tasks that the next executor adds
    changed: NameList = ()
    params_added: Values = EMPTY  # PARAMS: by name
    params_changed: Pairs = EMPTY
    params_removed: Values = EMPTY
    removed: NameList = ()  # FLOW_CHANGED: tasks that are gone; their results stay inputs
    skipped: NameList = ()  # FLOW_CHANGED: unfinished tasks that are gone
    outdated: NameList = ()  # FLOW_CHANGED: finished tasks with another definition now
    files: NameList = ()  # CODE_CHANGED, CODE_LOADED, CODE_REFUSED: paths below the folder of the flow
    why: Text = None  # CUT_OFF, CODE_REFUSED, FLOW_REFUSED, DEADLINE, POSTPONED, ENDED; BLOCKED: what waits for a human
    asked: NameList = ()  # BLOCKED: tasks that wait for an approval


class ExecutorChanged(NamedTuple):
    """An executor or its processes changed; ``what`` is one of ExecutorChange."""

    what: str
    executor_id: Text = None
    pid: OptionalInt = None
    host: Text = None
    warnings: NameList = ()  # STARTED: doubts about the import of the flow
    printed: Text = None  # output of that import, or of the process that died
    how: Text = None  # ZYGOTE_DIED: exit code or signal; WORKER_RETIRED: which task left what; CLUSTER_CHANGED: what
    leaked: NameList = ()  # THREADS_KILLED: tasks that ignored the cancel token
    lost: NameList = ()  # THREADS_KILLED: other tasks of the same process


class BreakerChanged(NamedTuple):
    """The breaker of a downstream changed its state. Instants are microseconds UTC."""

    downstream: str
    state: str
    since: OptionalInt = None
    reopens_at: OptionalInt = None
    why: Text = None
    calls: OptionalInt = None
    failures: OptionalInt = None
    tokens: Real = None


class PageChanged(NamedTuple):
    """A page changed; ``what`` is one of PageChange."""

    what: str
    id: OptionalInt = None
    cause: Text = None
    episode: OptionalInt = None
    occurrences: OptionalInt = None  # failures of its cause so far
    title: Text = None
    severity: Text = None
    fingerprint: Text = None
    page: PageColumns = EMPTY
    how: Text = None  # SENT: "page", "digest", "reminder", or "past": before it could be written
    why: Text = None  # OPENED, the first page of a run: why nobody is paged
    sender: Text = None  # SEND_FAILED
    error: Text = None  # SEND_FAILED, UNSENT
    tries: OptionalInt = None


class RowsChanged(NamedTuple):
    """Quarantined rows of a task changed; ``what`` is one of RowsChange."""

    what: str
    rows: OptionalInt = None  # how many
    resolved: OptionalInt = None  # HELD: requeued rows that succeeded
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
    runs: OptionalInt = None  # MISSED, LATE_START: how many; TAKEN_BACK: how many have run ahead of the clock
    is_all: Flag = None  # MISSED: whether ``runs`` counts all missed runs
    first: Text = None  # logical times by the clocks of the zone, ISO 8601
    last: Text = None
    misfire: Text = None  # MISSED: why; None: an operator skips the run
    due_at: OptionalInt = None  # microseconds UTC


class CanaryEnded(NamedTuple):
    """A canary has ended; ``tasks`` are its followers. ``what`` is one of CanaryEnd."""

    what: str
    tasks: NameList = ()


class StorageChanged(NamedTuple):
    """The state file or its lock changed; ``what`` is one of StorageChange."""

    what: str
    sentence: str = ""


class ClockMoved(NamedTuple):
    """The wall clock jumped; the instants of ``tasks`` tasks were moved with it."""

    moved_us: int
    tasks: OptionalInt = None


class OperatorActed(NamedTuple):
    """An operator's act with its answer and the state before; or a notice, whose ``what`` is one of OperatorNotice."""

    act: Text = None
    options: Values = EMPTY
    answer: AnswerFields = EMPTY
    probes: NameList = ()  # downstreams to probe with one call
    was: Before = EMPTY
    was_run: RowLists = ()
    was_rows: RowLists = ()
    was_pages: RowLists = ()
    notes: NameList = ()  # what the operator should know of its consequences
    what: Text = None
    downstream: Text = None  # BREAKER
    how: Text = None


class UnknownPayload(NamedTuple):
    """The payload of an unknown kind, from a later version. ``data``: the JSON object in the file."""

    what: Text = None
    set: TaskColumns = EMPTY
    attempt_set: AttemptColumns = EMPTY
    data: Values = EMPTY


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
