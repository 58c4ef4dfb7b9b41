"""Payloads of events: one type for each kind, the same after a journey through JSON, and readable by older versions."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.sessions import answers as run_decoder
from redrive.console.text.event_text import describe_event, lines_of_event
from redrive.engine.core.projection import AttemptRow
from redrive.engine.domain import event_codec, event_payloads
from redrive.engine.domain.event_codec import PAYLOAD_TYPES, decode, encode, event_of, kind_of, unreadable
from redrive.engine.domain.event_payloads import (
    BreakerChanged,
    Flag,
    NameList,
    Numbers,
    OptionalInt,
    Pairs,
    Payload,
    Real,
    RowLists,
    RunChanged,
    ScheduleChanged,
    TaskColumns,
    TaskMoved,
    Text,
    UnknownPayload,
    Values,
)
from redrive.engine.domain.events import KILL_STEPS, Event, EventKind
from redrive.engine.errors import CorruptFileError
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import runs
from support.marks import for_each

KINDS = sorted(value for name, value in vars(EventKind).items() if not name.startswith("_"))
KNOWN = [payload_type for payload_type in get_args(Payload) if payload_type is not UnknownPayload]

_COLUMNS = st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=3)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
#: JSON values by the annotation of a field. At run time all sets of columns are dicts.
_VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text()),
    (Text, st.none() | st.text()),
    (int, st.integers()),
    (OptionalInt, st.none() | st.integers()),
    (float, _FINITE),
    (Real, st.none() | _FINITE),
    (Flag, st.none() | st.booleans()),
    (NameList, st.lists(st.text())),
    (Numbers, st.lists(st.integers())),
    (RowLists, st.lists(st.lists(st.text()))),
    (TaskColumns, _COLUMNS),
    (Values, _COLUMNS),
    (Pairs, st.dictionaries(st.text(), st.lists(st.integers(), min_size=2, max_size=2), max_size=2)),
    (event_payloads.Before, st.dictionaries(st.text(), _COLUMNS, max_size=2)),
]
#: These share their key in JSON with fields of another JSON type: an event has one or the other.
_EXCLUSIVE = {RunChanged: {"params_added", "params_changed", "params_removed"}}


def payloads_of(payload_type: Any) -> st.SearchStrategy[Any]:
    fields = {
        field: next(values for known, values in _VALUES if known == annotation)
        for field, annotation in payload_type.__annotations__.items()
    }
    for field in _EXCLUSIVE.get(payload_type, ()):
        fields[field] = st.just(payload_type._field_defaults[field])
    return st.builds(payload_type, **fields)


def test_every_kind_has_one_type_of_payload_and_every_type_one_kind() -> None:
    assert sorted(PAYLOAD_TYPES) == KINDS
    assert len(KNOWN) == len(KINDS) and set(PAYLOAD_TYPES.values()) == set(KNOWN)


@pytest.mark.parametrize("payload_type", KNOWN, ids=lambda payload_type: str(payload_type.__name__))
@given(data=st.data())
def test_a_payload_is_the_same_after_a_journey_through_json(payload_type: Any, data: st.DataObject) -> None:
    payload = data.draw(payloads_of(payload_type))
    assert decode(kind_of(payload), json.loads(json.dumps(encode(payload)))) == payload


def test_changed_parameters_share_their_keys_with_changed_tasks() -> None:
    tasks = RunChanged("flow-changed", added=["a"], changed=["b"])
    params = RunChanged("params", params_added={"day": 1}, params_changed={"zone": ["eu", "us"]})
    assert encode(tasks) == {"what": "flow-changed", "added": ["a"], "changed": ["b"]}
    assert encode(params) == {"what": "params", "added": {"day": 1}, "changed": {"zone": ["eu", "us"]}}
    assert [decode("run", encode(payload)) for payload in (tasks, params)] == [tasks, params]


def test_what_nobody_has_given_is_not_written() -> None:
    assert encode(TaskMoved()) == {}
    assert encode(TaskMoved({"stale": 1})) == {"set": {"stale": 1}}
    assert encode(decode("operator", {"options": {}})) == {"options": {}}
    assert encode(ScheduleChanged("missed", "nightly", is_all=False))["is_all"] is False


@for_each("kind", KINDS)
def test_a_payload_without_a_word_is_blank_and_has_a_sentence(kind: str) -> None:
    payload = decode(kind, {})
    assert type(payload) is PAYLOAD_TYPES[kind] and encode(payload) == {}
    event = Event(1, 1, kind, "r", "a", None, None, 1, 0, None, None, None, payload)
    assert describe_event(event).strip()
    list(lines_of_event(event))


def test_keys_of_a_later_version_are_passed_over() -> None:
    data = {"downstream": "api", "state": "OPEN", "colour": "red", "nested": {"deep": [1]}}
    assert decode(EventKind.BREAKER, data) == BreakerChanged("api", "OPEN")


def test_a_kind_of_a_later_version_is_kept_as_it_is() -> None:
    data: dict[str, object] = {"what": "new", "set": {"stale": 1}, "attempt": {"late": 1}, "more": [1, 2]}
    payload = decode("a.kind.of.tomorrow", data)
    assert payload == UnknownPayload("new", {"stale": 1}, {"late": 1}, data)
    assert encode(payload) == data
    assert decode("a.kind.of.tomorrow", {"what": 7, "set": [], "attempt": "x"}).what is None


@for_each(
    "kind, data, message",
    [
        ("task", {"set": [1]}, "'set'"),
        ("task", {"attempt": "three"}, "'attempt'"),
        ("breaker", {"downstream": 7}, "'downstream'"),
        ("attempt.sigkill", {"pids": "all"}, "'pids'"),
        ("clock", {"moved_us": "an hour"}, "'moved_us'"),
        ("clock", {"moved_us": True}, "'moved_us'"),
        ("page", [], "no JSON object"),
        ("page", None, "no JSON object"),
    ],
)
def test_a_value_of_another_type_is_an_error_in_one_sentence(kind: str, data: Any, message: str) -> None:
    with pytest.raises(CorruptFileError) as raised:
        decode(kind, data)
    assert f"an event of kind {kind!r}" in str(raised.value) and message in str(raised.value)
    assert encode(unreadable(json.dumps(data))) == (data if isinstance(data, dict) else {})


def test_the_token_of_a_claim_that_an_earlier_version_wrote_is_not_read() -> None:
    assert decode("task", {"set": {"attempt": 1, "claim_token": "8ceea2d9"}}) == TaskMoved({"attempt": 1})


def test_nothing_is_said_by_null() -> None:
    assert decode("task", {"set": None, "attempt": None, "explain": None}) == TaskMoved()


# --- Files ----------------------------------------------------------------------------------------------------------


def insert(connection: sqlite3.Connection, kind: str, task: str | None, data: str) -> None:
    sql = "INSERT INTO event (at, kind, run_id, task, attempt, data) VALUES (7, ?, 'night-1', ?, NULL, ?)"
    connection.execute(sql, (kind, task, data))


def test_a_file_of_a_later_version_is_read_and_folded(make_run_file: Any) -> None:
    run_file = make_run_file()
    before = run_file.head()
    insert(run_file.connection, "a.kind.of.tomorrow", "task_00001", '{"what":"new","set":{"stale":1,"colour":"red"}}')
    insert(run_file.connection, "task.changed", "task_00002", '{"set":{"stale":1,"colour":"red"},"mood":"good"}')
    insert(run_file.connection, "breaker", None, '{"downstream":"api","state":"OPEN","mood":{}}')
    rows = run_file.connection.execute(*events_query(before, 100)).fetchall()
    events = [event_of(row) for row in rows]
    projection = runs.load_run(run_file.connection, "night-1")
    projection.seq = before
    for event in events:
        projection.apply(event)
        assert describe_event(event)
        list(lines_of_event(event))
    assert [projection.tasks[name].stale for name in ("task_00000", "task_00001", "task_00002")] == [0, 1, 1]
    assert run_decoder.decode_events(rows) == events


def test_a_malformed_event_of_a_foreign_file_is_an_error_of_that_file(make_run_file: Any) -> None:
    run_file = make_run_file()
    before = run_file.head()
    insert(run_file.connection, "task", "task_00001", '{"set":"everything"}')
    (row,) = run_file.connection.execute(*events_query(before, 100)).fetchall()
    with pytest.raises(CorruptFileError, match="of kind 'task' in the state file has 'everything' as its 'set'"):
        event_of(row)


def test_every_step_of_a_kill_has_its_own_field_of_an_attempt() -> None:
    fields = set(AttemptRow.__struct_fields__)
    assert set(KILL_STEPS.values()) <= fields and len(set(KILL_STEPS.values())) == len(KILL_STEPS)
    assert all(kind in event_codec.PAYLOAD_TYPES for kind in KILL_STEPS)
