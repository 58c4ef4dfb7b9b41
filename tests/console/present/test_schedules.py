"""How schedules read where runs are listed (003.35)."""

from __future__ import annotations

from datetime import datetime

import pytest
from redrive.console.cli import schedule as commands
from redrive.console.present.needs import need_sentence, summary_sentence
from redrive.console.present.runs import lateness
from redrive.console.present.schedules import TIMES_MAX, as_ranges, require_acts, schedule_state
from redrive.console.text.figures import wall_day
from redrive.engine.domain.rows import RunRow
from redrive.engine.errors import RefusedError
from redrive.engine.statefile import supervisor_file
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import Need, attention_count
from redrive.engine.statefile.supervisor_file import Fate, LedgerRow, ServedSchedule
from support.marks import for_each

MINUTE = 60_000_000
NOW = round(datetime.fromisoformat("2026-11-21T22:48:00+05:30").timestamp() * 1e6)


@pytest.mark.parametrize(
    ("ended_at", "late"), [(None, "late 5m00"), (NOW - 4 * MINUTE, "late 1m00"), (NOW - 6 * MINUTE, "")]
)
def test_a_run_is_late_from_its_deadline_to_its_end(ended_at, late):
    run = RunRow("r", deadline_at=NOW - 5 * MINUTE, ended_at=ended_at)
    assert late == lateness(run, NOW)
    assert "" == lateness(RunRow("r", ended_at=ended_at), NOW)


def test_a_run_that_its_deadline_has_ended_is_not_called_some_milliseconds_late():
    at = NOW - 5 * MINUTE
    run = RunRow("r", deadline_at=at, deadline_passed_at=at + 9, ended_at=at + 9000)
    assert "at deadline" == lateness(run, NOW)


def test_a_start_that_did_not_happen_says_what_comes_next():
    need = Need(NeedKind.NOT_STARTED, "x.db", NOW - 5 * MINUTE, "etl")
    assert need_sentence(need, NOW) == "due 5m00 ago and not started: redrive schedule says for what it waits"
    unserved = need._replace(kind=NeedKind.SCHEDULER_DEAD, since=0)  # of a flow after others: it has no time of its own
    assert need_sentence(unserved, NOW).startswith("no process serves its schedule")
    missed = need_sentence(need._replace(counted=10, is_missed=True), NOW)
    assert missed.startswith("10 starts missed since ")
    assert missed.endswith(": redrive schedule times etl says why, redrive schedule dismiss etl removes them")
    yesterday = need._replace(kind=NeedKind.FAILED_START, since=NOW - 20 * 60 * MINUTE)
    assert f"cannot start since {wall_day(yesterday.since)}," in need_sentence(yesterday, NOW)
    failed = need_sentence(need._replace(kind=NeedKind.FAILED_START, error="SyntaxError"), NOW)
    assert failed.startswith("cannot start since ") and failed.endswith(", redrive serve tries again: SyntaxError")


def test_the_sentence_and_the_badge_count_the_same() -> None:
    needs = [Need(NeedKind.DEAD_LETTERS, "a.db", NOW, counted=3), Need(NeedKind.PARTIAL, "b.db", NOW, is_notice=True)]
    assert summary_sentence(needs) == "3 things need a human, 1 notice" and attention_count(needs) == 3
    dark = Need(NeedKind.UNREACHABLE, "ssh://h", 0)
    said = "3 things need a human, 1 notice in 2 state files, 1 host could not be asked"
    assert summary_sentence([*needs, dark], 2) == said
    assert summary_sentence([dark, dark], 1) == "nothing needs a human in 1 state file, 2 hosts could not be asked"
    assert summary_sentence([dark]) == "1 host could not be asked", "nobody knows what it needs"


SERVED = ServedSchedule(1, "etl.py", "etl.py", None, "etl")._replace(heartbeat_at=NOW, stopped_at=None)


@for_each(
    "action, schedule, names",
    [
        ("skip_next", SERVED, []),
        ("skip_next", SERVED._replace(next_logical=NOW), ["skip"]),
        ("skip_next", SERVED._replace(skip_logical=NOW), ["unskip"]),
        ("skip_next", SERVED._replace(skip_logical=NOW, ledger_until=NOW), []),  # of a flow after others
        ("start_run", SERVED, ["start"]),
        ("start_run", SERVED._replace(stopped_at=NOW), []),
        ("acknowledge_start", SERVED, []),
        ("acknowledge_start", SERVED._replace(start_error="no such file"), ["acknowledge"]),
        ("acknowledge_start", SERVED._replace(start_error="no such file", acknowledged_at=NOW), []),
        ("forget_flow", SERVED, []),
        ("forget_flow", SERVED._replace(stopped_at=NOW), ["forget"]),
        ("forget_flow", SERVED._replace(gone_since=NOW), ["forget"]),
    ],
)
def test_one_rule_says_what_a_schedule_takes(action, schedule, names):
    if names:
        assert [act.name for act in require_acts(schedule, action, NOW)] == names
        return
    with pytest.raises(RefusedError, match="etl: "):
        require_acts(schedule, action, NOW)


def test_a_supervisor_that_hangs_is_named_to_who_asks_for_a_start():
    hung = SERVED._replace(heartbeat_at=NOW - MINUTE, hang="(pid 7) is stopped: kill -CONT 7")
    with pytest.raises(RefusedError, match=r"etl: its supervisor \(pid 7\) is stopped: kill -CONT 7"):
        require_acts(hung, "start_run", NOW)


def test_a_time_of_the_day_before_has_its_date():
    since = NOW - 20 * 60 * MINUTE
    assert schedule_state(SERVED._replace(late_since=since), NOW) == f"late since {wall_day(since)}"


def test_the_last_run_that_is_skipped_already_stays_skipped(monkeypatch):
    skipped = []
    monkeypatch.setattr(commands, "_rows", lambda flow: (SERVED._replace(skip_logical=NOW),))
    monkeypatch.setattr(supervisor_file, "skip", lambda id, logical, who: skipped.append(logical))
    for words in (["etl"], ["etl", "--undo"]):
        commands.schedule.commands["skip-next"].main(words, standalone_mode=False)
    assert skipped == [NOW, None]


def test_many_neighbours_that_have_not_run_for_one_reason_are_a_range():
    def decided(at: int, fate: str, times: int = 1) -> LedgerRow:
        return LedgerRow(at, at + times - 1, times, fate, "", "", NOW + at, times)

    few = [decided(at, Fate.SKIPPED) for at in range(TIMES_MAX)]
    runs = [decided(at, Fate.RUN) for at in range(20, 40)]
    many = [decided(50, Fate.MISSED, 1000), *(decided(1050 + at, Fate.MISSED) for at in range(TIMES_MAX))]
    assert as_ranges([*few, *runs, *many]) == [
        *few,
        *runs,
        decided(50, Fate.MISSED, 1010)._replace(decided_at=NOW + 1059),
    ]
