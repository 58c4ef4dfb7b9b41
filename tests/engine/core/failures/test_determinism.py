"""Which errors repeat by their nature: real exceptions, raised where they arise, and the words of the rule."""

from __future__ import annotations

import ast
import configparser
import csv
import decimal
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from redrive.engine.core.failures.attempt_end import AttemptEnd, signal_failure, timeout_failure
from redrive.engine.core.failures.failure import failure_of_error, failure_of_exit
from redrive.engine.core.failures.tables import POISON_RULE, Nature, is_shape_error, nature_of
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.errors import AmbiguousError, TransientError
from support.marks import for_each

ROOT = Path(__file__).parents[4]
NOTHING: Any = None


class Row(msgspec.Struct):
    """What a parser expects."""

    amount: int


class NoSuchAccount(KeyError):
    """An error of the user's own, below one of the table."""


def fail(error: BaseException) -> None:
    """Raise an error."""
    raise error


def recurse() -> None:
    """Call itself for ever."""
    recurse()


def failure_of(call: Callable[[], object]) -> Failure:
    """Describe what a call raises."""
    try:
        call()
    except Exception as error:
        return failure_of_error(error)
    raise AssertionError("the call has raised nothing")


@for_each(
    "call, nature",
    [
        (lambda: 1 / 0, Nature.PROGRAM),
        (lambda: undefined, Nature.PROGRAM),  # type: ignore[name-defined]  # noqa: F821
        (lambda: len(3), Nature.PROGRAM),  # type: ignore[arg-type]
        (lambda: json.lods("{}"), Nature.PROGRAM),  # type: ignore[attr-defined]
        (recurse, Nature.PROGRAM),
        (lambda: {"rows": 3}["sum"], Nature.SHAPE),
        (lambda: [][0], Nature.SHAPE),
        (lambda: fail(NoSuchAccount("42")), Nature.SHAPE),
        (lambda: int("abc"), Nature.SHAPE),
        (lambda: decimal.Decimal("abc"), Nature.SHAPE),
        (lambda: NOTHING["sum"], Nature.SHAPE),
        (lambda: NOTHING.strip(), Nature.SHAPE),
        (lambda: json.loads('"down"')["sum"], Nature.SHAPE),
        (lambda: json.loads("[3]").items(), Nature.SHAPE),
        (lambda: json.loads("<html>"), Nature.SHAPE),
        (lambda: json.loads('{"amount": seventeen}'), Nature.SHAPE),
        (lambda: ElementTree.fromstring("<p>down for maintenance"), Nature.SHAPE),
        (lambda: b"caf\xe9".decode(), Nature.SHAPE),
        (lambda: next(iter(())), Nature.SHAPE),
        (lambda: fail(csv.Error("line contains NUL")), Nature.SHAPE),
        (lambda: configparser.ConfigParser().read_string("<html>"), Nature.SHAPE),
        (lambda: struct.unpack("<I", b"1"), Nature.SHAPE),
        (lambda: zlib.decompress(b"<html>"), Nature.SHAPE),
        (lambda: zipfile.ZipFile(BytesIO(b"<html>")), Nature.SHAPE),
        (lambda: pickle.loads(b"<html>"), Nature.SHAPE),
        (lambda: msgspec.json.decode(b"{}", type=Row), Nature.SHAPE),
        (lambda: fail(RuntimeError("transient")), None),
        (lambda: fail(AssertionError()), None),
        (lambda: fail(OSError("?")), None),
        (lambda: fail(TimeoutError()), None),
        (lambda: fail(AmbiguousError("?")), None),
        (lambda: fail(TransientError("?")), None),
        (lambda: ast.literal_eval("<html>"), None),  # a SyntaxError is permanent: it needs no second failure
    ],
)
def test_the_type_tells_why_an_error_comes_again(call: Callable[[], object], nature: Nature | None) -> None:
    failure = failure_of(call)
    assert (nature, nature is Nature.SHAPE) == (nature_of(failure), is_shape_error(failure))


def test_a_policy_or_a_rule_that_calls_a_type_transient_comes_first() -> None:
    """The user knows that this KeyError heals."""
    error = KeyError("sum")
    assert nature_of(failure_of_error(error, policy=RetryPolicy(retry_on=("KeyError",)))) is None
    assert nature_of(failure_of_error(error, rules=[{"error": "KeyError", "class": "transient"}])) is None


@for_each(
    "failure, nature",
    [
        (signal_failure(AttemptEnd(), 11), Nature.PROGRAM),  # a crash
        (signal_failure(AttemptEnd(), 15), None),
        (failure_of_exit(3), None),  # says too little
        (timeout_failure(AttemptEnd(timeout=3.0)), None),
        (Failure("KeyError", "", FailureClass.UNCLASSIFIED, Fingerprint("a", "b")), Nature.SHAPE),  # without facts
        (Failure("json.decoder.JSONDecodeError", "", FailureClass.AMBIGUOUS, Fingerprint("a", "b")), Nature.SHAPE),
        (Failure("print", "", FailureClass.UNCLASSIFIED, Fingerprint("a", "b")), None),  # not a class
    ],
)
def test_what_is_no_exception_has_its_own_rows(failure: Failure, nature: Nature | None) -> None:
    assert nature is nature_of(failure)


def words(text: str) -> str:
    """The words of a text, whatever its line breaks and its marks of code."""
    return re.sub(r"\s+", " ", text.replace("`", ""))


@pytest.mark.parametrize("place", ["README.md", "console/manual/poison.md"])
def test_the_rule_is_said_in_the_same_words_everywhere(place: str) -> None:
    assert words(POISON_RULE) in words((ROOT / place).read_text(encoding="utf-8"))
    assert words(POISON_RULE) in words(RetryPolicy.__doc__ or "")
