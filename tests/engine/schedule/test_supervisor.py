"""What a supervisor does with services that end, die and do not start, with small programs instead of services."""

from __future__ import annotations

import os
import signal
import sys

from redrive.engine.schedule.supervisor import SupervisedService, Supervisor


class RecordedLines:
    """The lines of a supervisor, which is stopped as by systemd after ``last`` lines."""

    def __init__(self, last: int) -> None:
        self.lines: list[tuple[str, str]] = []
        self.drawn: list[tuple[float, float]] = []
        self._last = last

    def report(self, name: str, line: str) -> None:
        self.lines.append((name, line))
        if len(self.lines) == self._last:
            os.kill(os.getpid(), signal.SIGTERM)

    def draw(self, low: float, high: float) -> float:
        self.drawn.append((low, high))
        return 0.0 if len(self.lines) < self._last - 1 else 60.0

    def supervise(self, **programs: str) -> list[int]:
        services = [SupervisedService(name, ["sh", "-c", program]) for name, program in programs.items()]
        return [*Supervisor(services, ended_codes=(0, 130), report=self.report, uniform=self.draw).run()]


def test_a_service_that_dies_starts_again_after_longer_and_longer_delays_with_full_jitter():
    recorded = RecordedLines(last=8)
    assert recorded.supervise(a="exit 3") == [3]
    again, stopped = (("a", f"has died (exit code 3), starts again in {seconds} s") for seconds in ("0.0", "60.0"))
    assert recorded.lines == [again] * 7 + [stopped]
    assert recorded.drawn == [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (0, 32), (0, 60), (0, 60)]


def test_a_service_that_a_signal_ends_has_died():
    recorded = RecordedLines(last=1)
    assert recorded.supervise(a="kill -9 $$") == [-signal.SIGKILL]
    assert recorded.lines == [("a", "has died (SIGKILL), starts again in 60.0 s")]


def test_services_that_were_stopped_stay_so_and_the_supervisor_ends_with_the_last_of_them():
    recorded = RecordedLines(last=0)
    assert recorded.supervise(a="echo one; exit 130", b="echo two") == [130, 0]
    assert sorted(recorded.lines) == [("a", "one"), ("b", "two")]


def test_a_stop_reaches_every_service_and_waits_for_it():
    waits = "trap 'echo stops; exit 130' TERM; echo waits; while :; do sleep 0.01; done"
    recorded = RecordedLines(last=2)
    assert recorded.supervise(a=waits, b=waits) == [130, 130]
    assert sorted(recorded.lines) == [(name, word) for name in "ab" for word in ("stops", "waits")]


def test_a_service_that_is_stopped_before_it_handles_signals_has_not_failed():
    recorded = RecordedLines(last=1)
    assert recorded.supervise(a="echo starts; exec sleep 60") == [0]


def test_a_line_that_is_too_long_ends_nothing():
    recorded = RecordedLines(last=0)
    program = f"{sys.executable} -c 'print(\"x\" * 3_000_000)'; echo after"
    assert recorded.supervise(a=program) == [0]
    assert recorded.lines[0] == ("a", "(a line that is too long)") and recorded.lines[-1] == ("a", "after")
