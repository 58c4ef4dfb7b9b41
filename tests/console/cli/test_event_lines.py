"""The run as lines for pipes, cron and systemd: document 000's shape, with nothing in it that moves a cursor."""

import re
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from redrive.console.cli.event_lines import EventLabeller
from redrive.console.text.event_text import describe_event, lines_of_event
from redrive.console.text.pieces import plain
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.domain.event_codec import decode, event_of
from redrive.engine.domain.event_payloads import RunChange, RunChanged
from redrive.engine.domain.events import Event
from redrive.engine.statefile.reader import events_query
from support.commands import quoted, run_redrive
from support.marks import for_each
from support.pty_terminal import in_time


def lines_of_run(tmp_path: Path, flow: Flow) -> list[str]:
    """The lines of a run, without their clock, and without what a run is told of the threads of its tests."""
    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        events = [event_of(row) for row in connection.execute(*events_query(0, 100_000))]
    lines = [line for event in events for line in lines_of_event(event)]
    assert all(re.fullmatch(r"\[\d\d:\d\d:\d\d\] .*", line) for line in lines)
    return [line[11:] for line in lines if not line[11:].startswith("warning: this program runs")]


def test_a_poisoned_task_reads_as_in_document_000(tmp_path):
    """000.36, line by line."""
    flow = Flow("settlement")

    @flow.task(retry=RetryPolicy(base=0.01, cap=0.01), timeout=30)
    def settle_M_000042() -> float:
        return 1 / 0

    flow.page("command", line="true")
    lines = [re.sub(r"fp=[0-9a-f]{12}|\([0-9a-f]{12}\)|:\d+ in", "FP", line) for line in lines_of_run(tmp_path, flow)]
    expected = [
        r"settle_M_000042 RUNNING",
        r"settle_M_000042 FAILED ZeroDivisionError .*test_event_lines\.pyFP .*settle_M_000042 \(FP\): division by zero",
        r"settle_M_000042 RETRYING attempt=1 next_retry_at=\d\d:\d\d:\d\d\.\d\d .*",
        r"settle_M_000042 RUNNING attempt=2",
        r"settle_M_000042 DEAD_LETTER ZeroDivisionError .*test_event_lines\.pyFP .* \(FP\): division by zero;"
        r" the same failure 2 times in a row",
        r"PAGED on-call: poison-pill on settle_M_000042 FP",
        r"run r BLOCKED: .*",
    ]
    assert len(expected) == len(lines), lines
    if lines[-1].startswith("PAGED"):  # a sender may take longer than the end of the run
        lines.insert(-1, lines.pop())
    for pattern, line in zip(expected, lines, strict=True):
        assert re.fullmatch(pattern, line), line


def test_a_hang_reads_as_in_document_000(tmp_path):
    """000.23: start, timeout, SIGTERM, SIGKILL, FAILED: task exceeded."""
    wanted = ("RUNNING", "timeout reached", "sending SIGTERM", "still alive, sending SIGKILL", "FAILED timed out")
    trapped = tmp_path / "trapped"

    def is_killed() -> bool:
        """Whether its shell had come to the trap when the signal came."""
        for file in tmp_path.iterdir():
            file.unlink()
        flow = Flow("f")
        line = f"trap '' TERM; touch {quoted(trapped)}; while :; do sleep 0.1; done"
        flow.command("hang_forever", line, timeout=0.3, grace_seconds=0.3, max_attempts=1)
        lines = lines_of_run(tmp_path, flow)
        if not trapped.exists():
            return False
        found = [next(word for word in wanted if word in line) for line in lines if any(w in line for w in wanted)]
        assert found == list(wanted)
        return True

    in_time(is_killed)


def test_retries_inside_a_task_are_lines_of_their_own(tmp_path):
    """004.15: each attempt is logged with its number and the time since the first."""
    data = {
        "function": "fetch",
        "try": 2,
        "error_type": "TimeoutError",
        "message": "no answer\x1b[2J",
        "delay_seconds": 0.4,
        "elapsed_seconds": 3.2,
    }
    (line,) = lines_of_event(event("attempt.retry", data))
    assert line.endswith("a retries fetch inside (try 2 after 3.2 s, waits 0.40 s): TimeoutError: no answer␛[2J")
    (line,) = lines_of_event(event("attempt.retry", {**data, "untold": 1234}))
    assert line.endswith("no answer␛[2J; 1,234 more since the line before")


def test_a_page_that_was_sent_while_the_file_refused_is_no_new_one():
    (line,) = lines_of_event(event("page", {"what": "sent", "how": "past", "title": "f cannot write its state file"}))
    assert line[11:] == "PAGED on-call, before this could be written: f cannot write its state file"


def event(kind: str, data: dict[str, Any], **fields: Any) -> Event:
    found = Event(1, 1_700_000_000_000_000, kind, "r", "a", None, None, 1, 0, None, None, None, decode(kind, data))
    return found._replace(**fields)


@for_each("state", ["PENDING", "RETRYING", "SENSING", "SUCCESS", "FAILED", "DEAD_LETTER", "UPSTREAM_FAILED", "SKIPPED"])
def test_what_an_undo_puts_back_is_said_of_its_author_and_not_of_an_attempt(state):
    """003.36: every act leaves its author in the journal."""
    undone = event("task", {"act": "undo", "set": {"failures": 2}}, new=state, actor="ana@desk", reason="too early")
    (line,) = lines_of_event(undone)
    assert line[11:] == f"a {state} again, undone by ana@desk: too early"
    (line,) = lines_of_event(event("run", {"what": "blocked"}, actor="ana@desk"))
    assert line[11:] == "run r BLOCKED by ana@desk (redrive inbox)"


@for_each(
    "kind, data, line",
    [
        ("attempt.extended", {"seconds": 300}, "a: given 5m00 more{}"),
        ("note", {"fingerprint": "4a7c1d09e2b5", "text": "look"}, "note on 4a7c1d09e2b5{}: look"),
        ("page", {"what": "acked", "id": 7}, "a: page 7 acknowledged{}"),
        ("page", {"what": "snoozed", "id": 7}, "a: page 7 snoozed{}"),
        ("quarantine", {"what": "discarded", "count": 1}, "a: 1 row discarded{}"),
        ("run", {"what": "postponed", "why": "the deadline is 06:00"}, "a: the deadline is 06:00{}"),
        ("run", {"what": "acknowledged", "set": {"acknowledged_by": "ana"}}, "a: its end is acknowledged{}"),
        ("operator", {"what": "breaker", "downstream": "api", "how": "open"}, "a: breaker api: open{}"),
        ("operator", {"act": "stop", "answer": {"ok": True}}, "run r stopped{}"),
        ("operator", {"act": "hurry", "answer": {"ok": True, "results": [["a", "done", ""]]}}, "a brought forward{}"),
    ],
)
def test_an_act_leaves_its_author_and_reason_in_the_lines(kind, data, line):
    """003.36: by an event of what it changed, or else by its own."""
    assert [line.format(" by ana@desk: late")] == [
        found[11:] for found in lines_of_event(event(kind, data, actor="ana@desk", reason="late"))
    ]


@for_each(
    "kind, data, new, sentence",
    [
        ("task", {"act": "approve"}, "SUCCESS", "approved"),
        ("task", {"act": "reject"}, "FAILED", "rejected"),
        ("task.changed", {"set": {"bad_rows": 1}}, None, "1 row in quarantine"),
    ],
)
def test_the_sentence_leaves_out_the_author_who_is_shown_beside_it(kind, data, new, sentence):
    assert describe_event(event(kind, data, new=new, actor="ana@desk")) == sentence


@for_each("outcome, words", [("success", "succeeded"), ("error", "failed"), ("timed_out", "timed out")])
def test_a_late_end_says_how_the_attempt_has_ended(outcome, words):
    """SPEC 4.9: it succeeded after somebody had requeued it."""
    (line,) = lines_of_event(event("attempt.late", {"attempt_set": {}, "attempt": {"outcome": outcome}}))
    assert line[11:] == f"a: attempt 1 {words} after its task had moved on: it changes nothing"


def test_a_reason_that_is_the_error_is_said_once(tmp_path):
    flow = Flow("f", timeout=30)
    flow.sensor(lambda: False, name="never", every=0.1, retry=RetryPolicy(max_elapsed=0.2))
    (line,) = [line for line in lines_of_run(tmp_path, flow) if "never FAILED" in line]
    assert line.count("what it waits for did not come") == 1


def test_an_error_of_a_command_is_said_once(tmp_path):
    flow = Flow("f", timeout=30)
    flow.command("load", "echo 'ERROR:  syntax error at or near \"selekt\"' >&2; exit 1", max_attempts=1)
    (line,) = [line for line in lines_of_run(tmp_path, flow) if line.startswith("load DEAD_LETTER")]
    assert line.count("syntax error") == 1


def test_commands_in_lines_name_the_state_file():
    blocked = event("run", {"what": "blocked"})
    assert [line[11:] for line in lines_of_event(blocked, target="/tmp/a b.db")] == [
        "run r BLOCKED: dead letters wait for a human (redrive inbox '/tmp/a b.db')"
    ]


def test_a_breaker_reports_why_it_opened_and_until_when():
    """000.53: both layers of defence are seen."""
    opened = {
        "downstream": "api",
        "state": "OPEN",
        "why": "3 of 3 calls failed in 60 s",
        "reopens_at": 1_700_000_030_000_000,
    }
    (line,) = lines_of_event(event("breaker", opened))
    assert "downstream api: breaker open: 3 of 3 calls failed in 60 s; tried again at" in line


def test_what_is_doubtful_about_an_import_and_what_it_prints_comes_first(tmp_path):
    flow = tmp_path / "flow.py"
    flow.write_text(
        "from redrive.engine import Flow\nlog = open('/dev/zero')\nprint('loading\\x1b[2J')\nflow = Flow('f')\n"
        "flow.command('task', 'true')\n"
    )
    done = run_redrive("run", flow, "--state", tmp_path / "state.db", "--plain")
    first, second, *_ = (line.partition("] ")[2] for line in done.stdout.splitlines())
    assert first.startswith("warning: importing the flow left descriptor")
    assert second.startswith("the import printed: loading")
    assert "\x1b" not in done.stdout


def test_the_first_line_of_each_day_has_the_date() -> None:
    day = datetime(2026, 11, 22, 23, 59, 58).astimezone()
    events = [
        Event(number, at, "run", "r", None, None, None, None, None, None, None, None, RunChanged(RunChange.PAUSED))
        for number in range(4)
        for at in [int((day + timedelta(seconds=number)).timestamp() * 1e6)]
    ]
    labeller = EventLabeller()
    clocks = [plain(line).partition("]")[0] for event in events for line in labeller.lines(event)]
    assert clocks == ["[2026-11-22 23:59:58", "[23:59:59", "[2026-11-23 00:00:00", "[00:00:01"]


def test_a_sensor_that_checks_often_writes_few_lines(tmp_path):
    """Checks 1, 2, 4, 8, ... have a line; ``redrive events`` lists each."""
    flow, checks = Flow("f"), tmp_path / "checks"

    @flow.sensor(every=0.01)
    def file_is_there() -> bool:
        with checks.open("a") as file:
            file.write("x")
        return checks.stat().st_size > 11

    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        events = [event_of(row) for row in connection.execute(*events_query(0, 100_000))]
    labeller, each = EventLabeller(), EventLabeller(has_each_check=True)
    lines = [plain(line) for event in events for line in labeller.lines(event)]
    few = [line.partition("] ")[2] for line in lines if "file_is_there" in line]
    assert [re.sub(r"=\d\d:.{8}", "=T", line) for line in few] == [
        "file_is_there RUNNING",
        "file_is_there SENSING next_check_at=T",
        "file_is_there SENSING next_check_at=T checks=2",
        "file_is_there SENSING next_check_at=T checks=4",
        "file_is_there SENSING next_check_at=T checks=8",
        "file_is_there SUCCESS",
    ]
    assert sum("RUNNING" in plain(line) for event in events for line in each.lines(event)) == 12
