"""What an element is known by, and the name that its child has of it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core.result_codec import dump_result
from redrive.engine.domain.elements import KEY_CHARACTERS_MAX, child_of_key, has_parts, key_text, numbered, value_hash
from redrive.engine.domain.states import effect_key
from support.marks import for_each

KEYS = st.text(st.characters(codec=None), min_size=1, max_size=120)


@given(KEYS, KEYS)
def test_each_key_has_a_name_of_its_own_on_one_line_and_a_key_in_ascii(first: str, second: str) -> None:
    name = child_of_key("pay", first)
    assert (name == child_of_key("pay", second)) is (first == second)
    assert name.isprintable() and name.startswith("pay[") and name.endswith("]")
    assert len(name) <= len("pay[]") + KEY_CHARACTERS_MAX + 13
    assert effect_key("r", name, 0).isascii()


@for_each(
    "key, name",
    [
        ("INV-17", "pay[INV-17]"),
        ("a b", "pay[a b]"),
        (" a", "pay[%20a]"),
        ("a]\n[%", "pay[a%5D%0A%5B%25]"),
        ("x" * 81, "pay[" + "x" * 80 + "~"),
        (17, "pay[17]"),
        (17.0, "pay[17]"),
        (Decimal("17.00"), "pay[17]"),
        (1.5, "pay[1.5]"),
        (Decimal("1.50"), "pay[1.5]"),
        (datetime.date(2026, 4, 1), "pay[2026-04-01]"),
    ],
)
def test_a_key_is_a_text_a_number_or_a_date(key: object, name: str) -> None:
    assert child_of_key("pay", key_text(key)).startswith(name)


@for_each("key", [None, True, "", [], {}, b"x", float("nan"), float("inf"), Decimal("nan"), object()])
def test_nothing_else_is_a_key(key: object) -> None:
    with pytest.raises(ValueError):
        key_text(key)


def test_equal_elements_are_counted() -> None:
    assert numbered(["a", "b", "a"]) == ["a#0", "b#0", "a#1"]


def test_a_value_is_the_same_in_whatever_order_its_set_or_mapping_is_written() -> None:
    assert value_hash({"redrive:set": ["a", "b"]}) == value_hash({"redrive:set": ["b", "a"]})
    assert value_hash({"a": 1, "b": 2}) == value_hash({"b": 2, "a": 1})
    assert value_hash(["a", "b"]) != value_hash(["b", "a"])


@for_each(
    "element, expected",
    [
        ("a", False),
        (7, False),
        (Decimal("1.5"), False),
        (datetime.date(2026, 4, 1), False),
        (("a", 1), False),
        (["a", 1], False),
        (frozenset("a"), False),
        ({"id": 1}, True),
        ({}, True),
        ((1, {"id": 1}), True),
        ({1: 2}, True),
    ],
)
def test_mappings_and_objects_have_fields_that_may_change(element: Any, expected: bool) -> None:
    import json

    assert has_parts(json.loads(dump_result(element))) is expected
