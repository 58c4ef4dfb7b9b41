"""``redrive replay --what-if`` on runs that were real (SPEC part 4, 8)."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
from redrive.console.sessions.trials import ReplayContext, comparison_table, describe_comparison
from redrive.engine import Executor, Flow, RetryPolicy, TransientError
from redrive.engine.analysis.trials import parse_change
from redrive.engine.analysis.what_if import FailureAttribution, PolicyComparison, RunFigures, range_of
from support.commands import invoke_redrive

QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.05, jitter="full")
LATE, BAD, FINE = 6, 3, 8


def replay(*words: str | Path) -> str:
    return invoke_redrive("replay", *words, catch_exceptions=False).output


def plain(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(replay(*words, "--json"))
    return found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six heal at their last try and have a child each, three have a bug, eight do well at once."""
    flow = Flow("f")

    def late(ctx: Any) -> None:
        if ctx.attempt < 3:
            raise TransientError(f"503 for the {ctx.attempt}th time")

    def bug() -> None:
        raise KeyError("id")

    for number in range(LATE):
        flow.task(late, name=f"late{number}", retry=QUICK)
        flow.task(lambda: None, name=f"child{number}", after=[f"late{number}"])
    for number in range(BAD):
        flow.task(bug, name=f"bug{number}", retry=QUICK)
    for number in range(FINE):
        flow.task(lambda: None, name=f"fine{number}")
    path = tmp_path_factory.mktemp("night") / "state.db"
    Executor(run_id="r", flow=flow, state=path, max_parallel=8).run()
    return path


@pytest.fixture
def punctual(state: Path, tmp_path: Path) -> Path:
    """A copy whose attempts took no time, and started when they were due: a busy machine starts them seconds late, and
    the replay by time then finds another try of the same task nearer than the one that was made."""
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(state)) as source, closing(sqlite3.connect(path)) as copy, copy:
        source.backup(copy)
        (now,) = copy.execute("SELECT started_at FROM run").fetchone()
        ended_at: dict[str, int] = {}
        attempts = copy.execute("SELECT name, attempt, coalesce(delay_us, 0) FROM attempt ORDER BY name DESC, attempt")
        for name, attempt, delay_us in attempts.fetchall():  # late* before child*, which starts when it has ended
            at = ended_at.get(name) or ended_at.get(name.replace("child", "late"), now)
            copy.execute(
                "UPDATE attempt SET started_at = ?, ended_at = ?, duration_us = 0 WHERE name = ? AND attempt = ?",
                (at, at, name, attempt),
            )
            ended_at[name] = at + delay_us
    return path


def test_the_control_is_the_run_and_fewer_tries_are_fewer_calls(punctual: Path) -> None:
    found = plain(punctual, "--what-if", "max_attempts=2")
    was = found["as_it_was"]
    assert (was["calls"], was["dead_letters"], was["failed"], was["not_run"]) == (
        3 * LATE + LATE + 2 * BAD + FINE,
        3,
        0,
        0,
    )
    for again in found["same_again"].values():
        assert {name: again[name] for name in was if name != "seconds"} == {
            name: was[name] for name in was if name != "seconds"
        }
    changed = found["changed"]["by number"]["median"]
    assert (changed["calls"], changed["failed"], changed["not_run"]) == (2 * LATE + 2 * BAD + FINE, LATE, LATE)
    assert changed["pages"] > was["pages"]


def test_the_dice_of_a_longer_wait_spread_the_finish(state: Path) -> None:
    spread = plain(state, "--what-if", "base=20s cap=40s", "--replays", "4")["changed"]["by number"]
    assert 0 < spread["least"]["seconds"] < spread["median"]["seconds"] < spread["most"]["seconds"]
    assert spread["median"]["seconds"] > 10


def test_from_the_last_event_on_nothing_can_be_another(state: Path) -> None:
    found = plain(state, "--at", "1000000", "--what-if", "max_attempts=1")
    assert found["changed"]["by number"]["median"]["calls"] == found["as_it_was"]["calls"]
    assert found["seq"] > 0 and found["forked_at"] is not None


def test_from_the_middle_of_the_run_what_had_happened_stays(state: Path) -> None:
    """At most what had begun by then, and then one try for each."""
    whole = plain(state, "--what-if", "max_attempts=1")["changed"]["by number"]["median"]["calls"]
    later = plain(state, "--at", "60", "--what-if", "max_attempts=1")["changed"]["by number"]["median"]["calls"]
    assert whole <= later <= plain(state, "--what-if", "max_attempts=3")["as_it_was"]["calls"]


def test_a_table_and_what_it_does_not_know(state: Path) -> None:
    lines = replay(state, "--what-if", "max_attempts=2").splitlines()
    assert lines[0] == "what if max_attempts=2"
    assert lines[1].split() == ["calls", "failed", "dead", "letters", "not", "run", "pages", "finish"]
    assert lines[2].startswith("as it was ")
    assert "with the change" in lines
    assert any(line.startswith("Not replayed: crashes of the executor") for line in lines)


def test_what_cannot_be_changed_is_a_usage_error(state: Path) -> None:
    with pytest.raises(click.UsageError, match="'attempts=5' is not name=value"):
        replay(state, "--what-if", "attempts=5")


# --- The words -----------------------------------------------------------------------------------------------------


def rendered(was: RunFigures, again: RunFigures, *others: RunFigures, acts: int = 0) -> str:
    spread = range_of(others or [again])
    comparison = PolicyComparison(
        parse_change("base=5s"),
        was,
        dict.fromkeys(FailureAttribution, again),
        dict.fromkeys(FailureAttribution, spread),
        len(others) or 1,
    )
    return "\n".join(
        [
            *comparison_table(comparison),
            *describe_comparison(comparison, ReplayContext(acts=acts, deadline_seconds=7200.0)),
        ]
    )


def test_a_control_that_is_off_says_by_how_much() -> None:
    text = rendered(RunFigures(100, 1, 2, 3, 4, 600.0), RunFigures(97, 1, 3, 3, 4, 540.0))
    assert "(by number: -3 calls, +1 dead letter, 1m00 sooner; by time: " in text
    assert "a difference no larger than that shows nothing" in text


def test_a_control_that_is_the_run_says_so() -> None:
    assert "The control equals the run" in rendered(
        RunFigures(100, 1, 2, 3, 4, 600.0), RunFigures(100, 1, 2, 3, 4, 600.4)
    )


def test_the_least_and_the_most_are_reported_where_they_differ() -> None:
    one, other = RunFigures(100, 0, 0, 0, 0, 60.0), RunFigures(120, 0, 0, 0, 0, 90.0)
    assert "at most" in rendered(one, one, one, other)
    assert "at most" not in rendered(one, one, one, one)


def test_what_never_ends_never_finishes() -> None:
    one = RunFigures(100, 0, 0, 0, 0, 60.0)
    lines = rendered(one, one, RunFigures(5000, 0, 0, 0, 0, 9e5, is_over=False)).splitlines()
    assert lines[6].split() == ["by", "number", "5,000", "0", "0", "0", "0", "never"]


def test_acts_and_the_deadline_are_reported() -> None:
    one = RunFigures(100, 0, 0, 0, 0, 60.0, unrecorded=7)
    text = rendered(one, one, acts=2)
    assert "the run had 2 acts of operators since then" in text
    assert "The run is due after 2h00." in text
    assert "Without a counterpart in the run are 7 by number and 7 by time of 100 calls" in text
