"""How much may be on its way to a terminal at the end of a network.

ssh and the network buffer megabytes, so the terminal here takes every frame at once while the picture at the far end is
minutes old. A position report, asked for behind the bytes of a frame, comes back when the far terminal has worked
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
SILENCE_SECONDS = 3.0  # no answer for so long: it was lost, go on
SILENCES_MAX = 3  # after so many in a row it is not waited for until it answers again


class Pacing:
    """The window of unanswered bytes."""

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_START
        self._asked: deque[tuple[int, float]] = deque()  # bytes since the question before, when asked
        self._since_asked = 0
        self._silences = 0
        self._waits = False  # until it is known that this terminal answers

    @property
    def unanswered_bytes(self) -> int:
        """What the far terminal may not have worked through yet."""
        return sum(size for size, _ in self._asked) + self._since_asked

    @property
    def answers_due(self) -> int:
        """How many answers should still come, of a terminal that answers."""
        return len(self._asked) if self._waits else 0

    def may_send(self, at: float) -> bool:
        """Whether the window has room at ``at``."""
        if not self._waits:
            return True
        if self._asked and at - self._asked[0][1] >= SILENCE_SECONDS:
            self._silent()
        return self.unanswered_bytes < self.window_bytes

    def sent(self, size: int, at: float) -> bool:
        """Count ``size`` bytes; True if a question must be sent behind them now."""
        self._since_asked += size
        if self._since_asked * 4 < self.window_bytes:
            return False
        if not self._waits:
            self.forget()  # one question at a time is enough to learn whether anybody answers
        self._asked.append((self._since_asked, at))
        self._since_asked = 0
        return True

    def answered(self, at: float) -> None:
        """The far terminal answered the oldest question."""
        self._silences = 0
        self._waits = True
        if not self._asked:
            return
        _, asked_at = self._asked.popleft()
        if at - asked_at <= QUICK_SECONDS:
            self.window_bytes = min(self.window_bytes * 2, WINDOW_BYTES_MAX)
        elif at - asked_at > SLOW_SECONDS:
            self.window_bytes = max(self.window_bytes // 2, WINDOW_BYTES_MIN)

    def due(self) -> float | None:
        """When to look again although nothing was answered."""
        return self._asked[0][1] + SILENCE_SECONDS if self._waits and self._asked else None

    def forget(self) -> None:
        """The answers that are still due will not come, or go to somebody else."""
        self._asked.clear()
        self._since_asked = 0

    def _silent(self) -> None:
        self.forget()
        self._silences += 1
        self._waits = self._silences < SILENCES_MAX
