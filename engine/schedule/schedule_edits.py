"""The schedules that a flow file had, and that do not hold in the state file yet.

What was due by a schedule before its edit is decided before the next one holds.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..core.schedule import Schedule
from ..flow.predecessors import decode_edits
from ..statefile.lists import ScheduleRow
from ..store.schedules import ServedFlow, with_schedule


class ScheduleEdits:
    """The edits that come yet, each with the instant since which it is in the file. ``store``: keeps their text."""

    def __init__(self, store: Callable[[str], None]) -> None:
        self._store = store
        self._pending: list[tuple[ServedFlow, int]] = []

    def restore(self, served: ServedFlow, text: str) -> None:
        """Go on from what an earlier supervisor has noticed."""
        self._pending = [(with_schedule(served, spec), at) for spec, at in decode_edits(text)]

    def add(self, served: ServedFlow, at: int) -> None:
        """Note an edit at once."""
        self._pending.append((served, at))
        self._store(self.text)

    @property
    def text(self) -> str:
        edits = [(served.spec, at) for served, at in self._pending]
        return msgspec.json.encode(edits).decode() if edits else ""

    def first_or(self, served: ServedFlow) -> ServedFlow:
        """Return the flow with the schedule that comes next; without an edit ``served``, whose schedule holds."""
        return self._pending[0][0] if self._pending else served

    def last_or(self, served: ServedFlow) -> ServedFlow:
        """Return the flow with the schedule that comes last; without an edit ``served``."""
        return self._pending[-1][0] if self._pending else served

    @property
    def replaced_at(self) -> int | None:
        """The instant at which the flow file replaced the schedule of the state file; None: it did not."""
        return self._pending[0][1] if self._pending else None

    def match(self, progress: ScheduleRow | None, replaced: Schedule | None, served: ServedFlow, read_at: int) -> bool:
        """Forget the edits of the schedule that hold in the state file, and say whether there were any.

        ``replaced``: that schedule, if the flow has another one. An edit that nobody has noticed is of the moment when
        the file was read.
        """
        if progress is None:
            self._pending.clear()
        elif replaced is None and self._pending:
            del self._pending[0]
            return True
        elif replaced is not None and not self._pending:
            self.add(served, read_at)
            return True
        return False
