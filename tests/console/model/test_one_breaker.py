"""Engine and console read one row of a breaker as one thing, whatever its flow declares now."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.console.model.systems import breaker_status
from redrive.engine.core.breaker import (
    BreakerColumns,
    BreakerDetail,
    BreakerState,
    decode,
    from_row,
    next_retry_at,
)
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec
from redrive.engine.core.waiting import breaker_view
from redrive.engine.statefile.lists import BreakerRow

NOW = 1_700_000_000_000_000
INSTANTS = st.integers(NOW - 10**9, NOW + 10**9)
SPECS = st.builds(
    DownstreamSpec,
    st.just("api"),
    metrics_only=st.booleans(),
    release_per_second=st.sampled_from([0.0, 5.0]),
    bucket_capacity=st.sampled_from([0.0, 1.0, 10.0]),
)
ROWS = st.fixed_dictionaries(
    {
        "state": st.sampled_from([str(state) for state in BreakerState]),
        "reopens_at": st.none() | INSTANTS,
        "window": st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=5), max_size=3).map(json.dumps),
        "tokens": st.none() | st.floats(0, 20),
        "detail": st.one_of(
            st.builds(
                lambda why, release_at, rate, openings: json.dumps(
                    {"why": why, "release_at": release_at, "release_rate": rate, "openings": openings, "episode": 3}
                ),
                st.text(max_size=9),
                st.none() | INSTANTS,
                st.floats(0, 50),
                st.integers(0, 9),
            ),
            st.sampled_from(["{}", '{"why": 3}', "[]", "null"]),
        ),
    }
)


@given(ROWS, SPECS)
def test_engine_and_console_say_the_same_of_any_row(columns: BreakerColumns, spec: DownstreamSpec) -> None:
    window, detail = json.loads(columns["window"]), json.loads(columns["detail"])
    row = BreakerRow("api", columns["state"], columns["reopens_at"], window, columns["tokens"], detail, NOW)
    status = breaker_status(spec, row)
    engine = DownstreamStates(FlowSpec("f", (TaskSpec("t"),), downstreams=(spec,)), lambda: NOW, lambda name: None)
    engine.load([{"downstream": "api", **columns, "changed_at": NOW, "opened_at": None}])
    view = engine.views()["api"]
    shown = breaker_view(*decode(*row[1:6], spec), spec)
    assert (status.why, status.reserve_at or None) == (shown.why, shown.reserve_at) == (view.why, view.reserve_at)
    if status.state is BreakerState.HALF_OPEN:  # the next executor asks again
        assert (view.state, view.reopens_at) == ("OPEN", 0)
        return
    assert str(status.state) == shown.state == view.state
    assert status.breaker == replace(from_row(columns, spec)[0], episode=status.breaker.episode)
    assert shown == view and status.breaker.reopens_at == view.reopens_at


def test_a_flow_that_only_counts_now_has_no_reason_of_an_outage_left() -> None:
    detail = {"why": "5 of 5 calls failed in 60 s"}
    row = BreakerRow("api", "OPEN", NOW, [], 10.0, detail, NOW)
    status = breaker_status(DownstreamSpec("api", metrics_only=True), row)
    assert (status.state, status.why, status.is_blocking) == (BreakerState.METRICS_ONLY, "", False)
    assert breaker_status(DownstreamSpec("api"), row).why == detail["why"]


def test_a_row_of_an_earlier_version_has_a_whole_bucket() -> None:
    breaker, bucket = decode("CLOSED", None, [], None, {}, DownstreamSpec("api"))
    assert (bucket.tokens, next_retry_at(bucket, DownstreamSpec("api"))) == (10.0, None)
    assert BreakerDetail().why == breaker.why == ""
