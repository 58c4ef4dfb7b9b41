"""Looks after what runs: attempts whose process has vanished, silent tasks, a deadline out of reach, a long outage.

Called once a second by the executor's heartbeat. It decides nothing: ``domain/liveness.py`` and ``core/deadline.py`` do.
"""

from __future__ import annotations

from datetime import datetime

from ..clock import Clock
from ..core.deadline import Slack, slack_of
from ..core.dispatch_rules import LongOutage, LongOutages
from ..core.downstreams import Downstreams
from ..core.durations import spoken
from ..domain import liveness
from ..domain.event_payloads import AttemptReclaimed, AttemptSilent
from ..domain.liveness import Sight
from ..domain.states import DeadLetterKind, TaskState
from ..runner import process
from ..statefile.changes.transitions import Journal
from ..statefile.processes import identity
from ..store.pages import Trouble, page
from .attempts import AttemptDesk, Sitter
from .run_view import Standing

TASKS_PER_LOOK = 2000  # in a larger run the deadline is looked at less often


class Watch:
    """Told of every beat; what it finds, it writes."""

    def __init__(self, standing: Standing, desk: AttemptDesk, downstreams: Downstreams, clock: Clock) -> None:
        self._standing = standing
        self._fold = standing.fold
        self._desk = desk
        self._clock = clock
        self._swept_at = clock.monotonic()
        self._suspects: set[str] = set()  # tokens of attempts whose process was gone at the last look
        self._silent: set[str] = set()  # tokens of those whose silence was told
        self._looks = 0
        self._is_late = False
        self._outages = LongOutages(standing.ledger, downstreams)

    def beat(self) -> None:
        """One second has passed."""
        self._looks += 1
        if self._looks % (1 + len(self._fold.tasks) // TASKS_PER_LOOK) == 0:
            self._look_at_the_deadline()
        now = self._clock.monotonic()
        for outage in self._outages.update(round(now * 1e6)):
            self._page(self._outage(outage))
        if now - self._swept_at >= liveness.SWEEP_SECONDS:
            self._swept_at = now
            self.sweep()

    # --- Attempts ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Look at the process of every attempt."""
        suspects: set[str] = set()
        for sitter in list(self._desk.sitters.values()):
            if sitter.pid is None:
                continue
            token = sitter.claim.token
            there = sitter.start_ticks is None or identity(sitter.pid)[0] == sitter.start_ticks
            silent = self._desk.loop.time() - sitter.heard_at
            match liveness.look(there, token in self._suspects, sitter.promised, silent):
                case Sight.SUSPECT:
                    suspects.add(token)
                case Sight.LOST:
                    self._reclaim(sitter, silent)
                case Sight.SILENT if token not in self._silent:
                    self._silent.add(token)
                    self._emit(sitter, AttemptSilent, silent, process.kernel_view(sitter.pid))
        self._suspects = suspects

    def _reclaim(self, sitter: Sitter, silent: float) -> None:
        self._emit(sitter, AttemptReclaimed, silent, "gone")
        sitter.lose(f"its process {sitter.pid} is gone, and nobody told how it ended")

    def _emit(self, sitter: Sitter, evidence: type[AttemptSilent | AttemptReclaimed], silent: float, seen: str) -> None:
        """The evidence, in the file before anything follows from it."""
        claim = sitter.claim
        payload = evidence(sitter.pid, sitter.start_ticks, seen, round(silent, 1))

        def item(journal: Journal) -> None:
            journal.emit(payload, claim.run_id, claim.name, attempt=claim.attempt, generation=claim.generation)

        self._desk.write(item)

    def _page(self, trouble: Trouble) -> None:
        self._desk.write(lambda journal: page(journal, trouble))

    # --- Downstreams ------------------------------------------------------------------------------------------------

    def _outage(self, outage: LongOutage) -> Trouble:
        downstream, held, lasts_us = outage
        tasks = "1 task" if len(held) == 1 else f"{len(held)} tasks"
        spec = self._fold.tasks[held[0]].spec
        return Trouble(
            run_id=self._fold.run.run_id,
            task=held[0],
            title=f"{downstream} is down",
            why=f"{downstream} has failed for {spoken(lasts_us)}, and its breaker holds {tasks}",
            kind=DeadLetterKind.BREAKER,
            downstream=downstream,
            owner=None if spec is None else spec.owner,
        )

    # --- The deadline -----------------------------------------------------------------------------------------------

    def _look_at_the_deadline(self) -> None:
        slack = slack_of(self._fold, self._standing.path_seconds, self._clock.now_us())
        is_late = slack is not None and slack.seconds < 0
        if is_late and not self._is_late and slack is not None:
            self._page(self._lateness(slack))
        self._is_late = is_late

    def _lateness(self, slack: Slack) -> Trouble:
        run, row = self._fold.run, self._fold.tasks[slack.task]
        assert run.deadline_at is not None
        due = datetime.fromtimestamp(run.deadline_at / 1e6).astimezone()
        standing = _STANDING.get(row.state, "has not started")
        needs = (
            f"{spoken(round(slack.needs_seconds * 1e6))} of work are left" if slack.needs_seconds else "it is over time"
        )
        spec = row.spec
        return Trouble(
            run_id=run.run_id,
            task=row.name,
            title="deadline at risk",
            why=f"the run can no longer make {due:%H:%M:%S}: {row.name} {standing}, and from there {needs}",
            kind=DeadLetterKind.DEADLINE,
            owner=None if spec is None else spec.owner,
        )


_STANDING = {
    TaskState.RUNNING: "is running",
    TaskState.RETRYING: "waits for its next attempt",
    TaskState.SENSING: "is still waiting for what it looks for",
    TaskState.DEAD_LETTER: "waits for a human",
    TaskState.READY: "waits for a slot",
}
