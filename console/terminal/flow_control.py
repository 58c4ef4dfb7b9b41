"""Flow control for a terminal behind a network.

ssh and the network buffer megabytes, so the terminal here takes every frame at once while the picture at the far end
is minutes old. A position report, asked for behind the bytes of a frame, comes back when the far terminal has worked
through them; until then only a window of bytes is sent. A terminal that has never answered is not waited for. Pure:
bytes and instants (seconds, monotonic) in, yes or no out.
"""

from __future__ import annotations

from collections import deque

WINDOW_BYTES_MIN = 2048
WINDOW_BYTES_MAX = 1 << 17
WINDOW_BYTES_START = 8192
QUICK_SECONDS = 0.3  # an answer in this time: the line takes more
SLOW_SECONDS = 1.0  # an answer that took longer: the picture over there is too old
REPORT_TIMEOUT_SECONDS = 3.0  # no answer for so long: it was lost, go on
TIMEOUTS_MAX = 3  # after so many in a row it is not waited for until it answers again


class FlowControl:
    """A window of bytes that the terminal has not confirmed."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_START
        self._requests: deque[tuple[int, float]] = deque()  # bytes since the question before, when asked
        self._bytes_since_request = 0
        self._timeouts = 0
        self._is_responding = False  # True once this terminal has sent a report

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that the terminal may not have processed yet."""
        return sum(size for size, _ in self._requests) + self._bytes_since_request

    @property
    def pending_reports(self) -> int:
        """Position reports still expected from a terminal that sends them."""
        return len(self._requests) if self._is_responding else 0

    def has_room(self, at: float) -> bool:
        """Whether the window has room at ``at``."""
        if not self._is_responding:
            return True
        if self._requests and at - self._requests[0][1] >= REPORT_TIMEOUT_SECONDS:
            self._on_timeout()
        return self.unconfirmed_bytes < self.window_bytes

    def record_sent(self, size: int, at: float) -> bool:
        """Count ``size`` sent bytes; True if a position request must follow them now."""
        self._bytes_since_request += size
        if self._bytes_since_request * 4 < self.window_bytes:
            return False
        if not self._is_responding:
            self.reset()  # one open request is enough to find out whether this terminal reports
        self._requests.append((self._bytes_since_request, at))
        self._bytes_since_request = 0
        return True

    def record_report(self, at: float) -> None:
        """Match a position report with the oldest request and adapt the window."""
        self._timeouts = 0
        self._is_responding = True
        if not self._requests:
            return
        _, asked_at = self._requests.popleft()
        if at - asked_at <= QUICK_SECONDS:
            self.window_bytes = min(self.window_bytes * 2, WINDOW_BYTES_MAX)
        elif at - asked_at > SLOW_SECONDS:
            self.window_bytes = max(self.window_bytes // 2, WINDOW_BYTES_MIN)

    def next_check_at(self) -> float | None:
        """Return when to check again if no report arrives; None if no request is open."""
        return self._requests[0][1] + REPORT_TIMEOUT_SECONDS if self._is_responding and self._requests else None

    def reset(self) -> None:
        """Drop all open requests: their reports are lost."""
        self._requests.clear()
        self._bytes_since_request = 0

    def _on_timeout(self) -> None:
        self.reset()
        self._timeouts += 1
        self._is_responding = self._timeouts < TIMEOUTS_MAX
