"""Frames survive every cut of the stream, and nothing but frames is read as one."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.runner import protocol
from support.marks import for_each


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_payloads_survive_every_cut_of_the_stream(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
    reader = protocol.FrameReader(1000)
    found: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        found += reader.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert found == payloads


def test_a_length_over_the_bound_is_refused_before_anything_is_kept() -> None:
    reader = protocol.FrameReader(1000)
    with pytest.raises(protocol.ProtocolError, match="1001 bytes"):
        reader.feed((1001).to_bytes(4, "big"))


def test_an_order_crosses_unchanged() -> None:
    spec = TaskSpec("a", parents=("b",), retry=RetryPolicy(max_attempts=7), params={"x": [1, None]}, timeout=1.5)
    order = protocol.AttemptOrder("r", "a", 1, 2, spec, {"p": 1.5}, '{"b":1}', "k", ({"match": "x"},))
    data = protocol.encode(protocol.Start(3, protocol.encode_order(order), {}))
    (payload,) = protocol.FrameReader(10_000).feed(data)
    start = protocol.decode_executor_frame(payload)
    assert isinstance(start, protocol.Start)
    assert (start.number, protocol.decode_order(start.order)) == (3, order)


def test_a_failure_crosses_unchanged() -> None:
    failure = Failure("E", "m", FailureClass.AUTH, Fingerprint("s", "l", "v", "x", ("p",)), "tb", "d", 3.5)
    frame = protocol.Ended(Outcome(OutcomeKind.ERROR, failure))
    (payload,) = protocol.FrameReader(10_000).feed(protocol.encode(frame))
    assert protocol.decode_attempt_frame(payload) == frame


@for_each("payload", [b"", b"\xff" * 10, b"\x91\xa4Open", msgspec.msgpack.encode(["Start", 1])])
def test_what_is_no_frame_of_an_attempt_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        protocol.decode_attempt_frame(payload)


def test_a_write_goes_on_until_all_is_gone() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        protocol.write_all(write, b"x" * 300_000)  # more than the pipe holds
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        assert len(file.read()) == 300_000
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fits", "fits"),
        ("\udcff", "\\udcff"),
        ("x" * 100, "x" * 100),
    ],
)
def test_clean_text_keeps_what_fits(text: str, expected: str) -> None:
    assert protocol.clean_text(text, 100) == expected


def test_clean_text_cuts_the_middle_out_and_says_so() -> None:
    cut = protocol.clean_text("a" * 1000 + "b" * 1000, 200)
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert "1840 characters cut" in cut
    assert len(cut) <= 200
