"""Shell, JSON and metrics say the same of one schedule, whatever its row says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.cli.metrics import Samples, add_schedule
from redrive.console.present.schedules import SCHEDULE_COLUMNS
from redrive.console.text.columns import json_value, shell_rows
from redrive.engine.statefile.supervisor_file import FOREVER, Fate, LedgerRow, ServedSchedule

NOW = 1_700_000_000_000_000
PAST, COMING = st.integers(NOW - 10**12, NOW), st.integers(NOW, NOW + 10**12)
OWN = {"supervisor_id", "spec", "edits", "ledger_until", "seen_run", "nights"}  # of the supervisor alone
TEXTS = {name: st.just("") for name in ("target", "file", "object")}
FIELDS = {
    **{name: st.just(ServedSchedule._field_defaults.get(name)) for name in ServedSchedule._fields},
    **TEXTS,
    "id": st.just(1),
    "flow": st.sampled_from(["revenue", "ledger"]),
    "next_at": st.none() | PAST | COMING,
    "next_logical": st.none() | COMING,
    "last_started_at": st.none() | PAST,
    "last_state": st.sampled_from(["SUCCESS", "FAILED"]),
    "usual_us": st.none() | st.integers(1, 10**10),
    "running_since": st.none() | PAST,
    "late_since": st.none() | st.integers(NOW - 10**12, NOW - 1),
    "gone_since": st.none() | PAST,
    "paused_until": st.just(0) | st.just(FOREVER) | COMING,
    "start_error": st.none() | st.just("no such file"),
    "failed_since": PAST,
    "acknowledged_at": st.none() | PAST,
    "heartbeat_at": st.just(NOW) | PAST,
    "stopped_at": st.none() | PAST,
    "missed": st.lists(
        PAST.map(lambda at: LedgerRow(at, at, 1, Fate.MISSED, "nothing served it", "", NOW, 1)), max_size=2
    ).map(tuple),
    "missed_times": st.integers(0, 9),
    "missed_since": st.just(0),
    "requests": st.just(()),
    "after": st.just(()),
}


@given(st.builds(ServedSchedule, **FIELDS))
def test_all_say_the_same_of_a_schedule(row):
    samples = Samples()
    add_schedule(samples, row, NOW)
    metric = {name: next(iter(values.values()), None) for name, values in samples.values.items()}
    value, (titles, cells) = json_value(SCHEDULE_COLUMNS, row, NOW), shell_rows(SCHEDULE_COLUMNS, [row], NOW)
    said = {str(title): str(getattr(cell, "text", cell)) for title, cell in zip(titles, cells, strict=True)}
    assert value.keys() == {*row._fields, "is_served", "is_paused"} - OWN
    assert said["FLOW"] == value["flow"] == row.flow
    assert metric["schedule_served"] == value["is_served"] == ("not served" not in said["STATE"])
    assert metric["schedule_paused"] == value["is_paused"] == ("paused" in said["STATE"])
    assert metric["schedule_missed_starts"] == value["missed_times"]
    assert said["MISSED"] == (str(value["missed_times"]) if value["missed_times"] else "")
    assert bool(said["USUAL"]) == (metric["schedule_usual_seconds"] is not None) == (value["usual_us"] is not None)
    assert bool(said["LAST"]) == (value["last_started_at"] is not None)
    assert not said["NEXT"] or metric["schedule_next_timestamp_seconds"] == row.next_at / 1e6
    assert not said["NEXT"] or value["is_served"] or said["NEXT"].startswith("due ")
    assert bool(metric["schedule_late_seconds"]) == ("late since" in said["STATE"])
    assert bool(metric["schedule_start_failed"]) <= ("cannot start" in said["STATE"] or row.gone_since is not None)
