"""What is usual is told by the runs before, to two digits, and not by more of them than can be read at once."""

from __future__ import annotations

import msgspec
import pytest
from redrive.engine.core.spec import FlowSpec, ItemSpec, TaskSpec, map_task
from redrive.engine.errors import RefusedError
from redrive.engine.statefile import durations
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.store import runs

from ..store.conftest import RUN, START, StateFile

SECOND = 1_000_000
_TASK = "INSERT INTO task (run_id, name, state, spec) VALUES (?, ?, 'SUCCESS', ?)"


def earlier_run(state_file: StateFile, number: int, durations: dict[str, float], dag_name: str = "settlement") -> None:
    """A run before, of which each task succeeded once. ``durations``: in seconds."""
    run_id = f"before-{number}"

    def item(transaction: object) -> None:
        connection = state_file.connection
        connection.execute(
            "INSERT INTO run (rowid, run_id, dag_name, started_at, state) VALUES (?, ?, ?, ?, 'SUCCESS')",
            (-number, run_id, dag_name, START - number * SECOND),
        )
        connection.executemany(
            "INSERT INTO attempt (run_id, name, attempt, generation, token, started_at, duration_us, outcome)"
            " VALUES (?, ?, 1, 0, 't', ?, ?, 'success')",
            [(run_id, name, START, round(seconds * SECOND)) for name, seconds in durations.items()],
        )

    state_file.write(item)


def read_stats(state_file: StateFile) -> dict[str, DurationStats]:
    return durations.read_durations(state_file.connection, RUN)


def test_median_and_p95_are_those_of_the_runs_before(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "new": ""})
    for number, seconds in enumerate((10, 30, 20, 90, 25), start=1):
        earlier_run(state_file, number, {"a": seconds, "gone": 5})
    earlier_run(state_file, 9, {"a": 1, "b": 1}, dag_name="another")
    assert read_stats(state_file) == {"a": DurationStats(25 * SECOND, 90 * SECOND, 5)}


def test_the_run_itself_does_not_count(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.connection.execute(
        "INSERT INTO attempt (run_id, name, attempt, generation, token, started_at, duration_us, outcome)"
        " VALUES (?, 'a', 1, 0, 't', ?, 77, 'success')",
        (RUN, START),
    )
    assert read_stats(state_file) == {}


def test_runs_that_came_later_do_not_count(state_file: StateFile) -> None:
    """Whoever looks at an old night is not told what only later ones showed."""
    state_file.create({"a": ""})
    earlier_run(state_file, 1, {"a": 10})
    earlier_run(state_file, -(10**6), {"a": 500})
    assert read_stats(state_file) == {"a": DurationStats(10 * SECOND, 10 * SECOND, 1)}


def test_it_is_reported_to_two_digits(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": ""})
    earlier_run(state_file, 1, {"a": 7384.2, "b": 0.0123456, "c": 0.0})
    assert {name: one.p50_us for name, one in read_stats(state_file).items()} == {
        "a": 7400 * SECOND,
        "b": 12_000,
        "c": 1_000,
    }


def test_no_more_runs_are_read_than_fill_the_bound(state_file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    state_file.create({"a": "", "b": ""})
    for number in range(1, 9):
        earlier_run(state_file, number, {"a": number, "b": number})
    monkeypatch.setattr(durations, "ATTEMPTS_MAX", 5)
    assert [one.attempts for one in read_stats(state_file).values()] == [3, 2]
    assert read_stats(state_file)["b"].p95_us == 2 * SECOND  # the latest runs, not the earliest


def test_a_run_that_is_not_there_is_named(state_file: StateFile) -> None:
    with pytest.raises(RefusedError, match="no run 'nowhere'"):
        durations.read_durations(state_file.connection, "nowhere")


def test_a_child_of_a_map_has_its_own_from_three_nights_on_and_else_those_of_all_children(
    state_file: StateFile,
) -> None:
    """A task that is no child, as its name does not say, has its own."""
    state_file.create({"pay[INV-17]": "", "pay[INV-18]": "", "pay[new]": "", "pay": "", "load": "", "load[eu]": ""})
    pay = map_task(TaskSpec("pay"), "bills", 9)
    for night in range(1, 4):
        nights = {"pay[INV-17]": 40, "pay[INV-18]": 2, "pay[gone]": 4, "pay": 1, "load[eu]": 7}
        earlier_run(state_file, night, {name: one for name, one in nights.items() if night < 3 or "17" in name})
        place = (f"before-{night}", "pay", msgspec.json.encode(pay).decode())
        state_file.write(lambda t, place=place: t.connection.execute(_TASK, place))
    stats = read_stats(state_file)
    assert stats["load[eu]"].attempts == 2 and "load" not in stats
    assert stats["pay[INV-17]"] == DurationStats(40 * SECOND, 40 * SECOND, 3)
    assert stats["pay[INV-18]"] == stats["pay[new]"] == DurationStats(4 * SECOND, 40 * SECOND, 7)
    assert stats["pay"] == DurationStats(SECOND, SECOND, 2)
    took = durations.duration_stats(state_file.connection, "settlement")
    known = [durations.of_child(took, name, None) for name in ("pay[INV-17]", "pay[new]", "load[us]")]
    assert [one and (one.p50_us, one.attempts) for one in known] == [(40 * SECOND, 3), (4 * SECOND, 7), None]
    of_pay = ItemSpec("pay", "bills", 0)
    assert len(runs.past_attempts(state_file.connection, "pay[new]", item=of_pay)) == 7
    assert len(runs.past_attempts(state_file.connection, "pay[INV-17]", item=of_pay)) == 3
    tasks = (pay, TaskSpec("pay[INV-17]"))
    of_check = runs.past_by_task(state_file.connection, FlowSpec("settlement", tasks))
    assert {name: len(past) for name, past in of_check.items()} == {"pay": 7, "pay[INV-17]": 3}
