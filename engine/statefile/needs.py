"""The needs of a human on a machine: the one rule, over facts about every state file and every schedule.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``state_files.py`` reads the facts of a file. Every place that says that something needs a human, or that nothing does,
reads this rule: the commands ``inbox``, ``fleet`` and ``runs``, the header and the inbox of the console, exit codes.
"""

from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from ..domain.breakers import HOLDING_BREAKERS
from ..domain.rows import NO_EXECUTOR, ExecutorState, Health, RunFacts
from ..domain.states import RunState, describe_passed
from .lists import NeedKind, NeedRow
from .state_files import FileRow
from .supervisor_file import ServedSchedule, heartbeat_age_us, skips_next

START_GRACE_US = 60000000  # that a due start may be late
BREAKER_GRACE_US = 600000000  # that a breaker may be open


class Need(NamedTuple):
    """A thing that needs a human. Instants in microseconds UTC.

    Attributes:
        is_notice: it is listed until somebody has acknowledged it, but nothing waits for it.
        path: of the state file; of another host its address.
        since: when it began; of a schedule that nobody serves, when its next start is due, or was; 0: of a flow after
            others, which has no due time of its own.
        counted: dead letters, failed tasks, approvals, rows, starts; else 1.
        subject: the first task, a downstream, the flow that is waited for, or who asked.
        error: of the subject, or why, as the file has it.
        is_missed: of starts: they were given up, and an operator can start or dismiss them.
        later_successes: of the flow, after an ended run.
        fingerprint: of the cause of dead letters.
        executor: of a run that nobody executes, the latest one.
    """

    kind: NeedKind
    path: str
    since: int
    flow: Optional[str] = None
    run_id: Optional[str] = None
    is_notice: bool = False
    counted: int = 1
    subject: str = ""
    error: str = ""
    is_missed: bool = False
    later_successes: int = 0
    fingerprint: Optional[str] = None
    executor: ExecutorState = NO_EXECUTOR


#: What can be acknowledged, and what the tasks of one run explain.
ENDS = frozenset([NeedKind.FAILED, NeedKind.PARTIAL, NeedKind.LATE])
OF_TASKS = frozenset([NeedKind.DEAD_LETTERS, NeedKind.APPROVAL, NeedKind.FAILED_TASKS])
OF_RUNS = ENDS | OF_TASKS | frozenset([NeedKind.BLOCKED, NeedKind.LOST])
#: What needs no look into a state file, which may not exist.
OF_SCHEDULES = frozenset(
    [
        NeedKind.SCHEDULER_DEAD,
        NeedKind.FAILED_START,
        NeedKind.ASKED_START,
        NeedKind.STUCK,
        NeedKind.WARNING,
        NeedKind.AFTER,
        NeedKind.NOT_STARTED,
        NeedKind.UNREADABLE,
        NeedKind.UNREACHABLE,
    ]
)
_ENDS: Dict[str, NeedKind] = {RunState.FAILED: NeedKind.FAILED, RunState.PARTIAL: NeedKind.PARTIAL}
_RANKS: Dict[NeedKind, int] = {kind: rank for rank, kind in enumerate(NeedKind)}


def needs_of(files: Iterable[FileRow], now_us: int) -> List[Need]:
    """The needs of these files and of their schedules: notices last, then by kind, the oldest first.

    ``now_us``: of the reader; each file is read by the clock of its host.
    """
    return sorted(
        (need for file_row in files for need in _needs_of_file(file_row, now_us + file_row.clock_offset_us)), key=_order
    )


def _order(need: Need) -> "tuple[bool, int, int]":
    return need.is_notice, _RANKS[need.kind], need.since


def _needs_of_file(file_row: FileRow, now_us: int) -> Iterator[Need]:
    of_schedules = list(_needs_of_schedules(file_row, now_us))
    if not file_row.has_file:
        yield from of_schedules
        if not file_row.supervised and file_row.problem is not None:
            yield Need(NeedKind.UNREACHABLE, file_row.path, 0, error=file_row.problem)
        return
    yield from _needs_of_storage(file_row)
    if file_row.problem is not None:
        if file_row.health is None or file_row.health.storage_since is None:  # else its executor says why
            yield Need(NeedKind.UNREADABLE, file_row.path, 0, error=file_row.problem)
        return
    executor = file_row.executor or NO_EXECUTOR
    for run in file_row.runs:
        groups = [one for one in file_row.rows_of(NeedKind.DEAD_LETTERS) if one.run_id == run.run_id]
        for need in needs_of_run(run, now_us, lost_executor(run.run_id, executor, file_row.service_pid), groups):
            if need.kind is not NeedKind.APPROVAL:  # the file names each
                yield need._replace(path=file_row.path)
    yield from (_need_of_row(file_row, row) for row in file_row.listed if row.kind in _LISTED)
    yield from _needs_of_breakers(file_row, now_us)
    yield from of_schedules


def _needs_of_storage(file_row: FileRow) -> Iterator[Need]:
    """Needs of the storage, which the file itself may lack: the executor or the disk names them. And pages that no
    sender has taken."""
    health = file_row.health
    if health is not None and health.storage_since is not None:
        run_id = None if file_row.executor is None else file_row.executor.run_id
        yield need_of_storage(health, file_row.path, file_row.dag_name, run_id)
    elif file_row.full_since is not None:
        yield Need(NeedKind.STORAGE, file_row.path, file_row.full_since, file_row.dag_name, error="the disk is full")
    unsent = file_row.rows_of(NeedKind.PAGER)
    yield from (_need_of_row(file_row, pages) for pages in unsent)
    if not unsent and health is not None:  # a page that a full disk keeps out of the file
        for one in health.senders[:1]:
            error = f"{one.sender}: {one.error}"
            yield Need(NeedKind.PAGER, file_row.path, one.since, file_row.dag_name, error=error)


def need_of_storage(health: Health, path: str, flow: Optional[str], run_id: Optional[str]) -> Need:
    """The need of an executor that cannot write its state file."""
    return Need(NeedKind.STORAGE, path, health.storage_since or 0, flow, run_id, error=health.storage_why)


def needs_of_run(
    run: RunFacts, now_us: int, lost: Optional[ExecutorState], groups: Sequence[NeedRow] = ()
) -> List[Need]:
    """The needs of a run, the most urgent first. ``lost``: of ``lost_executor``; ``groups``: its dead letters by cause,
    if they are known.

    A FAILED task needs a human from its failure on: the run may go on for hours without it. At the end it is a part of
    the end of the run.
    """
    need = Need(NeedKind.FAILED, "", run.started_at, run.dag_name, run.run_id, later_successes=run.later_successes)
    found = []
    if run.dead_letters:
        dead = need._replace(kind=NeedKind.DEAD_LETTERS, counted=run.dead_letters)
        found += [
            dead._replace(
                since=one.since or run.started_at,
                counted=one.counted,
                subject=one.task,
                error=one.error,
                fingerprint=one.fingerprint,
            )
            for one in groups
        ] or [dead]
    if run.asked:
        found.append(need._replace(kind=NeedKind.APPROVAL, counted=run.asked))
    failed = need._replace(subject=run.failed or "", error=run.error or "")
    if run.failed is None and run.failed_tasks and run.deadline_at is not None:
        failed = need._replace(error=describe_passed(run.deadline_at))
    if run.ended_at is not None and not run.dead_letters:
        if run.state == RunState.PARTIAL and not run.undecided:
            return []
        kind = _ENDS.get(run.state, NeedKind.LATE)
        is_notice = run.later_successes > 0 or kind is NeedKind.LATE
        count = max(run.failed_tasks, 1)
        return [failed._replace(kind=kind, since=run.ended_at, is_notice=is_notice, counted=count)]
    own = _need_of_whole(run, now_us, lost)
    if own is not None:
        found.append(own)
    if run.failed_tasks:
        found.append(failed._replace(kind=NeedKind.FAILED_TASKS, counted=run.failed_tasks))
    return found


def _need_of_whole(run: RunFacts, now_us: int, lost: Optional[ExecutorState]) -> Optional[Need]:
    """The need of an unfinished run beside those of its tasks: an executor, more time, or the end of what blocks it."""
    need = Need(NeedKind.LOST, "", run.started_at, run.dag_name, run.run_id)
    if run.dead_letters:
        return None
    if run.blocked_since is not None:
        return None if run.asked else need._replace(kind=NeedKind.BLOCKED, since=run.blocked_since)
    if lost is not None:
        return need._replace(executor=lost)
    if run.deadline_at is not None and run.deadline_at < now_us:
        return need._replace(kind=NeedKind.LATE, since=run.deadline_at)
    return None


def lost_executor(run_id: str, executor: ExecutorState, service_pid: Optional[int]) -> Optional[ExecutorState]:
    """Return the latest executor, without its age, if nobody executes a run; None: a process does, or starts one."""
    is_executed = (executor.alive and executor.run_id in (None, run_id)) or service_pid is not None
    is_silent = executor.silent_since is not None  # it holds the file: nobody else starts one
    return executor._replace(age_us=None) if is_silent or not is_executed else None


#: Held rows, which a task could do without, and what has changed below an effect, are notices.
_NOTICES = (NeedKind.HELD_ROWS, NeedKind.CHANGED_EFFECTS)
_LISTED = frozenset(kind.value for kind in (NeedKind.APPROVAL, *_NOTICES))


def _need_of_row(file_row: FileRow, row: NeedRow) -> Need:
    kind, flow, run_id = NeedKind(row.kind), row.flow or file_row.dag_name, row.run_id or None
    is_notice = kind in _NOTICES
    return Need(kind, file_row.path, row.since or 0, flow, run_id, is_notice, row.counted, row.task, row.error)


def _needs_of_breakers(file_row: FileRow, now_us: int) -> Iterator[Need]:
    """Breakers that do not close by themselves."""
    goes_on = any(run.ended_at is None for run in file_row.runs)
    for breaker in file_row.breakers:
        is_holding = breaker.state in HOLDING_BREAKERS or (breaker.state == "CLOSED" and goes_on)
        if is_holding and now_us - breaker.since >= BREAKER_GRACE_US:
            is_ours = breaker.state == "FORCED_OPEN"  # an operator holds it open
            name = breaker.downstream
            yield Need(NeedKind.BREAKER, file_row.path, breaker.since, file_row.dag_name, None, is_ours, subject=name)


def _needs_of_schedules(file_row: FileRow, now_us: int) -> List[Need]:
    """The needs of schedules: a supervisor's knowledge of one replaces that of the state file.

    But the lock that a killed process has left is known before its heartbeat is missed.
    """
    of_file = list(_needs_by_file(file_row, now_us))
    if not file_row.supervised:
        return of_file
    dead = [need for need in of_file if need.kind is NeedKind.SCHEDULER_DEAD and file_row.has_lost_service]
    found = [
        need._replace(path=file_row.path) for row in file_row.supervised for need in _needs_by_supervisor(row, now_us)
    ]
    return dead + [need for need in found if need.kind is not NeedKind.SCHEDULER_DEAD or not dead]


def _needs_by_file(file_row: FileRow, now_us: int) -> Iterator[Need]:
    """Schedules that nobody serves, and starts that are due or were missed since the latest run."""
    missed = {one.flow: one for one in file_row.rows_of(NeedKind.NOT_STARTED)}
    busy = {run.dag_name for run in file_row.runs if run.ended_at is None}
    for row in file_row.schedules:
        is_due = row.next_at is not None and row.next_at < now_us - START_GRACE_US and row.dag_name not in busy
        need = Need(NeedKind.NOT_STARTED, file_row.path, row.next_at or 0, row.dag_name)
        if file_row.service_pid is None and row.next_at is not None and (file_row.has_lost_service or is_due):
            yield need._replace(kind=NeedKind.SCHEDULER_DEAD)
        elif is_due:
            yield need
        elif row.dag_name in missed:
            yield _need_of_row(file_row, missed[row.dag_name])._replace(is_missed=True)


def _needs_by_supervisor(row: ServedSchedule, now_us: int) -> Iterator[Need]:
    need = Need(NeedKind.NOT_STARTED, "", 0, row.flow)
    due_at, late_since, is_unserved = row.due_at(now_us), row.late_from(now_us), False
    if due_at is not None:
        is_due = row.stopped_at is not None and due_at < now_us - START_GRACE_US
        is_unserved = is_due or heartbeat_age_us(row, now_us) is not None
        if is_unserved:
            since = (late_since or 0) if row.after else due_at  # ``next_at`` is then that of the flows before it
            yield need._replace(kind=NeedKind.SCHEDULER_DEAD, since=since, error=row.hang)
    if row.has_failed_start():
        yield need._replace(kind=NeedKind.FAILED_START, since=row.failed_since or 0, error=row.start_error or "")
    elif row.missed_times:
        yield need._replace(since=row.missed_since, counted=row.missed_times, is_missed=True)
    elif late_since is not None and not is_unserved:
        yield need._replace(since=late_since)
    if row.stuck_run_id is not None:
        stuck = need._replace(kind=NeedKind.STUCK, run_id=row.stuck_run_id, since=row.stuck_since or 0)
        yield stuck._replace(error=row.stuck_error or "")
    if row.warning is not None:
        yield need._replace(kind=NeedKind.WARNING, since=row.warned_at or 0, error=row.warning)
    for one in row.after:
        if one.stuck_since is None or row.is_paused(now_us) or skips_next(row):
            continue
        yield need._replace(kind=NeedKind.AFTER, since=one.stuck_since, subject=one.flow, error=one.waits)
    for request in row.requests:
        if request.needs_human(now_us):
            yield need._replace(kind=NeedKind.ASKED_START, since=request.asked_at, subject=request.who)


# --- What follows from needs -----------------------------------------------------------------------------------------


FAILED, WAITING = 1, 3  # the exit codes of a run that has failed, and of one that is blocked
NOT_SEEN = 69  # EX_UNAVAILABLE: of a host that could not be asked
_CODES = {NeedKind.FAILED: FAILED, NeedKind.FAILED_START: FAILED, NeedKind.UNREACHABLE: NOT_SEEN}


def exit_code_of(needs: Iterable[Need]) -> int:
    """0 if nothing needs a human, or only notices do; 1 if runs have failed or could not start; 3 if something else
    waits; 69 if nothing of these is known, and a host could not be asked."""
    found = {_CODES.get(need.kind, WAITING) for need in needs if not need.is_notice}
    return max(found - {NOT_SEEN}, default=NOT_SEEN if found else 0)


def attention_count(needs: Iterable[Need]) -> int:
    """Count what needs a human: each dead letter, failed task and approval, and 1 for all else that is no notice."""
    found = [need for need in needs if not need.is_notice]
    return sum(need.counted if need.kind in OF_RUNS else 1 for need in found)
