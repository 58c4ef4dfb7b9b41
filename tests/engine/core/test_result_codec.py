"""Results survive exactly as their task returned them, or are refused with the type and the place."""

from __future__ import annotations

import collections
import enum
import json
import math
import sys
import types
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core.result_codec import (
    UnknownClassError,
    UnstorableError,
    dump_result,
    is_storable,
    load_result,
    plain_result,
)
from support.marks import for_each

NEW_YORK = ZoneInfo("America/New_York")


class Colour(enum.Enum):
    RED = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Decimal


@dataclass(frozen=True)
class Total:
    amount: Decimal
    days: list[date] = field(default_factory=list)


class Frame: ...


VALUES = [
    None,
    True,
    "text\0\ud800",
    10**40,
    -0.0,
    1.5,
    math.inf,
    -math.inf,
    Decimal("1.10"),
    Decimal("-0E+3"),
    datetime(2026, 4, 25, 3, 0, 0, 7),  # noqa: DTZ001
    datetime(2026, 4, 25, 3, tzinfo=UTC),
    datetime(2026, 4, 25, 3, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK),
    datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=NEW_YORK),
    datetime(2026, 11, 1, 1, 30, fold=1),  # noqa: DTZ001
    date(2026, 4, 25),
    time(3, 4, fold=1),
    time(3, 4, tzinfo=UTC),
    timedelta(days=-1, microseconds=1),
    b"\xff",
    bytearray(b"x"),
    UUID(int=7),
    Path("/a/b.csv"),
    (1, (2,), []),
    {1, 2},
    frozenset({("a", 1)}),
    {1: "a", None: "b", (1, 2): Decimal(3), 2.5: {True: "x"}},
    {"redrive:decimal": "1.5"},
    {"redrive:not-stored": "x", "b": 1},
    Colour.RED,
    Level.HIGH,
    Access.WRITE,
    Point(1, Decimal("2.50")),
    Total(Decimal("9.99"), [date(2026, 1, 1)]),
    [{"total": Total(Decimal(1))}],
]


@for_each("value", VALUES)
def test_a_value_survives_exactly(value: Any) -> None:
    loaded = load_result(dump_result(value))
    assert (loaded, repr(loaded), type(loaded)) == (value, repr(value), type(value))


def test_nan_survives() -> None:
    assert math.isnan(load_result(dump_result([math.nan]))[0])


_KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.decimals(allow_nan=False), st.dates())
_LEAVES = st.one_of(
    _KEYS, st.floats(allow_nan=False), st.binary(), st.datetimes(timezones=st.just(UTC)), st.uuids(), st.timedeltas()
)
_NESTED = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.tuples(inner, inner) | st.frozensets(_KEYS),
)


@given(_NESTED)
def test_nested_values_survive_and_have_a_plain_form(value: Any) -> None:
    text = dump_result(value)
    assert load_result(text) == value
    assert "redrive:" not in json.dumps(plain_result(text))


def test_the_text_of_a_set_is_the_same_in_every_process() -> None:
    assert dump_result({"b", "a", "c"}) == '{"redrive:set":["a","b","c"]}'


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Frame(), "result is a tests.Frame"),
        ({"rows": [1, {"when": Frame()}]}, "result['rows'][1]['when'] is a tests.Frame"),
        ([collections.Counter("aab")], "result[0] is a collections.Counter: make it a dict"),
        ({(1, 2): Frame()}, "result[(1, 2)] is a tests.Frame"),
        (Total(Frame()), "result.amount is a tests.Frame"),  # type: ignore[arg-type]
        (Access.READ | Access.WRITE, "not a single member of its enum"),
        ({"f": len}, "result['f'] is a builtin_function_or_method"),
        pytest.param(10**5000, "more than 4300 digits", id="huge"),
        (1j, "result is a complex"),
        (range(3), "result is a range"),
    ],
)
def test_another_value_is_refused_with_its_type_and_place(value: Any, sentence: str) -> None:
    with pytest.raises(UnstorableError) as refused:
        dump_result(value)
    assert sentence in str(refused.value)


def test_a_list_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(UnstorableError, match="levels deep"):
        dump_result(ring)


def test_a_class_inside_a_function_is_refused() -> None:
    @dataclass
    class Local:
        x: int

    with pytest.raises(UnstorableError, match="no place at the top level of a module"):
        dump_result([Local(1)])


def test_a_class_that_is_gone_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump_result(Colour.RED)
    monkeypatch.delattr(sys.modules[__name__], "Colour")
    with pytest.raises(UnknownClassError, match=r"there is no class .*test_result_codec\.Colour any more"):
        load_result(text)


def test_a_state_file_cannot_name_another_class() -> None:
    with pytest.raises(UnknownClassError):
        load_result('{"redrive:dataclass": ["subprocess:Popen", {"args": ["true"]}]}')
    with pytest.raises(UnknownClassError):
        load_result('{"redrive:enum": ["no.such.module:Thing", "A"]}')


@pytest.fixture
def numpy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the codec asks of numpy, which is not a requirement of the project."""
    module: Any = types.ModuleType("numpy")

    class generic:
        def __init__(self, value: Any, kind: str = "i") -> None:
            self.value, self.dtype = value, types.SimpleNamespace(kind=kind)

        def item(self) -> Any:
            return self.value

    generic.__module__ = "numpy"
    module.generic = generic
    monkeypatch.setitem(sys.modules, "numpy", module)
    return module


def test_a_scalar_of_numpy_arrives_as_its_item(numpy: Any) -> None:
    value = load_result(dump_result({"n": numpy.generic(42), "when": numpy.generic(date(2026, 1, 1), "M")}))
    assert value == {"n": 42, "when": date(2026, 1, 1)}


def test_a_scalar_of_numpy_without_an_exact_item_is_refused(numpy: Any) -> None:
    with pytest.raises(UnstorableError, match=r"result\[0\] is a numpy.*cannot hold exactly"):
        dump_result([numpy.generic(1_700_000_000_000_000_001, "M")])


def test_shell_tasks_get_plain_json() -> None:
    value = {
        "d": Decimal("1.10"),
        "t": timedelta(hours=1),
        "n": math.nan,
        7: (1, b"x"),
        "e": Colour.RED,
        "p": Point(1, Decimal(2)),
    }
    assert plain_result(dump_result(value)) == {
        "d": "1.10",
        "t": 3600.0,
        "n": "nan",
        "7": [1, "eA=="],
        "e": "RED",
        "p": {"x": 1, "y": "2"},
    }


@for_each(
    "kind, storable",
    [(int, True), (Path, True), (Total, True), (Level, True), (Frame, False), (collections.Counter, False)],
)
def test_check_knows_the_types(kind: type, storable: bool) -> None:
    assert is_storable(kind) is storable
