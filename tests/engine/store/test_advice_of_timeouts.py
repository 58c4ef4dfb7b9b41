"""A timeout says in its attempt, its dead letter and its page what the timeout should have been."""

from __future__ import annotations

import json
from datetime import datetime

from redrive.engine.core.advice import Progress
from redrive.engine.core.failures.attempt_end import AttemptEnd, memory_limit_failure, timeout_failure
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.store.claims import Claim
from redrive.engine.store.runs import past_attempts
from redrive.engine.store.settle import settle

from .conftest import RUN, START, StateFile

SECOND = 1_000_000
DAY = 86_400 * SECOND


def before(state_file: StateFile, seconds: list[float], *, outcome: str = "success", days: int = 7) -> None:
    """Earlier attempts of ``load``, one in each run; every ``days`` days, 7 being the weekday of START."""
    rows = [
        (f"before-{days}-{number}", "load", START - (number + 1) * days * DAY, round(each * SECOND), outcome, 781_250)
        for number, each in enumerate(seconds)
    ]

    def item(transaction: object) -> None:
        state_file.connection.executemany(
            "INSERT INTO attempt (run_id, name, attempt, generation, token, started_at, duration_us, outcome,"
            " max_rss_kb) VALUES (?, ?, 1, 0, 't', ?, ?, ?, ?)",
            rows,
        )

    state_file.write(item)


def time_out(state_file: StateFile, progress: Progress | None = None) -> str | None:
    """The only attempt of ``load`` is killed after ten minutes. Answers with what its row says about that."""
    state_file.create({"load": ""})
    state_file.move("load", "READY")
    number = state_file.claim("load")
    failure = timeout_failure(AttemptEnd(timeout=600, hang="asleep", progress=progress))
    outcome = Outcome(OutcomeKind.TIMED_OUT, failure, progress=progress)
    claim = Claim(RUN, "load", number, 0, "token")
    spec = TaskSpec("load", timeout=600.0, retry=RetryPolicy(max_attempts=1))
    state_file.write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))
    sql = "SELECT diagnostic FROM attempt WHERE run_id = ? AND name = 'load'"
    (found,) = state_file.connection.execute(sql, (RUN,)).fetchone()
    return str(found) if found is not None else None


def test_its_own_history_gives_the_number_and_the_reason(state_file: StateFile) -> None:
    before(state_file, [540, 550, 560, 570, 580, 590])
    advice = "timeout too short: 6 of 7 attempts took 9m00 to 10m00; set timeout=15m"
    assert time_out(state_file) == advice
    assert state_file.column("load", "error") == advice
    assert state_file.column("load", "dead_letter_kind") == "timeout"
    (title, body) = state_file.connection.execute("SELECT title, body FROM page").fetchone()
    assert title == "timeout too short on load"
    assert [json.loads(body)[key] for key in ("why", "diagnostic", "mode")] == [advice, advice, "slow"]
    assert json.loads(body)["command"].endswith("--timeout 15m -- load")


def test_the_progress_of_the_attempt_comes_first_and_counts(state_file: StateFile) -> None:
    before(state_file, [540, 550, 560, 570, 580, 590])
    assert time_out(state_file, Progress(91, 100, 600.0, 599.0, 91)) == (
        "91 % done by its own progress (91 of 100), at that pace it needed 11m00;"
        " timeout too short: it needs about 11m00; set timeout=15m"
    )


def test_a_hang_is_distinguished_from_a_timeout_that_is_too_tight(state_file: StateFile) -> None:
    before(state_file, [40, 41, 42, 43, 44, 45])
    assert time_out(state_file) == "6 of 7 attempts took 40s to 45s: more time would not help"


def test_the_day_of_the_week_is_examined(state_file: StateFile) -> None:
    before(state_file, [540, 550, 560, 570, 580, 590], days=7)
    before(state_file, [100.0 + number for number in range(6)], days=8)
    weekday = datetime.fromtimestamp(START / 1e6).astimezone().strftime("%As")
    advice = time_out(state_file)
    assert advice == f"timeout too short: 6 of 7 {weekday} took 9m00 to 10m00; set timeout=15m"


def test_a_task_without_a_past_gets_no_advice(state_file: StateFile) -> None:
    assert time_out(state_file) is None


def test_the_past_is_read_in_order_with_those_that_were_killed(state_file: StateFile) -> None:
    before(state_file, [1.0, 2.0])
    before(state_file, [600.0], outcome="timed_out", days=30)
    before(state_file, [5.0], outcome="error", days=31)
    past = past_attempts(state_file.connection, "load")
    assert [(one.seconds, one.succeeded) for one in past] == [(600.0, False), (2.0, True), (1.0, True)]
    assert past[-1].weekday == datetime.fromtimestamp(START / 1e6).astimezone().weekday()
    assert past_attempts(state_file.connection, "load", "another flow") == []


def test_it_walks_no_table(state_file: StateFile) -> None:
    """It is read in the transaction that settles the timeout."""
    plan = state_file.connection.execute(
        "EXPLAIN QUERY PLAN SELECT started_at, duration_us, outcome FROM attempt WHERE name = 'load'"
        " AND outcome IN ('success', 'timed_out') AND duration_us IS NOT NULL ORDER BY started_at DESC LIMIT 200"
    ).fetchall()
    assert [row[3] for row in plan] == ["SEARCH attempt USING INDEX idx_attempt_name (name=?)"]


def test_memory_above_the_limit_is_said_beside_what_is_usual(state_file: StateFile) -> None:
    before(state_file, [1, 2, 3])
    state_file.create({"load": ""})
    state_file.move("load", "READY")
    claim = Claim(RUN, "load", state_file.claim("load"), 0, "token")
    outcome = Outcome(
        OutcomeKind.ERROR, memory_limit_failure(AttemptEnd(memory_used=2_300_000_000, memory_limit=2 * 10**9))
    )
    spec = TaskSpec("load", memory=2 * 10**9)
    state_file.write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))
    assert state_file.column("load", "state") == "DEAD_LETTER"
    assert state_file.column("load", "error") == "used 2.3 GB of 2.0 GB allowed; usual 800 MB"
