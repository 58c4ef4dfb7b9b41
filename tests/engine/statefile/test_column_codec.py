"""Columns come back as they went, whatever is in them, and cost little."""

from __future__ import annotations

import json
import zlib

from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.statefile.snapshot import pack, pack_table, unpack, unpack_table

instants = st.one_of(st.none(), st.integers(0, 2**53))
words = st.one_of(st.none(), st.text(), st.sampled_from(["SUCCESS", "PENDING", "task_1", "task_12", "task_2"]))
anything = st.one_of(instants, words, st.floats(allow_nan=False), st.booleans())


def crossed(packed: object) -> object:
    """As JSON, as it crosses the line."""
    return json.loads(json.dumps(packed))


@given(st.one_of(st.lists(instants), st.lists(words), st.lists(st.text()), st.lists(anything)))
def test_a_column_comes_back_as_it_went(values: list[object]) -> None:
    back = unpack(crossed(pack(values)), len(values))
    assert back == values
    assert [type(value) for value in back] == [type(value) for value in values]


@given(st.lists(st.tuples(instants, words)))
def test_a_table_comes_back_as_it_went(rows: list[tuple[int | None, str | None]]) -> None:
    columns = unpack_table(crossed(pack_table(("at", "name"), rows)))  # type: ignore[arg-type]
    assert list(zip(columns["at"], columns["name"], strict=True)) == rows


def test_names_that_share_their_beginning_cost_little() -> None:
    names = [f"extract_table_{number:05}" for number in range(10_000)]
    assert unpack(pack(names), len(names)) == names
    assert len(zlib.compress(json.dumps(pack(names)).encode())) < 30_000


def test_instants_in_order_cost_their_differences() -> None:
    instants = [1_700_000_000_000_000 + 1_250 * number for number in range(10_000)]
    assert len(zlib.compress(json.dumps(pack(instants)).encode())) < 200
