"""What is listed beside a run: pages without their bodies, quarantined rows by the window and by the group."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from redrive.engine.core.spec import CommandOptions, TaskSpec, map_task
from redrive.engine.domain.event_codec import encode, listed_event
from redrive.engine.domain.events import EventKind
from redrive.engine.errors import RedriveError
from redrive.engine.statefile.lists import (
    BREAKERS,
    JOURNAL,
    PAGE_HEADS,
    PAGES,
    QUARANTINE_GROUPS,
    QUARANTINE_ROWS,
    TEXT_CHARACTERS,
    query,
    query_by_name,
)
from redrive.engine.statefile.sql import IS_APPROVAL, IS_MAP

from ..store.conftest import RUN, StateFile

ROWS = 100_000


def set_aside(state_file: StateFile, name: str, count: int, fingerprint: str | None, state: str = "held") -> None:
    """Rows as attempts have left them, the first of them with generation 0 and the rest with 1."""
    state_file.connection.execute("BEGIN")
    state_file.connection.executemany(
        "INSERT INTO quarantine (run_id, name, attempt, generation, row_key, payload, error, fingerprint, state, at)"
        " VALUES (?,?,1,?,?,?,?,?,?,?)",
        (
            (RUN, name, int(number > 0), f"{name}-{number}", "p" * 500, "KeyError: 'country'", fingerprint, state, 7)
            for number in range(count)
        ),
    )
    state_file.connection.execute(
        "UPDATE task SET bad_rows = (SELECT count(*) FROM quarantine WHERE quarantine.name = task.name AND"
        " quarantine.state = 'held')"
    )
    state_file.connection.execute("COMMIT")


@pytest.fixture
def loaded(state_file: StateFile) -> StateFile:
    """Two tasks that are done."""
    state_file.create({"load": "", "sum": "load", "other": ""})
    for name in ("load", "other"):
        state_file.set_state(name, "SUCCESS", attempt=1)
    return state_file


def rows(state_file: StateFile, columns: str = "name, state, generation") -> list[tuple[Any, ...]]:
    return state_file.connection.execute(f"SELECT {columns} FROM quarantine ORDER BY id").fetchall()


def last_command(state_file: StateFile) -> str:
    return [event for event in state_file.emitted if event.kind == EventKind.OPERATOR][-1].command_id or ""


def test_rows_are_counted_by_task_cause_and_what_became_of_them(loaded):
    set_aside(loaded, "load", 3, "c0ffee")
    set_aside(loaded, "load", 2, "c0ffee", "discarded")
    set_aside(loaded, "load", 1, None)
    set_aside(loaded, "other", 1, "c0ffee")
    set_aside(loaded, "over", 2, "c0ffee", "discarded")
    found = query(loaded.connection, QUARANTINE_GROUPS, {"run_id": RUN})
    assert [
        ("load", "c0ffee", 3, 2, 3),
        ("load", None, 1, 0, 6),
        ("other", "c0ffee", 1, 0, 7),
        ("over", "c0ffee", 0, 2, 9),
    ] == [(row.name, row.fingerprint, row.held, row.discarded, row.last_id) for row in found]
    assert {"KeyError: 'country'"} == {row.error for row in found}
    assert [5, 1, 1, 2] == [row.total for row in found]
    assert ["over"] == [row.name for row in found if row.is_idle]


def test_a_window_of_rows_holds_the_beginnings_of_their_texts(loaded):
    set_aside(loaded, "load", 5, "c0ffee")
    set_aside(loaded, "load", 5, None)
    options = {"run_id": RUN, "task": "load", "fingerprint": None, "skip": 3, "limit": 10}
    found = query(loaded.connection, QUARANTINE_ROWS, options)
    assert ["load-3", "load-4"] == [row.row_key for row in found]
    assert "p" * TEXT_CHARACTERS == found[0].payload


def test_pages_are_listed_without_their_bodies_and_those_that_are_over_last(loaded):
    insert = "INSERT INTO page (cause, episode, severity, title, state, created_at, updated_at) VALUES (?,1,?,?,?,1,?)"
    loaded.connection.execute(insert, ("a", "high", "over", "resolved", 9))
    loaded.connection.execute(insert, ("b", "high", "open", "open", 2))
    found = query(loaded.connection, PAGE_HEADS, {})
    assert ["open", "over"] == [row.title for row in found]
    assert found[0].body == {}
    assert ["over"] == [row.title for row in query(loaded.connection, PAGES, {"id": 1})]


def test_a_list_is_asked_for_by_its_name_where_its_row_is_not_known(loaded):
    """As an agent is asked; and what it does not know is named."""
    set_aside(loaded, "load", 2, "c0ffee")
    found = query_by_name(loaded.connection, "quarantine_groups", {"run_id": RUN})
    assert found == query(loaded.connection, QUARANTINE_GROUPS, {"run_id": RUN})
    with pytest.raises(RedriveError, match=r"no list 'no-such'; there are .*breaker, breakers"):
        query_by_name(loaded.connection, "no-such", {})
    with pytest.raises(RedriveError, match="'pages' takes no colour"):
        query_by_name(loaded.connection, "pages", {"colour": "red"})


def test_json_that_is_damaged_counts_as_none(loaded):
    for text in ('{"cut', "[]", '"text"'):
        loaded.connection.execute("INSERT INTO event (at, kind, run_id, data) VALUES (1, 'note', ?, ?)", (RUN, text))
        (row,) = query(loaded.connection, JOURNAL, {"run_id": RUN, "limit": 1})
        assert {} == encode(listed_event(row).payload)
    loaded.connection.execute("INSERT INTO breaker VALUES ('api', 'OPEN', NULL, '[[1', 1.0, '{', 1, NULL)")
    ((window, detail),) = [(row.window, row.detail) for row in query(loaded.connection, BREAKERS, {})]
    assert ([], {}) == (window, detail)


# --- Acts on a group -------------------------------------------------------------------------------------------------


def test_a_group_is_sent_back_up_to_the_row_that_was_seen(loaded):
    set_aside(loaded, "load", 3, "c0ffee")
    set_aside(loaded, "load", 1, "other")
    set_aside(loaded, "load", 1, "c0ffee")  # came after the operator had looked
    answer = loaded.act("requeue-rows", "load", groups=[["load", "c0ffee", 3]])
    assert answer["ok"] and [["load", "done", "runs again over 3 of its rows"]] == answer["results"]
    assert ["requeued"] * 3 + ["held"] * 2 == [state for _, state, _ in rows(loaded)]
    assert [1, 1, 1] == [generation for _, _, generation in rows(loaded)[:3]]
    assert ("PENDING", 2) == (loaded.column("load", "state"), loaded.column("load", "bad_rows"))


def test_rows_without_a_fingerprint_are_a_group_too(loaded):
    set_aside(loaded, "load", 2, None)
    set_aside(loaded, "load", 1, "c0ffee")
    assert "2 rows discarded" == loaded.act("discard-rows", groups=[["load", None, 9]])["message"]
    assert ["discarded", "discarded", "held"] == [state for _, state, _ in rows(loaded)]


def test_rows_that_were_named_and_are_held_no_longer_are_said(loaded):
    set_aside(loaded, "load", 3, "c0ffee")
    loaded.act("discard-rows", rows=[1])
    assert "1 row discarded, 1 row no longer held" == loaded.act("discard-rows", rows=[1, 2])["message"]


def test_undo_gives_every_row_what_it_had(loaded):
    set_aside(loaded, "load", 3, "c0ffee")
    set_aside(loaded, "other", 2, "c0ffee")
    set_aside(loaded, "load", 3, "c0ffee")
    before = rows(loaded)
    loaded.act("discard-rows", groups=[["load", "c0ffee", 9], ["other", "c0ffee", 9]], rows=[4])
    assert {"discarded"} == {state for _, state, _ in rows(loaded)}
    assert loaded.act("undo", command=last_command(loaded))["ok"]
    assert before == rows(loaded)
    assert 6 == loaded.column("load", "bad_rows")


@pytest.mark.long
def test_an_act_on_a_hundred_thousand_rows_is_one_short_event(loaded):
    """Row by row it would be four megabytes for everybody who is attached."""
    set_aside(loaded, "load", ROWS, "c0ffee")
    began = time.monotonic()
    answer = loaded.act("requeue-rows", "load", groups=[["load", "c0ffee", ROWS]])
    assert [["load", "done", f"runs again over {ROWS} of its rows"]] == answer["results"]
    assert time.monotonic() - began < 30
    assert max(len(json.dumps(encode(event.payload))) for event in loaded.emitted) < 20_000
    assert loaded.act("undo", command=last_command(loaded))["ok"]
    assert (ROWS,) == loaded.connection.execute("SELECT count(*) FROM quarantine WHERE state = 'held'").fetchone()


def test_the_words_of_a_spec_are_no_texts_of_its_command(state_file: StateFile) -> None:
    """A variable of a command may have the name of a field of the spec."""
    named = CommandOptions(env={"kind": "approval", "map": None})
    state_file.create(
        {"asks": "", "maps": "", "named": ""},
        asks={"kind": "approval"},
        maps={"map": map_task(TaskSpec("maps"), "list", 9).map},
        named={"kind": "command", "command_options": named},
    )
    for condition, name in ((IS_APPROVAL, "asks"), (IS_MAP.format("task"), "maps")):
        sql = f"SELECT name, {condition} FROM task ORDER BY name"
        rows = state_file.connection.execute(sql).fetchall()
        assert rows == [(one, int(one == name)) for one in ("asks", "maps", "named")]
