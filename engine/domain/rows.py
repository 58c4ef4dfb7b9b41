"""Rows of the state file of which rules of ``core`` and lists of ``statefile`` both speak: one form for both sides.

Columns as ``store/schema.sql`` explains them, with parsed JSON; instants in microseconds UTC. Carried over ssh to old
interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from .events import JsonObject


class BreakerRow(NamedTuple):
    """A row of table ``breaker``. ``opened_at``: since when calls are held, whatever probes have found."""

    downstream: str
    state: str
    reopens_at: Optional[int]
    window: Sequence[Sequence[int]]
    tokens: Optional[float]
    detail: JsonObject
    changed_at: int
    opened_at: Optional[int] = None

    @property
    def since(self) -> int:
        """The instant since which calls are held; else that of its last change of state."""
        return self.opened_at or self.changed_at


class PageRow(NamedTuple):
    """A row of table ``page``, with parsed JSON; ``counted`` is the column ``count``; PAGE_HEADS has no ``body``."""

    id: int
    cause: str
    episode: int
    run_id: Optional[str]
    task: Optional[str]
    severity: str
    title: str
    body: JsonObject
    counted: int
    sent_count: int
    state: str
    rearmed: int
    created_at: int
    updated_at: int
    sent_at: Optional[int]
    send_error: Optional[str]
    snoozed_until: Optional[int]
    acked_by: Optional[str]
    told_by: Optional[str] = None

    @property
    def needs_human(self) -> bool:
        """Whether no operator has acknowledged it."""
        return self.state == "open"

    @property
    def is_idle(self) -> bool:
        return self.state == "resolved"

    @property
    def is_unsent(self) -> bool:
        """Whether a sender has refused its latest message."""
        return self.state == "open" and self.send_error is not None

    @property
    def refusing_sender(self) -> Optional[str]:
        """The sender that has refused its latest message; its name stands before its error."""
        return None if self.send_error is None else self.send_error.partition(":")[0]

    @property
    def key(self) -> str:
        """The name of the page for its receivers."""
        return f"{self.cause}/{self.episode}"


class ExecutorState(NamedTuple):
    """The executor of a state file, as its lock shows it. Instants in microseconds UTC.

    Attributes:
        alive: it owns the file and lives, perhaps without a sign of life.
        age_us: since its last sign of life.
        silent_since: when a living one gave its last sign of life, once that is late.
        gone_at: when it was last alive; None while it lives, or if there was none.
        run_id: its current or last run.
        stopped: it ended in order.
        is_unseen: nobody knows here whether it lives: it ran on another host, or as a user whose lock is hidden.
        host: where it ran, if that is another host.
        original: of a copy, the file where the run has ended, or goes on by the executor with this ``pid``.
    """

    alive: bool = False
    age_us: Optional[int] = None
    gone_at: Optional[int] = None
    pid: Optional[int] = None
    run_id: Optional[str] = None
    stopped: bool = False
    is_unseen: bool = False
    host: Optional[str] = None
    original: Optional[str] = None
    silent_since: Optional[int] = None

    @property
    def may_live(self) -> bool:
        """Whether it lives, perhaps beside the file of which this one is a copy, or nobody can know."""
        return self.alive or self.is_unseen or self.original is not None

    @property
    def copy_sentence(self) -> str:
        """One sentence: the file is a copy of one where the run goes on, or has ended; empty if it is no copy."""
        if self.original is None:
            return ""
        owner = "where the run has ended" if self.pid is None else f"whose executor (pid {self.pid}) lives"
        return f"a copy of {self.original}, {owner}"

    @property
    def place(self) -> str:
        """The place of one that is out of sight, to follow its name."""
        return ", which another user runs," if self.host is None else f" on {self.host}"

    @property
    def silent_seconds(self) -> float:
        """The seconds since the last sign of life of a living one; 0 without one."""
        return (self.age_us or 0) / 1e6 if self.alive else 0.0


NO_EXECUTOR = ExecutorState()


class FailingSender(NamedTuple):
    """A sender of pages that fails. ``since``: the first failure since its last success, in microseconds UTC."""

    sender: str
    error: str
    since: int


class Health(NamedTuple):
    """The problems of an executor, as it knows them. Instants are microseconds UTC. Long texts and lists are cut.

    Attributes:
        storage_since: since when the state file cannot be written; None: it can be.
        storage_why: why, in one sentence.
        ended: task -> when its attempt ended, while that waits in memory.
        inodes: of the path of the state file that it has open, as of ``health_file.inodes_of``; empty: unknown.
        log_inodes: the same of the write-ahead log of that file.
    """

    executor_id: str = ""
    storage_since: Optional[int] = None
    storage_why: str = ""
    ended: Mapping[str, int] = {}
    senders: Sequence[FailingSender] = ()
    inodes: str = ""
    log_inodes: str = ""


NO_HEALTH = Health()


class RunRow(NamedTuple):
    """A row of table ``run``.

    Attributes:
        state: the value of a RunState.
        paused_by: with the reason, if one was given.
        deadline_passed_at: when the deadline has begun to end the run.
        deadline_is_time: 1: a time of day: a step of the clock does not move it.
        abandoned_at: when an operator has ended the run, whose clean-ups still run.
        code_changed: source files that changed after the executor loaded them, for people.
        pool_waits: JSON: a PoolWaits of ``core/waiting.py``.
        python_path: PYTHONPATH of the start.
        logical_time: the instant of the schedule that the run is for.
        acknowledged_at: when an operator took note of how it ended.
        waited_us: how long it was blocked, or ended and reopened: nobody worked; and how far the clock was moved since
            its start.
    """

    run_id: str
    dag_name: str = ""
    started_at: int = 0
    ended_at: Optional[int] = None
    state: str = "RUNNING"
    blocked_since: Optional[int] = None
    paused_since: Optional[int] = None
    paused_by: Optional[str] = None
    deadline_at: Optional[int] = None
    deadline_passed_at: Optional[int] = None
    deadline_is_time: int = 0
    abandoned_at: Optional[int] = None
    max_parallel: int = 4
    flow_path: Optional[str] = None
    params: str = "{}"
    options: str = "{}"
    code_hash: Optional[str] = None
    code_changed: Optional[str] = None
    pool_waits: Optional[str] = None
    python_path: Optional[str] = None
    logical_time: Optional[int] = None
    acknowledged_at: Optional[int] = None
    acknowledged_by: Optional[str] = None
    waited_us: int = 0

    def with_columns(self, columns: Mapping[str, Any]) -> "RunRow":
        """The row with new values of columns; a later version may have more of them."""
        return self._replace(**{name: value for name, value in columns.items() if name in self._fields})

    @property
    def is_over(self) -> bool:
        """Whether no ordinary task starts any more; clean-ups may."""
        return self.deadline_passed_at is not None or self.abandoned_at is not None


class RunSummary(NamedTuple):
    """A run of a file. ``counts``: tasks by state; ``asked``: the number of READY ones that wait for an approval."""

    run: RunRow
    counts: Dict[str, int]
    asked: int = 0

    @property
    def dead_letters(self) -> int:
        return self.counts.get("DEAD_LETTER", 0)


class RunFacts(NamedTuple):
    """A run of a state file, and what lists know of it without its tasks.

    Attributes:
        failed: a FAILED task; ``error``: its error.
        later_successes: of its flow since its start, up to a bound. 0 for an unfinished run.
        working: how many tasks of an unfinished run are running or about to; ``waiting``: for an instant or a task.
        failed_tasks: how many are FAILED, or were ended by the deadline; ``asked``: how many wait for an approval.
        undecided: 0 of a PARTIAL run if an operator has decided about all that makes it so: it has skipped tasks.
        waited_us: how long it was blocked, or ended and reopened: nobody worked; and how far the clock was moved since
            its start.
        paused_by: with the reason, if one was given.
        succeeded_at: when the latest successful run of its flow ended, where that is asked for.
    """

    run_id: str
    dag_name: str
    started_at: int
    ended_at: Optional[int] = None
    state: str = "RUNNING"
    blocked_since: Optional[int] = None
    paused_since: Optional[int] = None
    deadline_at: Optional[int] = None
    dead_letters: int = 0
    failed: Optional[str] = None
    error: Optional[str] = None
    later_successes: int = 0
    working: int = 0
    waiting: int = 0
    failed_tasks: int = 0
    asked: int = 0
    undecided: int = 1
    waited_us: int = 0
    logical_time: Optional[int] = None
    paused_by: Optional[str] = None
    succeeded_at: Optional[int] = None
