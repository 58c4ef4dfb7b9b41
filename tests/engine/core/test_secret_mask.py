"""Secrets are masked in every form in which programs print them, also where a stream is cut inside of one."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.secret_mask import MaskedStream, SecretMask, require_secrets, secret_values
from redrive.engine.core.spec import CommandOptions, FlowSpec, TaskSpec
from redrive.engine.errors import FlowError
from support.marks import for_each

SECRET = 'p"ä/s\\w'
MASK = SecretMask({"PG": SECRET, "ABC": "abcab", "LONG": "abcabxyz"})


@for_each(
    "printed",
    [
        SECRET,
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
    ],
)
def test_each_form_is_masked(printed: str) -> None:
    assert MASK.text(f"<{printed}>") == "<***PG***>"


@for_each(
    "text, masked",
    [
        ("postgres://etl:hunter2@db1:5432/x?a=b", "postgres://etl:***@db1:5432/x?a=b"),
        ("redis://:hunter2@db1", "redis://:***@db1"),
        ("https://u:p@ss@host/", "https://u:***@host/"),
        ('{"url": "http://host:80", "mail": "a@b"}', '{"url": "http://host:80", "mail": "a@b"}'),
        ("https://host:80/x@y and a@b", "https://host:80/x@y and a@b"),
        ("https://u:***@host", "https://u:***@host"),
    ],
)
def test_passwords_of_urls_are_masked(text: str, masked: str) -> None:
    assert SecretMask().text(text) == masked
    assert SecretMask().find(masked) is None


def test_each_line_of_a_key_is_masked() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    assert "MIIEv" not in SecretMask({"KEY": key}).text("  indented MIIEvQIBADANBgkq")


_PIECES = st.lists(
    st.sampled_from(["abc", "ab", "abcab", "xyz", SECRET, "://u:", "hunter2", "@", "h ", "ä", "\n", "x"])
)


@given(_PIECES, st.lists(st.integers(0, 60)))
@example(["abc", "ab", "xyz"], [5])
@example(["://u:", "hunter2", "@", "h "], [1, 2, 3, 4, 5, 6, 9, 12])
def test_a_stream_in_pieces_is_masked_as_the_whole(words: list[str], cuts: list[int]) -> None:
    data = "".join(words).encode()
    stream, masked, position = MaskedStream(MASK), b"", 0
    for cut in [*sorted(set(cuts)), len(data)]:
        masked += stream.feed(data[position:cut])
        position = max(position, cut)
    masked += stream.flush()
    assert masked.decode() == MASK.text(data.decode())


def test_text_without_a_beginning_of_a_secret_is_not_held() -> None:
    stream = MaskedStream(MASK)
    assert stream.feed(b"Continue? [y/N] ") == b"Continue? [y/N] "
    assert (stream.feed(b"at ab"), stream.feed(b"out")) == (b"at ", b"about")


class Word(StrEnum):
    A = "a"


class Payload(NamedTuple):
    text: str
    parts: list[Any]


def test_a_value_is_masked_in_depth_and_stays_itself_without_secrets() -> None:
    failure = Failure(
        "E", f"no {SECRET}", FailureClass.AUTH, Fingerprint("s", "l", parts=(SECRET,)), facts={"x": [SECRET]}
    )
    masked = MASK.value(Outcome(OutcomeKind.ERROR, failure, attempt_columns={"stack": SECRET, "pid": 7}))
    assert SECRET not in str(masked) and masked.failure.failure_class is FailureClass.AUTH
    assert MASK.value(Payload(SECRET, [Word.A, 1])) == Payload("***PG***", [Word.A, 1])
    clean = Payload("x", [{"y": Word.A}])
    assert MASK.value(clean) is clean


FLOW = FlowSpec("f", (TaskSpec("t"),), params={"password": None, "day": "x"}, secrets=("PGPASSWORD", "password"))


def test_secrets_come_from_parameters_and_the_environment() -> None:
    assert secret_values(FLOW, {"PGPASSWORD": "hunter2", "password": "no"}) == {"PGPASSWORD": "hunter2"}


@for_each(
    "environment, password, sentence",
    [
        ({}, "hunter2", "needs the variable PGPASSWORD of the environment"),
        ({"PGPASSWORD": ""}, "hunter2", "needs the variable PGPASSWORD of the environment"),
        ({"PGPASSWORD": "abcd"}, None, "--param password=@FILE"),
        ({"PGPASSWORD": "abc"}, "hunter2", "under 4 characters"),
    ],
)
def test_a_missing_secret_is_refused(environment: dict[str, str], password: str | None, sentence: str) -> None:
    flow = FlowSpec("f", (TaskSpec("t"),), params={"password": password}, secrets=FLOW.secrets)
    with pytest.raises(FlowError, match=sentence):
        require_secrets(flow, environment)


def test_the_stored_flow_holds_no_secret() -> None:
    options = CommandOptions(env={"A": SECRET})
    tasks = (TaskSpec("t", command=f"x --password={SECRET}", command_options=options), TaskSpec("other"))
    flow = FlowSpec("f", tasks, params={"password": SECRET, "day": "x"}, secrets=("password",))
    stored = MASK.stored_flow(flow)
    assert SECRET not in str(stored)
    assert stored.params == {"password": "***password***", "day": "x"}
    assert stored.tasks[1] is flow.tasks[1]
