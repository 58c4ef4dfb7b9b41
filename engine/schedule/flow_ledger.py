"""The fates of the logical times of a flow: rows of the ledger in the supervisor's file, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..core.schedule import Schedule, iso_time
from ..core.supervision import is_ahead
from ..statefile.supervisor_file import Fate, LedgerRow, ServedSchedule
from ..store.schedules import DecidedTimes, LedgerMark, ScheduleStatus, ServedFlow
from .start_failures import StartFailures
from .supervision import Supervision


class FlowLedger:
    """``mark``: how far the ledger knows the state file. ``failures``: what held up the starts of the flow."""

    def __init__(self, shared: Supervision, failures: StartFailures) -> None:
        self.mark = LedgerMark()
        self._shared = shared
        self._failures = failures
        self._began_at = shared.machine.clock.now_us()
        self._waited: dict[int, str] = {}  # why days have waited

    def note_waits(self, waits: Mapping[int, str]) -> None:
        """Remember why days wait for the flows before them."""
        self._waited.update(waits)

    def knows_more(self, status: ScheduleStatus, now: int) -> bool:
        """Whether the state file is older than the ledger, as after a restore."""
        progress, mark = status.progress, self.mark
        if progress is None or is_ahead(mark.until, now):
            return False
        return progress.decided_until < mark.until or status.last_run_row < mark.run_row

    def revoke_ahead(self, id: int, status: ScheduleStatus, schedule: Schedule, now: int) -> str:
        """Take back what was decided ahead of the clock, and return a sentence; empty: nothing was.

        ``schedule``: the one that holds in the state file.
        """
        progress, until = status.progress, self.mark.until
        if progress is None or until <= progress.decided_until or not is_ahead(until, now):
            return ""
        runs_ahead = sum(at <= until for at in status.fired)
        held = self.mark.schedule or schedule
        times = held.count(progress.decided_until, until)
        last = max(held.latest(progress.since, progress.decided_until)[0], default=progress.decided_until)
        self.mark = msgspec.structs.replace(self.mark, until=progress.decided_until)
        self._shared.file.revert_after(id, progress.decided_until, runs_ahead, times - runs_ahead, last)
        ahead = iso_time(until, schedule.zone)[:16].replace("T", " ")
        return f"runs until {ahead} were decided about ahead of the clock: it was wrong, or is wrong now"

    def advance(self, status: ScheduleStatus, schedule: Schedule) -> None:
        """Go on to what the state file has decided; an older copy of it has fewer runs."""
        decided_until = 0 if status.progress is None else status.progress.decided_until
        self.mark = LedgerMark(max(self.mark.until, decided_until), status.last_run_row, schedule)

    def row(self, one: DecidedTimes, served: ServedFlow, known: ServedSchedule, now: int) -> LedgerRow:
        """Return the row of decided times. ``known``: what operators decided."""
        if one.has_run:
            return LedgerRow(one.first, one.last, one.times, Fate.RUN, "", "", now, 0)
        if one.first == one.last == known.skip_logical:
            return LedgerRow(one.first, one.last, 1, Fate.SKIPPED, "", known.skipped_by, now, 0)
        why = self._waited.get(one.last) or self._why_missed(served, known, served.schedule.due_at(one.last))
        return LedgerRow(one.first, one.last, one.times, Fate.MISSED, why, "", now, one.times)

    def _why_missed(self, served: ServedFlow, known: ServedSchedule, due_at: int) -> str:
        """Return what held up a run that was due then, as far as that is known."""
        if due_at <= known.paused_until:
            return f"paused by {known.paused_by or 'an operator'}"
        if error := self._failures.error_at(due_at):
            return error
        for began_at, ended_at, why in self._shared.gaps:
            if began_at < due_at <= ended_at:
                return why
        if due_at < self._began_at:
            return "nothing served it then"
        return f"a run before it took until after the next one was due (misfire {served.spec.misfire})"
