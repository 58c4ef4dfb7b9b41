"""Detects vanished processes, silent and late tasks, a deadline out of reach, and long outages of downstreams.

Checked once a second by the heartbeat. ``domain/liveness.py`` and ``core/deadline.py`` make the decisions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..clock import Clock
from ..core.causes import PageRequest
from ..core.deadline import Slack, compute_slack, is_due
from ..core.downstreams import DownstreamStates, LongOutage, LongOutages
from ..core.projection import TaskRow
from ..core.ready_queue import spec_of
from ..core.schedule import expected_at
from ..core.spec import ExpectedBy
from ..core.views import describe_task, task_view
from ..core.waiting import long_wait
from ..domain import liveness
from ..domain.event_payloads import AttemptReclaimed, AttemptSilent, StorageChange, StorageChanged
from ..domain.events import Event, EventKind
from ..domain.liveness import Liveness
from ..domain.states import MOVING, DeadLetterKind
from ..domain.text import format_clock, format_duration, format_seconds, shell_command
from ..errors import ExecutorBusyError, StorageError
from ..flow.source import open_zone
from ..runner import process
from ..statefile.lock_file import lock_path
from ..statefile.processes import identity, open_files
from ..statefile.reader import Stamp, inode_of
from ..store import claims
from ..store.database import checkpoint, restoring_steps
from ..store.lock import StateLock
from ..store.pages import trigger_page
from ..store.write_ahead_log import copy, free_copy_path
from ..store.writer import Writer
from .active_run import ActiveRun, WriteInTransaction
from .attempts import AttemptRecorder, RunningAttempts

TASKS_PER_DEADLINE_CHECK = 2000  # larger runs check the deadline less often than once a second


class Watchdog:
    """Checks the run and writes its findings as events and pages."""

    def __init__(self, run: ActiveRun, attempts: RunningAttempts, downstreams: DownstreamStates, clock: Clock) -> None:
        self._run = run
        self._projection = run.projection
        self._attempts = attempts
        self._clock = clock
        self._swept_at = clock.monotonic()
        self._suspects: set[str] = set()  # tokens of attempts whose process was gone at the previous sweep
        self._silent: set[str] = set()  # tokens of attempts whose silence was emitted
        self._checks = 0
        self._is_late = False
        self._zone = open_zone(run.flow.timezone, run.flow.name)
        self._expected: list[tuple[int, str]] = []  # when tasks are expected to have succeeded, the latest first
        self._known_count = 0  # tasks of which ``_expected`` knows
        self._clock_moved_us = 0  # since the start of this executor
        self._outages = LongOutages(run.ready_queue, downstreams)
        self._noticed: set[str] = set()  # causes of long waits

    def shift_clock(self, jump_us: int) -> None:
        """Expect tasks so long after the start of the run as before a step of the clock."""
        self._clock_moved_us += jump_us
        self._known_count = 0

    def check(self) -> None:
        """Run the checks that are due; called once a second."""
        self._checks += 1
        if self._checks % (1 + len(self._projection.tasks) // TASKS_PER_DEADLINE_CHECK) == 0:
            self._check_deadline()
        self._check_expected()
        now = self._clock.monotonic()
        for outage in self._outages.update(self._clock.now_us()):
            self._page(self._outage(outage))
        if now - self._swept_at >= liveness.SWEEP_SECONDS:
            self._swept_at = now
            self._check_waits()
            self.sweep()

    # --- Attempts ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Check the process of every attempt."""
        suspects: set[str] = set()
        for recorder in list(self._attempts.running.values()):
            if recorder.pid is None:
                continue
            token = recorder.claim.token
            is_there = recorder.start_ticks is None or identity(recorder.pid)[0] == recorder.start_ticks
            silent_seconds = self._attempts.loop.time() - recorder.last_seen_at
            match liveness.check_liveness(is_there, token in self._suspects, recorder.sends_heartbeats, silent_seconds):
                case Liveness.SUSPECT:
                    suspects.add(token)
                case Liveness.LOST:
                    self._emit(recorder, AttemptReclaimed, silent_seconds, "gone")
                    recorder.mark_lost(f"its process {recorder.pid} is gone, and its exit status is unknown")
                case Liveness.SILENT if token not in self._silent:
                    self._silent.add(token)
                    self._emit(recorder, AttemptSilent, silent_seconds, process.kernel_view(recorder.pid))
        self._suspects = suspects

    def _emit(
        self,
        recorder: AttemptRecorder,
        evidence: type[AttemptSilent | AttemptReclaimed],
        silent_seconds: float,
        seen: str,
    ) -> None:
        """Emit the evidence before its consequences."""
        payload = evidence(recorder.pid, recorder.start_ticks, seen, round(silent_seconds, 1))
        self._attempts.emit(recorder.claim, payload)

    def _page(self, request: PageRequest) -> None:
        self._attempts.write(lambda transaction: trigger_page(transaction, request))

    # --- Late tasks -------------------------------------------------------------------------------------------------

    def _check_expected(self) -> None:
        """Page for tasks that have not succeeded when they were expected to."""
        tasks, now = self._projection.tasks, self._clock.now_us()
        if len(tasks) != self._known_count:  # also after a map task got its children
            self._known_count = len(tasks)
            self._expected = sorted(self._expectations(), reverse=True)
        while self._expected and self._expected[-1][0] <= now:
            at, name = self._expected.pop()
            row = tasks[name]
            if row.state in MOVING and row.spec is not None:
                state_text = describe_task(task_view(self._projection, name, now))
                why = f"it was expected by {self._describe(row.spec.expect_by, at)} and is not done: {state_text}"
                self._notice(row, why, "later than expected", f"expected:{self._run.run_id}/{name}")

    def _describe(self, expected: ExpectedBy | None, at: int) -> str:
        if expected is not None and expected.clock is not None:
            return f"{expected.clock} {self._run.flow.timezone}"
        return f"{format_clock(at)}, {expected}"

    def _expectations(self) -> Iterator[tuple[int, str]]:
        run = self._projection.run
        schedule = self._run.flow.schedule
        is_day = schedule is not None and schedule.follows
        start = run.started_at if run.logical_time is None or is_day else run.logical_time
        for row in self._projection.tasks.values():
            expected = None if row.spec is None else row.spec.expect_by
            if expected is not None and row.state in MOVING:
                moved_us = self._clock_moved_us if expected.clock is None else 0
                yield expected_at(expected, start, self._zone) + moved_us, row.name

    def _check_waits(self) -> None:
        """Page once for each wait that ends by itself, and much later than anybody expects."""
        run, now = self._projection.run, self._clock.now_us()
        found = [wait for row in self._projection.tasks.values() if (wait := long_wait(run, row, now)) is not None]
        for wait in found:
            if wait.cause not in self._noticed:
                self._notice(self._projection.tasks[wait.task], wait.why, "waits long", wait.cause)
        self._noticed = {wait.cause for wait in found}

    def _notice(self, row: TaskRow, why: str, title: str, cause: str) -> None:
        run_id = self._run.run_id
        request = PageRequest(run_id, row.name, title, why, cause=cause, owner=spec_of(row).owner)
        self._attempts.write(lambda transaction: claims.write_notice(transaction, run_id, row.name, why, request))

    # --- Downstreams ------------------------------------------------------------------------------------------------

    def _outage(self, outage: LongOutage) -> PageRequest:
        downstream, held, lasts_us = outage
        tasks = "1 task waits" if len(held) == 1 else f"{len(held)} tasks wait"
        return PageRequest(
            run_id=self._run.run_id,
            task=held[0],
            title=f"{downstream} is down",
            why=f"{downstream} has failed for {format_duration(lasts_us)}, and {tasks} for it",
            kind=DeadLetterKind.BREAKER,
            downstream=downstream,
            owner=spec_of(self._projection.tasks[held[0]]).owner,
        )

    # --- The deadline -----------------------------------------------------------------------------------------------

    def _check_deadline(self) -> None:
        run, now = self._projection.run, self._clock.now_us()
        if run.deadline_passed_at is not None or is_due(run, now):
            return  # ``run_end.py`` ends the run, with a page
        slack = compute_slack(self._projection, self._run.path_seconds, now)
        is_late = slack is not None and slack.seconds < 0
        if is_late and not self._is_late and slack is not None:
            self._page(self._lateness(slack))
        self._is_late = is_late

    def _lateness(self, slack: Slack) -> PageRequest:
        run, row = self._projection.run, self._projection.tasks[slack.task]
        assert run.deadline_at is not None
        is_missed = self._clock.now_us() >= run.deadline_at
        state_text = describe_task(task_view(self._projection, row.name, self._clock.now_us()))
        needs = f"{format_seconds(slack.needs_seconds)} of work are left" if slack.needs_seconds else "it is over time"
        return PageRequest(
            run_id=run.run_id,
            task=row.name,
            title="deadline missed" if is_missed else "deadline at risk",
            why=f"the run can no longer make {format_clock(run.deadline_at)}: {row.name} is not done"
            f" ({state_text}), and from there {needs}",
            kind=DeadLetterKind.DEADLINE,
            owner=spec_of(row).owner,
        )


# --- Whether the state file can be written, as reported by the writer ------------------------------------------------
#
# While writes fail, no more tasks start; running attempts continue and their results wait in memory. Listeners get a
# DEGRADED event at once, which cannot be stored; the RECOVERED event is stored once writes succeed again.


class StorageHealth:
    """``notify`` passes events to the listeners of the run."""

    def __init__(self, clock: Clock, write: WriteInTransaction, notify: Callable[[Sequence[Event]], None]) -> None:
        self._write_problem: str | None = None
        self._file_problem: str | None = None
        self.since: int | None = None  # microseconds UTC: when the problem began
        self._clock = clock
        self._write = write
        self._notify = notify

    @property
    def problem(self) -> str | None:
        """Why the state file cannot be written, in one sentence; None: it can be. A missing file comes first."""
        return self._file_problem or self._write_problem

    def on_writer_change(self, what: str, sentence: str) -> None:
        """Handle DEGRADED or RECOVERED of StorageChange, as reported by the writer."""
        is_degraded = what == StorageChange.DEGRADED
        self._write_problem = sentence if is_degraded else None
        self._date()
        if is_degraded:
            payload = StorageChanged(what, sentence)
            self._notify([Event._make((0, self._clock.now_us(), EventKind.STORAGE, *[None] * 9, payload))])
        else:
            with suppress(StorageError):  # the writer is closing, and its last try has succeeded
                self.emit(what, sentence)

    def on_file_change(self, sentence: str | None) -> None:
        """Handle a missing state file (``sentence``: what to do), or a restored one (None)."""
        self._file_problem = sentence
        self._date()
        self.emit(
            StorageChange.DEGRADED if sentence else StorageChange.RECOVERED,
            sentence or "the state file is back in its place",
        )

    def _date(self) -> None:
        self.since = None if self.problem is None else self.since or self._clock.now_us()

    def shift_clock(self, jump_us: int) -> None:
        """Let a problem have lasted as long as before a step of the clock."""
        if self.since is not None:
            self.since += jump_us

    def emit(self, what: str, sentence: str) -> None:
        """Write an event; a missing file can still be written through its open descriptor."""
        payload = StorageChanged(what, sentence)
        self._write(lambda transaction: transaction.emit(payload))


# --- Detects a state file or lock file that was moved or deleted while the executor runs -----------------------------
#
# SQLite silently continues to write to a deleted file. So once a second the inodes of both paths are compared with the
# open files. If the state file is missing, it is copied by SQLite's backup, which includes the write-ahead log
# (``cp /proc/PID/fd/N`` would lose all that is not checkpointed), and no more tasks start. What was moved can be moved
# back within ``MOVED_SECONDS``, and the run continues; with its folder its log has moved as well, and no copy is
# needed. A deleted file cannot be relinked: the executor ends once no attempt runs, and copies the file at its end.
#
# A removed or replaced ``-wal`` or ``-shm`` makes the file look older to readers, and SQLite cannot make it again: the
# executor ends likewise, after a checkpoint that brings all of it into the state file. A state file or a ``-wal`` that
# was cut short ends it at once, and before an end as a success the file is read back: see
# ``../store/write_ahead_log.py``.
#
# A deleted lock file is created again, unless another process has created it meanwhile.


_LOGS = ("-wal", "-shm")
MOVED_SECONDS = 300.0  # for a human to move the files of an idle executor back


class StateFileWatch:
    """Checked at each heartbeat. ``is_missing``: the path is not our file; ``is_deleted``: our file has no path at all.

    ``writer`` has the file open; ``on_lock_taken(error)`` is called if another executor holds the lock.
    """

    def __init__(
        self,
        state_path: str,
        lock: StateLock,
        storage: StorageHealth,
        writer: Writer,
        on_lock_taken: Callable[[BaseException], None],
    ) -> None:
        self.is_missing = False
        self.is_deleted = False
        self._moves: tuple[tuple[str, str], ...] = ()  # paths from and to, which put moved files back
        self._idle_since: float | None = None  # of an executor that waits for a moved file, on the clock of the loop
        self._path = os.path.abspath(state_path)
        self._is_link = os.path.islink(self._path)
        self._opened = inode_of(self._path)
        self._logs = {path: inode_of(path) for path in (f"{os.path.realpath(self._path)}{suffix}" for suffix in _LOGS)}
        self._removed_log: str | None = None
        self._rescued: str | None = None  # the path of the copy
        self._copy_error: BaseException | None = None
        self._lock = lock
        self._storage = storage
        self._writer = writer
        self._on_lock_taken = on_lock_taken

    def check(self) -> None:
        """Compare both paths with the open files, and report a change."""
        self._check_lock()
        if self._removed_log is not None:
            return
        # A link in the place of the file: SQLite names the log after the end of the link.
        is_linked_away = not self._is_link and os.path.islink(self._path)
        is_away = bool(self._opened) and (inode_of(self._path) != self._opened or is_linked_away)
        moves = self._find_moves() if is_away else ()
        if is_away and (not self.is_missing or moves != self._moves):
            self._on_missing(moves)
        elif self.is_missing and not is_away:
            self.is_deleted, self._idle_since = False, None
            self._storage.on_file_change(None)
        self.is_missing = is_away
        if not is_away:
            self._check_logs()
            self._writer.check_files()

    def is_given_up(self, now: float) -> bool:
        """Whether an executor of which nothing runs waits no longer, at ``now`` of the loop's clock, for the file."""
        if self._idle_since is None:
            self._idle_since = now
        return self.is_deleted or now >= self._idle_since + MOVED_SECONDS

    def missing_error(self) -> StorageError:
        """Return the error that ends the executor once no attempt runs."""
        return StorageError(str(self._storage.problem))

    async def save(self) -> None:
        """Save a file that is missing after the last write of the executor.

        Raises StorageError, with what to do, if what was written is not at the path of the state file then.
        """
        self.check()
        if self._removed_log is not None:
            await self._writer.run_between(checkpoint)
        elif self.is_missing:
            if self._is_copied():
                self._copy_error = (await asyncio.gather(self._copy(), return_exceptions=True))[0]
            if not self._moves and self._copy_error is None:
                self._remove_logs()
            raise StorageError(self._explain(is_ended=True))

    def _check_logs(self) -> None:
        removed = [path for path, inode in self._logs.items() if inode and inode_of(path) != inode]
        if not removed:
            return
        self._removed_log = removed[0]
        self.is_missing = self.is_deleted = True
        resume = shell_command(["redrive", "resume", self._path])
        self._storage.on_file_change(
            f"a process has removed {self._removed_log}, which holds the latest changes: this executor brings them into"
            f" {self._path} and ends; then {resume}"
        )
        self._writer.run_between(checkpoint).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _remove_logs(self) -> None:
        """Remove the log that SQLite would join with another file in this place; the copy has all of it."""
        for path, inode in self._logs.items():
            if inode and inode_of(path) == inode:
                with suppress(OSError):
                    os.unlink(path)

    # --- The state file --------------------------------------------------------------------------------------------

    def _on_missing(self, moves: tuple[tuple[str, str], ...]) -> None:
        self._moves, self.is_deleted, self._copy_error = moves, not moves, None
        if self._is_copied():
            self._copy().add_done_callback(self._on_copied)
        self._storage.on_file_change(self._explain(is_ended=False))

    def _find_moves(self) -> tuple[tuple[str, str], ...]:
        """Return what puts a moved file back, with its logs, or their folder; the file is the last. Empty: deleted."""
        places = open_paths()
        now_at = places.get(self._opened)
        if now_at is None:
            return ()
        folder = os.path.dirname(self._path)
        if not os.path.exists(folder) and os.path.basename(now_at) == os.path.basename(self._path):
            return (_highest_move(now_at, self._path),)
        logs = [(places.get(inode), path) for path, inode in self._logs.items() if inode_of(path) != inode]
        return (*((found, path) for found, path in logs if found is not None), (now_at, self._path))

    def _is_copied(self) -> bool:
        """Whether a copy is made: one in a folder that was moved would be in the way of its return."""
        return not self._moves or os.path.exists(os.path.dirname(self._path))

    def _copy(self) -> asyncio.Future[None]:
        if self._rescued is None:
            self._rescued = free_copy_path(self._path)
        target = self._rescued
        return self._writer.run_between(lambda connection: copy(connection, target))

    def _on_copied(self, copied: asyncio.Future[None]) -> None:
        self._copy_error = None if copied.cancelled() else copied.exception()
        if self._copy_error is not None and self.is_missing:
            self._storage.on_file_change(self._explain(is_ended=False))

    def _explain(self, *, is_ended: bool) -> str:
        """Say what happened to the file and what to do. ``is_ended``: this executor leaves now."""
        if self._moves:
            return self._explain_move(is_ended=is_ended)
        is_replaced = os.path.lexists(self._path)
        what = f"another file is in the place of {self._path}" if is_replaced else f"a process has removed {self._path}"
        if self._copy_error is not None:
            lost = "what this executor wrote is lost" if is_ended else f"its data is lost when pid {os.getpid()} ends"
            return f"{what}, and {self._copy_error}: {lost}"
        assert self._rescued is not None
        steps = restoring_steps(self._path, self._rescued, is_replaced=is_replaced)
        when = "" if is_ended else "when this executor has ended, "
        return f"{what}; all of it is kept in {self._rescued}: {when}{steps}"

    def _explain_move(self, *, is_ended: bool) -> str:
        commands = [["mv", *move] for move in self._moves]
        is_folder_moved = self._moves[-1][1] != self._path
        if not is_folder_moved and not self._is_copied():
            commands = [["mkdir", "-p", os.path.dirname(self._path)], *commands]
        if is_ended:
            commands = [*commands, ["redrive", "resume", self._path]]
        what = f"the folder of {self._path} was moved" if is_folder_moved else f"{self._path} was moved"
        back = " && ".join(map(shell_command, commands)) + ("" if is_ended else " and the run goes on")
        is_saved = self._is_copied() and self._copy_error is None
        return f"{what}: {back}; " + (f"a full copy is {self._rescued}" if is_saved else "nothing is lost")

    # --- The lock --------------------------------------------------------------------------------------------------

    def _check_lock(self) -> None:
        status = os.fstat(self._lock.fileno())
        if inode_of(lock_path(self._path)) == (status.st_dev, status.st_ino):
            return
        try:
            is_created = self._lock.reacquire()
        except ExecutorBusyError as error:
            self._on_lock_taken(error)
            return
        except StorageError:
            return  # the folder is gone as well: the missing state file is reported
        if is_created:
            sentence = f"the lock file of {self._path} had been removed and was made again"
            self._storage.emit(StorageChange.LOCK, sentence)


def _highest_move(now_at: str, path: str) -> tuple[str, str]:
    """Return the move of the highest folder above ``path`` that was moved."""
    while not os.path.exists(os.path.dirname(path)) and os.path.basename(path) == os.path.basename(now_at):
        path, now_at = os.path.dirname(path), os.path.dirname(now_at)
    return now_at, path


def open_paths() -> dict[Stamp, str]:
    """Return the current paths of the files that this process has open; a deleted one has none."""
    found = {inode_of(path): path for path in open_files().values() if path.startswith("/")}
    return {inode: path for inode, path in found.items() if inode}
