"""Why the runs of a flow do not start: the latest failed start, or a flow file that cannot be read."""

from __future__ import annotations

import msgspec


class StartFailure(msgspec.Struct, frozen=True):
    """The latest start failed, or the flow file cannot be read. ``since``: the first time since the last good start.

    ``is_of_storage``: the state file refuses to be written; ``due_at``: when the first run was due that did not start.
    """

    error: str
    since: int
    at: int
    is_of_reading: bool = False
    is_of_storage: bool = False
    due_at: int | None = None

    def holds_up(self, due_at: int) -> bool:
        """Whether a run that was due then could not start."""
        return min(self.since, self.since if self.due_at is None else self.due_at) <= due_at


class StartFailures:
    """``current`` None: the latest start was good."""

    def __init__(self) -> None:
        self.current: StartFailure | None = None
        self._ended: StartFailure | None = None  # the one before it, until ``at``

    @property
    def error(self) -> str | None:
        return None if self.current is None else self.current.error

    def record(
        self,
        error: str,
        now: int,
        *,
        is_of_reading: bool = False,
        is_of_storage: bool = False,
        due_at: int | None = None,
    ) -> None:
        """Record a failure, which goes on from the first one since the last good start."""
        first = self.current or StartFailure(error, now, now, due_at=due_at)
        self.current = StartFailure(error, first.since, now, is_of_reading, is_of_storage, first.due_at)

    def end(self, now: int) -> None:
        """Remember what held up the runs that were due meanwhile."""
        if self.current is not None:
            self._ended, self.current = msgspec.structs.replace(self.current, at=now), None

    def error_at(self, due_at: int) -> str:
        """Return what held up a run that was due then; empty: nothing that is known."""
        if self.current is not None and self.current.holds_up(due_at):
            return self.current.error
        ended = self._ended
        return ended.error if ended is not None and ended.holds_up(due_at) and due_at <= ended.at else ""
