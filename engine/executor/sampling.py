"""Samples frequent events of an attempt: a retry loop without delay must not fill the state file."""

from __future__ import annotations

from ..domain.event_payloads import AttemptRetry

FULL_RATE_COUNT = 100
INTERVAL_SECONDS = 1.0


class RetrySampler:
    """Passes the first FULL_RATE_COUNT retries, then one every INTERVAL_SECONDS.

    ``untold`` of a passed retry: the number of suppressed retries since the previous one.
    """

    def __init__(self) -> None:
        self._emitted = 0
        self._emitted_at = 0.0
        self._suppressed = 0
        self._latest: AttemptRetry | None = None

    def sample(self, retry: AttemptRetry, now: float) -> AttemptRetry | None:
        """Return the retry to emit; None: suppressed. ``now``: seconds on the monotonic clock."""
        if self._emitted >= FULL_RATE_COUNT and now - self._emitted_at < INTERVAL_SECONDS:
            self._suppressed += 1
            self._latest = retry
            return None
        suppressed, self._suppressed, self._latest = self._suppressed, 0, None
        self._emitted, self._emitted_at = self._emitted + 1, now
        return retry._replace(untold=suppressed) if suppressed else retry

    def flush(self) -> AttemptRetry | None:
        """Return the last retry if it was suppressed; called at the end of the attempt."""
        if self._latest is None:
            return None
        latest, self._latest = self._latest, None
        return latest._replace(untold=self._suppressed - 1) if self._suppressed > 1 else latest
