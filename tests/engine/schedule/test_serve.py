"""A service whose clock is set by hand, and one whose pager is out of order: what needs no second process (003.35)."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.clock import SystemClock
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.errors import FlowError
from redrive.engine.executor.machine import Machine
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.schedule import serve

HEAD = "from pathlib import Path\nfrom redrive.engine import Flow\nHERE = Path(__file__).parent\n"
TASK = "@flow.task\ndef a(): pass\n"
HOUR = 3600 * 1_000_000
NEW_YEAR = round(datetime(2037, 1, 1, tzinfo=UTC).timestamp() * 1e6)


class SetClock(SystemClock):
    """The machine's clock, set forward or back."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class ServiceUnderTest:
    """A service in this process, which hears every sentence and event of it, and stops it as systemd would."""

    def __init__(self, folder: Path, flow: str, at: int = NEW_YEAR - HOUR) -> None:
        (folder / "flow.py").write_text(flow)
        self.state = folder / "state.db"
        self.clock = SetClock()
        self.clock.ahead_us = at - self.clock.now_us()
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.on_line: Callable[[str], None] = lambda sentence: None
        self.on_event: Callable[[Event], None] = lambda event: None
        self.service = serve.ScheduleService(
            str(folder / "flow.py"),
            str(self.state),
            RunOptions(),
            report=self._report,
            on_events=self._on_line,
            machine=Machine(clock=self.clock),
        )

    def _report(self, sentence: str) -> None:
        self.lines.append(sentence)
        self.on_line(sentence)

    def _on_line(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.append(event)
            self.on_event(event)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def ask(self, sql: str) -> list[Any]:
        with sqlite3.connect(self.state) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_clock_that_is_set_forward_runs_what_has_come_and_set_back_it_runs_nothing_again(tmp_path):
    service = ServiceUnderTest(tmp_path, HEAD + "flow = Flow('f', schedule='0 0 1 1 *')\n" + TASK)
    steps = iter([HOUR, -HOUR])

    def set_it(sentence: str) -> None:
        if not sentence.startswith("next "):
            return
        step = next(steps, None)
        if step is None:
            service.stop()
        else:
            service.clock.ahead_us += step

    service.on_line = set_it
    assert not service.service.run().interrupted
    heads = [sentence.split(",")[0] for sentence in service.lines]
    assert heads == [
        f"serves f; watch it with: redrive attach {service.state}",
        "next 2037-01-01 00:00:00 UTC",
        "the clock of this machine moved by +3600 s",
        "run 2037-01-01T00:00+0000 is due",
        "next 2038-01-01 00:00:00 UTC",
        "the clock of this machine moved by -3600 s",
        "next 2038-01-01 00:00:00 UTC",
    ]
    assert [("run",)] == service.ask("SELECT state FROM slot")
    assert [("SUCCESS",)] == service.ask("SELECT state FROM run")


def test_a_page_that_no_sender_took_is_sent_again_while_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "RETRY_SECONDS", 0.2)
    pager = "flow.page('command', argv=['sh', '-c', 'test -e \"$0\"', str(HERE / 'network')])\n"
    options = "schedule='0 0 1 1 *', start_within='1m', misfire='skip'"
    service = ServiceUnderTest(tmp_path, HEAD + f"flow = Flow('f', {options})\n" + pager + TASK)

    def miss_the_year(sentence: str) -> None:
        if sentence.startswith("next 2037"):
            service.clock.ahead_us += 2 * HOUR

    def repair(event: Event) -> None:
        if event.kind == EventKind.PAGE and event.payload.what == "send-failed":
            (tmp_path / "network").touch()
        elif event.kind == EventKind.PAGE and event.payload.what == "sent":
            service.stop()

    service.on_line, service.on_event = miss_the_year, repair
    service.service.run()
    assert ["opened", "send-failed", "sent"] == [
        event.payload.what for event in service.events if event.kind == EventKind.PAGE
    ]
    assert [] == service.ask("SELECT * FROM run")


def test_a_service_that_cannot_begin_says_so_instead_of_trying_for_ever(tmp_path):
    service = ServiceUnderTest(tmp_path, HEAD + "flow = Flow('f')\n" + TASK)
    with pytest.raises(FlowError, match="has no schedule"):
        service.service.run()
    assert not service.state.exists()
