"""What an attempt says very often: the first of it one by one, then now and then, and how much was left out.

A loop that retries without a wait says so a hundred thousand times; the file shall not grow with it.
"""

from __future__ import annotations

from ..domain.event_payloads import AttemptRetry

ONE_BY_ONE = 100
BETWEEN_SECONDS = 1.0


class Trickle:
    """Lets through what is to be told. ``untold`` in it: how many were left out since the one before."""

    def __init__(self) -> None:
        self._told = 0
        self._told_at = 0.0
        self._untold = 0
        self._latest: AttemptRetry | None = None

    def take(self, retry: AttemptRetry, now: float) -> AttemptRetry | None:
        """What to tell of this one; None: nothing. ``now``: seconds on the monotonic clock."""
        if self._told >= ONE_BY_ONE and now - self._told_at < BETWEEN_SECONDS:
            self._untold += 1
            self._latest = retry
            return None
        left_out, self._untold, self._latest = self._untold, 0, None
        self._told, self._told_at = self._told + 1, now
        return retry._replace(untold=left_out) if left_out else retry

    def rest(self) -> AttemptRetry | None:
        """At the end: the last one, if it was left out."""
        if self._latest is None:
            return None
        latest, self._latest = self._latest, None
        return latest._replace(untold=self._untold - 1) if self._untold > 1 else latest
