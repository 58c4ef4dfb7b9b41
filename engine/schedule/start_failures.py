"""Why the runs of a flow do not start: the latest failed start, or a flow file that cannot be read."""

from __future__ import annotations

import msgspec


class StartFailure(msgspec.Struct, frozen=True):
    """The latest start failed, or the flow file cannot be read. ``since``: the first time since the last good start.

    ``is_of_storage``: the state file refuses to be written.
    """

    error: str
    since: int
    at: int
    is_of_reading: bool = False
    is_of_storage: bool = False


class StartFailures:
    """``current`` None: the latest start was good."""

    def __init__(self) -> None:
        self.current: StartFailure | None = None
        self._ended: StartFailure | None = None  # the one before it, until ``at``

    @property
    def error(self) -> str | None:
        return None if self.current is None else self.current.error

    def record(self, error: str, now: int, *, is_of_reading: bool = False, is_of_storage: bool = False) -> None:
        """Record a failure, which goes on from the first one since the last good start."""
        since = now if self.current is None else self.current.since
        self.current = StartFailure(error, since, now, is_of_reading, is_of_storage)

    def end(self, now: int) -> None:
        """Remember what held up the runs that were due meanwhile."""
        if self.current is not None:
            self._ended, self.current = msgspec.structs.replace(self.current, at=now), None

    def error_at(self, due_at: int) -> str:
        """Return what held up a run that was due then; empty: nothing that is known."""
        if self.current is not None and self.current.since <= due_at:
            return self.current.error
        is_ended = self._ended is not None and self._ended.since <= due_at <= self._ended.at
        return self._ended.error if self._ended is not None and is_ended else ""
